"""The training that a state continues: what it has drawn from since it began, and a mixture's stream of samples."""

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import msgspec
import numpy as np

from tpufeed.dataset.mixture import LEAST_SHARE, SHARES, MixtureOrder, Phase, whole_shares
from tpufeed.dataset.order import Ints, Places, Share
from tpufeed.dataset.reader import Dataset, open_dataset
from tpufeed.errors import DatasetNotFoundError, OptionError, mask_secrets
from tpufeed.loaders.batch import group_rows
from tpufeed.loaders.mixture import ClassList, JoinBy, Mixture, SampleSource
from tpufeed.loaders.options import LoaderOptions
from tpufeed.options import shown

VERSION = 1  # of the order, which says what a place in it means
LAST = 1 << 62  # highest number of an epoch, or of a sample in a stream


def identity_of(dataset: Dataset | None, split: str, seed: int, shuffle: bool) -> dict[str, Any]:
    """Return what a state and the loader that takes it must have in common.

    The dataset is None for a mixture, whose states name its sources elsewhere.
    """
    content = {} if dataset is None else {"content_digest": dataset.content_digest}
    number = {} if dataset is None or dataset.number == 1 else {"dataset_version": dataset.number}
    return {"version": VERSION, **content, **number, "split": split, "seed": seed, "shuffle": shuffle}


def check_identity(state: Mapping[str, Any], identity: Mapping[str, Any], owner: str, url: str) -> None:
    """Raise OptionError if a state is of another dataset, split, seed, order or version.

    Args:
        state: the state to load.
        identity: the identity of what takes it.
        owner: "loader" or "sampler", for messages.
        url: the URL of its dataset.
    """
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
    for name, value in identity.items():
        if state.get(name) != value:
            raise OptionError(
                f"the state's {name} is {state.get(name)!r}, this {owner}'s {value!r}: it is of another dataset, split "
                f"or order than {url} here. Load it into a {owner} made as the one that gave it"
            )


def grow_state(state: Mapping[str, Any], dataset: Dataset) -> Mapping[str, Any]:
    """Return a state for this version of its dataset: a state of an older version moves to its next epoch.

    An epoch of which no sample was given is still to come. Raises OptionError if the state is of an older version, and
    the dataset was not opened with `grown`.
    """
    digest, past = state.get("content_digest"), dataset.manifest.past_digests
    if digest == dataset.content_digest or digest not in past:
        return state
    if not dataset.grown:
        raise has_grown_since(dataset, past.index(digest) + 1)
    epoch, samples = (state_number(state, name, 0, LAST) for name in ("epoch", "samples"))
    now = {"content_digest": dataset.content_digest, "dataset_version": dataset.number}
    return {**state, **now, "epoch": epoch + (samples > 0), "samples": 0}


def has_grown_since(dataset: Dataset, number: int) -> OptionError:
    """Return the error for a state of an older version of a dataset, `number`."""
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


def state_number(state: Mapping[str, Any], name: str, least: int, most: int) -> int:
    """Return a number of a state; checkpoints may give it back as an array's element. Raises OptionError."""
    value = state.get(name)
    try:
        number = operator.index(value)  # type: ignore[arg-type]  # anything but a whole number raises
    except TypeError:
        number = -1
    if isinstance(value, bool) or not least <= number <= most:
        raise OptionError(f"the state's {name} is {shown(value)}, not a whole number between {least} and {most}")
    return number


