"""How fast remote shards come onto this machine, from a local GCS server that is as slow as a link: ratios in one run.

The server (tests/gcs_server) is a process of its own: 30 ms a request, 50 MB/s a connection, objects in memory.

- staging: a LocalCopies copies all shards of 128 MB to /dev/shm, beside gcsfs's open().read() of one of them and beside
  bare sockets that ask for the same ranges over as many connections. Those throw the bytes away, or write them to new
  files where the stage has its own: the second costs what fresh pages of memory cost. The clients alone: ranges by
  google-cloud-storage's own downloads and by our store. All of it once more, with a server that neither delays nor
  limits.
- first batch: from the call of Loader to 128 images with nothing staged, in a new process; once more in the same
  process, where clients are imported and connected; and in a new one without a stage, to show what that takes.
- small images: 10,000 of 20 KB through Store.read_many, beside 200 by one Store.read after the other.
- epochs: what is asked of the server in the first and in the second, and how fast they are.

Each measurement is a process of its own. It takes some 6 GB of memory and 3 GB of disk while it runs.

    python benchmarks/run.py staging [--images 14400] [--repeats 3] [--save]
"""

import argparse
import multiprocessing
import os
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import raw_sockets
from benchmarks.entry import MEMORY, make_parser
from benchmarks.local_gcs import CONNECTION_MB_PER_SECOND, LATENCY_MS, serve, set_link

CACHE, PHOTOS = "gs://bucket/cache", "gs://bucket/photos"
BATCH = 128
SMALL_IMAGES, ONE_BY_ONE = 10_000, 200


def main(arguments: list[str]) -> None:
    parser = make_parser("staging", __doc__, repeats=3, work=MEMORY)
    parser.add_argument("--images", type=int, default=14400, help="849 of them are a shard")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="tpufeed-staging-") as folder:
        prepare(Path(folder) / "bucket", options.images)
        with serve(Path(folder)) as server:
            shutil.rmtree(Path(folder) / "bucket")
            found = measure(server, options)
    report(found, options)


def prepare(bucket: Path, images: int) -> None:
    """Photos of 20 KB, and a cache of their pixels: what the server is to hold."""
    import tpufeed
    from scripts.make_photos import make_photos

    make_photos(bucket / "photos", images, (240, 320), quality=81)
    tpufeed.shard(bucket / "photos", bucket / "shards")
    tpufeed.cache.warmup(bucket / "shards", bucket / "cache", size=224, shard_bytes="128MB")
    shutil.rmtree(bucket / "shards")


def measure(server: Any, options: argparse.Namespace) -> dict[str, dict[str, list[float]]]:
    """By kind and way a figure a round; the ways take turns. Nothing warms up: the first batch is among them."""
    from benchmarks.harness import interleave

    works = {(kind, way): work for kind in ("link", "no limits") for way, work in WAYS.items()}
    works |= {(kind, work.__name__): work for kind, several in OTHERS.items() for work in several}

    def run(kind: str, way: str) -> Any:
        set_link(server, limited=kind != "no limits")
        figures = apart(works[kind, way], options.work)
        print(f"{kind}, {way}: {figures}", flush=True)
        return figures

    found: dict[str, dict[str, list[float]]] = {}
    for (kind, way), rounds in interleave(
        {key: partial(run, *key) for key in works}, options.repeats, warm_up=0
    ).items():
        for figures in rounds:  # one, or several by name
            for name, figure in (figures if isinstance(figures, dict) else {way: figures}).items():
                found.setdefault(kind, {}).setdefault(name, []).append(figure)
    return found


def apart(work: Callable[[Path], Any], parent: Path) -> Any:
    """What `work` returns in a new process, given an empty folder to stage in."""
    spawn = multiprocessing.get_context("spawn")
    with (
        tempfile.TemporaryDirectory(prefix="tpufeed-staging-", dir=parent) as folder,
        ProcessPoolExecutor(1, spawn) as pool,
    ):
        return pool.submit(work, Path(folder)).result()


