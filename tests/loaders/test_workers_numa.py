"""Where worker processes run on hosts of several NUMA nodes: trees of /sys that are made up, and real affinity."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import tpufeed
from tpufeed.errors import OptionError
from tpufeed.measure.machine import describe, machine
from tpufeed.processes.numa import Node, describe_nodes, find_nodes, place_workers

CHIP, CARD = ("0x1ae0", "0x0063"), ("0x1ae0", "0x0042")


def make_sys(root, cpulists, devices=()):
    """A tree with a folder for each node, and PCI slots of (vendor, device), node."""
    for number, cpulist in cpulists.items():
        folder = root / f"devices/system/node/node{number}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{cpulist}\n")
    for slot, ((vendor, device), node) in enumerate(devices):
        folder = root / f"bus/pci/devices/0000:00:{slot:02x}.0"
        folder.mkdir(parents=True)
        for name, value in (("vendor", vendor), ("device", device), ("numa_node", node)):
            (folder / name).write_text(f"{value}\n")
    return root


@pytest.fixture
def all_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(224)))


def v5e_host(root):
    """224 cores on 2 nodes, hyperthreads apart, 4 chips on each, and a network card between them."""
    chips = [(CHIP, 0)] * 4 + [(CARD, 0)] + [(CHIP, 1)] * 4
    return make_sys(root, {0: "0-55,112-167", 1: "56-111,168-223"}, chips)


@pytest.mark.usefixtures("all_cores")
def test_nodes_of_a_host_of_two(tmp_path):
    first, second = find_nodes(v5e_host(tmp_path))
    assert (first.number, len(first.cores), first.cores[55:57], first.chips) == (0, 112, (55, 112), (0, 1, 2, 3))
    assert (second.number, second.cores[0], second.chips) == (1, 56, (4, 5, 6, 7))
    assert describe_nodes([first, second]) == (
        "2 NUMA nodes (node 0: 112 cores, 4 TPU chips; node 1: 112 cores, 4 TPU chips)"
    )


@pytest.mark.usefixtures("all_cores")
def test_odd_trees(tmp_path):
    assert find_nodes(tmp_path / "nothing") == []
    assert describe_nodes([]) == "NUMA nodes n/a"
    odd = make_sys(tmp_path / "odd", {0: "0-3,8-11,16", 2: "", 10: "4"}, [(CHIP, -1)])  # 2 has memory alone
    assert find_nodes(odd) == [Node(0, (0, 1, 2, 3, 8, 9, 10, 11, 16), ()), Node(10, (4,), ())]
    unread = make_sys(tmp_path / "unread", {0: "0-3,x", 1: "4-7", 2: "8-", 3: "0-3:1/2"}, [])
    assert find_nodes(unread) == [Node(1, (4, 5, 6, 7), ())]
    some = make_sys(tmp_path / "some", {0: "0-3", 1: "4-7"}, [(CHIP, 0), (CHIP, -1), (CHIP, 1)])
    assert find_nodes(some) == [Node(0, (0, 1, 2, 3), ()), Node(1, (4, 5, 6, 7), ())]


def test_an_affinity_mask_that_leaves_a_node_out(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {60, 61})
    nodes = find_nodes(v5e_host(tmp_path))
    assert [node.cores for node in nodes] == [(), (60, 61)]
    assert "node 0: no core that this process may use, 4 TPU chips" in describe_nodes(nodes)
    assert place_workers(nodes, 2) == []


@pytest.mark.usefixtures("all_cores")
def test_workers_are_dealt_by_cores_and_ranks_keep_to_their_chips(tmp_path):
    nodes = find_nodes(v5e_host(tmp_path))

    def placed(count, rank=0, ranks=1, of=nodes):
        numbers = [node.number for node in place_workers(of, count, rank, ranks)]
        return [numbers.count(number) for number in (0, 1)]

    assert placed(56) == [28, 28]
    assert [placed(14, rank, 4) for rank in range(4)] == [[14, 0], [14, 0], [0, 14], [0, 14]]
    assert [placed(28, rank, 2) for rank in range(2)] == [[28, 0], [0, 28]]
    crossed = [nodes[0]._replace(chips=nodes[1].chips), nodes[1]._replace(chips=nodes[0].chips)]
    assert [placed(28, rank, 2, crossed) for rank in range(2)] == [[0, 28], [28, 0]]
    unknown = [node._replace(chips=()) for node in nodes]
    assert [placed(28, rank, 2, unknown) for rank in range(2)] == [[28, 0], [0, 28]]
    assert placed(57, 0, 1, [nodes[0], nodes[1]._replace(cores=nodes[1].cores[:56])]) == [38, 19]
    assert [placed(2, rank, 3) for rank in range(3)] == [[2, 0], [1, 1], [0, 2]]
    assert place_workers(nodes[:1], 8) == []
    assert place_workers(nodes, 1) == []  # one process would leave the other node's cores idle
    one_sided = [nodes[0]._replace(chips=tuple(range(8))), nodes[1]._replace(chips=())]
    assert [placed(28, rank, 2, one_sided) for rank in range(2)] == [[28, 0], [0, 28]]


@pytest.fixture
def two_nodes(monkeypatch):
    """The cores of this machine as nodes: a core each."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        pytest.skip("this machine has one core")
    nodes = [Node(0, (cores[0],), ()), Node(1, (cores[1],), ())]
    monkeypatch.setattr("tpufeed.loaders.executor.find_nodes", lambda: nodes)
    return nodes


