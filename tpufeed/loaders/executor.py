"""Executors fill batches, several at a time: threads of this process, or worker processes with threads of their own.

With worker processes neither they nor the training loop wait for the other's GIL. Their batches are filled in shared
memory without a name, which goes when the last process that maps it does; what crosses the sockets is where samples
lie, and all columns but those of pixels. What a worker process does is in `worker`.

One thread submits and takes results; closing an executor is safe from any thread.
"""

import itertools
import logging
import math
import os
import platform
import select
import signal
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from multiprocessing.reduction import ForkingPickler
from typing import NamedTuple, TypeAlias

import msgspec

from tpufeed.dataset.reader import Dataset
from tpufeed.dataset.records import OPEN_SHARDS, Reader
from tpufeed.errors import LoaderError, OptionError
from tpufeed.images.custom import Custom
from tpufeed.images.validation import shown
from tpufeed.loaders.admission import make_stage, pick_staged
from tpufeed.loaders.batch import BatchDecoder, BatchJob, BatchRequest, ChunkResult, DecodedBatch
from tpufeed.loaders.buffers import Buffer, BufferPool, Memory
from tpufeed.loaders.options import LoaderOptions
from tpufeed.loaders.sources import Source, SourceAddress, check_sources
from tpufeed.processes.child import Child, ChildDiedError, Failure, Fork, ForkServer, stop_all
from tpufeed.processes.limits import available_cores, limit_reached
from tpufeed.processes.numa import Node, find_nodes, place_workers
from tpufeed.storage.reading import AT_ONCE
from tpufeed.storage.registry import url_scheme
from tpufeed.storage.stage import ShardStage, StageOfStore
from tpufeed.storage.stage_folder import RemoteShard

_logger = logging.getLogger(__name__)

CLOSED = "the loader was closed, or its last batch failed; iterate it again for the next epoch, or load a state"
_CLOSED_MEANWHILE = "the loader was closed while a batch was waited for"
_FEWEST_STAGED = 32  # shards that may be open
_MOST_OPEN = 4096  # of all sources of a mixture together
_ENTRY, _PREPARE = "tpufeed.loaders.worker:serve", "tpufeed.loaders.worker:prepare"
_LEAVE_SECONDS = 2.0
_LONGEST_WAIT_SECONDS = 1e6  # more than that the system's calls do not take
_TUNABLES, _PAST_THE_CACHE = "GLIBC_TUNABLES", "glibc.cpu.x86_non_temporal_threshold"
_ENVIRONMENT = "TPUFEED_PROCESSES"
# Threads of one process meet at the GIL, processes cost memory: 8 MB each, 16 where they read from object storage.
_CORES_A_PROCESS = 4
# Beside other programs the system gives a core to each thread in turn, and two threads a core get twice as much of it:
# at a load of 6 on 2 cores 1.6 times the images. Alone they cost nothing where decoding, which holds no GIL, is long;
# from small images they cost 3 to 8 % (docs/decisions, two threads a core).
_THREADS_A_CORE, _LONG_DECODE_BYTES = 2, 48 << 10

_CRASHED, _ENDED = "Did native code of an op of yours crash?", "Did an op of yours end it?"
# By how a worker process has ended; None lives on, as one that waits for a server of NFS.
_ADVICE: dict[int | None, str] = {
    -signal.SIGKILL: "Out of memory? Try fewer processes=, a smaller prefetch=, or processes=0",
    -signal.SIGBUS: "A file that it had mapped was cut, or its disk or mount (NFS, FUSE) is gone",
    **dict.fromkeys((-signal.SIGSEGV, -signal.SIGABRT, -signal.SIGILL, -signal.SIGFPE), _CRASHED),
    None: "Does its disk or mount (NFS, FUSE) hang, or has an op of yours closed its socket?",
}

# (source, variant, numbers of shards), the first ones due first.
DueShards: TypeAlias = Sequence[tuple[int, int, Sequence[int]]]


class BatchTimeout(Exception):  # internal: loaders raise LoaderError
    """A batch is not there after the time that it has."""


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """Configuration of the workers that fill batches.

    Attributes:
        sources: what samples are drawn from.
        shares: of the samples that each gives.
        options: those of the loader.
        threads: that decode.
        lanes: of the order, that are read at a time.
        file: descriptor of the batches' memory, where that is shared.
        cores: of the NUMA node that a worker process keeps to; none where it may run on all.
    """

    sources: tuple[SourceAddress, ...]
    shares: tuple[float, ...]
    options: LoaderOptions
    threads: int
    lanes: int
    file: int | None
    cores: tuple[int, ...] = ()


