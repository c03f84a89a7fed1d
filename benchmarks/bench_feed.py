"""How fast loaders hand over batches of 128 uint8 224x224 images: tpufeed beside tf.data tuned by hand.

Each measurement is a process of its own, warmed up and then timed over `--seconds`; loaders take turns, `--repeats`
rounds; medians, and ratios of medians, in one run. The page cache is warm.

    python benchmarks/bench_feed.py [--photos 4000] [--repeats 5] [--work FOLDER]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent / "scripts")]

BATCH = 128
WARM_UP_BATCHES = 12
WORK = {"jpeg": "JPEG 500x375, random-resized crop + flip", "raw": "raw 224 cache, CRCs verified"}
LOADERS = ("tfdata-auto", "tfdata-2", "tfdata-4", "numpy", "tf")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=int, default=4000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--work", type=Path, help="keep photos, shards and cache here (default: a temporary folder)")
    parser.add_argument("--only", choices=WORK, help="one kind of work")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/feed.json")
    parser.add_argument("--measure", nargs=3, metavar=("WORK", "LOADER", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        kind, loader, folder = options.measure
        print(json.dumps({"images_per_second": measure(batches(kind, loader, Path(folder)), options.seconds)}))
        return
    with tempfile.TemporaryDirectory(prefix="tpufeed-feed-") as temporary:
        folders = prepare(options.work or Path(temporary), options.photos)
        kinds = [options.only] if options.only else list(WORK)
        report({kind: rounds(kind, folders[kind], options) for kind in kinds}, options.save)


def prepare(work: Path, photos: int) -> dict[str, Path]:
    """Photos, their shards, and a raw cache of them."""
    from make_photos import make_photos

    import tpufeed

    work.mkdir(parents=True, exist_ok=True)
    folders = {"jpeg": work / f"shards-{photos}", "raw": work / f"cache-{photos}"}
    if not (work / f"photos-{photos}" / ".photos.json").exists():
        make_photos(work / f"photos-{photos}", photos)
    if not (folders["jpeg"] / "manifest.json").exists():
        tpufeed.shard(work / f"photos-{photos}", folders["jpeg"], check="header")
    tpufeed.cache.warmup(folders["jpeg"], folders["raw"])
    return folders


def rounds(kind: str, folder: Path, options: argparse.Namespace) -> dict[str, list[float]]:
    """Images a second of each loader, one figure a round."""
    found: dict[str, list[float]] = {loader: [] for loader in LOADERS}
    for _ in range(options.repeats):
        for loader in LOADERS:
            command = [
                sys.executable,
                __file__,
                "--measure",
                kind,
                loader,
                str(folder),
                "--seconds",
                str(options.seconds),
            ]
            environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}
            output = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout
            found[loader].append(json.loads(output.splitlines()[-1])["images_per_second"])
    return found


def batches(kind: str, loader: str, folder: Path) -> Iterator[Any]:
    """Batches of one loader for ever."""
    if loader.startswith("tfdata"):
        import tfdata_tuned

        calls = loader.removeprefix("tfdata-")
        yield from tfdata_tuned.dataset(folder, kind == "jpeg", -1 if calls == "auto" else int(calls), BATCH)
    import tpufeed
    from tpufeed.images import HorizontalFlip, RandomResizedCrop

    ops = [RandomResizedCrop(224), HorizontalFlip()] if kind == "jpeg" else None
    make = tpufeed.numpy_loader if loader == "numpy" else tpufeed.tf_dataset
    source = make(folder, batch_size=BATCH, ops=ops)
    while True:
        yield from source


def measure(source: Iterator[Any], seconds: float) -> float:
    """Images a second after a warm-up."""
    for _ in range(WARM_UP_BATCHES):
        next(source)
    images, start = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - start) < seconds:
        images += len(next(source)[0])
    return images / elapsed


def report(found: dict[str, dict[str, list[float]]], save: bool) -> None:
    """The table, and the result file where asked for."""
    from harness import describe, machine, print_table, write_result

    result: dict[str, Any] = {}
    for kind, by_loader in found.items():
        medians = {loader: statistics.median(values) for loader, values in by_loader.items()}
        best = max(value for loader, value in medians.items() if loader.startswith("tfdata"))
        rows = [
            [
                loader,
                f"{medians[loader]:,.0f}",
                f"{min(values):,.0f}",
                f"{max(values):,.0f}",
                f"{medians[loader] / best:.2f}",
            ]
            for loader, values in by_loader.items()
        ]
        print_table(WORK[kind], ["loader", "img/s", "lowest", "highest", "to the best tf.data"], rows)
        result[kind] = {
            "work": WORK[kind],
            "images_per_second": by_loader,
            "medians": medians,
            "ratio_to_best_tfdata": {loader: value / best for loader, value in medians.items()},
        }
    print(describe(machine()))
    if save:
        print(write_result("feed", result))


if __name__ == "__main__":
    main()