def allowed_cores(loader):
    found = []
    for worker in loader._executor._workers:
        threads = Path(f"/proc/{worker.process.pid}/task").iterdir()
        named = [re.search(r"Cpus_allowed_list:\s*(\S+)", (thread / "status").read_text())[1] for thread in threads]
        found.append(named)
    return found


def test_worker_processes_and_their_threads_keep_to_a_node(two_nodes, cache_url):
    expected = [batch for batch, _ in tpufeed.Loader(cache_url, batch_size=10, processes=0)]
    with tpufeed.Loader(cache_url, batch_size=10, processes=2, threads=2) as loader:
        for found, image in zip((image for image, _ in loader), expected, strict=True):
            np.testing.assert_array_equal(found, image)
        assert loader.stats().nodes == ((0, 1), (1, 1))
        for node, threads in zip(two_nodes, allowed_cores(loader), strict=True):
            # All but the thread that watches the launcher, which starts before the orders come.
            assert threads.count(str(node.cores[0])) >= len(threads) - 1 >= 4
    with tpufeed.Loader(cache_url, batch_size=10, processes=2, numa="off") as loader:
        next(iter(loader))
        assert loader.stats().nodes == ()
        ours = re.search(r"Cpus_allowed_list:\s*(\S+)", Path("/proc/self/status").read_text())[1]
        assert {each for threads in allowed_cores(loader) for each in threads} == {ours}


def test_cores_that_are_gone_stop_no_worker(cache_url, monkeypatch):
    nodes = [Node(0, (100_000,), ()), Node(1, (100_001,), ())]
    monkeypatch.setattr("tpufeed.loaders.executor.find_nodes", lambda: nodes)
    with tpufeed.Loader(cache_url, batch_size=10, processes=2) as loader:
        assert len(list(loader)) == 7


def test_numa_is_auto_or_off(cache_url):
    with pytest.raises(OptionError, match="numa is 'auto' or 'off', not 'on'"):
        tpufeed.Loader(cache_url, numa="on")


def test_this_host_is_described_as_numactl_does():
    nodes = find_nodes()
    assert describe_nodes(nodes) in describe(machine())
    if shutil.which("numactl") is None:
        pytest.skip("numactl is not installed")
    shown = subprocess.run(["numactl", "--show"], capture_output=True, text=True, check=True).stdout
    cores, numbers = (
        re.search(rf"^{name}:(.*)$", shown, re.MULTILINE)[1].split() for name in ("physcpubind", "nodebind")
    )
    assert sorted(core for node in nodes for core in node.cores) == sorted(map(int, cores))
    assert [node.number for node in nodes if node.cores] == [*map(int, numbers)]
