"""The framework-free loader: numpy batches in an exact order, decoded straight into the batch's memory."""

import logging
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from time import perf_counter
from typing import Any, Self, TypeAlias
from weakref import WeakSet

import numpy as np

from tpufeed.dataset.partition import Remainder, World
from tpufeed.dataset.reader import Dataset, open_dataset
from tpufeed.errors import LoaderError, OptionError, StoreError, mask_secrets
from tpufeed.images.protocols import Op
from tpufeed.loaders.batch import Array, BatchDecoder, BatchRequest, warn_of_flips
from tpufeed.loaders.buffers import BufferPool, stride_of
from tpufeed.loaders.columns import SAMPLE, Batch, BatchForm, Column
from tpufeed.loaders.executor import CLOSED, BatchTimeout, ThreadExecutor, WorkerConfig, plan_workers
from tpufeed.loaders.metrics import LoaderMetrics, LoaderStats
from tpufeed.loaders.mixture import Mixture
from tpufeed.loaders.options import LabelFormat, LoaderOptions, Numa, take_options
from tpufeed.loaders.rank_check import EpochSpec
from tpufeed.loaders.sampler import Cursor, Sampler
from tpufeed.loaders.sources import Source, SourceAddress
from tpufeed.loaders.states import LAST
from tpufeed.loaders.training import Training
from tpufeed.loaders.workers import BatchFuture, Executor, ProcessExecutor
from tpufeed.loaders.world import WorldLike, find_world, thread_world, to_world
from tpufeed.options import checked, shown
from tpufeed.processes.limits import limit_reached

_logger = logging.getLogger(__name__)

DatasetLike: TypeAlias = str | Path | Dataset | Mixture

_FEWEST_AHEAD, _AHEAD_A_PROCESS, _AHEAD_BYTES = 4, 2, 4 << 30
_FIRST_AHEAD = 4  # batches, of an epoch whose shards may have to come first
_SUPERSEDED = (
    "set_epoch or load_state_dict was called in the middle of this epoch, which cannot go on; call them between two "
    "iterations"
)


