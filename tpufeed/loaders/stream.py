"""The framework-free loader: numpy batches in an exact order, decoded by threads straight into the batch's memory."""

import operator
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Self, Unpack

import numpy as np

from tpufeed.dataset.order import EpochOrder
from tpufeed.dataset.partition import Share, World, default_lanes
from tpufeed.dataset.reader import Dataset, open_dataset
from tpufeed.dataset.records import Reader
from tpufeed.engines.engine import available_cores
from tpufeed.errors import OptionError
from tpufeed.images.parameters import shown
from tpufeed.loaders.buffers import BufferPool
from tpufeed.loaders.columns import IMAGE, MASK, SAMPLE, find_column, resolve_columns
from tpufeed.loaders.decoder import Decoder
from tpufeed.loaders.epoch import BatchForm, Epoch, EpochIterator
from tpufeed.loaders.options import LoaderKeywords, LoaderOptions
from tpufeed.loaders.rows import Rows, cut_chunks
from tpufeed.loaders.world import find_world, to_world
from tpufeed.storage.staging.shard import RemoteShard
from tpufeed.storage.staging.stage import Stage

_STATE_VERSION = 1
_FEWEST_OPEN = 32
_MOST_LANES = 1 << 16  # or one a sample, or the default of a larger world: each takes memory
_LAST_EPOCH = 1 << 62


def numpy_loader(url: str | Path, split: str = "train", **options: Unpack[LoaderKeywords]) -> "NumpyLoader":
    """Batches of a dataset or cache as numpy arrays.

    `for image, label in loader` is one epoch: image uint8 of shape (batch, height, width, 3), C-contiguous, label int64
    of shape (batch,). The next `for` is the next epoch, with another order, other crops and, in a cache, the next
    variant. The memory of a batch is its receiver's for as long as any array refers to it.

    Args:
        url: a dataset, at a path or a URL.
        split: which part of it.
        **options: see `LoaderOptions`.

    Raises:
        DatasetNotFoundError, ManifestError: there is no dataset that can be read.
        OptionError: options that do not fit it.
    """
    return NumpyLoader(open_dataset(url), split, LoaderOptions(**options))


