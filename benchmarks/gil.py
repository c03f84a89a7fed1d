"""What decoding and a training loop take from each other in Python.

GIL an image: a thread spins in pure Python while a loader with one decoding thread feeds beside it. What the spinning
loses, over the images, is how long an image holds the GIL; its inverse is the ceiling of one process. Busy consumer: a
loop spends half its time in pure Python, or sleeps as long; the ratio of the two rates is what a busy loop costs.

Each measurement is a process of its own; the ways take turns, `--repeats` rounds; medians. The page cache is warm.

    python benchmarks/run.py gil [--photos 4000] [--repeats 5] [--work FOLDER] [--save]
"""

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import threading
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
    parser.add_argument("--measure", nargs=4, metavar=("WHAT", "KIND", "WAY", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.measure:
        what, kind, way, folder = options.measure
        measure: Callable[..., dict[str, float]] = {"gil": measure_gil, "busy": measure_busy}[what]
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
        tpufeed.shard(work / f"photos-{photos}", folders["jpeg"], check="header")
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


def measure_gil(source: Iterator[Any], seconds: float) -> dict[str, float]:
    """Seconds of the GIL an image, by what a spinning thread loses; alone before and after, so that drift shows."""
    sys.setswitchinterval(1e-4)  # else decoding starves beside the spinning thread, and there is little to measure
    pauses: list[float] = []
    rates: list[float] = []
    images = 0
    for turn in range(3):
        turns = [0]
        stop = threading.Event()
        thread = threading.Thread(target=spin, args=(turns, stop))
        start = time.perf_counter()
        thread.start()
        if turn == 1:
            while time.perf_counter() - start < seconds:
                images += len(next(source)[0])
        else:
            time.sleep(seconds / 2)
        elapsed = time.perf_counter() - start
        stop.set()
        thread.join()
        rates.append(turns[0] / elapsed)
        pauses.append(elapsed)
    alone = (rates[0] + rates[2]) / 2
    lost = 1 - rates[1] / alone
    return {"gil_seconds_an_image": lost * pauses[1] / images, "images_per_second": images / pauses[1]}


def measure_busy(source: Iterator[Any], seconds: float) -> dict[str, float]:
    """Images a second beside a consumer that sleeps half its time, and beside one that is busy in Python instead."""
    free = rate(source, seconds, 0.0, time.sleep)
    pause = BATCH / free / 2
    idle = rate(source, seconds, pause, time.sleep)
    busy = rate(source, seconds, pause, be_busy)
    return {"free": free, "idle": idle, "busy": busy, "ratio": busy / idle}


def rate(source: Iterator[Any], seconds: float, pause: float, spend: Callable[[float], None]) -> float:
    """Images a second of a consumer that spends `pause` seconds on each batch."""
    for _ in range(4):  # what the step before has left ready is not counted
        next(source)
    images, start = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - start) < seconds:
        images += len(next(source)[0])
        spend(pause)
    return images / elapsed


def be_busy(seconds: float) -> None:
    """Pure Python, which never lets go of the GIL by itself."""
    stop = time.perf_counter() + seconds
    while time.perf_counter() < stop:
        sum(range(50))


def spin(turns: list[int], stop: threading.Event) -> None:
    """Count in pure Python."""
    while not stop.is_set():
        for _ in range(200):
            turns[0] += 1


def run(folders: dict[str, Path], options: argparse.Namespace) -> dict[str, Any]:
    """What each measurement gave, one entry a round."""
    from benchmarks.harness import interleave

    def apart(what: str, kind: str, way: str) -> dict[str, float]:
        arguments = [what, kind, way, str(folders[kind]), "--seconds", str(options.seconds)]
        command = command_of("gil", "--measure", *arguments)
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        figures: dict[str, float] = json.loads(done.stdout)
        return figures

    turns = {
        (what, kind, way): partial(apart, what, kind, way)
        for kind in KINDS
        for way in WAYS
        for what in ("gil", "busy")
        if what != "gil" or "all" not in way
    }
    found: dict[str, Any] = {}
    for (what, kind, way), figures in interleave(turns, options.repeats, warm_up=0).items():
        found.setdefault(what, {}).setdefault(kind, {})[way] = figures
    return found


def report(found: dict[str, Any], save: str | None) -> None:
    """The tables, and the result file where asked for."""
    from benchmarks.harness import describe, flatten, machine, print_table, write_result

    medians = {
        what: {
            kind: {
                way: {key: statistics.median(run[key] for run in runs) for key in runs[0]} for way, runs in ways.items()
            }
            for kind, ways in kinds.items()
        }
        for what, kinds in found.items()
    }
    gil = [
        [
            f"{kind}, {way}",
            f"{values['gil_seconds_an_image'] * 1e6:.1f}",
            f"{1 / max(values['gil_seconds_an_image'], 1e-9):,.0f}",
        ]
        for kind, ways in medians["gil"].items()
        for way, values in ways.items()
    ]
    print_table("GIL of the training process", ["loader", "us an image", "ceiling img/s"], gil)
    busy = [
        [f"{kind}, {way}", *(f"{values[key]:,.0f}" for key in ("free", "idle", "busy")), f"{values['ratio']:.2f}"]
        for kind, ways in medians["busy"].items()
        for way, values in ways.items()
    ]
    print_table("beside a consumer", ["loader", "at full speed", "half idle", "half busy", "busy to idle"], busy)
    print(describe(machine()))
    if save:
        rows = [
            row | {"runs": found[row["measurement"]][row["work"]][row["way"]]}
            for row in flatten(medians, "measurement", "work", "way")
        ]
        print(write_result(save, {}, rows))
