"""torch: a DistributedSampler in the order of tpufeed's loaders, which keeps reads local."""

import sys
from collections.abc import Iterator, Mapping
from typing import Any

from torch.utils.data import DistributedSampler

from tpufeed.adapters.torch.host import TFRecordImages
from tpufeed.dataset.order import EpochOrder, Remainder, Share, World, check_lanes, default_lanes
from tpufeed.errors import OptionError
from tpufeed.options import Count, Whole, checked
from tpufeed.stream.training import Epoch, check_identity, grow_state, identity_of, state_number
from tpufeed.stream.world import find_world, thread_world
from tpufeed.text import format_value

_CHUNK = 4096  # ids that are computed at once
_MOST = 1 << 48  # the highest number in a state
_BY_HAND = "num_replicas= and rank= by hand"


class LaneSampler(DistributedSampler[int]):
    """Ids of a `TFRecordImages` in the order of tpufeed's loaders: with the same seed and lanes, `Loader`'s.

    It replaces DistributedSampler in a DataLoader. Lightning then adds none. A rank reads its share of the shards, a
    few at a time, so each remote shard is copied whole and once. Every world size that divides the lanes gives the same
    global sequence: rank r of W has every W-th id, starting with the r-th.

    Call `set_epoch` before each epoch, as with DistributedSampler. It sets the dataset's epoch, too.

    Args:
        dataset: the dataset that the DataLoader reads.
        num_replicas: number of ranks. By default what torch_xla, torch.distributed or JAX says when the first id is
            asked for, or else one.
        rank: number of this rank.
        shuffle: False reads in the dataset's own order.
        seed: seed of the order.
        drop_last: True drops samples that do not make up one more for each rank, else the epoch's first samples
            complete them.
        lanes: lanes of the order, see `dataset.order`: a multiple of the ranks. By default 16, or 2 per rank if that is
            more.

    Raises:
        OptionError: the dataset is not a TFRecordImages, or numbers do not fit together; raised by `len` or `iter` if
            the world is only found there.
    """

    dataset: TFRecordImages

    @checked()
    def __init__(  # noqa: PLR0913  # DistributedSampler's own parameters
        self,
        dataset: TFRecordImages,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: Whole = 0,
        drop_last: bool = False,
        *,
        lanes: Count | None = None,
    ) -> None:
        # Not DistributedSampler's `__init__`, which needs the world before ranks are launched.
        if not isinstance(dataset, TFRecordImages):
            raise OptionError(
                f"LaneSampler reads the shards of a tpufeed.TFRecordImages, not of {format_value(dataset)}"
            )
        if (num_replicas is None) != (rank is None):
            raise OptionError(f"num_replicas={num_replicas} and rank={rank}: give both or neither")
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.drop_last = drop_last
        self.epoch = 0
        self._lanes = lanes
        self._begun = 0, 0  # an epoch, and its sample to begin with
        self._told = False  # `set_epoch` was called, and no iteration has begun since
        self._next: int | None = None  # the epoch of the next iteration, if a state has moved `epoch` meanwhile
        self._given = None if num_replicas is None or rank is None else World(rank, num_replicas)
        self._of_thread = thread_world(_BY_HAND) if self._given is None else None
        if self._given is not None:
            _ = self.lanes  # raises if numbers do not fit together

    @property
    def world(self) -> World:
        """World of this rank. Looked up each time unless given, as copies may go to other ranks."""
        if self._given is not None:
            return self._given
        world = self._of_thread or find_world(_BY_HAND)
        accelerate = sys.modules.get("accelerate.state")
        if world.size > 1 and accelerate is not None and accelerate.PartialState._shared_state:
            raise OptionError(
                "Accelerate deals the batches of a prepared loader to its processes, and LaneSampler would deal the "
                f"samples, too: give {_BY_HAND}; for a prepared loader num_replicas=1 and rank=0"
            )
        return world

    @property
    def num_replicas(self) -> int:  # type: ignore[override]  # an attribute that is set before it is known
        """Number of ranks."""
        return self.world.size

    @property
    def rank(self) -> int:  # type: ignore[override]
        """Rank of this process."""
        return self.world.rank

    @property
    def lanes(self) -> int:
        """Lanes of the order."""
        if self._lanes is None:
            return default_lanes(self.world) if self.shuffle else self.world.size
        check_lanes(self._lanes, self.world)
        return self._lanes

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._of_thread = thread_world(_BY_HAND) if self._given is None else None  # a copy may belong to another rank

    def __len__(self) -> int:
        """Return the number of ids that the next `iter` gives, the same on every rank."""
        return len(self._share(1))

    def __iter__(self) -> "LaneIterator":
        """Return this rank's ids of the epoch that is set when the first id is asked for."""
        return LaneIterator(self)

    @checked()
    def set_epoch(self, epoch: Epoch) -> None:
        """Make this the epoch of the next iteration, and of the dataset."""
        self._told, self._next = True, None
        self._go_to(epoch)

    def _go_to(self, epoch: int) -> None:
        self.epoch = epoch
        self.dataset.set_epoch(epoch)

    def state_at(self, samples: int) -> dict[str, Any]:
        """Return the state of this epoch after `samples` samples of all ranks: steps * batch size * ranks.

        Only the training loop knows how many that is: DataLoader asks for ids ahead of it.
        """
        samples = state_number({"samples": samples}, "samples", 0, _MOST)  # numpy's integers are not JSON
        return {**self._identity, "epoch": self.epoch, "lanes": self.lanes, "samples": samples}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state` says, also with another number of ranks: the state's epoch has only the rest.

        Raises:
            OptionError: the state is of another dataset, split, seed or order, or its lanes cannot be dealt to the
                ranks. The sampler is unchanged then.
        """
        self._begun = self._move(state)
        self._told, self._next = False, None

    def _move(self, state: Mapping[str, Any]) -> tuple[int, int]:
        """Take epoch and lanes from a state. Return the epoch, and the samples of it that all ranks have had."""
        state = grow_state(state, self.dataset.dataset)
        check_identity(state, self._identity, "sampler", self.dataset.dataset.url)
        epoch, samples, lanes = (state_number(state, name, 0, _MOST) for name in ("epoch", "samples", "lanes"))
        check_lanes(lanes, self.world, of_state=True)
        if samples and not len(self._share(1, samples)):  # the end of an epoch is the start of the next one
            epoch, samples = epoch + 1, 0
        self._lanes = lanes
        self._go_to(epoch)
        return epoch, samples

    @property
    def num_samples(self) -> int:  # type: ignore[override]
        """DistributedSampler's name for `len`."""
        return len(self)

    @property
    def total_size(self) -> int:  # type: ignore[override]
        """Number of ids of all ranks together."""
        return len(self) * self.world.size

    @property
    def _identity(self) -> dict[str, Any]:
        return identity_of(self.dataset.dataset, self.dataset.split, self.seed, self.shuffle)

    def _share(self, samples: int, start: int | None = None) -> Share:
        """Return this rank's part of an epoch, `samples` at a time, from `start` on or from a state's place."""
        if start is None:
            epoch, begun = self._begun
            start = begun if epoch == self.epoch else 0
        remainder: Remainder = "drop" if self.drop_last else "repeat"
        share = Share(len(self.dataset), samples, self.world, remainder, start, wraps=True)
        if not start and not len(self.dataset) // (self.world.size if self.drop_last else 1):
            raise OptionError(
                f"{len(self.dataset)} samples of split {self.dataset.split!r} leave none for each of "
                f"{self.world.size} ranks{' with drop_last=True' if self.drop_last else ''}"
            )
        return share


class LaneIterator(Iterator[int]):
    """Ids of an epoch, with a state after the last id, which torchdata's StatefulDataLoader looks for here.

    A state loaded here moves this iterator and the sampler's epoch. The sampler's length stays that of a whole epoch.
    """

    def __init__(self, sampler: LaneSampler) -> None:
        self._sampler = sampler
        self._ids: Iterator[int] | None = None
        self._epoch = self._samples = 0  # number of the epoch, and its samples handed out to all ranks together
        self._ranks = 1

    def __next__(self) -> int:
        sampler = self._sampler
        if self._ids is None:
            self._begin()
            sampler._told, sampler._next = False, None
        number = next(self._ids)  # type: ignore[arg-type]  # which `_begin` has set
        self._samples += self._ranks
        return number

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the ids handed out so far, the same on all ranks, see `LaneSampler.state_at`."""
        if self._ids is None:
            self._find_epoch()
            return self._sampler.state_at(self._sampler._share(1).start)
        samples = min(self._samples, len(self._sampler.dataset))  # without repeated ones
        return {**self._sampler.state_at(samples), "epoch": self._epoch}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state` says. At the end of an epoch no id is left. Raises OptionError as the sampler does.

        The next iteration reads the epoch that `set_epoch` was given before, or else the one after the state's epoch.
        If the state is of an epoch's end, StatefulDataLoader begins that iteration at once. Ids alone could not tell
        the end: with `drop_last` some are left over.
        """
        sampler = self._sampler
        told = sampler.epoch if sampler._told else None
        epoch, samples = sampler._move(state)
        self._begin(samples)
        if epoch > state["epoch"]:
            self._ids = iter(())
        sampler._told, sampler._next = False, int(state["epoch"]) + 1 if told is None else told

    def _find_epoch(self) -> None:
        """Move the sampler to the epoch of an iteration that begins."""
        if self._sampler._next is not None:
            self._sampler._go_to(self._sampler._next)

    def _begin(self, start: int | None = None) -> None:
        sampler, dataset = self._sampler, self._sampler.dataset
        if start is None:
            self._find_epoch()
        records = dataset.dataset.shard_records(dataset.split)
        order = EpochOrder(records, sampler.seed, sampler.epoch, sampler.lanes, sampler.shuffle)
        share, left = sampler._share(_CHUNK, start), len(sampler._share(1, start))
        self._epoch, self._samples, self._ranks = sampler.epoch, share.start, share.world.size

        def ids() -> Iterator[int]:
            for chunk in range(-(-left // _CHUNK)):
                positions = share.positions(chunk)[0][: left - chunk * _CHUNK]
                yield from order.places_at(positions).sample.tolist()

        self._ids = ids()
