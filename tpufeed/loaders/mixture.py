"""Mixtures: several datasets as one stream in exact shares, for any number of ranks."""

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self, get_args

import msgspec
import numpy as np

from tpufeed.dataset.mixture import MixtureOrder, Phase, whole_shares
from tpufeed.dataset.order import EpochOrder, Ints, Places
from tpufeed.dataset.partition import Share
from tpufeed.errors import OptionError, mask_secrets
from tpufeed.images.validation import shown
from tpufeed.loaders.batch import BatchRequest, group_rows
from tpufeed.loaders.cursor import VERSION, check_identity, state_number
from tpufeed.loaders.options import LoaderOptions, check_bool
from tpufeed.loaders.sources import JoinBy, Source, open_sources

Stop = Literal["shortest", "longest", "never"]

_LEAST_WEIGHT = 2.0**-26  # of all: a block would have more than 67 million numbers
_LAST = 1 << 62
_PLANNED_SAMPLES = 8192  # at once: each source and epoch that they meet costs a look-up in its order
_KEPT_ORDERS = 3  # epochs of a source that lanes are in at the same time
_WEIGHTED = re.compile(r"(.+?)=(-?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|nan|inf)(?:,|$)", re.DOTALL)


class Mixture:
    """Several datasets that a loader takes in the place of one URL, mixed sample by sample in exact shares.

    `tpufeed.numpy_loader(tpufeed.Mixture({"gs://b/a": 0.7, "gs://b/b": 0.3}), ops=...)`

    A sample keeps its lane: lane l of the mixture draws from lane l of each source, so that each rank reads only its
    share of every source's shards. Which source gives a sample follows from weights, seed, lane and the sample's number
    in the lane: each lane is cut into blocks of at least 1 / least weight samples; at the end of each block every
    source has given its share within one sample, and within a block the order is random. A source is read in its own
    order, without replacement, epoch after epoch; epochs of a cache read its variants.

    Args:
        weights: for each dataset, at a path or a URL, a number above 0; they need not add up to 1.
        stop: an epoch of the loader ends when the first source is used up ("shortest"), or when each was read once
            ("longest"; the others go on in their next epochs meanwhile). The next epoch goes on from there: nothing is
            left out. "never" makes one iteration endless, as `repeat=True` does.
        seed: of the draws of sources; by default the loader's.
        classes: how the sources' classes become one list, `loader.class_names`: "by_name" gives classes of one name one
            id, "offset" keeps the classes of different sources apart, "as_is" takes ids as they are.
        per_batch: True draws a source for each batch of all ranks together in place of each sample.
        reweight: True lets a loader go on from a state that was saved with other weights or sources.

    Raises:
        OptionError: weights that are no positive numbers, or options that are none.
    """

    def __init__(
        self,
        weights: Mapping[str | Path, float],
        *,
        stop: Stop = "shortest",
        seed: int | None = None,
        classes: JoinBy = "by_name",
        per_batch: bool = False,
        reweight: bool = False,
    ) -> None:
        self._set([(0, weights)], stop, seed, classes, per_batch, reweight)

    @classmethod
    def schedule(  # those of Mixture
        cls,
        phases: Sequence[tuple[int, Mapping[str | Path, float]]],
        *,
        stop: Stop = "shortest",
        seed: int | None = None,
        classes: JoinBy = "by_name",
        per_batch: bool = False,
        reweight: bool = False,
    ) -> Self:
        """Return a mixture whose weights change: a curriculum.

        Args:
            phases: for each the global sample (of all ranks together) from which its weights hold, the first one 0. A
                phase begins with a whole row of lanes. It draws from the datasets that it names alone.
            stop: this and the others are those of `Mixture`.
            seed: see `Mixture`.
            classes: see `Mixture`.
            per_batch: see `Mixture`.
            reweight: see `Mixture`.

        Raises:
            OptionError: phases that do not begin with 0 or do not follow one another, or as `Mixture` does.
        """
        made = cls.__new__(cls)
        made._set(phases, stop, seed, classes, per_batch, reweight)
        return made

    def _set(
        self,
        phases: Sequence[tuple[int, Mapping[str | Path, float]]],
        stop: Stop,
        seed: int | None,
        classes: JoinBy,
        per_batch: bool,
        reweight: bool,
    ) -> None:
        if stop not in get_args(Stop):
            raise OptionError(f"stop is 'shortest', 'longest' or 'never', not {stop!r}")
        if classes not in get_args(JoinBy):
            raise OptionError(f"classes is 'by_name', 'offset' or 'as_is', not {classes!r}")
        check_bool("per_batch", per_batch)
        check_bool("reweight", reweight)
        if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int | np.integer)):
            raise OptionError(f"seed is a whole number, not {seed!r}")
        self.stop, self.seed, self.classes = stop, None if seed is None else int(seed), classes
        self.per_batch, self.reweight = bool(per_batch), bool(reweight)
        self.phases = tuple(_check_phases(phases))
        named = (url for _, weights in self.phases for url in weights)
        self.urls: tuple[str, ...] = tuple(dict.fromkeys(named))

    def open(self, split: str) -> tuple[Source, ...]:
        """Open the split of each source. Raises as `open_sources` does."""
        return open_sources(self.urls, split, self.classes)

    def lane_phases(self, lanes: int) -> list[Phase]:
        """Return the phases by the numbers of a lane."""
        found: dict[int, Phase] = {}
        for first, weights in self.phases:  # of two that begin in one row the later one holds
            number = first // lanes
            found[number] = Phase(number, whole_shares([weights.get(url, 0.0) for url in self.urls]))
        return list(found.values())

    def __repr__(self) -> str:
        phases = [
            (first, {mask_secrets(url): weight for url, weight in weights.items()}) for first, weights in self.phases
        ]
        if len(phases) == 1:
            return f"Mixture({phases[0][1]!r}, stop={self.stop!r})"
        return f"Mixture.schedule({phases!r}, stop={self.stop!r})"


