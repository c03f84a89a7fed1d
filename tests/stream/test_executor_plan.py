"""How many threads and processes a loader takes, and where they run."""

import pytest

import tpufeed
from tpufeed.errors import OptionError
from tpufeed.images import Custom
from tpufeed.processes.numa import Node
from tpufeed.stream.executor import Workers, plan_workers
from tpufeed.stream.options import LoaderOptions


def test_what_cannot_leave_this_process_is_decoded_in_it(cache_url, ops, monkeypatch):
    monkeypatch.delenv("TPUFEED_PROCESSES")
    dataset = tpufeed.open_dataset(cache_url)
    assert plan_workers([dataset], LoaderOptions()).processes >= 1
    monkeypatch.setattr(type(ops[0]), "__module__", "__main__")
    given = LoaderOptions(ops=ops)
    assert plan_workers([dataset], given).processes == 0
    with pytest.raises(OptionError, match="processes=0"):
        plan_workers([dataset], LoaderOptions(ops=ops, processes=2))
    assert plan_workers([dataset], LoaderOptions(ops=[Custom("__main__:f")])).processes == 0
    with pytest.raises(OptionError, match=r"__main__:f.*processes=0"):
        plan_workers([dataset], LoaderOptions(ops=[Custom("__main__:f")], processes=2))


def test_the_cores_of_a_rank_are_shared_out(cache_url, monkeypatch):
    dataset = tpufeed.open_dataset(cache_url)
    for variable in ("TPUFEED_PROCESSES", "LOCAL_WORLD_SIZE", "PJRT_LOCAL_PROCESS_COUNT"):
        monkeypatch.delenv(variable, raising=False)
    for variable, cores, ranks, expected in (
        ("LOCAL_WORLD_SIZE", 1, 1, (1, 1)),
        ("LOCAL_WORLD_SIZE", 4, 1, (4, 1)),
        ("PJRT_LOCAL_PROCESS_COUNT", 16, 1, (16, 1)),
        ("PJRT_LOCAL_PROCESS_COUNT", 240, 4, (60, 1)),
        ("LOCAL_WORLD_SIZE", 2, 4, (1, 1)),
    ):
        with monkeypatch.context() as patch:
            patch.setattr("tpufeed.stream.executor.available_cores", lambda cores=cores: cores)
            patch.setenv(variable, str(ranks))
            found = plan_workers([dataset], LoaderOptions())
            assert (found.processes, found.threads) == expected
            assert plan_workers([dataset], LoaderOptions(processes=0)).threads == max(1, cores // ranks)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, [0, 1, 0, 1]),
        ({"LOCAL_WORLD_SIZE": "2", "LOCAL_RANK": "1"}, [1, 1]),
        ({"LOCAL_WORLD_SIZE": "2", "LOCAL_RANK": "0"}, [0, 0]),
        ({"PJRT_LOCAL_PROCESS_COUNT": "2", "PJRT_LOCAL_PROCESS_RANK": "1"}, [1, 1]),
        ({"LOCAL_WORLD_SIZE": "2"}, []),  # which rank this is is not known: both would take node 0
    ],
)
def test_ranks_of_a_host_have_nodes_of_their_own(cache_url, monkeypatch, variables, expected):
    for name in ("TPUFEED_PROCESSES", "LOCAL_WORLD_SIZE", "LOCAL_RANK", "PJRT_LOCAL_PROCESS_COUNT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("tpufeed.stream.executor.find_nodes", lambda: [Node(0, (0, 1), ()), Node(1, (2, 3), ())])
    monkeypatch.setattr("tpufeed.stream.executor.available_cores", lambda: 4)
    found = plan_workers([tpufeed.open_dataset(cache_url)], LoaderOptions())
    assert [node.number for node in found.nodes] == expected


def test_large_encoded_images_have_two_threads_a_core_in_worker_processes(cache_url, dataset_url, ops, monkeypatch):
    raw, encoded = map(tpufeed.open_dataset, (cache_url, dataset_url))
    monkeypatch.setattr("tpufeed.stream.executor.available_cores", lambda: 16)
    monkeypatch.delenv("TPUFEED_PROCESSES", raising=False)
    assert plan_workers([encoded], LoaderOptions(ops=ops)) == Workers(16, 1)  # small ones
    monkeypatch.setattr("tpufeed.stream.executor._LONG_DECODE_BYTES", 100)
    assert plan_workers([encoded], LoaderOptions(ops=ops)) == Workers(16, 2)
    assert plan_workers([encoded], LoaderOptions(ops=ops, threads=3)) == Workers(16, 3, given=True)
    assert plan_workers([encoded], LoaderOptions(ops=ops, processes=0)) == Workers(0, 16, given=True)
    assert plan_workers([encoded, raw], LoaderOptions()) == plan_workers([raw], LoaderOptions()) == Workers(16, 1)


def test_processes_do_not_outnumber_the_batches_in_work(cache_url, monkeypatch):
    """One process decodes a batch: with more of them than batches some cores would have nothing to do."""
    monkeypatch.delenv("TPUFEED_PROCESSES", raising=False)
    monkeypatch.setattr("tpufeed.stream.executor.available_cores", lambda: 16)
    batch_bytes = tpufeed.Loader(cache_url, batch_size=8).stats().buffer_bytes // 32
    for left, prefetch, expected in (
        (None, 32, (16, 16)),  # batches ahead, processes, threads of all
        (14 * batch_bytes, 5, (5, 20)),
        (None, 3, (3, 18)),
    ):
        with monkeypatch.context() as patch:
            if left is not None:
                patch.setattr("tpufeed.stream.host.memory_left", lambda left=left: left)
            given = {"prefetch": 3} if prefetch == 3 else {}
            stats = tpufeed.Loader(cache_url, batch_size=8, **given).stats()
            assert (stats.prefetch, (stats.processes, stats.threads)) == (prefetch, expected)
    assert tpufeed.Loader(cache_url, batch_size=8, prefetch=3, processes=4).stats().processes == 4


@pytest.mark.parametrize(("gigabytes", "expected"), [(2, 1), (16, 4), (400, 50)])
def test_batches_ahead_may_take_more_memory_if_there_is_more(cache_url, monkeypatch, gigabytes, expected):
    loader = tpufeed.Loader(cache_url, batch_size=8)
    monkeypatch.setattr("tpufeed.stream.host.memory_left", lambda: gigabytes << 30)
    assert loader.stream._most_ahead(1 << 20) == (expected << 10) - 2 * (gigabytes == 2)
