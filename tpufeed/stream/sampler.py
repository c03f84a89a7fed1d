"""Choose the samples of each batch, and their order: the part of a loader that reads no record.

A `DatasetStream` or a `MixtureStream` has all samples of a training. A `Cursor` plans the batches of an epoch from it.
The `Sampler` knows datasets and training, and makes both.
"""

import hashlib
import itertools
import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from typing import Any, NamedTuple, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from tpufeed.dataset.manifest import Split
from tpufeed.dataset.mixture import SHARES, MixtureOrder, Phase
from tpufeed.dataset.order import EpochOrder, Ints, Places, Repeats, Share, World, check_lanes, default_lanes
from tpufeed.dataset.reader import ClassIds, Dataset, own_ids
from tpufeed.errors import OptionError
from tpufeed.stream.mixture import ClassList, Mixture, Stop, join_classes
from tpufeed.stream.options import LoaderOptions
from tpufeed.stream.training import (
    LAST,
    Training,
    begin_training,
    check_identity,
    decode_training,
    grow_state,
    identity_of,
    passes_of,
    state_number,
)

_logger = logging.getLogger(__name__)
_MOST_LANES = 1 << 16  # or one per sample, or the default of a larger world: each takes memory
_LATER = 1 << 20  # epochs, more than any training has: later ones have the random numbers of repeats
_KEPT_ORDERS = 3  # epochs of a dataset that lanes read at the same time


class BatchRequest(NamedTuple):
    """The samples of a batch that is to be decoded.

    Attributes:
        epoch: their epoch. In a mixture the epoch of each sample's dataset, int64 (batch,).
        places: their places.
        mask: False for padding.
        source: in a mixture the number of each sample's dataset, int64 (batch,), else None.
    """

    epoch: int | Ints
    places: Places
    mask: npt.NDArray[np.bool_]
    source: Ints | None = None


