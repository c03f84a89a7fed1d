"""Tasks on the cores of this host, one at a time in each of several worker processes.

Workers talk over a socket pair; when the launcher dies, its end closes and they leave.

A task has to say something now and then, as `ProgressMeter` does with every image. A worker that says nothing for long,
on a network drive that is gone, say, is killed and counts as dead.
"""

import logging
import signal
import subprocess
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import wait
from typing import Any

from tpufeed.engines.engine import NOTHING, Deaths, Done, Event, Job, Progress, task_name
from tpufeed.engines.launch import launch_worker
from tpufeed.errors import TaskError

_logger = logging.getLogger(__name__)

SILENCE_SECONDS = 600.0  # of a worker that has a task; then it counts as dead
_EXIT_SECONDS = 5.0  # for a worker that has closed its end, or was killed, to be gone, dumping its core perhaps
_LEAVE_SECONDS = 1.0  # for those that are told to go in mid-task, all at once, to remove what is temporary
_LISTEN_SECONDS = 1.0
_IDLE = -1
_PREPARED = 8  # workers, at the most: later ones start while the first ones work
_SILENCE_ADVICE = (
    "Does a drive or the network not answer, or an op of yours not return? Where one image takes so long, call "
    "tpufeed.cache.warmup with engine=ProcessEngine(workers, silence_seconds=...)"
)


class ProcessEngine:
    """An `Engine` of `workers` processes.

    A worker of which nothing is heard for `silence_seconds` while it has a task, and the launcher listens, is killed:
    more than one image takes with all its variants.
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
        self._prepared = [_Worker(entry) for _ in range(min(self.workers, _PREPARED))]
        try:
            yield
        finally:
            # Where an error has left a `run` open, its workers go now and not when somebody collects the garbage.
            _stop_all([*self._prepared, *self._running])
            self._prepared, self._running = [], []

    def run(self, job: Job, tasks: Sequence[Any]) -> Iterator[Event]:
        pool = _Pool(job, tasks, self._prepared)
        self._running = pool.workers
        try:
            while pool.start_waiting(self.workers):
                for worker, message in pool.receive():
                    if isinstance(message, str):
                        raise TaskError(f"{task_name(tasks[worker.task_number])}: {message}")
                    yield pool.bury(worker) if message is None else message
                for worker in pool.silent(self._silence_seconds):
                    yield pool.bury(worker, self._silence_seconds)
        finally:
            _stop_all(pool.workers)


class _Pool:
    """Worker processes and the tasks that wait for one."""

    def __init__(self, job: Job, tasks: Sequence[Any], prepared: "list[_Worker]") -> None:
        self.workers: list[_Worker] = []
        self._prepared = prepared
        self._job = job
        self._tasks = tasks
        self._waiting = deque(range(len(tasks)))
        self._deaths = Deaths(tasks)

    def start_waiting(self, most: int) -> bool:
        """Hand waiting tasks to idle workers, `most` workers at the most; False when nothing is left to wait for."""
        idle = [worker for worker in self.workers if worker.task_number == _IDLE]
        while self._waiting and (idle or len(self.workers) < most):
            if not idle:
                idle.append(self._prepared.pop() if self._prepared else _Worker(self._job.entry))
                idle[0].begin(self._job)
                self.workers += idle
            number = self._waiting.popleft()
            idle.pop().give(number, self._tasks[number])
        return any(worker.task_number != _IDLE for worker in self.workers)

    def receive(self) -> Iterator[tuple["_Worker", Event | str | None]]:
        """What workers have sent: events, the message of a failure, or None from one that is dead."""
        by_connection = {worker.connection: worker for worker in self.workers}
        begun = time.monotonic()
        ready = wait(list(by_connection), _LISTEN_SECONDS)
        # No more than that, however long this process stood still, by Ctrl-Z say: its workers may have, too.
        listened = min(time.monotonic() - begun, _LISTEN_SECONDS)
        for worker in self.workers:
            worker.silent_seconds += listened
        for connection in ready:
            worker = by_connection[connection]  # type: ignore[index]  # wait returns what it was given
            yield worker, worker.receive()

    def silent(self, seconds: float) -> list["_Worker"]:
        """Workers that have a task and have said nothing for so long."""
        return [worker for worker in self.workers if worker.task_number != _IDLE and worker.silent_seconds >= seconds]

    def bury(self, worker: "_Worker", silent_seconds: float | None = None) -> Progress:
        """Give the task of a worker that is dead, or silent for so long, to another one.

        Returns:
            Its progress, taken back.

        Raises:
            TaskError: that has been tried often enough.
        """
        self.workers.remove(worker)
        number = worker.task_number
        if silent_seconds is None:
            death, advice = worker.end(_EXIT_SECONDS), "Out of memory? Try fewer --workers"
        else:
            worker.dismiss()
            worker.end(_LEAVE_SECONDS)
            death, advice = f"killed after it had said nothing for {silent_seconds:g} s", _SILENCE_ADVICE
        if number == _IDLE:
            return NOTHING
        name = self._deaths.note(number, death, advice)
        if silent_seconds is not None:
            _logger.warning("%s: a worker process was %s; another one begins anew. %s", name, death, advice)
        self._waiting.appendleft(number)
        return NOTHING.minus(worker.progress)


class _Worker:
    """A worker process, the number of the task that it has, and how far it is with that."""

    def __init__(self, entry: str) -> None:
        self.task_number = _IDLE
        self.progress = NOTHING
        self.silent_seconds = 0.0
        self._process, self.connection = launch_worker(entry)

    def begin(self, job: Job) -> None:
        """Say what its tasks belong to."""
        with suppress(OSError):  # a worker that is dead already shows as such when it is asked for a message
            self.connection.send(job)

    def give(self, number: int, task: Any) -> None:
        """Hand over a task."""
        self.task_number = number
        self.progress = NOTHING
        self.silent_seconds = 0.0
        with suppress(OSError):
            self.connection.send((number, task))

    def receive(self) -> Event | str | None:
        """An event, the message of a failure, or None from a worker that is dead."""
        self.silent_seconds = 0.0
        try:
            message: Event | str = self.connection.recv()
        except (EOFError, OSError):
            return None
        if isinstance(message, Done):
            self.task_number = _IDLE
        elif isinstance(message, Progress):
            self.progress = self.progress.plus(message)
        return message

    def dismiss(self) -> None:
        """Tell it to leave, however far it is. It removes what is temporary first."""
        self.connection.close()
        self._process.terminate()

    def end(self, patience_seconds: float) -> str:
        """Kill it where it does not leave by itself, and say how it ended."""
        self.connection.close()
        if self.wait(patience_seconds) is None:
            self.kill()
        code = self.wait(_EXIT_SECONDS)
        if code is None:
            return "not even by SIGKILL"
        return f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"

    def wait(self, seconds: float) -> int | None:
        """What it ended with, or None where it has not."""
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(max(0.0, seconds))
        return None

    def kill(self) -> None:
        """Whatever it does. One that waits in the kernel for a drive that does not answer goes on all the same."""
        self._process.kill()


def _stop_all(workers: "Sequence[_Worker]") -> None:
    """All at the same time."""
    for worker in workers:
        worker.dismiss()
    for seconds in (_LEAVE_SECONDS, _EXIT_SECONDS):
        deadline = time.monotonic() + seconds
        for worker in workers:
            worker.wait(deadline - time.monotonic())
        for worker in workers:
            worker.kill()
