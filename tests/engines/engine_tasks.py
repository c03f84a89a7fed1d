"""What engines run in these tests; worker processes import it by name. `context` is a folder for traces."""

import os
import signal
import socket
import sys
import time
import weakref
from pathlib import Path

from tpufeed.engines.engine import Progress, ReportProgress
from tpufeed.errors import StoreError
from tpufeed.storage.local import temporary_folder


def nothing(context: object, task: object, report_progress: ReportProgress) -> None:
    """Do nothing: what is left is the cost of the engine."""


def note(context: str, task: int, report_progress: ReportProgress) -> None:
    """Leave a trace and report it in two steps."""
    report_progress(Progress(1, 10 * task, 0))
    with Path(context, f"task-{task}").open("a") as file:
        file.write(f"{os.getpid()}\n")
    report_progress(Progress(2, 5 * task, 1))


def note_slowly(context: str, task: int, report_progress: ReportProgress) -> None:
    note(context, task, report_progress)
    time.sleep(0.1)


def refuse_third(context: str, task: int, report_progress: ReportProgress) -> None:
    if task == 3:
        raise StoreError("the disk is on fire")
    note(context, task, report_progress)


def divide_by_zero(context: str, task: int, report_progress: ReportProgress) -> None:
    report_progress(Progress(1 // 0, 0, 0))


def stop_in_a_finalizer(context: str, task: int, report_progress: ReportProgress) -> None:
    """Tell task 2 to leave while it frees memory, the first time that it runs; it would take long otherwise."""
    marker = Path(context, "died")
    if task == 2 and not marker.exists():
        marker.touch()
        memory = lambda: None  # noqa: E731  # anything that can be let go of
        weakref.finalize(memory, os.kill, os.getpid(), signal.SIGTERM)
        del memory
        time.sleep(60)
    note(context, task, report_progress)


def die_once(context: str, task: int, report_progress: ReportProgress) -> None:
    """Kill the process of task 2 halfway, the first time that it runs."""
    marker = Path(context, "died")
    if task == 2 and not marker.exists():
        report_progress(Progress(100, 100, 100))
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    note(context, task, report_progress)


def die_once_and_wait(context: str, task: int, report_progress: ReportProgress) -> None:
    """The same; from then on tasks report progress until there is a file `go`."""
    die_once(context, task, report_progress)
    while Path(context, "died").exists() and not Path(context, "go").exists():
        time.sleep(0.01)
        report_progress(Progress(0, 0, 0))


def die_always(context: str, task: int, report_progress: ReportProgress) -> None:
    with Path(context, "deaths").open("a") as file:
        file.write("x")
    os.kill(os.getpid(), signal.SIGKILL)


def exit_always(context: str, task: int, report_progress: ReportProgress) -> None:
    os._exit(7)


def stop_always(context: str, task: int, report_progress: ReportProgress) -> None:
    """Stand still, as on a dead network drive."""
    report_progress(Progress(1, 1, 0))
    with Path(context, "stops").open("a") as file:
        file.write("x")
    os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(600)  # this thread may run for another moment


def hang_up_and_stay(context: str, task: int, report_progress: ReportProgress) -> None:
    """Say nothing any more, and live on though told to end: as what waits for a dead drive."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    socket.socket(fileno=os.dup(int(sys.argv[1]))).shutdown(socket.SHUT_RDWR)
    time.sleep(600)


def work_slowly(context: str, task: int, report_progress: ReportProgress) -> None:
    """Report each image; all of them together take longer than a worker may be silent."""
    for _ in range(5):
        time.sleep(1)
        report_progress(Progress(1, 0, 0))


def keep_a_folder(context: str, task: int, report_progress: ReportProgress) -> None:
    """Work silently in a temporary folder."""
    with temporary_folder(Path(context, "tmp")):
        report_progress(Progress(0, 0, 0))
        time.sleep(600)


def look_at_streams(context: str, task: int, report_progress: ReportProgress) -> None:
    """Write down what descriptors 0, 1 and 2 are."""
    streams = [str(Path(f"/proc/self/fd/{number}").readlink()) for number in range(3)]
    Path(context, f"streams-{task}").write_text("\n".join(streams))


def run_for_ever(context: str, task: int, report_progress: ReportProgress) -> None:
    """Write down the process id, then work and report progress for ever."""
    Path(context, f"pid-{os.getpid()}").touch()
    while True:
        time.sleep(0.01)
        report_progress(Progress(1, 1, 0))
