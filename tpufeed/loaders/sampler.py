"""The samples that a loader gives, and their order: the part of a loader that reads nothing."""

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tpufeed.dataset.order import Ints, Places, Share, World, check_lanes, default_lanes
from tpufeed.dataset.reader import Dataset
from tpufeed.errors import OptionError
from tpufeed.loaders.batch import BatchRequest
from tpufeed.loaders.mixture import ClassList, Mixture, SampleSource, join_classes, salt_of
from tpufeed.loaders.options import LoaderOptions
from tpufeed.loaders.training import (
    LAST,
    MixtureStream,
    Training,
    begin_training,
    check_identity,
    decode_training,
    grow_state,
    identity_of,
    state_number,
)

_logger = logging.getLogger(__name__)
_MOST_LANES = 1 << 16  # or one per sample, or the default of a larger world: each takes memory


class DatasetStream:
    """The endless sequence of a training's samples, the same for every number of ranks. For one thread.

    These are the epochs of one dataset, end to end: each has all of its samples, in its own order. `MixtureStream` has
    the samples of several datasets, and the same attributes and methods.

    Attributes:
        lanes: lanes of the order.
        records: samples of an epoch.
        first: the position from which on all samples are of sources that are still there.
        at_once: number of samples to draw at once.
        due_again: number of samples after which shards are due that `due_shards` did not name before.
    """

    first, at_once = 0, 1024

    def __init__(self, source: SampleSource, options: LoaderOptions, lanes: int) -> None:
        self.lanes, self.records, self.due_again = lanes, source.entry.records, source.entry.records
        self._variants = len(source.entry.variants)
        self._order = source.epoch_orders(options, lanes)

    def draw(self, epoch: int, begun: int, positions: Ints) -> tuple[None, int, Places]:
        """Return source, its epoch and place of the sample at each position of an epoch, which begins at `begun`.

        As in `BatchRequest`, source None and a single epoch are those of all positions.
        """
        return None, epoch, self._order(epoch).places_at(positions)

    def due_shards(self, lanes: Sequence[int], position: int, horizon: int) -> list[tuple[int, int, list[int]]]:
        """Return (source, variant, shards) that lanes read next, to the end of each source's next epoch.

        Shards that are due first come first. A mixture leaves out those that are due `horizon` samples from here or
        later.
        """
        epoch, done = divmod(position, self.records)
        now, following = self._order(epoch).due_shards(lanes, done), self._order(epoch + 1).due_shards(lanes)
        return [(0, epoch % self._variants, now), (0, (epoch + 1) % self._variants, following)]