class ThreadExecutor:
    """Fills batches in threads of this process, which start with the first batch.

    Epoch e of a source reads variant e modulo their number.

    Args:
        sources: what to read.
        config: how.
        decoder: fills the rows.
        pool: memory for pixels, where `submit` is given none.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        config: WorkerConfig,
        decoder: BatchDecoder,
        pool: BufferPool | None = None,
    ) -> None:
        self._closed = False
        self._owner = os.getpid()
        self._sources = sources
        self._variants = [len(source.entry.variants) for source in sources]
        self._decoder = decoder
        self._pool = pool
        self._readers: dict[tuple[int, int], Reader] = {}  # by source and variant
        self._requests = ThreadPoolExecutor(AT_ONCE, "tpufeed-read") if len(sources) > 1 else None
        self._newest = [0] * len(sources)  # epoch of each source, of the batches that were taken
        self._stage = make_stage([source.dataset for source in sources], config.options)
        budget = 0 if self._stage is None else self._stage.budget_bytes
        self._staged = pick_staged(sources, config.shares, config.lanes, budget)
        # Twice the lanes: a shard for each lane that is read now, and one for each that batches ahead have come to.
        wanted = max(OPEN_SHARDS if self._stage is None else _FEWEST_STAGED, 2 * config.lanes)
        self._open_shards = wanted if len(sources) == 1 else max(1, min(wanted, _MOST_OPEN // len(sources)))
        self._name = f"tpufeed-decode-{id(self):x}"
        self._threads = ThreadPoolExecutor(config.threads, self._name)

    @property
    def closed(self) -> bool:
        """True where it fills nothing any more: also in a fork of its process, which has none of the threads."""
        return self._closed or os.getpid() != self._owner

    def submit(self, request: BatchRequest, given: Buffer | None = None, mapped: bool = True) -> "ThreadFuture":
        """Begin a batch. The pages of memory that is not `mapped` yet are made by the threads that fill it.

        Raises LoaderError where the executor was closed.
        """
        if given is None:
            assert self._pool is not None, "one of the two is given"
            given = self._pool.take()
        job = self._decoder.begin(request, self._open_reader, given.arrays)
        unmapped = None if mapped else given.memory
        try:
            chunks = [
                self._threads.submit(self._fill, job, number, unmapped) for number in range(len(self._decoder.chunks))
            ]
        except RuntimeError as error:
            # `shutdown` in another thread raises the same kind of error.
            if self._closed:
                raise LoaderError(CLOSED) from error
            if limit := limit_reached(error):
                raise LoaderError(limit) from error
            raise
        return ThreadFuture(self, job, chunks)

    def fetch(self, due: DueShards) -> None:
        """Have these shards staged. Returns at once."""
        if self._stage is not None:
            shards = dict[RemoteShard, None]()
            for source, variant, numbers in due:
                if source in self._staged:
                    place = self._stage_of(source)
                    found = self._reader(source, variant).due(numbers)
                    shards |= dict.fromkeys(map(place.placed, found) if isinstance(place, StageOfStore) else found)
            self._stage.fetch(shards)

    def finish(self, job: BatchJob, results: Sequence[ChunkResult]) -> DecodedBatch:
        """Return the batch of a job whose chunks are done; readers of other variants let go of remote shards."""
        batch = self._decoder.finish(job, results)
        requested = sum(part.reader.take_requested() for part in job.parts)
        if requested:
            batch = replace(batch, requested_records=requested)
        for part in job.parts:
            # Local shards stay mapped: they may be deleted meanwhile.
            if part.epoch != self._newest[part.source] and self._sources[part.source].dataset.is_remote:
                self._release_older(part.source, part.epoch)
        return batch

    def close(self, wait: bool = True) -> None:
        """Stop. Batches in work fail. With `wait=False` threads are not waited for, as one may hang."""
        self._closed = True
        # The garbage collector may come by in one of the threads themselves.
        wait = wait and not threading.current_thread().name.startswith(self._name)
        self._threads.shutdown(wait=wait, cancel_futures=True)
        for reader in list(self._readers.values()):  # another thread may open one
            reader.release()
        if self._requests is not None:
            self._requests.shutdown(wait=wait, cancel_futures=True)
        if self._stage is not None:
            self._stage.close()

    def _fill(self, job: BatchJob, number: int, unmapped: Memory | None) -> ChunkResult:
        """Fill one of the decoder's chunks."""
        if unmapped is not None:
            for _ in unmapped.make_pages(number, len(self._decoder.chunks)):
                pass
        return self._decoder.fill(job, *self._decoder.chunks[number])

    def _open_reader(self, source: int, epoch: int) -> tuple[int, Reader]:
        """Return the variant that an epoch of a source reads, and its reader."""
        variant = epoch % self._variants[source]
        return variant, self._reader(source, variant)

    def _reader(self, number: int, variant: int) -> Reader:
        if (number, variant) not in self._readers:
            source, stage = self._sources[number], self._stage_of(number)
            self._readers[number, variant] = source.dataset.reader(
                source.split, variant, stage, self._open_shards, self._requests
            )
        return self._readers[number, variant]

    def _stage_of(self, number: int) -> ShardStage | StageOfStore | None:
        """Return the stage as the readers of a source see it."""
        if self._stage is None or len(self._sources) == 1:
            return self._stage
        return StageOfStore(self._stage, self._sources[number].dataset.shards.url)

    def _release_older(self, number: int, epoch: int) -> None:
        """Let go of the remote shards of other variants, now that a source has come to another epoch.

        The lanes of a mixture do not come to it at the same time: the epoch before is kept as well.
        """
        if len(self._sources) > 1 and epoch < self._newest[number]:
            return
        kept = {epoch, epoch - 1} if len(self._sources) > 1 else {epoch}
        self._newest[number] = epoch
        variants = {each % self._variants[number] for each in kept}
        for (source, variant), reader in list(self._readers.items()):  # another thread may open one
            if source == number and variant not in variants:
                reader.release()


