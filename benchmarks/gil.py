"""What decoding and a training loop take from each other in Python.

Training process: its processor time an image at full speed. Where worker processes decode, this is what handing over
takes, and its inverse is the ceiling of one process. Busy consumer: a loop spends half its time in pure Python, or
sleeps as long; the ratio of the two rates is what a busy loop costs.

Each measurement is a process of its own; the ways take turns, `--repeats` rounds; medians. The page cache is warm.

    python benchmarks/run.py gil [--photos 4000] [--repeats 5] [--work FOLDER] [--save]
"""

import argparse
import itertools
import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.entry import command_of, make_parser

BATCH = 128
WARM_UP_BATCHES = 16
KINDS = ("jpeg", "raw")
# One decoding thread leaves a core of two for the consumer: what is lost then is the GIL's doing. By default all cores
# decode, and half a core for the consumer is missing besides.
WAYS = {
    "threads: 1 of this process": {"processes": 0, "threads": 1},
    "processes: 1 with 1 thread": {"processes": 1, "threads": 1},
    "all cores, threads": {"processes": 0},
    "all cores, default": {},
}


def main(arguments: list[str]) -> None:
    parser = make_parser("gil", __doc__, repeats=5, photos=4000, keeps=True)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--measure", nargs=3, metavar=("KIND", "WAY", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.measure:
        kind, way, folder = options.measure
        print(json.dumps(measure(batches(kind, way, Path(folder)), options.seconds)))
        return
    with tempfile.TemporaryDirectory(prefix="tpufeed-gil-") as temporary:
        folders = prepare(options.work or Path(temporary), options.photos)
        report(run(folders, options), options.save)


def prepare(work: Path, photos: int) -> dict[str, Path]:
    """Photos, their shards, and a raw cache of them."""
    import tpufeed
    from scripts.make_photos import make_photos

    work.mkdir(parents=True, exist_ok=True)
    folders = {"jpeg": work / f"shards-{photos}", "raw": work / f"cache-{photos}"}
    if not (folders["jpeg"] / "manifest.json").exists():
        make_photos(work / f"photos-{photos}", photos)
        tpufeed.shard(work / f"photos-{photos}", folders["jpeg"], images=tpufeed.Images(check="header"))
    tpufeed.cache.warmup(folders["jpeg"], folders["raw"])
    return folders


def batches(kind: str, way: str, folder: Path) -> Iterator[Any]:
    """Batches for ever."""
    import tpufeed
    from tpufeed.images import HorizontalFlip, RandomResizedCrop

    ops = [RandomResizedCrop(224), HorizontalFlip()] if kind == "jpeg" else None
    source = iter(tpufeed.Loader(folder, batch_size=BATCH, ops=ops, repeat=True, **WAYS[way]))
    for _ in itertools.islice(source, WARM_UP_BATCHES):
        pass
    return source


def measure(source: Iterator[Any], seconds: float) -> dict[str, float]:
    """Images a second of a consumer that only takes batches, of one that sleeps half its time, and of one that is busy
    in Python instead; and the processor seconds of this process an image, beside the first."""
    free, cpu = feed(source, seconds, 0.0, time.sleep)
    pause = BATCH / free / 2
    idle, _ = feed(source, seconds, pause, time.sleep)
    busy, _ = feed(source, seconds, pause, be_busy)
    return {"cpu_seconds_an_image": cpu, "free": free, "idle": idle, "busy": busy, "ratio": busy / idle}


def feed(source: Iterator[Any], seconds: float, pause: float, spend: Callable[[float], None]) -> tuple[float, float]:
    """Feed a consumer that spends `pause` seconds on each batch: images a second, processor seconds an image."""
    for _ in range(4):  # what the step before has left ready is not counted
        next(source)
    images, start, cpu = 0, time.perf_counter(), time.process_time()
    while (elapsed := time.perf_counter() - start) < seconds:
        images += len(next(source)[0])
        spend(pause)
    return images / elapsed, (time.process_time() - cpu) / images


def be_busy(seconds: float) -> None:
    """Pure Python, which never lets go of the GIL by itself."""
    stop = time.perf_counter() + seconds
    while time.perf_counter() < stop:
        sum(range(50))


def run(folders: dict[str, Path], options: argparse.Namespace) -> dict[str, Any]:
    """What each measurement gave, one entry a round."""
    from benchmarks.harness import interleave

    def apart(kind: str, way: str) -> dict[str, float]:
        command = command_of("gil", "--measure", kind, way, folders[kind], "--seconds", options.seconds)
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        figures: dict[str, float] = json.loads(done.stdout)
        return figures

    turns = {(kind, way): partial(apart, kind, way) for kind in KINDS for way in WAYS}
    found: dict[str, Any] = {}
    for (kind, way), figures in interleave(turns, options.repeats, warm_up=0).items():
        found.setdefault(kind, {})[way] = figures
    return found


def report(found: dict[str, Any], save: str | None) -> None:
    """The tables, and the result file where asked for."""
    from benchmarks.harness import describe, flatten, machine, print_table, write_result

    medians = {
        kind: {way: {key: statistics.median(run[key] for run in runs) for key in runs[0]} for way, runs in ways.items()}
        for kind, ways in found.items()
    }
    rows = flatten(medians, "work", "way")
    columns = ["loader", "CPU us an image", "at full speed", "half idle", "half busy", "busy to idle"]
    cells = [
        [
            f"{row['work']}, {row['way']}",
            f"{row['cpu_seconds_an_image'] * 1e6:.1f}",
            *(f"{row[key]:,.0f}" for key in ("free", "idle", "busy")),
            f"{row['ratio']:.2f}",
        ]
        for row in rows
    ]
    print_table("the training process", columns, cells)
    print(describe(machine()))
    if save:
        print(write_result(save, {}, [row | {"runs": found[row["work"]][row["way"]]} for row in rows]))
