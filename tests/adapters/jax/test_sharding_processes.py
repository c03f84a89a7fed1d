"""to_jax in two processes with four CPU devices each. two_processes.py writes down what each saw."""

import json
import re

import numpy as np
import pytest

import tpufeed

pytestmark = pytest.mark.all

# By mesh: the first rows of the blocks of each process, in batches of 8 samples a rank.
ROWS = {
    "backwards": [[8, 10, 12, 14], [0, 2, 4, 6]],
    "interleaved": [[0, 4, 8, 12], [2, 6, 10, 14]],
    "model in a process": [[0, 4], [8, 12]],
    "model across": [[0, 2, 4, 6]] * 2,
    "pixels across": [[0, 2, 4, 6]] * 2,
    "all across": [[0, 2, 4, 6]] * 2,
    "replicated": [[0]] * 2,
}


@pytest.fixture(scope="module")
def processes(run_script, cache_url, broken_url, tmp_path_factory):
    """What each process saw."""
    folder = tmp_path_factory.mktemp("jax")
    run_script("jax/two_processes.py", cache_url, broken_url, folder)
    return [json.loads((folder / f"{process}.json").read_text()) for process in range(2)]


@pytest.fixture(scope="module")
def expected(cache_url):
    """`expected(epoch, rank, size)`: the samples of each batch of a rank, as Loader has them."""

    def make(epoch, rank, size):
        options = {"batch_size": 8, "processes": 0, "columns": ["sample"], "world": (rank, size)}
        with tpufeed.Loader(cache_url, **options) as loader:
            loader.set_epoch(epoch)
            return [batch.tolist() for batch in loader]

    return make


def ids(batches):
    return [[sample for _, block in rows for sample in block] for rows, *_ in batches]


@pytest.mark.all
def test_processes_share_each_epoch(processes, expected, stored, cache_url):
    assert [found["length"] for found in processes] == [4, 4]
    for epoch in range(2):
        parts = [found["epochs"][epoch] for found in processes]
        assert [ids(part) for part in parts] == [expected(epoch, rank, 2) for rank in range(2)]
        seen = [sample for part in parts for batch in ids(part) for sample in batch]
        assert len(set(seen)) == len(seen) == 64
        brightness = stored(cache_url, "train", epoch).pixels.sum((1, 2, 3), dtype=np.int64)
        for (rows, size, total), (other_rows, other_size, other_total) in zip(*parts, strict=True):
            assert [start for start, _ in rows] == [0, 2, 4, 6]
            assert [start for start, _ in other_rows] == [8, 10, 12, 14]
            assert size == other_size == 16
            assert total == other_total == sum(brightness[ids([(rows + other_rows,)])[0]])


def test_a_host_loader_shares_it_too(processes, expected):
    assert [found["host"] for found in processes] == [expected(0, rank, 2) for rank in range(2)]


@pytest.mark.parametrize("name", ROWS)
def test_meshes_in_any_order(processes, expected, name):
    parts = [found[name] for found in processes]
    assert [[[start for start, _ in rows] for rows, *_ in part] for part in parts] == [
        [rows] * len(part) for rows, part in zip(ROWS[name], parts, strict=True)
    ]
    assert [total for *_, total in parts[0]] == [total for *_, total in parts[1]]
    ranks = {(0, 2, 4, 6): [0, 0], (0,): [0, 0], (8, 10, 12, 14): [1, 0]}.get(tuple(ROWS[name][0]), [0, 1])
    assert [ids(part) for part in parts] == [expected(0, rank, 1 + max(ranks)) for rank in ranks]


@pytest.mark.parametrize("name", ["interleaved", "model in a process", "replicated"])
def test_device_ops_run_before_rows_become_part_of_a_global_array(processes, name):
    """The processes have compared the mirrored pixels of each device, and the sums of the global array."""
    assert [found[f"{name}, device ops"] for found in processes] == [found[name] for found in processes]


def test_a_state_goes_on_in_one_process(processes, cache_url):
    states = [found["state"] for found in processes]
    assert states[0] == states[1]
    assert states[0]["samples"] == 32
    with tpufeed.Loader(cache_url, batch_size=38, processes=0, columns=["sample"]) as loader:
        loader.load_state_dict(states[0])
        (rest,) = loader
    done = [sample for found in processes for batch in ids(found["epochs"][0])[:2] for sample in batch]
    assert sorted([*done, *rest]) == list(range(70))


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("batch size", "batch_size: 8 on 1 of 2 ranks.* 4 on rank 1"),
        ("seed", "seed 0, .* seed 1, .* rank 1"),
        (
            "cannot begin",
            "rank 1: ShardError: .*train-v0-0000.-of-00006.tfrecord",
        ),
        ("sharding", r"sharding .*'data'.*P\w*\(\)"),
        ("resumed", "epoch 0, .* epoch 2, .* rank 1"),
        ("overlapping", r"OptionError: .*process 0: \[0, 1, 2\]; process 1: \[1, 2, 3\]"),
        ("unequal", r"OptionError: .*process 0: \[0, 1\]; process 1: \[2\]"),
    ],
)
def test_processes_that_would_part_ways_raise_the_same_error(processes, case, message):
    errors = [found[case] for found in processes]
    assert errors[0][0] == errors[1][0]
    assert errors[0][0].startswith("LoaderError: ")
    assert re.search(message, errors[0][0])


def test_a_mesh_without_this_process(processes):
    assert processes[0]["of process 0"] is None
    message, _ = processes[1]["of process 0"]
    assert re.match(r"OptionError: .*processes \[0\].*process 1", message)


def test_a_process_that_comes_alone_is_told_who_is_missing(processes):
    message, _ = processes[0]["alone"]
    assert message.startswith("LoaderError: process 1 of [0, 1]")


def test_a_world_that_is_given_by_hand_is_taken_at_its_word(processes):
    assert processes[0]["by hand"] == 4