class ThreadFuture:
    """A batch that threads fill."""

    def __init__(self, executor: ThreadExecutor, job: BatchJob, chunks: Sequence[Future[ChunkResult]]) -> None:
        self._executor = executor
        self._job = job
        self.chunks = chunks

    def done(self) -> bool:
        """Return true where the batch is there, or has failed."""
        return all(chunk.done() for chunk in self.chunks)

    def cancel(self) -> None:
        """Give the batch up."""
        for chunk in self.chunks:
            chunk.cancel()

    def result(self, timeout_seconds: float) -> DecodedBatch:
        """Return the batch.

        Raises:
            BatchTimeout: it is not there after so long.
            LoaderError: the executor was closed, or a worker process died.
            TpufeedError: what the batch failed with.
        """
        try:
            failed = self._first_failure(time.monotonic() + timeout_seconds)
            if failed is not None:
                raise failed
            results = [*map(Future.result, self.chunks)]
        except CancelledError:
            raise LoaderError(_CLOSED_MEANWHILE) from None
        finally:
            # Cycles: an exception's traceback holds this frame, and the future the exception. They would keep the
            # loader's threads until the garbage collector comes by.
            self.chunks, failed = (), None
        return self._executor.finish(self._job, results)

    def _first_failure(self, deadline: float) -> BaseException | None:
        """Return the batch's first failure, when all its rows are done: until then its memory is written to.

        A function of its own, so that its variables are gone when the failure is raised: see `result`. Raises
        BatchTimeout. `futures.wait` would never hear of chunks that are cancelled.
        """
        first: BaseException | None = None
        for chunk in self.chunks:
            try:
                error = chunk.exception(min(threading.TIMEOUT_MAX, max(0.0, deadline - time.monotonic())))
            except CancelledError:
                error = CancelledError()  # that one's traceback holds this frame, which would hold it: a cycle again
            except TimeoutError:
                raise BatchTimeout from None
            if error is not None and first is None:
                first = error
                self.cancel()
        return first


class Fill(NamedTuple):
    """Order to a worker: fill a batch, in buffer number `buffer`."""

    number: int
    buffer: int
    request: BatchRequest


class Cancel(NamedTuple):
    """Order to a worker: give a batch up."""

    number: int


class Fetch(NamedTuple):
    """Order to a worker: see `ThreadExecutor.fetch`."""

    due: DueShards