def copied(folder: Path) -> float:
    """MB/s from the first fetch until all shards are there, verified."""
    from tpufeed.dataset.reader import open_dataset
    from tpufeed.storage.copies import LocalCopies

    dataset = open_dataset(CACHE)
    numbers = range(len(dataset.split("train").variants[0].shards))
    shards = list(dataset.reader("train").due(numbers))
    with LocalCopies(dataset.shards, folder) as copies:
        start = time.perf_counter()
        copies.fetch(shards)
        for shard in shards:
            while copies.open(shard) is None and time.perf_counter() - start < 120:
                time.sleep(0.005)
            if copies.open(shard) is None:
                raise SystemExit(f"run.py staging: {shard.name} was not staged")
        return sum(shard.size_bytes for shard in shards) / (time.perf_counter() - start) / 1e6


def streamed(_: Path, **options: int) -> float:
    """MB/s of gcsfs over one shard."""
    import gcsfs

    name, size = _shards()[0]
    files = gcsfs.GCSFileSystem(token="anon")
    start = time.perf_counter()
    with files.open(name, "rb", **options) as file:
        assert len(file.read()) == size
    return size / (time.perf_counter() - start) / 1e6


def discarded(_: Path) -> float:
    """MB/s of bare sockets whose bytes go nowhere."""
    return raw_sockets.read_all(os.environ["STORAGE_EMULATOR_HOST"], _shards(), None)


def written(folder: Path) -> float:
    """MB/s of bare sockets whose bytes go to new files."""
    return raw_sockets.read_all(os.environ["STORAGE_EMULATOR_HOST"], _shards(), folder)


def google_ranges(_: Path) -> float:
    """MB/s of google-cloud-storage's own downloads of the same ranges by as many threads; checks none of them."""
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import storage

    bucket = storage.Client(project="none", credentials=AnonymousCredentials()).bucket("bucket")

    def read(name: str, start: int, stop: int) -> int:
        return len(bucket.blob(name).download_as_bytes(start=start, end=stop - 1, raw_download=True, checksum=None))

    return _ranged(read)


def store_ranges(_: Path) -> float:
    """The same by the store's `read_into`, which is what the stage uses."""
    from tpufeed.storage.store import open_store

    store, local = open_store("gs://bucket"), threading.local()

    def read(name: str, start: int, stop: int) -> int:
        if not hasattr(local, "buffer"):
            local.buffer = memoryview(bytearray(raw_sockets.RANGE_BYTES))
        return store.read_into(name, start, local.buffer[: stop - start])

    return _ranged(read)


def _ranged(read: Callable[[str, int, int], int]) -> float:
    shards, step = _shards(), raw_sockets.RANGE_BYTES
    names = [(path.removeprefix("bucket/"), size) for path, size in shards]
    ranges = [(name, at, min(at + step, size)) for name, size in names for at in range(0, size, step)]
    start = time.perf_counter()
    with ThreadPoolExecutor(raw_sockets.CONNECTIONS) as executor:
        total = sum(executor.map(lambda wanted: read(*wanted), ranges))
    assert total == sum(size for _, size in shards)
    return total / (time.perf_counter() - start) / 1e6


def first_batch(folder: Path) -> dict[str, float]:
    """Seconds, in a process that has imported tpufeed alone, and where the clients are there already."""
    return {
        "new process": _seconds_to_first_batch(local_dir=folder / "new"),
        "same process": _seconds_to_first_batch(local_dir=folder / "same"),
    }


def first_batch_uncopied(_: Path) -> dict[str, float]:
    """Seconds, in a new process."""
    return {"new process, no local copies": _seconds_to_first_batch(local_bytes=0)}


def small_images(_: Path) -> dict[str, float]:
    """Images a second either way, of stores whose clients are there already."""
    from tpufeed.storage.store import Span, open_store

    store = open_store(PHOTOS)
    infos = [info for info in store.iter_objects() if info.name.endswith(".jpg")]
    infos = infos[:SMALL_IMAGES]
    list(store.read_many([Span(info.name) for info in infos[:100]]))
    start = time.perf_counter()
    found = [len(data) for data in store.read_many([Span(info.name) for info in infos]) if isinstance(data, bytes)]
    many = time.perf_counter() - start
    assert found == [info.size_bytes for info in infos]
    start = time.perf_counter()
    for info in infos[:ONE_BY_ONE]:
        store.read(info.name)
    one = time.perf_counter() - start
    return {"read_many": len(infos) / many, "one by one": ONE_BY_ONE / one, "bytes an image": sum(found) / len(found)}


