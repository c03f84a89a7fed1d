"""The framework-free loader: numpy batches in an exact order, decoded straight into the batch's memory."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from tpufeed.dataset.partition import Remainder, Share, World, default_lanes
from tpufeed.dataset.reader import Dataset, open_dataset
from tpufeed.errors import OptionError, mask_secrets
from tpufeed.images.ops import Op
from tpufeed.images.parameters import shown
from tpufeed.images.pipeline import Pipeline
from tpufeed.keywords import named_options
from tpufeed.loaders.buffers import BufferPool
from tpufeed.loaders.columns import IMAGE, MASK, SAMPLE, Column, resolve_columns
from tpufeed.loaders.crew import Crew
from tpufeed.loaders.cursor import check_identity, check_lanes, check_state_lanes, identity_of, state_number
from tpufeed.loaders.executor import Feed, ProcessCrew
from tpufeed.loaders.iterator import BatchForm, Endless, EpochIterator, Epochs, Flow, Position
from tpufeed.loaders.metrics import LoaderStats, Tally
from tpufeed.loaders.options import RENAMED, LoaderOptions, take_options
from tpufeed.loaders.rank_check import EpochSpec
from tpufeed.loaders.rows import make_rows
from tpufeed.loaders.sources import VariantSource
from tpufeed.loaders.threads import ThreadCrew
from tpufeed.loaders.workers import plan_workers
from tpufeed.loaders.world import WorldLike, find_world, thread_world, to_world

_MOST_LANES = 1 << 16  # or one a sample, or the default of a larger world: each takes memory
_LAST_EPOCH = 1 << 62
_FEWEST_AHEAD, _AHEAD_A_PROCESS, _AHEAD_BYTES = 4, 2, 4 << 30
_SUPERSEDED = (
    "set_epoch or load_state_dict was called in the middle of this epoch, which cannot go on; call them between two "
    "iterations"
)


@named_options(RENAMED)
def numpy_loader(  # noqa: PLR0913  # each option is a parameter that editors show
    url: str | Path,
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
    stage_dir: str | Path | None = None,
    stage_bytes: str | int | None = None,
) -> "NumpyLoader":
    """Batches of a dataset or cache as numpy arrays.

    `for image, label in loader` is one epoch: image uint8 of shape (batch, height, width, 3), C-contiguous, label int64
    of shape (batch,). The next `for` is the next epoch, with another order, other crops and, in a cache, the next
    variant. The memory of a batch is its receiver's for as long as any array refers to it.

    Args:
        url: a dataset, at a path or a URL.
        split: which part of it.
        batch_size: samples in a batch of one rank.
        ops: ops of `tpufeed.images`, applied to each image with new random numbers in every epoch. All images must
            come out equal in size. None: the `final` ops of a cache, or no op.
        columns: columns of a batch by their short names: image, label, sample (the id within the split), height,
            width, filename, text, or the name of a feature. By default ("image", "label"), or images alone where the
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
            cores, and then one for 4 cores. A `memory://` dataset, and ops that `__main__` defines, need 0.
        threads: threads that decode in each process; by default all processes together have one for each core of this
            rank.
        prefetch: batches prepared ahead on the host, also of the next epoch; by default 2 a process and at least 4, but
            at most 4 GB.
        repeat: True makes one iteration endless: each epoch follows the last one. `len` stays that of an epoch.
        max_bad_records: number of different damaged or undecodable records that are skipped, each with a warning: a
            good sample of the batch takes its place, and a bool mask in the last column is False there. One more raises
            RecordError.
        timeout_seconds: seconds to wait for a batch before LoaderError says that a drive or an op hangs. Hanging worker
            processes are killed; a hanging thread of `processes=0` cannot be, and keeps the program from ending.
        stage_dir: folder for verified copies of remote shards, shared by all processes of this host; by default the
            environment variable TPUFEED_STAGE_DIR, else /dev/shm where it has room, else the user's cache folder.
        stage_bytes: size of all copies there, as "64GB" or a number; by default half of the free space. 0 reads remote
            records by ranges only. A dataset that fits is read from the store in its first epoch only.

    Raises:
        DatasetNotFoundError, ManifestError: there is no dataset that can be read.
        OptionError: options that do not fit it.
    """
    return NumpyLoader(open_dataset(url), split, take_options(locals()))


class NumpyLoader:
    """Loader of numpy batches, see `numpy_loader`. One thread at a time iterates; closing is safe from any.

    Pickles and copies are loaders at the same place, without the workers.

    Args:
        dataset: what to read.
        split: which part of it.
        options: how.
        find: asked for the world when it is first needed, where the options name none.
    """

    def __init__(
        self, dataset: Dataset, split: str, options: LoaderOptions, find: Callable[[], World] = find_world
    ) -> None:
        self.dataset = dataset
        self.split = split
        self.options = options
        self.batch_size = options.batch_size
        self._entry = dataset.split(split)
        if not self._entry.records:
            raise OptionError(f"{dataset.url}: split {split!r} is empty")
        self._workers = plan_workers(dataset, options)
        self._rows = make_rows(dataset, options, self._workers.threads)
        self.form = BatchForm(self._names(), options.columns is None)
        self._dtypes: dict[str, np.dtype[Any]] = {
            IMAGE: np.dtype(np.uint8),
            SAMPLE: np.dtype(np.int64),
            MASK: np.dtype(np.bool_),
        }
        self._dtypes |= {column.name: column.empty(0).dtype for column in self._rows.columns}
        self._tally = Tally(options.max_bad_records)
        self._crew: Crew | None = None
        self._world = thread_world() if options.world is None else None
        self._find_world = find
        self._lanes = options.lanes
        self._position: Position | None = None
        self._resume = 0, 0  # epoch and samples, until there is a position
        self._current: EpochIterator | None = None

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(height, width, channels) of every image."""
        return self._rows.image_shape

    @property
    def columns(self) -> tuple[Column, ...]:
        """Columns of a batch besides image, sample and mask."""
        return self._rows.columns

    @property
    def pipeline(self) -> Pipeline:
        """The ops, with their seed."""
        return self._rows.pipeline

    def column_dtype(self, name: str) -> np.dtype[Any]:
        """The dtype of a column's array."""
        return self._dtypes[name]

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
        world = self.world
        if self._lanes is None:
            self._lanes = default_lanes(world) if self.options.shuffle else world.size
        if self._lanes > self._most_lanes:
            raise OptionError(f"lanes are at most {self._most_lanes} for the split {self.split!r}, not {self._lanes}")
        check_lanes(self._lanes, world)
        return self._lanes

    def __len__(self) -> int:
        """Batches of an epoch, the same on every rank."""
        return self.batches_from(0)

    def batches_from(self, samples: int) -> int:
        """Batches that are left of an epoch after `samples` samples of the whole world."""
        return len(self._share(samples))

    def __iter__(self) -> "EpochIterator | Endless":
        """The next epoch, and with `repeat` all that follow."""
        return Endless(self.next_epoch, self.form) if self.options.repeat else self.next_epoch()

    def next_epoch(self) -> EpochIterator:
        """The next epoch, from its start or from where a state says. One that is not begun stays the next one."""
        self._current = self._find_position().take(self._open_crew(), self._flow)
        return self._current

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is epoch number `epoch`, from its start. One that is under way cannot go on.

        Where that epoch is next anyhow, what is prepared of it stays, and so does the place in it that a loaded state
        says: training loops name each epoch before they iterate it, also one that they go on with.
        """
        if isinstance(epoch, bool) or not isinstance(epoch, int | np.integer) or not 0 <= epoch < _LAST_EPOCH:
            raise OptionError(f"epochs are numbered 0, 1, 2 ...; {shown(epoch)} is none of them")
        position, current = self._position, self._current
        coming = self._resume if position is None else (position.epoch, position.start)
        if epoch != coming[0]:
            self._move(int(epoch), 0)
        elif current is not None and current.begun:
            current.close(_SUPERSEDED)
            self._current, self._resume = None, coming

    def go_on_after(self, state: Mapping[str, Any]) -> None:
        """Make the next iteration the epoch after that of `state`, which this loader had when it gave some batch.

        With `repeat` the batches taken since may be of later epochs. They count for nothing, unless the loader was
        moved meanwhile by `set_epoch` or `load_state_dict`.
        """
        current = self._current
        if self.options.repeat and current is not None and current.epoch != state["epoch"]:
            self.set_epoch(state["epoch"] + 1)

    def start_prefetch(self) -> None:
        """Prepare the first batches of the next epoch, which does not begin with that."""
        position, crew = self._find_position(), self._open_crew()
        if position.ahead is None or position.ahead.crew is not crew:
            position.ahead = EpochIterator(position.epochs.open(position.epoch, position.start), crew, self._flow)
        position.ahead.prepare(self._prefetch)

    def state_dict(self) -> dict[str, Any]:
        """Return the place of the training loop: what it has been handed, not what is prefetched. Plain data."""
        return self.state_at(*self._place)

    def state_at(self, epoch: int, samples: int) -> dict[str, Any]:
        """The state after `samples` samples of the whole world in `epoch`."""
        return {**self._identity, "epoch": epoch, "lanes": self.lanes, "samples": samples}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state` says, also with another world size, if its lanes can be dealt to that.

        Raises:
            OptionError: the state is of another dataset, split, seed, order or version, its lanes cannot be dealt, or
                one of its numbers cannot be. The loader is as it was before.
        """
        if not isinstance(state, Mapping):
            raise OptionError(f"a state is what state_dict() gives, a dict, not {shown(state)}")
        check_identity(state, self._identity, "loader", self.dataset.url)
        epoch = state_number(state, "epoch", 0, _LAST_EPOCH)
        samples = state_number(state, "samples", 0, self._entry.records)
        lanes = state_number(state, "lanes", 1, self._most_lanes)
        check_state_lanes(lanes, self.world)
        if samples >= self._entry.records or not len(self._share(samples)):
            epoch, samples = epoch + 1, 0
        self._lanes = lanes
        self._move(epoch, samples)

    def epoch_spec(self) -> EpochSpec:
        """Return what all ranks have to agree on before they begin the epoch that was opened last."""
        epoch = self._current
        assert epoch is not None, "one was opened"
        order = self.state_at(epoch.epoch, epoch.samples_after(0)) | {
            "remainder": self.options.remainder,
            "columns": self.form.names,
            "image_shape": self.image_shape,
        }
        text = ", ".join(f"{name} {value}" for name, value in order.items())
        return EpochSpec(self.world.rank, epoch.batches, self.batch_size, text)

    def stats(self) -> LoaderStats:
        """Return what the loader has done so far, and what its consumer waited for."""
        return self._tally.stats(self._workers.processes, self._workers.decoding, self._prefetch, self._batch_bytes)

    def close(self) -> None:
        """Stop the workers. A loader that is iterated again starts new ones."""
        current, position, crew = self._current, self._position, self._crew
        self._crew = None
        for iterator in (current, None if position is None else position.ahead):
            if iterator is not None:
                iterator.close()
        if crew is not None:
            crew.close()

    def __repr__(self) -> str:
        epoch, samples = self._place
        return (
            f"{type(self).__name__}({mask_secrets(self.dataset.url)!r}, {self.split!r}, batch_size={self.batch_size}, "
            f"epoch={epoch}, samples={samples})"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        given = self.dataset, self.split, self.options, self._find_world
        current = self._current
        place = self._place if current is None or len(current) else (current.epoch + 1, 0)
        return _restore, (given, self._lanes, place)

    @property
    def _identity(self) -> dict[str, Any]:
        return identity_of(self.dataset, self.split, self.options.seed, self.options.shuffle)

    @property
    def _most_lanes(self) -> int:
        return max(self._entry.records, _MOST_LANES, default_lanes(self.world))

    @property
    def _place(self) -> tuple[int, int]:
        """Epoch and samples of the training loop."""
        current = self._current
        return self._resume if current is None else (current.epoch, current.samples)

    @property
    def _batch_bytes(self) -> int:
        return self.batch_size * int(np.prod(self.image_shape))

    @property
    def _prefetch(self) -> int:
        wanted = max(_FEWEST_AHEAD, _AHEAD_A_PROCESS * self._workers.processes)
        return self.options.prefetch or max(1, min(wanted, _AHEAD_BYTES // self._batch_bytes))

    @property
    def _flow(self) -> Flow:
        stages = self.options.stage_bytes != 0 and self.dataset.is_remote
        return Flow(self.form, self._prefetch, self.options.timeout_seconds, stages, self._tally)

    def _names(self) -> tuple[str, ...]:
        """The columns of a batch in their order."""
        masked = self.options.remainder == "pad" or self.options.max_bad_records > 0
        return (*resolve_columns(self.dataset.manifest, self.options.columns), *((MASK,) if masked else ()))

    def _open_crew(self) -> Crew:
        if self._crew is None or self._crew.closed:
            self._crew = self._make_crew()
        return self._crew

    def _make_crew(self) -> Crew:
        lanes, shape = self.lanes // self.world.size, (self.batch_size, *self.image_shape)
        processes, threads = self._workers.processes, self._workers.threads
        kept = self._prefetch + _FEWEST_AHEAD
        if not processes:
            source = VariantSource(self.dataset, self.split, self.options, lanes)
            return ThreadCrew(self._rows, source, threads, BufferPool(shape, kept))
        pool = BufferPool(shape, kept, shared=True)
        assert pool.file is not None, "it is shared"
        feed = Feed(self.dataset.url, self.dataset.content_digest, self.split, self.options, threads, lanes, pool.file)
        return ProcessCrew(feed, processes, pool, self._flow.stages)

    def _find_position(self) -> Position:
        if self._position is None:
            variants = [[shard.records for shard in variant.shards] for variant in self._entry.variants]
            options = self.options
            epochs = Epochs(variants, options.seed, self.lanes, options.shuffle, self._share(0))
            self._position = Position(epochs, *self._resume)
        return self._position

    def _move(self, epoch: int, samples: int) -> None:
        if self._current is not None:
            self._current.close(_SUPERSEDED)
        if self._position is not None and self._position.ahead is not None:
            self._position.ahead.close()
        self._current = self._position = None
        self._resume = epoch, samples

    def _share(self, start: int) -> Share:
        share = Share(self._entry.records, self.options.batch_size, self.world, self.options.remainder, start)
        if not start and not len(share):
            most = self._entry.records // self.world.size
            raise OptionError(
                f"{self.dataset.url}: the {self._entry.records} samples of split {self.split!r} fill no batch of "
                f"{self.options.batch_size} on each of {self.world.size} ranks, and remainder='drop' leaves none; give "
                f"{f'a batch_size of at most {most}, or ' if most else ''}remainder='pad' or 'repeat'"
            )
        return share


def _restore(
    given: tuple[Dataset, str, LoaderOptions, Callable[[], World]], lanes: int | None, place: tuple[int, int]
) -> NumpyLoader:
    """A loader from its pickle."""
    loader = NumpyLoader(*given)
    loader._lanes = lanes
    loader._move(*place)
    return loader
