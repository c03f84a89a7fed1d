"""What views of a large dataset cost: selecting, the first batch, memory, and CPU time per batch.

The dataset is that of `scale`: one shard of 1,000 raw images of 8x8 pixels under 10,000 names. Each figure is of a new
process whose files are in the page cache; loaders decode in threads of the process. "first batch" counts from opening
the dataset, so it has the time to select. "read" are the records that the loader had read by then, and "left out" those
among them that the view leaves out. Memory is the growth of the process's own memory (USS) by selecting.

    python benchmarks/run.py views [--shards 10000] [--repeats 5] [--work FOLDER] [--save]
"""

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from benchmarks.entry import command_of, make_parser
from benchmarks.scale import RECORDS, make_shard, multiply

_BATCHES, _CLASSES = 200, 10
WAYS = ("whole", "1 % by ids", "1 % by fold", "99 % by fold", "one class of ten", "mixture by class")


def main(arguments: list[str]) -> None:
    parser = make_parser("views", __doc__, repeats=5, work=Path(tempfile.gettempdir()))
    parser.add_argument("--shards", type=int, default=10_000)
    parser.add_argument("--child", nargs=2, metavar=("URL", "WAY"), help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if args.child:
        print(json.dumps(measure(*args.child)))
        return
    from benchmarks.harness import describe, machine, print_table, write_result

    rows, scanned = list[dict[str, Any]](), 0.0
    with tempfile.TemporaryDirectory(prefix="tpufeed-views-", dir=args.work) as folder:
        url = multiply(make_shard(Path(folder)), Path(folder, "many"), args.shards)
        runs: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
        for repeat in range(args.repeats + 1):
            for way in WAYS:
                found = _child(url, way, Path(folder))
                if repeat:  # the first one fills the page cache, and reads the labels
                    runs[way].append(found)
                elif way == "one class of ten":
                    scanned = found["select_seconds"]
    for way, each in runs.items():
        medians = {key: statistics.median(run[key] for run in each) for key in each[0]}
        spread = [pick(run["first_batch_seconds"] for run in each) for pick in (min, max)]
        rows.append({"way": way, **medians, "first_batch_low": spread[0], "first_batch_high": spread[1]})
    said = [
        [
            row["way"],
            f"{row['samples']:,.0f}",
            f"{row['select_seconds']:.2f}",
            f"{row['first_batch_seconds']:.2f} ({row['first_batch_low']:.2f} to {row['first_batch_high']:.2f})",
            f"{row['left_out']:,.0f} of {row['read']:,.0f}",
            f"{row['memory_mb']:.1f}",
            f"{row['cpu_us_per_image']:.1f}",
        ]
        for row in rows
    ]
    head = ["view", "samples", "select s", "first batch s", "left out of read", "memory MB", "CPU us per image"]
    print_table(f"views of {args.shards * RECORDS:,} records", head, said)
    print(f"labels read once: {scanned:.1f} s")
    print(describe(machine()))
    if args.save:
        about = {"records": args.shards * RECORDS, "repeats": args.repeats, "labels_seconds": scanned}
        print(write_result(args.save, about, rows))


def _child(url: Path, way: str, folder: Path) -> dict[str, float]:
    command = command_of("views", "--child", url, way)
    environment = os.environ | {"XDG_CACHE_HOME": str(folder / "labels")}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(url: str, way: str) -> dict[str, float]:
    """Return the figures of one view, measured in this process."""
    import tpufeed
    from tpufeed.dataset.reader import Dataset
    from tpufeed.dataset.records import Reader

    def ids(dataset: Dataset) -> Dataset:
        records = dataset.split("train").records
        return dataset.select(samples=np.random.default_rng(0).choice(records, records // 100, replace=False))

    views: dict[str, Callable[[Dataset], Any]] = {
        "whole": lambda dataset: dataset,
        "1 % by ids": ids,
        "1 % by fold": lambda dataset: dataset.select(fold=(0, 100)),
        "99 % by fold": lambda dataset: dataset.select(without_fold=(0, 100)),
        "one class of ten": lambda dataset: dataset.select(classes=[0]),
        "mixture by class": tpufeed.Mixture.by_class,
    }
    read, original = list[tuple[int, int]](), Reader.read_many

    def counted(reader: Reader, places: Sequence[tuple[int, int]], *given: Any) -> Any:
        read.extend(places)
        return original(reader, places, *given)

    start, before = time.perf_counter(), _own_memory()
    dataset = tpufeed.open_dataset(url)
    begun = time.perf_counter()
    view = views[way](dataset)
    selected, memory = time.perf_counter(), _own_memory()
    with tpufeed.Loader(view, batch_size=128, processes=0, repeat=True) as loader:
        batches = iter(loader)
        with patch.object(Reader, "read_many", counted):
            next(batches)
            first = time.perf_counter()
            places = np.array(read)
        samples = np.ones(dataset.split("train").records, np.bool_)
        if isinstance(view, Dataset):
            samples[:] = False
            samples[view.samples("train")] = True
        left_out = int((~samples[places[:, 0] * RECORDS + places[:, 1]]).sum())
        cpu = time.process_time()
        for _ in range(_BATCHES):
            next(batches)
        cpu = time.process_time() - cpu
    return {
        "samples": int(samples.sum()),
        "select_seconds": selected - begun,
        "first_batch_seconds": first - start,
        "read": len(places),
        "left_out": left_out,
        "memory_mb": memory - before,
        "cpu_us_per_image": cpu / _BATCHES / 128 * 1e6,
    }


def _own_memory() -> float:
    """Return the memory that only this process has, in MB."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1e3
