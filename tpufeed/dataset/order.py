"""The order of an epoch and each rank's share of it: pure, the same on every machine, in O(shards) memory.

An epoch's shards are permuted by (seed, epoch), laid end to end and cut into L segments of equal length (+-1).
Before that, each shard is rotated by a random number of records, and so is the whole line: records pushed out at the
end come first. So a cut falls between any two records of a shard equally often, and over all epochs each record is at
each position equally often, whatever the sizes of the shards and the number of lanes.

Segment s is lane digit-reverse(s): the lanes of a rank adjoin, and a rank touches only its share of the shards.
Within a segment the records of each shard's part are permuted. Global sample g is element g // L of lane g mod L.
Rank r of W owns the g with g mod W = r. So any W that divides L gives the same global sequence.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from tpufeed.errors import OptionError
from tpufeed.options import Whole, at_least, check_fields

Ints = npt.NDArray[np.int64]
Remainder = Literal["drop", "pad", "repeat"]

_SHARDS, _RECORDS, _ROTATIONS = 0, 1, 2
_REPEATS = (1 << 64) - 4  # instead of an epoch in the key of a random word: no epoch has this number
_UNIT, _GOLDEN = 1 << 31, 1327217885  # one draw of a sample, and 0.618 of it: products of both fit an int64
_LANES = at_least(1)


class Places(NamedTuple):
    """Places of samples in three arrays: number of the shard, record within it, and id within the split."""

    shard: Ints
    record: Ints
    sample: Ints


class EpochOrder:
    """The global sequence of one epoch over shards of `shard_records` records each.

    Args:
        shard_records: number of records of each shard, in the manifest's order.
        seed: seed of the run, unused without shuffle.
        epoch: 0, 1, 2, ..., unused without shuffle.
        lanes: L, the number of lanes.
        shuffle: False leaves shards and records in place: with one lane that is the dataset's own order.

    Not thread-safe: it keeps the permutation of each lane's last part. Reading an epoch from start to end then makes
    each permutation once.
    """

    def __init__(self, shard_records: Sequence[int], seed: int, epoch: int, lanes: int, shuffle: bool = True) -> None:
        self.lanes = _LANES.check("lanes", lanes)
        self.shuffle = shuffle
        self._key = (seed, epoch)
        counts = np.asarray(shard_records, dtype=np.int64)
        self._first_sample = _starts(counts)
        self.records = int(self._first_sample[-1])
        self._rotations = np.zeros(len(counts), np.int64)
        shards, line_start = np.arange(len(counts)), 0
        if shuffle:
            # 63 bits of each, to fit an int64: a word for each shard's rotation, and the last one for the line's.
            words = (random_words(len(counts) + 1, self._key, _ROTATIONS) >> np.uint64(1)).astype(np.int64)
            self._rotations = words[:-1] % np.maximum(counts, 1)
            shards = _permutation(len(counts), self._key, _SHARDS)
            # A whole number of shards if all have the same length: lanes that hold whole shards continue to do so.
            unit = max(1, int(np.gcd.reduce(counts)))
            line_start = int(words[-1]) % max(1, self.records // unit) * unit
        # The starts of the line's shards, and of the segments. The shard that begins the line, maybe in its middle,
        # also ends it.
        starts = _starts(counts[shards])
        first = int(np.searchsorted(starts, line_start, side="right")) - 1
        self._shards = np.concatenate([shards[first:], shards[: first + 1]])
        self._shard_starts = _starts(counts[self._shards]) + starts[first] - line_start
        # Reversed digits let the segments of a rank's lanes (r, r + W, ...) adjoin: it reads one range of shards.
        lane_of_segment = reverse_digits(np.arange(lanes), lanes)
        lengths = self.records // lanes + (lane_of_segment < self.records % lanes)
        segment_starts = np.cumsum(lengths) - lengths
        self._lane_starts = np.empty(lanes, np.int64)
        self._lane_starts[lane_of_segment] = segment_starts
        self._lane_stops = np.empty(lanes, np.int64)
        self._lane_stops[lane_of_segment] = segment_starts + lengths
        self._last_parts: dict[int, tuple[int, npt.NDArray[Any]]] = {}

    def places_at(self, positions: Ints) -> Places:
        """Return the samples at these global positions, each in `[0, records)`."""
        lanes = positions % self.lanes
        flat = self._lane_starts[lanes] + positions // self.lanes
        slots = np.searchsorted(self._shard_starts, flat, side="right") - 1
        shard, shard_starts = self._shards[slots], self._shard_starts[slots]
        record = flat - shard_starts
        if self.shuffle:
            # All records of a part at once: a batch has few parts, and each costs a look-up in Python.
            part_starts = np.maximum(shard_starts, self._lane_starts[lanes])
            by_part = np.argsort(part_starts, kind="stable")
            within = (flat - part_starts)[by_part]
            changes = np.flatnonzero(np.diff(part_starts[by_part], prepend=-1, append=-1))
            for begin, end in pairwise(changes.tolist()):
                row = by_part[begin]
                within[begin:end] = self._part_records(int(lanes[row]), int(part_starts[row]))[within[begin:end]]
            record[by_part] = within
        return Places(shard, record, self._first_sample[shard] + record)

    def due_shards(self, lanes: Iterable[int], position: int = 0) -> list[int]:
        """Return the shards that these lanes read from this global position on, in the order in which they are due."""
        due = self.due_positions({lane: max(0, -(-(position - lane) // self.lanes)) for lane in lanes})
        return sorted(due, key=due.__getitem__)

    def due_positions(self, done: Mapping[int, int]) -> dict[int, int]:
        """Return the shards that lanes still read, each with the global position at which it is due.

        Args:
            done: number of samples that are read already, by lane.
        """
        due: dict[int, int] = {}
        for lane, read in done.items():
            at = 0
            shards, _, lengths = self._lane_cuts(lane)
            for shard, length in zip(shards.tolist(), lengths.tolist(), strict=True):
                after = at + length
                if after > read:
                    when = max(at, read) * self.lanes + lane
                    due[shard] = min(when, due.get(shard, when))
                at = after
        return due

    def _lane_cuts(self, lane: int) -> tuple[Ints, Ints, Ints]:
        """Return the shard of each of a lane's parts, its first record in the rotated shard, and its length."""
        start, stop = self._lane_starts[lane], self._lane_stops[lane]
        first_slot, last_slot = np.searchsorted(self._shard_starts, [start, stop - 1], side="right") - 1
        starts, shards = self._shard_starts[first_slot : last_slot + 2], self._shards[first_slot : last_slot + 1]
        first = np.maximum(starts[:-1], start) - starts[:-1]
        lengths = np.minimum(starts[1:], stop) - starts[:-1] - first
        some = lengths > 0
        return shards[some], first[some], lengths[some]

    def _part_records(self, lane: int, start: int) -> npt.NDArray[Any]:
        """Return the permuted records of the lane's part that starts at `start`, in the smallest dtype for them."""
        last = self._last_parts.get(lane)
        if last is None or last[0] != start:
            slot = int(np.searchsorted(self._shard_starts, start, side="right")) - 1
            shard, stop = int(self._shards[slot]), int(self._shard_starts[slot + 1])
            first, count = start - int(self._shard_starts[slot]), stop - int(self._shard_starts[slot])
            order = _permutation(min(stop, int(self._lane_stops[lane])) - start, self._key, _RECORDS, shard, first)
            order += first + int(self._rotations[shard])  # a rotated shard begins in its middle,
            order %= count  # and continues with record 0
            last = self._last_parts[lane] = start, order.astype(np.min_scalar_type(count))
        return last[1]


