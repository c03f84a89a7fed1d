"""Worker processes of a loader, each with threads: neither they nor the training loop wait for the other's GIL.

Batches are filled in shared memory without a name, which goes when the last process that maps it does; what crosses the
sockets is where samples lie, and all columns but the images. First the loader's side, then the worker's.
"""

import math
import os
import platform
import queue
import select
import signal
import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import NamedTuple

from tpufeed.dataset.reader import reopen_dataset
from tpufeed.engines.child import Child, ChildDiedError, Failure, stop_all
from tpufeed.errors import LoaderError
from tpufeed.loaders.buffers import Buffer, BufferPool, MappedBuffers
from tpufeed.loaders.columns import IMAGE
from tpufeed.loaders.crew import CLOSED, CLOSED_MEANWHILE, Due, Filled, Overdue, Request
from tpufeed.loaders.options import LoaderOptions
from tpufeed.loaders.rows import make_rows
from tpufeed.loaders.sources import VariantSource
from tpufeed.loaders.threads import ThreadCrew, ThreadPending

_ENTRY = "tpufeed.loaders.executor:serve"
_BUG = "a worker process failed: "
_LEAVE_SECONDS = 2.0
_LEAVE_ANYWAY_SECONDS = 10.0
_LONGEST_WAIT_SECONDS = 1e6  # more than that the system's calls do not take
_TUNABLES, _PAST_THE_CACHE = "GLIBC_TUNABLES", "glibc.cpu.x86_non_temporal_threshold"


@dataclass(frozen=True, slots=True)
class Feed:
    """Configuration of a worker; `file` is the descriptor of the loader's buffers, `lanes` see `VariantSource`."""

    url: str
    content_digest: str
    split: str
    options: LoaderOptions
    threads: int
    lanes: int
    file: int


class Fill(NamedTuple):
    """Order: fill a batch, in buffer number `buffer`."""

    number: int
    buffer: int
    request: Request


class Cancel(NamedTuple):
    """Order: this batch is not wanted any more."""

    number: int


class Fetch(NamedTuple):
    """Order: see `Crew.fetch`."""

    due: Due


class Reply(NamedTuple):
    """Result of a `Fill`; the images are in its buffer."""

    number: int
    result: Filled | Failure


class ProcessCrew:
    """Crew of worker processes, see `Crew`.

    Args:
        feed: what each worker fills batches of.
        processes: how many fill them.
        pool: shared memory for the images; the crew closes it.
        stages: whether one more process stages remote shards.
    """

    def __init__(self, feed: Feed, processes: int, pool: BufferPool, stages: bool) -> None:
        self._closed = self._hung_up = False
        self._owner = os.getpid()
        self._pool = pool
        self._lock = threading.RLock()  # held while replies are waited for, so that nobody closes a socket meanwhile
        self._workers: list[_Worker] = []
        self._finalizer = weakref.finalize(self, _stop, self._workers, pool, self._owner, self._lock)
        # No `selectors`: each one is a reference cycle, and would keep the workers' buffers after the crew has gone.
        self._poll = select.poll()
        for _ in range(processes + stages):
            worker = _Worker(feed)
            self._workers.append(worker)
            self._poll.register(worker, select.POLLIN)
        self._by_descriptor = {worker.fileno(): worker for worker in self._workers}
        self._decoding = tuple(self._workers[:processes])

    @property
    def closed(self) -> bool:
        return self._closed or os.getpid() != self._owner  # sockets and buffers are the parent's

    def submit(self, request: Request) -> "ProcessPending":
        if self.closed:
            raise LoaderError(CLOSED)
        worker = min(self._decoding, key=lambda worker: len(worker.asked))
        return ProcessPending(worker.fill(request, self._pool.take()), worker, self)

    def fetch(self, due: Due) -> None:
        # The last one stages, if any does. What is staged already the others open themselves.
        with suppress(TimeoutError):  # it reads nothing: its socket is closed now, which `listen` finds out
            self._workers[-1].send(Fetch(due))

    def close(self, wait: bool = True) -> None:
        if os.getpid() == self._owner:
            self._closed = self._hung_up = True
            for worker in self._workers:
                worker.hang_up()
            with self._lock:
                self._finalizer()

    def listen(self, timeout_seconds: float) -> None:
        """Take in replies, waiting for the first one. After an error the crew is closed.

        Raises:
            LoaderError: a worker has died, or the crew was closed.
        """
        with self._lock:
            if self.closed:
                raise LoaderError(CLOSED_MEANWHILE)
            try:
                for descriptor, _ in self._poll.poll(math.ceil(min(timeout_seconds, _LONGEST_WAIT_SECONDS) * 1e3)):
                    self._by_descriptor[descriptor].take_reply()
            except BaseException as error:  # a Ctrl-C may have come within a message
                by_us = self._hung_up and isinstance(error, LoaderError)
                self._closed = True
                self._finalizer()
                if by_us:
                    raise LoaderError(CLOSED_MEANWHILE) from None
                raise


