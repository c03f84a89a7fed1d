"""How fast `tpufeed verify` reads a dataset, beside what else reads it: gigabytes a second in one run.

The dataset lies in `--work` (default: /dev/shm where there is one), so that no disk is measured. Beside it: `cat` of
the same shards, a pass of TensorFlow's TFRecordDataset, which checks the CRCs and nothing else, and, for
`verify --decode all`, decoding alone on all cores.

    python benchmarks/bench_verify.py [--photos 8000] [--repeats 5] [--save]
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent / "scripts")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=int, default=8000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--work", type=Path, default=Path("/dev/shm" if Path("/dev/shm").is_dir() else "/tmp"))
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/verify.json")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tpufeed-verify-", dir=options.work) as folder:
        url = Path(folder) / "dataset"
        make_dataset(Path(folder), url, options.photos)
        size = sum(path.stat().st_size for path in url.glob("*.tfrecord"))
        report(rounds(url, size, options.repeats), size, options)


def make_dataset(work: Path, url: Path, photos: int) -> None:
    """Photographs of 90 KB in shards of 64 MB."""
    from make_photos import make_photos

    import tpufeed

    make_photos(work / "photos", photos)
    tpufeed.shard(work / "photos", url, shard_bytes="64MB", check="header")


def rounds(url: Path, size: int, repeats: int) -> dict[str, list[float]]:
    """Gigabytes of shards a second of each way, one figure a round; the ways take turns."""
    from harness import interleave

    import tpufeed

    shards = sorted(url.glob("*.tfrecord"))
    ways: dict[str, Callable[[], object]] = {
        "cat shards > /dev/null": lambda: subprocess.run(["cat", *shards], check=True, stdout=subprocess.DEVNULL),
        "TFRecordDataset, one file after another": lambda: read_by_tensorflow(shards, None),
        "TFRecordDataset, parallel reads": lambda: read_by_tensorflow(shards, -1),
        "tpufeed.verify": lambda: tpufeed.verify(url),
        "tpufeed verify (the command)": lambda: run_command(url),
        "decoding alone": lambda: decode_all(url),
        "tpufeed.verify, decode all": lambda: tpufeed.verify(url, decode="all"),
    }
    return interleave({name: partial(gigabytes_per_second, size, way) for name, way in ways.items()}, repeats)


def gigabytes_per_second(size: int, way: Callable[[], object]) -> float:
    """Of reading `size` bytes."""
    start = time.perf_counter()
    way()
    return size / (time.perf_counter() - start) / 1e9


def read_by_tensorflow(shards: list[Path], parallel: int | None) -> None:
    """Every record once through tf.data, which checks both CRCs of its framing."""
    import tensorflow as tf

    for _ in tf.data.TFRecordDataset(list(map(str, shards)), num_parallel_reads=parallel).batch(256):
        pass


def decode_all(url: Path) -> None:
    """Every image decoded into memory that is used again, in as many threads as cores."""
    from tpufeed.dataset.reader import open_dataset
    from tpufeed.engines.engine import available_cores
    from tpufeed.images.decoding import decode

    dataset = open_dataset(url)
    reader = dataset.reader("train")
    entries = dataset.split("train").variants[0].shards

    def run(shard: int) -> None:
        scratch = np.empty(1 << 22, np.uint8)
        for record in range(entries[shard].records):
            decode(reader.layout.decode(reader.read(shard, record))[0], buffer=lambda size: scratch[:size])

    with ThreadPoolExecutor(available_cores()) as executor:
        list(executor.map(run, range(len(entries))))


def run_command(url: Path) -> None:
    """The start of Python included."""
    command = [str(Path(sys.executable).with_name("tpufeed")), "verify", str(url)]
    subprocess.run(command, check=True, capture_output=True)


def report(found: dict[str, list[float]], size: int, options: argparse.Namespace) -> None:
    """The table, and the result file where asked for."""
    from harness import describe, machine, medians_of, print_table, rows_of, write_result

    title = f"{options.photos} photos of 90 KB, {size / 1e6:,.0f} MB"
    print_table(title, ["way", "GB/s", "lowest", "highest", "to cat"], rows_of(found, digits=2))
    print(describe(machine()))
    if options.save:
        result = {"photos": options.photos, "bytes": size, "gigabytes_per_second": found, "medians": medians_of(found)}
        print(write_result("verify", result))


if __name__ == "__main__":
    main()
