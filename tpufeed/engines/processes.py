"""Run tasks on the cores of this host, one at a time in each of several worker processes.

A task has to report progress now and then, as `build.worker.Output` does. A worker that is silent for too long, for
example because a network drive is gone, is killed and counts as dead.
"""

import logging
import signal
import sys
import time
import weakref
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from operator import add, neg
from pkgutil import resolve_name
from types import FrameType
from typing import Any

from tpufeed.engines.engine import NOTHING, Done, Event, Events, Job, Progress, note_death, task_name
from tpufeed.errors import TaskError, TpufeedError
from tpufeed.processes.child import Child, ChildDiedError, Failure, stop_all
from tpufeed.processes.limits import oom_kills, why_killed

_logger = logging.getLogger(__name__)

SILENCE_SECONDS = 600.0  # a worker that has a task and is silent for longer counts as dead
_ENTRY = "tpufeed.engines.processes:run_tasks"
_FINALIZER = weakref.finalize.__call__.__code__
_FINALIZER_SECONDS = 0.001  # retry interval while a finalizer runs
_LEAVE_SECONDS = 1.0  # for workers that are stopped in mid-task to remove temporary files
_LISTEN_SECONDS = 1.0
_IDLE = -1
_PREPARED = 8  # most workers to start in advance. Others start while the first ones work
_SILENCE_ADVICE = (
    "A drive, the network or one of your ops may be hanging. If one image takes that long, call tpufeed.cache.warmup "
    "with engine=ProcessEngine(workers, silence_seconds=...)"
)


class ProcessEngine:
    """An `Engine` of `workers` processes.

    A worker that has a task is killed if the launcher hears nothing from it for `silence_seconds`. One image with all
    its variants must take less.
    """

    def __init__(self, workers: int, silence_seconds: float = SILENCE_SECONDS) -> None:
        self.workers = workers
        self._silence_seconds = silence_seconds
        self._prepared: list[_Worker] = []
        self._running: list[_Worker] = []

    def describe(self) -> str:
        return ""

    @contextmanager
    def prepare(self, entry: str) -> Iterator[None]:
        # They import while the plan is made. `run` takes workers from this list, and stops them.
        self._prepared = [_Worker(entry) for _ in range(min(self.workers, _PREPARED))]
        try:
            yield
        finally:
            # If an error has left a `run` open, its workers end now and not when the garbage is collected.
            stop_all([*self._prepared, *self._running], _LEAVE_SECONDS, terminate=True)
            self._prepared, self._running = [], []

    def run(self, job: Job, tasks: Sequence[Any]) -> Events:
        pool = _Pool(job, tasks, self._prepared, self.workers)
        self._running = pool.workers
        try:
            while pool.give_tasks():
                yield from pool.listen()
                yield from pool.replace_silent(self._silence_seconds)
        finally:
            stop_all(pool.workers, _LEAVE_SECONDS, terminate=True)


class _Worker(Child):
    """A worker process, the number of its task, its progress on the task, and how long it has been silent."""

    task_number = _IDLE
    progress = NOTHING
    silent_seconds = 0.0


