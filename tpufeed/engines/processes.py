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
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Any

from tpufeed.engines.engine import Done, Event, Job, Progress, task_name
from tpufeed.errors import TaskError

_DEATHS_ALLOWED = 2  # of workers at one task: a killed worker says little of the task, three in a row do


class ProcessEngine:
    """An `Engine` of `workers` processes."""

    def __init__(self, workers: int) -> None:
        self.workers = workers

    def run(self, job: Job, tasks: Sequence[Any]) -> Iterator[Event]:
        waiting = deque(enumerate(tasks))
        deaths = [0] * len(tasks)
        workers: list[_Worker] = []
        try:
            while waiting or any(worker.task is not None for worker in workers):
                while waiting and len(workers) < self.workers:
                    workers.append(_Worker(job))
                for worker in workers:
                    if worker.task is None and waiting:
                        worker.give(*waiting.popleft())
                for connection in wait([worker.connection for worker in workers]):
                    worker = next(worker for worker in workers if worker.connection is connection)
                    message = worker.receive()
                    if isinstance(message, Progress):
                        yield message
                        continue
                    index = worker.task
                    if message is None:
                        workers.remove(worker)
                        death = worker.stop()
                        if index is None:
                            raise TaskError(f"a worker process did not start: {death}")
                        deaths[index] += 1
                        if deaths[index] > _DEATHS_ALLOWED:
                            raise TaskError(
                                f"{task_name(tasks[index])}: {deaths[index]} worker processes died at it, the last one "
                                f"{death}. Out of memory? Try fewer --workers"
                            )
                        waiting.appendleft((index, tasks[index]))
                    elif isinstance(message, str):
                        assert index is not None
                        raise TaskError(f"{task_name(tasks[index])}: {message}")
                    else:
                        worker.task = None
                        yield message
        finally:
            for worker in workers:
                worker.stop()


class _Worker:
    """A worker process; `task` is the index of the task that it has, if any."""

    def __init__(self, job: Job) -> None:
        ours, theirs = socket.socketpair()
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join(path for path in sys.path if path))
        self.task: int | None = None
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tpufeed.engines.worker", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=environment,
            )
        self.connection: Connection = Connection(ours.detach())
        with suppress(OSError):  # a worker that is dead already shows as such when it is asked for a message
            self.connection.send(job)

    def give(self, index: int, task: Any) -> None:
        """Hand over a task."""
        self.task = index
        with suppress(OSError):
            self.connection.send((index, task))

    def receive(self) -> Event | str | None:
        """An event, the message of a failure, or None from a worker that is dead."""
        try:
            message: Event | str = self.connection.recv()
        except (EOFError, OSError):
            return None
        return message

    def stop(self) -> str:
        """End the process, however far it is, and say how it ended."""
        self.connection.close()
        if self._process.poll() is None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(0.05)
        self._process.kill()
        code = self._process.wait()
        return f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
