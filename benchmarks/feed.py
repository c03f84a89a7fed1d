"""How fast loaders hand over batches of 128 uint8 224x224 images: tpufeed beside its peers and beside decoding alone.

Each measurement is a process of its own, warmed up and then timed over `--seconds`; loaders take turns, `--repeats`
rounds; medians, and ratios of medians, in one run. CPU time an image is that of all its processes: it says more than
rates on a busy host. The page cache is warm. `scripts/setup-peers` installs the peers; one that is not there, or fails,
has a row that says why. `peers/__init__.py` says what a loader's file has.

    python benchmarks/run.py feed [--photos 4000] [--repeats 5] [--work FOLDER] [--only WORK] [--loaders "NAME;..."]

`--beside N` measures beside N processes that spin, as on a host with other work: each thread gets its share of the
processor only.

`--loaders` takes names of the table, and FILE:SETTING for another setting of peers/FILE.py: `dataloader:turbo-4`.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.entry import PEERS, ROOT, make_parser

WORK = {
    "jpeg": "JPEG 500x375, random-resized crop + flip",
    "small": "JPEG 500x375, random-resized crop of 5 to 30 % of the area + flip",
    "presized": "JPEG presized to 256, random-resized crop + flip",
    "raw": "raw 224 cache",
}
# Name in the tables: file in peers/, and a setting where it is not the best one of that file.
LOADERS = {
    "decoding alone": "decoding",
    "tpufeed.Loader": "ours:numpy",
    "tpufeed.Loader, DCT images": "ours:numpy:dct",
    "tpufeed.Loader, DCT images, device_ops": "ours:numpy:device",
    "tpufeed.Loader.to_torch": "ours:to_torch",
    "tpufeed.Loader.to_tf": "ours:to_tf",
    "tpufeed.Loader.to_tf, direct": "ours:to_tf:direct",
    "tpufeed.Loader.to_jax": "ours:to_jax",
    "tpufeed.grain_source": "ours:grain_source",
    "tf.data, AUTOTUNE": "tfdata:auto",
    "tf.data, parallelism 2": "tfdata:2",
    "tf.data, parallelism 4": "tfdata:4",
    "tf.data, parsed by batches": "tfdata:parse-batch",
    "torch DataLoader + PIL": "dataloader:pil-2",
    "torch DataLoader + simplejpeg": "dataloader:turbo-2",
    "torch DataLoader, mapped array": "dataloader:mmap-2",
    "WebDataset": "webdataset",
    "Grain": "grain",
    "MosaicML streaming": "mosaic",
    "LitData": "litdata",
    "SPDL": "spdl",
    "DALI on CPU": "dali",
    "FFCV": "ffcv",
}
ENCODED = ("jpeg", "small", "presized")
WORK_OF = {
    "tpufeed.Loader, DCT images": ENCODED,
    "tpufeed.Loader, DCT images, device_ops": ("presized",),
    "tf.data, parsed by batches": ("raw",),
    "torch DataLoader + PIL": ENCODED,
    "torch DataLoader + simplejpeg": ENCODED,
    "torch DataLoader, mapped array": ("raw",),
}
NO_PEERS = ("decoding", "ours")
IN_VENV = (*NO_PEERS, "tfdata", "dataloader", "grain")
MEASUREMENT_SECONDS = 180  # at most, preparing included


def main(arguments: list[str]) -> None:
    parser = make_parser("feed", __doc__, repeats=5, photos=4000, keeps=True)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--only", choices=WORK, help="one kind of work")
    parser.add_argument("--loaders", help="some of them, separated by semicolons (default: all)")
    parser.add_argument("--beside", type=int, default=0, metavar="N", help="processes that spin beside each loader")
    options = parser.parse_args(arguments)
    from benchmarks.peers.sources import make_sources

    with tempfile.TemporaryDirectory(prefix="tpufeed-feed-") as temporary:
        work = options.work or Path(temporary)
        sources = make_sources(work, options.photos)
        names = options.loaders.split(";") if options.loaders else list(LOADERS)
        kinds = [options.only] if options.only else list(WORK)
        report({kind: measure(sources[kind], names, options) for kind in kinds}, options.save, options.beside)


def measure(source: Any, names: list[str], options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Of each loader its `setting` and `images_per_second`, one figure a round, or `why_not`."""
    from benchmarks.harness import interleave

    taking = [name for name in names if source.work in WORK_OF.get(name, WORK)]
    # Before the rounds each makes its own format and shows a batch.
    found = {name: run(LOADERS.get(name, name), source, 0.0) for name in taking}

    cpu: dict[str, list[float | None]] = {name: [] for name in taking}

    def measure_once(name: str) -> float | None:
        if "why_not" in found[name]:
            return None
        found[name] = run(LOADERS.get(name, name), source, options.seconds)
        rate: float | None = found[name].pop("images_per_second", None)
        cpu[name].append(found[name].pop("cpu_us_per_image", None))
        return rate

    with spinning(options.beside):
        rounds = interleave({name: partial(measure_once, name) for name in taking}, options.repeats, warm_up=0)
    for name, rates in rounds.items():
        if "why_not" not in found[name]:
            found[name] |= {"images_per_second": rates, "cpu_us_per_image": cpu[name]}
    return found