class Reply(NamedTuple):
    """Result of a `Fill`; the pixels are in its buffer."""

    number: int
    result: DecodedBatch | Failure


class ProcessExecutor:
    """Fills batches in worker processes; its methods are those of `ThreadExecutor`.

    Args:
        sources: what to read.
        config: how each worker fills batches.
        processes: how many fill them.
        pool: shared memory for the pixels; the executor closes it.
        stages: whether one more process stages remote shards.
        nodes: the NUMA node of each that fills batches; none where they may run on all.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        config: WorkerConfig,
        processes: int,
        pool: BufferPool,
        stages: bool,
        nodes: Sequence[Node] = (),
    ) -> None:
        self._closed = False
        self._hung_up = threading.Event()  # by us
        self._owner = os.getpid()
        self._pool = pool
        # Reentrant, as `listen` runs the finalizer, which takes it again.
        self._lock = threading.RLock()  # held while replies are waited for, so that no thread closes a socket meanwhile
        children: list[Child] = []  # the fork server first
        self._finalizer = weakref.finalize(self, _stop, children, pool, self._owner, self._hung_up, self._lock)
        self._workers: list[_Worker] = []
        # No `selectors`: each one is a reference cycle, and would keep the workers' buffers after this has gone.
        self._poll = select.poll()
        placed: list[Node | None] = [*nodes] or [None] * processes
        try:
            children.append(server := _start_server(sources, config))
            for node in placed + [None] * stages:
                worker = _Worker(server, config, node)
                children.append(worker)
                self._workers.append(worker)
                self._poll.register(worker, select.POLLIN)
        except BaseException:
            self._finalizer()
            raise
        self._by_descriptor = {worker.fileno(): worker for worker in self._workers}
        self._decoding = tuple(self._workers[:processes])
        # The first batches' pages: this process makes them while it waits for workers to start. On a host of several
        # nodes it does not, as pages lie on the node of who makes them.
        self._pages: deque[Iterator[None]] | None = None if nodes else deque()

    @property
    def closed(self) -> bool:
        """True where it fills nothing any more: also in a fork, as sockets and buffers are its parent's."""
        return self._closed or os.getpid() != self._owner

    def submit(self, request: BatchRequest) -> "ProcessFuture":
        """Begin a batch in the worker that has the fewest."""
        if self.closed:
            raise LoaderError(CLOSED)
        worker = min(self._decoding, key=lambda worker: len(worker.futures))
        buffer = self._pool.take(worker.node)
        if self._pages is not None:
            self._pages.append(buffer.memory.make_pages())
        return worker.fill(request, buffer, self)

    def fetch(self, due: DueShards) -> None:
        """Have the last worker stage these shards, if any worker does; the others open what is staged."""
        with suppress(TimeoutError):  # it reads nothing: its socket is closed now, which `listen` finds out
            self._workers[-1].send(Fetch(due))

    def close(self, wait: bool = True) -> None:
        """Stop. Batches in work fail, and processes that hang are killed, also with `wait=False`."""
        if os.getpid() == self._owner:
            self._closed = True
            self._hung_up.set()
            for worker in self._workers:
                # Before the lock is taken: this wakes the thread that listens, which has it.
                worker.hang_up()
            with self._lock:
                self._finalizer()

    def listen(self, timeout_seconds: float) -> None:
        """Take in replies, waiting for the first one. After an error the executor is closed.

        Raises:
            LoaderError: a worker has died, or the executor was closed.
        """
        with self._lock:
            if self.closed:
                raise LoaderError(_CLOSED_MEANWHILE)
            try:
                while self._pages and timeout_seconds and not self._poll.poll(0):
                    if next(self._pages[0], self) is self:  # that buffer has all of its pages
                        self._pages.popleft()
                # `poll` takes whole milliseconds. Rounded down, the last part of one would be spent in a busy loop.
                for descriptor, _ in self._poll.poll(math.ceil(min(timeout_seconds, _LONGEST_WAIT_SECONDS) * 1e3)):
                    self._by_descriptor[descriptor].take_reply()
                    self._pages = None
            except BaseException as error:  # a Ctrl-C may have come within a message
                by_us = self._hung_up.is_set() and isinstance(error, LoaderError)
                self._closed = True
                self._finalizer()
                if by_us:
                    raise LoaderError(_CLOSED_MEANWHILE) from None
                raise


