"""How well one loader feeds one device: what `tpufeed bench` measures, of loaders that it does not have as well.

    python benchmarks/run.py train --loader pil --photos FOLDER --device emulated:tpu-v3-8
    python benchmarks/run.py train --loader tfdata-guide --data DATASET --device emulated:tpu-v3-8

Loaders: those of `tpufeed bench`, and ways without tpufeed from feeders.py: `pil`, `pil-all-cores` and `tfdata-guide`.
Devices are those of `tpufeed bench`. With --json the last line of stdout is the run, without its timeline.
"""

import argparse
import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import Any

from benchmarks.entry import make_parser
from benchmarks.harness import describe, figure, machine, print_table, write_result
from tpufeed.errors import TpufeedError
from tpufeed.measure.bench import LOADERS, BenchOptions, Measurement, measure, middle_run
from tpufeed.measure.feeding import feed
from tpufeed.measure.results import BenchRun

FROM_PHOTOS = ("pil", "pil-all-cores")
OTHERS = (*FROM_PHOTOS, "tfdata-guide")
COLUMNS = ["img/s", "step ms", "wait ms p50", "p99", "idle %", "MXU %"]


def main(arguments: list[str]) -> int:
    args = parse(arguments)
    about = machine()
    try:
        options = BenchOptions(
            device=args.device,
            batch_size=args.batch,
            steps=args.steps,
            seconds=args.seconds,
            repeats=args.repeats,
            split=args.split,
            device_ops=tuple(args.device_op),
        )
        # Before any framework is imported.
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        choice = options.choice
        if choice.platform:
            os.environ["PJRT_DEVICE" if choice.kind == "xla" else "JAX_PLATFORMS"] = (
                choice.platform.upper() if choice.kind == "xla" else choice.platform
            )
        run = middle_run([run_once(args, options) for _ in range(args.repeats)])
    except TpufeedError as error:
        print(f"run.py train: {error}", file=sys.stderr)
        return error.exit_code
    result = {name: value for name, value in dataclasses.asdict(run).items() if name != "timeline"}
    if not args.json:
        show(run)
    print(json.dumps({**result, "repeats": args.repeats, "machine": about}), flush=True)
    if args.save:
        path = write_result(args.save, {"repeats": args.repeats}, [result])
        print(f"written to {path}, on {describe(about)}", file=sys.stderr)
    return 0


def run_once(args: argparse.Namespace, options: BenchOptions) -> BenchRun:
    """Feed the device once, in this process."""
    if args.loader in LOADERS:
        return measure(Measurement(url=args.data, loader=args.loader, options=options))
    from benchmarks import feeders
    from benchmarks.ledger import Ledger

    batch_size = options.images_a_step
    ledger = None
    if args.loader in FROM_PHOTOS:
        folder = feeders.PilFolder if args.loader == "pil" else feeders.PilFolderOnAllCores
        loader: Any = folder(args.photos, batch_size)
        ledger = Ledger(loader, len(loader.samples), batch_size)
        what, source, batches = str(args.photos), "raw files", len(loader)
    else:
        # It repeats before it shuffles, so that epochs run into one another: nothing can be said of repeats.
        import tpufeed

        shards = tpufeed.open_dataset(args.data).split(args.split).variants[0].shards
        loader = feeders.guide_pipeline([f"{args.data}/{shard.name}" for shard in shards], batch_size)
        what, source, batches = args.data, "shards", None
    try:
        run = feed(options.choice, loader if ledger is None else ledger, batch_size, options.limits, batches)
    finally:
        getattr(loader, "close", lambda: None)()
    problems = (*run.problems, *(() if ledger is None else ledger.problems()))
    about = {"label": f"{what}, {args.loader}", "url": what, "loader": args.loader, "source": source}
    return dataclasses.replace(run, **about, problems=problems)


def show(run: BenchRun) -> None:
    """The table, and what is to be said of the figures; of an emulated device each line says so."""
    emulated = run.device.startswith("EMULATED")
    mark = "EMULATED " if emulated else ""
    waits = (run.step_ms, run.wait_ms_p50, run.wait_ms_p99, run.idle_percent, run.mxu_percent)
    cells = [f"{run.device}, {run.source}: {run.loader}", figure(run.images_per_second, 0), *map(figure, waits)]
    print_table(f"{run.device}: {run.loader}, batches of {run.batch_size}", [f"{mark}device, input", *COLUMNS], [cells])
    for line in (*run.problems, run.verdict):
        if line:
            print(f"{mark}{run.loader}: {line}")


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = make_parser("train", __doc__)
    parser.add_argument("--loader", required=True, choices=(*LOADERS, *OTHERS))
    parser.add_argument("--data", metavar="URL", help="a dataset or cache of tpufeed")
    parser.add_argument("--photos", metavar="FOLDER", type=Path, help="a folder of class folders, for pil")
    parser.add_argument("--split", default="train")
    parser.add_argument("--device", default="emulated:tpu-v3-8", help="see `tpufeed bench --help`")
    parser.add_argument("--device-op", action="append", default=[], metavar="OP", help="see `tpufeed bench --help`")
    parser.add_argument("--batch", type=int)
    parser.add_argument("--steps", type=int, help="end after so many")
    parser.add_argument("--seconds", type=float, help="end after so long; default: 8 where there are no --steps")
    parser.add_argument("--repeats", type=int, default=1, help="show the run in the middle of so many")
    parser.add_argument("--json", action="store_true", help="the JSON line only")
    args = parser.parse_args(arguments)
    needed = "photos" if args.loader in FROM_PHOTOS else "data"
    if getattr(args, needed) is None:
        parser.error(f"--loader {args.loader} needs --{needed}")
    return args
