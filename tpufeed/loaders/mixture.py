"""Mixtures: several datasets as one stream in exact shares, for any number of ranks."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from tpufeed.dataset.mixture import LEAST_SHARE, SHARES, MixtureOrder, Phase, whole_shares
from tpufeed.dataset.order import EpochOrder, Ints, Places
from tpufeed.dataset.partition import Share
from tpufeed.dataset.reader import Dataset
from tpufeed.errors import OptionError, mask_secrets
from tpufeed.loaders.batch import BatchRequest, group_rows
from tpufeed.loaders.cursor import LAST_EPOCH, VERSION, check_identity, has_grown_since, state_number
from tpufeed.loaders.options import LoaderOptions
from tpufeed.loaders.sources import ClassList, JoinBy, Source, draws_seed, join_classes, label_of, open_sources
from tpufeed.options import Whole, checked, is_number, shown

Stop = Literal["shortest", "longest", "never"]

_LEAST_WEIGHT = 2.0**-26  # of all: a block would have more than 67 million numbers
_LAST = 1 << 62  # position of the stream
_PLANNED_SAMPLES = 8192  # at once: each source and epoch that they meet costs a look-up in its order
_KEPT_ORDERS = 3  # epochs of a source that lanes are in at the same time
_WEIGHTED = re.compile(r"(.+?)=(-?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|nan|inf)(?:,|$)", re.DOTALL)


class Mixture:
    """Several datasets that a loader takes instead of one URL, mixed sample by sample in exact shares.

    `tpufeed.numpy_loader(tpufeed.Mixture({"gs://b/a": 0.7, "gs://b/b": 0.3}), ops=...)`

    A sample keeps its lane: lane l of the mixture draws from lane l of each source, so that each rank reads only its
    share of every source's shards. Which source gives a sample follows from weights, seed, lane and the sample's number
    in the lane: each lane is cut into blocks of at least 1 / least weight samples; at the end of each block every
    source has given its share within one sample, and within a block the order is random. A source is read in its own
    order, without replacement, epoch after epoch; epochs of a cache read its variants.

    Args:
        weights: for each dataset a number above 0; they need not add up to 1. A dataset is a path, a URL, or what
            `tpufeed.open_dataset` returns: a version of its own, or with `grown=True` one that goes on from a state of
            an older version.
        stop: an epoch of the loader ends when the first source is used up ("shortest"), or when each was read once
            ("longest"; the others continue with their next epochs meanwhile). The next epoch begins with the sample
            after the last one that was given: nothing is left out. "never" makes one iteration endless, as
            `repeat=True` does.
        seed: of the draws of sources; by default the loader's.
        classes: how the sources' classes become one list, `loader.class_names`: "by_name" gives classes of one name one
            id, "offset" keeps the classes of different sources apart, "as_is" takes ids as they are. Ids do not change
            while a training continues from its states: new classes come last.
        reweight: True lets a loader continue from a state that was saved with other weights or sources.

    Raises:
        OptionError: a weight that is not a positive number, or an unknown value of an option.
    """

    @checked()
    def __init__(
        self,
        weights: Mapping[str | Path | Dataset, float],
        *,
        stop: Stop = "shortest",
        seed: Whole | None = None,
        classes: JoinBy = "by_name",
        reweight: bool = False,
    ) -> None:
        self.weights = _check_weights(weights)
        self.stop, self.seed, self.classes, self.reweight = stop, seed, classes, reweight

    def open(self, split: str) -> tuple[Source, ...]:
        """Open the split of each source. Raises as `open_sources` does."""
        return MixtureFeed(self, open_sources(tuple(self.weights), split), split, LoaderOptions()).sources

    def __repr__(self) -> str:
        weights = {label_of(source): weight for source, weight in self.weights.items()}
        return f"Mixture({weights!r}, stop={self.stop!r})"


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


def _check_weights(weights: Mapping[str | Path | Dataset, float]) -> dict[str | Dataset, float]:
    if not isinstance(weights, Mapping) or not weights:
        raise OptionError(
            f"weights are a dict of datasets and numbers, like {{'gs://b/a': 0.7, 'gs://b/b': 0.3}}, not {weights!r}"
        )
    found: dict[str | Dataset, float] = {}
    for given, weight in weights.items():
        source = given if isinstance(given, Dataset) else str(given).rstrip("/")
        if not (is_number(weight) and 0 < weight < math.inf):
            raise OptionError(
                f"the weight of {label_of(source)} is a number above 0, not {weight!r}; leave out what is not to be "
                "read"
            )
        if source in found:
            raise OptionError(f"{label_of(source)} stands twice in the mixture; name it once")
        found[source] = float(weight)
    least = min(found, key=found.__getitem__)
    if found[least] < _LEAST_WEIGHT * math.fsum(found.values()):
        raise OptionError(f"the weight of {label_of(least)} is less than 1/67,108,864 of all; leave it out")
    return found


class RunSource(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A dataset that a training draws from, or has drawn from.

    Attributes:
        digest: of its content.
        url: without secrets, for messages.
        records: of its split.
        root: number of the source, among all of the training, that it is a version of; its own if of none.
        epoch: with which it began: after an older version of it the next one, else 0.
    """

    digest: str
    url: str
    records: int
    root: int
    epoch: int

    def lane_length(self, lane: int, lanes: int) -> int:
        """Return the samples of a lane in an epoch."""
        return self.records // lanes + (lane < self.records % lanes)


