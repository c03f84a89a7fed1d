"""torch_xla's part of to_xla: ranks that are threads, and torch_xla beside tensorflow."""

import os
import re
import subprocess
import sys
import threading

import pytest

from tpufeed.errors import LoaderError
from tpufeed.stream.rank_check import Rendezvous

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
        thread.join(200)
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
        assert message.startswith("of 3 ranks only [0, 2]")
    assert exchange_all(meeting, range(3), 3)[1] == [[b"0 of 0", b"1 of 0", b"2 of 0"]]


# torch_xla beside tensorflow


def run_python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=os.environ)


def test_tensorflow_first_is_an_error_that_says_so():
    loaded = "import sys; sys.modules['tensorflow.python._pywrap_tensorflow_internal'] = None"
    done = run_python(f"{loaded}; import tpufeed; tpufeed.Loader.to_xla(None)")
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert re.match("tpufeed.errors.UsageError: .*tensorflow", last)


@pytest.mark.long
def test_without_that_error_the_process_would_be_aborted():
    done = run_python("import tensorflow, tpufeed; tpufeed.Loader.to_xla(None)")
    assert "tpufeed.errors.UsageError" in done.stderr
    done = run_python("import tensorflow, torch_xla")
    assert done.returncode == -6
    assert "registered more than once" in done.stderr
    done = run_python(
        "import tpufeed; import tpufeed.adapters.xla.loader; import tensorflow as tf; print(int(tf.constant(1) + 1))"
    )
    assert (done.returncode, done.stdout) == (0, "2\n")
