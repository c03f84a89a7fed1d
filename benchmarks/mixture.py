"""What a mixture of 1, 10 and 100 raw caches costs beside one dataset of the same bytes.

All hold 20,000 images of 64x64 in all, in 100 shards. Each measurement is a process of its own; they take turns, and
medians are printed:

- images a second of Loader with two worker processes, and its share of the one dataset's;
- milliseconds of the parent to plan 1,024 samples, and seconds to open the mixture;
- threads of the parent and of a worker, shards that a worker has mapped, private memory of a worker;
- from the local GCS server, with a stage of a tenth of the bytes: bytes staged, and requests a thousand samples.

    python benchmarks/run.py mixture [--repeats 3] [--seconds 4] [--save]
"""

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

import tpufeed
from benchmarks.entry import command_of, make_parser
from benchmarks.harness import flatten, print_table, write_result
from tests.gcs_server import GcsServer
from tpufeed.measure.alternatives import write_sample
from tpufeed.stream.mixture import Mixture

IMAGES, SHARDS, SIDE, BATCH = 20_000, 100, 64, 128
COUNTS = (0, 1, 10, 100)  # sources; 0 is the dataset without a mixture


def main(arguments: list[str]) -> None:
    parser = make_parser("mixture", __doc__, repeats=3)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        folder, count = options.child
        print(json.dumps(measure(Path(folder), int(count), options.seconds)))
        return
    with tempfile.TemporaryDirectory(prefix="tpufeed-mixture-") as folder:
        for count in COUNTS[1:]:
            make(Path(folder), count)
        rounds: dict[int, list[dict[str, float]]] = {count: [] for count in COUNTS}
        for _ in range(options.repeats):
            for count, found in rounds.items():
                found.append(run(folder, count, options.seconds))
        result = {str(count): median(found) for count, found in rounds.items()}
        for count in COUNTS[1:]:
            result[str(count)] |= measure_remote(Path(folder), count)
    alone = result["0"]["images_per_second"]
    for figures in result.values():
        figures["share_of_one_dataset"] = round(figures["images_per_second"] / alone, 3)
    names = list(result["100"])
    rows = [[name, *(f"{result[str(count)].get(name, float('nan')):,}" for count in COUNTS)] for name in names]
    print_table("mixtures of raw caches", ("", "one dataset", *(f"{count} sources" for count in COUNTS[1:])), rows)
    if options.save:
        print(write_result(options.save, {"images": IMAGES, "repeats": options.repeats}, flatten(result, "sources")))


def make(folder: Path, count: int) -> None:
    """Write `count` raw caches that hold all images together, in as many shards in all."""
    random = np.random.default_rng(count)
    for number in range(count):
        images = [random.integers(0, 255, SIDE * SIDE * 3, np.uint8).tobytes() for _ in range(IMAGES // count)]
        write_sample(folder / str(count) / str(number), images, (SIDE, SIDE, 3), SHARDS // count, least_bytes=1)


def run(folder: str, count: int, seconds: float) -> dict[str, float]:
    command = command_of("mixture", "--seconds", seconds, "--child", folder, count)
    found: dict[str, float] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    return found


def source(folder: Path | str, count: int) -> Any:
    urls = [f"{folder}/{max(1, count)}/{number}" for number in range(max(1, count))]
    return urls[0] if not count else Mixture(dict.fromkeys(urls, 1.0), stop="longest")


def measure(folder: Path, count: int, seconds: float) -> dict[str, float]:
    begun = time.perf_counter()
    options = {"batch_size": BATCH, "columns": ["image", "sample"], "processes": 2, "repeat": True}
    with tpufeed.Loader(source(folder, count), **options) as loader:
        opened = time.perf_counter() - begun
        batches = iter(loader)
        for _ in range(20):
            next(batches)
        start, done = time.perf_counter(), 0
        while time.perf_counter() - start < seconds:
            next(batches)
            done += 1
        rate = done * BATCH / (time.perf_counter() - start)
        worker = loader.stream._executor._workers[0].process.pid
        maps = Path(f"/proc/{worker}/maps").read_text().splitlines()
        rollup = Path(f"/proc/{worker}/smaps_rollup").read_text().splitlines()
        private = sum(int(line.split()[1]) for line in rollup if line.startswith("Private_"))
        status = Path(f"/proc/{worker}/status").read_text()
        begun, planned = time.perf_counter(), 0
        while planned < 50:
            planned += sum(1 for _ in loader.stream._sampler.cursor(loader.world, 0).requests())
        planning = (time.perf_counter() - begun) * 1e3 * 1024 / (planned * BATCH)
        return {
            "images_per_second": round(rate, 1),
            "open_seconds": round(opened, 3),
            "plan_1024_ms": round(planning, 2),
            "parent_threads": threading.active_count(),
            "worker_threads": int(status.partition("Threads:")[2].split()[0]),
            "worker_mapped_shards": sum(line.endswith(".tfrecord") for line in maps),
            "worker_private_mb": round(private / 1e3, 1),
        }


def measure_remote(folder: Path, count: int) -> dict[str, float]:
    """An epoch from the local server by threads, with a stage of a tenth of the bytes."""
    with GcsServer(process=True, md5=False) as server, tempfile.TemporaryDirectory() as copies:
        os.environ.update(server.environment())
        size = 0
        for path in (folder / str(count)).rglob("*"):
            if path.is_file():
                size += path.stat().st_size
                server.put("bucket", str(path.relative_to(folder)), path.read_bytes())
        urls = [f"gs://bucket/{count}/{number}" for number in range(count)]
        weights = {url: 1.0 + 9.0 * (number == 0) for number, url in enumerate(urls)}
        options = {
            "batch_size": BATCH,
            "columns": ["image"],
            "processes": 0,
            "local_dir": copies,
            "local_bytes": size // 10,
        }
        server.clear_log()
        with tpufeed.Loader(Mixture(weights, stop="shortest"), **options) as loader:
            samples = BATCH * sum(1 for _ in loader)
            stats = loader.stream._executor._copies.statistics()
            threads = threading.active_count()
        return {
            "remote_copied_mb": round(stats.bytes_fetched / 1e6, 1),
            "remote_copies_budget_mb": round(size / 10 / 1e6, 1),
            "remote_requests_a_thousand_samples": round(len(server.requests(operation="read")) / samples * 1e3, 1),
            "remote_threads": threads,
        }


def median(found: list[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(each[name] for each in found) for name in found[0]}
