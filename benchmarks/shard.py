"""How fast `tpufeed shard` is beside what else writes photos into shards, and what it takes: ratios in one run.

The source is in the page cache and the destination is `--work` (default: /dev/shm where there is one), so that no disk
is measured; what `tpufeed` takes is that of the whole command, start of Python, listing and plan included.

- copy: `--check header --encode exact` beside concatenating the same files, a loop over TensorFlow's TFRecordWriter,
  WebDataset's ShardWriter and mosaicml-streaming's MDSWriter with xxh64 (each in one thread, as they are;
  scripts/setup-peers installs the last two, n/a without).
- decode: the full check, without and with restart markers, beside decoding alone, simplejpeg in a process a core over
  bytes in memory.

    python benchmarks/run.py shard [--photos 20000] [--repeats 5] [--save]
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.entry import MEMORY, PEERS, command_of, make_parser

SHARD_BYTES = 128 * 10**6
DECODED_PHOTOS = 6000

DECODE = """
import sys, time
from pathlib import Path
import simplejpeg
images = [Path(name).read_bytes() for name in sys.stdin.read().splitlines()]
print("ready", flush=True)
start = time.perf_counter()
for data in images:
    simplejpeg.decode_jpeg(data)
print(len(images) / (time.perf_counter() - start))
"""

Way = Callable[[list[Path], Path], float | None]


def main(arguments: list[str]) -> None:
    parser = make_parser("shard", __doc__, repeats=5, photos=20_000, work=MEMORY)
    parser.add_argument("--peer", nargs=2, metavar=("NAME", "OUT"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.peer:
        write_as_peer(options.peer[0], Path(options.peer[1]))
        return
    with tempfile.TemporaryDirectory(prefix="tpufeed-shard-", dir=options.work) as folder:
        found = rounds(Path(folder), options.photos, options.repeats)
    report(found, options)


COPY: dict[str, Way] = {
    "concatenating the files": lambda files, out: timed(files, lambda: concatenate(files, out)),
    "tpufeed shard --check header --encode exact": lambda files, out: timed(
        files, lambda: shard(files, out, "--check", "header", "--encode", "exact")
    ),
    "TFRecordWriter loop": lambda files, out: timed(files, lambda: write_records(files, out)),
    "WebDataset ShardWriter": lambda files, out: peer("webdataset", files, out),
    "MDSWriter, xxh64": lambda files, out: peer("mosaic", files, out),
}
DECODING: dict[str, Way] = {
    "decoding alone, a process a core": lambda files, _: decode(files),
    "tpufeed shard --encode exact (full check)": lambda files, out: timed(
        files, lambda: shard(files, out, "--encode", "exact")
    ),
    "tpufeed shard (full check, restart markers)": lambda files, out: timed(files, lambda: shard(files, out)),
}


def rounds(work: Path, photos: int, repeats: int) -> dict[str, dict[str, list[float | None]]]:
    """Images a second of each way, one figure a round; the ways take turns. The first round warms memory up."""
    from benchmarks.harness import interleave
    from scripts.make_photos import make_photos

    tables = {}
    for name, ways, count in (("copy", COPY, photos), ("decode", DECODING, min(photos, DECODED_PHOTOS))):
        make_photos(work / "photos", count)
        files = sorted((work / "photos").rglob("*.jpg"))
        turns = {way: partial(fresh, run, files, work / "out") for way, run in ways.items()}
        tables[name] = interleave(turns, repeats)
        shutil.rmtree(work / "photos")
    return tables


def fresh(run: Way, files: list[Path], out: Path) -> float | None:
    """The rate of one way into an empty folder."""
    out.mkdir()
    try:
        return run(files, out)
    finally:
        shutil.rmtree(out)


def timed(files: list[Path], work: Callable[[], None]) -> float:
    start = time.perf_counter()
    work()
    return len(files) / (time.perf_counter() - start)


def peer(name: str, files: list[Path], out: Path) -> float | None:
    """The rate of another tool under the Python that has it, or None where it is not installed."""
    python = PEERS / name / "bin" / "python"
    if not python.exists() or (PEERS / name / "failed").exists():
        return None
    command = command_of("shard", "--peer", name, out, python=python)
    paths = "\n".join(map(str, files))
    done = subprocess.run(command, input=paths, stdout=subprocess.PIPE, text=True, check=True)
    return float(done.stdout.split()[-1])


def write_as_peer(name: str, out: Path) -> None:
    """What `peer` starts: prints the rate, start and import left out."""
    files = [Path(line) for line in sys.stdin.read().splitlines()]
    module, write = {"webdataset": ("webdataset", write_webdataset), "mosaic": ("streaming", write_mds)}[name]
    __import__(module)
    print(timed(files, lambda: write(files, out)))


def concatenate(files: list[Path], out: Path) -> None:
    """All bytes into one file, in one thread: what copying them costs."""
    with (out / "all").open("wb") as target:
        for file in files:
            target.write(file.read_bytes())


def write_records(files: list[Path], out: Path) -> None:
    """What the TensorFlow guides do."""
    import tensorflow as tf

    with tf.io.TFRecordWriter(str(out / "all.tfrecord")) as writer:
        for file in files:
            features = {
                "image/encoded": tf.train.Feature(bytes_list=tf.train.BytesList(value=[file.read_bytes()])),
                "image/filename": tf.train.Feature(bytes_list=tf.train.BytesList(value=[file.name.encode()])),
            }
            writer.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())


def write_webdataset(files: list[Path], out: Path) -> None:
    import webdataset

    with webdataset.ShardWriter(f"{out}/%06d.tar", maxsize=SHARD_BYTES, verbose=0) as writer:
        for number, file in enumerate(files):
            writer.write({"__key__": f"{number:08d}", "jpg": file.read_bytes(), "cls": 0})


def write_mds(files: list[Path], out: Path) -> None:
    from streaming import MDSWriter

    columns = {"image": "bytes", "label": "int"}
    with MDSWriter(out=str(out / "mds"), columns=columns, hashes=["xxh64"], size_limit=SHARD_BYTES) as writer:
        for file in files:
            writer.write({"image": file.read_bytes(), "label": 0})


def shard(files: list[Path], out: Path, *flags: str) -> None:
    """The command, as users run it."""
    command = [str(Path(sys.executable).with_name("tpufeed")), "shard", str(files[0].parents[1]), str(out / "dataset")]
    subprocess.run([*command, *flags], check=True, capture_output=True)


def decode(files: list[Path], program: str = DECODE, *arguments: object) -> float:
    """Images a second of all cores together, start and reading left out."""
    from tpufeed.processes.limits import available_cores

    cores = available_cores()
    command = [sys.executable, "-c", program, *map(str, arguments)]
    workers = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(cores)
    ]
    for number, worker in enumerate(workers):
        assert worker.stdin is not None
        worker.stdin.write("\n".join(map(str, files[number::cores])))
        worker.stdin.close()
    rates = []
    for worker in workers:
        assert worker.stdout is not None
        rates.append(float(worker.stdout.read().split()[1]))
        worker.wait()
    return sum(rates)


def report(tables: dict[str, dict[str, list[float | None]]], options: argparse.Namespace) -> None:
    """The tables, and the result file where asked for."""
    from benchmarks.harness import describe, flatten, machine, medians_of, print_table, rows_of, write_result

    for table, found in tables.items():
        columns = ["way", "img/s", "lowest", "highest", "to the first"]
        print_table(f"{table}, photos of 90 KB", columns, rows_of(found))
    medians = {way: median for found in tables.values() for way, median in medians_of(found).items()}
    print(describe(machine()))
    if options.save:
        rows = [row | {"median": medians[row["way"]]} for row in
                flatten(tables, "table", "way", value="images_per_second")]  # fmt: skip
        print(write_result(options.save, {"photos": options.photos}, rows))
