"""What runs on the nodes of a Ray cluster.

It goes there whole, not by name: a node may have no tpufeed, or another one. So nothing of tpufeed is imported at the
top, and what comes and goes is plain data.

Tasks are told to stop by way of the mailbox: `ray.cancel` can bring the launcher down (Ray 2.60, a task that is being
handed to a worker at this moment: "Tried to complete task that was not pending").
"""

import os
import platform
import signal
import socket
import threading
from contextlib import suppress
from dataclasses import asdict
from typing import Any

_ANSWER_SECONDS = 10.0  # of the mailbox
_LEAVE_SECONDS = 2.0  # for a task that is told to go, to remove what is temporary
_STOP = signal.SIGUSR2  # Ray blocks SIGINT in its workers
_ONE_THREAD = ("OPENCV_FOR_THREADS_NUM", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")  # as `launch` has it

# Where an attempt runs, as (node, process), how often it has reported progress, and how much in all.
Word = tuple[tuple[str, int], int, tuple[int, int, int]]


class Mailbox:
    """How far attempts at tasks are, of each the last word only, and which of them nobody wants any more."""

    def __init__(self) -> None:
        self._said: dict[int, Word] = {}
        self._dropped: set[int] = set()
        self._closed = False

    def tell(self, attempt: int, word: Word) -> bool:
        """Say how far an attempt is. Returns whether it should go on."""
        self._said[attempt] = word
        return not self._closed and attempt not in self._dropped

    def collect(self) -> dict[int, Word]:
        """What was said since the last time."""
        said, self._said = self._said, {}
        return said

    def drop(self, attempt: int) -> None:
        """Nobody wants it any more."""
        self._dropped.add(attempt)

    def close(self) -> None:
        """Nobody wants any of them any more."""
        self._closed = True


def look(launcher: str, job: bytes, task: bytes) -> dict[str, Any]:
    """The fields of a `HostView` of this host, for a launcher with that tpufeed."""
    view = _describe()
    if view["tpufeed"] != launcher:
        return view
    from tpufeed.engines.hosts import view_here

    return asdict(view_here(job, task))


def kill(process: int) -> None:
    """End a worker of this node that does not listen."""
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)


def work(launcher: str, telling: tuple[Any, int, float], job: bytes, task: bytes) -> dict[str, Any]:
    """Run a task; `telling` is what a `_Teller` is made of.

    Returns:
        `view` where this host cannot, as `look` has it; nothing where nobody wants it; else `failure`, a message or
        None, with `totals` and `node`.
    """
    view = _describe()
    if view["tpufeed"] != launcher:
        return {"view": view}
    for name in _ONE_THREAD:
        os.environ.setdefault(name, "1")
    from tpufeed.engines.hosts import run_pickled

    teller = _Teller(*telling)
    signal.signal(_STOP, _stop)
    try:
        with teller:
            if not teller.wanted:
                return {}
            failure = run_pickled(job, task, teller.count)
    except _Unwanted:
        return {}
    return {"failure": failure, "totals": teller.totals, "node": teller.place[0]}


class _Unwanted(BaseException):
    """Raised in the midst of a task, so that temporary folders are removed on the way."""


def _stop(_number: int, _frame: object) -> None:
    raise _Unwanted


class _Teller:
    """Tells the mailbox how far an attempt is, and ends it where it should not go on. Used within `with`, once.

    `seconds` pass between one word and the next; the last one is the task's result.
    """

    def __init__(self, mailbox: Any, attempt: int, seconds: float) -> None:
        self.totals = (0, 0, 0)
        self.place = ("", 0)
        self.wanted = True
        self._mailbox, self._attempt, self._seconds = mailbox, attempt, seconds
        self._reports = 0

    def __enter__(self) -> None:
        import ray

        self._ray, self.place = ray, (ray.get_runtime_context().get_node_id(), os.getpid())
        self._lock, self._ended = threading.Lock(), threading.Event()
        self._tell()
        if self.wanted:
            threading.Thread(target=self._go_on_telling, name="tpufeed-teller", daemon=True).start()

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._ended.set()

    def count(self, progress: tuple[int, int, int]) -> None:
        """Of the task. Thread-safe."""
        with self._lock:
            images, size, rejects = self.totals
            self.totals = images + progress[0], size + progress[1], rejects + progress[2]
            self._reports += 1

    def _tell(self) -> None:
        word = self.place, self._reports, self.totals
        try:
            self.wanted = self._ray.get(self._mailbox.tell.remote(self._attempt, word), timeout=_ANSWER_SECONDS)
        except self._ray.exceptions.ActorDiedError:  # the launcher has ended it
            self.wanted = False
        except self._ray.exceptions.RayError:  # it is being started again: the work goes on
            return

    def _go_on_telling(self) -> None:
        while not self._ended.wait(self._seconds):
            self._tell()
            if not self.wanted:
                break
        with self._lock:
            if self._ended.is_set():
                return
            signal.pthread_kill(threading.main_thread().ident or 0, _STOP)
        if not self._ended.wait(_LEAVE_SECONDS):
            os._exit(1)


def _describe() -> dict[str, Any]:
    view: dict[str, Any] = {"host": socket.gethostname(), "python": platform.python_version(), "tpufeed": None}
    try:
        import tpufeed
    except ImportError as error:
        return {**view, "problem": str(error)}
    return {**view, "tpufeed": tpufeed.__version__}