def epochs(folder: Path) -> dict[str, float]:
    """Of two epochs: images a second, and what was asked of the server."""
    import tpufeed
    from tests.gcs_server import GcsServer

    server = GcsServer.attach(os.environ["STORAGE_EMULATOR_HOST"])
    figures = {}
    with tpufeed.Loader(CACHE, batch_size=BATCH, local_dir=folder) as loader:
        for name in ("first", "second"):
            server.clear_log()
            start = time.perf_counter()
            batches = sum(1 for _ in loader)
            seconds = time.perf_counter() - start
            shards = server.requests(operation="read", name="*.tfrecord")
            figures |= {
                f"{name}: images/s": batches * BATCH / seconds,
                f"{name}: requests": len(server.log),
                f"{name}: requests for shards": len(shards),
                f"{name}: MB of shards": sum(record.sent_bytes for record in shards) / 1e6,
            }
    return figures


WAYS = {
    "gcsfs, open().read() over one connection": partial(streamed, concurrency=1),
    "gcsfs, open().read() as it comes, over 4": streamed,
    "bare sockets, thrown away": discarded,
    "bare sockets, written to new files": written,
    "google-cloud-storage, 16 threads, thrown away": google_ranges,
    "the store's read_into, 16 threads, thrown away": store_ranges,
    "local copies": copied,
}
OTHERS = {"first batch": (first_batch, first_batch_uncopied), "small images": (small_images,), "epochs": (epochs,)}


def _seconds_to_first_batch(**options: Any) -> float:
    import tpufeed

    start = time.perf_counter()
    with tpufeed.Loader(CACHE, batch_size=BATCH, **options) as loader:
        images, _ = next(iter(loader))
        seconds = time.perf_counter() - start
        assert images.shape == (BATCH, 224, 224, 3)
    return seconds


def _shards() -> list[tuple[str, int]]:
    """Bucket and name of each shard, and its size."""
    from tpufeed.dataset.reader import open_dataset

    shards = open_dataset(CACHE).split("train").variants[0].shards
    return [(f"{CACHE.removeprefix('gs://')}/{shard.name}", shard.bytes) for shard in shards]


def report(found: dict[str, dict[str, list[float]]], options: argparse.Namespace) -> None:
    """The tables, and the result file where asked for."""
    from benchmarks.harness import describe, flatten, machine, medians_of, print_table, write_result

    medians = {kind: medians_of(ways) for kind, ways in found.items()}
    for kind, ways in found.items():
        copies = ways.get("local copies")
        rows = [
            [name, *(f"{figure:,.2f}" for figure in (medians[kind][name], min(values), max(values)))]
            + ([f"{ratio(copies, values):.2f}"] if copies else [])
            for name, values in ways.items()
        ]
        columns = ["what", "median", "lowest", "highest"] + (["local copies to it"] if copies else [])
        print_table(f"{kind}{TITLES[kind]}", columns, rows)
    small = found["small images"]
    print(f"read_many: {ratio(small['read_many'], small['one by one']):.1f} times the images a second of one by one")
    print(describe(machine()))
    if options.save:
        about = {
            "images": options.images,
            "latency_ms": LATENCY_MS,
            "connection_mb_per_second": CONNECTION_MB_PER_SECOND,
            "connections_of_the_copies": raw_sockets.CONNECTIONS,
        }
        rows = [row | {"median": medians[row["measurement"]][row["what"]]} for row in
                flatten(found, "measurement", "what", value="figures")]  # fmt: skip
        print(write_result(options.save, about, rows))


def ratio(values: list[float], others: list[float]) -> float:
    """The median of each round's own ratio: what else the machine does changes from round to round."""
    return statistics.median(value / other for value, other in zip(values, others, strict=True))


TITLES = {
    "link": f" of {LATENCY_MS} ms and {CONNECTION_MB_PER_SECOND} MB/s a connection: MB/s",
    "no limits": ": MB/s",
    "first batch": f" of {BATCH}: seconds",
    "small images": ": images a second",
    "epochs": "",
}
