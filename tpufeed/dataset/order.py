"""The order of an epoch: pure, the same on every machine and for every world size, in O(shards) memory.

An epoch's shards are permuted by (seed, epoch), laid end to end and cut into L segments of equal length (+-1).
Segment s is lane digit-reverse(s), so that the lanes of a rank adjoin and a rank touches only its share of the shards.
Within a segment the records of each shard's part are permuted. Global sample g is element g // L of lane g mod L;
rank r of W owns the g with g mod W = r. So any W that divides L gives the same global sequence.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tpufeed.errors import OptionError

Ints = npt.NDArray[np.int64]

_SHARDS, _RECORDS = 0, 1
_KEPT_PARTS = 4


class Places(NamedTuple):
    """Where samples lie, three arrays of equal length: shard number, record within it, and id within the split."""

    shard: Ints
    record: Ints
    sample: Ints


class Part(NamedTuple):
    """Records `[first, stop)` of a shard, at least one."""

    shard: int
    first: int
    stop: int


class EpochOrder:
    """The global sequence of one epoch over shards of `shard_records` records each.

    Args:
        shard_records: records of each shard, in the manifest's order.
        seed: of the run; unused without shuffle.
        epoch: 0, 1, 2, ...; unused without shuffle.
        lanes: L, the number of lanes.
        shuffle: False leaves shards and records in place: with one lane that is the dataset's own order.

    Not thread-safe: it keeps the permutations of the parts that it is in.
    """

    def __init__(self, shard_records: Sequence[int], seed: int, epoch: int, lanes: int, shuffle: bool = True) -> None:
        if lanes < 1:
            raise OptionError(f"lanes are at least 1, not {lanes}")
        self.lanes = lanes
        self.shuffle = shuffle
        self._key = (seed, epoch)
        counts = np.asarray(shard_records, dtype=np.int64)
        self._first_sample = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
        self.records = int(self._first_sample[-1])
        self._shards = _permutation(len(counts), self._key, _SHARDS) if shuffle else np.arange(len(counts))
        # Where each shard of the permuted sequence starts, and where each segment does.
        self._shard_starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts[self._shards])])
        lane_of_segment = np.array([reverse_digits(segment, lanes) for segment in range(lanes)], dtype=np.int64)
        lengths = self.records // lanes + (lane_of_segment < self.records % lanes)
        segment_starts = np.cumsum(lengths) - lengths
        self._lane_starts = np.empty(lanes, np.int64)
        self._lane_starts[lane_of_segment] = segment_starts
        self._lane_stops = np.empty(lanes, np.int64)
        self._lane_stops[lane_of_segment] = segment_starts + lengths
        self._part_order = lru_cache(maxsize=lanes * _KEPT_PARTS)(self._permute_part)

    def places(self, first: int, stop: int, step: int = 1) -> Places:
        """The samples at the global positions `range(first, stop, step)`."""
        return self.places_at(np.arange(first, stop, step, dtype=np.int64))

    def places_at(self, positions: Ints) -> Places:
        """The samples at these global positions, each in `[0, records)`."""
        shard = np.empty(len(positions), np.int64)
        record = np.empty(len(positions), np.int64)
        lanes = positions % self.lanes
        for lane in np.unique(lanes):
            rows = np.flatnonzero(lanes == lane)
            shard[rows], record[rows] = self._lane_places(int(lane), positions[rows] // self.lanes)
        return Places(shard, record, self._first_sample[shard] + record)

    def lane_parts(self, lane: int) -> list[Part]:
        """What a lane reads, in its order; within a part the records are permuted."""
        start, stop = int(self._lane_starts[lane]), int(self._lane_stops[lane])
        parts = []
        for slot in range(self._shard_at(start), self._shard_at(stop - 1) + 1) if start < stop else ():
            begin, end = (int(at) for at in self._shard_starts[slot : slot + 2])
            first, after = max(begin, start), min(end, stop)
            if first < after:
                parts.append(Part(int(self._shards[slot]), first - begin, after - begin))
        return parts

    def lane_shards(self, lane: int) -> list[int]:
        """The shards that a lane reads, in its order."""
        return [part.shard for part in self.lane_parts(lane)]

    def due_shards(self, lanes: Iterable[int], position: int = 0) -> list[int]:
        """The shards that these lanes read from global position `position` on, the one that is due first, first."""
        due: dict[int, int] = {}
        for lane in lanes:
            read, at = max(0, -(-(position - lane) // self.lanes)), 0
            for shard, first, stop in self.lane_parts(lane):
                after = at + stop - first
                if after > read:
                    when = max(at, read) * self.lanes + lane
                    due[shard] = min(when, due.get(shard, when))
                at = after
        return sorted(due, key=due.__getitem__)

    def _lane_places(self, lane: int, elements: Ints) -> tuple[Ints, Ints]:
        flat = self._lane_starts[lane] + elements
        slots = np.searchsorted(self._shard_starts, flat, side="right") - 1
        record = np.empty(len(flat), np.int64)
        for slot in np.unique(slots):
            rows = np.flatnonzero(slots == slot)
            start = max(int(self._shard_starts[slot]), int(self._lane_starts[lane]))
            stop = min(int(self._shard_starts[slot + 1]), int(self._lane_stops[lane]))
            within = self._part_order(int(slot), start, stop)[flat[rows] - start]
            record[rows] = within + (start - self._shard_starts[slot])
        return self._shards[slots], record

    def _permute_part(self, slot: int, start: int, stop: int) -> Ints:
        if not self.shuffle:
            return np.arange(stop - start)
        first = start - int(self._shard_starts[slot])
        return _permutation(stop - start, self._key, _RECORDS, int(self._shards[slot]), first)

    def _shard_at(self, flat: int) -> int:
        return int(np.searchsorted(self._shard_starts, flat, side="right")) - 1

    def _length(self, shard: int) -> int:
        return int(self._first_sample[shard + 1] - self._first_sample[shard])


def reverse_digits(number: int, base_product: int) -> int:
    """`number` with its digits reversed, in the mixed radix of the prime factors of `base_product`, largest first.

    For a power of two this is bit reversal. The reversal is such that for every W that is a product of the first few
    factors, the numbers that map to one residue mod W adjoin: with 16 lanes a host and H hosts, all of H, 2H, 4H ...
    """
    reversed_, weight = 0, 1
    remaining = base_product
    for factor in _prime_factors(base_product):
        remaining //= factor
        digit, number = divmod(number, remaining)
        reversed_ += digit * weight
        weight *= factor
    return reversed_


@lru_cache(maxsize=64)
def _prime_factors(number: int) -> tuple[int, ...]:
    factors: list[int] = []
    factor = 2
    while number > 1:
        while number % factor == 0:
            factors.append(factor)
            number //= factor
        factor = factor + 1 if factor * factor <= number else max(number, 2)
    return tuple(reversed(factors))


def _permutation(length: int, key: tuple[int, int], *purpose: int) -> Ints:
    """A permutation of `range(length)` that no version of numpy may change: ranks of the raw Philox-4x64 stream."""
    counter = [0, *(part & 0xFFFFFFFFFFFFFFFF for part in (*purpose, 0, 0, 0)[:3])]
    seed, epoch = (part & 0xFFFFFFFFFFFFFFFF for part in key)
    bits = np.random.Philox(key=np.array([seed, epoch], np.uint64), counter=np.array(counter, np.uint64))
    return np.argsort(bits.random_raw(length), kind="stable").astype(np.int64, copy=False)