@contextmanager
def spinning(count: int) -> Iterator[None]:
    """So many processes that do nothing but run."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def run(loader: str, source: Any, seconds: float) -> dict[str, Any]:
    """What peers.measure prints, or `why_not`."""
    module, _, setting = loader.partition(":")
    python = Path(sys.executable) if module in IN_VENV else PEERS / module / "bin" / "python"
    failed = PEERS / module / "failed"
    if failed.exists():
        return {"why_not": f"not installed: {failed.read_text().strip()}"}
    if not python.exists():
        return {"why_not": f"not installed: run scripts/setup-peers {module}"}
    mark = source.folder / f"{module}-{source.work}" / ".prepared"
    if not seconds and mark.exists():
        return {}
    where = [str(source.dataset), str(source.files), str(mark.parent), str(source.plain)]
    command = [
        str(python),
        "-m",
        "benchmarks.peers.measure",
        module,
        setting,
        source.work,
        *where,
        "--seconds",
        str(seconds),
    ]
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3", "PJRT_DEVICE": "CPU", "PEERS_WORK": source.work}
    # A session of its own: a loader's workers outlive it where it is killed, and would hold the pipes open.
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=ROOT,
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=MEASUREMENT_SECONDS)
    except subprocess.TimeoutExpired:
        return {"why_not": f"failed: not done after {MEASUREMENT_SECONDS} s"}
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.returncode:
        lines = errors.strip().splitlines() or [f"exit status {process.returncode}"]
        return {"why_not": f"failed: {lines[-1]}"}
    outcome: dict[str, Any] = json.loads(output.splitlines()[-1])
    return outcome


def report(found: dict[str, dict[str, dict[str, Any]]], save: str | None, beside: int) -> None:
    """The tables, and the result file where asked for."""
    from benchmarks.harness import describe, flatten, machine, print_table, write_result

    result: dict[str, Any] = {kind: summary(kind, loaders) for kind, loaders in found.items()}
    for kind, work in result.items():
        rows = [row(name, figures, work) for name, figures in work["loaders"].items()]
        columns = [
            "loader",
            "setting",
            "img/s",
            "lowest",
            "highest",
            "CPU us",
            "to the best peer",
            "to tf.data",
            "to decoding alone",
        ]
        where = f", beside {beside} processes that spin" if beside else ""
        print_table(f"{WORK[kind]}{where}", columns, rows, text_columns=2)
        for name, figures in work["loaders"].items():
            if "why_not" in figures:
                print(f"  {name}: {figures['why_not']}")
    print(describe(machine()))
    if save:
        about = {"beside": beside, "best_peer": {kind: work["best_peer"] for kind, work in result.items()}}
        loaders = {kind: work["loaders"] for kind, work in result.items()}
        print(write_result(save, about, flatten(loaders, "work", "loader")))


def summary(kind: str, loaders: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Medians and their ratios to the best peer's, the best tf.data's and to decoding alone."""
    medians = {
        name: statistics.median(figures["images_per_second"])
        for name, figures in loaders.items()
        if "why_not" not in figures
    }
    peers = [name for name in medians if LOADERS.get(name, name).partition(":")[0] not in NO_PEERS]
    best = max(peers, key=medians.__getitem__, default=None)
    tf_data = max((name for name in peers if name.startswith("tf.data")), key=medians.__getitem__, default=None)
    for name, median in medians.items():
        loaders[name]["median"] = median
        bases = {"to_best_peer": best, "to_tf_data": tf_data, "to_decoding_alone": "decoding alone"}
        for ratio, base in bases.items():
            loaders[name][ratio] = median / medians[base] if base in medians else None
    return {"work": WORK[kind], "best_peer": best, "loaders": loaders}


def row(name: str, figures: dict[str, Any], work: dict[str, Any]) -> list[str]:
    from benchmarks.harness import figure

    if "why_not" in figures:
        return [name, "n/a, see below", *["n/a"] * 7]
    values = figures["images_per_second"]
    shown = figures["median"], min(values), max(values), statistics.median(figures["cpu_us_per_image"])
    rates = [figure(value, 0) for value in shown]
    ratios = [figure(figures[ratio], 2) for ratio in ("to_best_peer", "to_tf_data", "to_decoding_alone")]
    return [f"{name} *" if name == work["best_peer"] else name, figures["setting"], *rates, *ratios]