class ProcessPending:
    """Batch that a worker process fills, see `Pending`."""

    def __init__(self, outcome: "_Outcome", worker: "_Worker", crew: ProcessCrew) -> None:
        self._outcome = outcome
        self._worker = worker
        self._crew = crew

    def done(self) -> bool:
        if self._outcome.result is None:
            self._crew.listen(0.0)
        return self._outcome.result is not None

    def wait(self, timeout_seconds: float) -> Filled:
        deadline = time.monotonic() + timeout_seconds
        while self._outcome.result is None:
            left = deadline - time.monotonic()
            if left <= 0:
                raise Overdue
            self._crew.listen(left)
        result, self._outcome.result = self._outcome.result, None
        if isinstance(result, Failure):
            raise result.error()
        return replace(result, arrays={**result.arrays, IMAGE: self._outcome.buffer.array})

    def cancel(self) -> None:
        self._worker.unwanted.append(self._outcome.number)


class _Outcome:
    """Outcome of a batch. Its buffer is the worker's until there is a result, wanted or not."""

    def __init__(self, number: int, buffer: Buffer) -> None:
        self.number = number
        self.buffer = buffer
        self.result: Filled | Failure | None = None


class _Worker(Child):
    """A worker process and the batches that it was asked for. One thread gives orders.

    `unwanted` are batches to be cancelled, with the next order: whoever finds out, in any thread, must not write.
    """

    def __init__(self, feed: Feed) -> None:
        patience = feed.options.timeout_seconds
        super().__init__(_ENTRY, descriptors=[feed.file], variables=_variables(), patience_seconds=patience)
        self.asked: dict[int, _Outcome] = {}
        self.unwanted: deque[int] = deque()
        self._last = 0
        self.begin(_ENTRY, feed)

    def fill(self, request: Request, buffer: Buffer) -> _Outcome:
        """Ask for a batch."""
        self._last += 1
        self.asked[self._last] = outcome = _Outcome(self._last, buffer)
        try:
            while self.unwanted:
                self.send(Cancel(self.unwanted.popleft()))
            self.send(Fill(self._last, buffer.number, request))
        except TimeoutError:
            raise Overdue from None
        return outcome

    def take_reply(self) -> None:
        """Take in a reply. Raises LoaderError where the worker has died, and what it could not begin for."""
        try:
            reply: Reply = self.receive()
        except ChildDiedError:
            raise LoaderError(self._death()) from None
        self.asked.pop(reply.number).result = reply.result

    def _death(self) -> str:
        code, how = self.ending(_LEAVE_SECONDS)
        killed = code is not None and code < 0
        advice = "Did an op of yours end it?"
        if killed:
            advice = "Out of memory? Try fewer processes=, a smaller prefetch=, or processes=0"
        return (
            f"a worker process of the loader (pid {self.process.pid}) {'was killed' if killed else 'ended'} {how}; "
            f"iterate the loader again to start new ones. {advice}"
        )


