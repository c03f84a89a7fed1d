"""The order of epochs and mixtures by the letter of docs/order.md and docs/mixtures.md, in whole numbers of Python."""

import hashlib
import math
from bisect import bisect_right
from functools import lru_cache
from itertools import accumulate, pairwise

WORD = 1 << 64
SHARES = 1 << 40


@lru_cache(maxsize=4096)
def words(count, key, *counter):
    """The first words of Philox-4x64-10 (Salmon et al. 2011, figure 4)."""
    found, block = [], [0, *counter, 0, 0, 0][:4]
    while len(found) < count:
        for place in range(4):  # the counter is one number of 256 bits
            block[place] = (block[place] + 1) % WORD
            if block[place]:
                break
        a, b, c, d = block
        k, q = (part % WORD for part in key)
        for _ in range(10):
            (high_a, low_a), (high_c, low_c) = (
                divmod(0xD2E7470EE14C6C93 * a, WORD),
                divmod(0xCA5A826395121157 * c, WORD),
            )
            a, b, c, d = high_c ^ b ^ k, low_c, high_a ^ d ^ q, low_a
            k, q = (k + 0x9E3779B97F4A7C15) % WORD, (q + 0xBB67AE8584CAA73B) % WORD
        found += [a, b, c, d]
    return found[:count]


def ranks(drawn):
    return sorted(range(len(drawn)), key=drawn.__getitem__)


def reverse(number, lanes):
    factors, left = [], lanes
    for factor in range(2, lanes + 1):
        while left % factor == 0:
            factors.append(factor)
            left //= factor
    found, weight, remaining = 0, 1, lanes
    for factor in reversed(factors):
        remaining //= factor
        digit, number = divmod(number, remaining)
        found += digit * weight
        weight *= factor
    return found


@lru_cache(maxsize=256)
def epoch_lanes(counts, seed, epoch, lanes, shuffle):
    """For each lane of an epoch its samples in order, as (shard, record)."""
    line = [(shard, place) for shard, count in enumerate(counts) for place in range(count)]
    turns = [0] * len(counts)
    if shuffle:
        drawn = words(len(counts) + 1, (seed, epoch), 2)
        turns = [word // 2 % max(1, count) for word, count in zip(drawn, counts, strict=False)]
        line = [(s, place) for s in ranks(words(len(counts), (seed, epoch), 0)) for place in range(counts[s])]
        unit = math.gcd(*counts)
        start = drawn[-1] // 2 % (len(line) // unit) * unit
        line = line[start:] + line[:start]
    found, start = [[] for _ in range(lanes)], 0
    for segment in range(lanes):
        lane = reverse(segment, lanes)
        stop = start + len(line) // lanes + (lane < len(line) % lanes)
        while start < stop:  # a part at a time
            shard, first = line[start]
            end = start
            while end < stop and line[end] == (shard, first + end - start):
                end += 1
            order = range(end - start)
            if shuffle:
                order = ranks(words(end - start, (seed, epoch), 1, shard, first))
            found[lane] += [(shard, (turns[shard] + first + place) % counts[shard]) for place in order]
            start = end
    return found


@lru_cache(maxsize=256)
def repeats(weights, seed, epoch):
    """How often each sample comes in an epoch."""
    unit, whole = 1 << 31, len(weights) << 31
    sums = list(accumulate(weight / max(weights) for weight in weights))
    ends = [0, *(min(int(each * (whole / sums[-1])), whole) for each in sums[:-1]), whole]
    shift = (words(1, (seed, -4))[0] + epoch * 1327217885) % unit
    return [(stop + shift) // unit - (start + shift) // unit for start, stop in pairwise(ends)]


def source_seed(seed, root):
    if root == 0:
        return seed
    return seed ^ int.from_bytes(hashlib.blake2b(f"source {root}".encode(), digest_size=7).digest(), "little")


def whole_shares(weights):
    total = math.fsum(weights)
    shares = [max(1 << 14, int(weight / total * SHARES)) if weight else 0 for weight in weights]
    shares[shares.index(max(shares))] += SHARES - sum(shares)
    return shares


class MixtureLane:
    """The numbers of one lane of a mixture: of which source each is. Made block by block, and kept."""

    def __init__(self, phases, lanes, lane, seed):
        self.firsts = [max(0, -(-(position - lane) // lanes)) for position, _ in phases]
        self.shares, self.lane, self.seed = [shares for _, shares in phases], lane, seed
        self.blocks = {}
        self.before = {}

    def source(self, number):
        phase = bisect_right(self.firsts, number) - 1
        size = self.size(phase)
        block, within = divmod(number - self.firsts[phase], size)
        if (phase, block) not in self.blocks:
            sums = [self.sums(phase, each * size) for each in (block, block + 1)]
            counts = [after - before for before, after in zip(*sums, strict=True)]
            self.blocks[phase, block] = self.deal(counts, self.firsts[phase] + block * size, size)
        return self.blocks[phase, block][within]

    def size(self, phase):
        size = 64
        while size * min(share for share in self.shares[phase] if share) < SHARES:
            size *= 2
        return size

    def sums(self, phase, numbers):
        exact = [divmod(numbers * share, SHARES) for share in self.shares[phase]]
        sums = [whole for whole, _ in exact]
        for source in sorted(range(len(exact)), key=lambda each: -exact[each][1])[: numbers - sum(sums)]:
            sums[source] += 1
        return sums

    def deal(self, counts, first, size):
        if size == 64:
            sources = [source for source, count in enumerate(counts) for _ in range(count)]
            return [sources[place] for place in ranks(words(64, (self.seed, -2), self.lane, first))]
        size //= 2
        odd = [source for source, count in enumerate(counts) if count % 2]
        lots = ranks(words(len(odd), (self.seed, -1), self.lane, first, size))
        left = [count // 2 for count in counts]
        for place in lots[: len(odd) // 2]:
            left[odd[place]] += 1
        right = [count - half for count, half in zip(counts, left, strict=True)]
        return self.deal(left, first, size) + self.deal(right, first + size, size)

    def given(self, source, number):
        """How many samples of a source come before a number."""
        if number <= 0:
            return 0
        near = max((at for each, at in self.before if each == source and at <= number), default=0)
        found = self.before.get((source, near), 0) + sum(self.source(at) == source for at in range(near, number))
        self.before[source, number] = found
        return found
