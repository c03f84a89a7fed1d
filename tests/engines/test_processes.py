"""The contract for the engine of processes, and faults that only it meets."""

import gc
import os
import signal
import socket
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from tests.engines.contract import (
    PATIENCE_SECONDS,
    EngineContract,
    is_running,
    job,
    pids,
    processes,
    total,
    wait_until,
)
from tpufeed.engines.engine import Done, Progress
from tpufeed.engines.processes import ProcessEngine
from tpufeed.errors import TaskError
from tpufeed.processes.child import Child

HERE = Path(__file__).parent


STRANGERS = set()  # children that this process had when the test began, multiprocessing's resource_tracker, say


@pytest.fixture(autouse=True)
def _tasks_on_the_path(monkeypatch):
    monkeypatch.syspath_prepend(str(HERE))
    STRANGERS.clear()
    STRANGERS.update(pid for pid, parent, _ in processes() if parent == os.getpid())


def workers():
    """Return the ids of workers that the test has started, also of dead ones that are not collected yet."""
    return [pid for pid, parent, is_ours in processes() if parent == os.getpid() and is_ours and pid not in STRANGERS]


class TestProcesses(EngineContract):
    @pytest.fixture
    def engine(self):
        yield ProcessEngine(2)
        assert workers() == []


@pytest.mark.parametrize("leave", ["close", "throw"])
def test_leaving_early_stops_workers_in_mid_task(leave, tmp_path):
    events = ProcessEngine(2).run(job("run_for_ever", tmp_path), range(4))
    while len(pids(tmp_path)) < 2:
        next(events)
    assert sorted(workers()) == sorted(pids(tmp_path))
    if leave == "close":
        events.close()
    else:
        with pytest.raises(KeyboardInterrupt):
            events.throw(KeyboardInterrupt)
    assert workers() == []


def test_no_more_workers_are_started_than_there_are_tasks(tmp_path):
    list(ProcessEngine(8).run(job("note", tmp_path), range(2)))
    assert len({path.read_text() for path in tmp_path.glob("task-*")}) <= 2


def test_a_worker_that_is_told_to_leave_in_a_finalizer_leaves_without_a_traceback(tmp_path, capfd):
    events = list(ProcessEngine(1).run(job("stop_in_a_finalizer", tmp_path), range(4)))
    assert (tmp_path / "died").exists()
    assert sorted(event.number for event in events if isinstance(event, Done)) == list(range(4))
    assert "Traceback" not in capfd.readouterr().err


def test_a_killed_worker_is_replaced_and_its_progress_taken_back(tmp_path):
    events = list(ProcessEngine(2).run(job("die_once", tmp_path), range(5)))
    assert (tmp_path / "died").exists()
    assert sorted(event.number for event in events if isinstance(event, Done)) == list(range(5))
    assert Progress(100, 100, 100) in events
    assert total(events) == (3 * 5, 15 * 10, 5)


@pytest.mark.all
@pytest.mark.parametrize("out_of_memory", [True, False])
def test_a_killed_worker_is_said_and_without_memory_fewer_continue(out_of_memory, tmp_path, monkeypatch, caplog):
    kills = iter(range(1, 100) if out_of_memory else [0] * 100)
    for module in ("tpufeed.engines.processes", "tpufeed.processes.limits"):
        monkeypatch.setattr(f"{module}.oom_kills", lambda *_: next(kills))
    most = events = 0
    for _ in ProcessEngine(2).run(job("die_once_and_wait", tmp_path), range(8)):
        if caplog.messages:
            most, events = max(most, len(workers())), events + 1
        if most == 2 or (out_of_memory and events == 50):
            (tmp_path / "go").touch()
    assert most == (1 if out_of_memory else 2)
    (warning,) = caplog.messages
    assert warning.startswith("2: a worker process was killed by SIGKILL. ")
    assert ("system has killed it" in warning) == out_of_memory


@pytest.mark.parametrize(("function", "death"), [("die_always", "by SIGKILL"), ("exit_always", "with exit code 7")])
def test_a_task_at_which_workers_always_die_fails_in_the_end(function, death, tmp_path):
    with pytest.raises(TaskError, match=f"^0: 3 .*{death}"):
        list(ProcessEngine(2).run(job(function, tmp_path), [0]))
    if function == "die_always":
        assert (tmp_path / "deaths").read_text() == "xxx"


