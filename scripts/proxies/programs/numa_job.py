"""The job of the platform `numa`: nodes, workers and pages of a virtual machine with two NUMA nodes."""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from vm_guest import run_job, sh

import tpufeed
from tpufeed.processes.numa import find_nodes, place_workers

CACHE, BATCHES_KEPT = "/shared/cache", 6


def nodes() -> dict[str, Any]:
    found = find_nodes()
    return {
        "hardware": sh("numactl --hardware"),
        "found": [[node.number, *node.cores] for node in found],
        "placed": [node.number for node in place_workers(found, 4)],
        "ranks": [[node.number for node in place_workers(found, 2, rank, 2)] for rank in (0, 1)],
        "one": len(place_workers(found, 1)),
    }


def doctor() -> str:
    return sh("/venv/bin/tpufeed doctor /shared/cache --seconds 10 --json")


def four() -> dict[str, Any]:
    return feed(4)


def two() -> dict[str, Any]:
    return feed(2)


def one() -> dict[str, Any]:
    return feed(1)


def off() -> dict[str, Any]:
    return feed(2, numa="off")


def ranks() -> list[Any]:
    """Two ranks of this host at once, of two processes each."""
    started = []
    for rank in "01":
        variables = os.environ | {"LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": "2"}
        command = [sys.executable, "-P", __file__, rank]
        started.append(subprocess.Popen(command, env=variables, stdout=subprocess.PIPE))
    return [json.loads(process.communicate(timeout=300)[0]) for process in started]


def feed(processes: int, **options: Any) -> dict[str, Any]:
    """Where the workers of a loader run, and on which nodes the pages of their batches are."""
    with tpufeed.Loader(CACHE, "train", batch_size=16, processes=processes, threads=1, **options) as loader:
        batches = iter(loader)
        kept = [next(batches) for _ in range(BATCHES_KEPT)]
        workers = [look_at(pid) for pid in descendants(os.getpid())]
        said = loader.stats().nodes
        del kept
    return {"workers": [worker for worker in workers if worker["pages"]], "nodes": said}


def look_at(pid: int) -> dict[str, Any]:
    (cores,) = re.findall(r"Cpus_allowed_list:\s*(\S+)", Path(f"/proc/{pid}/status").read_text())
    pages: Counter[str] = Counter()
    for line in Path(f"/proc/{pid}/numa_maps").read_text().splitlines():
        if "tpufeed-batches" in line:
            pages.update({node: int(count) for node, count in re.findall(r"\bN(\d+)=(\d+)", line)})
    return {"pid": pid, "cores": cores, "pages": pages, "command": Path(f"/proc/{pid}/cmdline").read_text()[-80:]}


def descendants(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [each for child in map(int, children) for each in (child, *descendants(child))]


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(feed(2, world=(int(sys.argv[1]), 2))))
    else:
        run_job([nodes, four, two, one, off, ranks, doctor])
