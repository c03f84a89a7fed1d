"""What a loader's own process does for a batch, by the number of its worker processes, and what a worker costs.

The parent: worker processes that only answer, so that nothing but orders, replies and the hand-over is measured. They
are real processes on real sockets, as many as hosts of 224 vCPUs have by default (56) and as many as there are vCPUs.
The process has one thread, and its processor time is divided by the batches.

Workers: 56 that are forks of one fork server. Seconds to the loader's first batch; processor seconds of a worker from
its start to its first batch, and its memory after an epoch; the same of the server. Of memory that processes share
each has an equal share.

Each measurement is a process of its own, in turns; medians.

    python benchmarks/bench_cores.py [--workers 1,8,56,224] [--repeats 5] [--save]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent / "scripts")]

BATCH, SIDE, IMAGES, WORKERS = 1024, 8, 65_536, 56


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", default="1,8,56,224")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--batches", type=int, default=2000)
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/cores.json")
    parser.add_argument("--child", nargs=3, metavar=("WHAT", "FOLDER", "NUMBER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        what, folder, number = options.child
        url = Path(folder) / "raw"
        found = measure_parent(url, int(number), options.batches) if what == "parent" else measure_workers(url)
        print(json.dumps(found))
        return
    from harness import describe, interleave, machine, print_table, write_result

    counts = [int(count) for count in options.workers.split(",")]
    with tempfile.TemporaryDirectory(prefix="tpufeed-cores-") as folder:
        make(Path(folder))
        ways = {f"parent {count}": partial(run, "parent", folder, count, options.batches) for count in counts}
        ways["workers"] = partial(run, "workers", folder, 1, options.batches)
        rounds = interleave(ways, options.repeats, warm_up=0)
    parents = {str(count): middle(rounds[f"parent {count}"]) for count in counts}
    result = {"batch": BATCH, "batches": options.batches, "parent": parents, "workers": middle(rounds["workers"])}
    rows = [
        [str(count), *(f"{parents[str(count)][name]:,.3g}" for name in ("ms_a_batch", "ms_lowest", "ms_highest"))]
        for count in counts
    ]
    print_table(f"the parent, batches of {BATCH}", ("worker processes", "ms a batch", "lowest", "highest"), rows)
    print({name: round(value, 3) for name, value in result["workers"].items()}, describe(machine()), sep="\n")
    if options.save:
        print(write_result("cores", result))


def middle(found: list[dict[str, float]]) -> dict[str, float]:
    """The median of each figure, and the spread of the parent's."""
    medians = {name: statistics.median(each[name] for each in found) for name in found[0]}
    if "ms_a_batch" in medians:
        values = [each["ms_a_batch"] for each in found]
        medians |= {"ms_lowest": min(values), "ms_highest": max(values)}
    return medians


def run(what: str, folder: str, number: int, batches: int) -> dict[str, float]:
    command = [sys.executable, __file__, "--batches", str(batches), "--child", what, folder, str(number)]
    # An installed package has its bytecode: workers that compile every module would count that.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    ended = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    found: dict[str, float] = json.loads(ended.stdout)
    return found


def make(folder: Path) -> None:
    """A raw cache of small images: pixels play no part."""
    from tpufeed.measure.alternatives import write_sample

    random = np.random.default_rng(0)
    images = [random.integers(0, 255, SIDE * SIDE * 3, np.uint8).tobytes() for _ in range(IMAGES)]
    write_sample(folder / "raw", images, (SIDE, SIDE, 3), 64, least_bytes=1)


def answer(_: Any, connection: Connection) -> None:
    """A worker process that fills nothing: it answers with a batch's columns, all but the pixels."""
    from tpufeed.loaders.batch import Cost, DecodedBatch
    from tpufeed.loaders.workers import Decode, Reply

    try:
        while True:
            order = connection.recv()
            if isinstance(order, Decode):
                request = order.request
                columns = {"sample": request.places.sample, "mask": request.mask, "label": np.zeros(BATCH, np.int64)}
                connection.send(Reply(order.number, DecodedBatch(columns, (), Cost(0.0, 0.0, 0, 0), 0)))
    except (EOFError, ConnectionError):
        return


def measure_parent(url: Path, workers: int, batches: int) -> dict[str, float]:
    import tpufeed
    from tpufeed.loaders import workers as loader_workers

    loader_workers._ENTRY = "bench_cores:answer"
    options: dict[str, Any] = {"columns": ["image", "sample"], "batch_size": BATCH, "repeat": True}
    with tpufeed.Loader(url, processes=workers, threads=1, **options) as loader:
        feed = iter(loader)
        for _ in range(2 * workers + 64):
            next(feed)
        start, began = time.process_time(), time.perf_counter()
        for _ in range(batches):
            next(feed)
        spent, elapsed = time.process_time() - start, time.perf_counter() - began
    return {"ms_a_batch": spent * 1e3 / batches, "batches_per_second": batches / elapsed}


def measure_workers(url: Path) -> dict[str, float]:
    """Start real workers; return seconds, processor seconds and MB."""
    import tpufeed

    began = time.perf_counter()
    with tpufeed.Loader(url, batch_size=BATCH, processes=WORKERS, threads=1, columns=["image"]) as loader:
        feed = iter(loader)
        next(feed)
        first_seconds = time.perf_counter() - began
        for _ in range(WORKERS - 1):
            next(feed)
        workers = [Path(f"/proc/{worker.process.pid}") for worker in loader._executor._workers]
        server = workers[0].with_name(_stat(workers[0])[1])
        seconds = {each: sum(map(int, _stat(each)[11:13])) / os.sysconf("SC_CLK_TCK") for each in (server, *workers)}
        for _ in feed:
            pass
        memory = {each: _anonymous_mb(each) for each in (server, *workers)}
    return {
        "first_batch_seconds": first_seconds,
        "start_seconds": statistics.mean(seconds[each] for each in workers),
        "memory_mb": statistics.mean(memory[each] for each in workers),
        "server_start_seconds": seconds[server],
        "server_memory_mb": memory[server],
    }


def _stat(process: Path) -> list[str]:
    return (process / "stat").read_text().rpartition(")")[2].split()


def _anonymous_mb(process: Path) -> float:
    lines = (process / "smaps_rollup").read_text().splitlines()
    # Not Pss: that counts pages of shards, and of the batches, that no other process maps now.
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss_Anon:")) / 1e3


if __name__ == "__main__":
    main()
