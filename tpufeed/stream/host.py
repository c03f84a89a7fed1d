"""The stream of batches on the host: numpy arrays in an exact order, decoded straight into their memory.

A `HostStream` has the place and workers of a training, an `EpochIterator` its batches. Feeds take a stream.
"""

import logging
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, Protocol
from weakref import WeakSet

from tpufeed.dataset.order import World
from tpufeed.dataset.reader import Dataset, open_dataset
from tpufeed.display.summary import Summary
from tpufeed.errors import LoaderError, OptionError, RecordError, ShardError, StoreError
from tpufeed.images.device import Arrays
from tpufeed.options import Number, checked
from tpufeed.processes.limits import free_swap, limit_reached, memory_left, memory_limit
from tpufeed.stream.batch import WHOLE_SHARD, BatchDecoder, DecodedBatch
from tpufeed.stream.buffers import BufferPool
from tpufeed.stream.columns import DEVICE_NUMBERS, IMAGE, LABEL, SAMPLE, Batch, BatchForm, Column
from tpufeed.stream.decoding import warn_of_flips
from tpufeed.stream.executor import (
    CLOSED,
    BatchFuture,
    BatchTimeout,
    Executor,
    ThreadExecutor,
    WorkerConfig,
    plan_workers,
)
from tpufeed.stream.mixture import DatasetLike, Mixture
from tpufeed.stream.options import LoaderOptions
from tpufeed.stream.rank_check import EpochSpec
from tpufeed.stream.sampler import Cursor, DatasetSampler, MixtureSampler, Sampler, SampleSource
from tpufeed.stream.training import Epoch, Training
from tpufeed.stream.workers import ProcessExecutor
from tpufeed.stream.world import find_world, thread_world
from tpufeed.text import format_value

_logger = logging.getLogger(__name__)

REPLACED = "another iteration was begun, and a loader has one at a time; make a loader for each"
SUPERSEDED = (
    "set_epoch or load_state_dict was called in the middle of this epoch, which cannot continue; call them between two "
    "iterations"
)

_FEWEST_AHEAD, _AHEAD_PER_PROCESS = 4, 2
_AHEAD_BYTES, _AHEAD_SHARE = 4 << 30, 8  # batches ahead may take so many bytes, or this part of the free memory
_IN_USE = 2  # batches beside those ahead: the one that the training loop has, and the one that replaces it
_FIRST_AHEAD = 4  # batches at the start of an epoch, whose shards may not have been copied yet


@dataclass(slots=True, kw_only=True, repr=False)
class LoaderStats(Summary):
    """Metrics of a loader since it was made. Subtract two of them for a part of a run.

    Attributes:
        seconds: time from the request for the first batch until the last batch was handed out.
        wait_seconds: time in which the consumer waited for batches. `wait_seconds / seconds` is its idle share.
        waits: batches that were not ready when they were asked for.
        batches: batches handed out.
        samples: samples in these batches, including padding.
        ready: mean number of batches that were ready when one was asked for: `prefetch` or more if the loader never
            holds up its consumer, 0 if it always does.
        read_seconds: time in which all decoding threads together read records, verified CRCs and copied raw images.
        decode_seconds: time in which all decoding threads together decoded and ran ops.
        read_bytes: bytes of records.
        bad_records: different records that were skipped.
        bad_shards: different shards that were lost and skipped whole.
        requested_records: remote records that were read one by one, as their shard had no local copy.
        dropped_boxes: boxes that were dropped, as a crop left nothing of them, or less than `min_visibility`.
        processes: processes that decode. 0 if threads of this process decode.
        threads: decoding threads of all processes together.
        nodes: (NUMA node, number of processes pinned to it). Empty if processes may run on all nodes.
        prefetch: number of batches prepared ahead at most.
        buffer_bytes: memory of these batches.
    """

    seconds: float = 0.0
    wait_seconds: float = 0.0
    waits: int = 0
    batches: int = 0
    samples: int = 0
    ready: float = 0.0
    read_seconds: float = 0.0
    decode_seconds: float = 0.0
    read_bytes: int = 0
    bad_records: int = 0
    bad_shards: int = 0
    requested_records: int = 0
    dropped_boxes: int = 0
    processes: int
    threads: int
    nodes: tuple[tuple[int, int], ...] = ()
    prefetch: int
    buffer_bytes: int


