"""The curves of `scale.py`: what planning and building take by images, and what workers give by their number."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tpufeed.processes.limits import available_cores

SIZES = 1_000, 10_000, 100_000, 1_000_000, 10_000_000
CLASSES, FILES = 1_000, 1_000
WORKERS = tuple(count for count in (1, 2, 4, 8, 16, 32, 64) if count <= 2 * available_cores())
PHOTOS, BATCHES = 4_000, 60  # batches: for each worker
_REPEATED = 100_000  # larger ones are measured once

PLAN = """
import json, resource, sys, time
from contextlib import closing
from pathlib import Path
from tpufeed.builds.item import Item
from tpufeed.builds.plan import write_plan
from tpufeed.sharding.inventory import Inventory
from tpufeed.sources.options import ShardOptions
from tpufeed.sharding.recipe import SizeEstimate, plan_shards
from tpufeed.sources.source import Source
folder, count, classes = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
class MadeUp(Source):
    base, labels_are_names, what = "/made/up", True, "made up"
    def iter_items(self, found):
        for number in range(count):
            label = f"class-{number % classes:04d}"
            yield Item(f"{label}/{number:08d}.jpg", 100_000 + number % 7_919, str(10**18 + number), label)
options = ShardOptions()
start, cpu = time.perf_counter(), time.process_time()
with closing(Inventory(folder, MadeUp(None, options), options)) as inventory:
    draft = plan_shards(inventory, SizeEstimate(), "/made/up", options.to_dict())
    write_plan(folder / "plan", draft.header, draft.tasks)
print(json.dumps({
    "seconds": time.perf_counter() - start,
    "cpu_seconds": time.process_time() - cpu,
    "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
    "plan_mb": (folder / "plan").stat().st_size / 1e6,
}))
"""

BUILD = """
import json, resource, sys, time
start = time.perf_counter()
import tpufeed
options = json.loads(sys.argv[3])
result = tpufeed.shard(sys.argv[1], sys.argv[2], images=tpufeed.Images(check=options.pop("check", "full")), **options)
seconds = time.perf_counter() - start
launcher, workers = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
print(json.dumps({
    "seconds": seconds,
    "cpu_seconds": sum((*launcher[:2], *workers[:2])),
    "launcher_cpu_seconds": sum(launcher[:2]),
    "launcher_peak_mb": launcher.ru_maxrss / 1e3,
    "worker_peak_mb": workers.ru_maxrss / 1e3,
    "shards": sum(len(v.shards) for split in result.manifest.splits.values() for v in split.variants),
    "images": result.images,
}))
"""

FEED = """
import json, sys, time
import tpufeed
from tpufeed.images import HorizontalFlip, RandomResizedCrop
url, processes, batches = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
ops = [RandomResizedCrop(size=224), HorizontalFlip()]
with tpufeed.Loader(url, batch_size=128, ops=ops, processes=processes, threads=1, repeat=True) as loader:
    stream = iter(loader)
    for _ in range(8):
        next(stream)
    start = time.perf_counter()
    for _ in range(batches):
        next(stream)
    print(json.dumps({"images_per_second": batches * 128 / (time.perf_counter() - start)}))