@pytest.mark.long  # one that falls silent once: faults/test_14_hung_workers.py
def test_a_task_at_which_workers_always_fall_silent_fails_in_the_end(tmp_path, caplog):
    with pytest.raises(TaskError, match=r"^0: 3 .*silence_seconds"):
        list(ProcessEngine(1, silence_seconds=1).run(job("stop_always", tmp_path), [0]))
    assert (tmp_path / "stops").read_text() == "x" * 3
    assert caplog.messages[0].startswith("0: ")
    assert workers() == []


def test_a_worker_that_hangs_up_and_lives_on_is_not_said_to_lack_memory(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(Child.ending, "__defaults__", (0.3,))
    with pytest.raises(TaskError, match="socket closed") as caught:
        list(ProcessEngine(1).run(job("hang_up_and_stay", tmp_path), [0]))
    for said in (str(caught.value), *caplog.messages):
        assert "may be hanging" in said
        assert "Out of memory" not in said


def test_a_worker_that_is_slow_but_says_so_is_left_alone_by_launchers_that_listen_and_that_do_not(tmp_path, caplog):
    unheard = ProcessEngine(1, silence_seconds=4).run(job("work_slowly", tmp_path), [0])
    first = next(unheard)
    assert total(ProcessEngine(1, silence_seconds=4).run(job("work_slowly", tmp_path), [1])) == (5, 0, 0)
    assert total([first, *unheard]) == (5, 0, 0)
    assert not caplog.messages


def test_workers_that_are_stopped_leave_no_temporary_folder(tmp_path):
    events = ProcessEngine(2).run(job("keep_a_folder", tmp_path), range(2))
    next(events), next(events)  # each worker says that it has its folder
    assert len(list(tmp_path.glob("tmp/*"))) == 2
    events.close()
    assert workers() == []
    assert not (tmp_path / "tmp").exists()


def test_a_run_that_an_error_has_left_open_ends_with_its_engines_context(tmp_path):
    engine = ProcessEngine(1)
    with engine.prepare("engine_tasks:run_for_ever"):
        events = engine.run(job("run_for_ever", tmp_path), [0])
        next(events)
        assert workers()
    assert workers() == []


def test_what_a_worker_cannot_import_is_said_with_the_way_out(tmp_path):
    script = f"""
import sys
from dataclasses import dataclass
from tpufeed.engines.engine import Job
from tpufeed.engines.processes import ProcessEngine
from tpufeed.errors import TaskError

@dataclass(frozen=True)
class Mine:
    folder: str = {str(tmp_path)!r}

try:
    list(ProcessEngine(2).run(Job("engine_tasks:note", Mine()), [1]))
except TaskError as error:
    print(error)
"""
    done = run_python([], tmp_path, script)
    assert done.returncode == 0, done.stderr
    assert "'Mine'" in done.stdout
    assert "into a module" in done.stdout
    assert "Traceback" not in done.stderr


PROGRAM = """
import sys
print("begun")
sys.path.append({here!r})
from tpufeed.engines.engine import Done, Job
from tpufeed.engines.processes import ProcessEngine
events = ProcessEngine(2).run(Job("engine_tasks:{function}", {folder!r}), range(4))
print(sum(isinstance(event, Done) for event in events), "done")
"""


def program(folder, function="note"):
    return PROGRAM.format(here=str(HERE), folder=str(folder), function=function)


def run_python(arguments, folder, text=None):
    command = [sys.executable, *map(str, arguments or ["-"])]
    return subprocess.run(
        command, input=text, cwd=folder, env=path_with(HERE), capture_output=True, text=True, check=False
    )


def path_with(folder):
    path = os.environ.get("PYTHONPATH")
    return dict(os.environ, PYTHONPATH=os.pathsep.join([str(folder), *([path] if path else [])]))


@pytest.mark.parametrize("way", ["stdin", "script"])
def test_a_main_without_a_guard_is_not_run_again(way, tmp_path):
    text = program(tmp_path)
    (tmp_path / "script.py").write_text(text)
    arguments = {"stdin": ["-"], "script": ["script.py"]}[way]
    done = run_python(arguments, tmp_path, text if way == "stdin" else None)
    assert (done.returncode, done.stdout, done.stderr) == (0, "begun\n4 done\n", "")
    assert len(list(tmp_path.glob("task-*"))) == 4


def test_a_module_of_the_working_folder_does_not_stand_in_for_pythons_own(tmp_path):
    """The command line does not look into the working folder; its workers should not either."""
    (tmp_path / "signal.py").write_text("raise SystemExit('not the signal module that you want')")
    (tmp_path / "elsewhere").mkdir()
    script = tmp_path / "elsewhere" / "script.py"
    script.write_text(program(tmp_path))
    done = run_python([script], tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "begun\n4 done\n", "")


FORK = """
import os, time
next(events)  # both workers are there
child = os.fork()
if not child:
    time.sleep(600)
    os._exit(0)
open({folder!r} + "/forked", "w").write(str(child))
print(sum(isinstance(event, Done) for event in events), "done")
"""


def test_workers_leave_when_the_launcher_is_killed(tmp_path):
    """They leave although a fork keeps the launcher's ends of the sockets open."""
    text = program(tmp_path, "run_for_ever").rpartition("print(")[0] + FORK.format(folder=str(tmp_path))
    launcher = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.DEVNULL)
    forked = tmp_path / "forked"
    wait_until(lambda: len(pids(tmp_path)) == 2 and forked.exists() and forked.read_text())
    launcher.kill()
    launcher.wait()
    wait_until(lambda: not any(map(is_running, pids(tmp_path))))
    child = int(forked.read_text())
    assert is_running(child)
    os.kill(child, signal.SIGKILL)


