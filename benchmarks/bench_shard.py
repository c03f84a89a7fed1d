"""How fast `tpufeed shard` copies photos into shards, beside what else writes them out: ratios in one run.

The source is in the page cache and the destination is `--work` (default: /dev/shm where there is one), so that no disk
is measured. Beside it: concatenating the same files, and a loop over TensorFlow's TFRecordWriter.

    python benchmarks/bench_shard.py [--photos 8000] [--repeats 5] [--save]
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent / "scripts")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=int, default=8000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--work", type=Path, default=Path("/dev/shm" if Path("/dev/shm").is_dir() else "/tmp"))
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/shard.json")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tpufeed-shard-", dir=options.work) as folder:
        found = rounds(Path(folder), options.photos, options.repeats)
    report(found, options)


def rounds(work: Path, photos: int, repeats: int) -> dict[str, list[float]]:
    """Images a second of each way, one figure a round; the ways take turns."""
    from make_photos import make_photos

    make_photos(work / "photos", photos)
    files = sorted((work / "photos").rglob("*.jpg"))
    ways: dict[str, Callable[[Path], None]] = {
        "concatenating the files": lambda out: concatenate(files, out),
        "TFRecordWriter loop": lambda out: write_records(files, out),
        "tpufeed shard --check header": lambda out: shard(work / "photos", out, "header"),
        "tpufeed shard (full check)": lambda out: shard(work / "photos", out, "full"),
    }
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, way in ways.items():
            out = work / "out"
            out.mkdir()
            start = time.perf_counter()
            way(out)
            found[name].append(photos / (time.perf_counter() - start))
            shutil.rmtree(out)
    return found


def concatenate(files: list[Path], out: Path) -> None:
    """All bytes into one file, in one thread: what copying them costs."""
    with (out / "all").open("wb") as target:
        for file in files:
            target.write(file.read_bytes())


def write_records(files: list[Path], out: Path) -> None:
    """What the TensorFlow guides do, in one thread."""
    import tensorflow as tf

    with tf.io.TFRecordWriter(str(out / "all.tfrecord")) as writer:
        for file in files:
            features = {
                "image/encoded": tf.train.Feature(bytes_list=tf.train.BytesList(value=[file.read_bytes()])),
                "image/filename": tf.train.Feature(bytes_list=tf.train.BytesList(value=[file.name.encode()])),
            }
            writer.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())


def shard(source: Path, out: Path, check: str) -> None:
    """The command, as users run it: start of Python, listing, plan and commit included."""
    command = [str(Path(sys.executable).with_name("tpufeed")), "shard", str(source), str(out / "dataset")]
    subprocess.run([*command, "--check", check], check=True, capture_output=True, env=os.environ)


def report(found: dict[str, list[float]], options: argparse.Namespace) -> None:
    """The table, and the result file where asked for."""
    from harness import describe, machine, print_table, write_result

    medians = {name: statistics.median(values) for name, values in found.items()}
    copy = medians["concatenating the files"]
    rows = [
        [name, f"{medians[name]:,.0f}", f"{min(values):,.0f}", f"{max(values):,.0f}", f"{medians[name] / copy:.2f}"]
        for name, values in found.items()
    ]
    print_table(f"{options.photos} photos of 90 KB", ["way", "img/s", "lowest", "highest", "to concatenating"], rows)
    print(describe(machine()))
    if options.save:
        print(write_result("shard", {"photos": options.photos, "images_per_second": found, "medians": medians}))


if __name__ == "__main__":
    main()
