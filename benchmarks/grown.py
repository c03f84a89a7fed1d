"""What many appends cost a reader: 100 appends of 100 images, and one build of the same images.

Both hold the same samples. Measured in turns: `tpufeed info` as a command, opening in Python, the first batch of a
loader, and feeding whole epochs; and once more after `compact`. Loaders decode in threads of one process.

    python benchmarks/run.py grown [--appends 100] [--images 100] [--repeats 7] [--save]
"""

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.entry import MEMORY, ROOT, make_parser

TPUFEED = str(Path(sys.executable).with_name("tpufeed"))


def main(arguments: list[str]) -> None:
    parser = make_parser("grown", __doc__, repeats=7, work=MEMORY)
    parser.add_argument("--appends", type=int, default=100)
    parser.add_argument("--images", type=int, default=100)
    options = parser.parse_args(arguments)
    from benchmarks.harness import describe, flatten, machine, print_table, write_result

    with tempfile.TemporaryDirectory(prefix="tpufeed-grown-", dir=options.work) as folder:
        urls, seconds = make(Path(folder), options.appends, options.images)
        found = compare(urls, options.repeats)
    rows = []
    for what, each in found.items():
        one = each["one build"]["median"]
        for name, measured in each.items():
            spread = f"{measured['least'] * 1e3:,.1f} to {measured['most'] * 1e3:,.1f}"
            rows.append([what, name, f"{measured['median'] * 1e3:,.1f}", spread, f"{measured['median'] / one:.2f}"])
    print_table("medians", ["what", "dataset", "ms", "spread", "times one build"], rows)
    print(", ".join(f"{name}: {value:,.1f} s" for name, value in seconds.items()))
    print(describe(machine()))
    if options.save:
        settings = {"appends": options.appends, "images": options.images, "repeats": options.repeats}
        about = {**settings, "seconds": seconds}
        print(write_result(options.save, about, flatten(found, "measurement", "dataset")))


def make(work: Path, appends: int, images: int) -> tuple[dict[str, str], dict[str, float]]:
    """Return the URLs of the datasets, and the seconds that it took to make them."""
    import tpufeed

    script = ROOT / "scripts/make_photos.py"
    photos, parts = work / "photos", work / "parts"
    words = [script, photos, "--count", appends * images, "--size", "160x120", "--classes", "3"]
    subprocess.run([sys.executable, *map(str, words)], check=True, stdout=subprocess.DEVNULL)
    for number, path in enumerate(sorted(photos.glob("*/*.jpg"))):
        target = parts / str(number % appends) / path.parent.name / path.name
        target.parent.mkdir(parents=True, exist_ok=True)
        os.link(path, target)
    seconds, urls = {}, {name: str(work / name) for name in ("one build", "appends", "compacted")}
    start = time.perf_counter()
    tpufeed.shard(photos, urls["one build"])
    seconds["one build"] = time.perf_counter() - start
    start = time.perf_counter()
    tpufeed.shard(parts / "0", urls["appends"], workers=1)
    for number in range(1, appends):
        tpufeed.append(parts / str(number), urls["appends"], workers=1)
    seconds["appends"] = time.perf_counter() - start
    shutil.copytree(urls["appends"], urls["compacted"])
    start = time.perf_counter()
    tpufeed.compact(urls["compacted"])
    tpufeed.prune(urls["compacted"])
    seconds["compact and prune"] = time.perf_counter() - start
    return urls, seconds


def compare(urls: dict[str, str], repeats: int) -> dict[str, dict[str, dict[str, float]]]:
    """Return seconds by what is measured and by dataset, the datasets in turns."""
    import tpufeed

    ops = [tpufeed.images.RandomResizedCrop(size=96), tpufeed.images.HorizontalFlip()]

    def info(url: str) -> None:
        subprocess.run([TPUFEED, "info", url], check=True, stdout=subprocess.DEVNULL)

    def first_batch(url: str) -> None:
        with tpufeed.Loader(url, ops=ops, batch_size=64, processes=0) as loader:
            next(iter(loader))

    def epoch(url: str) -> None:
        with tpufeed.Loader(url, ops=ops, batch_size=64, processes=0) as loader:
            for _ in loader:
                pass

    measured: dict[str, Callable[[str], object]] = {
        "info": info,
        "open": tpufeed.open_dataset,
        "first batch": first_batch,
        "an epoch": epoch,
    }
    found = {}
    for what, function in measured.items():
        times: dict[str, list[float]] = {name: [] for name in urls}
        for repeat in range(repeats + 1):
            for name, url in urls.items():
                start = time.perf_counter()
                function(url)
                if repeat:  # the first one warms up
                    times[name].append(time.perf_counter() - start)
        found[what] = {
            name: {"median": statistics.median(each), "least": min(each), "most": max(each)}
            for name, each in times.items()
        }
    return found