def test_a_worker_whose_launcher_died_before_it_began_leaves(tmp_path):
    """When it looks, its parent is another process, and a fork holds the other end of its socket."""
    ours, theirs = socket.socketpair()
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    command = [
        sys.executable,
        "-m",
        "tpufeed.processes.child_main",
        str(theirs.fileno()),
        "engine_tasks:note",
        str(gone.pid),
    ]
    with ours, theirs, subprocess.Popen(command, pass_fds=[theirs.fileno()], env=path_with(HERE)) as worker:
        try:
            assert worker.wait(PATIENCE_SECONDS) == 0
        finally:
            worker.kill()


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("function", ["note", "run_for_ever", "refuse_third"])
def test_no_run_waits_for_the_garbage_collector(function, tmp_path):
    """Run to its end, left open, and failed."""
    before = len(os.listdir("/proc/self/fd"))
    gc.disable()
    try:
        run_and_forget(function, tmp_path)
        assert workers() == []
        assert len(os.listdir("/proc/self/fd")) == before
    finally:
        gc.enable()


def run_and_forget(function, folder):
    events = ProcessEngine(2).run(job(function, folder), [1, 2, 3])
    next(events)
    if function != "run_for_ever":
        with pytest.raises(TaskError) if function == "refuse_third" else nullcontext():
            list(events)


CLOSED = {"stdout": ">&-", "all": "<&- >&- 2>&-"}


@pytest.mark.parametrize("closed", CLOSED.values(), ids=CLOSED)
def test_standard_streams_that_are_closed(closed, tmp_path):
    """No file or socket of a worker gets their numbers."""
    command = f'exec "$0" -c "$1" {closed}'
    code = subprocess.run(["bash", "-c", command, sys.executable, program(tmp_path, "look_at_streams")], check=False)
    assert code.returncode == 0
    looked = [path.read_text() for path in tmp_path.glob("streams-*")]
    assert len(looked) == 4
    assert {"socket" in each for each in looked} == {False}
    assert {len(each.splitlines()) for each in looked} == {3}


def test_ctrl_c_while_workers_start_is_the_launchers_alone_to_answer(tmp_path):
    """A worker that has not run its first line yet would print a traceback."""
    (tmp_path / "sitecustomize.py").write_text(
        "import pathlib, sys, time\n"
        "if 'tpufeed.processes.child_main' in sys.orig_argv:\n"
        f"    pathlib.Path({str(tmp_path)!r}, 'starting').touch()\n"
        "    time.sleep(0.5)\n"
    )
    launcher = subprocess.Popen(
        [sys.executable, "-c", f"try:\n  exec({program(tmp_path)!r})\nexcept KeyboardInterrupt:\n  print('stopped')"],
        env=path_with(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    wait_until((tmp_path / "starting").exists)
    os.killpg(launcher.pid, signal.SIGINT)
    assert launcher.communicate(timeout=PATIENCE_SECONDS) == ("begun\nstopped\n", "")
    assert not list(tmp_path.glob("task-*"))


def test_workers_are_deaf_to_ctrl_c_while_they_work(tmp_path):
    events = ProcessEngine(1).run(job("run_for_ever", tmp_path), [0])
    next(events)
    (pid,) = pids(tmp_path)
    os.kill(pid, signal.SIGINT)
    for _ in range(20):
        assert isinstance(next(events), Progress)
    assert is_running(pid)
    events.close()
