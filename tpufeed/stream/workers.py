"""Decode batches in worker processes, each with its own threads: they and the training loop share no GIL.

Pixels are decoded into shared memory without a name, which is freed with the last process that maps it. The places of
samples and all other columns cross sockets. The loader's side comes first, then the workers' (`prepare` and `serve`).
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
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import NamedTuple, TypeAlias

import msgspec

from tpufeed.dataset.index import Index
from tpufeed.dataset.manifest import Manifest, pack_manifest
from tpufeed.dataset.reader import ClassIds, Dataset, reopen_dataset
from tpufeed.errors import LoaderError
from tpufeed.processes.child import Child, ChildDiedError, Failure, Fork, ForkServer, stop_all
from tpufeed.processes.limits import oom_kills, why_killed
from tpufeed.processes.numa import Node
from tpufeed.storage.store import open_store
from tpufeed.stream.batch import BatchDecoder, DecodedBatch
from tpufeed.stream.buffers import Buffer, BufferPool, MappedBuffers
from tpufeed.stream.executor import (
    CLOSED,
    CLOSED_MEANWHILE,
    BatchTimeout,
    DueShards,
    ThreadExecutor,
    ThreadFuture,
    WorkerConfig,
)
from tpufeed.stream.mixture import OPENED_AT_ONCE
from tpufeed.stream.sampler import BatchRequest, SampleSource

_ENTRY, _PREPARE = "tpufeed.stream.workers:serve", "tpufeed.stream.workers:prepare"
_LEAVE_SECONDS, _LEAVE_ANYWAY_SECONDS = 2.0, 10.0
_LONGEST_WAIT_SECONDS = 1e6  # the system's calls take no more
_TUNABLES, _PAST_THE_CACHE = "GLIBC_TUNABLES", "glibc.cpu.x86_non_temporal_threshold"
_BUG = "a worker process failed: "
_CRASHED, _ENDED = "Did native code of an op of yours crash?", "Did an op of yours end it?"
# Advice by a worker's exit code. None if it is still alive, as when it waits for an NFS server.
_ADVICE: dict[int | None, str] = {
    -signal.SIGKILL: "Try a smaller batch_size= or prefetch=, fewer processes=, or processes=0",
    -signal.SIGBUS: "A file that it had mapped was truncated, or its disk or mount (NFS, FUSE) is gone",
    **dict.fromkeys((-signal.SIGSEGV, -signal.SIGABRT, -signal.SIGILL, -signal.SIGFPE), _CRASHED),
    None: "Does its disk or mount (NFS, FUSE) hang, or has an op of yours closed its socket?",
}

_Begun: TypeAlias = queue.SimpleQueue[tuple[int, ThreadFuture | Exception] | None]
_MANIFEST = msgspec.msgpack.Decoder(Manifest)
# For each dataset: manifest, URL, version of the manifest's file, split, classes and salt. `prepare` leaves them to the
# forks, each of which opens its own store.
_sources: list[tuple[Manifest, str, str, str, ClassIds, int]] = []


class BatchTask(NamedTuple):
    """Task of a worker: decode a batch into buffer number `buffer`."""

    number: int
    buffer: int
    request: BatchRequest


class CancelTask(NamedTuple):
    """Task of a worker: cancel a batch."""

    number: int


class FetchTask(NamedTuple):
    """Task of a worker: see `Executor.fetch`."""

    due: DueShards


class Reply(NamedTuple):
    """Result of a `BatchTask`. The pixels are in its buffer."""

    number: int
    result: DecodedBatch | Failure


class ProcessExecutor:
    """Decodes batches in worker processes.

    Args:
        sources: the datasets to read.
        config: how each worker decodes batches.
        processes: number of processes that decode.
        pool: shared memory for the pixels. The executor closes it.
        copies_shards: True for one more process, which copies remote shards.
        nodes: the NUMA node of each process that decodes. Empty if they may run on all nodes.
    """

    def __init__(
        self,
        sources: Sequence[SampleSource],
        config: WorkerConfig,
        processes: int,
        pool: BufferPool,
        copies_shards: bool,
        nodes: Sequence[Node] = (),
    ) -> None:
        self._closed, self._owner, self._pool = False, os.getpid(), pool
        self._hung_up = threading.Event()  # by us
        # Held while waiting for replies, so that no thread closes a socket meanwhile. Reentrant, as `listen` runs the
        # finalizer, which takes it again.
        self._lock = threading.RLock()
        children: list[Child] = []  # the fork server first
        self._finalizer = weakref.finalize(self, _stop, children, pool, self._owner, self._hung_up, self._lock)
        self._workers: list[_Worker] = []
        # No `selectors`: each is a reference cycle, and would keep the workers' buffers when this object is gone.
        self._poll = select.poll()
        placed: list[Node | None] = [*nodes] or [None] * processes
        try:
            children.append(server := _start_server(sources, config))
            for node in placed + [None] * copies_shards:
                worker = _Worker(server, config, node)
                children.append(worker)
                self._workers.append(worker)
                self._poll.register(worker, select.POLLIN)
        except BaseException:
            self._finalizer()
            raise
        self._by_descriptor = {worker.fileno(): worker for worker in self._workers}
        self._decoding = tuple(self._workers[:processes])
        # Pages of the first batches, which this process makes while it waits for workers to start. Not with several
        # nodes: pages lie on the node of the process that makes them.
        self._pages: deque[Iterator[None]] | None = None if nodes else deque()

    @property
    def closed(self) -> bool:
        return self._closed or os.getpid() != self._owner

    def submit(self, request: BatchRequest) -> "ProcessFuture":
        """Begin a batch in the worker with the fewest batches."""
        if self.closed:
            raise LoaderError(CLOSED)
        worker = min(self._decoding, key=lambda worker: len(worker.futures))
        buffer = self._pool.take(worker.node)
        if self._pages is not None:
            self._pages.append(buffer.memory.make_pages())
        return worker.submit(request, buffer, self)

    def fetch(self, due: DueShards) -> None:
        """Have the last worker copy these shards if it is the one for that. The others open the copies."""
        with suppress(TimeoutError):  # the worker reads nothing: its socket is closed now, as `listen` will find
            self._workers[-1].send(FetchTask(due))

    def close(self, wait: bool = True) -> None:
        """Stop. Batches in work fail. Processes that hang are killed, also with `wait=False`."""
        if os.getpid() == self._owner:
            self._closed = True
            self._hung_up.set()
            try:
                for worker in self._workers:
                    # Without the lock: this wakes the thread that listens, which holds it.
                    worker.hang_up()
            finally:  # also if Ctrl-C comes
                with self._lock:
                    self._finalizer()

    def listen(self, timeout_seconds: float) -> None:
        """Receive replies, waiting for the first one. After an error the executor is closed.

        Raises:
            LoaderError: a worker has died, or the executor was closed.
        """
        with self._lock:
            if self.closed:
                raise LoaderError(CLOSED_MEANWHILE)
            try:
                while self._pages and timeout_seconds and not self._poll.poll(0):
                    if next(self._pages[0], self) is self:  # that buffer has all of its pages
                        self._pages.popleft()
                # `poll` takes whole milliseconds. Rounded down, the last fraction would be spent in a busy loop.
                for descriptor, _ in self._poll.poll(math.ceil(min(timeout_seconds, _LONGEST_WAIT_SECONDS) * 1e3)):
                    self._by_descriptor[descriptor].take_reply()
                    self._pages = None
            except BaseException as error:  # Ctrl-C may come in the middle of a message
                by_us = self._hung_up.is_set() and isinstance(error, LoaderError)
                self._closed = True
                self._finalizer()
                if by_us:
                    raise LoaderError(CLOSED_MEANWHILE) from None
                raise


class ProcessFuture:
    """A batch that a worker process decodes.

    The worker refers to it until there is a reply, wanted or not: until then the worker owns the buffer. So it refers
    to the executor weakly: in a cycle, a dropped loader would keep its workers.
    """

    def __init__(self, number: int, buffer: Buffer, unwanted: deque[int], executor: ProcessExecutor) -> None:
        self.reply: DecodedBatch | Failure | None = None
        self.buffer, self._number, self._unwanted = buffer, number, unwanted
        self._executor, self._pool = weakref.ref(executor), executor._pool

    def done(self) -> bool:
        if self.reply is None:
            self._listen(0.0)
        return self.reply is not None

    def cancel(self) -> None:
        """Cancel the batch with the next task: any thread may call this, and only one may write to the worker."""
        self._unwanted.append(self._number)

    def result(self, timeout_seconds: float) -> DecodedBatch:
        deadline = time.monotonic() + timeout_seconds
        while self.reply is None:
            left = deadline - time.monotonic()
            if left <= 0:
                raise BatchTimeout
            self._listen(left)
        reply, self.reply = self.reply, None
        if isinstance(reply, Failure):
            raise reply.error()
        self._pool.lend(self.buffer.memory.number)
        return replace(reply, arrays=reply.arrays | self.buffer.arrays)

    def _listen(self, timeout_seconds: float) -> None:
        executor = self._executor()
        assert executor is not None, "the waiting iterator holds it"
        executor.listen(timeout_seconds)


def _start_server(sources: Sequence[SampleSource], config: WorkerConfig) -> ForkServer:
    """Start the process that forks the workers. Raises as `_check_unchanged` does."""
    _check_unchanged([(source.dataset, source.split) for source in sources])
    # Pixels are copied past the cache, as another process reads them next. glibc does that only above a size that suits
    # a program alone on its machine. From 64 KB on, raw images of 224 pixels come a quarter faster:
    # docs/decisions/2026-11-26-workers.md.
    given, variables = os.environ.get(_TUNABLES, ""), dict[str, str]()
    if platform.machine() in ("x86_64", "AMD64") and _PAST_THE_CACHE not in given:
        variables = {_TUNABLES: ":".join(filter(None, [given, f"{_PAST_THE_CACHE}=0x10000"]))}
    assert config.file is not None, "worker processes share the batches' memory"
    # Views of one dataset have one manifest, which is sent once.
    manifests = {id(source.dataset.manifest): source.dataset.manifest for source in sources}
    places = {key: place for place, key in enumerate(manifests)}
    packed = [msgspec.msgpack.encode(manifest) for manifest in manifests.values()]
    parts = [
        (places[id(found.manifest)], found.url, found.version, source.split, source.classes, source.salt)
        for source in sources
        for found in (source.dataset,)
    ]
    patience = config.options.timeout_seconds
    return ForkServer(
        _ENTRY, _PREPARE, (packed, parts), descriptors=[config.file], variables=variables, patience_seconds=patience
    )


def _check_unchanged(given: Sequence[tuple[Dataset, str]]) -> None:
    """Raise ObjectChangedError if one of these datasets was rebuilt since it was opened. Each comes with its split.

    Raises ShardError or StoreError if the index of a local dataset does not fit its manifest: a forged manifest may
    count any number of records, and their order would take memory.
    """
    unversioned = list[Dataset]()
    for dataset, split in given:
        dataset.check_current()
        if not dataset.is_remote:
            Index(dataset.store, dataset.split(split).variants[0]).offsets([])
        if not dataset.version:  # `check_current` could not tell
            unversioned.append(dataset)
    if unversioned:
        with ThreadPoolExecutor(OPENED_AT_ONCE, "tpufeed-open") as executor:
            digests = ((found.url, found.manifest.content_digest, found.number) for found in unversioned)
            list(executor.map(lambda each: reopen_dataset(*each), digests))


class _Worker(Fork):
    """A worker process and the batches that it owes. One thread sends tasks."""

    def __init__(self, server: ForkServer, config: WorkerConfig, node: Node | None) -> None:
        super().__init__(server, config.options.timeout_seconds)
        self.futures: dict[int, ProcessFuture] = {}
        self._oom_kills = oom_kills()
        # Any thread appends, the one that sends tasks pops: both are atomic in a deque, so this needs no lock.
        self._unwanted: deque[int] = deque()
        self._last = 0
        self.node = 0 if node is None else node.number
        self.begin(_ENTRY, config if node is None else replace(config, cores=node.cores))

    def submit(self, request: BatchRequest, buffer: Buffer, executor: ProcessExecutor) -> ProcessFuture:
        """Send the task for a batch."""
        self._last += 1
        self.futures[self._last] = future = ProcessFuture(self._last, buffer, self._unwanted, executor)
        try:
            while self._unwanted:
                self.send(CancelTask(self._unwanted.popleft()))
            self.send(BatchTask(self._last, buffer.memory.number, request))
        except TimeoutError:
            raise BatchTimeout from None
        return future

    def take_reply(self) -> None:
        """Receive a reply. Raises LoaderError if the worker died, or the error that kept it from starting."""
        try:
            reply: Reply = self.receive()
        except ChildDiedError:
            code, how = self.ending(_LEAVE_SECONDS)
            pid = self.process.pid
            advice = _ADVICE.get(code, _ENDED) if pid else "Its output says why"
            if code == -signal.SIGKILL:
                advice = f"{why_killed(self._oom_kills)} {_ADVICE[code]}"
            raise LoaderError(
                f"{f'a worker process of the loader (pid {pid})' if pid else 'the process that forks workers'} "
                f"{'was killed' if code and code < 0 else 'ended'} {how}; iterate the loader again to start new ones. "
                f"{advice}"
            ) from None
        self.futures.pop(reply.number).reply = reply.result


def _stop(
    children: Sequence[Child], pool: BufferPool, owner: int, hung_up: threading.Event, lock: threading.RLock
) -> None:
    """End the workers. When the interpreter exits, a thread may wait for a reply, and closing would not wake it."""
    server, workers = children[:1], children[1:]
    if os.getpid() != owner:  # a fork, which does not own these workers
        pool.close()
        for child in children:
            child.close()
        return
    hung_up.set()
    try:
        for worker in workers:
            worker.hang_up()
    finally:
        with lock:
            pool.close()
            try:
                stop_all(workers, _LEAVE_SECONDS)
            finally:
                stop_all(server, _LEAVE_SECONDS)


def prepare(given: tuple[Sequence[bytes], Sequence[tuple[int, str, str, str, ClassIds, int]]]) -> None:
    """Decode the manifests of all datasets in the fork server, once for all workers."""
    packed, sources = given
    manifests = [pack_manifest(_MANIFEST.decode(manifest)) for manifest in packed]
    _sources[:] = [(manifests[source[0]], *source[1:]) for source in sources]


def serve(config: WorkerConfig, connection: Connection) -> None:
    """Carry out the loader's tasks until its end of the socket closes."""
    assert config.file is not None, "the loader shares its batches' memory"
    if config.cores:
        with suppress(OSError):  # cores may have been taken from this host, or its container, since they were counted
            os.sched_setaffinity(0, config.cores)  # the threads started below inherit it
    try:
        sources = [
            SampleSource(Dataset(open_store(url, follow=False), manifest, version), split, classes, salt)
            for manifest, url, version, split, classes, salt in _sources
        ]
        decoder = BatchDecoder(sources, config.options, config.threads, on_device=config.on_device)
        executor = ThreadExecutor(sources, config, decoder)
        buffers = MappedBuffers(config.file, decoder.layout)
        begun: _Begun = queue.SimpleQueue()
        pending = dict[int, ThreadFuture]()
        threading.Thread(target=_reply, args=(connection, begun, pending, decoder), daemon=True).start()
    except Exception as error:  # noqa: BLE001  # the loader raises it
        connection.send(Failure.of(error, _BUG))
        return
    try:
        while True:
            task: BatchTask | CancelTask | FetchTask = connection.recv()
            if isinstance(task, FetchTask):
                executor.fetch(task.due)
            elif isinstance(task, CancelTask):
                future = pending.get(task.number)
                if future is not None:
                    future.cancel()
            else:
                try:
                    pending[task.number] = executor.submit(task.request, *buffers.take(task.buffer))
                    begun.put((task.number, pending[task.number]))
                except Exception as error:  # noqa: BLE001  # the loader raises it
                    begun.put((task.number, error))
    except (EOFError, ConnectionError):
        return
    finally:
        # Exit even if a user's op or a disk does not return.
        timer = threading.Timer(_LEAVE_ANYWAY_SECONDS, os._exit, (1,))
        timer.daemon = True
        with suppress(RuntimeError):  # no thread can be started
            timer.start()
        begun.put(None)
        executor.close()


def _reply(connection: Connection, begun: _Begun, pending: dict[int, ThreadFuture], decoder: BatchDecoder) -> None:
    """Send batches in the order of their tasks, without pixels, which the loader has in shared memory."""
    pooled = {column.name for column in decoder.columns.pooled}
    try:
        for number, future in iter(begun.get, None):
            try:
                if isinstance(future, Exception):
                    raise future
                batch = future.result(threading.TIMEOUT_MAX)
                arrays = {name: array for name, array in batch.arrays.items() if name not in pooled}
                reply = Reply(number, replace(batch, arrays=arrays))
            except BaseException as error:  # noqa: BLE001  # the loader raises it, also what sys.exit in an op raises
                reply = Reply(number, Failure.of(error, _BUG))
            finally:
                pending.pop(number, None)
            connection.send(reply)
    except OSError:  # the loader has gone
        return