@dataclass(frozen=True, slots=True)
class MixtureRun:
    """What a training has drawn from since it began, and where in the stream its epochs begin.

    Attributes:
        sources: all that it has had. Those that it has no more keep their numbers.
        phases: shares of these, from a position of the stream on. Those of the present sources alone are above 0 in the
            last one.
        classes: of all sources.
        epoch: that begins at position `begun`.
        begun: that position.
        samples: of that epoch the first one that was read, where a state said so.
    """

    sources: tuple[RunSource, ...]
    phases: tuple[Phase, ...]
    classes: ClassList
    epoch: int = 0
    begun: int = 0
    samples: int = 0

    def begin_of(self, epoch: int, share: Share) -> int:
        """Return the position in the stream at which an epoch begins: behind the last sample of the one before it.

        Args:
            epoch: its number.
            share: of a whole epoch.

        Raises:
            OptionError: it is before the one that the training continued with, whose length was another; or too late.
        """
        whole = _end_of(share)
        if epoch == self.epoch:
            return self.begun
        if epoch > self.epoch:
            end = self.begun + _end_of(replace(share, start=self.samples))
            begin = end + (epoch - self.epoch - 1) * whole
        elif epoch and self.begun != self.epoch * whole:
            raise OptionError(
                f"where epoch {epoch} of this training began is not known, as epochs had another length before epoch "
                f"{self.epoch}: other weights, batch size or ranks. Set epoch 0, or one from {self.epoch} on"
            )
        else:
            begin = epoch * whole
        if begin > _LAST:
            raise OptionError(f"a mixture has no epoch {shown(epoch)}: its samples are numbered up to 2**62")
        return begin


def _end_of(share: Share) -> int:
    """Return the samples of an epoch up to the end of its last batch, behind which the next one begins."""
    return share.records if share.remainder == "pad" else share.start + len(share) * share.global_batch


