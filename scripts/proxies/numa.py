"""A host with two NUMA nodes of 2 cores and 1.5 GB each: a virtual machine."""

import json
from typing import Any

from platform_run import Platform, expect
from vm import installed, machine

NODES = (
    *("-smp", 4, "-object", "memory-backend-ram,id=m0,size=1536M", "-object", "memory-backend-ram,id=m1,size=1536M"),
    *("-numa", "node,nodeid=0,cpus=0-1,memdev=m0", "-numa", "node,nodeid=1,cpus=2-3,memdev=m1"),
    *("-numa", "dist,src=0,dst=1,val=21"),
)
CORES = {"0-1": "0", "2-3": "1"}  # of each node
JOB_SECONDS, LEAST_SHARE = 600, 0.8


def run(platform: Platform) -> None:
    with installed(platform) as chroot:
        for command in (
            ("shard", "/shared/photos", "/shared/d"),
            ("cache", "warmup", "/shared/d", "/shared/cache", "--size", 128),
        ):
            chroot.call(["/venv/bin/tpufeed", *command])
        with machine(chroot, "numa_job.py", *NODES) as host:

            def check(what: str, name: str, judge: Any) -> None:
                platform.check(what, lambda: judge(host.fact(name, JOB_SECONDS)))

            check("nodes of /sys, and placing of workers", "nodes", found)
            check("4 worker processes: cores and pages", "four", lambda seen: placed(seen, {"0": 2, "1": 2}))
            check("2 worker processes: cores and pages", "two", lambda seen: placed(seen, {"0": 1, "1": 1}))
            check("1 worker process", "one", unplaced)
            check('numa="off"', "off", unplaced)
            check("two ranks of 2 worker processes", "ranks", ranks)
            check("tpufeed doctor", "doctor", doctor)


def found(seen: dict[str, Any]) -> str:
    expect("available: 2 nodes" in seen["hardware"], seen["hardware"])
    expect(seen["found"] == [[0, 0, 1], [1, 2, 3]], str(seen))
    expect(seen["placed"] == [0, 1, 0, 1] and seen["ranks"] == [[0, 0], [1, 1]] and not seen["one"], str(seen))
    return "nodes 0: cores 0, 1 and 1: cores 2, 3; 4 workers on 0 1 0 1; rank 0 of 2 on node 0, rank 1 on node 1"


def placed(seen: dict[str, Any], expected: dict[str, int]) -> str:
    """Each worker runs on one node's cores, and most pages of its batches are there."""
    nodes = [CORES.get(worker["cores"], worker["cores"]) for worker in seen["workers"]]
    expect({node: nodes.count(node) for node in nodes} == expected, str(seen))
    expect(dict(seen["nodes"]) == {int(node): count for node, count in expected.items()}, str(seen))
    shares = []
    for node, worker in zip(nodes, seen["workers"], strict=True):
        pages = worker["pages"]
        expect(sum(pages.values()) > 100, str(seen))
        shares.append(pages.get(node, 0) / sum(pages.values()))
    expect(min(shares) >= LEAST_SHARE, str(seen))
    return f"each on the cores of its node, {min(shares):.0%} to {max(shares):.0%} of its batches' pages there"


def unplaced(seen: dict[str, Any]) -> str:
    expect(bool(seen["workers"]) and not seen["nodes"], str(seen))
    expect(all(worker["cores"] == "0-3" for worker in seen["workers"]), str(seen))
    return "may run on all cores"


def ranks(seen: list[Any]) -> str:
    said = [placed(each, {str(rank): 2}) for rank, each in enumerate(seen)]
    return "; ".join(f"rank {rank}: {each}" for rank, each in enumerate(said))


def doctor(seen: str) -> str:
    told = json.loads(seen)["machine"]["numa"]
    expect(told == "2 NUMA nodes (node 0: 2 cores; node 1: 2 cores)", told)
    return told
