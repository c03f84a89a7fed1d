"""The order of a mixture: which dataset gives each sample of a lane. Pure, and the same for every world.

Lane l of a mixture draws from lane l of each dataset: a rank reads its own share of each dataset's shards. A
lane is cut into blocks of B numbers, a power of two of at least 1 / least weight. At the end of block b dataset s has
given `round(share * b * B)` samples, rounded by largest remainders: within one of its share. A block is halved again
and again: a dataset whose samples cannot be halved gives the odd one to a random half. Leaves of 64 are permuted. So
the dataset of any number, and the samples that it has given before, are found in O(datasets) memory.

docs/decisions/2026-11-26-mixtures.md describes the same step by step.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from tpufeed.dataset.order import Ints, random_words

LEAF = 64  # numbers of a lane that are permuted at once
SHARES = 1 << 40  # sum of all shares of a phase
LEAST_SHARE = 1 << 14  # lighter datasets would need blocks of more than 67 million
# Used instead of an epoch in the keys of random words: no epoch has these numbers.
_LOTS, _LEAVES = (1 << 64) - 1, (1 << 64) - 2


class Phase(NamedTuple):
    """Shares of the datasets from position `first` of the mixture on, as `whole_shares` returns them."""

    first: int
    shares: tuple[int, ...]

    @property
    def block(self) -> int:
        """Numbers of a lane after which each dataset has given its share, within one sample."""
        least = min(share for share in self.shares if share)
        return max(LEAF, 1 << (-(-SHARES // least) - 1).bit_length())


class Drawn(NamedTuple):
    """Samples of a lane: the dataset of each, and its number among the dataset's samples in this lane."""

    source: Ints
    number: Ints


class _Leaf(NamedTuple):
    first: int
    before: Ints  # samples of each dataset before `first`
    source: Ints
    number: Ints


def whole_shares(weights: Sequence[float]) -> tuple[int, ...]:
    """Return the weights as whole numbers that add up to 2**40. Weights are finite, not negative, and not all 0."""
    total = math.fsum(weights)  # the same in any order
    exact = [weight / total * SHARES for weight in weights]
    shares = [int(share) if not share else max(LEAST_SHARE, int(share)) for share in exact]
    shares[shares.index(max(shares))] += SHARES - sum(shares)
    return tuple(shares)


class MixtureOrder:
    """Draws the datasets of all lanes. Position p of the mixture is number p // lanes of lane p mod lanes.

    Not thread-safe: it keeps the last leaves.

    Args:
        phases: the first one begins at position 0, the others at increasing positions.
        lanes: number of lanes of the mixture.
        seed: seed of the draws.
    """

    def __init__(self, phases: Sequence[Phase], lanes: int, seed: int) -> None:
        self.phases, self.lanes = tuple(phases), lanes
        self._blocks = [phase.block for phase in phases]
        self._seed = seed
        self._leaves: dict[int, _Leaf] = {}
        self._bases: dict[tuple[int, int], Ints] = {}

    def draw(self, lane: int, numbers: Ints) -> Drawn:
        """Return the dataset of each of these sorted numbers of a lane."""
        source, number = np.empty(len(numbers), np.int64), np.empty(len(numbers), np.int64)
        done = 0
        while done < len(numbers):
            leaf = self._leaf(lane, int(numbers[done]))
            stop = int(np.searchsorted(numbers, leaf.first + len(leaf.source)))
            places = numbers[done:stop] - leaf.first
            source[done:stop], number[done:stop] = leaf.source[places], leaf.number[places]
            done = stop
        return Drawn(source, number)

    def counts(self, lane: int, number: int) -> Ints:
        """Return the number of samples that each dataset gives to a lane before this number."""
        leaf = self._leaf(lane, number)
        return leaf.before + np.bincount(leaf.source[: number - leaf.first], minlength=len(leaf.before))

    def number_at(self, lane: int, position: int) -> int:
        """Return the first number of a lane at or after this position of the mixture."""
        return max(0, -(-(position - lane) // self.lanes))

    def first_where(self, lane: int, reached: Callable[[Ints], bool], near: int = 0) -> int:
        """Return the first number of a lane whose counts before it `reached` accepts, as it does for all that follow.

        The search begins at `near`. It never ends if the counts do not get that far.
        """
        low, high, step = near, near, LEAF
        while low and reached(self.counts(lane, low)):
            low, high, step = max(0, low - step), low, 2 * step
        while not reached(self.counts(lane, high)):
            low, high, step = high, high + step, 2 * step
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if reached(self.counts(lane, middle)) else (middle, high)
        return high

    def _leaf(self, lane: int, number: int) -> _Leaf:
        last = self._leaves.get(lane)
        if last is None or not last.first <= number < last.first + len(last.source):
            last = self._leaves[lane] = self._make_leaf(lane, number)
        return last

    def _make_leaf(self, lane: int, number: int) -> _Leaf:
        firsts = [self.number_at(lane, phase.first) for phase in self.phases]
        phase = bisect_right(firsts, number) - 1
        first, size = firsts[phase], self._blocks[phase]
        block, at = divmod(number - first, size)
        given, after = self._given(phase, block), self._given(phase, block + 1)
        before, counts = self._base(phase, lane, first) + given, after - given
        start = first + block * size
        while size > LEAF:
            size //= 2
            odd = np.flatnonzero(counts & 1)
            lots = random_words(len(odd), (self._seed, _LOTS), lane, start, size)
            left = counts >> 1
            left[odd[np.argsort(lots, kind="stable")[: len(odd) // 2]]] += 1
            if at < size:
                counts = left
            else:
                before, counts, start, at = before + left, counts - left, start + size, at - size
        lots = random_words(size, (self._seed, _LEAVES), lane, start)
        source = np.repeat(np.arange(len(counts)), counts)[np.argsort(lots, kind="stable")]
        within = np.empty(size, np.int64)
        within[np.argsort(source, kind="stable")] = np.arange(size) - np.repeat(np.cumsum(counts) - counts, counts)
        length = size if phase + 1 == len(firsts) else min(size, firsts[phase + 1] - start)
        return _Leaf(start, before, source[:length], (before[source] + within)[:length])

    def _base(self, phase: int, lane: int, first: int) -> Ints:
        """Return the samples that each dataset gives to a lane before the phase that begins at number `first`."""
        if not first:
            return np.zeros(len(self.phases[0].shares), np.int64)
        found = self._bases.get((phase, lane))
        if found is None:
            last = self._make_leaf(lane, first - 1)
            found = last.before + np.bincount(last.source, minlength=len(last.before))
            self._bases[phase, lane] = found
        return found

    def _given(self, phase: int, blocks: int) -> Ints:
        """Return the samples that each dataset gives in the first blocks of a phase, the same in every lane."""
        numbers, shares = blocks * self._blocks[phase], self.phases[phase].shares
        exact = [divmod(numbers * share, SHARES) for share in shares]
        missing = numbers - sum(whole for whole, _ in exact)
        largest = sorted(range(len(shares)), key=lambda source: -exact[source][1])[:missing]
        found = np.array([whole for whole, _ in exact], np.int64)
        found[largest] += 1
        return found