def parse_mixture(text: str) -> "str | Mixture":
    """Return the mixture that "URL=0.7,URL=0.3" stands for; other text is one URL, and returned as it is."""
    found = list(_WEIGHTED.finditer(text))
    if len(found) < 2 or "".join(match.group() for match in found) != text:
        return text
    urls = [match.group(1) for match in found]
    if len(set(urls)) < len(urls):
        twice = next(url for url in urls if urls.count(url) > 1)
        raise OptionError(f"{mask_secrets(twice)} stands twice in the mixture; name it once")
    return Mixture({match.group(1): float(match.group(2)) for match in found})


def _check_phases(
    phases: Sequence[tuple[int, Mapping[str | Path, float]]],
) -> Iterator[tuple[int, dict[str, float]]]:
    last = -1
    for phase in phases:
        if not isinstance(phase, tuple | list) or len(phase) != 2:
            raise OptionError(f"a phase is (global sample, weights), like (10_000, {{'gs://b/a': 1.0}}), not {phase!r}")
        first, weights = phase
        if isinstance(first, bool) or not isinstance(first, int | np.integer) or first <= last or (last < 0 < first):
            raise OptionError(f"phases begin at global samples that increase from 0 on; {shown(first)} does not follow")
        last = int(first)
        yield last, _check_weights(weights)
    if last < 0:
        raise OptionError("a schedule has at least one phase, like (0, {'gs://b/a': 1.0})")


def _check_weights(weights: Mapping[str | Path, float]) -> dict[str, float]:
    if not isinstance(weights, Mapping) or not weights:
        raise OptionError(
            f"weights are a dict of URLs and numbers, like {{'gs://b/a': 0.7, 'gs://b/b': 0.3}}, not {weights!r}"
        )
    found: dict[str, float] = {}
    for url, weight in weights.items():
        name, where = str(url).rstrip("/"), mask_secrets(str(url))
        is_number = isinstance(weight, int | float | np.number) and not isinstance(weight, bool)
        if not is_number or not (math.isfinite(weight) and weight > 0):
            raise OptionError(
                f"the weight of {where} is a number above 0, not {weight!r}; leave out what is not to be read"
            )
        if name in found:
            raise OptionError(f"{where} stands twice in the mixture; name it once")
        found[name] = float(weight)
    least = min(found, key=found.__getitem__)
    if found[least] < _LEAST_WEIGHT * sum(found.values()):
        raise OptionError(f"the weight of {mask_secrets(least)} is less than 1/67,108,864 of all; leave it out")
    return found