class TrainedSource(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A dataset that a training draws from, or has drawn from.

    Attributes:
        digest: digest of its content.
        url: its URL without secrets, for messages.
        records: samples of its split.
        root: number of the training's source that it is a version of; its own number if there is none.
        epoch: the epoch with which it began: after an older version the next one, else 0.
    """

    digest: str
    url: str
    records: int
    root: int
    epoch: int

    def lane_length(self, lane: int, lanes: int) -> int:
        """Return the samples of a lane in an epoch."""
        return self.records // lanes + (lane < self.records % lanes)


@dataclass(frozen=True)
class Training:
    """A training: what it has drawn from since it began, and where in its stream an epoch begins.

    Attributes:
        sources: all sources that a mixture has had. Those that it has no more keep their numbers.
        phases: shares of these, from a position of the stream on. In the last phase only present sources have shares
            above 0.
        seed: seed of the draws of sources.
        join: how classes are joined.
        classes: classes of all sources.
        lanes: lanes of the order; None until they are asked for.
        epoch: the epoch that begins at position `begun`.
        begun: that position; for a single dataset it follows from the epoch.
        samples: number of the first sample of that epoch that is read, if a state said so.
    """

    sources: tuple[TrainedSource, ...] = ()
    phases: tuple[Phase, ...] = ()
    seed: int = 0
    join: JoinBy = "by_name"
    classes: ClassList = field(default_factory=ClassList)
    lanes: int | None = None
    epoch: int = 0
    begun: int = 0
    samples: int = 0

    def drawing(self, present: Sequence[SampleSource], mixture: Mixture, other: "Training") -> "Training":
        """Return the training that continues from its place with the present sources and their weights in `mixture`.

        It replaces `other`, which began with the mixture. Raises OptionError if it is of other weights or sources, and
        `reweight` does not allow that; or of other draws; or a dataset has grown, and was not opened with `grown`.
        """
        for name, there, here in (("seed", self.seed, other.seed), ("classes", self.join, other.join)):
            if there != here:
                raise OptionError(
                    f"the state's mixture has {name}={there!r}, this loader's {name}={here!r}; give that of the state"
                )
        assert self.lanes is not None, "a state has them"
        last, position = self.phases[-1], self.begun + self.samples
        numbers = {each.digest: number for number, each in enumerate(self.sources)}
        weights = dict(
            zip((source.dataset.content_digest for source in present), mixture.weights.values(), strict=True)
        )
        gone = {each.digest for each, share in zip(self.sources, last.shares, strict=True) if share} - weights.keys()
        sources, expected = list(self.sources), list(last.shares)
        order, has_grown = MixtureOrder(self.phases, self.lanes, self.seed), False
        for source in present:
            dataset = source.dataset
            if dataset.content_digest in numbers:
                continue
            root, epoch, share = len(sources), 0, 0
            past = dataset.manifest.past_digests
            older = next((digest for digest in reversed(past) if digest in gone), None)
            if older is not None:
                if not dataset.grown and not mixture.reweight:
                    raise has_grown_since(dataset, past.index(older) + 1)
                gone.remove(older)
                has_grown, number = True, numbers[older]
                root, epoch = sources[number].root, _next_epoch(order, number, sources[number], position)
                share, expected[number] = expected[number], 0  # the newer version takes its place
            sources.append(_trained(source, root, epoch))
            expected.append(share)
        shares = whole_shares([weights.get(each.digest, 0.0) for each in sources])
        # Equal weights may differ in the last bit: 0.7 and 0.3, or 7 and 3.
        is_same = all(abs(here - there) <= len(shares) for here, there in zip(shares, expected, strict=True))
        if is_same and not has_grown:
            return self
        if not is_same and not mixture.reweight:
            raise self._other_weights(dict(zip((source.label for source in present), weights.items(), strict=True)))
        new = Phase(position, tuple(expected) if is_same else shares)
        more = (0,) * (len(sources) - len(self.sources))
        past_phases = (Phase(phase.first, phase.shares + more) for phase in self.phases if phase.first < position)
        return replace(self, sources=tuple(sources), phases=(*past_phases, new))

    def _other_weights(self, present: Mapping[str, tuple[str, float]]) -> OptionError:
        """Return the error; `present` has digest and weight of each source by its label."""
        there = [(each, share) for each, share in zip(self.sources, self.phases[-1].shares, strict=True) if share]
        changed = [each.url for each, _ in there if each.url in present and each.digest != present[each.url][0]]
        total = math.fsum(weight for _, weight in present.values())
        return OptionError(
            f"the state is of other weights or datasets: there "
            f"{', '.join(f'{each.url}={share / SHARES:.6g}' for each, share in there)}, here "
            f"{', '.join(f'{label}={weight / total:.6g}' for label, (_, weight) in present.items())}. "
            + (f"{changed[0]} holds other samples now. " if changed else "")
            + "Give the mixture of the state, or Mixture(..., reweight=True) to continue from its place with this one"
        )

    def begin_of(self, epoch: int, share: Share) -> int:
        """Return the position at which an epoch of a mixture begins: behind the last sample of the one before it.

        `share` has a rank's batches of a whole epoch. Raises OptionError if the epoch is before the one that the
        training continued with, whose length was another; or too late.
        """
        if epoch == self.epoch:
            return self.begun
        if epoch > self.epoch:
            end = self.begun + replace(share, start=self.samples).end
            begin = end + (epoch - self.epoch - 1) * share.end
        elif not epoch or self.begun == self.epoch * share.end:
            begin = epoch * share.end
        else:
            raise OptionError(
                f"where epoch {epoch} of this training began is not known, as epochs had another length before epoch "
                f"{self.epoch}: other weights, batch size or ranks. Set epoch 0, or one from {self.epoch} on"
            )
        if begin > LAST:
            raise OptionError(f"a mixture has no epoch {shown(epoch)}: its samples are numbered up to 2**62")
        return begin

    @cached_property
    def text(self) -> str:
        """The training as states hold it, without its place: text, which every checkpointer takes."""
        phases = [
            (phase.first, [(number, share) for number, share in enumerate(phase.shares) if share])
            for phase in self.phases
        ]
        return msgspec.json.encode(_Stored(self.sources, phases, self.classes, self.join, self.seed)).decode()


def begin_training(present: Sequence[SampleSource], mixture: Mixture, options: LoaderOptions) -> Training:
    """Return the training that begins with a mixture, whose sources are `present`."""
    sources = tuple(_trained(source, root, 0) for root, source in enumerate(present))
    phase = Phase(0, whole_shares(list(mixture.weights.values())))
    seed = options.seed if mixture.seed is None else mixture.seed
    return Training(sources, (phase,), seed, mixture.classes, lanes=options.lanes)


def _trained(source: SampleSource, root: int, epoch: int) -> TrainedSource:
    return TrainedSource(source.dataset.content_digest, source.label, source.entry.records, root, epoch)


def _next_epoch(order: MixtureOrder, number: int, source: TrainedSource, position: int) -> int:
    """Return the first epoch of a source of which no lane has read a sample before this position of the mixture."""
    counts = (int(order.counts(lane, order.number_at(lane, position))[number]) for lane in range(order.lanes))
    return source.epoch + max(-(-count // source.lane_length(lane, order.lanes)) for lane, count in enumerate(counts))


class _Stored(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    sources: tuple[TrainedSource, ...]
    phases: list[tuple[int, list[tuple[int, int]]]]
    classes: ClassList
    join: JoinBy
    seed: int


_STORED = msgspec.json.Decoder(_Stored)


def decode_training(state: Mapping[str, Any], lanes: int) -> Training:
    """Return the training that a mixture's state holds as `Training.text`, at its place.

    Raises OptionError if it is impossible.
    """
    epoch, begun, samples = (state_number(state, name, 0, LAST) for name in ("epoch", "begun", "samples"))
    try:
        found = _STORED.decode(state.get("mixture"))  # type: ignore[arg-type]  # anything but a text raises
        firsts, count = [first for first, _ in found.phases], len(found.sources)
        phases = list[Phase]()
        for first, given in found.phases:
            shares = dict(given)
            phases.append(Phase(first, tuple(shares.get(number, 0) for number in range(count))))
            if sum(phases[-1].shares) != SHARES or min(shares.values()) < LEAST_SHARE:
                raise ValueError("its shares do not add up")
        if not firsts or firsts[0] or firsts != sorted(set(firsts)):
            raise ValueError("its phases do not follow one another")
        if any(each.records < lanes or each.epoch < 0 or not 0 <= each.root < count for each in found.sources):
            raise ValueError("its sources do not fit its lanes")
        return Training(
            found.sources, tuple(phases), found.seed, found.join, found.classes, lanes, epoch, begun, samples
        )
    except (TypeError, ValueError) as error:  # of msgspec as well
        raise OptionError(f"the state's mixture is not what state_dict() gives: {error}") from error


class MixtureStream:
    """The samples of several datasets, drawn in exact shares. See `DatasetStream`.

    Args:
        training: its sources and phases.
        sources: those of its sources that are there.
        options: the loader's options.
        lanes: lanes of the order.
        longest: True to end an epoch when each source was read once, False when the first one is used up.

    Raises:
        OptionError: a source has fewer samples than there are lanes.
    """

    at_once = 8192  # each source and epoch that they meet costs a look-up in its order

    def __init__(
        self, training: Training, sources: Sequence[SampleSource], options: LoaderOptions, lanes: int, longest: bool
    ) -> None:
        for source in sources:
            records = source.entry.records
            if records < lanes:
                raise OptionError(
                    f"{source.label}: split {source.split!r} has {records} samples, fewer than the {lanes} lanes of "
                    f"the mixture, and each lane needs some; give lanes={2 ** (records.bit_length() - 1)} or fewer (a "
                    "multiple of the number of ranks), or leave this source out"
                )
        self.lanes, self._training = lanes, training
        self._draws = MixtureOrder(training.phases, lanes, training.seed)
        self._variants = [len(source.entry.variants) for source in sources]
        self._orders = [source.epoch_orders(options, lanes) for source in sources]
        # The number of each present source among all of the training; and the other way round, -1 if it is not there.
        digests = [each.digest for each in training.sources]
        self._numbers = [digests.index(source.dataset.content_digest) for source in sources]
        self._members = np.full(len(digests), -1)
        self._members[self._numbers] = range(len(sources))
        self._records = np.asarray([each.records for each in training.sources], np.int64)
        self._epochs = np.asarray([each.epoch for each in training.sources], np.int64)
        *past, (_, shares) = training.phases
        ends = (number for number, phase in enumerate(past, 1) if np.any(phase.shares, where=self._members < 0))
        self.first = training.phases[max(ends, default=0)].first
        self.records = self._epoch_samples(longest)
        self.due_again = min(int(training.sources[each].records * SHARES / shares[each]) for each in self._numbers)

    def draw(self, epoch: int, begun: int, positions: Ints) -> tuple[Ints, Ints, Places]:
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
            for column, values in zip(found, self._orders[each](its_epoch).places_at(place[rows]), strict=True):
                column[rows] = values
        return source, epochs, found

    def _epoch_samples(self, longest: bool) -> int:
        """Count the samples of an epoch, from the beginning of a training with the present shares."""
        training, ends, near = self._training, list[int](), 0
        order = MixtureOrder([Phase(0, training.phases[-1].shares)], self.lanes, training.seed)
        for lane in range(self.lanes):
            wholes = np.full(len(self._records), 0 if longest else LAST)
            wholes[self._numbers] = [training.sources[each].lane_length(lane, self.lanes) for each in self._numbers]
            near = order.first_where(lane, partial(_is_through, wholes, longest), near)
            ends.append(near)
        return self.lanes * (max(ends) if longest else min(ends) - 1)

    def due_shards(self, lanes: Sequence[int], position: int, horizon: int) -> list[tuple[int, int, list[int]]]:
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
                    when = (epoch * trained.records + place - start * self.lanes) / share
                    if when < horizon:
                        due.append((when, source, (trained.epoch + epoch) % self._variants[source], shard))
        return [(source, variant, [shard]) for _, source, variant, shard in sorted(due)]


def _is_through(wholes: Ints, longest: bool, counts: Ints) -> bool:
    """Return True if each source was read once, or for the shortest if one has begun its next epoch."""
    return bool((counts >= wholes).all() if longest else (counts > wholes).any())