class Iteration(Protocol):
    """An iteration that takes batches ahead of its loop."""

    def close(self, why: str = "") -> None:
        """End it, and tell its loop why."""


class LedStream(Summary):
    """What streams have in common: the newest iteration leads, and all feeds of a stream share its place."""

    _ahead_of_loop: "weakref.ref[Iteration] | None" = None  # weak, so that a dropped iteration ends itself
    _handed: Any = None  # place of its loop. None if no batch is taken ahead of it

    def hand_out(self, place: Any) -> None:
        """Move the training loop's place past a batch: `place` is what `taken` returned for that batch."""
        self._handed = place

    @property
    def is_led(self) -> bool:
        """True while an iteration takes batches ahead of its loop, perhaps in a thread."""
        return self._ahead_of_loop is not None and self._ahead_of_loop() is not None

    def end_iteration(self, why: str) -> None:
        """End the iteration that takes batches ahead of its loop, if there is one, and tell its loop why."""
        ahead, self._ahead_of_loop = self._ahead_of_loop, None
        iteration = None if ahead is None else ahead()
        if iteration is not None:
            iteration.close(why)


class HostStream(LedStream):
    """The batches of a dataset or a mixture as numpy arrays, and the place of a training in them.

    `tpufeed.Loader` is its face for users and explains it. Feeds take their batches here by `iterate`. Pickles and
    copies are streams at the same place, without workers.

    Args:
        url: a dataset's path or URL, an open dataset, or a mixture.
        split: the name of the split to read.
        options: the options of the loader.

    Attributes:
        options: the options. With a mixture that never stops, `repeat` is True.
        form: the names of a batch's columns, and whether it is a dict or a tuple.
        columns: how records are decoded into these columns.
        pipeline: the ops of the image, or of its first view, with their seed. Device ops come last.
        device_ops: the device ops as a device runs them. None without such ops, or without images.
        pixels: the names of the pixel columns, whose arrays begin at a memory page.

    Raises:
        DatasetNotFoundError, ManifestError: there is no dataset that can be read.
        OptionError: an option does not fit the dataset.
    """

    def __init__(self, url: DatasetLike, split: str, options: LoaderOptions) -> None:
        dataset = self._given = url if isinstance(url, Dataset | Mixture) else open_dataset(url)
        self.split = split
        self._sampler: Sampler
        if isinstance(dataset, Mixture):
            self._sampler = MixtureSampler(dataset, split, options)
        else:
            self._sampler = DatasetSampler(dataset, split, options)
        options = self.options = self._sampler.options
        datasets = [source.dataset for source in self._sampler.sources]
        self._workers = plan_workers(datasets, options)
        self._executor: Executor | None = None
        self._copies_shards = options.local_bytes != 0 and any(dataset.is_remote for dataset in datasets)
        self._make_decoder(self._sampler.sources)
        if self.columns.fields:
            warn_of_flips(self._decoder.plans)
        batch_bytes = self._decoder.layout.stride
        wanted = max(_FEWEST_AHEAD, _AHEAD_PER_PROCESS * self._workers.processes)
        self._prefetch = options.prefetch or max(1, min(wanted, self._most_ahead(batch_bytes)))
        self._workers = self._workers.for_batches(self._prefetch)
        self._stats = LoaderStats(
            processes=self._workers.processes,
            threads=max(1, self._workers.processes) * self._workers.threads,
            nodes=tuple(Counter(node.number for node in self._workers.nodes).items()),
            prefetch=self._prefetch,
            buffer_bytes=self._prefetch * batch_bytes,
        )
        self._first_asked = 0.0  # when the first batch was asked for
        self._bad: set[tuple[int, ...]] = set()  # records and shards that were skipped, see `BadRecord`
        self._world = thread_world() if options.world is None else options.world
        self._find_world: Callable[[], World] = find_world
        self.moved_by: weakref.ref[Any] | None = None  # the newest feed for Keras, which `keras_state` moves
        self._next = 0, 0  # epoch and samples at which the next iteration begins
        self.began = 0, 0  # epoch and samples at which the newest iteration began
        self._of_classes = ""  # what a state with other classes would make wrong, see `keep_classes`
        self.uncounted = ""  # why nothing counts and no place is known: TensorFlow's own graph reads
        self._current: EpochPrefetch | None = None  # of the iteration that was opened or begun last
        self._opened = WeakSet[EpochPrefetch]()  # of all iterations in use
        self._ahead: EpochPrefetch | None = None  # of the next epoch, if its batches are being prepared already

    @property
    def label(self) -> str:
        """The dataset's URL without secrets, or the mixture's description, for messages."""
        return self._sampler.label

    @property
    def sources(self) -> tuple[SampleSource, ...]:
        """The datasets that samples are drawn from: one, or those of a mixture."""
        return self._sampler.sources

    @property
    def dataset(self) -> Dataset:
        """The dataset that is read. Raises OptionError for a mixture, which has `sources`."""
        if len(self.sources) > 1:
            raise OptionError(
                f"{self.label}: a mixture reads {len(self.sources)} datasets; see the loader's `stream.sources`"
            )
        return self.sources[0].dataset

    @property
    def shares(self) -> tuple[float, ...]:
        """The share of the samples that each dataset gives."""
        return self._sampler.shares

    @property
    def class_names(self) -> tuple[str, ...]:
        return self._sampler.training.classes.names

    @property
    def batch_size(self) -> int:
        return self.options.batch_size

    def column(self, name: str) -> Column:
        """Return the dtype of a column, and the shape of one sample."""
        return self._columns[name]

    @property
    def image_shape(self) -> tuple[int, ...]:
        """Shape of every image: (height, width, channels), after the frames of clips, and views. () without images."""
        return next((column.shape for column in self.columns.images), ())

    @property
    def world(self) -> World:
        """Rank and size of the world of this loader, looked up at the first use."""
        if self._world is None:
            self._world = self._find_world()
        return self._world

    def find_world_by(self, find: Callable[[], World]) -> None:
        """Look up the world by `find`, unless it was given or looked up before."""
        self._find_world = find

    def check_world(self, find: Callable[[], World], whose: str, advice: str = "") -> None:
        """Look up the world by `find`. Raises OptionError if another one was found before. One given by hand stays."""
        if self.options.world is not None:
            return
        if self._world is None:
            self._find_world = find
        world = find()
        if self.world != world:
            raise OptionError(
                f"{whose} says that this is rank {world.rank} of {world.size}, and the loader was told before that it "
                f"is {self.world.rank} of {self.world.size}: {advice}make a loader for each, or give "
                f"world=({world.rank}, {world.size})"
            )

    @property
    def lanes(self) -> int:
        """Lanes of the order: given, loaded, or the default for the world."""
        return self._sampler.stream(self.world).lanes

    def __len__(self) -> int:
        return self.batches_from(0)

    def batches_from(self, samples: int) -> int:
        """Return the number of batches left in an epoch after `samples` samples of the whole world."""
        return len(self._sampler.share(self.world, samples))

    @checked()
    def set_epoch(self, epoch: Epoch) -> None:
        self.end_iteration(SUPERSEDED)
        if epoch != self._next[0]:
            self._sampler = self._sampler.restarted(epoch)
            self._move(epoch, 0)
        else:
            self._supersede([opened for opened in self._opened if opened.begun])

    def iterate(self, *, ahead: bool = False, as_dict: bool = False, on_device: bool = False) -> "EpochIterator":
        """Return the next epoch, from its start or a state's place, and with `repeat` all later ones, too.

        The epoch begins with its first batch. Until then it stays the next one. For the options see `EpochIterator`.
        """
        return EpochIterator(self, ahead=ahead, as_dict=as_dict, on_device=on_device)

    def run_device_ops(self, columns: Mapping[str, Any], arrays: Arrays) -> Mapping[str, Any]:
        """Return the columns of a batch of `iterate(on_device=True)`, on a device, with the device ops applied.

        Args:
            columns: the columns by name.
            arrays: functions of the columns' framework.
        """
        return columns if self.device_ops is None else {**columns, **self.device_ops.run(columns, arrays)}

    def batch_form(self, on_device: bool) -> tuple[BatchForm, list[Column]]:
        """Return the form of the batches of `iterate(on_device=on_device)`, and their columns."""
        ops = self.device_ops if on_device else None
        if ops is None:
            return self.form, [self._columns[name] for name in self.form.names]
        sent = self._columns | {IMAGE: ops.sent}
        sent |= {column.name: column for column in self.columns.every if column.name == LABEL}
        columns = [*(sent[name] for name in self.form.names), Column(DEVICE_NUMBERS, "float32", (ops.width,))]
        return BatchForm((*self.form.names, DEVICE_NUMBERS), as_dict=True), columns

    def lead(self, iteration: Iteration | None) -> None:
        """Make an iteration the newest, and end earlier ones. Pass None if it takes nothing ahead of its loop."""
        self.end_iteration(REPLACED)
        for opened in self._opened:
            if opened.begun:
                opened.close(REPLACED)
        # With `repeat` batches that were taken ahead may be of a later epoch. They do not count.
        if self.options.repeat and self._handed is not None and self._next[0] != self._handed.epoch + 1:
            self.set_epoch(self._handed.epoch + 1)
        self._ahead_of_loop = None if iteration is None else weakref.ref(iteration)

    def taken(self) -> "EpochPlace":
        """Return the place after the batch that the newest iteration took last, for a later `hand_out`."""
        current = self._current
        assert current is not None, "one was opened"
        return EpochPlace(current.cursor.epoch, current.samples, current.left)

    def start_prefetch(self, on_device: bool = False) -> None:
        """Prepare the first batches of the next epoch, without beginning it."""
        try:
            self._open_next(self._open_executor(on_device), ahead=True).submit(self._prefetch)
        except BaseException:
            self._ahead = None  # it may have stopped in the middle of a batch
            raise

    @checked()
    def state_dict(self, batches: Number | None = None) -> dict[str, Any]:
        """Return the place of the training loop, or after `batches` batches of the newest iteration."""
        if self.uncounted:
            raise OptionError(self.uncounted)
        return self.state_at(*(self._place if batches is None else self.place_after(*self.began, batches)))

    @property
    def is_placed(self) -> bool:
        """True if `load_state_dict` or `set_epoch` said where to begin, and no iteration has begun since."""
        return self._current is None and self._next != (0, 0)

    def place_after(self, epoch: int, samples: int, batches: int) -> tuple[int, int]:
        """Return epoch and samples of the whole world after `batches` batches of an iteration that began there."""
        share = self._sampler.share(self.world, samples)
        if batches <= len(share):
            return epoch, share.samples_after(batches)
        epochs, batches = divmod(batches - len(share), self.batches_from(0))
        return epoch + 1 + epochs, batches * share.global_batch

    def state_at(self, epoch: int, samples: int) -> dict[str, Any]:
        """Return the state after `samples` samples of the whole world in `epoch`."""
        return self._sampler.state(self.world, epoch, samples)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if not isinstance(state, Mapping):
            raise OptionError(f"a state is a dict from state_dict(), not {format_value(state)}")
        sampler = self._sampler.resumed(state, self.world)
        names = sampler.training.classes.names
        if self._of_classes and names != self.class_names:
            raise OptionError(
                f"{self.label}: the state has the classes {format_value(list(names))}, and {self._of_classes} was made "
                f"for {format_value(list(self.class_names))}: make a Loader, and load the state before anything else"
            )
        self.end_iteration(SUPERSEDED)
        self._take(sampler)
        self._move(sampler.training.epoch, sampler.training.samples)

    def keep_classes(self, made: str) -> None:
        """Refuse states with other classes from now on: `made`, as messages name it, was made for the present ones."""
        self._of_classes = made

    def epoch_spec(self) -> EpochSpec:
        """Return what all ranks must agree on before they begin the epoch that was opened last."""
        current = self._current
        assert current is not None, "one was opened"
        order = self.state_at(current.cursor.epoch, current.cursor.share.samples_after(0)) | {
            "remainder": self.options.remainder,
            "columns": [f"{name} {self._columns[name].shape}" for name in self.form.names],
        }
        text = ", ".join(f"{name} {value}" for name, value in order.items())
        return EpochSpec(self.world.rank, len(current.cursor.share), self.batch_size, text)

    def stats(self) -> LoaderStats:
        if self.uncounted:
            raise OptionError(self.uncounted)
        stats = self._stats
        shards = self._count_bad(of_shards=True)
        ready = stats.ready / max(1, stats.batches)
        return replace(stats, ready=ready, bad_records=len(self._bad) - shards, bad_shards=shards)

    def close(self) -> None:
        # Workers that another thread is just starting are not stopped.
        self.end_iteration(CLOSED)
        executor, self._executor = self._executor, None
        for epoch in (self._current, self._ahead):
            if epoch is not None:
                epoch.close()
        if executor is not None:
            executor.close()
        for opened in tuple(self._opened):  # with device ops, an iteration may still have workers of its own
            if not opened.executor.closed:
                opened.executor.close()

    def _facts(self) -> dict[str, Any]:
        epoch, samples = self._place
        columns = {name: self._columns[name] for name in self.form.names}
        return {
            "dataset": self.label,
            "split": self.split,
            "batch_size": self.batch_size,
            "columns": {name: f"{each.dtype} {(self.batch_size, *each.shape)}" for name, each in columns.items()},
            "ops": list(map(repr, self.options.ops or ())),
            "device_ops": list(map(repr, self.options.device_ops or ())),
            "classes": self.class_names,
            "place": f"epoch {epoch}, {samples:,} samples",
        }

    def __repr__(self) -> str:
        """Show the loader that the user has made of it."""
        epoch, samples = self._place
        return f"Loader({self.label!r}, {self.split!r}, batch_size={self.batch_size}, epoch={epoch}, samples={samples})"

    def __reduce__(self) -> tuple[Any, ...]:
        place, current = self._place, self._current
        left = self._handed.left if self._handed is not None else current is None or current.left
        state = place if left else (place[0] + 1, 0), self._sampler.training
        return type(self), (self._given, self.split, self.options), state

    def __setstate__(self, state: tuple[tuple[int, int], Training]) -> None:
        self._next, training = state
        self._take(self._sampler.continued(training))

    @property
    def _place(self) -> tuple[int, int]:
        """Epoch and samples of the training loop."""
        if self._handed is not None:
            return self._handed.epoch, self._handed.samples
        current = self._current
        return self._next if current is None else (current.cursor.epoch, current.samples)

    def _make_decoder(self, sources: Sequence[SampleSource]) -> None:
        """Decode samples of these sources from now on. Raises OptionError if the options do not fit them."""
        decoder = self._decoder = BatchDecoder(sources, self.options, self._workers.threads)
        columns = self.columns = decoder.columns
        self.pipeline, self.device_ops = decoder.plans[0].pipelines[0], decoder.plans[0].device_ops
        masked = self.options.remainder == "pad" or self.options.max_bad_records or self.options.max_bad_shards
        self.form = BatchForm((*columns.names, *((columns.mask,) if masked else ())), self.options.columns is None)
        own = [*columns.every, Column(SAMPLE, "int64"), Column(columns.mask, "bool")]
        self._columns: dict[str, Column] = {column.name: column for column in own}
        if self.device_ops is not None and self.device_ops.mixing is not None:
            self._columns[LABEL] = Column(LABEL, "float32", (self.device_ops.mixing.classes,))
        self.pixels = frozenset(column.name for column in columns.pooled)

    def _take(self, sampler: Sampler) -> None:
        """Read the samples of `sampler` from now on: a state may bring a mixture other classes and salts."""
        if sampler.sources is not self.sources:
            self._make_decoder(sampler.sources)
            executor, self._executor = self._executor, None
            if executor is not None:
                executor.close()
        self._sampler = sampler

    def _move(self, epoch: int, samples: int) -> None:
        self._supersede(list(self._opened))
        if self._ahead is not None:
            self._ahead.close()
        self._ahead = None
        self._next = epoch, samples

    def _supersede(self, iterations: "list[EpochPrefetch]") -> None:
        for opened in iterations:
            opened.close(SUPERSEDED)
            if opened is self._current:
                self._current = None
        self._handed = None

    def _count(self, batch: DecodedBatch, asked: float, ready: int) -> None:
        """Count a batch that is handed out now. It was asked for at `asked`, when `ready` batches were ready.

        Raises RecordError or ShardError if it has one bad record or lost shard too many.
        """
        now, stats = perf_counter(), self._stats
        self._first_asked = self._first_asked or asked
        stats.seconds = now - self._first_asked
        stats.wait_seconds += now - asked
        stats.ready += ready  # `stats` takes the average
        stats.waits += not ready
        stats.batches += 1
        stats.samples += len(next(iter(batch.arrays.values())))
        for name, spent in batch.cost._asdict().items():
            setattr(stats, name, getattr(stats, name) + spent)
        for record in batch.bad:
            if record.where in self._bad:
                continue
            of_shards, options = record.where[-1] == WHOLE_SHARD, self.options
            most, known = options.max_bad_shards if of_shards else options.max_bad_records, self._count_bad(of_shards)
            if known == most:
                what, option = ("lost shards", "max_bad_shards") if of_shards else ("bad records", "max_bad_records")
                lists = "" if of_shards else ". Run tpufeed verify, which lists all damage"  # a shard's message says it
                raise (ShardError if of_shards else RecordError)(
                    f"{most + 1} {what}, more than {option}={most}; the last one: {record.message}{lists}"
                )
            self._bad.add(record.where)
            what = "lost shard skipped with all of its samples" if of_shards else "bad record skipped"
            _logger.warning("%s, %d of at most %d: %s", what, known + 1, most, record.message)

    def _count_bad(self, of_shards: bool) -> int:
        return sum((where[-1] == WHOLE_SHARD) == of_shards for where in self._bad)

    def _open_executor(self, on_device: bool) -> Executor:
        """Return workers that leave the device ops to a device, or run them. Start them if need be."""
        if self.device_ops is not None and on_device != self._decoder.on_device:
            self._decoder = BatchDecoder(self.sources, self.options, self._workers.threads, on_device=on_device)
            executor, self._executor = self._executor, None
            if self._ahead is not None:
                self._ahead.close()
            if executor is not None and not any(opened.begun and not opened.closed for opened in self._opened):
                executor.close()  # else an iteration still takes batches from it
        if self._executor is not None and not self._executor.closed:
            return self._executor
        lanes = self._sampler.stream(self.world).lanes // self.world.size
        processes, threads = self._workers.processes, self._workers.threads
        self._check_memory()
        try:
            pool = BufferPool(self._decoder.layout, self._prefetch + _FEWEST_AHEAD, shared=processes > 0)
            sources, nodes = self._sampler.sources, self._workers.nodes
            shares, kept = self._sampler.shares, tuple(source.kept for source in sources)
            config = WorkerConfig(shares, kept, self.options, threads, lanes, pool.file, self._decoder.on_device)
            self._stats.buffer_bytes = self._prefetch * self._decoder.layout.stride
            if processes:
                self._executor = ProcessExecutor(sources, config, processes, pool, self._copies_shards, nodes)
            else:
                self._executor = ThreadExecutor(sources, config, self._decoder, pool)
        except TimeoutError as error:
            raise LoaderError(
                f"{self.label}: the loader's workers did not start within {self.options.timeout_seconds:g} s; give a "
                "larger timeout_seconds="
            ) from error
        except (OSError, StoreError) as error:
            if limit := limit_reached(error):
                raise LoaderError(f"{self.label}: the loader's workers cannot start: {limit}") from error
            raise
        return self._executor

    def _most_ahead(self, batch_bytes: int) -> int:
        """Return how many batches may be ahead: large batches on many cores need more than a few gigabytes."""
        left = memory_left()
        if left is None:
            return _AHEAD_BYTES // batch_bytes
        # Half of the memory at most: workers and local copies take memory, too.
        free = left // self._workers.ranks
        return min(free // 2 // batch_bytes - _IN_USE, max(_AHEAD_BYTES, free // _AHEAD_SHARE) // batch_bytes)

    def _check_memory(self) -> None:
        """Raise LoaderError if the batches cannot be in memory: the system would kill this process without a word."""
        batch, left = self._decoder.layout.stride, memory_left()
        count = self._prefetch + _IN_USE
        if left is None or count * batch <= left + free_swap():
            return
        limit = memory_limit()
        most = "" if limit is None else f" of {limit / 1e6:,.0f} MB"
        raise LoaderError(
            f"{self.label}: {count} batches of {batch / 1e6:,.0f} MB, {self._prefetch} of them ahead, do not fit into "
            f"memory: {left / 1e6:,.0f} MB{most} are free. Use a smaller batch_size= or prefetch=, or smaller images"
        )

    def _open_next(self, executor: Executor, ahead: bool = False) -> "EpochPrefetch":
        """Return the next epoch for an iterator, or, with `ahead`, for preparing its batches before any iterator."""
        found = self._ahead
        if found is None or found.executor is not executor or found.cursor.epoch != self._next[0]:
            found = EpochPrefetch(self._sampler.cursor(self.world, *self._next), executor)
        self._ahead = found if ahead else None
        if not ahead:
            self._opened.add(found)
        return found


@dataclass(frozen=True, slots=True)
class EpochPlace:
    """The place after a batch: epoch, samples of the whole world, and batches left in the epoch."""

    epoch: int
    samples: int
    left: int


class EpochIterator(Iterator[Batch]):
    """The batches of one epoch, and with `repeat` of all later ones. Any thread may close it.

    Leaving it early needs no `close`. The epoch begins with its first batch: then the loader moves on to the next
    epoch, and an earlier iteration ends.

    Args:
        stream: the stream.
        ahead: True if batches are taken ahead of the training loop. The caller then ends earlier iterations with
            `lead`, and says what reaches the loop with `hand_out`.
        as_dict: True for batches as dicts of columns, whatever the stream's form.
        on_device: True for batches on which device ops still have to run, see `HostStream.run_device_ops`.
    """

    _begun = False

    def __init__(
        self, stream: HostStream, *, ahead: bool = False, as_dict: bool = False, on_device: bool = False
    ) -> None:
        self._stream, self._leads = stream, ahead
        form = stream.batch_form(on_device)[0] if on_device else stream.form
        self._form = replace(form, as_dict=True) if as_dict else form
        self._prefetch = stream._open_next(stream._open_executor(on_device))
        if ahead or stream._ahead_of_loop is None:
            stream._current = self._prefetch

    @property
    def epoch(self) -> int:
        """Number of the last batch's epoch."""
        return self._prefetch.cursor.epoch

    def __len__(self) -> int:
        """Return the number of batches left of the epoch."""
        return self._prefetch.left

    @property
    def was_moved(self) -> bool:
        """True if this iteration cannot continue because the loader was moved, or another iteration has begun."""
        return self._prefetch.closed in (SUPERSEDED, REPLACED)

    def continue_after(self, epoch: int) -> None:
        """Make the epoch after `epoch`, that of the last batch used, the loader's next one.

        With `repeat`, batches taken since may be of later epochs. They do not count, unless the loader was moved
        meanwhile, or another iteration has begun.
        """
        stream = self._stream
        if stream.options.repeat and stream._current is self._prefetch and self.epoch != epoch:
            stream.set_epoch(epoch + 1)

    def __next__(self) -> Batch:
        stream, prefetch = self._stream, self._prefetch
        if not prefetch.left and not stream.options.repeat:
            raise StopIteration
        if prefetch.closed or prefetch.executor.closed:
            raise LoaderError(prefetch.closed or CLOSED)
        if not prefetch.left:
            prefetch = self._prefetch = stream._current = stream._open_next(prefetch.executor)
        if not prefetch.begun:
            prefetch = self._begin()
        asked = perf_counter()
        try:
            # Until shards are copied each record is a request: only a few batches at first.
            ahead = stream._prefetch
            if stream._copies_shards:
                ahead = min(ahead, _FIRST_AHEAD + 2 * prefetch.returned)
            room = prefetch.submit(ahead + 1)
            if room > 0 and stream._next == (prefetch.cursor.epoch + 1, 0):
                # With the same workers: another thread may just have closed the loader, and nobody would stop new ones.
                with suppress(OptionError):  # a mixture that cannot read that epoch says so when its turn comes
                    stream._open_next(prefetch.executor, ahead=True).submit(room)
            futures = prefetch.futures
            ready = next((number for number, future in enumerate(futures) if not future.done()), len(futures))
            batch = futures.popleft().result(stream.options.timeout_seconds)
            stream._count(batch, asked, ready)
        except BatchTimeout:
            prefetch.close()
            prefetch.executor.close(wait=False)  # drops everything prepared
            raise LoaderError(
                f"no batch for {stream.options.timeout_seconds:g} s. A disk, the network or one of your ops may be "
                "hanging. If a batch takes that long, give a larger timeout_seconds"
            ) from None
        except BaseException:
            prefetch.close()
            stream._ahead = None  # it may have stopped in the middle of a batch
            raise
        prefetch.returned += 1
        prefetch.left -= 1
        if stream._copies_shards and prefetch.returned % prefetch.cursor.due_every == 1 % prefetch.cursor.due_every:
            # Not earlier: copying whole shards would slow down the records of the first batch.
            prefetch.executor.fetch(prefetch.cursor.due_shards(prefetch.returned - 1))
        packaged: Batch = self._form.package(batch.arrays)
        return packaged

    def _begin(self) -> "EpochPrefetch":
        """Begin the epoch: from now on the loader's next iteration is the one after it."""
        stream, prefetch = self._stream, self._prefetch
        if not self._leads:
            stream.lead(None)
            stream._handed = None
        if stream._next[0] != prefetch.cursor.epoch:  # another iteration, opened just as early, has begun that epoch
            prefetch.close()
            prefetch = self._prefetch = stream._open_next(prefetch.executor)
        stream._current = prefetch
        if not self._begun:
            self._begun, stream.uncounted = True, ""
            stream.began = prefetch.cursor.epoch, prefetch.cursor.share.start
        prefetch.begun = True
        stream._next = prefetch.cursor.epoch + 1, 0
        return prefetch

    def end(self) -> None:
        """Close the iterator, and stop the loader's workers if no other iteration needs them."""
        self.close()
        if self._stream._current is self._prefetch:
            self._stream.close()

    def close(self, why: str = CLOSED) -> None:
        """Cancel the batches in work. Asking for more raises LoaderError(`why`)."""
        self._prefetch.close(why)

    def __del__(self) -> None:
        if hasattr(self, "_prefetch"):  # `__init__` may have failed
            self._prefetch.close()


class EpochPrefetch:
    """Batches of an epoch that workers are preparing, in order.

    It refers to an executor, but not to the loader, which refers to it: in a cycle, a dropped loader would keep its
    workers until the next garbage collection.
    """

    def __init__(self, cursor: Cursor, executor: Executor) -> None:
        self.cursor, self.executor = cursor, executor
        self.futures: deque[BatchFuture] = deque()
        self.begun = False
        self.returned, self.left = 0, len(cursor.share)  # batches handed out, and batches still to come
        self.closed = ""  # or the reason
        self._requests = cursor.requests()

    @property
    def samples(self) -> int:
        """Samples of the epoch that the whole world has been given."""
        return self.cursor.share.samples_after(self.returned)

    def submit(self, batches: int) -> int:
        """Keep `batches` batches in work. Return how many of them are missing because the epoch ends."""
        while len(self.futures) < batches and (request := next(self._requests, None)) is not None:
            self.futures.append(self.executor.submit(request))
        return batches - len(self.futures)

    def close(self, why: str = CLOSED) -> None:
        """Cancel the batches in work."""
        self.closed = self.closed or why
        for future in tuple(self.futures):
            future.cancel()
