"""Places in the epochs of a split: the samples of a rank's next batches, and the states that say where a loop is."""

import operator
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np

from tpufeed.dataset.order import EpochOrder, Places
from tpufeed.dataset.partition import Share, World, default_lanes
from tpufeed.dataset.reader import Dataset, open_dataset
from tpufeed.errors import DatasetNotFoundError, OptionError, mask_secrets
from tpufeed.loaders.batch import BatchRequest
from tpufeed.loaders.options import LoaderOptions
from tpufeed.loaders.sources import Source
from tpufeed.options import shown

VERSION = 2  # of the order: 1 did not rotate shards
LAST_EPOCH = 1 << 62
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
    due_every = sys.maxsize  # batches: all shards of the epoch are named at its start

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
        # Past the end of the epoch its samples come again, from the start.
        places = self.order.places_at(np.concatenate(positions) % share.records)
        for batch, mask in enumerate(masks):
            rows = slice(batch * share.batch_size, (batch + 1) * share.batch_size)
            yield BatchRequest(self.epoch, Places(*(column[rows] for column in places)), mask)

    def due_shards(self, batches: int = 0) -> Sequence[tuple[int, int, Sequence[int]]]:
        """Return (source, variant, shards) that this rank reads to the end of the next epoch, the first ones first.

        `batches` are done from this place on: their shards are open by now, so none of them is left out.
        """
        world, following = self.share.world, self.at(self.epoch + 1)
        lanes = range(world.rank, self.lanes, world.size)
        return (
            (0, self.variant, self.order.due_shards(lanes, self.share.start)),
            (0, following.variant, following.order.due_shards(lanes)),
        )


class DatasetFeed:
    """One dataset as a loader reads it: its epochs, and what its states hold.

    Args:
        source: the dataset.
        options: of the loader.
    """

    shares = (1.0,)
    is_endless = False
    run = None  # as of a mixture

    def __init__(self, source: Source, options: LoaderOptions) -> None:
        self.sources = (source,)
        self._options = options

    @property
    def url(self) -> str:
        """URL of the dataset."""
        return self.sources[0].dataset.url

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes; a label is a place among them."""
        return self.sources[0].dataset.manifest.class_names

    @property
    def most_lanes(self) -> int:
        """Lanes that the order may have: one a sample at most."""
        return self.sources[0].entry.records

    def records(self, lanes: int) -> int:  # as `MixtureFeed.records`
        """Return the samples of an epoch."""
        return self.sources[0].entry.records

    def cursor(self, lanes: int, share: Share) -> EpochCursor:
        """Return the start of epoch 0, whose share is `share`."""
        variants = [[shard.records for shard in variant.shards] for variant in self.sources[0].entry.variants]
        return EpochCursor(variants, self._options.seed, lanes, self._options.shuffle, share)

    def state(self, epoch: int, lanes: int, samples: int, share: Share) -> dict[str, Any]:
        """Return the state after `samples` samples of the whole world in `epoch`."""
        return {**self._identity, "epoch": epoch, "lanes": lanes, "samples": samples}

    def resumed(self, state: Mapping[str, Any], lanes: int) -> tuple[Self, int, int]:
        """Return the feed that continues from `state`, the epoch, and the samples of it that were given.

        Raises:
            OptionError: it is of something else, or of an older version and the dataset was not opened with `grown`; or
                one of its numbers cannot be.
        """
        state = grow_state(state, self.sources[0].dataset)
        check_identity(state, self._identity, "loader", self.url)
        samples = state_number(state, "samples", 0, self.sources[0].entry.records)
        return self, state_number(state, "epoch", 0, LAST_EPOCH), samples

    def with_run(self, run: None) -> Self:
        """Return the feed of a loader that was copied."""
        return self

    def after(self, samples: int) -> Self:
        """Return the feed for the epoch after one of which all samples were given."""
        return self

    def restarted(self, epoch: int) -> Self:
        """Return the feed for an epoch that is read from its start."""
        return self

    @property
    def _identity(self) -> dict[str, Any]:
        source, options = self.sources[0], self._options
        return identity_of(source.dataset, source.split, options.seed, options.shuffle)


def identity_of(dataset: Dataset, split: str, seed: int, shuffle: bool) -> dict[str, Any]:
    """Return what a state and the loader that it is loaded into must have in common."""
    return {
        "version": VERSION,
        "content_digest": dataset.content_digest,
        **({} if dataset.number == 1 else {"dataset_version": dataset.number}),
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
    check_version(state, owner)
    for name, value in identity.items():
        if state.get(name) != value:
            raise OptionError(
                f"the state's {name} is {state.get(name)!r}, this {owner}'s {value!r}: it is of another dataset, split "
                f"or order than {url} here. Load it into a {owner} made as the one that gave it"
            )


def grow_state(state: Mapping[str, Any], dataset: Dataset) -> Mapping[str, Any]:
    """Return a state as it is in this version of its dataset: one of an older version is moved to its next epoch.

    An epoch of which no sample was given is still to come.

    Raises:
        OptionError: it is of an older version, and the dataset was not opened with `grown`.
    """
    digest, past = state.get("content_digest"), dataset.manifest.past_digests
    if digest == dataset.content_digest or digest not in past:
        return state
    if not dataset.grown:
        raise has_grown_since(dataset, past.index(digest) + 1)
    epoch, samples = (state_number(state, name, 0, LAST_EPOCH) for name in ("epoch", "samples"))
    now = {"content_digest": dataset.content_digest, "dataset_version": dataset.number}
    return {**state, **now, "epoch": epoch + (samples > 0), "samples": 0}


def has_grown_since(dataset: Dataset, number: int) -> OptionError:
    """Return what to raise for a state of an older version of a dataset, `number`."""
    url = mask_secrets(dataset.url)
    try:
        open_dataset(dataset.url, number)
        kept = f"tpufeed.open_dataset({url!r}, version={number})"
    except DatasetNotFoundError:
        kept = "pruned since"
    return OptionError(
        f"the state is of version {number} of {url}, which has grown: this is version {dataset.number}. To continue "
        f"exactly where it was, read that version ({kept}); to continue with the next epoch of this one, give "
        f"tpufeed.open_dataset({url!r}, grown=True)"
    )


def check_version(state: Mapping[str, Any], owner: str) -> None:
    """Raise OptionError where a state is of another version of the order."""
    version = state.get("version")
    if version != VERSION:
        found = f"the state's version is {shown(version)}, this {owner}'s {VERSION}"
        if version is None or "epoch" not in state:
            raise OptionError(f"{found}: it is not what state_dict() gives")
        epoch = shown(state["epoch"])
        raise OptionError(
            f"{found}: it is of another tpufeed, which has the samples of an epoch in another order, so the rest of "
            f"epoch {epoch} is unknown here. Begin it again, with set_epoch({epoch}), or go on with the tpufeed that "
            "gave the state"
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
