"""Child processes: errors that arrive, how they ended, and that nothing they started stays."""

import errno
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.engines.contract import ROOT, is_running, wait_until
from tpufeed import errors
from tpufeed.errors import DatasetDamagedError, ImageError, LoaderError, MissingExtraError, TpufeedError
from tpufeed.processes.child import Child, ChildDiedError, Failure, stop_all

HERE = "tests.processes.test_child"


@pytest.fixture
def start():
    """Starts a child that runs a function of this file."""
    children = []

    def begin(function, context=None, **options):
        children.append(Child(f"{HERE}:{function}", **options))
        children[-1].begin(f"{HERE}:{function}", context)
        return children[-1]

    yield begin
    stop_all(children, 0.0)
    assert all(child.process.returncode is not None for child in children)


def fail(context, connection):
    connection.send(Failure.of(context))


def divide_by_zero(context, connection):
    try:
        connection.send(1 // 0)
    except ZeroDivisionError as error:
        connection.send(Failure.of(error, "it went wrong: "))


def end_by(number, connection):
    print("last words", flush=True)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), number) if number else os._exit(7)


def start_another(context, connection):
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        connection.send(process.pid)


def sleep_unheard(context, connection):
    sys.modules["__main__"]._LEAVE_SECONDS = 0.1  # after its launcher's death; 30 as a rule
    connection.send(os.getpid())
    time.sleep(600)


def send_bytes(sent, connection):
    os.write(connection.fileno(), sent)
    connection.recv()


def say_variable(name, connection):
    connection.send(os.environ.get(name))


KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, TpufeedError)]
ODD = {ImageError: ("too_large", "an image"), MissingExtraError: ("ray", "ray"), DatasetDamagedError: ("damaged", ())}


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_comes_to_the_launcher_as_what_it_is(kind):
    error = kind(*ODD.get(kind, ("what went wrong",)))
    came = pickle.loads(pickle.dumps(Failure.of(error))).error()
    assert type(came) is kind
    assert str(came) == str(error)


def test_an_error_of_a_class_that_the_launcher_may_not_have_comes_as_what_that_is_based_on(start):
    class Mine(ImageError):
        pass

    assert type(Failure.of(Mine("too_large", "mine")).error()) is ImageError
    with pytest.raises(ImageError, match=r"^yours$"):
        start("fail", ImageError("too_large", "yours")).receive()


def test_a_bug_comes_with_its_traceback(start):
    with pytest.raises(LoaderError, match=r"(?s)^it went wrong: .*in divide_by_zero.*ZeroDivisionError"):
        start("divide_by_zero").receive()


def test_what_cannot_be_imported_is_said(start):
    with pytest.raises(LoaderError, match="nothing_of_that_name"):
        start("nothing_of_that_name").receive()


@pytest.mark.parametrize(
    ("number", "said"),
    [(signal.SIGTERM, (-15, "by SIGTERM")), (40, (-40, "by signal 40")), (0, (7, "with exit code 7"))],
)
def test_a_child_that_dies_is_named_with_how_it_ended(start, number, said):
    child = start("end_by", number, apart=True)
    with pytest.raises(ChildDiedError):
        child.receive()
    assert child.ending() == said
    assert child.output() == "last words"
    child.send("anything")  # is no error: it shows when the child is listened to


def test_a_child_that_is_apart_ends_with_all_that_it_has_started(start):
    child = start("start_another", apart=True)
    pid = child.receive()
    assert is_running(pid)
    stop_all([child], 0.0)
    wait_until(lambda: not is_running(pid))


def test_a_child_that_reads_nothing_is_given_up(start):
    child = start("sleep_unheard", patience_seconds=0.2)
    child.receive()
    with pytest.raises(TimeoutError):
        child.send(bytes(8 << 20))


@pytest.mark.parametrize(
    ("sent", "said"), [(b"\0\0\x39\x80half", "in the middle of a message"), (b"\0\0\0\1?", "that is damaged (")]
)
def test_a_child_that_sends_what_is_no_message_is_named(start, sent, said):
    child = start("send_bytes", sent, patience_seconds=1.0)
    with pytest.raises(ChildDiedError):
        child.receive()
    code, how = child.ending()
    assert code is None
    assert said in how
    with pytest.raises(ChildDiedError):  # no second one is waited for
        child.receive()


def test_a_child_that_is_apart_ends_with_a_launcher_that_is_killed():
    """It ends although it reads from no socket meanwhile, and has its own process group."""
    program = (
        f"import time; from tpufeed.processes.child import Child; child = Child('{HERE}:sleep_unheard', apart=True); "
        f"child.begin('{HERE}:sleep_unheard', None); print(child.receive(), flush=True); time.sleep(600)"
    )
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as launcher:
        pid = int(launcher.stdout.readline())
        assert is_running(pid)
        launcher.kill()
    wait_until(lambda: not is_running(pid))


@pytest.mark.all
def test_a_worker_that_imports_torch_opens_no_device(start, monkeypatch):
    """torch_tpu sets the variable for its children, and would take the TPU from the training."""
    monkeypatch.setenv("TORCH_DEVICE_BACKEND_AUTOLOAD", "1")
    assert start("say_variable", "TORCH_DEVICE_BACKEND_AUTOLOAD").receive() == "0"
    assert start("say_variable", "TORCH_DEVICE_BACKEND_AUTOLOAD", one_thread=False).receive() == "1"


def test_a_process_that_cannot_start_is_named(monkeypatch):
    def fork_exec(*_):
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr("subprocess._fork_exec", fork_exec)
    monkeypatch.setattr("subprocess._USE_POSIX_SPAWN", False)
    with pytest.raises(LoaderError, match=r"worker process: .*ulimit -u"):
        Child(f"{HERE}:fail")


def test_a_path_among_the_places_of_modules_is_passed_over_as_python_does(start, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path, Path("/nowhere"), b"/nowhere"])
    child = start("end_by", 0)
    assert child.wait(20) == 7
