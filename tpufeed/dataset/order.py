"""The order of an epoch: pure, the same on every machine and for every world size, in O(shards) memory.

An epoch's shards are permuted by (seed, epoch), laid end to end and cut into L segments of equal length (+-1).
Segment s is lane digit-reverse(s), so that the lanes of a rank adjoin and a rank touches only its share of the shards.
Within a segment the records of each shard's part are permuted. Global sample g is element g // L of lane g mod L;
rank r of W owns the g with g mod W = r. So any W that divides L gives the same global sequence.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import pairwise, starmap
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from tpufeed.errors import OptionError

Ints = npt.NDArray[np.int64]
_Number = TypeVar("_Number", int, Ints)

_SHARDS, _RECORDS = 0, 1


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

    Not thread-safe: it keeps the permutation of the part that each lane was last asked for. Read from the start to the
    end, it makes each once.
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
        lane_of_segment = reverse_digits(np.arange(lanes), lanes)
        lengths = self.records // lanes + (lane_of_segment < self.records % lanes)
        segment_starts = np.cumsum(lengths) - lengths
        self._lane_starts = np.empty(lanes, np.int64)
        self._lane_starts[lane_of_segment] = segment_starts
        self._lane_stops = np.empty(lanes, np.int64)
        self._lane_stops[lane_of_segment] = segment_starts + lengths
        self._last_parts: dict[int, tuple[int, npt.NDArray[Any]]] = {}

    def places(self, first: int, stop: int, step: int = 1) -> Places:
        """The samples at the global positions `range(first, stop, step)`."""
        return self.places_at(np.arange(first, stop, step, dtype=np.int64))

    def places_at(self, positions: Ints) -> Places:
        """The samples at these global positions, each in `[0, records)`."""
        lanes = positions % self.lanes
        flat = self._lane_starts[lanes] + positions // self.lanes
        slots = np.searchsorted(self._shard_starts, flat, side="right") - 1
        shard, shard_starts = self._shards[slots], self._shard_starts[slots]
        if self.shuffle:
            flat = self._permuted(flat, lanes, np.maximum(shard_starts, self._lane_starts[lanes]))
        record = flat - shard_starts
        return Places(shard, record, self._first_sample[shard] + record)

    def lane_parts(self, lane: int) -> list[Part]:
        """What a lane reads, in its order; within a part the records are permuted."""
        start, stop = self._lane_starts[lane], self._lane_stops[lane]
        if start == stop:
            return []
        first_slot, last_slot = np.searchsorted(self._shard_starts, [start, stop - 1], side="right") - 1
        starts, shards = self._shard_starts[first_slot : last_slot + 2], self._shards[first_slot : last_slot + 1]
        first, after = np.maximum(starts[:-1], start) - starts[:-1], np.minimum(starts[1:], stop) - starts[:-1]
        parts = (column[first < after].tolist() for column in (shards, first, after))
        return list(starmap(Part, zip(*parts, strict=True)))

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

    def _permuted(self, flat: Ints, lanes: Ints, part_starts: Ints) -> Ints:
        """Where in the line of shards each place comes from, permuted within its part; a part's start names it."""
        by_part = np.argsort(part_starts, kind="stable")
        within = (flat - part_starts)[by_part]
        changes = np.flatnonzero(np.diff(part_starts[by_part], prepend=-1, append=-1))
        for begin, end in pairwise(changes.tolist()):
            row = by_part[begin]
            within[begin:end] = self._part_order(int(lanes[row]), int(part_starts[row]))[within[begin:end]]
        permuted = part_starts.copy()
        permuted[by_part] += within
        return permuted

    def _part_order(self, lane: int, start: int) -> npt.NDArray[Any]:
        """The permutation of the lane's part that starts at `start`, in the smallest dtype that holds it."""
        last = self._last_parts.get(lane)
        if last is None or last[0] != start:
            slot = int(np.searchsorted(self._shard_starts, start, side="right")) - 1
            length = min(int(self._shard_starts[slot + 1]), int(self._lane_stops[lane])) - start
            first = start - int(self._shard_starts[slot])
            order = _permutation(length, self._key, _RECORDS, int(self._shards[slot]), first)
            last = self._last_parts[lane] = start, order.astype(np.min_scalar_type(length))
        return last[1]


def reverse_digits(number: _Number, base_product: int) -> _Number:
    """`number`, or each of an array, with its digits reversed.

    They are those of the mixed radix of the prime factors of `base_product`, largest first.

    For a power of two this is bit reversal. The reversal is such that for every W that is a product of the first few
    factors, the numbers that map to one residue mod W adjoin: with 16 lanes a host and H hosts, all of H, 2H, 4H ...
    """
    reversed_, weight = number * 0, 1
    remaining = base_product
    for factor in _prime_factors(base_product):
        remaining //= factor
        digit, number = divmod(number, remaining)
        reversed_ = reversed_ + digit * weight
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
