"""Tasks on the cores of this host, one at a time in each of several worker processes.

Workers are started afresh as `python -m tpufeed.engines.worker`: nothing is forked, and the user's `__main__` is not
imported again. They talk over a socket pair; when the launcher dies, its end closes and they leave.
"""

import os
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from typing import Any

from tpufeed.engines.engine import Done, Event, Job, Progress, task_name
from tpufeed.errors import TaskError

_DEATHS_ALLOWED = 2  # of workers at one task: a killed worker says little of the task, three in a row do
_EXIT_SECONDS = 5.0  # for a worker that has closed its end to be gone, dumping its core perhaps
_LEAVE_SECONDS = 0.05  # for one that is told to go in mid-task
_IDLE = -1
_PREPARED = 8  # workers, at the most: later ones start while the first ones work
# A worker is a core's worth: libraries that would start a thread a core have to be told, before they are imported.
_ONE_THREAD = dict.fromkeys(("OPENCV_FOR_THREADS_NUM", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


class ProcessEngine:
    """An `Engine` of `workers` processes."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._prepared: list[_Worker] = []

    @contextmanager
    def prepare(self, entry: str) -> Iterator[None]:
        self._prepared = [_Worker(entry) for _ in range(min(self.workers, _PREPARED))]
        try:
            yield
        finally:
            _stop_all(self._prepared)
            self._prepared = []

    def run(self, job: Job, tasks: Sequence[Any]) -> Iterator[Event]:
        pool = _Pool(job, tasks, self._prepared)
        try:
            while pool.start_waiting(self.workers):
                for worker, message in pool.receive():
                    if isinstance(message, str):
                        raise TaskError(f"{task_name(tasks[worker.task_number])}: {message}")
                    yield pool.bury(worker) if message is None else message
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
        self._deaths = [0] * len(tasks)

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
        for connection in wait(list(by_connection)):
            worker = by_connection[connection]  # type: ignore[index]  # wait returns what it was given
            yield worker, worker.receive()

    def bury(self, worker: "_Worker") -> Progress:
        """Give the task of a dead worker to another one; returns its progress, taken back.

        Raises:
            TaskError: that has been tried often enough.
        """
        self.workers.remove(worker)
        death, number = worker.stop(_EXIT_SECONDS), worker.task_number
        if number == _IDLE:
            return Progress(0, 0, 0)
        self._deaths[number] += 1
        if self._deaths[number] > _DEATHS_ALLOWED:
            raise TaskError(
                f"{task_name(self._tasks[number])}: {self._deaths[number]} worker processes died at it, the last one "
                f"{death}. Out of memory? Try fewer --workers"
            )
        self._waiting.appendleft(number)
        return Progress(*(-count for count in worker.progress))


class _Worker:
    """A worker process, the number of the task that it has, and how far it is with that."""

    def __init__(self, entry: str) -> None:
        ours, theirs = socket.socketpair()
        environment = _ONE_THREAD | os.environ
        environment["PYTHONPATH"] = os.pathsep.join(path or "." for path in sys.path)
        self.task_number = _IDLE
        self.progress = Progress(0, 0, 0)
        with theirs, _blocked_sigint():
            # -P: the same modules as here, never those that happen to lie in the working folder.
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "tpufeed.engines.worker", str(theirs.fileno()), entry],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=environment,
            )
        self.connection: Connection = Connection(ours.detach())

    def begin(self, job: Job) -> None:
        """Say what its tasks belong to."""
        with suppress(OSError):  # a worker that is dead already shows as such when it is asked for a message
            self.connection.send(job)

    def give(self, number: int, task: Any) -> None:
        """Hand over a task."""
        self.task_number = number
        self.progress = Progress(0, 0, 0)
        with suppress(OSError):
            self.connection.send((number, task))

    def receive(self) -> Event | str | None:
        """An event, the message of a failure, or None from a worker that is dead."""
        try:
            message: Event | str = self.connection.recv()
        except (EOFError, OSError):
            return None
        if isinstance(message, Done):
            self.task_number = _IDLE
        elif isinstance(message, Progress):
            self.progress = Progress(*map(sum, zip(self.progress, message, strict=True)))
        return message

    def stop(self, patience_seconds: float = _LEAVE_SECONDS) -> str:
        """End the process, however far it is, and say how it ended."""
        self.connection.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(patience_seconds)
        self._process.kill()
        code = self._process.wait()
        return f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"


def _stop_all(workers: "Sequence[_Worker]") -> None:
    for worker in workers:  # each leaves by itself once its end is closed, and all at the same time
        worker.connection.close()
    for worker in workers:
        worker.stop()


@contextmanager
def _blocked_sigint() -> Iterator[None]:
    """A process that starts here is deaf to Ctrl-C until it has said what that should do."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