"""


def plan_curve(folder: Path, repeats: int, most: int) -> dict[str, Any]:
    """Planning by listed entries."""
    return _by_size(repeats, most, lambda count: _plan(folder, count))


def build_curve(folder: Path, repeats: int, most: int) -> dict[str, Any]:
    """Building by images."""
    from benchmarks.harness import machine

    files = make_files(folder)
    options = {"check": "header", "shard_bytes": "8MB", "workers": machine()["cores"]}
    return {"options": options, **_by_size(repeats, most, lambda count: _build(folder, files, count, options))}


def worker_curve(folder: Path, repeats: int, most: int) -> dict[str, Any]:  # noqa: ARG001  # photos have their own number
    """Building with the full check, and feeding, by worker processes."""
    from scripts.make_photos import make_photos

    make_photos(folder / "photos", PHOTOS, size=(375, 500))
    found: dict[str, list[list[float]]] = {name: [[] for _ in WORKERS] for name in ("shard", "Loader")}
    for number in range(repeats):
        for place, workers in enumerate(WORKERS):  # in turns, so that all have the same machine
            url = folder / f"dataset-{number}-{workers}"
            options = {"workers": workers, "shard_bytes": "8MB"}  # a worker makes one shard at a time
            made = _child(BUILD, folder / "photos", url, json.dumps(options))
            found["shard"][place].append(made["images"] / made["seconds"])
            found["Loader"][place].append(_child(FEED, url, workers, BATCHES * workers)["images_per_second"])
    rows = [
        {"what": name, "workers": workers, **_spread(rates)}
        for name, by_workers in found.items()
        for workers, rates in zip(WORKERS, by_workers, strict=True)
    ]
    return {"repeats": repeats, "photos": PHOTOS, "rows": rows}


CURVES: dict[str, Callable[[Path, int, int], dict[str, Any]]] = {
    "plan": plan_curve,
    "build": build_curve,
    "workers": worker_curve,
}


def make_files(folder: Path) -> list[Path]:
    """Images of 8x8 pixels."""
    import cv2
    import numpy as np

    rng = np.random.default_rng(0)
    (folder / "files").mkdir()
    files = [folder / f"files/{number:04d}.jpg" for number in range(FILES)]
    for file in files:
        cv2.imwrite(str(file), rng.integers(0, 256, (8, 8, 3), np.uint8))
    return files


def slope_change_percent(sizes: dict[int, dict[str, float]], key: str) -> float:
    """How much more an image costs between the two largest sizes than from 10,000 to the size after it."""
    counts = sorted(sizes)
    early = slope_of(sizes, key, 10_000, counts[counts.index(10_000) + 1])
    return 100 * (slope_of(sizes, key, *counts[-2:]) / early - 1)


def slope_of(sizes: dict[int, dict[str, float]], key: str, low: int, high: int) -> float:
    """What an image more costs, from `low` to `high` images."""
    return (sizes[high][key] - sizes[low][key]) / (high - low)


def _by_size(repeats: int, most: int, run: Callable[[int], dict[str, float]]) -> dict[str, Any]:
    rows = []
    for count in (size for size in SIZES if size <= most):
        runs = [run(count) for _ in range(repeats if count <= _REPEATED else 1)]
        medians = {key: statistics.median(one[key] for one in runs) for key in runs[0]}
        rows.append({"images": count, "runs": len(runs), **medians})
        print(rows[-1], file=sys.stderr)
    return {"repeats": repeats, "rows": rows}


def _plan(folder: Path, count: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory(dir=folder) as work:
        return _child(PLAN, work, count, CLASSES)


def _build(folder: Path, files: list[Path], count: int, options: dict[str, Any]) -> dict[str, float]:
    with tempfile.TemporaryDirectory(dir=folder) as work:
        source = Path(work, "images")
        for number in range(CLASSES):
            (source / f"class-{number:04d}").mkdir(parents=True)
        for number in range(count):  # neighbours of a class are other files, and each file has as many names
            file = files[number // CLASSES % FILES]
            os.link(file, source / f"class-{number % CLASSES:04d}" / f"{number:08d}.jpg")
        return _child(BUILD, source, Path(work, "dataset"), json.dumps(options))


def _spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}


def _child(program: str, *arguments: object) -> dict[str, Any]:
    command = [sys.executable, "-c", program, *map(str, arguments)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def show(part: str, result: dict[str, Any]) -> None:
    """A table."""
    from benchmarks.harness import figure, nest, print_table

    if part == "workers":
        rates = nest(result["rows"], "what", "workers", value="median")
        rows = [[name, *(figure(rate, 0) for rate in each.values())] for name, each in rates.items()]
        print_table("Images a second by worker processes", ["", *map(str, WORKERS)], rows)
        return
    sizes = nest(result["rows"], "images")
    rows = [[key, *(figure(each[key], 2) for each in sizes.values())] for key in next(iter(sizes.values()))]
    print_table(f"{part}, by images", ["", *(f"{size:,}" for size in sizes)], rows)
    if len(sizes) > 3:  # two slopes above 10,000
        print(f"slope change of CPU seconds from 10,000 images on: {slope_change_percent(sizes, 'cpu_seconds'):+.1f} %")