@dataclass(frozen=True)
class SampleSource:
    """A split of a dataset that a loader draws samples from.

    Attributes:
        dataset: the dataset.
        split: the name of the split.
        classes: the ids that its labels get.
        salt: makes its random numbers differ from those of a mixture's other datasets, see `salt_of`.
    """

    dataset: Dataset
    split: str
    classes: ClassIds
    salt: int = 0

    @cached_property
    def entry(self) -> Split:
        """The split, with the number of samples that a view keeps."""
        return self.dataset.split(self.split)

    @property
    def kept(self) -> float:
        """The part of the split's records that is read: less than 1 for a view."""
        return self.entry.records / max(1, self.dataset.manifest.splits[self.split].records)

    def epoch_orders(self, options: "LoaderOptions", lanes: int, passes: int = 1) -> Callable[[int], EpochOrder]:
        """Return a function that gives the order of an epoch, and keeps the last few orders.

        `passes` is how often an epoch reads the dataset: the shards of pass p have the numbers from p * shards on.
        """
        seed, shuffle = options.seed ^ self.salt, options.shuffle
        numbers = range(len(self.entry.variants))
        records, repeats = (
            [self.dataset.shard_records(self.split, number) * passes for number in numbers],
            self._repeats,
        )

        def shard_records(epoch: int) -> list[int]:
            if repeats is None:
                return records[epoch % len(records)]
            read = range(epoch * passes, (epoch + 1) * passes)
            return [*itertools.chain.from_iterable(repeats.shard_records(seed, each) for each in read)]

        return lru_cache(_KEPT_ORDERS)(lambda epoch: EpochOrder(shard_records(epoch), seed, epoch, lanes, shuffle))

    def repeated(self, places: Places, epochs: Ints, seed: int) -> tuple[Places, Ints]:
        """Return the places in a view of samples that come as often as their weights say, and their epochs.

        Each time a sample comes in an epoch it has the random numbers of a later epoch that reads the same variant.
        """
        if self._repeats is None:
            return places, epochs
        variants = len(self.entry.variants)
        samples, before = self._repeats.find(seed ^ self.salt, epochs, places.sample)
        epochs = epochs + before % (_LATER // variants) * (variants * _LATER)
        return Places(places.shard, places.record, samples), epochs

    @cached_property
    def _repeats(self) -> Repeats | None:
        chosen = self.dataset.chosen(self.split)
        if chosen is None or chosen.weights is None:
            return None
        return Repeats(chosen.weights, np.cumsum([0, *self.dataset.shard_records(self.split)]))

    def to_stored(self, places: Places) -> Places:
        """Return the places in the dataset of samples with these places in the order of a view, or of the whole."""
        chosen = self.dataset.chosen(self.split)
        if chosen is None:
            return places
        sample = chosen.samples(places.sample)
        return Places(places.shard, sample - self._first_samples[places.shard], sample)

    @cached_property
    def _first_samples(self) -> Ints:
        """The first sample of each shard."""
        records = [shard.records for shard in self.entry.variants[0].shards]
        return np.cumsum([0, *records[:-1]])

    @property
    def label(self) -> str:
        """The dataset's URL without secrets, and what a view selects, for messages."""
        return self.dataset.label


def salt_of(root: int) -> int:
    """Return the salt for the order and ops of a dataset, by its number in the training. Later versions keep it.

    Without salts, datasets of equal shards would have the same order, and equal ids the same crops. The first dataset
    has the random numbers that it has alone.
    """
    return int.from_bytes(hashlib.blake2b(b"source %d" % root, digest_size=7).digest(), "little") if root else 0


class DatasetStream:
    """The epochs of one dataset, end to end, the same for any number of ranks. Each has all samples, in its own order.

    For one thread.

    Attributes:
        lanes: lanes of the order.
        records: samples of an epoch.
        first: the position from which all samples belong to datasets that are still there.
        at_once: number of samples to draw at once.
        due_again: number of samples after which `due_shards` names new shards.
    """

    first, at_once = 0, 1024

    def __init__(self, source: SampleSource, options: LoaderOptions, lanes: int) -> None:
        self.lanes, self.records, self.due_again = lanes, source.entry.records, source.entry.records
        self._variants, self._source = len(source.entry.variants), source
        self._order = source.epoch_orders(options, lanes)

    def draw(self, epoch: int, begun: int, positions: Ints) -> tuple[None, int, Places]:
        """Return source, epoch and place of the sample at each position of an epoch, as in `BatchRequest`."""
        return None, epoch, self._source.to_stored(self._order(epoch).places_at(positions))

    def due_shards(self, lanes: Sequence[int], position: int, horizon: int) -> list[tuple[int, int, list[int]]]:
        """Return (source, variant, shards) that lanes read to the end of the next epoch, the first ones due first."""
        epoch, done = divmod(position, self.records)
        now, following = self._order(epoch).due_shards(lanes, done), self._order(epoch + 1).due_shards(lanes)
        return [(0, epoch % self._variants, now), (0, (epoch + 1) % self._variants, following)]


class MixtureStream:
    """The samples of several datasets, drawn in exact shares. Attributes and methods are those of `DatasetStream`.

    Args:
        training: its datasets and phases.
        sources: the datasets of the training that are still there.
        options: the loader's options.
        lanes: lanes of the order.
        stop: what ends an epoch, as in `Mixture`.

    A dataset with fewer samples than there are lanes is read several times in its epochs, so that each lane has a
    sample of it. Each pass has its own random numbers.
    """

    at_once = 8192  # each dataset and epoch among them costs a look-up in its order

    def __init__(
        self, training: Training, sources: Sequence[SampleSource], options: LoaderOptions, lanes: int, stop: Stop
    ) -> None:
        self.lanes, self._training, self._sources, self._seed = lanes, training, sources, options.seed
        self._draws = MixtureOrder(training.phases, lanes, training.seed)
        self._variants = [len(source.entry.variants) for source in sources]
        self._passes = [passes_of(source.entry.records, lanes) for source in sources]
        self._orders = [
            source.epoch_orders(options, lanes, passes) for source, passes in zip(sources, self._passes, strict=True)
        ]
        # The number of each present dataset in the training, and the reverse: -1 for a dataset that is not there.
        digests = [each.digest for each in training.sources]
        self._numbers = [digests.index(source.dataset.content_digest) for source in sources]
        self._members = np.full(len(digests), -1)
        self._members[self._numbers] = range(len(sources))
        self._records = np.asarray([each.epoch_records(lanes) for each in training.sources], np.int64)
        self._epochs = np.asarray([each.epoch for each in training.sources], np.int64)
        *past, (_, shares) = training.phases
        ends = (number for number, phase in enumerate(past, 1) if np.any(phase.shares, where=self._members < 0))
        self.first = training.phases[max(ends, default=0)].first
        self.records = self._epoch_samples(stop)
        self.due_again = min(int(self._records[each] * SHARES / shares[each]) for each in self._numbers)

    def draw(self, epoch: int, begun: int, positions: Ints) -> tuple[Ints, Ints, Places]:
        """Return source, epoch and place of the sample at each position of an epoch, which begins at `begun`."""
        at, lane = np.divmod(positions + begun, self.lanes)
        drawn, number = np.empty_like(positions), np.empty_like(positions)
        for each in np.unique(lane).tolist():
            rows = np.flatnonzero(lane == each)
            rows = rows[np.argsort(at[rows], kind="stable")]
            drawn[rows], number[rows] = self._draws.draw(each, at[rows])
        records = self._records[drawn]
        length = records // self.lanes + (lane < records % self.lanes)
        epochs, place = self._epochs[drawn] + number // length, (number % length) * self.lanes + lane
        source = self._members[drawn]
        found = Places(*(np.empty(len(positions), np.int64) for _ in Places._fields))
        for each, its_epoch, rows in group_rows(source, epochs):
            places = self._orders[each](its_epoch).places_at(place[rows])
            if (passes := self._passes[each]) > 1:
                number, shard = np.divmod(places.shard, len(self._sources[each].entry.variants[0].shards))
                sample = places.sample - number * self._sources[each].entry.records
                places, epochs[rows] = Places(shard, places.record, sample), its_epoch * passes + number
            places, epochs[rows] = self._sources[each].repeated(places, epochs[rows], self._seed)
            for column, values in zip(found, self._sources[each].to_stored(places), strict=True):
                column[rows] = values
        return source, epochs, found

    def _epoch_samples(self, stop: Stop) -> int:
        """Count the samples of an epoch as if the training had begun with the present shares."""
        training, ends, near, longest = self._training, list[int](), 0, stop != "shortest"
        if stop == "total":
            return self.lanes * max(1, round(sum(source.entry.records for source in self._sources) / self.lanes))
        order = MixtureOrder([Phase(0, training.phases[-1].shares)], self.lanes, training.seed)
        for lane in range(self.lanes):
            wholes = np.full(len(self._records), 0 if longest else LAST)
            wholes[self._numbers] = [training.sources[each].lane_length(lane, self.lanes) for each in self._numbers]
            near = order.first_where(lane, partial(_is_through, wholes, longest), near)
            ends.append(near)
        return self.lanes * (max(ends) if longest else min(ends) - 1)

    def due_shards(self, lanes: Sequence[int], position: int, horizon: int) -> list[tuple[int, int, list[int]]]:
        """Do the same, but leave out shards that are due in `horizon` samples or later."""
        due = list[tuple[float, int, int, int]]()
        given = {lane: self._draws.counts(lane, self._draws.number_at(lane, position)) for lane in lanes}
        now = [phase for phase in self._training.phases if phase.first <= position][-1]
        for source, number in enumerate(self._numbers):
            trained, share = self._training.sources[number], now.shares[number] / SHARES
            if not share:
                continue
            counts = {lane: int(given[lane][number]) for lane in lanes}
            lengths = {lane: trained.lane_length(lane, self.lanes) for lane in lanes}
            first, start = min(counts[lane] // lengths[lane] for lane in lanes), min(counts.values())
            for epoch in (first, first + 1):
                read = {lane: max(0, counts[lane] - epoch * lengths[lane]) for lane in lanes}
                for shard, place in self._orders[source](trained.epoch + epoch).due_positions(read).items():
                    when = (epoch * int(self._records[number]) + place - start * self.lanes) / share
                    if when < horizon:
                        again, stored = divmod(shard, len(self._sources[source].entry.variants[0].shards))
                        at = (trained.epoch + epoch) * self._passes[source] + again
                        due.append((when, source, at % self._variants[source], stored))
        return [(source, variant, [shard]) for _, source, variant, shard in sorted(due)]


def _is_through(wholes: Ints, longest: bool, counts: Ints) -> bool:
    """Return True if every dataset was read once (`longest`), or else if one has begun its next epoch."""
    return bool((counts >= wholes).all() if longest else (counts > wholes).any())


def group_rows(source: Ints, epoch: int | Ints) -> list[tuple[int, int, Ints]]:
    """Return (source, epoch, rows) for each pair of source and epoch that occurs, in rising order."""
    if not len(source):
        return []
    epochs = np.broadcast_to(epoch, source.shape)
    order = np.lexsort((epochs, source))
    source, epochs = source[order], epochs[order]
    starts = [0, *(np.flatnonzero(np.diff(source) | np.diff(epochs)) + 1).tolist()]
    found = zip(starts, [*starts[1:], len(order)], strict=True)
    return [(int(source[start]), int(epochs[start]), order[start:stop]) for start, stop in found]


Samples: TypeAlias = DatasetStream | MixtureStream


@dataclass(frozen=True, slots=True)
class Cursor:
    """A place in an epoch from which a rank's batches continue. For one thread.

    Attributes:
        stream: all samples of the training.
        begun: position of the epoch's first sample in the stream.
        share: this rank's batches of the epoch from that place on.
        epoch: the number of the epoch.
    """

    stream: Samples
    begun: int
    share: Share
    epoch: int

    @property
    def due_every(self) -> int:
        """Number of batches after which `due_shards` names new shards."""
        return -(-self.stream.due_again // self.share.global_batch)

    def requests(self) -> Iterator[BatchRequest]:
        """Plan the batches from this place to the end of the epoch, a few at a time.

        For one dataset a few take about 0.1 ms. The first request of an epoch also makes the epoch's order.
        """
        share = self.share
        numbers, size = range(len(share)), share.batch_size
        at_once = max(1, self.stream.at_once // size)
        for first in numbers[::at_once]:
            positions, masks = zip(*map(share.positions, numbers[first : first + at_once]), strict=True)
            source, epoch, places = self.stream.draw(self.epoch, self.begun, np.concatenate(positions))
            for batch, mask in enumerate(masks):
                rows = slice(batch * size, (batch + 1) * size)
                yield BatchRequest(
                    epoch if isinstance(epoch, int) else epoch[rows],
                    Places(*(column[rows] for column in places)),
                    mask,
                    None if source is None else source[rows],
                )

    def due_shards(self, batches: int = 0) -> list[tuple[int, int, list[int]]]:
        """Return (source, variant, shards) that this rank reads from batch `batches` to the end of the next epoch."""
        world, done = self.share.world, self.share.samples_after(batches)
        lanes = range(world.rank, self.stream.lanes, world.size)
        return self.stream.due_shards(lanes, self.begun + done, max(0, 2 * self.share.records - done))


class Sampler(ABC):
    """The order of a training's samples, and its states. All ranks have equal samplers, and pass their world.

    Each kind is made of what to read, a split, the loader's options, and the training to continue: by default a new
    one. To continue another training, make another sampler. For one thread.

    Attributes:
        options: the loader's options. With a mixture that never stops, `repeat` is True.
        sources: the datasets with their classes, in the order of the mixture's weights.
        shares: the share of the samples that each dataset gives.
        training: the datasets drawn from since the training began. It has the lanes once they are known.
    """

    wraps = False  # True if the first samples of an epoch complete its last batch, not those of the next epoch

    def __init__(
        self, options: LoaderOptions, sources: Sequence[SampleSource], shares: Sequence[float], training: Training
    ) -> None:
        self.options, self.sources, self.shares = options, tuple(sources), tuple(shares)
        self.training, self._split = training, sources[0].split
        self._stream: Samples | None = None

    @property
    @abstractmethod
    def label(self) -> str:
        """The dataset's URL without secrets, or the mixture's description, for messages."""

    @abstractmethod
    def _open_stream(self, lanes: int) -> Samples:
        """Return the stream with this number of lanes."""

    @abstractmethod
    def _begin_of(self, epoch: int, records: int, share: Share) -> int:
        """Return the position of an epoch's first sample. Raises OptionError if it is not known."""

    @abstractmethod
    def _training_of(self, state: Mapping[str, Any], most_lanes: int) -> Training:
        """Return the training that a state continues. Raises as `resumed` does."""

    @abstractmethod
    def _with(self, training: Training) -> Self:
        """Return a sampler of the same datasets that continues a training."""

    def stream(self, world: World) -> Samples:
        """Return the stream of all samples. Lanes that were neither given nor loaded are the default of this world.

        Raises OptionError if there are too many lanes, or they cannot be dealt to the ranks.
        """
        if self._stream is None:
            lanes = self.training.lanes
            if lanes is None:
                lanes = default_lanes(world) if self.options.shuffle else world.size
                self.training = replace(self.training, lanes=lanes)
            else:
                if lanes > (most := self._most_lanes(world)):
                    raise OptionError(f"lanes are at most {most} for the split {self._split!r}, not {lanes}")
                check_lanes(lanes, world)
            self._stream = self._open_stream(lanes)
        return self._stream

    def share(self, world: World, start: int = 0) -> Share:
        """Return the batches of a rank from sample `start` of an epoch on. Raises OptionError if an epoch has none."""
        records, options = self.stream(world).records, self.options
        share = Share(records, options.batch_size, world, options.remainder, start, wraps=self.wraps)
        if not start and not len(share):
            most = share.records // world.size
            raise OptionError(
                f"{self.label}: the {share.records} samples of split {self._split!r} fill no batch of "
                f"{share.batch_size} on each of {world.size} ranks, and remainder='drop' leaves none; give "
                f"{f'a batch_size of at most {most}, or ' if most else ''}remainder='pad' or 'repeat'"
            )
        return share

    def cursor(self, world: World, epoch: int, samples: int = 0) -> Cursor:
        """Return the place in `epoch` after `samples` samples of the whole world.

        Raises:
            OptionError: the start of the epoch is unknown, or the epoch has samples of a dataset that is gone.
        """
        stream, share = self.stream(world), self.share(world)
        begun = self._begin_of(epoch, stream.records, share)
        if begun + samples < stream.first:
            raise OptionError(
                f"epoch {epoch} has samples of a dataset that was left out later, at sample {stream.first} of the "
                f"training: put it back into the mixture, or set an epoch from {self.training.epoch + 1} on"
            )
        return Cursor(stream, begun, replace(share, start=samples), epoch)

    def state(self, world: World, epoch: int, samples: int) -> dict[str, Any]:
        """Return the state after `samples` samples of the whole world in `epoch`, the same on every rank."""
        return {**self._identity, "epoch": epoch, "lanes": self.stream(world).lanes, "samples": samples}

    def resumed(self, state: Mapping[str, Any], world: World) -> Self:
        """Return the sampler that continues from `state`: from `samples` of `epoch` of its training.

        Raises OptionError if the state does not belong to this dataset or mixture; if it has an older version of a
        dataset, or other weights or datasets, and `grown` or `reweight` do not allow that, or if one of its numbers is
        impossible.
        """
        training = self._training_of(state, self._most_lanes(world))
        assert training.lanes is not None, "a state has them"
        check_lanes(training.lanes, world, of_state=True)
        sampler = self.continued(training)
        share = sampler.share(world, training.samples)
        if not len(share):  # the end of an epoch is the start of the next one
            sampler = self.continued(
                replace(training, epoch=training.epoch + 1, begun=training.begun + training.samples, samples=0)
            )
        there, here = (len(each.training.classes.names) for each in (sampler, self))
        if there > here:
            _logger.warning(
                "%s: the training that continues has %d classes, of which these datasets hold %d. `class_names` has "
                "all of them: give the model as many outputs",
                self.label,
                there,
                here,
            )
        return sampler

    def restarted(self, epoch: int) -> Self:
        """Return the sampler that reads an epoch from its start, even if the training continued in the middle of it."""
        training = self.training
        return self.continued(replace(training, samples=0)) if epoch == training.epoch and training.samples else self

    def continued(self, training: Training) -> Self:
        """Return the sampler that continues a training. It keeps this one's `sources` if nothing changes in them."""
        found = self._with(training)
        salts = [[source.salt for source in sampler.sources] for sampler in (self, found)]
        if found.training.classes == self.training.classes and salts[0] == salts[1]:
            found.sources = self.sources
        return found

    def _most_lanes(self, world: World) -> int:
        return max(min(source.entry.records for source in self.sources), _MOST_LANES, default_lanes(world))

    @property
    def _identity(self) -> dict[str, Any]:
        return identity_of(None, self._split, self.options.seed, self.options.shuffle)


class DatasetSampler(Sampler):
    """The sampler of one dataset, whose states name it. Raises OptionError if the split is empty."""

    wraps = True

    def __init__(self, dataset: Dataset, split: str, options: LoaderOptions, training: Training | None = None) -> None:
        source, self._dataset = SampleSource(dataset, split, own_ids(dataset)), dataset
        if not source.entry.records:
            raise OptionError(f"{source.label}: split {split!r} is empty")
        training = replace(training or Training(lanes=options.lanes), classes=ClassList(dataset.class_names))
        super().__init__(options, [source], [1.0], training)

    @property
    def label(self) -> str:
        return self.sources[0].label

    def _open_stream(self, lanes: int) -> Samples:
        return DatasetStream(self.sources[0], self.options, lanes)

    def _begin_of(self, epoch: int, records: int, share: Share) -> int:
        return epoch * records

    def _training_of(self, state: Mapping[str, Any], most_lanes: int) -> Training:
        dataset = self._dataset
        state = grow_state(state, dataset)
        there = state.get("content_digest")
        if dataset.selection is not None and there != dataset.content_digest:
            whole = there == dataset.manifest.content_digest
            what = "the whole dataset" if whole else "another view, or of another dataset"
            raise OptionError(
                f"the state is of {what}, and this loader reads the view {dataset.label}: load it into a loader of "
                "what it was saved with, or begin a new training with this view"
            )
        check_identity(state, self._identity, "loader", self.label)
        lanes = state_number(state, "lanes", 1, most_lanes)
        epoch = state_number(state, "epoch", 0, LAST)
        samples = state_number(state, "samples", 0, self.sources[0].entry.records)
        return Training(lanes=lanes, epoch=epoch, samples=samples)

    def _with(self, training: Training) -> Self:
        return type(self)(self._dataset, self._split, self.options, training)

    @property
    def _identity(self) -> dict[str, Any]:
        return identity_of(self._dataset, self._split, self.options.seed, self.options.shuffle)


class MixtureSampler(Sampler):
    """The sampler of a mixture, whose states name all datasets of the training.

    Raises:
        DatasetNotFoundError, ManifestError: there is no dataset that can be read.
        OptionError: a split is empty, two datasets are the same, or the classes cannot be joined.
    """

    def __init__(
        self,
        mixture: Mixture,
        split: str,
        options: LoaderOptions,
        training: Training | None = None,
        datasets: Sequence[Dataset] = (),
    ) -> None:
        self._mixture = mixture
        datasets = datasets or mixture.open(split)
        training = training or begin_training(datasets, split, mixture, options)
        numbers = {each.digest: each.root for each in training.sources}
        roots = [numbers[dataset.content_digest] for dataset in datasets]
        classes, tables = join_classes(datasets, mixture.classes, roots, training.classes)
        joined = zip(datasets, tables, map(salt_of, roots), strict=True)
        sources = [SampleSource(dataset, split, table, salt) for dataset, table, salt in joined]
        total = math.fsum(mixture.weights.values())
        shares = [weight / total for weight in mixture.weights.values()]
        if mixture.stop == "never":
            options = replace(options, repeat=True)
        super().__init__(options, sources, shares, replace(training, classes=classes))

    @property
    def label(self) -> str:
        return repr(self._mixture)

    def _open_stream(self, lanes: int) -> Samples:
        return MixtureStream(self.training, self.sources, self.options, lanes, self._mixture.stop)

    def _begin_of(self, epoch: int, records: int, share: Share) -> int:
        return self.training.begin_of(epoch, share)

    def state(self, world: World, epoch: int, samples: int) -> dict[str, Any]:
        state, share = super().state(world, epoch, samples), self.share(world)
        begun = self.training.begin_of(epoch, share)
        return {**state, "mixture": self.training.text, "begun": begun, "epoch_samples": share.end}

    def _training_of(self, state: Mapping[str, Any], most_lanes: int) -> Training:
        if "mixture" not in state and "content_digest" in state:
            raise OptionError(
                f"the state is of one dataset, and {self.label} is a mixture; load it into a loader of that dataset"
            )
        check_identity(state, self._identity, "loader", self.label)
        lanes = state_number(state, "lanes", 1, most_lanes)
        datasets = [source.dataset for source in self.sources]
        return decode_training(state, lanes).drawing(datasets, self._split, self._mixture, self.training)

    def _with(self, training: Training) -> Self:
        datasets = [source.dataset for source in self.sources]
        return type(self)(self._mixture, self._split, self.options, training, datasets)