@checked()
def numpy_loader(  # noqa: PLR0913  # each option is a parameter that editors show
    url: DatasetLike,
    split: str = "train",
    *,
    batch_size: int = 128,
    ops: Sequence[Op] | None = None,
    columns: Sequence[str] | None = "default",
    shuffle: bool = True,
    seed: int = 0,
    remainder: Remainder = "drop",
    world: WorldLike | None = None,
    lanes: int | None = None,
    processes: int | None = None,
    threads: int | None = None,
    prefetch: int | None = None,
    repeat: bool = False,
    max_bad_records: int = 0,
    timeout_seconds: float = 600.0,
    numa: Numa = "auto",
    stage_dir: str | Path | None = None,
    stage_bytes: str | int | None = None,
    pad: Mapping[str, int] | None = None,
    truncate: bool | Sequence[str] = False,
    fill: Mapping[str, float | str] | None = None,
    label_format: LabelFormat = "ids",
    min_visibility: float = 0.0,
    views: Sequence[Any] | None = None,
) -> "NumpyLoader":
    """Batches of a dataset or cache as numpy arrays.

    `for image, label in loader` is one epoch: image uint8 of shape (batch, height, width, 3), C-contiguous, label int64
    of shape (batch,). The next `for` is the next epoch, with another order, other crops and, in a cache, the next
    variant. The memory of a batch is its receiver's for as long as any array refers to it.

    Args:
        url: a dataset, at a path or a URL; one that is open; or a `tpufeed.Mixture` of several.
        split: which part of it.
        batch_size: samples in a batch of one rank.
        ops: ops of `tpufeed.images`, applied to each image with new random numbers in every epoch. All images must
            come out equal in size. None: the `final` ops of a cache, or no op.
        columns: columns of a batch by their short names: image, label, sample (the id within the split), height,
            width, filename, text, or the name of a feature; of a mixture also source, the number of the sample's
            dataset in it. By default ("image", "label"), or images alone where the
            dataset has no labels. None: a dict of image, label and sample. Without image no image is decoded, and no
            op is needed.
        shuffle: False reads in the dataset's own order.
        seed: seed of the order and of the ops.
        remainder: what becomes of a last batch that is not full on every rank: "drop" drops it, "pad" fills it up and
            adds a bool mask as the last column, "repeat" fills it with other samples.
        world: (rank, size); by default what the loaded frameworks say.
        lanes: lanes of the order (docs/order.md), a multiple of the world's size.
        processes: worker processes that decode, so that decoding and the training loop do not share a GIL. 0 decodes
            in threads of this process. By default the environment variable TPUFEED_PROCESSES, else one a core up to 4
            cores, 4 up to 16 cores, and then one for 4 cores. A `memory://` dataset, and ops that `__main__` defines,
            need 0.
        threads: threads that decode in each process; by default all processes together have one for each core of this
            rank, and two where images are encoded and of more than 48 KB on average.
        prefetch: batches prepared ahead on the host, also of the next epoch; by default 2 a process and at least 4, but
            at most 4 GB.
        repeat: True makes one iteration endless: each epoch follows the last one. `len` stays that of an epoch.
        max_bad_records: number of different damaged or undecodable records that are skipped, each with a warning: a
            good sample of the batch takes its place, and a bool mask in the last column is False there. One more raises
            RecordError.
        timeout_seconds: seconds to wait for a batch before LoaderError says that a drive or an op hangs. Hanging worker
            processes are killed; a hanging thread of `processes=0` cannot be, and keeps the program from ending.
        numa: on a host of several NUMA nodes "auto" keeps each worker process, and the memory of its batches, to one
            node: dealt to all nodes, or where a host has several ranks to the nodes of the rank's TPU chips. "off"
            leaves that to the system.
        stage_dir: folder for verified copies of remote shards, shared by all processes of this host; by default the
            environment variable TPUFEED_STAGE_DIR, else /dev/shm where it has room, else the user's cache folder.
        stage_bytes: size of all copies there, as "64GB" or a number; by default half of the free space. 0 reads remote
            records by ranges only. A dataset that fits is read from the store in its first epoch only.
        pad: static lengths of columns with lists of several lengths, like {"boxes": 64}; by default the longest of the
            dataset. `<name>_length`, int32 (batch,), is the next column. docs/samples.md shows every kind of column.
        truncate: True, or the columns whose longer lists are cut to that; else they are an error.
        fill: by column what stands for a missing value, behind the items of a list (0, and -1 for labels), or beyond
            the image in a mask (0).
        label_format: of lists of labels: "ids" as they are, or "multi_hot" for float32 (batch, classes).
        min_visibility: boxes of which a crop leaves a smaller share of the area are dropped, with what belongs to
            them, and counted in `stats()`. Those with no area left always are.
        views: in place of ops, lists of ops, each for a crop of its own of every image, `(ops, 2)` for two: image is
            then (batch, views, height, width, 3), or a column for each size, like image_224 and image_96.

    Raises:
        DatasetNotFoundError, ManifestError: there is no dataset that can be read.
        OptionError: options that do not fit it.
    """
    return NumpyLoader(open_feed(url), split, take_options(locals()))


def open_feed(url: DatasetLike) -> Dataset | Mixture:
    """Return what a loader reads: the dataset at a URL, or what is given. Raises as `open_dataset` does."""
    return url if isinstance(url, Dataset | Mixture) else open_dataset(url)


