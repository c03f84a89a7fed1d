"""Decode batches in threads of this process, several at a time, and plan how many threads and processes a loader uses.

One thread submits and takes results. Any thread may close an executor. `workers` does the same in worker processes,
each of which has a `ThreadExecutor`.
"""

import itertools
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Protocol, TypeAlias

from tpufeed.dataset.reader import Dataset
from tpufeed.dataset.records import OPEN_SHARDS, Reader
from tpufeed.errors import LoaderError, OptionError
from tpufeed.images.ops import Custom
from tpufeed.processes.limits import available_cores, limit_reached
from tpufeed.processes.numa import Node, find_nodes, place_workers
from tpufeed.storage.copies import LocalCopies
from tpufeed.storage.copies_folder import RemoteShard
from tpufeed.storage.reading import AT_ONCE
from tpufeed.storage.store import url_scheme
from tpufeed.stream.batch import BatchDecoder, BatchJob, Cost, DecodedBatch
from tpufeed.stream.buffers import Buffer, BufferPool
from tpufeed.stream.options import LoaderOptions
from tpufeed.stream.sampler import BatchRequest, SampleSource
from tpufeed.text import format_value

_logger = logging.getLogger(__name__)

CLOSED = "the loader was closed, or its last batch failed; iterate it again for the next epoch, or load a state"
CLOSED_MEANWHILE = "the loader was closed while it waited for a batch"
_FEWEST_COPIED = 32  # shards that may be open if they are copied
LEAST_KEPT = 0.5  # part of a dataset's records for which its shards are copied whole
_MOST_OPEN = 4096  # shards of all datasets of a mixture together
_ENVIRONMENT = "TPUFEED_PROCESSES"
# Next to other programs, the system gives cores to all threads in turn, so two threads per core get more of them: at a
# load of 6 on 2 cores 1.6 times the images. Alone they cost nothing if decoding, which holds no GIL, takes long. With
# small images they cost 3 to 8 % (docs/decisions/2026-11-26-workers.md).
_THREADS_PER_CORE, _LONG_DECODE_BYTES = 2, 48 << 10

# (source, variant, numbers of shards), the first ones due first.
DueShards: TypeAlias = Sequence[tuple[int, int, Sequence[int]]]


class BatchTimeout(Exception):  # internal: loaders raise LoaderError
    """A batch is not ready in time."""


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """Configuration of the workers that decode batches.

    Attributes:
        shares: the share of the samples that each dataset gives.
        kept: the part of each dataset's records that is read: less than 1 for a view.
        options: the loader's options.
        threads: threads that decode.
        lanes: lanes of the order that this rank reads.
        file: descriptor of the batches' memory if it is shared.
        on_device: True if the device ops are left to a device.
        cores: cores of the NUMA node that a worker process is pinned to. Empty if it may run on all.
    """

    shares: tuple[float, ...]
    kept: tuple[float, ...]
    options: LoaderOptions
    threads: int
    lanes: int
    file: int | None
    on_device: bool = False
    cores: tuple[int, ...] = ()


class BatchFuture(Protocol):
    """A batch in work."""

    def done(self) -> bool:
        """Return True if the batch is ready, or has failed."""

    def cancel(self) -> None:
        """Cancel the batch."""

    def result(self, timeout_seconds: float) -> DecodedBatch:
        """Return the batch.

        Raises:
            BatchTimeout: it is not ready in time.
            LoaderError: the executor was closed, or a worker process died.
            TpufeedError: what the batch failed with.
        """


class Executor(Protocol):
    """Decodes batches ahead of need: `ThreadExecutor`, or `ProcessExecutor` of `workers`."""

    @property
    def closed(self) -> bool:
        """True if it was closed. Also in a fork of its process, where nothing of it works."""

    def submit(self, request: BatchRequest) -> BatchFuture:
        """Begin a batch. Raises LoaderError if the executor was closed."""

    def fetch(self, due: DueShards) -> None:
        """Start to copy these shards. Returns at once."""

    def close(self, wait: bool = True) -> None:
        """Stop. Batches in work fail. `wait=False` does not wait for threads, as one may hang."""


