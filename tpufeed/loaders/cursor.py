"""Places in the epochs of a split: the samples of a rank's next batches, and the states that say where a loop is."""

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from tpufeed.dataset.order import EpochOrder, Places
from tpufeed.dataset.partition import Share, World, default_lanes
from tpufeed.dataset.reader import Dataset
from tpufeed.errors import OptionError
from tpufeed.images.parameters import shown
from tpufeed.loaders.batch import BatchRequest

_VERSION = 2  # of the order: 1 did not rotate shards
_PLANNED_SAMPLES = 1024


@dataclass(frozen=True)
class EpochCursor:
    """A place in an epoch, from which a rank's batches go on. Not thread-safe, as `EpochOrder` is not.

    Attributes:
        shard_records: of each variant the records of its shards.
        seed: of the order.
        lanes: of the order.
        shuffle: False reads in the dataset's own order.
        share: this rank's batches from the place on, which is global position `share.start`.
        epoch: the number of the epoch.
    """

    shard_records: Sequence[Sequence[int]]
    seed: int
    lanes: int
    shuffle: bool
    share: Share
    epoch: int = 0

    def at(self, epoch: int, samples: int = 0) -> "EpochCursor":
        """Return the place in `epoch` after so many samples of the whole world."""
        return replace(self, epoch=epoch, share=replace(self.share, start=samples))

    @cached_property
    def order(self) -> EpochOrder:
        """The global sequence of the epoch."""
        return EpochOrder(self.shard_records[self.variant], self.seed, self.epoch, self.lanes, self.shuffle)

    @property
    def variant(self) -> int:
        """Number of the variant that the epoch reads."""
        return self.epoch % len(self.shard_records)

    def samples_after(self, batches: int) -> int:
        """Return how many samples of the epoch the whole world has had after so many batches from this place on."""
        return min(self.share.records, self.share.start + batches * self.share.global_batch)

    def requests(self, first: int) -> Iterator[BatchRequest]:
        """Plan the next few batches, beginning with number `first` from this place on.

        To find the places of their samples costs 0.3 ms, for one batch as for several.
        """
        share = self.share
        stop = min(len(share), first + max(1, _PLANNED_SAMPLES // share.batch_size))
        positions, masks = zip(*map(share.positions, range(first, stop)), strict=True)
        places = self.order.places_at(np.concatenate(positions))
        for batch, mask in enumerate(masks):
            rows = slice(batch * share.batch_size, (batch + 1) * share.batch_size)
            yield BatchRequest(self.epoch, Places(*(column[rows] for column in places)), mask)

    def due_shards(self) -> Sequence[tuple[int, Sequence[int]]]:
        """Return the variants and shards that this rank reads from here to the end of the next epoch, in that order."""
        world, following = self.share.world, self.at(self.epoch + 1)
        lanes = range(world.rank, self.lanes, world.size)
        return (
            (self.variant, self.order.due_shards(lanes, self.share.start)),
            (following.variant, following.order.due_shards(lanes)),
        )


def identity_of(dataset: Dataset, split: str, seed: int, shuffle: bool) -> dict[str, Any]:
    """Return what a state and the loader that it is loaded into must have in common."""
    return {
        "version": _VERSION,
        "content_digest": dataset.content_digest,
        "split": split,
        "seed": seed,
        "shuffle": shuffle,
    }


def check_identity(state: Mapping[str, Any], identity: Mapping[str, Any], owner: str, url: str) -> None:
    """Raise OptionError where a state is of another dataset, split, seed, order or version.

    Args:
        state: the state to be loaded.
        identity: of what it is loaded into.
        owner: what that is, a loader or a sampler.
        url: of its dataset.
    """
    version = state.get("version")
    if version != _VERSION:
        found = f"the state's version is {shown(version)}, this {owner}'s {_VERSION}"
        if version is None or "epoch" not in state:
            raise OptionError(f"{found}: it is not what state_dict() gives")
        epoch = shown(state["epoch"])
        raise OptionError(
            f"{found}: it is of another tpufeed, which has the samples of an epoch in another order, so the rest of "
            f"epoch {epoch} is unknown here. Begin it again, with set_epoch({epoch}), or go on with the tpufeed that "
            "gave the state"
        )
    for name, value in identity.items():
        if state.get(name) != value:
            raise OptionError(
                f"the state's {name} is {state.get(name)!r}, this {owner}'s {value!r}: it is of another dataset, split "
                f"or order than {url} here. Load it into a {owner} made as the one that gave it"
            )


def check_state_lanes(lanes: int, world: World) -> None:
    """Raise OptionError where a state's lanes cannot be dealt to the ranks."""
    if not lanes or lanes % world.size:
        raise OptionError(
            f"the state's {lanes} lanes cannot be dealt to {world.size} ranks; go on with a number of ranks that "
            f"divides {lanes}"
        )


def check_lanes(lanes: int, world: World) -> None:
    """Raise OptionError, with a proposal, where lanes that were asked for cannot be dealt to the ranks."""
    if lanes % world.size:
        raise OptionError(
            f"{lanes} lanes cannot be dealt to {world.size} ranks; give lanes={default_lanes(world)}, or another "
            "multiple of the ranks"
        )


def state_number(state: Mapping[str, Any], name: str, least: int, most: int) -> int:
    """Return a number of a state; checkpoints may hand it back as an array's element. Raises OptionError."""
    value = state.get(name)
    try:
        number = operator.index(value)  # type: ignore[arg-type]  # anything but a whole number raises
    except TypeError:
        number = -1
    if isinstance(value, bool) or not least <= number <= most:
        raise OptionError(f"the state's {name} is {shown(value)}, not a whole number between {least} and {most}")
    return number
