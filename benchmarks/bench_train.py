"""How well a training step is fed: images a second, waits, idle time and MXU use, of one loader on one device.

    .venv/bin/python benchmarks/bench_train.py --loader numpy --data DATASET --device emulated:tpu-v3-8
    .venv/bin/python benchmarks/bench_train.py --loader pil --photos FOLDER --device emulated:tpu-v3-8

Devices: `emulated:PROFILE` takes batches as fast as that accelerator would; `xla-cpu` and `xla-tpu` train a small
convolutional network with torch_xla; `none` drains the loader. The first step is left out of all figures.
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness import describe, figure, machine, print_table, write_result

from tpufeed.errors import TpufeedError

LOADERS = ("tf", "numpy", "xla", "tfdata-guide", "pil", "pil-all-cores")
EMULATED = "emulated:"
COLUMNS = ("img/s", "step ms", "wait ms p50", "p99", "idle %", "MXU %")


@dataclass(frozen=True, slots=True)
class Run:
    """One line of the table; None is what cannot be known."""

    loader: str
    source: str
    device: str
    batch_size: int
    steps: int
    images_per_second: float | None
    step_ms: float | None
    wait_ms_p50: float | None
    wait_ms_p99: float | None
    idle_percent: float | None
    mxu_percent: float | None
    oversleep_percent: float | None
    wall_seconds: float | None

    def cells(self) -> list[str]:
        """The figures of the table's columns."""
        percents = (self.idle_percent, self.mxu_percent)
        waits = (self.step_ms, self.wait_ms_p50, self.wait_ms_p99)
        return [figure(self.images_per_second, 0), *(figure(value) for value in (*waits, *percents))]


def main(argv: list[str] | None = None) -> int:
    args = _parse(argv)
    # Before any of them is imported.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    if args.device.startswith("xla-"):
        os.environ["PJRT_DEVICE"] = args.device.removeprefix("xla-").upper()
    about = machine()
    try:
        loader, close = open_loader(args)
        try:
            runs = [run_device(args, loader) for _ in range(args.repeats)]
        finally:
            close()
    except TpufeedError as error:
        print(f"bench_train: {error}", file=sys.stderr)
        return error.exit_code
    rates = [run.images_per_second for run in runs if run.images_per_second is not None]
    middle = min(runs, key=lambda run: abs((run.images_per_second or 0) - statistics.median(rates or [0])))
    result = {**asdict(middle), "repeats": args.repeats, "images_per_second_of_each": rates}
    if not args.json:
        title = f"{middle.device}: {args.loader}, batches of {args.batch}"
        cells = [f"{middle.device}, {middle.source}: {middle.loader}", *middle.cells()]
        print_table(title, [f"{middle.device.split()[0]} device, input", *COLUMNS], [cells])
    print(json.dumps({**result, "machine": about}), flush=True)
    if args.name:
        print(f"written to {write_result(args.name, result)}, on {describe(about)}", file=sys.stderr)
    return 0


def open_loader(args: argparse.Namespace) -> tuple[Iterable[Any], Callable[[], object]]:
    """The loader, and what closes it."""
    if args.loader in ("pil", "pil-all-cores"):
        import feeders

        folder = feeders.PilFolder if args.loader == "pil" else feeders.PilFolderOnAllCores
        naive = folder(args.photos, args.batch)
        return naive, naive.close
    import tpufeed

    manifest = tpufeed.open_dataset(args.data).manifest
    if args.loader == "tfdata-guide":
        import feeders

        shards = manifest.splits[args.split].variants[0].shards
        return feeders.guide_pipeline([f"{args.data}/{shard.name}" for shard in shards], args.batch), _nothing
    options: dict[str, Any] = {"split": args.split, "batch_size": args.batch}
    if manifest.cache is None:
        from tpufeed.images import HorizontalFlip, RandomResizedCrop

        options["ops"] = [RandomResizedCrop(size=224), HorizontalFlip()]
    if args.loader == "xla":
        import torch_xla

        options["device"] = torch_xla.device()
    make = {"tf": "tf_dataset", "numpy": "numpy_loader", "xla": "xla_loader"}[args.loader]
    loader = getattr(tpufeed, make)(args.data, **options)
    if args.loader == "tf":
        return loader.repeat(), _nothing  # one iteration over all epochs, as the guide's
    return loader, getattr(loader, "close", _nothing)


def run_device(args: argparse.Namespace, loader: Iterable[Any]) -> Run:
    """Feed the device once."""
    if args.device.startswith(EMULATED):
        return _run_emulated(args, loader)
    if args.device == "none":
        return _run_loop(args, loader, "none", lambda _: None)
    return _run_loop(args, loader, args.device, _xla_step())


