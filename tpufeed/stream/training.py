"""States: what they have in common with a loader, and the training that they continue."""

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Any, TypeAlias

import msgspec

from tpufeed.dataset.mixture import LEAST_SHARE, SHARES, MixtureOrder, Phase, whole_shares
from tpufeed.dataset.order import Share
from tpufeed.dataset.reader import Dataset, open_dataset
from tpufeed.errors import DatasetNotFoundError, OptionError, mask_secrets
from tpufeed.options import Rule, is_whole
from tpufeed.stream.mixture import ClassList, JoinBy, Mixture
from tpufeed.stream.options import LoaderOptions
from tpufeed.text import format_value

VERSION = 1  # of the order, which says what a place in it means
LAST = 1 << 62  # highest number of an epoch, or of a sample in a stream
Epoch: TypeAlias = Annotated[
    int, Rule("the number of an epoch, 0, 1, 2 ...", lambda value: is_whole(value, 0, LAST - 1), int)
]


def identity_of(dataset: Dataset | None, split: str, seed: int, shuffle: bool) -> dict[str, Any]:
    """Return what a state and the loader that loads it must have in common.

    The dataset is None for a mixture, whose states name its datasets elsewhere.
    """
    content = {} if dataset is None else {"content_digest": dataset.content_digest}
    number = {} if dataset is None or dataset.number == 1 else {"dataset_version": dataset.number}
    return {"version": VERSION, **content, **number, "split": split, "seed": seed, "shuffle": shuffle}


def check_identity(state: Mapping[str, Any], identity: Mapping[str, Any], owner: str, url: str) -> None:
    """Raise OptionError if a state is of another dataset, split, seed, order or version.

    Args:
        state: the state to load.
        identity: the identity of the loader or sampler that loads it.
        owner: "loader" or "sampler", for messages.
        url: the URL of its dataset.
    """
    version = state.get("version")
    if version != VERSION:
        found = f"the state's version is {format_value(version)}, this {owner}'s {VERSION}"
        if version is None or "epoch" not in state:
            raise OptionError(f"{found}: it does not come from state_dict()")
        epoch = format_value(state["epoch"])
        raise OptionError(
            f"{found}: it was saved by another tpufeed, which has another order of samples, so the rest of epoch "
            f"{epoch} is unknown here. Begin that epoch again with set_epoch({epoch}), or continue with the tpufeed "
            "that saved the state"
        )
    for name, value in identity.items():
        if state.get(name) != value:
            raise OptionError(
                f"the state's {name} is {state.get(name)!r}, this {owner}'s {value!r}: it is of another dataset, split "
                f"or order than {url} here. Load it into a {owner} with the same arguments as the one that saved it"
            )


def grow_state(state: Mapping[str, Any], dataset: Dataset) -> Mapping[str, Any]:
    """Return a state for this version of its dataset: a state of an older version moves on to its next epoch.

    An epoch that has given no sample yet is still to come. Raises OptionError if the state is of an older version, and
    the dataset was not opened with `grown`.
    """
    digest, past = state.get("content_digest"), dataset.past_digests
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
    """Return a number from a state. Checkpoints may have made it an element of an array. Raises OptionError."""
    value = state.get(name)
    try:
        number = operator.index(value)  # type: ignore[arg-type]  # anything but a whole number raises
    except TypeError:
        number = -1
    if isinstance(value, bool) or not least <= number <= most:
        raise OptionError(f"the state's {name} is {format_value(value)}, not a whole number between {least} and {most}")
    return number