class ProcessFuture:
    """A batch that a worker process fills; its methods are those of `ThreadFuture`.

    The worker refers to it until there is a reply, wanted or not: until then the buffer is the worker's. So it refers
    to the executor weakly: with a cycle a loader that is dropped would keep its workers.
    """

    def __init__(self, number: int, buffer: Buffer, unwanted: deque[int], executor: ProcessExecutor) -> None:
        self.reply: DecodedBatch | Failure | None = None
        self.buffer = buffer
        self._number = number
        self._unwanted = unwanted
        self._executor = weakref.ref(executor)

    def done(self) -> bool:
        """Return true where the batch is there, or has failed."""
        if self.reply is None:
            self._listen(0.0)
        return self.reply is not None

    def cancel(self) -> None:
        """Give the batch up, with the next order to its worker: any thread may come here, and must not write."""
        self._unwanted.append(self._number)

    def result(self, timeout_seconds: float) -> DecodedBatch:
        """Return the batch; see `ThreadFuture.result`."""
        deadline = time.monotonic() + timeout_seconds
        while self.reply is None:
            left = deadline - time.monotonic()
            if left <= 0:
                raise BatchTimeout
            self._listen(left)
        reply, self.reply = self.reply, None
        if isinstance(reply, Failure):
            raise reply.error()
        return replace(reply, arrays=reply.arrays | self.buffer.arrays)

    def _listen(self, timeout_seconds: float) -> None:
        executor = self._executor()
        assert executor is not None, "the iterator that waits holds it"
        executor.listen(timeout_seconds)


def _start_server(sources: Sequence[Source], config: WorkerConfig) -> ForkServer:
    """Start the process that forks the workers. Raises ObjectChangedError as `check_sources` does."""
    check_sources(sources)
    # Pixels are copied past the cache, as the next to read them is another process. glibc does so from a size on that
    # is meant for one program on the machine. From 64 KB on, raw images of 224 pixels come a quarter faster
    # (docs/decisions, loaders decode in worker processes).
    given, variables = os.environ.get(_TUNABLES, ""), dict[str, str]()
    if platform.machine() in ("x86_64", "AMD64") and _PAST_THE_CACHE not in given:
        variables = {_TUNABLES: ":".join(filter(None, [given, f"{_PAST_THE_CACHE}=0x10000"]))}
    assert config.file is not None, "worker processes share the batches' memory"
    patience = config.options.timeout_seconds
    manifests = [msgspec.msgpack.encode(source.dataset.manifest) for source in sources]
    return ForkServer(
        _ENTRY, _PREPARE, manifests, descriptors=[config.file], variables=variables, patience_seconds=patience
    )


class _Worker(Fork):
    """A worker process and the batches that it was asked for. One thread gives orders."""

    def __init__(self, server: ForkServer, config: WorkerConfig, node: Node | None) -> None:
        super().__init__(server, config.options.timeout_seconds)
        self.futures: dict[int, ProcessFuture] = {}
        # Any thread appends, the one that gives orders pops: each is atomic in a deque, so this needs no lock.
        self._unwanted: deque[int] = deque()
        self._last = 0
        self.node = 0 if node is None else node.number
        self.begin(_ENTRY, config if node is None else replace(config, cores=node.cores))

    def fill(self, request: BatchRequest, buffer: Buffer, executor: ProcessExecutor) -> ProcessFuture:
        """Ask for a batch."""
        self._last += 1
        self.futures[self._last] = future = ProcessFuture(self._last, buffer, self._unwanted, executor)
        try:
            while self._unwanted:
                self.send(Cancel(self._unwanted.popleft()))
            self.send(Fill(self._last, buffer.memory.number, request))
        except TimeoutError:
            raise BatchTimeout from None
        return future

    def take_reply(self) -> None:
        """Take in a reply. Raises LoaderError where the worker has died, and what it could not begin for."""
        try:
            reply: Reply = self.receive()
        except ChildDiedError:
            code, how = self.ending(_LEAVE_SECONDS)
            pid = self.process.pid
            advice = _ADVICE.get(code, _ENDED) if pid else "What it has printed says why"
            raise LoaderError(
                f"{f'a worker process of the loader (pid {pid})' if pid else 'the process that forks workers'} "
                f"{'was killed' if code and code < 0 else 'ended'} {how}; iterate the loader again to start new ones. "
                f"{advice}"
            ) from None
        self.futures.pop(reply.number).reply = reply.result