def _run_emulated(args: argparse.Namespace, loader: Iterable[Any]) -> Run:
    from tpufeed.profiling.accelerator import EmulatedAccelerator, profile

    accelerator = EmulatedAccelerator(profile(args.device.removeprefix(EMULATED)), args.batch)
    report = accelerator.run(loader, args.steps, args.seconds)
    return Run(
        loader=args.loader,
        source=_source(args),
        device=f"EMULATED {report.name}",
        batch_size=args.batch,
        steps=report.steps,
        images_per_second=report.images_per_second,
        step_ms=report.step_ms,
        wait_ms_p50=report.wait_ms_p50,
        wait_ms_p99=report.wait_ms_p99,
        idle_percent=report.idle_percent,
        mxu_percent=None,
        oversleep_percent=report.oversleep_percent,
        wall_seconds=report.wall_seconds,
    )


def _run_loop(args: argparse.Namespace, loader: Iterable[Any], device: str, step: Callable[[Any], None]) -> Run:
    from tpufeed.profiling.clock import StepClock
    from tpufeed.profiling.counters import mxu_percent

    clock = StepClock()
    for batch in clock(_iter_batches(loader, args.steps, args.seconds)):
        step(batch)
    report = clock.report(args.batch)
    drains = device == "none"  # it does nothing but wait, so neither its step nor its idle time says anything
    return Run(
        loader=args.loader,
        source=_source(args),
        device=device,
        batch_size=args.batch,
        steps=report.steps,
        images_per_second=report.images_per_second,
        step_ms=None if drains else report.step_ms,
        wait_ms_p50=report.wait_ms_p50,
        wait_ms_p99=report.wait_ms_p99,
        idle_percent=None if drains else report.idle_percent,
        mxu_percent=None if drains else mxu_percent(),
        oversleep_percent=None,
        wall_seconds=report.wall_seconds,
    )


def _xla_step() -> Callable[[Any], None]:
    """A training step that is done when it returns: waits that follow are the loader's."""
    import numpy as np
    import torch
    import torch_xla
    from torch import nn

    device = torch_xla.device()
    model = nn.Sequential(
        *(nn.Conv2d(3, 16, 7, stride=4), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 1000)),
    ).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def on_device(array: Any) -> Any:
        return array if isinstance(array, torch.Tensor) else torch.from_numpy(np.asarray(array)).to(device)

    def step(batch: Any) -> None:
        image, label = (on_device(array) for array in batch)
        image = image.permute(0, 3, 1, 2).float() / 255
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(image), label).backward()
        optimizer.step()
        torch_xla.sync(wait=True)

    return step


def _iter_batches(loader: Iterable[Any], steps: int | None, seconds: float | None) -> Iterator[Any]:
    """Epoch after epoch, until so many steps, or so long after the first one, which may compile for a minute."""
    given, stop = 0, float("inf")
    while True:
        before = given
        for batch in loader:
            given += 1
            yield batch
            if given == 1 and seconds is not None:
                stop = time.perf_counter() + seconds
            if given == steps or time.perf_counter() >= stop:
                return
        if given == before:
            raise SystemExit("bench_train: the loader gave no batch; fewer than a batch of images?")


def _source(args: argparse.Namespace) -> str:
    if args.loader.startswith("pil"):
        return "raw files"
    import tpufeed

    return "shards" if tpufeed.open_dataset(args.data).manifest.cache is None else "cache"


def _nothing() -> None:
    pass


def _parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loader", required=True, choices=LOADERS)
    parser.add_argument("--data", metavar="URL", help="a dataset or cache of tpufeed")
    parser.add_argument("--photos", metavar="FOLDER", type=Path, help="a folder of class folders, for pil")
    parser.add_argument("--split", default="train")
    parser.add_argument("--device", default=f"{EMULATED}tpu-v3-8", help="emulated:PROFILE, xla-cpu, xla-tpu or none")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--steps", type=int, help="end after so many")
    parser.add_argument("--seconds", type=float, help="end after so long; default: 8 where there are no --steps")
    parser.add_argument("--repeats", type=int, default=1, help="show the run in the middle of so many")
    parser.add_argument("--json", action="store_true", help="the JSON line only")
    parser.add_argument("--name", help="write benchmarks/results/NAME.json")
    args = parser.parse_args(argv)
    if args.device not in ("xla-cpu", "xla-tpu", "none") and not args.device.startswith(EMULATED):
        parser.error(f"--device {args.device}: it is emulated:PROFILE, xla-cpu, xla-tpu or none")
    if (args.photos if args.loader.startswith("pil") else args.data) is None:
        parser.error(f"--loader {args.loader} needs {'--photos' if args.loader.startswith('pil') else '--data'}")
    if args.steps is None and args.seconds is None:
        args.seconds = 8.0
    return args


if __name__ == "__main__":
    sys.exit(main())