class MixtureStream:
    """The endless sequence of a mixture's samples, the same for every number of ranks. For one thread.

    Args:
        run: the training's sources and phases.
        sources: the present ones.
        seed: of the draws of sources.
        order_seed: of each source's own order.
        lanes: of the order.
        shuffle: False reads each source in its own order.

    Attributes:
        first: the position from which on all samples are of present sources.

    Raises:
        OptionError: a source has fewer samples than there are lanes.
    """

    def __init__(
        self, run: MixtureRun, sources: Sequence[Source], *, seed: int, order_seed: int, lanes: int, shuffle: bool
    ) -> None:
        self.lanes = lanes
        self.order = MixtureOrder(run.phases, lanes, seed)
        self._run, self._seed, self._shuffle = run, seed, shuffle
        self._entries = [source.entry for source in sources]
        self._seeds = [draws_seed(order_seed, source.root) for source in sources]
        self._shard_records = [[[s.records for s in v.shards] for v in entry.variants] for entry in self._entries]
        for source in sources:
            records = source.entry.records
            if records < lanes:
                raise OptionError(
                    f"{source.label}: split {source.split!r} has {records} samples, fewer than the {lanes} lanes of "
                    f"the mixture, and each lane needs some; give lanes={2 ** (records.bit_length() - 1)} or fewer (a "
                    "multiple of the number of ranks), or leave this source out"
                )
        by_digest = {source.dataset.content_digest: number for number, source in enumerate(sources)}
        members = [by_digest.get(each.digest, -1) for each in run.sources]
        self._members = np.asarray(members, np.int64)
        self._places = [members.index(number) for number in range(len(sources))]  # among those of the run
        self._records = np.asarray([each.records for each in run.sources], np.int64)
        self._epochs = np.asarray([each.epoch for each in run.sources], np.int64)
        self._orders: dict[int, dict[int, EpochOrder]] = {}
        ends = [phase.first for phase in run.phases[1:]]
        gone = [end for end, phase in zip(ends, run.phases, strict=False) if self._missing(phase)]
        self.first = max(gone, default=0)

    def _missing(self, phase: Phase) -> bool:
        return any(share and member < 0 for share, member in zip(phase.shares, self._members.tolist(), strict=True))

    def draw(self, positions: Ints) -> tuple[Ints, Ints, Places]:
        """Return for each position, from `first` on, its source, the epoch of that, and the place of the sample."""
        lane, at = positions % self.lanes, positions // self.lanes
        drawn, number = np.empty_like(positions), np.empty_like(positions)
        for each in np.unique(lane).tolist():
            rows = np.flatnonzero(lane == each)
            rows = rows[np.argsort(at[rows], kind="stable")]
            drawn[rows], number[rows] = self.order.draw(each, at[rows])
        records = self._records[drawn]
        length = records // self.lanes + (lane < records % self.lanes)
        epoch, place = self._epochs[drawn] + number // length, (number % length) * self.lanes + lane
        source = self._members[drawn]
        found = Places(*(np.empty(len(positions), np.int64) for _ in Places._fields))
        for each, its_epoch, rows in group_rows(source, epoch):
            for column, values in zip(found, self._order(each, its_epoch).places_at(place[rows]), strict=True):
                column[rows] = values
        return source, epoch, found

    def epoch_samples(self, longest: bool) -> int:
        """Return the samples of an epoch: as many as until the first source is used up, or each was read once.

        They are counted from the beginning of a training with the present shares.
        """
        shares = self.order.phases[-1].shares
        order, ends, near = MixtureOrder([Phase(0, shares)], self.lanes, self._seed), list[int](), 0
        for lane in range(self.lanes):
            wholes = np.full(len(shares), 0 if longest else _LAST, np.int64)
            for place in self._places:
                wholes[place] = self._run.sources[place].lane_length(lane, self.lanes)
            near = order.first_where(lane, partial(_is_through, wholes, longest), near)
            ends.append(near)
        return self.lanes * (max(ends) if longest else min(ends) - 1)

    def due_shards(self, lanes: Sequence[int], position: int, horizon: int) -> list[tuple[int, int, list[int]]]:
        """Return (source, variant, shards) that lanes read next, the first ones due first.

        That is to the end of each source's next epoch, but no shard that is due `horizon` samples from here or later.
        """
        due = list[tuple[float, int, int, int]]()
        counts = {lane: self.order.counts(lane, self.order.number_at(lane, position)) for lane in lanes}
        now = [phase for phase in self.order.phases if phase.first <= position][-1]
        for source, place in enumerate(self._places):
            share, of_run = now.shares[place] / sum(now.shares), self._run.sources[place]
            if not share:
                continue
            lengths = {lane: of_run.lane_length(lane, self.lanes) for lane in lanes}
            done = {lane: divmod(int(counts[lane][place]), lengths[lane]) for lane in lanes}
            first = min(epoch for epoch, _ in done.values())
            for epoch in (first, first + 1):
                number = of_run.epoch + epoch
                variant = number % len(self._entries[source].variants)
                read = {lane: 0 if epoch > at else done_of for lane, (at, done_of) in done.items() if at <= epoch}
                start = min(done_of + at * lengths[lane] for lane, (at, done_of) in done.items())
                for shard, when_due in self._order(source, number).due_positions(read).items():
                    ahead = epoch * of_run.records + when_due - start * self.lanes
                    when = ahead / share
                    if when < horizon:
                        due.append((when, source, variant, shard))
        due.sort()
        return [(source, variant, [shard]) for _, source, variant, shard in due]

    def due_again(self) -> int:
        """Return after how many samples of all lanes some source has given a whole epoch."""
        shares = self.order.phases[-1].shares
        return int(min(self._run.sources[place].records * sum(shares) / shares[place] for place in self._places))

    def _order(self, source: int, epoch: int) -> EpochOrder:
        orders = self._orders.setdefault(source, {})
        found = orders.pop(epoch, None)
        if found is None:
            shard_records = self._shard_records[source][epoch % len(self._shard_records[source])]
            found = EpochOrder(shard_records, self._seeds[source], epoch, self.lanes, self._shuffle)
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
        run: says where epochs begin in it.
        share: this rank's batches of the epoch from the place on. What does not fill the last batch is filled up with
            the samples that follow in the stream: none comes twice.
        epoch: the number of the epoch.
    """

    stream: MixtureStream
    run: MixtureRun
    share: Share
    epoch: int = 0

    def at(self, epoch: int, samples: int = 0) -> "MixtureCursor":
        """Return the place in `epoch` after so many samples of the whole world.

        Raises:
            OptionError: where the epoch begins is not known, or it has samples of a source that is no more there.
        """
        found = replace(self, epoch=epoch, share=replace(self.share, start=samples))
        if found.begun + samples < self.stream.first:
            raise OptionError(
                f"epoch {epoch} has samples of a source that was left out later, at sample {self.stream.first} of the "
                f"training: give the mixture that source again, or set an epoch from {self.run.epoch + 1} on"
            )
        return found

    @cached_property
    def begun(self) -> int:
        """Position in the stream of the epoch's first sample."""
        return self.run.begin_of(self.epoch, replace(self.share, start=0))

    @property
    def due_every(self) -> int:
        """Batches after which shards are due that were not named before."""
        return max(1, self.stream.due_again() // self.share.global_batch)

    def samples_after(self, batches: int) -> int:
        """Return how many samples of the epoch the whole world has had after so many batches from this place on."""
        samples = self.share.start + batches * self.share.global_batch
        return min(samples, self.share.records) if self.share.remainder == "pad" else samples

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
        horizon = max(0, 2 * self.share.records - done)
        return self.stream.due_shards(range(world.rank, self.stream.lanes, world.size), self.begun + done, horizon)


class MixtureFeed:
    """A mixture as a loader reads it: its epochs, and what its states hold; the counterpart of `DatasetFeed`.

    Args:
        mixture: what is mixed.
        datasets: its sources, open.
        split: which part of them.
        options: of the loader.
        run: the training that is continued; by default one that begins.

    Attributes:
        sources: the datasets with their classes, in the order of the mixture's weights.
        run: the training.

    Raises:
        OptionError: the classes cannot be joined.
    """

    def __init__(
        self,
        mixture: Mixture,
        datasets: Sequence[Dataset],
        split: str,
        options: LoaderOptions,
        run: MixtureRun | None = None,
    ) -> None:
        self.mixture = mixture
        self._datasets, self._split, self._options = datasets, split, options
        self._seed = options.seed if mixture.seed is None else mixture.seed
        self._streams: dict[int, tuple[MixtureStream, int]] = {}
        if run is None:
            begun = tuple(self._as_run_source(dataset, root, 0) for root, dataset in enumerate(datasets))
            phase = Phase(0, whole_shares(list(mixture.weights.values())))
            run = MixtureRun(begun, (phase,), ClassList())
        roots = {each.digest: each.root for each in run.sources}
        found = [roots[dataset.content_digest] for dataset in datasets]
        classes, tables = join_classes(datasets, mixture.classes, found, run.classes)
        self.run = replace(run, classes=classes)
        self.sources = tuple(
            Source(dataset, split, table, root) for dataset, table, root in zip(datasets, tables, found, strict=True)
        )

    @property
    def url(self) -> str:
        """The mixture in words, for messages."""
        return repr(self.mixture)

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the joined classes; a label is a place among them."""
        return self.run.classes.names

    @property
    def is_endless(self) -> bool:
        """True where one iteration goes on for ever."""
        return self.mixture.stop == "never"

    @property
    def shares(self) -> tuple[float, ...]:
        """The share of the samples that each source gives."""
        total = math.fsum(self.mixture.weights.values())
        return tuple(weight / total for weight in self.mixture.weights.values())

    @property
    def most_lanes(self) -> int:
        """Lanes that the order may have: each lane needs a sample of each source."""
        return min(source.entry.records for source in self.sources)

    def records(self, lanes: int) -> int:
        """Return the samples of an epoch."""
        return self._stream(lanes)[1]

    def cursor(self, lanes: int, share: Share) -> MixtureCursor:
        """Return the place from which all others are made; `share` is that of a whole epoch."""
        return MixtureCursor(self._stream(lanes)[0], self.run, share, self.run.epoch)

    def state(self, epoch: int, lanes: int, samples: int, share: Share) -> dict[str, Any]:
        """Return the state after `samples` samples of the whole world in `epoch`; `share` is that of a whole epoch."""
        return {
            **self._identity,
            "mixture": self._run_text,
            "epoch": epoch,
            "lanes": lanes,
            "samples": samples,
            "begun": self.run.begin_of(epoch, share),
            "epoch_samples": _end_of(share),
        }

    def resumed(self, state: Mapping[str, Any], lanes: int) -> "tuple[MixtureFeed, int, int]":
        """Return the feed that continues from `state`, the epoch, and the samples of it that were given.

        Raises:
            OptionError: the state is of another mixture, or of other weights or sources and `reweight` does not allow
                them; or a source has grown, and was not opened with `grown`.
        """
        if "mixture" not in state and "content_digest" in state:
            raise OptionError(
                f"the state is of one dataset, and {self.url} is a mixture; load it into a loader of that"
            )
        check_identity(state, self._identity, "loader", self.url)
        found, phases = _decode_run(state.get("mixture"), lanes)
        for name, there, here in (("seed", found.seed, self._seed), ("classes", found.join, self.mixture.classes)):
            if there != here:
                raise OptionError(
                    f"the state's mixture has {name}={there!r}, this loader's {name}={here!r}; give that of the state"
                )
        epoch, begun, samples = (state_number(state, name, 0, LAST_EPOCH) for name in ("epoch", "begun", "samples"))
        run = MixtureRun(found.sources, phases, found.classes, epoch, begun, samples)
        return self.with_run(self._joined(run, lanes)), epoch, samples

    def after(self, samples: int) -> "MixtureFeed":
        """Return the feed for the epoch after the one that was continued, of which `samples` samples were given."""
        run = self.run
        return self.with_run(replace(run, epoch=run.epoch + 1, begun=run.begun + samples, samples=0))

    def restarted(self, epoch: int) -> "MixtureFeed":
        """Return the feed for an epoch that is read from its start, also if it was continued in its middle before."""
        return self.with_run(replace(self.run, samples=0)) if epoch == self.run.epoch and self.run.samples else self

    def with_run(self, run: MixtureRun) -> "MixtureFeed":
        """Return the feed that continues a training. Its `sources` are this one's if nothing changes in them."""
        found = MixtureFeed(self.mixture, self._datasets, self._split, self._options, run)
        roots = [[source.root for source in feed.sources] for feed in (self, found)]
        if found.run.classes == self.run.classes and roots[0] == roots[1]:
            found.sources = self.sources
        return found

    def _joined(self, run: MixtureRun, lanes: int) -> MixtureRun:
        """Return a training that continues with the present sources and weights. Raises as `resumed` does."""
        last, position = run.phases[-1], run.begun + run.samples
        numbers = {each.digest: number for number, each in enumerate(run.sources)}
        present = {dataset.content_digest for dataset in self._datasets}
        gone = {each.digest for each, share in zip(run.sources, last.shares, strict=True) if share} - present
        sources, weights, expected = list(run.sources), [0.0] * len(run.sources), list(last.shares)
        order, has_grown = MixtureOrder(run.phases, lanes, self._seed), False
        for dataset, weight in zip(self._datasets, self.mixture.weights.values(), strict=True):
            number = numbers.get(dataset.content_digest)
            if number is not None:
                weights[number] = weight
                continue
            root, epoch, share = len(sources), 0, 0
            past = dataset.manifest.past_digests
            older = next((digest for digest in reversed(past) if digest in gone), None)
            if older is not None:
                if not dataset.grown and not self.mixture.reweight:
                    raise has_grown_since(dataset, past.index(older) + 1)
                gone.remove(older)
                has_grown, number = True, numbers[older]
                root, epoch = sources[number].root, _next_epoch(order, number, sources[number], position)
                share, expected[number] = expected[number], 0  # the newer version takes its place
            sources.append(self._as_run_source(dataset, root, epoch))
            weights.append(weight)
            expected.append(share)
        shares = whole_shares(weights)
        # Equal weights may differ in the last bit: 0.7 and 0.3, or 7 and 3.
        is_same = all(abs(here - there) <= len(shares) for here, there in zip(shares, expected, strict=True))
        if is_same and not has_grown:
            return run
        if not is_same and not self.mixture.reweight:
            raise self._other_weights(run)
        new = Phase(position, tuple(expected) if is_same else shares)
        more = (0,) * (len(sources) - len(run.sources))
        past_phases = (Phase(phase.first, phase.shares + more) for phase in run.phases if phase.first < position)
        return replace(run, sources=tuple(sources), phases=(*past_phases, new))

    def _other_weights(self, run: MixtureRun) -> OptionError:
        present = {dataset.content_digest for dataset in self._datasets}
        labels = [mask_secrets(dataset.url) for dataset in self._datasets]
        there = [(each, share) for each, share in zip(run.sources, run.phases[-1].shares, strict=True) if share]
        changed = [each.url for each, _ in there if each.digest not in present and each.url in labels]
        return OptionError(
            f"the state is of other weights or datasets: there "
            f"{', '.join(f'{each.url}={share / sum(run.phases[-1].shares):.6g}' for each, share in there)}, here "
            f"{', '.join(f'{label}={share:.6g}' for label, share in zip(labels, self.shares, strict=True))}. "
            + (f"{changed[0]} holds other samples now. " if changed else "")
            + "Give the mixture of the state, or Mixture(..., reweight=True) to continue from its place with this one"
        )

    def _as_run_source(self, dataset: Dataset, root: int, epoch: int) -> RunSource:
        records = dataset.split(self._split).records
        return RunSource(dataset.content_digest, mask_secrets(dataset.url), records, root, epoch)

    @property
    def _identity(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "split": self._split,
            "seed": self._options.seed,
            "shuffle": self._options.shuffle,
        }

    @cached_property
    def _run_text(self) -> str:
        """The training as states hold it, without the place: text, which every checkpointer takes."""
        run = self.run
        phases = [
            (phase.first, [(number, share) for number, share in enumerate(phase.shares) if share])
            for phase in run.phases
        ]
        return msgspec.json.encode(
            _StoredRun(run.sources, phases, run.classes, self.mixture.classes, self._seed)
        ).decode()

    def _stream(self, lanes: int) -> tuple[MixtureStream, int]:
        """Return the stream, and the samples of an epoch."""
        found = self._streams.get(lanes)
        if found is None:
            options = self._options
            stream = MixtureStream(
                self.run,
                self.sources,
                seed=self._seed,
                order_seed=options.seed,
                lanes=lanes,
                shuffle=options.shuffle,
            )
            found = self._streams[lanes] = stream, stream.epoch_samples(self.mixture.stop != "shortest")
        return found


def _next_epoch(order: MixtureOrder, number: int, source: RunSource, position: int) -> int:
    """Return the first epoch of a source of which no lane has read a sample before this position of the mixture."""
    counts = (int(order.counts(lane, order.number_at(lane, position))[number]) for lane in range(order.lanes))
    return source.epoch + max(-(-count // source.lane_length(lane, order.lanes)) for lane, count in enumerate(counts))


class _StoredRun(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    sources: tuple[RunSource, ...]
    phases: list[tuple[int, list[tuple[int, int]]]]
    classes: ClassList
    join: JoinBy
    seed: int


_STORED_RUN = msgspec.json.Decoder(_StoredRun)


def _decode_run(text: Any, lanes: int) -> tuple[_StoredRun, tuple[Phase, ...]]:
    """Return what a state says of a training. Raises OptionError where it is not what `state_dict` gave."""
    try:
        found = _STORED_RUN.decode(text)
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
        return found, tuple(phases)
    except (TypeError, ValueError) as error:  # of msgspec as well
        raise OptionError(f"the state's mixture is not what state_dict() gives: {error}") from error
