"""The story in numbers: 3000x2000 photos with a heavy augmentation, from a naive loader to a cache.

Every way feeds an EMULATED TPU v3-8 with batches of 64 images at 224 pixels that went through a random-resized crop, a
flip and `slow_ops.heavy`. Each runs in a process of its own.

    python benchmarks/run.py story [--photos 400] [--seconds 20] [--save]
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.entry import MEMORY, ROOT, command_of, make_parser

BATCH = 64
PROFILE = "tpu-v3-8"
WAYS = {
    "raw": "raw files, Pillow and the augmentation in one thread",
    "shards": "shards presized to 256, everything live",
    "cache": "cache of 4 variants",
    "cache-final": "cache of 2 variants at 256, random crop and flip live",
}


def main(arguments: list[str]) -> None:
    parser = make_parser("story", __doc__, photos=400, work=MEMORY)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--way", choices=WAYS, help="only this one, over what stands in --work (for the script itself)")
    options = parser.parse_args(arguments)
    if options.way:
        print(json.dumps(feed(options.way, options.work, options.seconds)))
        return
    with tempfile.TemporaryDirectory(prefix="tpufeed-story-", dir=options.work) as folder:
        seconds = prepare(Path(folder), options.photos)
        rows = [run(way, Path(folder), options.seconds) for way in WAYS]
    report(rows, seconds, options)


def prepare(work: Path, photos: int) -> dict[str, float]:
    """Photos, shards and caches; the seconds that each command took."""
    import time

    from scripts.make_photos import make_photos

    make_photos(work / "photos", photos, size=(2000, 3000))
    heavy = ("--op", "benchmarks.slow_ops:heavy")
    commands = {
        "shards": ("shard", work / "photos", work / "shards", "--presize", 256),
        "cache": (
            *("cache", "warmup", work / "shards", work / "cache", "--variants", 4),
            *("--op", "RandomResizedCrop(224)", "--op", "HorizontalFlip", *heavy),
        ),
        "cache-final": (
            *("cache", "warmup", work / "shards", work / "cache-final", "--variants", 2),
            *("--op", "RandomResizedCrop(256)", *heavy, "--live", "RandomCrop(224)", "--live", "HorizontalFlip"),
        ),
    }
    seconds = {}
    for name, arguments in commands.items():
        start = time.perf_counter()
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        tpufeed = str(Path(sys.executable).with_name("tpufeed"))
        subprocess.run([tpufeed, *map(str, arguments)], check=True, capture_output=True, env=environment)
        seconds[name] = time.perf_counter() - start
    return seconds


def run(way: str, work: Path, seconds: float) -> dict:
    command = command_of("story", "--way", way, "--work", work, "--seconds", seconds)
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return {"way": way, **json.loads(done.stdout.splitlines()[-1])}


def feed(way: str, work: Path, seconds: float) -> dict[str, float]:
    """Feed the emulated device once."""
    from tpufeed.measure.accelerator import EmulatedAccelerator
    from tpufeed.measure.tpu import profile

    report = EmulatedAccelerator(profile(PROFILE), BATCH).run(open_loader(way, work), None, seconds)
    return {"images_per_second": report.images_per_second, "idle_percent": report.idle_percent, "steps": report.steps}


def open_loader(way: str, work: Path) -> object:
    if way == "raw":
        return Naive(work / "photos")
    import tpufeed
    from tpufeed.images import Custom, HorizontalFlip, RandomResizedCrop

    live = [RandomResizedCrop(224), HorizontalFlip(), Custom("benchmarks.slow_ops:heavy")] if way == "shards" else None
    return tpufeed.Loader(str(work / way), "train", batch_size=BATCH, ops=live)


class Naive:
    """What a notebook does: one file after the other, decoded whole, augmented in the training process."""

    def __init__(self, folder: Path) -> None:
        from benchmarks.feeders import list_folder

        self.samples = list_folder(folder)

    def __iter__(self) -> Iterator[tuple]:
        import numpy as np

        from benchmarks.feeders import read_batch
        from benchmarks.slow_ops import heavy

        rng = np.random.default_rng(0)
        samples = list(self.samples)
        random.Random(0).shuffle(samples)
        for number, start in enumerate(range(0, len(samples) - BATCH + 1, BATCH)):
            images, labels = read_batch(samples[start : start + BATCH], number)
            yield np.stack([heavy(image, rng) for image in images]), labels


def report(rows: list[dict], seconds: dict[str, float], options: argparse.Namespace) -> None:
    """The table, and the result file where asked for."""
    from benchmarks.harness import describe, figure, machine, print_table, write_result

    table = [
        [
            WAYS[row["way"]],
            figure(row["images_per_second"], 0),
            figure(row["idle_percent"]),
            figure(seconds.get(row["way"]), 0),
        ]
        for row in rows
    ]
    columns = ["fed from", "img/s", "idle %", "seconds to make it"]
    print_table(f"EMULATED {PROFILE}, {options.photos} photos of 3000x2000, batches of {BATCH}", columns, table)
    print(describe(machine()))
    if options.save:
        print(write_result(options.save, {"photos": options.photos, "prepare_seconds": seconds}, rows))
