"""The process in which Beam works for a launcher, and what the two say to one another.

Beam's own runner cannot be told to stop, hangs when one of its workers dies, and all runners talk a lot. So they run
here, in a process group that goes as a whole, with output that goes into a file that is shown when nothing else is
known.
"""

import os
import re
import signal
import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, NamedTuple

from tpufeed.engines.engine import NOTHING, Progress
from tpufeed.errors import OptionError, TpufeedError

if TYPE_CHECKING:
    from tpufeed.engines.beampipeline import Pipeline

ENTRY = "tpufeed.engines.beamhost:serve"
EVENTS = "TPUFEED_BEAM_EVENTS"  # set where Beam's own runner works, on the launcher's host: tasks write there

NO_TASK = -1

_METRICS_SECONDS = 5.0
_RACE_SECONDS = 1.0
_EVENT = struct.Struct("<cqqqqq")


@dataclass(frozen=True, slots=True)
class HostOptions:
    """Arguments for Beam, the descriptor of the file for output, and the path of the pipe for `TaskEvent`s."""

    arguments: tuple[str, ...]
    log: int
    events: str


class Ready(NamedTuple):
    """Beam has taken the arguments. `tells`: tasks write `TaskEvent`s, so metrics need not be asked for."""

    tells: bool


class Work(NamedTuple):
    """A pickled `Job`, pickled tasks by their numbers, and the fields of the launcher's `HostView`.

    Nothing of the job is imported here, and nothing but strings has to be understood by another version.
    """

    job: bytes
    tasks: Sequence[tuple[int, bytes]]
    launcher: tuple[Any, ...]


class Ended(NamedTuple):
    """The pipeline is done."""


class Failed(NamedTuple):
    """The pipeline is done for, because of a task, or `NO_TASK`."""

    message: str
    number: int = NO_TASK


class Died(NamedTuple):
    """A worker process of Beam's own runner has ended, and the pipeline never will."""

    code: int


Message = Ready | Progress | Ended | Failed | Died | TpufeedError | str


class TaskEvent(NamedTuple):
    """What a task in process `pid` has come to: "b" begun, "p" progress, "d" done."""

    kind: str
    pid: int
    number: int
    progress: Progress = NOTHING

    def encode(self) -> bytes:
        """Bytes of a length that a pipe takes as a whole, whoever else writes."""
        return _EVENT.pack(self.kind.encode(), self.pid, self.number, *self.progress)

    @classmethod
    def read(cls, descriptor: int) -> "list[TaskEvent]":
        """Those that are there, from a pipe that does not block."""
        with suppress(BlockingIOError):
            data = os.read(descriptor, 1000 * _EVENT.size)
            return [
                cls(kind.decode(), pid, number, Progress(*rest))
                for kind, pid, number, *rest in _EVENT.iter_unpack(data)
            ]
        return []


def serve(options: HostOptions, connection: Connection) -> None:
    """Check the arguments, then run the pipelines that are asked for, until the launcher leaves."""
    os.setpgid(0, 0)
    for descriptor in (1, 2):
        os.dup2(options.log, descriptor)
    host = _Host(connection)
    threading.excepthook = host.notice
    try:
        with suppress(EOFError, ConnectionError):
            host.serve(options)
    finally:
        host.cancel_elsewhere()
        os.killpg(0, signal.SIGKILL)  # Beam's worker processes, and this one: its threads may never end


class _Host:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._sending = threading.Lock()
        self._running: threading.Thread | None = None
        self._pipeline: Pipeline | None = None
        self._tells = True

    def serve(self, options: HostOptions) -> None:
        try:
            from tpufeed.engines.beampipeline import Pipeline, check_arguments

            self._tells = check_arguments(options.arguments)
        except TpufeedError as error:
            self._send(error)
            return
        except ImportError as error:
            self._send(OptionError(f"Beam cannot be imported: {error}. Install it anew: pip install 'tpufeed[beam]'"))
            return
        if self._tells:
            os.environ[EVENTS] = options.events  # for Beam's worker processes, which this one starts, and for itself
        self._send(Ready(self._tells))
        while True:
            work: Work = self._connection.recv()
            self._pipeline = Pipeline(options.arguments, work)
            self._running = threading.Thread(target=self._run, args=[self._pipeline], daemon=True)
            self._running.start()

    def cancel_elsewhere(self) -> None:
        """Stop a pipeline that does not run in this process group."""
        if self._pipeline is not None and not self._tells:
            self._pipeline.cancel()

    def notice(self, failure: threading.ExceptHookArgs) -> None:
        """Beam's runner waits for ever for a worker process that has ended: only a thread's error tells of it."""
        found = re.search(r"Worker subprocess exited with return code (-?\d+)", str(failure.exc_value))
        if found is None or self._running is None:
            threading.__excepthook__(failure)
            return
        self._running.join(_RACE_SECONDS)  # one that ends because its pipeline has failed is no news
        if self._running.is_alive():
            self._send(Died(int(found[1])))

    def _run(self, pipeline: "Pipeline") -> None:
        from tpufeed.engines.beampipeline import PipelineError

        try:
            pipeline.start()
            with self._telling(pipeline):
                pipeline.wait()
        except PipelineError as error:
            self._send(error.failed)
            raise
        self._send(Ended())

    @contextmanager
    def _telling(self, pipeline: "Pipeline") -> Iterator[None]:
        """Within it, and at its end, the progress is told that no task tells itself."""
        ended = threading.Event()

        def tell() -> None:
            while not ended.wait(_METRICS_SECONDS):
                self._send(pipeline.progress())
            self._send(pipeline.progress())

        thread = threading.Thread(target=tell, daemon=True)
        if not self._tells:
            thread.start()
        try:
            yield
        finally:
            ended.set()
            if not self._tells:
                thread.join()

    def _send(self, message: Message) -> None:
        with self._sending, suppress(OSError):  # nobody listens any more
            self._connection.send(message)