class TrainedSource(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A dataset that a training draws from, or has drawn from.

    Attributes:
        digest: digest of its content.
        url: its URL without secrets, and what a view selects, for messages.
        records: samples of its split.
        root: number of the training's first version of this dataset. Its own number if this is the first.
        epoch: the epoch with which it began: the next one after an older version, else 0.
    """

    digest: str
    url: str
    records: int
    root: int
    epoch: int

    def epoch_records(self, lanes: int) -> int:
        """Return the samples of one of its epochs, which has several passes if there are more lanes than samples."""
        return self.records * passes_of(self.records, lanes)

    def lane_length(self, lane: int, lanes: int) -> int:
        """Return the samples of a lane in an epoch."""
        records = self.epoch_records(lanes)
        return records // lanes + (lane < records % lanes)


def passes_of(records: int, lanes: int) -> int:
    """Return how often an epoch of a dataset in a mixture reads it: often enough for a sample in each lane."""
    return -(-lanes // records)


@dataclass(frozen=True)
class Training:
    """The datasets that a training has drawn from since it began, and where one of its epochs begins in its stream.

    Attributes:
        sources: all datasets that a mixture has had. Datasets that it no longer has keep their numbers.
        phases: their shares, each phase from a position of the stream on. In the last phase only present datasets have
            shares above 0.
        seed: seed that decides which dataset gives each sample.
        join: how classes are joined.
        classes: classes of all datasets.
        lanes: lanes of the order. None until they are asked for.
        epoch: the epoch that begins at position `begun`.
        begun: that position. For a single dataset it follows from the epoch.
        samples: number of the first sample to read in that epoch, if a state gave one.
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

    def drawing(self, present: Sequence[Dataset], split: str, mixture: Mixture, other: "Training") -> "Training":
        """Return the training that continues from its place with the present datasets and their weights in `mixture`.

        It replaces `other`, which began with the mixture. Raises OptionError if it has other weights or datasets, and
        `reweight` does not allow that, if it has another seed or way to join classes, or if a dataset has grown, and
        was not opened with `grown`.
        """
        for name, there, here in (("seed", self.seed, other.seed), ("classes", self.join, other.join)):
            if there != here:
                raise OptionError(
                    f"the state's mixture has {name}={there!r}, this loader's {name}={here!r}; give that of the state"
                )
        assert self.lanes is not None, "a state has them"
        last, position = self.phases[-1], self.begun + self.samples
        numbers = {each.digest: number for number, each in enumerate(self.sources)}
        weights = dict(zip((each.content_digest for each in present), mixture.weights.values(), strict=True))
        gone = {each.digest for each, share in zip(self.sources, last.shares, strict=True) if share} - weights.keys()
        sources, expected = list(self.sources), list(last.shares)
        order, has_grown = MixtureOrder(self.phases, self.lanes, self.seed), False
        for dataset in present:
            records = dataset.split(split).records
            if (number := numbers.get(dataset.content_digest)) is not None:
                if self.sources[number].records != records:
                    raise OptionError(
                        f"the state's mixture does not come from state_dict(): it says that {dataset.label} has "
                        f"{self.sources[number].records} samples, and it has {records}"
                    )
                continue
            root, epoch, share = len(sources), 0, 0
            past = dataset.past_digests
            older = next((digest for digest in reversed(past) if digest in gone), None)
            if older is not None:
                if not dataset.grown and not mixture.reweight:
                    raise has_grown_since(dataset, past.index(older) + 1)
                gone.remove(older)
                has_grown, number = True, numbers[older]
                root, epoch = sources[number].root, _next_epoch(order, number, sources[number], position)
                # Each pass has its own random numbers, and more samples may need fewer passes.
                before, now = (passes_of(each, self.lanes) for each in (sources[number].records, records))
                epoch = -(-epoch * before // now)
                share, expected[number] = expected[number], 0  # the newer version takes its place
            sources.append(_trained(dataset, split, root, epoch))
            expected.append(share)
        shares = whole_shares([weights.get(each.digest, 0.0) for each in sources])
        # Equal weights may differ in the last bit: 0.7 and 0.3, or 7 and 3.
        is_same = all(abs(here - there) <= len(shares) for here, there in zip(shares, expected, strict=True))
        if is_same and not has_grown:
            return self
        if not is_same and not mixture.reweight:
            raise self._other_weights({each.label: each.content_digest for each in present}, weights)
        new = Phase(position, tuple(expected) if is_same else shares)
        more = (0,) * (len(sources) - len(self.sources))
        past_phases = (Phase(phase.first, phase.shares + more) for phase in self.phases if phase.first < position)
        return replace(self, sources=tuple(sources), phases=(*past_phases, new))

    def _other_weights(self, digests: Mapping[str, str], weights: Mapping[str, float]) -> OptionError:
        """Return the error. `digests` are those of the present datasets by their URLs, `weights` go by digest."""
        there = [(each, share) for each, share in zip(self.sources, self.phases[-1].shares, strict=True) if share]
        changed = [each.url for each, _ in there if digests.get(each.url, each.digest) != each.digest]
        total = math.fsum(weights.values())
        return OptionError(
            f"the state is of other weights or datasets: there "
            f"{', '.join(f'{each.url}={share / SHARES:.6g}' for each, share in there)}, here "
            f"{', '.join(f'{url}={weights[digest] / total:.6g}' for url, digest in digests.items())}. "
            + (f"{changed[0]} holds other samples now. " if changed else "")
            + "Give the state's mixture, or Mixture(..., reweight=True) to continue from its place with this one"
        )

    def begin_of(self, epoch: int, share: Share) -> int:
        """Return the position at which an epoch of a mixture begins: after the last sample of the epoch before it.

        `share` has a rank's batches of a whole epoch. Raises OptionError for epochs before the one that the training
        continued with, if their length was another, and for epochs whose samples cannot be numbered.
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
                f"the start of epoch {epoch} of this training is not known, as epochs had another length before epoch "
                f"{self.epoch}: other weights, batch size or ranks. Set epoch 0, or one from {self.epoch} on"
            )
        if begin > LAST:
            raise OptionError(f"a mixture has no epoch {format_value(epoch)}: its samples are numbered up to 2**62")
        return begin

    @cached_property
    def text(self) -> str:
        """The training as states hold it, without its place: as text, which every checkpointer can save."""
        phases = [
            (phase.first, [(number, share) for number, share in enumerate(phase.shares) if share])
            for phase in self.phases
        ]
        return msgspec.json.encode(_Stored(self.sources, phases, self.classes, self.join, self.seed)).decode()


def begin_training(present: Sequence[Dataset], split: str, mixture: Mixture, options: LoaderOptions) -> Training:
    """Return the training that begins with a mixture of the datasets `present`."""
    sources = tuple(_trained(dataset, split, root, 0) for root, dataset in enumerate(present))
    phase = Phase(0, whole_shares(list(mixture.weights.values())))
    seed = options.seed if mixture.seed is None else mixture.seed
    return Training(sources, (phase,), seed, mixture.classes, lanes=options.lanes)


def _trained(dataset: Dataset, split: str, root: int, epoch: int) -> TrainedSource:
    return TrainedSource(dataset.content_digest, dataset.label, dataset.split(split).records, root, epoch)


def _next_epoch(order: MixtureOrder, number: int, source: TrainedSource, position: int) -> int:
    """Return the first epoch of a dataset from which no lane has read a sample before this position of the mixture."""
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
    """Return the training that a mixture's state holds as `Training.text`, at the state's place.

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
        if any(each.records < 1 or each.epoch < 0 or not 0 <= each.root < count for each in found.sources):
            raise ValueError("its datasets have no samples")
        return Training(
            found.sources, tuple(phases), found.seed, found.join, found.classes, lanes, epoch, begun, samples
        )
    except (TypeError, ValueError) as error:  # of msgspec as well
        raise OptionError(f"the state's mixture does not come from state_dict(): {error}") from error