class NumpyLoader:
    """See `numpy_loader`. One thread at a time iterates; closing is safe from any.

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
        names = resolve_columns(dataset.manifest, options.columns)
        columns = [find_column(dataset.manifest, name) for name in names if name not in (IMAGE, SAMPLE)]
        padded = (MASK,) if options.remainder == "pad" else ()
        self.form = BatchForm((*names, *padded), options.columns is None)
        self._dtypes: dict[str, np.dtype[Any]] = {
            IMAGE: np.dtype(np.uint8),
            SAMPLE: np.dtype(np.int64),
            MASK: np.dtype(np.bool_),
        }
        self._dtypes |= {column.name: column.empty(0).dtype for column in columns}
        self._decoder = Decoder(dataset, options.ops, options.seed)
        pool = BufferPool((options.batch_size, *self._decoder.batch_shape))
        self._threads = options.threads or available_cores()
        self._rows = Rows(self._decoder, pool, tuple(columns), cut_chunks(options.batch_size, self._threads))
        self._readers: dict[int, Reader] = {}
        self._stage: Stage | None = None
        self._executor: ThreadPoolExecutor | None = None
        self._world: World | None = None
        self._find_world = find
        self._lanes = options.lanes
        self._next_epoch, self._start = 0, 0
        self._current: EpochIterator | None = None

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(height, width, channels) of every image."""
        return self._decoder.batch_shape

    def column_dtype(self, name: str) -> np.dtype[Any]:
        """The dtype of a column's array."""
        return self._dtypes[name]

    @property
    def world(self) -> World:
        """Who this loader is, found out when it is first asked for."""
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
        if self._lanes % world.size:
            raise OptionError(
                f"{self._lanes} lanes cannot be dealt to {world.size} ranks; give lanes={default_lanes(world)}, or "
                "another multiple of the ranks"
            )
        return self._lanes

    def __len__(self) -> int:
        """Batches of an epoch, the same on every rank."""
        return len(self._share(0))

    def __iter__(self) -> "EpochIterator":
        """The next epoch."""
        epoch = self._next_epoch
        reader, order, start = self._open(epoch), self._order(epoch), self._start
        executor = self._executor  # `close` in another thread may take it away here
        if executor is None:
            executor = self._executor = ThreadPoolExecutor(self._threads, "tpufeed-decode")
        self._current = EpochIterator(
            Epoch(epoch, order, reader, self._share(self._start)),
            self._rows,
            self.form,
            executor,
            self.options.prefetch,
            # Not before: whole shards would take the network from the records of the first batch.
            self._plan_stage(epoch, start),
        )
        # Only now: an epoch that could not be opened is still to come, and so is the rest of a loaded one.
        self._next_epoch, self._start = epoch + 1, 0
        return self._current

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is epoch number `epoch`, from its start."""
        self._current = None
        self._next_epoch, self._start = int(epoch), 0

    def state_dict(self) -> dict[str, Any]:
        """Where the training loop is: what it has been handed, not what is prefetched. Plain data."""
        current = self._current
        epoch, samples = (self._next_epoch, self._start) if current is None else (current.epoch, current.samples)
        return self.state_at(epoch, samples)

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
        for name, value in self._identity.items():
            if state.get(name) != value:
                raise OptionError(f"the state's {name} is {state.get(name)!r}, this loader's {value!r}")
        epoch = _number(state, "epoch", 0, _LAST_EPOCH)
        samples = _number(state, "samples", 0, self._entry.records)
        lanes, ranks = _number(state, "lanes", 1, self._most_lanes), self.world.size
        if lanes % ranks:
            raise OptionError(
                f"the state's {lanes} lanes cannot be dealt to {ranks} ranks; go on with a number of ranks that "
                f"divides {lanes}"
            )
        if samples >= self._entry.records or not len(self._share(samples)):
            epoch, samples = epoch + 1, 0
        self._lanes = lanes
        self._current = None
        self._next_epoch, self._start = epoch, samples

    def close(self) -> None:
        """Stop the threads. A loader that is iterated again starts new ones."""
        current, executor = self._current, self._executor
        self._executor = None
        if current is not None:
            current.close()
        if executor is not None:
            executor.shutdown(wait=True, cancel_futures=True)
        if self.dataset.is_remote:
            for reader in self._readers.values():
                reader.release()
        if self._stage is not None:
            self._stage.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _identity(self) -> dict[str, Any]:
        """What a state and the loader that it is loaded into have in common."""
        return {
            "version": _STATE_VERSION,
            "content_digest": self.dataset.content_digest,
            "split": self.split,
            "seed": self.options.seed,
            "shuffle": self.options.shuffle,
        }

    @property
    def _most_lanes(self) -> int:
        return max(self._entry.records, _MOST_LANES, default_lanes(self.world))

    def _order(self, epoch: int) -> EpochOrder:
        return self._make_order(epoch)()

    def _make_order(self, epoch: int) -> Callable[[], EpochOrder]:
        shards = [shard.records for shard in self._entry.variants[epoch % len(self._entry.variants)].shards]
        return partial(EpochOrder, shards, self.options.seed, epoch, self.lanes, self.options.shuffle)

    def _open(self, epoch: int) -> Reader:
        """The reader of an epoch's variant; the others let go of what they hold in the stage."""
        variant = epoch % len(self._entry.variants)
        if self._stage is None and self.options.stage_bytes != 0 and self.dataset.is_remote:
            folder, budget = self.options.stage_dir, self.options.stage_bytes
            self._stage = Stage(
                self.dataset.shards,
                None if folder is None else Path(folder),
                None if budget is None else int(budget),
            )
        for other, reader in self._readers.items():
            if other != variant and self.dataset.is_remote:
                reader.release()
        if variant not in self._readers:
            # Twice the lanes: those that are read, and those that the batches ahead have come to.
            most = None if self._stage is None else max(_FEWEST_OPEN, 2 * len(self._lanes_read))
            self._readers[variant] = self.dataset.reader(self.split, variant, self._stage, most)
        return self._readers[variant]

    def _plan_stage(self, epoch: int, start: int) -> Callable[[], None]:
        """What tells the stage which shards are due in this epoch, and then in the next one."""
        if self._stage is None:
            return lambda: None
        variants, lanes = len(self._entry.variants), self._lanes_read
        following = self.dataset.reader(self.split, (epoch + 1) % variants)
        now = self._readers[epoch % variants], self._make_order(epoch), lanes, start
        then = following, self._make_order(epoch + 1), lanes, 0
        return partial(_fetch_ahead, self._stage, (now, then))

    @property
    def _lanes_read(self) -> range:
        """Lanes whose samples are this rank's."""
        return range(self.world.rank, self.lanes, self.world.size)

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


def _number(state: Mapping[str, Any], name: str, least: int, most: int) -> int:
    """A number of a state; checkpoints may hand it back as an array's element. Raises OptionError."""
    value = state.get(name)
    try:
        number = operator.index(value)  # type: ignore[arg-type]  # whatever is no whole number raises
    except TypeError:
        number = -1
    if isinstance(value, bool) or not least <= number <= most:
        raise OptionError(f"the state's {name} is {shown(value)}, not a whole number between {least} and {most}")
    return number


def _fetch_ahead(stage: Stage, parts: Iterable[tuple[Reader, Callable[[], EpochOrder], range, int]]) -> None:
    """No method: an iterator that held the loader would keep it, and its threads, from being dropped."""
    due: dict[RemoteShard, None] = {}
    for reader, make_order, lanes, start in parts:
        due |= dict.fromkeys(reader.due(make_order().due_shards(lanes, start)))
    stage.fetch(due)
