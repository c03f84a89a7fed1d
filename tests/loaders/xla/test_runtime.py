"""torch_xla's part of to_xla: shardings under SPMD, ranks that are threads, and torch_xla beside tensorflow.

xla_spmd.py writes down what one process does that feeds four CPU devices.
"""

import json
import os
import subprocess
import sys
import threading

import numpy as np
import pytest

import tpufeed
from tpufeed.errors import LoaderError
from tpufeed.loaders.rank_check import Rendezvous

BY_ROWS = ["{devices=[4,1,1,1]0,1,2,3}", "{devices=[4]0,1,2,3}"]


@pytest.fixture(scope="module")
def spmd(run_script, cache_url):
    return json.loads(run_script("xla/xla_spmd.py", cache_url, devices=4).splitlines()[-1])


@pytest.fixture(scope="module")
def sums(cache_url):
    """Of the columns of each batch that Loader gives."""
    options = {"columns": ["image", "label", "sample"], "batch_size": 8, "shuffle": False, "processes": 0}
    with tpufeed.Loader(cache_url, **options) as loader:
        return [[int(column.astype(np.int64).sum()) for column in batch] for batch in loader]


def test_under_spmd_one_process_is_the_world(spmd, cache_url):
    assert spmd["devices"] == 4
    assert spmd["length"] == 7
    with tpufeed.Loader(cache_url, columns=["sample"], batch_size=10, processes=0, world=(0, 1)) as loader:
        assert spmd["epochs"] == [np.concatenate(list(loader)).tolist() for _ in range(2)]


@pytest.mark.parametrize(
    ("case", "form", "specs", "last"),
    [
        ("dict", "tuple", [*BY_ROWS, "{replicated}"], 8),
        ("batches of dicts", "dict", [*BY_ROWS, "{replicated}"], 8),
        ("one for all", "tuple", [*BY_ROWS, BY_ROWS[1]], 2),
        ("no minibatch", "tuple", [*BY_ROWS, BY_ROWS[1]], 2),
    ],
)
def test_every_column_is_split_as_its_spec_says(spmd, sums, case, form, specs, last):
    found = spmd["cases"][case]
    assert found["error"] is None
    assert (found["form"], found["specs"]) == (form, specs)
    assert found["shards"] == [[2] * 4, [2] * 4, [last] * 4]
    assert found["batches"] == sums


def test_without_sharding_every_device_holds_everything(spmd, sums):
    found = spmd["cases"]["none"]
    assert found["shards"] == [[8] * 4] * 3
    assert found["batches"] == sums


def test_strings_want_no_spec(spmd, sums):
    found = spmd["cases"]["strings"]
    assert found["batches"] == [batch[:2] for batch in sums]


def test_columns_of_a_dataloaders_lists_take_the_names_in_their_order(spmd, sums):
    found = spmd["cases"]["a DataLoader"]
    assert (found["form"], found["specs"], found["shards"]) == ("list", BY_ROWS, [[2] * 4] * 2)
    assert found["batches"] == [batch[:2] for batch in sums]


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("missing", "OptionError: sharding has no ShardingSpec for the column 'sample', only for 'image', 'label'"),
        ("other axes", "OptionError: the ShardingSpec of 'label' has 4 axes"),
        ("not divisible", "OptionError: a batch of 6 cannot be split over the 4 devices"),
    ],
)
def test_what_does_not_fit_is_an_error_before_the_first_step(spmd, case, message):
    found = spmd["cases"][case]
    assert found["batches"] == []
    assert found["error"].startswith(message)


def test_a_last_batch_that_cannot_be_split_is_raised_after_the_others(spmd):
    found = spmd["cases"]["a last batch"]
    assert len(found["batches"]) == 1
    assert "must be divisible by local runtime device count" in found["error"]


# Ranks that are threads


def exchange_all(meeting, ranks, size, rounds=1):
    """What each of `ranks` was given, or the error."""
    found = {}

    def run(rank):
        try:
            found[rank] = [meeting.exchange(b"%d of %d" % (rank, number), rank, size) for number in range(rounds)]
        except LoaderError as error:
            found[rank] = str(error)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return found


def test_ranks_meet_again_and_again():
    found = exchange_all(Rendezvous(), range(4), 4, rounds=50)
    rounds = [[b"%d of %d" % (rank, number) for rank in range(4)] for number in range(50)]
    assert [found[rank] for rank in range(4)] == [rounds] * 4


def test_a_rank_that_does_not_come_is_an_error_for_the_others_and_the_next_meeting_is_held():
    meeting = Rendezvous(patience_seconds=1)
    found = exchange_all(meeting, (0, 2), 3)
    assert list(found) in ([0, 2], [2, 0])
    for message in found.values():
        assert message.startswith("of 3 ranks only [0, 2] came")
    assert exchange_all(meeting, range(3), 3)[1] == [[b"0 of 0", b"1 of 0", b"2 of 0"]]


# torch_xla beside tensorflow


def run_python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=os.environ)


def test_tensorflow_first_is_an_error_that_says_so():
    loaded = "import sys; sys.modules['tensorflow.python._pywrap_tensorflow_internal'] = None"
    done = run_python(f"{loaded}; import tpufeed; tpufeed.Loader.to_xla(None)")
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("tpufeed.errors.UsageError: torch_xla cannot be imported after tensorflow")


@pytest.mark.long
def test_without_that_error_the_process_would_be_aborted():
    done = run_python("import tensorflow, tpufeed; tpufeed.Loader.to_xla(None)")
    assert "tpufeed.errors.UsageError: torch_xla cannot be imported after tensorflow" in done.stderr
    done = run_python("import tensorflow, torch_xla")
    assert done.returncode == -6
    assert "registered more than once" in done.stderr
    done = run_python(
        "import tpufeed; import tpufeed.loaders.xla.loader; import tensorflow as tf; print(int(tf.constant(1) + 1))"
    )
    assert (done.returncode, done.stdout) == (0, "2\n")