class Repeats:
    """Counts of samples with weights per epoch: their shares of as many draws, rounded up or down. Immutable.

    The samples lie end to end on a line of one unit per draw, each as long as its share, and a draw takes the sample at
    the end of its unit. Epochs shift the line by multiples of the golden ratio, so that a share is exact over several
    epochs, too. Equal weights give each sample once.

    Args:
        weights: float64, each above 0.
        starts: number of the first sample of each shard, and of all samples.
    """

    def __init__(self, weights: npt.NDArray[np.float64], starts: Ints) -> None:
        sums, total = np.cumsum(weights / weights.max()), len(weights) * _UNIT
        self._ends = np.zeros(len(weights) + 1, np.int64)
        self._ends[1:] = np.minimum(sums * (total / sums[-1]), total)
        self._ends[-1] = total
        self._starts = starts

    def shard_records(self, seed: int, epoch: int) -> list[int]:
        """Return the number of draws of each shard."""
        found: list[int] = np.diff((self._ends[self._starts] + _shift(seed, epoch)) // _UNIT).tolist()
        return found

    def find(self, seed: int, epochs: Ints, draws: Ints) -> tuple[Ints, Ints]:
        """Return the samples that these draws of these epochs take, and how often each came before in its epoch."""
        shift = _shift(seed, epochs)
        samples = np.searchsorted(self._ends[1:], (draws + 1) * _UNIT - shift)
        return samples, draws - (self._ends[samples] + shift) // _UNIT


def _shift(seed: int, epoch: Any) -> Any:
    word = int(random_words(1, (seed, _REPEATS))[0]) % _UNIT
    return (word + epoch % _UNIT * _GOLDEN) % _UNIT


def places_of(samples: Ints, starts: Ints) -> list[tuple[int, int]]:
    """Return (shard, record) of samples by their ids. `starts` are the first id of each shard, and their number."""
    shards = np.searchsorted(starts, samples, side="right") - 1
    return list(zip(shards.tolist(), (samples - starts[shards]).tolist(), strict=True))


def reverse_digits(number: Ints, base_product: int) -> Ints:
    """Reverse the digits of each number in the mixed radix of the prime factors of `base_product`, largest first.

    For a power of two this is bit reversal. For every W that is a product of the first few factors, the numbers that
    map to one residue mod W adjoin: with 16 lanes per host and H hosts, W may be H, 2H, 4H ...
    """
    # The smallest factor first: the digit that it takes off the end is the first one of the result.
    reversed_, left, factor = number * 0, base_product, 2
    while left > 1:
        if left % factor:
            factor = factor + 1 if factor * factor <= left else left
            continue
        number, digit = divmod(number, factor)
        reversed_ = reversed_ * factor + digit
        left //= factor
    return reversed_


def _starts(lengths: Ints) -> Ints:
    """Return the start of each of these lengths, laid end to end, and the end of the last one."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])


def _permutation(length: int, key: tuple[int, int], *purpose: int) -> Ints:
    """Return a permutation of `range(length)`: ranks of random words."""
    if length == 1:  # of a rare class in each of its shards
        return np.zeros(1, np.int64)
    return np.argsort(random_words(length, key, *purpose), kind="stable").astype(np.int64, copy=False)


def random_words(length: int, key: tuple[int, int], *purpose: int) -> npt.NDArray[np.uint64]:
    """Return random words that no version of numpy may change: the raw Philox-4x64 stream."""
    counter = [0, *(part & 0xFFFFFFFFFFFFFFFF for part in (*purpose, 0, 0, 0)[:3])]
    seed, epoch = (part & 0xFFFFFFFFFFFFFFFF for part in key)
    bits = np.random.Philox(key=np.array([seed, epoch], np.uint64), counter=np.array(counter, np.uint64))
    return bits.random_raw(length)


@dataclass(frozen=True, slots=True)
class World:
    """One of the processes that share an epoch.

    Attributes:
        rank: its number, from 0.
        size: number of the processes.

    Raises:
        OptionError: the rank is not in [0, size).
    """

    rank: Whole = 0
    size: Whole = 1

    def __post_init__(self) -> None:
        check_fields(self)
        if not 0 <= self.rank < self.size:
            raise OptionError(f"a rank is in [0, {self.size}) for a world of {self.size}, not {self.rank}")


@dataclass(frozen=True, slots=True)
class Share:
    """A rank's batches of an epoch of `records` samples, from global position `start` on.

    Batch t of the world covers the positions `[start + t*W*B, start + (t+1)*W*B)`. A rank has the positions equal to
    its number modulo W. Samples that do not make a full last batch on every rank are dropped, padded or repeated.

    Attributes:
        wraps: True completes a last batch with the epoch's first samples, as in a dataset. False completes it with the
            samples that follow, and the next epoch continues behind them, as in a mixture.
    """

    records: int
    batch_size: int
    world: World
    remainder: Remainder = "drop"
    start: int = 0
    wraps: bool = False

    @property
    def global_batch(self) -> int:
        """Number of samples in a batch of the whole world."""
        return self.batch_size * self.world.size

    def __len__(self) -> int:
        """Return the number of batches of each rank. It is the same for all, without any exchange."""
        left = max(0, self.records - self.start)
        return left // self.global_batch if self.remainder == "drop" else -(-left // self.global_batch)

    @property
    def end(self) -> int:
        """Number of samples of the epoch up to the end of its last batch."""
        return self.samples_after(len(self))

    def samples_after(self, batches: int) -> int:
        """Return the number of samples that the whole world has read after `batches` batches from `start` on."""
        samples = self.start + batches * self.global_batch
        return min(samples, self.records) if self.wraps or self.remainder == "pad" else samples

    def positions(self, batch: int) -> tuple[Ints, npt.NDArray[np.bool_]]:
        """Return `(global positions, mask)` of batch number `batch`. The mask is False for padding.

        Without `wraps`, positions in the last batch, also of padding, may be past the end of the epoch.
        """
        first = self.start + batch * self.global_batch + (self.world.rank - self.start) % self.world.size
        positions = first + self.world.size * np.arange(self.batch_size, dtype=np.int64)
        inside = positions < self.records
        mask = inside if self.remainder == "pad" else np.ones_like(inside)
        return positions % self.records if self.wraps else positions, mask


def default_lanes(world: World) -> int:
    """Return 16 lanes, at least 2 per rank: the world's size times a power of two, for the lanes of a rank to
    adjoin."""
    lanes_of_rank = max(2, -(-16 // world.size))
    return world.size << (lanes_of_rank - 1).bit_length()


def check_lanes(lanes: int, world: World, of_state: bool = False) -> None:
    """Raise OptionError, with a proposal, if lanes cannot be dealt to the ranks of a world.

    With `of_state` they come from a loaded state, and no option changes that.
    """
    if lanes and lanes % world.size == 0:
        return
    if of_state:
        whose, proposal = "the state's ", f"continue with a number of ranks that divides {lanes}"
    else:
        whose, proposal = "", f"give lanes={default_lanes(world)}, or another multiple of the ranks"
    raise OptionError(f"{whose}{lanes} lanes cannot be dealt to {world.size} ranks; {proposal}")