@dataclass(frozen=True, slots=True)
class Cursor:
    """A place in an epoch, from which a rank's batches continue. For one thread.

    Attributes:
        stream: all samples of the training.
        begun: position of the epoch's first sample in the stream.
        share: this rank's batches of the epoch from the place on.
        epoch: the number of the epoch.
    """

    stream: DatasetStream | MixtureStream
    begun: int
    share: Share
    epoch: int

    @property
    def due_every(self) -> int:
        """Number of batches after which shards are due that were not named before."""
        return -(-self.stream.due_again // self.share.global_batch)

    def requests(self) -> Iterator[BatchRequest]:
        """Plan the batches from this place to the end of the epoch, a few at a time.

        For one dataset a few take some 0.1 ms; the first request of an epoch also makes the epoch's order.
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
        """Return (source, variant, shards) that this rank reads after `batches` batches, to the next epoch's end."""
        world, done = self.share.world, self.share.samples_after(batches)
        lanes = range(world.rank, self.stream.lanes, world.size)
        return self.stream.due_shards(lanes, self.begun + done, max(0, 2 * self.share.records - done))


class Sampler:
    """The order of a training's samples, and its states. A dataset is a mixture of one.

    A single dataset differs in its stream, whose epochs each have all of its samples, and in its state, which names it;
    a mixture's state names all sources of the training. Every rank has the same sampler, and gives its world with each
    question. To continue a training, make another sampler. For one thread.

    Args:
        given: what to read.
        split: the part to read.
        options: the loader's options.
        training: the training to continue; by default a new one.
        sources: sources of a mixture if they are open already.

    Attributes:
        sources: the datasets with their classes, in the order of the mixture's weights.
        shares: the share of the samples that each source gives.
        training: what is drawn from, and since when. It has the lanes once they are known.

    Raises:
        DatasetNotFoundError, ManifestError: there is no dataset that can be read.
        OptionError: the split is empty; two sources are the same; the classes cannot be joined.
    """

    sources: tuple[SampleSource, ...]
    shares: tuple[float, ...]

    def __init__(
        self,
        given: Dataset | Mixture,
        split: str,
        options: LoaderOptions,
        training: Training | None = None,
        sources: Sequence[SampleSource] = (),
    ) -> None:
        self._given, self._split, self._options = given, split, options
        self._stream: DatasetStream | MixtureStream | None = None
        if isinstance(given, Mixture):
            found = sources or given.open(split)
            training = training or begin_training(found, given, options)
            numbers = {each.digest: each.root for each in training.sources}
            roots = [numbers[source.dataset.content_digest] for source in found]
            classes, tables = join_classes([source.dataset for source in found], given.classes, roots, training.classes)
            joined = zip(found, tables, map(salt_of, roots), strict=True)
            self.sources = tuple(replace(source, classes=table, salt=salt) for source, table, salt in joined)
            total = math.fsum(given.weights.values())
            self.shares = tuple(weight / total for weight in given.weights.values())
        else:
            source, classes = SampleSource(given, split), ClassList(given.manifest.class_names)
            if not source.entry.records:
                raise OptionError(f"{source.label}: split {split!r} is empty")
            training = training or Training(lanes=options.lanes)
            self.sources, self.shares = (source,), (1.0,)
        self.training = replace(training, classes=classes)

    @property
    def label(self) -> str:
        """The dataset's URL without secrets, or the mixture in words, for messages."""
        return repr(self._given) if isinstance(self._given, Mixture) else self.sources[0].label

    def stream(self, world: World) -> DatasetStream | MixtureStream:
        """Return all samples: in lanes that were given or loaded, else the default for the world that asks first.

        Raises OptionError if the lanes are too many, or cannot be dealt to the ranks.
        """
        if self._stream is None:
            options, lanes = self._options, self.training.lanes
            if lanes is None:
                lanes = default_lanes(world) if options.shuffle else world.size
                self.training = replace(self.training, lanes=lanes)
            else:
                if lanes > (most := self._most_lanes(world)):
                    raise OptionError(f"lanes are at most {most} for the split {self._split!r}, not {lanes}")
                check_lanes(lanes, world)
            if isinstance(self._given, Mixture):
                longest = self._given.stop != "shortest"
                self._stream = MixtureStream(self.training, self.sources, options, lanes, longest)
            else:
                self._stream = DatasetStream(self.sources[0], options, lanes)
        return self._stream

    def share(self, world: World, start: int = 0) -> Share:
        """Return the batches of a rank from place `start` of an epoch on. Raises OptionError if an epoch has none."""
        records, options = self.stream(world).records, self._options
        wraps = isinstance(self._given, Dataset)
        share = Share(records, options.batch_size, world, options.remainder, start, wraps=wraps)
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
            OptionError: it is not known where the epoch begins, or it has samples of a source that is no longer there.
        """
        stream, share = self.stream(world), self.share(world)
        is_one = isinstance(self._given, Dataset)
        begun = epoch * stream.records if is_one else self.training.begin_of(epoch, share)
        if begun + samples < stream.first:
            raise OptionError(
                f"epoch {epoch} has samples of a source that was left out later, at sample {stream.first} of the "
                f"training: give the mixture that source again, or set an epoch from {self.training.epoch + 1} on"
            )
        return Cursor(stream, begun, replace(share, start=samples), epoch)

    def state(self, world: World, epoch: int, samples: int) -> dict[str, Any]:
        """Return the state after `samples` samples of the whole world in `epoch`, the same on every rank."""
        stream = self.stream(world)
        state = {**self._identity, "epoch": epoch, "lanes": stream.lanes, "samples": samples}
        if isinstance(self._given, Dataset):
            return state
        share = self.share(world)
        begun = self.training.begin_of(epoch, share)
        return {**state, "mixture": self.training.text, "begun": begun, "epoch_samples": share.end}

    def resumed(self, state: Mapping[str, Any], world: World) -> "Sampler":
        """Return the sampler that continues from `state`: at `samples` of `epoch` of its training.

        Raises OptionError if the state is of something else; or of an older version of a dataset, or of other weights
        or sources, and `grown` or `reweight` do not allow that; or one of its numbers is impossible.
        """
        given = self._given
        if isinstance(given, Dataset):
            state = grow_state(state, given)
        elif "mixture" not in state and "content_digest" in state:
            raise OptionError(
                f"the state is of one dataset, and {self.label} is a mixture; load it into a loader of that"
            )
        check_identity(state, self._identity, "loader", self.label)
        lanes = state_number(state, "lanes", 1, self._most_lanes(world))
        if isinstance(given, Dataset):
            epoch = state_number(state, "epoch", 0, LAST)
            samples = state_number(state, "samples", 0, self.sources[0].entry.records)
            training = Training(lanes=lanes, epoch=epoch, samples=samples)
        else:
            training = decode_training(state, lanes).drawing(self.sources, given, self.training)
        check_lanes(lanes, world, of_state=True)
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
                *(self.label, there, here),
            )
        return sampler

    def restarted(self, epoch: int) -> "Sampler":
        """Return the sampler to read an epoch from its start, also if the training was continued in its middle."""
        training = self.training
        return self.continued(replace(training, samples=0)) if epoch == training.epoch and training.samples else self

    def continued(self, training: Training) -> "Sampler":
        """Return the sampler that continues a training. It has this one's `sources` if nothing changes in them."""
        found = Sampler(self._given, self._split, self._options, training, self.sources)
        salts = [[source.salt for source in sampler.sources] for sampler in (self, found)]
        if found.training.classes == self.training.classes and salts[0] == salts[1]:
            found.sources = self.sources
        return found

    def _most_lanes(self, world: World) -> int:
        return max(min(source.entry.records for source in self.sources), _MOST_LANES, default_lanes(world))

    @property
    def _identity(self) -> dict[str, Any]:
        dataset = self._given if isinstance(self._given, Dataset) else None
        return identity_of(dataset, self._split, self._options.seed, self._options.shuffle)