def _stop(
    children: Sequence[Child],
    pool: BufferPool,
    owner: int,
    hung_up: threading.Event,
    lock: AbstractContextManager[bool],
) -> None:
    """End the workers. At the interpreter's end a thread may still wait for a reply: closing would not wake it."""
    server, workers = children[:1], children[1:]
    if os.getpid() != owner:  # a fork of it, whose workers these are not
        pool.close()
        for child in children:
            child.close()
        return
    hung_up.set()
    for worker in workers:
        worker.hang_up()
    with lock:
        pool.close()
        try:
            stop_all(workers, _LEAVE_SECONDS)
        finally:  # also where Ctrl-C comes again
            stop_all(server, _LEAVE_SECONDS)


Executor: TypeAlias = ThreadExecutor | ProcessExecutor
BatchFuture: TypeAlias = ThreadFuture | ProcessFuture


@dataclass(frozen=True, slots=True)
class Workers:
    """`threads` in each of so many processes; 0 are those of this process alone.

    `nodes` has the NUMA node of each process, or nothing where they may run on all.
    """

    processes: int
    threads: int
    nodes: tuple[Node, ...] = ()

    @property
    def decoding(self) -> int:
        """Threads of all processes together."""
        return max(1, self.processes) * self.threads


def plan_workers(datasets: Sequence[Dataset], options: LoaderOptions) -> Workers:
    """Return the numbers that the options say, or that fit the cores of this rank.

    Raises:
        OptionError: processes are asked for, and they cannot have one of the datasets or an op.
    """
    # The ranks of this host, as torchrun and others say, or `torch_xla.launch`.
    ranks = max(1, _number(os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("PJRT_LOCAL_PROCESS_COUNT", "")))
    rank = os.environ.get("LOCAL_RANK") or os.environ.get("PJRT_LOCAL_PROCESS_RANK", "")
    cores = max(1, available_cores() // ranks)
    wanted, text = options.processes, os.environ.get(_ENVIRONMENT)
    if wanted is None and text:
        if not text.isdecimal():
            raise OptionError(f"{_ENVIRONMENT} in the environment is a number of processes, not {shown(text)}")
        wanted = int(text)
    processes = min(cores, max(_CORES_A_PROCESS, cores // _CORES_A_PROCESS)) if wanted is None else int(wanted)
    obstacle = _obstacle(datasets, options) if processes else ""
    if obstacle and options.processes:
        raise OptionError(f"{obstacle}. Worker processes cannot have that; give processes=0 instead of {processes}")
    if obstacle:
        _logger.info("%s: threads of this process decode", obstacle)
        processes = 0
    threads = max(1, cores // max(1, processes))
    if processes and all(_decodes_long(dataset) for dataset in datasets):
        threads *= _THREADS_A_CORE
    nodes = list[Node]()
    if processes and options.numa == "auto" and (ranks == 1 or rank.isdecimal()):  # else all ranks would take one node
        nodes = place_workers(find_nodes(), processes, _number(rank) % ranks, ranks)
    return Workers(processes, options.threads or threads, tuple(nodes))


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0


def _decodes_long(dataset: Dataset) -> bool:
    manifest = dataset.manifest
    shards = [shard for split in manifest.splits.values() for shard in split.variants[0].shards]
    records = sum(shard.records for shard in shards)
    return not manifest.tensor_shape and sum(shard.bytes for shard in shards) > _LONG_DECODE_BYTES * records


def _obstacle(datasets: Sequence[Dataset], options: LoaderOptions) -> str:
    """Return why worker processes cannot have a dataset or an op, or an empty text."""
    for url in (url for dataset in datasets for url in (dataset.url, dataset.shards.url)):
        if url_scheme(url) == "memory":
            return f"{url} is memory of this process"
    for op in itertools.chain(options.ops or (), *options.view_ops):
        if isinstance(op, Custom) and op.obstacle:
            return op.obstacle
        try:
            crosses = type(op).__module__ != "__main__" and bool(ForkingPickler.dumps(op))
        except Exception:  # noqa: BLE001  # an op's class may raise anything here
            crosses = False
        if not crosses:
            return f"{type(op).__name__} is of __main__, or cannot be pickled"
    return "" if hasattr(os, "memfd_create") else "this system has no memfd_create"
