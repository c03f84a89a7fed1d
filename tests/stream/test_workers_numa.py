"""Worker processes on hosts of several NUMA nodes: real affinity."""

import os
import re
from pathlib import Path

import numpy as np
import pytest

import tpufeed
from tpufeed.errors import OptionError
from tpufeed.processes.numa import Node


@pytest.fixture
def two_nodes(monkeypatch):
    """The cores of this machine as nodes: a core each."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        pytest.skip("this machine has one core")
    nodes = [Node(0, (cores[0],), ()), Node(1, (cores[1],), ())]
    monkeypatch.setattr("tpufeed.stream.executor.find_nodes", lambda: nodes)
    return nodes


def allowed_cores(loader):
    found = []
    for worker in loader.stream._executor._workers:
        threads = Path(f"/proc/{worker.process.pid}/task").iterdir()
        named = [re.search(r"Cpus_allowed_list:\s*(\S+)", (thread / "status").read_text())[1] for thread in threads]
        found.append(named)
    return found


@pytest.mark.all
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


@pytest.mark.all
def test_cores_that_are_gone_stop_no_worker(cache_url, monkeypatch):
    nodes = [Node(0, (100_000,), ()), Node(1, (100_001,), ())]
    monkeypatch.setattr("tpufeed.stream.executor.find_nodes", lambda: nodes)
    with tpufeed.Loader(cache_url, batch_size=10, processes=2) as loader:
        assert len(list(loader)) == 7


def test_numa_is_auto_or_off(cache_url):
    with pytest.raises(OptionError, match=r"numa.*'on'"):
        tpufeed.Loader(cache_url, numa="on")
