"""Forks of a fork server: what they have, how they ended, and that none stays."""

import errno
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from multiprocessing import reduction
from pathlib import Path

import pytest

from tests.engines.contract import ROOT, is_running, wait_until
from tests.processes.test_child import end_by, fail, sleep_unheard
from tpufeed.errors import LoaderError
from tpufeed.processes.child import ChildDiedError, Fork, ForkServer, stop_all

__all__ = ["end_by", "fail", "sleep_unheard"]  # children find them here

HERE = "tests.processes.test_child_main"


@pytest.fixture
def serve():
    """Starts a fork server, whose forks end with the test."""
    servers, forks = [], []

    def begin(prepare, context=None, **options):
        servers.append(ForkServer(f"{HERE}:fail", f"{HERE}:{prepare}", context, **options))

        def fork(function, context=None):
            forks.append(Fork(servers[-1]))
            forks[-1].begin(f"{HERE}:{function}", context)
            return forks[-1]

        return servers[-1], fork

    yield begin
    stop_all(forks, 0.0)
    stop_all(servers, 5.0)
    assert all(server.process.returncode is not None for server in servers)


LEFT = []  # by `leave`


def leave(context):
    import numpy.random  # noqa: F401

    LEFT.append(context)


def say_what_is_left(_, connection):
    from numpy import random

    connection.send((os.getpid(), os.getppid(), LEFT, random.random()))
    connection.recv()


def start_a_stranger(_):
    subprocess.Popen(["sleep", "0.2"])


def have_no_room(_):
    def fork():
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    os.fork = fork


def have_no_thread(_):
    def start(_):
        raise RuntimeError("can't start new thread")  # as Python says it

    threading.Thread.start = start


def acknowledge(_):
    reduction.ACKNOWLEDGE = True


def send_a_stray_byte(_):
    os.write(int(sys.argv[1]), b"A")


def stop_itself(_, connection):
    connection.send(os.getpid())
    os.kill(os.getpid(), signal.SIGSTOP)


def test_forks_have_what_was_prepared_and_random_numbers_of_their_own(serve):
    server, fork = serve("leave", {"shared": 1})
    children = [fork("say_what_is_left") for _ in range(3)]
    found = [child.receive() for child in children]
    assert [process for process, *_ in found] == [child.process.pid for child in children]
    assert {parent for _, parent, *_ in found} == {server.process.pid}
    assert [left for *_, left, _ in found] == [[{"shared": 1}]] * 3
    assert len({drawn for *_, drawn in found}) == 3


@pytest.mark.all
def test_descriptors_cross_as_python_3_14_sends_them(serve, monkeypatch):
    """Its `send_handle` waits for a byte, and finds the news of the fork before."""
    monkeypatch.setattr(reduction, "ACKNOWLEDGE", True, raising=False)
    _, fork = serve("acknowledge")
    children = [fork("say_what_is_left") for _ in range(3)]
    assert len({child.receive()[0] for child in children}) == 3


def test_a_server_whose_stream_is_off_by_a_byte_is_waited_for_no_longer_than_it_may_take(serve):
    _, fork = serve("send_a_stray_byte", patience_seconds=1.0)
    child = fork("say_what_is_left")
    assert child.receive()[0] > 0
    assert child.process.pid == 0
    assert child.wait(0.1) is None


def test_a_fork_needs_no_descriptors_but_those_of_its_socket(serve):
    _, fork = serve("leave")
    most = resource.getrlimit(resource.RLIMIT_NOFILE)
    # What other tests have closed leaves gaps below the descriptors that are open.
    highest, filled = max(map(int, os.listdir("/proc/self/fd"))), [os.dup(0)]
    while filled[-1] < highest:
        filled.append(os.dup(0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (filled[-1] + 2, most[1]))
    os.close(filled.pop())
    try:
        child = fork("say_what_is_left")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, most)
        for descriptor in filled:
            os.close(descriptor)
    assert child.receive()[0] == child.process.pid


@pytest.mark.all
def test_a_fork_ends_alone(serve):
    _, fork = serve("leave")
    first, second = fork("say_what_is_left"), fork("say_what_is_left")
    for child in (first, second):
        child.receive()
    first.close()  # no other process has this end
    assert first.wait(20) == 0
    assert second.wait(0) is None
    second.send("go on")
    assert second.wait(20) == 0


@pytest.mark.parametrize(("number", "said"), [(signal.SIGTERM, (-15, "by SIGTERM")), (0, (7, "with exit code 7"))])
def test_a_fork_that_dies_is_named_with_how_it_ended(serve, number, said, capfd):
    _, fork = serve("leave")
    child = fork("end_by", number)
    with pytest.raises(ChildDiedError):
        child.receive()
    assert child.ending() == said
    child.kill()  # is no error