def _variables() -> dict[str, str]:
    """Return a worker's environment: pixels are copied past the cache, as the next to read them is another process.

    glibc does so from a size on that is meant for one program on the machine. From 64 KB on, raw images of 224 pixels
    come a quarter faster (docs/decisions, loaders decode in worker processes).
    """
    given = os.environ.get(_TUNABLES, "")
    if platform.machine() not in ("x86_64", "AMD64") or _PAST_THE_CACHE in given:
        return {}
    return {_TUNABLES: ":".join(filter(None, [given, f"{_PAST_THE_CACHE}=0x10000"]))}


def _stop(workers: Sequence[_Worker], pool: BufferPool, owner: int, lock: AbstractContextManager[bool]) -> None:
    """End the workers. At the interpreter's end a thread may still wait for a reply: closing would not wake it."""
    if os.getpid() != owner:  # a fork of it, whose workers these are not
        pool.close()
        for worker in workers:
            worker.close()
        return
    for worker in workers:
        worker.hang_up()
    with lock:
        pool.close()
        stop_all(workers, _LEAVE_SECONDS)


def serve(feed: Feed, connection: Connection) -> None:
    """Obey the loader's orders until its end of the socket closes."""
    # A machine that shuts down tells all processes. The training loop may still want to save; then it is our turn.
    signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        crew, shape = _open(feed)
    except Exception as error:  # noqa: BLE001  # the loader raises it
        connection.send(Failure.of(error, _BUG))
        return
    buffers = MappedBuffers(feed.file, shape)
    begun = queue.SimpleQueue[tuple[int, ThreadPending | Exception] | None]()
    pending = dict[int, ThreadPending]()
    replier = threading.Thread(target=_reply, args=(connection, begun, pending), daemon=True)
    replier.start()
    try:
        while True:
            order: Fill | Cancel | Fetch = connection.recv()
            if isinstance(order, Fetch):
                crew.fetch(order.due)
            elif isinstance(order, Cancel):
                batch = pending.get(order.number)
                if batch is not None:
                    batch.cancel()
            else:
                try:
                    pending[order.number] = crew.submit(order.request, buffers.array(order.buffer))
                    begun.put((order.number, pending[order.number]))
                except Exception as error:  # noqa: BLE001  # the loader raises it
                    begun.put((order.number, error))
    except (EOFError, ConnectionError):
        return
    finally:
        _leave_anyway()
        begun.put(None)
        crew.close()


def _open(feed: Feed) -> tuple[ThreadCrew, tuple[int, ...]]:
    dataset = reopen_dataset(feed.url, feed.content_digest)
    rows = make_rows(dataset, feed.options, feed.threads)
    source = VariantSource(dataset, feed.split, feed.options, feed.lanes)
    shape = feed.options.batch_size, *rows.image_shape
    return ThreadCrew(rows, source, feed.threads, BufferPool(shape)), shape


def _reply(
    connection: Connection,
    begun: "queue.SimpleQueue[tuple[int, ThreadPending | Exception] | None]",
    pending: dict[int, ThreadPending],
) -> None:
    """Send batches as they are done, in the order in which they were asked for."""
    try:
        for number, batch in iter(begun.get, None):
            try:
                if isinstance(batch, Exception):
                    raise batch
                filled = batch.wait(threading.TIMEOUT_MAX)
                arrays = {name: array for name, array in filled.arrays.items() if name != IMAGE}
                reply = Reply(number, replace(filled, arrays=arrays))
            except BaseException as error:  # noqa: BLE001  # the loader raises it, also what sys.exit in an op raises
                reply = Reply(number, Failure.of(error, _BUG))
            finally:
                pending.pop(number, None)
            connection.send(reply)
    except OSError:  # the loader has gone
        return


def _leave_anyway() -> None:
    """Leave, also when an op of the user's, or a drive, does not return."""
    timer = threading.Timer(_LEAVE_ANYWAY_SECONDS, os._exit, (1,))
    timer.daemon = True
    timer.start()