class NumpyLoader:
    """Loader of numpy batches, see `numpy_loader`. One thread at a time iterates; closing is safe from any.

    Pickles and copies are loaders at the same place, without the workers.

    Args:
        dataset: what to read; or a mixture of several.
        split: which part of it.
        options: how.
        find: asked for the world when it is first needed, where the options name none.

    Attributes:
        form: the names of a batch's columns, and how they are handed over.
        columns: what fills them.
        pipeline: the ops of the image, or of its first view, with their seed.
        pixels: the names of the columns of pixels, whose arrays begin at a page of memory.
    """

    def __init__(
        self, dataset: Dataset | Mixture, split: str, options: LoaderOptions, find: Callable[[], World] = find_world
    ) -> None:
        self._given = dataset
        self.split = split
        self.batch_size = options.batch_size
        self._sampler = Sampler(dataset, split, options)
        if isinstance(dataset, Mixture) and dataset.stop == "never":
            options = replace(options, repeat=True)
        self.options = options
        self._workers = plan_workers([source.dataset for source in self.sources], options)
        self._executor: Executor | None = None
        self._make_decoder(self.sources)
        warn_of_flips(self._decoder.decoders)
        batch_bytes = stride_of(self._decoder.pooled)
        wanted = max(_FEWEST_AHEAD, _AHEAD_A_PROCESS * self._workers.processes)
        self._prefetch = options.prefetch or max(1, min(wanted, _AHEAD_BYTES // batch_bytes))
        self._metrics = LoaderMetrics(
            options.max_bad_records,
            LoaderStats(
                processes=self._workers.processes,
                threads=self._workers.decoding,
                nodes=tuple(Counter(node.number for node in self._workers.nodes).items()),
                prefetch=self._prefetch,
                buffer_bytes=self._prefetch * batch_bytes,
            ),
        )
        self._world = thread_world() if options.world is None else None
        self._find_world = find
        self._next = 0, 0  # epoch and samples at which the next iteration begins
        self._current: EpochPrefetch | None = None  # of the iteration that was opened last
        self._opened = WeakSet[EpochPrefetch]()  # of all iterations that somebody has
        self._ahead: EpochPrefetch | None = None  # of the next epoch, when batches of it are prepared already

    @property
    def url(self) -> str:
        """URL of the dataset, or the mixture in words."""
        return self._sampler.label

    @property
    def sources(self) -> tuple[Source, ...]:
        """The datasets that samples are drawn from: one, or those of a mixture."""
        return self._sampler.sources

    @property
    def dataset(self) -> Dataset:
        """The dataset that is read. Raises OptionError for a mixture, which has `sources`."""
        if len(self.sources) > 1:
            raise OptionError(f"{self.url}: a mixture reads {len(self.sources)} datasets; see the loader's `sources`")
        return self.sources[0].dataset

    @property
    def shares(self) -> tuple[float, ...]:
        """The share of the samples that each source gives."""
        return self._sampler.shares

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes, of a mixture the joined ones; a label is a place among them."""
        return self._sampler.training.classes.names

    def column(self, name: str) -> Column:
        """Return dtype and shape of a column; the shape is that of one sample."""
        return self._columns[name]

    @property
    def image_shape(self) -> tuple[int, ...]:
        """(height, width, channels) of every image, or (views, height, width, channels); () where none is asked for."""
        return next((column.shape for column in self.columns.images), ())

    @property
    def world(self) -> World:
        """World of this loader and its rank, found out when it is first asked for."""
        if self._world is None:
            given = self.options.world
            self._world = self._find_world() if given is None else to_world(given)
        return self._world

    @property
    def lanes(self) -> int:
        """Lanes of the order: as given or loaded, else the default for the world."""
        return self._sampler.stream(self.world).lanes

    def __len__(self) -> int:
        """Return the batches of an epoch, the same number on every rank."""
        return self.batches_from(0)

    def batches_from(self, samples: int) -> int:
        """Return the batches that are left of an epoch after `samples` samples of the whole world."""
        return len(self._sampler.share(self.world, samples))

    def __iter__(self) -> "EpochIterator":
        """Return the next epoch, and with `repeat` all that follow.

        It begins at its start, or where a state says. An epoch that is not begun stays the next one.
        """
        return EpochIterator(self)

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration epoch number `epoch`, from its start. One that is under way cannot go on.

        Where that epoch is next anyhow, what is prepared of it stays, and so does the place in it that a loaded state
        says: training loops name each epoch before they iterate it, also one that they go on with.
        """
        if isinstance(epoch, bool) or not isinstance(epoch, int | np.integer) or not 0 <= epoch < LAST:
            raise OptionError(f"epochs are numbered 0, 1, 2 ...; {shown(epoch)} is none of them")
        if epoch != self._next[0]:
            self._sampler = self._sampler.restarted(int(epoch))
            self._move(int(epoch), 0)
        else:
            self._supersede([opened for opened in self._opened if opened.begun])

    def go_on_after(self, state: Mapping[str, Any]) -> None:
        """Make the next iteration the epoch after that of `state`, which this loader had when it gave some batch.

        With `repeat` the batches taken since may be of later epochs. They count for nothing, unless the loader was
        moved meanwhile by `set_epoch` or `load_state_dict`.
        """
        if self.options.repeat and self._current is not None and self._current.cursor.epoch != state["epoch"]:
            self.set_epoch(state["epoch"] + 1)

    def start_prefetch(self) -> None:
        """Prepare the first batches of the next epoch, which does not begin with that."""
        self._open_ahead(self._open_executor()).submit(self._prefetch)

    def state_dict(self) -> dict[str, Any]:
        """Return the place of the training loop: what it has been handed, not what is prefetched. Plain data."""
        return self.state_at(*self._place)

    def state_at(self, epoch: int, samples: int) -> dict[str, Any]:
        """Return the state after `samples` samples of the whole world in `epoch`."""
        return self._sampler.state(self.world, epoch, samples)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state` says, also with another world size, if its lanes can be dealt to that.

        Raises:
            OptionError: the state is of another dataset, split, seed, order or version, its lanes cannot be dealt, or
                one of its numbers cannot be. The loader is as it was before.
        """
        if not isinstance(state, Mapping):
            raise OptionError(f"a state is what state_dict() gives, a dict, not {shown(state)}")
        sampler = self._sampler.resumed(state, self.world)
        self._take(sampler)
        self._move(sampler.training.epoch, sampler.training.samples)

    def epoch_spec(self) -> EpochSpec:
        """Return what all ranks have to agree on before they begin the epoch that was opened last."""
        current = self._current
        assert current is not None, "one was opened"
        order = self.state_at(current.cursor.epoch, current.cursor.share.samples_after(0)) | {
            "remainder": self.options.remainder,
            "columns": [f"{name} {self._columns[name].shape}" for name in self.form.names],
        }
        text = ", ".join(f"{name} {value}" for name, value in order.items())
        return EpochSpec(self.world.rank, len(current.cursor.share), self.batch_size, text)

    def stats(self) -> LoaderStats:
        """Return what the loader has done so far, and what its consumer waited for."""
        return self._metrics.stats()

    def close(self) -> None:
        """Stop the workers. A loader that is iterated again starts new ones.

        Safe from any thread. Workers that another thread is about to start at this moment are not stopped.
        """
        executor, self._executor = self._executor, None
        for epoch in (self._current, self._ahead):
            if epoch is not None:
                epoch.close()
        if executor is not None:
            executor.close()

    def __repr__(self) -> str:
        epoch, samples = self._place
        return (
            f"{type(self).__name__}({mask_secrets(self.url)!r}, {self.split!r}, batch_size={self.batch_size}, "
            f"epoch={epoch}, samples={samples})"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        current = self._current
        place = self._place if current is None or current.left else (current.cursor.epoch + 1, 0)
        return (
            type(self),
            (self._given, self.split, self.options, self._find_world),
            (place, self._sampler.training),
        )

    def __setstate__(self, state: tuple[tuple[int, int], Training]) -> None:
        self._next, training = state
        self._take(self._sampler.continued(training))

    @property
    def _place(self) -> tuple[int, int]:
        """Epoch and samples of the training loop."""
        current = self._current
        return self._next if current is None else (current.cursor.epoch, current.samples)

    @cached_property
    def _stages(self) -> bool:
        """True where shards are fetched into a stage."""
        return self.options.stage_bytes != 0 and any(source.dataset.is_remote for source in self.sources)

    def _make_decoder(self, sources: Sequence[Source]) -> None:
        """Decode samples of these sources from now on. Raises OptionError where the options do not fit them."""
        decoder = self._decoder = BatchDecoder(sources, self.options, self._workers.threads)
        columns = self.columns = decoder.columns
        self.pipeline = decoder.decoders[0].pipelines[0]
        masked = self.options.remainder == "pad" or self.options.max_bad_records > 0
        self.form = BatchForm((*columns.names, *((columns.mask,) if masked else ())), self.options.columns is None)
        own = [*columns, Column(SAMPLE, "int64"), Column(columns.mask, "bool")]
        self._columns: dict[str, Column] = {column.name: column for column in own}
        self.pixels = frozenset(column.name for column in columns.pooled)

    def _take(self, sampler: Sampler) -> None:
        """Give the samples of `sampler` from now on: a mixture has the classes and draws of its training."""
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
            opened.close(_SUPERSEDED)
            if opened is self._current:
                self._current = None

    def _open_executor(self) -> Executor:
        """Return the workers, and start them where there are none."""
        if self._executor is None or self._executor.closed:
            try:
                self._executor = self._start_executor()
            except TimeoutError as error:
                raise LoaderError(
                    f"{self.url}: the loader's workers did not start within {self.options.timeout_seconds:g} s; give a "
                    "larger timeout_seconds="
                ) from error
            except (OSError, StoreError) as error:
                if limit := limit_reached(error):
                    raise LoaderError(f"{self.url}: the loader's workers cannot start: {limit}") from error
                raise
        return self._executor

    def _start_executor(self) -> Executor:
        lanes = self.lanes // self.world.size
        processes, threads = self._workers.processes, self._workers.threads
        pool = BufferPool(self._decoder.pooled, self._prefetch + _FEWEST_AHEAD, shared=processes > 0)
        addresses = tuple(map(SourceAddress.of, self.sources))
        config = WorkerConfig(addresses, self._sampler.shares, self.options, threads, lanes, pool.file)
        if processes:
            return ProcessExecutor(self.sources, config, processes, pool, self._stages, self._workers.nodes)
        return ThreadExecutor(self.sources, config, self._decoder, pool)

    def _open_ahead(self, executor: Executor) -> "EpochPrefetch":
        """Return the next epoch, of which batches may be prepared already."""
        ahead = self._ahead
        if ahead is None or ahead.executor is not executor or ahead.cursor.epoch != self._next[0]:
            ahead = self._ahead = EpochPrefetch(self._sampler.cursor(self.world, *self._next), executor)
        return ahead

    def _open_next(self, executor: Executor) -> "EpochPrefetch":
        """Return the next epoch, for one iterator alone."""
        opened, self._ahead = self._open_ahead(executor), None
        self._opened.add(opened)
        return opened


class Adapter:
    """What every loader has of the one that it takes batches from.

    Attributes:
        source: that loader.
    """

    source: Any

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes, of a mixture the joined ones; a label is a place among them."""
        names: tuple[str, ...] = self.source.class_names
        return names


class EpochIterator(Iterator[Batch]):
    """The batches of one epoch, or with `repeat` of all that follow. Closing is safe from any thread.

    Leaving it early needs no `close`. The loader moves on to the next epoch when this one begins: with its first batch.
    """

    def __init__(self, loader: NumpyLoader) -> None:
        self._loader = loader
        self._prefetch = loader._current = loader._open_next(loader._open_executor())

    @property
    def epoch(self) -> int:
        """Number of the epoch that the last batch is of."""
        return self._prefetch.cursor.epoch

    def __len__(self) -> int:
        """Return the batches that are left of the epoch."""
        return self._prefetch.left

    def __next__(self) -> Batch:
        batch: Batch = self._loader.form.package(self.next_arrays())
        return batch

    def next_arrays(self) -> dict[str, Array]:
        """Return the next batch as its columns by name. Raises StopIteration at the end, as `next` does."""
        loader, prefetch = self._loader, self._prefetch
        if not prefetch.left and not loader.options.repeat:
            raise StopIteration
        if prefetch.closed or prefetch.executor.closed:
            raise LoaderError(prefetch.closed or CLOSED)
        if not prefetch.left:
            prefetch = self._prefetch = loader._current = loader._open_next(prefetch.executor)
        if not prefetch.begun:
            prefetch = self._begin()
        asked = perf_counter()
        try:
            # Until shards are staged each record is a request: few batches at first.
            ahead = loader._prefetch
            if loader._stages:
                ahead = min(ahead, _FIRST_AHEAD + 2 * prefetch.returned)
            room = prefetch.submit(ahead + 1)
            if room > 0 and loader._next == (self.epoch + 1, 0):
                # With the same workers: another thread may just have closed the loader, and new ones would stay.
                with suppress(OptionError):  # a mixture cannot read that epoch any more, and says so when it is asked
                    loader._open_ahead(prefetch.executor).submit(room)
            ready = prefetch.ready()
            batch = prefetch.futures.popleft().result(loader.options.timeout_seconds)
            loader._metrics.add(batch, asked, ready)
        except BatchTimeout:
            prefetch.close()
            prefetch.executor.close(wait=False)  # with all that was prepared
            raise LoaderError(
                f"no batch for {loader.options.timeout_seconds:g} s. Does a drive or the network not answer, or an op "
                "of yours not return? Where a batch takes so long, give timeout_seconds"
            ) from None
        except BaseException:
            prefetch.close()
            loader._ahead = None  # it may have stopped half-way in a batch
            raise
        prefetch.returned += 1
        if loader._stages and prefetch.returned % prefetch.cursor.due_every == 1 % prefetch.cursor.due_every:
            # Not before: whole shards would take the network from the records of the first batch.
            prefetch.executor.fetch(prefetch.cursor.due_shards(prefetch.returned - 1))
        return batch.arrays

    def _begin(self) -> "EpochPrefetch":
        """Begin the epoch: from now on the loader's next iteration is the one after it."""
        loader, prefetch = self._loader, self._prefetch
        if loader._next[0] != self.epoch:  # another iteration, opened as early as this one, has begun it
            prefetch.close()
            self._prefetch = loader._open_next(prefetch.executor)
            if loader._current is prefetch:
                loader._current = self._prefetch
            prefetch = self._prefetch
        prefetch.begun = True
        loader._next = self.epoch + 1, 0
        return prefetch

    def close(self, why: str = CLOSED) -> None:
        """Give up what is being prepared. Asking for more raises LoaderError(`why`)."""
        self._prefetch.close(why)

    def __del__(self) -> None:
        if hasattr(self, "_prefetch"):  # `__init__` may have failed
            self._prefetch.close()


class EpochPrefetch:
    """Batches of an epoch that are in work, in their order.

    It refers to an executor, but not to the loader, which refers to it: with a cycle, a loader that is dropped would
    keep its workers until the garbage collector comes by.
    """

    def __init__(self, cursor: Cursor, executor: Executor) -> None:
        self.cursor = cursor
        self.executor = executor
        self.futures: deque[BatchFuture] = deque()
        self.begun = False
        self.returned = 0  # batches that the training loop has
        self.closed = ""  # or why
        self._planned: deque[BatchRequest] = deque()
        self._submitted = 0

    @property
    def left(self) -> int:
        """Batches that the training loop does not have yet."""
        return len(self.cursor.share) - self.returned

    @property
    def samples(self) -> int:
        """Samples of the epoch that the whole world has had."""
        return self.cursor.share.samples_after(self.returned)

    def submit(self, batches: int) -> int:
        """Have `batches` batches in work; return how many of these the epoch does not have."""
        while len(self.futures) < batches and self._submitted < len(self.cursor.share):
            if not self._planned:
                self._planned.extend(self.cursor.requests(self._submitted))
            self.futures.append(self.executor.submit(self._planned.popleft()))
            self._submitted += 1
        return batches - len(self.futures)

    def ready(self) -> int:
        """Count the batches that can be handed out at once."""
        for number, future in enumerate(self.futures):
            if not future.done():
                return number
        return len(self.futures)

    def close(self, why: str = CLOSED) -> None:
        """Give up the batches in work."""
        self.closed = self.closed or why
        for future in tuple(self.futures):
            future.cancel()