class MixtureStream:
    """The endless sequence of a mixture's samples, the same for every number of ranks. For one thread.

    Args:
        phases: with a share for each source that the mixture has, or had before it was reweighted.
        sources: that it has.
        members: for each share of a phase the number of its source; -1 for one that it had.
        seed: of the draws of sources.
        order_seed: of each source's own order.
        lanes: of the order.
        shuffle: False reads each source in its own order.
        global_batch: samples in a batch of all ranks, where batches are of one source; else 0.

    Raises:
        OptionError: a source has fewer samples than there are lanes.
    """

    def __init__(  # noqa: PLR0913  # all of them decide the sequence
        self,
        *,
        phases: Sequence[Phase],
        sources: Sequence[Source],
        members: Sequence[int],
        seed: int,
        order_seed: int,
        lanes: int,
        shuffle: bool,
        global_batch: int = 0,
    ) -> None:
        self.lanes, self.global_batch = lanes, global_batch
        self.order = MixtureOrder(phases, seed)
        self._seed, self._shuffle = order_seed, shuffle
        self._entries = [source.entry for source in sources]
        self._labels = [source.label for source in sources]
        self._records = [entry.records for entry in self._entries]
        self._shard_records = [[[s.records for s in v.shards] for v in entry.variants] for entry in self._entries]
        for source, records in zip(sources, self._records, strict=True):
            if records < lanes:
                raise OptionError(
                    f"{source.label}: split {source.split!r} has {records} samples, fewer than the {lanes} lanes of "
                    f"the mixture, and each lane needs some; give lanes={2 ** (records.bit_length() - 1)} or fewer (a "
                    "multiple of the number of ranks), or leave this source out"
                )
        self._members = np.asarray(members, np.int64)
        self._places = [members.index(number) for number in range(len(sources))]  # in a phase's shares
        self._orders: dict[int, dict[int, EpochOrder]] = {}

    def draw(self, positions: Ints) -> tuple[Ints, Ints, Places]:
        """Return for each of these positions the number of its source, the epoch of that, and the sample's place."""
        source, lane, number = self._drawn(positions)
        length = self._lane_lengths(source, lane)
        epoch, place = number // length, (number % length) * self.lanes + lane
        found = Places(*(np.empty(len(positions), np.int64) for _ in Places._fields))
        for each, its_epoch, rows in group_rows(source, epoch):
            for column, values in zip(found, self._order(each, its_epoch).places_at(place[rows]), strict=True):
                column[rows] = values
        return source, epoch, found

    def epoch_samples(self, longest: bool) -> int:
        """Return the samples of all lanes until the first source is used up, or until each was read once.

        Raises:
            OptionError: a source is left out of the last phase and never read to its end.
        """
        for source, records in enumerate(self._records):
            if not self._whole(source, 0):
                raise OptionError(
                    f"{self._labels[source]} has {records} samples, fewer than a batch of all ranks together, "
                    f"{self.global_batch}, which with per_batch=True come from one source; give a smaller batch_size"
                )
        last = self.order.phases[-1]
        for source, place in enumerate(self._places):
            given = int(self.order.counts(0, last.first)[place])
            if longest and not last.shares[place] and given < self._whole(source, 0):
                raise OptionError(
                    f"of the {self._records[source]} samples of {self._labels[source]} some are never drawn, as the "
                    "last phase leaves it out: with stop='longest' the epoch would not end; give stop='shortest'"
                )
        lanes = range(1) if self.global_batch else range(self.lanes)
        ends, near = list[int](), 0
        for lane in lanes:
            wholes = np.full(len(last.shares), 0 if longest else _LAST, np.int64)
            wholes[self._places] = [self._whole(source, lane) for source in range(len(self._records))]
            near = self.order.first_where(lane, partial(_is_through, wholes, longest), near)
            ends.append(near)
        return (self.global_batch or self.lanes) * (max(ends) if longest else min(ends) - 1)

    def due_shards(self, lanes: Sequence[int], position: int, horizon: int) -> list[tuple[int, int, list[int]]]:
        """Return (source, variant, shards) that lanes read next, the first ones due first.

        That is to the end of each source's next epoch, but no shard that is due `horizon` samples from here or later.
        """
        due = list[tuple[float, int, int, int]]()
        if self.global_batch:
            given = [self.order.counts(0, position // self.global_batch) * self.global_batch]
            counts = {lane: (given[0] - lane + self.lanes - 1) // self.lanes for lane in lanes}
        else:
            counts = {lane: self.order.counts(lane, -(-(position - lane) // self.lanes)) for lane in lanes}
        shares = self._shares_at(position)
        for source, at_share in enumerate(self._places):
            share = shares[at_share]
            if not share:
                continue
            done = {
                lane: divmod(int(count[at_share]), self._lane_length(source, lane)) for lane, count in counts.items()
            }
            first = min(epoch for epoch, _ in done.values())
            for epoch in (first, first + 1):
                variant = epoch % len(self._entries[source].variants)
                read = {lane: 0 if epoch > at else place for lane, (at, place) in done.items() if at <= epoch}
                start = min(number + at * self._lane_length(source, lane) for lane, (at, number) in done.items())
                for shard, place in self._order(source, epoch).due_positions(read).items():
                    ahead = epoch * self._records[source] + place - start * self.lanes
                    when = ahead / share
                    if when < horizon:
                        due.append((when, source, variant, shard))
        due.sort()
        return [(source, variant, [shard]) for _, source, variant, shard in due]

    def due_again(self) -> int:
        """Return after how many samples of all lanes some source has had a whole epoch."""
        shares = np.max([phase.shares for phase in self.order.phases], axis=0) / sum(self.order.phases[0].shares)
        pairs = ((records, shares[place]) for records, place in zip(self._records, self._places, strict=True))
        return int(min(records / share for records, share in pairs if share))

    def _shares_at(self, position: int) -> list[float]:
        number = position // (self.global_batch or self.lanes)
        now = [phase for phase in self.order.phases if phase.first <= number][-1]
        return [share / sum(now.shares) for share in now.shares]

    def _drawn(self, positions: Ints) -> tuple[Ints, Ints, Ints]:
        """Return for each position its source, its lane, and which of the source's samples in the lane it is."""
        if self.global_batch:
            batches, within = np.divmod(positions, self.global_batch)
            order = np.argsort(batches, kind="stable")
            drawn = self.order.draw(0, batches[order])
            source, number = np.empty_like(positions), np.empty_like(positions)
            source[order], number[order] = self._members[drawn.source], drawn.number
            flat = number * self.global_batch + within
            return source, flat % self.lanes, flat // self.lanes
        lane, at = positions % self.lanes, positions // self.lanes
        source, number = np.empty_like(positions), np.empty_like(positions)
        for each in np.unique(lane).tolist():
            rows = np.flatnonzero(lane == each)
            rows = rows[np.argsort(at[rows], kind="stable")]
            drawn = self.order.draw(each, at[rows])
            source[rows], number[rows] = self._members[drawn.source], drawn.number
        return source, lane, number

    def _lane_length(self, source: int, lane: int) -> int:
        return self._records[source] // self.lanes + (lane < self._records[source] % self.lanes)

    def _lane_lengths(self, source: Ints, lane: Ints) -> Ints:
        records = np.asarray(self._records, np.int64)[source]
        lengths: Ints = records // self.lanes + (lane < records % self.lanes)
        return lengths

    def _whole(self, source: int, lane: int) -> int:
        """Return how many numbers of the order a source fills with one epoch, in a lane or in batches."""
        if not self.global_batch:
            return self._lane_length(source, lane)
        return self._records[source] // self.lanes * self.lanes // self.global_batch

    def _order(self, source: int, epoch: int) -> EpochOrder:
        orders = self._orders.setdefault(source, {})
        found = orders.pop(epoch, None)
        if found is None:
            shard_records = self._shard_records[source][epoch % len(self._shard_records[source])]
            found = EpochOrder(shard_records, self._seed, epoch, self.lanes, self._shuffle)
        orders[epoch] = found  # the one that was asked for last stands last
        if len(orders) > _KEPT_ORDERS:
            del orders[next(iter(orders))]
        return found


def _is_through(wholes: Ints, longest: bool, counts: Ints) -> bool:
    """Return true where each source was read once, or for the shortest where one has begun its next epoch."""
    return bool((counts >= wholes).all() if longest else (counts > wholes).any())


@dataclass(frozen=True)
class MixtureCursor:
    """A place in an epoch of a mixture, from which a rank's batches go on; the counterpart of `EpochCursor`.

    Attributes:
        stream: all samples of the mixture.
        share: this rank's batches of the epoch from the place on.
        begun: position in the stream of the epoch's first sample.
        epoch: the number of the epoch.
    """

    stream: MixtureStream
    share: Share
    begun: int = 0
    epoch: int = 0

    def at(self, epoch: int, samples: int = 0) -> "MixtureCursor":
        """Return the place in `epoch` after so many samples of the whole world."""
        begun = max(0, self.begun + (epoch - self.epoch) * self.share.records)
        return replace(self, epoch=epoch, begun=begun, share=replace(self.share, start=samples))

    @property
    def due_every(self) -> int:
        """Batches after which shards are due that were not named before."""
        return max(1, self.stream.due_again() // self.share.global_batch)

    def samples_after(self, batches: int) -> int:
        """Return how many samples of the epoch the whole world has had after so many batches from this place on."""
        return min(self.share.records, self.share.start + batches * self.share.global_batch)

    def requests(self, first: int) -> Iterator[BatchRequest]:
        """Plan the next few batches, beginning with number `first` from this place on."""
        share = self.share
        stop = min(len(share), first + max(1, _PLANNED_SAMPLES // share.batch_size))
        positions, masks = zip(*map(share.positions, range(first, stop)), strict=True)
        source, epoch, places = self.stream.draw(np.concatenate(positions) + self.begun)
        for batch, mask in enumerate(masks):
            rows = slice(batch * share.batch_size, (batch + 1) * share.batch_size)
            yield BatchRequest(epoch[rows], Places(*(column[rows] for column in places)), mask, source[rows])

    def due_shards(self, batches: int = 0) -> Sequence[tuple[int, int, Sequence[int]]]:
        """Return (source, variant, shards) that this rank reads after so many batches, up to the next epoch's end."""
        world, done = self.share.world, self.samples_after(batches)
        horizon = 2 * self.share.records - done
        return self.stream.due_shards(range(world.rank, self.stream.lanes, world.size), self.begun + done, horizon)


class MixtureFeed:
    """A mixture as a loader reads it: its epochs, and what its states hold; the counterpart of `DatasetFeed`.

    Args:
        mixture: what is mixed.
        sources: its datasets, open.
        options: of the loader.
        history: of a run that has gone on with other weights.
    """

    def __init__(
        self,
        mixture: Mixture,
        sources: tuple[Source, ...],
        options: LoaderOptions,
        history: "_History | None" = None,
    ) -> None:
        self.mixture, self.sources = mixture, sources
        self._options, self.history = options, history
        self._seed = options.seed if mixture.seed is None else mixture.seed
        self._streams: dict[tuple[int, int], tuple[MixtureStream, int]] = {}

    @property
    def url(self) -> str:
        """The mixture in words, for messages."""
        return repr(self.mixture)

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the joined classes; a label is a place among them."""
        classes = self.sources[0].classes
        return () if classes is None else classes.names

    @property
    def is_endless(self) -> bool:
        """True where one iteration goes on for ever."""
        return self.mixture.stop == "never"

    @property
    def shares(self) -> tuple[float, ...]:
        """The largest share of the samples that each source ever gives."""
        shares = np.max([phase.shares for phase in self.mixture.lane_phases(1)], axis=0)
        return tuple((shares / shares.sum()).tolist())

    @property
    def most_lanes(self) -> int:
        """Lanes that the order may have: each lane needs a sample of each source."""
        return min(source.entry.records for source in self.sources)

    def records(self, lanes: int, global_batch: int) -> int:
        """Return the samples of an epoch."""
        return self._stream(lanes, global_batch)[1]

    def cursor(self, lanes: int, share: Share) -> MixtureCursor:
        """Return the start of an epoch, whose share is `share`."""
        epoch, begun = (0, 0) if self.history is None else (self.history.epoch, self.history.begun)
        return MixtureCursor(self._stream(lanes, share.global_batch)[0], share, begun, epoch)

    def state(self, epoch: int, lanes: int, samples: int, global_batch: int) -> dict[str, Any]:
        """Return the state after `samples` samples of the whole world in `epoch`."""
        stream, records = self._stream(lanes, global_batch)
        first, begun = (0, 0) if self.history is None else (self.history.epoch, self.history.begun)
        digests = self._digests if self.history is None else self.history.digests
        urls = {source.dataset.content_digest: source.label for source in self.sources}
        order = {
            "sources": [[digest, urls.get(digest, "")] for digest in digests],
            "phases": [[phase.first, list(phase.shares)] for phase in stream.order.phases],
            "seed": self._seed,
            "per_batch": self.mixture.per_batch,
        }
        text = json.dumps(order | {"digest": hashlib.blake2b(json.dumps(order).encode(), digest_size=16).hexdigest()})
        return {
            **self._identity,
            "mixture": text,
            "epoch": epoch,
            "lanes": lanes,
            "samples": samples,
            "begun": max(0, begun + (epoch - first) * records),
            "epoch_samples": records,
            **({"global_batch": global_batch} if self.mixture.per_batch else {}),
        }

    def resumed(
        self, state: Mapping[str, Any], lanes: int, global_batch: int
    ) -> "tuple[MixtureFeed, Mapping[str, Any]]":
        """Return the feed that goes on from `state`, and the state.

        Raises:
            OptionError: the state is of another mixture, or of other weights and `reweight` does not allow them.
        """
        if "mixture" not in state and "content_digest" in state:
            raise OptionError(
                f"the state is of one dataset, and {self.url} is a mixture; load it into a loader of that"
            )
        check_identity(state, self._identity, "loader", self.url)
        try:
            found = _STORED_ORDER.decode(state["mixture"])
        except (KeyError, TypeError, msgspec.DecodeError) as error:
            raise OptionError(f"the state's mixture is not what state_dict() gives: {error}") from error
        mixture = self.mixture
        for name, there, here in (("seed", found.seed, self._seed), ("per_batch", found.per_batch, mixture.per_batch)):
            if there != here:
                raise OptionError(
                    f"the state's mixture has {name}={there}, this loader's {name}={here}; give that of the state"
                )
        if mixture.per_batch and state.get("global_batch") != global_batch:
            raise OptionError(
                f"the state is of batches of {shown(state.get('global_batch'))} samples of all ranks together, and "
                f"here they have {global_batch}; with per_batch=True both must be equal: change batch_size "
                "with the ranks"
            )
        unit = global_batch if mixture.per_batch else lanes
        begun, epoch = state_number(state, "begun", 0, _LAST), state_number(state, "epoch", 0, _LAST)
        samples = state_number(state, "samples", 0, _LAST)
        phases = [Phase(first, tuple(shares)) for first, shares in found.phases]
        digests = tuple(digest for digest, _ in found.sources)
        own = mixture.lane_phases(unit)
        if set(self._digests) == set(digests) and (
            self._aligned(own, digests) == phases
            or (len(own) == 1 and self._aligned(own, digests)[0].shares == phases[-1].shares)
        ):
            return self.with_history(_History(digests, tuple(phases), epoch, begun)), state
        if not mixture.reweight:
            urls = dict(found.sources)
            raise OptionError(
                f"the state is of other weights: there {_said(phases, [urls[digest] for digest in digests])}, here "
                f"{_said(own, [source.label for source in self.sources])}. Give the weights of the state, or "
                "Mixture(..., reweight=True) to go on from its place with these"
            )
        digests = (*digests, *(digest for digest in self._digests if digest not in digests))
        number = -(-(begun + samples) // unit)
        past = [Phase(phase.first, phase.shares + (0,) * (len(digests) - len(phase.shares))) for phase in phases]
        new = self._aligned(own, digests)
        now = [phase for phase in new if phase.first <= number][-1]
        following = [Phase(number, now.shares), *(phase for phase in new if phase.first > number)]
        joined = (*(phase for phase in past if phase.first < number), *following)
        return self.with_history(_History(digests, joined, epoch, begun)), state

    def most_samples(self, records: int) -> int:
        """Return how many samples of an epoch a state may tell of: with other weights it had more."""
        return _LAST

    def after(self, samples: int, records: int) -> "MixtureFeed":
        """Return the feed for the epoch after one of which `samples` were given: the next one begins behind them."""
        if self.history is None or samples <= records:
            return self
        history = self.history
        return self.with_history(replace(history, epoch=history.epoch + 1, begun=history.begun + samples))

    @property
    def _digests(self) -> tuple[str, ...]:
        return tuple(source.dataset.content_digest for source in self.sources)

    @property
    def _identity(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "split": self.sources[0].split,
            "seed": self._options.seed,
            "shuffle": self._options.shuffle,
        }

    def with_history(self, history: "_History | None") -> "MixtureFeed":
        """Return the feed of a run with this past."""
        return MixtureFeed(self.mixture, self.sources, self._options, history)

    def _aligned(self, phases: Sequence[Phase], digests: Sequence[str]) -> list[Phase]:
        """Return phases of this mixture with the shares in the order of these sources."""
        places = [self._digests.index(digest) if digest in self._digests else None for digest in digests]
        return [Phase(p.first, tuple(0 if at is None else p.shares[at] for at in places)) for p in phases]

    def _stream(self, lanes: int, global_batch: int) -> tuple[MixtureStream, int]:
        """Return the stream, and the samples of an epoch."""
        grouped = global_batch if self.mixture.per_batch else 0
        found = self._streams.get((lanes, grouped))
        if found is None:
            by_digest = {source.dataset.content_digest: source for source in self.sources}
            if self.history is None:
                phases, members = self.mixture.lane_phases(grouped or lanes), list[Source | None](self.sources)
            else:
                phases, members = list(self.history.phases), [by_digest.get(each) for each in self.history.digests]
            numbers = [-1 if member is None else self.sources.index(member) for member in members]
            options = self._options
            stream = MixtureStream(
                phases=phases,
                sources=self.sources,
                members=numbers,
                seed=self._seed,
                order_seed=options.seed,
                lanes=lanes,
                shuffle=options.shuffle,
                global_batch=grouped,
            )
            found = stream, stream.epoch_samples(self.mixture.stop != "shortest")
            self._streams[lanes, grouped] = found
        return found


@dataclass(frozen=True, slots=True)
class _History:
    """What a state says of a run: sources and phases since its start, and where in the stream the epoch began."""

    digests: tuple[str, ...]
    phases: tuple[Phase, ...]
    epoch: int
    begun: int


class _StoredOrder(msgspec.Struct):
    sources: list[tuple[str, str]]
    phases: list[tuple[int, list[int]]]
    seed: int
    per_batch: bool


_STORED_ORDER = msgspec.json.Decoder(_StoredOrder)


def _said(phases: Sequence[Phase], names: Sequence[str]) -> str:
    """Return the weights of each phase in words."""
    said = [
        ", ".join(f"{name}={share / sum(phase.shares):.6g}" for name, share in zip(names, phase.shares, strict=True))
        for phase in phases
    ]
    return "; then ".join(said)