class _Pool:
    """Worker processes, and the tasks that wait for a worker."""

    def __init__(self, job: Job, tasks: Sequence[Any], prepared: list[_Worker], most: int) -> None:
        self.workers: list[_Worker] = []
        self._most, self._oom_kills = most, oom_kills()
        self._job, self._tasks, self._prepared = job, tasks, prepared
        self._waiting = deque(range(len(tasks)))
        self._deaths = Counter[str]()

    def give_tasks(self) -> bool:
        """Give waiting tasks to idle workers and start more if allowed. Return False if no worker is busy."""
        idle = [worker for worker in self.workers if worker.task_number == _IDLE]
        while self._waiting and (idle or len(self.workers) < self._most):
            if not idle:
                idle.append(self._prepared.pop() if self._prepared else _Worker(self._job.entry))
                self.workers += idle  # before anything is sent, so that it is stopped if that fails
                idle[0].begin(_ENTRY, self._job)
            worker, number = idle.pop(), self._waiting.popleft()
            worker.task_number, worker.progress, worker.silent_seconds = number, NOTHING, 0.0
            worker.send((number, self._tasks[number]))
        return any(worker.task_number != _IDLE for worker in self.workers)

    def listen(self) -> Events:
        """Yield what workers report within `_LISTEN_SECONDS`.

        Raises:
            TaskError: a task has failed, or too many workers have died at it.
        """
        by_descriptor = {worker.fileno(): worker for worker in self.workers}
        begun = time.monotonic()
        ready = wait(list(by_descriptor), _LISTEN_SECONDS)
        # Not more, even if this process was suspended for long (Ctrl-Z): its workers may have been suspended, too.
        listened = min(time.monotonic() - begun, _LISTEN_SECONDS)
        for worker in self.workers:
            worker.silent_seconds += listened
        for descriptor in ready:
            worker = by_descriptor[descriptor]  # type: ignore[index]  # wait returns what it was given
            worker.silent_seconds = 0.0
            try:
                event: Event = worker.receive()
            except ChildDiedError:
                yield self._replace_dead(worker)
                continue
            except TpufeedError as error:
                raise TaskError(f"{task_name(self._tasks[worker.task_number])}: {error}") from None
            if isinstance(event, Done):
                worker.task_number = _IDLE
            else:
                worker.progress = Progress(*map(add, worker.progress, event))
            yield event

    def _replace_dead(self, worker: _Worker) -> Progress:
        """Take a dead worker's task back, as `_take_back` does. Without memory, half of the workers continue."""
        code, how = worker.ending()
        advice = _SILENCE_ADVICE if code is None else "Out of memory? Try fewer --workers"
        if code == -signal.SIGKILL:
            advice, kills = f"{why_killed(self._oom_kills)} Try fewer --workers", oom_kills()
            if kills > self._oom_kills:
                self._most, self._oom_kills = max(1, min(self._most, len(self.workers)) // 2), kills
        number = worker.task_number
        lost = self._take_back(worker, how, advice)
        if number != _IDLE:
            name, ended = task_name(self._tasks[number]), "was killed" if code and code < 0 else "ended"
            _logger.warning("%s: a worker process %s %s. Another one starts over. %s", name, ended, how, advice)
        return lost

    def replace_silent(self, seconds: float) -> Iterator[Progress]:
        """Kill workers that have a task and have been silent for this long. Yields and raises as `listen` does."""
        for worker in [each for each in self.workers if each.task_number != _IDLE and each.silent_seconds >= seconds]:
            name = task_name(self._tasks[worker.task_number])
            death = f"killed after {seconds:g} s of silence"
            lost = self._take_back(worker, death, _SILENCE_ADVICE)
            _logger.warning("%s: a worker process was %s. Another one starts over. %s", name, death, _SILENCE_ADVICE)
            yield lost

    def _take_back(self, worker: _Worker, death: str, advice: str) -> Progress:
        """Stop a worker and put its task first in line. Return its progress as a negative number."""
        self.workers.remove(worker)
        stop_all([worker], _LEAVE_SECONDS, terminate=True)
        if worker.task_number == _IDLE:
            return NOTHING
        note_death(self._deaths, task_name(self._tasks[worker.task_number]), death, advice)
        # First in line again: a task that kills every worker ends the build now, not after hours with the others.
        self._waiting.appendleft(worker.task_number)
        return Progress(*map(neg, worker.progress))


def run_tasks(job: Job, connection: Connection) -> None:
    """Run tasks as they arrive, in a worker process, until the launcher's end of the socket closes."""
    function = resolve_name(job.entry)
    while True:
        number, task = connection.recv()
        signal.signal(signal.SIGTERM, _leave)
        try:
            function(job.context, task, connection.send)
        except Exception as error:  # noqa: BLE001  # the launcher raises it
            connection.send(Failure.of(error))
        else:
            connection.send(Done(number))
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # without a task there is nothing to clean up: it ends at once


def _leave(_: int, frame: FrameType | None) -> None:
    """Leave with an exception, so that temporary folders are removed. A second signal does not interrupt that."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while frame is not None:
        if frame.f_code is _FINALIZER:  # an exception in it would be printed and ignored
            signal.signal(signal.SIGALRM, _leave)
            signal.setitimer(signal.ITIMER_REAL, _FINALIZER_SECONDS)
            return
        frame = frame.f_back
    sys.exit(128 + signal.SIGTERM)