class ThreadExecutor:
    """Decodes batches in threads of this process, which start with the first batch.

    Epoch e of a dataset reads variant e modulo the number of variants. Without a `pool`, `submit` needs a buffer.
    """

    def __init__(
        self,
        sources: Sequence[SampleSource],
        config: WorkerConfig,
        decoder: BatchDecoder,
        pool: BufferPool | None = None,
    ) -> None:
        self._closed, self._owner = False, os.getpid()
        self._sources, self._decoder, self._pool = sources, decoder, pool
        self._variants = [len(source.entry.variants) for source in sources]
        self._readers: dict[tuple[int, int], Reader] = {}  # by dataset and variant
        # Views of one dataset share its readers, under the number of the first one.
        first = dict[tuple[int, str], int]()
        self._same = [first.setdefault((id(each.dataset.manifest), each.split), at) for at, each in enumerate(sources)]
        uses = Counter(self._same)
        self._sharing = {number for number, each in enumerate(self._same) if uses[each] > 1}
        self._requests = ThreadPoolExecutor(AT_ONCE, "tpufeed-read") if len(first) > 1 else None
        self._newest = [0] * len(sources)  # newest epoch of each dataset in the batches taken
        self._remote = {number: each.dataset for number, each in enumerate(sources) if each.dataset.is_remote}
        self._copies = make_copies([*self._remote.values()], config.options) if self._remote else None
        self._copied = frozenset[int]()
        if self._copies is not None:
            different, shares, kept = [*first.values()], [0.0] * len(sources), [0.0] * len(sources)
            for number, share, part in zip(self._same, config.shares, config.kept, strict=True):
                shares[number], kept[number] = shares[number] + share, kept[number] + part
            own = [sources[number] for number in different], [shares[number] for number in different]
            picked = pick_copied(*own, config.lanes, self._copies.budget_bytes)
            # Views that leave out most records read the others by ranges: whole shards would be more bytes.
            self._copied = frozenset(different[at] for at in picked if kept[different[at]] >= LEAST_KEPT)
        # Twice the lanes: for each lane the shard that is read now, and the one that batches ahead have reached.
        wanted = max(OPEN_SHARDS if self._copies is None else _FEWEST_COPIED, 2 * config.lanes)
        if len(first) < len(sources):  # views by class read all shards at once
            wanted = max(wanted, *(len(each.entry.variants[0].shards) for each in sources))
        self._open_shards = max(1, min(wanted, _MOST_OPEN // len(first))) if len(sources) > 1 else wanted
        self._name = f"tpufeed-decode-{id(self):x}"
        self._threads = ThreadPoolExecutor(config.threads, self._name)

    @property
    def closed(self) -> bool:
        return self._closed or os.getpid() != self._owner

    def submit(self, request: BatchRequest, given: Buffer | None = None, mapped: bool = True) -> "ThreadFuture":
        """Begin a batch in the buffer `given`, or one of the pool. If it is not `mapped`, threads make its pages."""
        if given is None:
            assert self._pool is not None, "one of the two is given"
            given = self._pool.take()
        job = self._decoder.begin(request, self._open_reader, given.arrays)
        job.unmapped = None if mapped else given.memory
        numbers = range(len(self._decoder.chunks))
        try:
            return ThreadFuture(self, job, [self._threads.submit(self._decoder.decode, job, each) for each in numbers])
        except RuntimeError as error:
            # `shutdown` in another thread raises the same kind of error.
            if self._closed:
                raise LoaderError(CLOSED) from error
            if limit := limit_reached(error):
                raise LoaderError(limit) from error
            raise

    def fetch(self, due: DueShards) -> None:
        if self._copies is not None:
            shards = dict[RemoteShard, None]()
            for source, variant, numbers in due:
                if self._same[source] in self._copied:
                    shards |= dict.fromkeys(self._open_reader(source, variant)[1].due(numbers))
            self._copies.fetch(shards)

    def close(self, wait: bool = True) -> None:
        self._closed = True
        # The garbage collector may run in one of the threads themselves.
        wait = wait and not threading.current_thread().name.startswith(self._name)
        self._threads.shutdown(wait=wait, cancel_futures=True)
        for reader in list(self._readers.values()):  # another thread may open one
            reader.release()
        if self._requests is not None:
            self._requests.shutdown(wait=wait, cancel_futures=True)
        if self._copies is not None:
            self._copies.close()

    def _open_reader(self, number: int, epoch: int) -> tuple[int, Reader]:
        """Return the variant that an epoch of a dataset reads, and its reader."""
        variant, number = epoch % self._variants[number], self._same[number]
        if (number, variant) not in self._readers:
            source = self._sources[number]
            self._readers[number, variant] = source.dataset.reader(
                source.split, variant, self._copies, self._open_shards, self._requests
            )
        return variant, self._readers[number, variant]

    def _release_older(self, number: int, epoch: int) -> None:
        """Release the remote shards of other variants when a dataset reaches another epoch.

        The lanes of a mixture do not reach it at the same time: so the epoch before is kept, too. Views that share a
        dataset are in different epochs, and release nothing.
        """
        if (len(self._sources) > 1 and epoch < self._newest[number]) or number in self._sharing:
            return
        kept = {epoch, epoch - 1} if len(self._sources) > 1 else {epoch}
        self._newest[number] = epoch
        variants = {each % self._variants[number] for each in kept}
        for (source, variant), reader in list(self._readers.items()):  # another thread may open one
            if source == number and variant not in variants:
                reader.release()


def make_copies(remote: Sequence[Dataset], options: LoaderOptions, connections: int = 16) -> LocalCopies | None:
    """Return the local copies of remote datasets. None if the options want none. `connections` as in `LocalCopies`."""
    folder, budget = options.local_dir, options.local_bytes
    if budget == 0:
        return None
    parent, budget_bytes = None if folder is None else Path(folder), None if budget is None else int(budget)
    stores = {dataset.shards.url: dataset.shards for dataset in remote}
    return LocalCopies(remote[0].shards, parent, budget_bytes, connections, others=stores)


def pick_copied(
    sources: Sequence[SampleSource], shares: Sequence[float], lanes: int, budget_bytes: int
) -> frozenset[int]:
    """Return the numbers of the datasets whose shards are copied whole. Records of the others are read by ranges.

    In each of its `lanes` a rank reads one shard of each dataset at a time, and shards of a dataset with few samples
    would take up room for hours. If there is no room for all datasets, those that give the most samples for the bytes
    they hold come first, until they hold half of the room: the other half is for the shards that are due next.
    """
    sizes = [sum(shard.bytes for shard in source.entry.variants[0].shards) for source in sources]
    if sum(sizes) <= budget_bytes:
        return frozenset(range(len(sources)))
    counts = (max(1, len(source.entry.variants[0].shards)) for source in sources)
    held = [min(size, lanes * size // count) for size, count in zip(sizes, counts, strict=True)]
    remote = [number for number, source in enumerate(sources) if source.dataset.is_remote]
    picked, taken = set[int](), 0
    for number in sorted(remote, key=lambda number: -shares[number] / max(1, held[number])):
        taken += held[number]
        if picked and taken > budget_bytes // 2:
            break
        picked.add(number)
    return frozenset(picked)


@dataclass(slots=True, eq=False)
class ThreadFuture:
    """A batch that threads decode, chunk by chunk."""

    executor: ThreadExecutor
    job: BatchJob
    chunks: Sequence[Future[list[Cost]]]

    def done(self) -> bool:
        return all(chunk.done() for chunk in self.chunks)

    def cancel(self) -> None:
        for chunk in self.chunks:
            chunk.cancel()

    def result(self, timeout_seconds: float) -> DecodedBatch:
        deadline = time.monotonic() + timeout_seconds
        chunk: Future[list[Cost]] | None
        error: BaseException | None
        failed: BaseException | None = None
        try:
            # All chunks, even after a failure: until each is done, it may write to the batch's memory. (`futures.wait`
            # would never return for chunks that are cancelled.)
            for chunk in self.chunks:
                try:
                    error = chunk.exception(min(threading.TIMEOUT_MAX, max(0.0, deadline - time.monotonic())))
                except CancelledError:
                    error = LoaderError(CLOSED_MEANWHILE)
                except TimeoutError:
                    raise BatchTimeout from None
                if error is not None and failed is None:
                    failed = error
                    self.cancel()
            if failed is not None:
                raise failed
            costs = [*map(Future.result, self.chunks)]
        finally:
            # Break cycles: an exception's traceback holds this frame, and the future holds the exception. They would
            # keep the loader's threads until the next garbage collection.
            self.chunks, chunk, error, failed = (), None, None, None
        executor = self.executor
        batch = executor._decoder.finish(self.job, costs)
        for part in self.job.parts:
            # Local shards stay mapped: they may be deleted meanwhile.
            if part.epoch != executor._newest[part.source] and part.source in executor._remote:
                executor._release_older(part.source, part.epoch)
        return batch


@dataclass(frozen=True, slots=True)
class Workers:
    """Number of worker processes, and of threads in each. 0 processes means threads of this process.

    `nodes` has the NUMA node of each process. It is empty if they may run on all nodes. `ranks` is the number of ranks
    on this host. `given` says that a number is the user's.
    """

    processes: int
    threads: int
    nodes: tuple[Node, ...] = ()
    ranks: int = 1
    given: bool = False

    def for_batches(self, count: int) -> "Workers":
        """Return fewer processes with more threads if they outnumber the batches in work, each of which one decodes."""
        if self.given or count >= self.processes:
            return self
        return replace(
            self, processes=count, threads=-(-self.processes * self.threads // count), nodes=self.nodes[:count]
        )


def plan_workers(datasets: Sequence[Dataset], options: LoaderOptions) -> Workers:
    """Return the numbers from the options, or numbers that fit the cores of this rank.

    Raises OptionError if the options ask for processes, and these could not read a dataset or run an op.
    """
    # The ranks of this host, as torchrun and others or `torch_xla.launch` say.
    environment = os.environ.get
    count = environment("LOCAL_WORLD_SIZE") or environment("PJRT_LOCAL_PROCESS_COUNT", "")
    rank = environment("LOCAL_RANK") or environment("PJRT_LOCAL_PROCESS_RANK", "")
    ranks = max(1, int(count)) if count.isdecimal() else 1
    is_told = options.processes is not None and options.threads is not None
    cores = 1 if is_told else max(1, available_cores() // ranks)  # which takes 0.3 ms
    wanted, text = options.processes, environment(_ENVIRONMENT)
    if wanted is None and text:
        if not text.isdecimal():
            raise OptionError(f"{_ENVIRONMENT} in the environment is a number of processes, not {format_value(text)}")
        wanted = int(text)
    # Threads of one process hand the GIL on from one to the next: 16 of them decode twice what one does. So every core
    # has a process, of 10 MB, or 45 if it reads from object storage (docs/decisions/2026-11-26-workers.md).
    processes = cores if wanted is None else int(wanted)
    obstacle = _obstacle(datasets, options) if processes else ""
    if obstacle and options.processes:
        raise OptionError(f"{obstacle}. Worker processes cannot use it; give processes=0 instead of {processes}")
    if obstacle:
        _logger.info("%s: threads of this process decode", obstacle)
        processes = 0
    threads = max(1, cores // max(1, processes))
    if processes and all(_decodes_long(dataset) for dataset in datasets):
        threads *= _THREADS_PER_CORE
    nodes = list[Node]()
    if processes and options.numa == "auto" and (ranks == 1 or rank.isdecimal()):  # else all ranks would take one node
        number = int(rank) % ranks if rank.isdecimal() else 0
        nodes = place_workers(find_nodes(), processes, number, ranks)
    given = wanted is not None or options.threads is not None
    return Workers(processes, options.threads or threads, tuple(nodes), ranks, given)


def _decodes_long(dataset: Dataset) -> bool:
    manifest = dataset.manifest
    shards = [shard for split in manifest.splits.values() for shard in split.variants[0].shards]
    records = sum(shard.records for shard in shards)
    return not manifest.tensor_shape and sum(shard.bytes for shard in shards) > _LONG_DECODE_BYTES * records


def _obstacle(datasets: Sequence[Dataset], options: LoaderOptions) -> str:
    """Return why worker processes could not read a dataset or run an op. "" if they can."""
    for url in (url for dataset in datasets for url in (dataset.url, dataset.shards.url)):
        if url_scheme(url) == "memory":
            return f"{url} is memory of this process"
    for op in itertools.chain(options.ops or (), options.device_ops or (), *options.view_ops):
        if isinstance(op, Custom) and op.obstacle:
            return op.obstacle
        try:
            crosses = type(op).__module__ != "__main__" and bool(ForkingPickler.dumps(op))
        except Exception:  # noqa: BLE001  # an op's class may raise anything here
            crosses = False
        if not crosses:
            return f"{type(op).__name__} is defined in __main__, or cannot be pickled"
    return "" if hasattr(os, "memfd_create") else "this system has no memfd_create"