@pytest.mark.all
def test_a_fork_that_does_not_leave_is_killed(serve):
    _, fork = serve("leave")
    child = fork("stop_itself")
    process = child.receive()
    stop_all([child], 0.1)
    assert not is_running(process)
    assert child.ending() == (-9, "by SIGKILL")


def test_a_fork_that_does_not_leave_is_killed_though_ctrl_c_comes_meanwhile(serve):
    def interrupt(*_):
        raise KeyboardInterrupt

    _, fork = serve("leave")
    child = fork("stop_itself")
    process = child.receive()
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(KeyboardInterrupt):
            stop_all([child], 30)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert child.wait(5) == -signal.SIGKILL
    assert not is_running(process)


@pytest.mark.all
def test_a_worker_is_killed_before_its_launcher_when_memory_runs_out(serve):
    server, fork = serve("leave")
    scores = [
        int(Path(f"/proc/{process}/oom_score_adj").read_text())
        for process in (fork("stop_itself").receive(), server.process.pid, os.getpid())
    ]
    assert scores[:2] == [min(1000, scores[2] + 1000)] * 2


def test_a_system_without_room_for_a_fork_is_said(serve):
    _, fork = serve("have_no_room")
    child = fork("say_what_is_left")
    with pytest.raises(LoaderError, match="worker process: "):
        child.receive()
    assert child.process.pid == 0
    assert child.wait(20) == 1


def test_a_system_without_room_for_a_thread_is_said(serve):
    _, fork = serve("have_no_thread")
    child = fork("say_what_is_left")
    with pytest.raises(LoaderError, match=r"thread.*`ulimit -u`"):
        child.receive()
    assert child.wait(20) == 0


@pytest.mark.all
def test_what_a_fork_cannot_import_is_said(serve):
    _, fork = serve("leave")
    with pytest.raises(LoaderError, match="nothing_of_that_name"):
        fork("nothing_of_that_name").receive()


def test_forks_end_with_their_server(serve):
    server, fork = serve("leave")
    child = fork("stop_itself")
    process = child.receive()
    server.process.kill()
    wait_until(lambda: not is_running(process))
    with pytest.raises(ChildDiedError):
        child.receive()
    assert child.ending() == (-9, "by SIGKILL")
    assert fork("say_what_is_left").ending() == (-9, "by SIGKILL")


def test_a_server_that_cannot_begin_shows_in_each_of_its_forks(serve):
    _, fork = serve("nothing_of_that_name")
    for _ in range(2):
        child = fork("say_what_is_left")
        with pytest.raises(LoaderError, match="nothing_of_that_name"):
            child.receive()
        assert child.ending() == (1, "with exit code 1")


@pytest.mark.all
def test_a_child_of_the_interpreter_itself_is_no_fork(serve):
    server, fork = serve("start_a_stranger")
    child = fork("say_what_is_left")
    child.receive()
    wait_until(
        lambda: not Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split()[1:]
    )
    child.send("go on")
    assert child.wait(20) == 0
    assert server.wait(0) is None


def test_a_fork_that_is_slow_to_leave_may_where_the_launcher_and_another_fork_are_gone(tmp_path):
    kill_the_launcher_of("leave_slowly", [(number, str(tmp_path)) for number in range(2)])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1"]


def leave_slowly(context, connection):
    number, folder = context
    connection.send(os.getpid())
    with suppress(EOFError):
        connection.recv()
    time.sleep(number)
    Path(folder, str(number)).touch()


@pytest.mark.first_cases(2)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2])
def test_forks_and_their_server_survive_signals_that_mean_the_launcher(serve, number):
    server, fork = serve("leave")
    os.kill(server.process.pid, number)  # as soon as it can be sent
    child = fork("say_what_is_left")
    assert child.process.pid > 0  # or else the signal is this process's
    os.kill(child.process.pid, number)
    assert child.receive()[0] == child.process.pid


def test_a_server_and_its_forks_end_with_a_launcher_that_is_killed():
    kill_the_launcher_of("sleep_unheard", [None])


def kill_the_launcher_of(function, contexts):
    """Have a fork for each context send its process from this function, kill what launched them; all of them end."""
    program = (
        f"import time; from tpufeed.processes.child import Fork, ForkServer; server = ForkServer('{HERE}:fail', "
        f"'{HERE}:leave', None); forks = [Fork(server) for _ in {contexts!r}]; "
        f"[fork.begin('{HERE}:{function}', context) for fork, context in zip(forks, {contexts!r})]; "
        "print(server.process.pid, *[fork.receive() for fork in forks], flush=True); time.sleep(600)"
    )
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as launcher:
        started = [int(word) for word in launcher.stdout.readline().split()]
        assert all(map(is_running, started))
        launcher.kill()
    wait_until(lambda: not any(map(is_running, started)))
