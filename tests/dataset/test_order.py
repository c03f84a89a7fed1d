"""The order of an epoch: a permutation, the same for every world, the same for ever."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.dataset.lanes import lane_parts
from tpufeed.dataset.order import EpochOrder, reverse_digits
from tpufeed.errors import OptionError

shard_sizes = st.lists(st.integers(0, 40), max_size=12)
lane_counts = st.integers(1, 24)
seeds = st.integers(-(2**63), 2**64 - 1)


def samples_of(order, positions=None):
    places = (
        order.places_at(np.arange(order.records))
        if positions is None
        else order.places_at(np.asarray(positions, np.int64))
    )
    return places.sample.tolist()


def prefix_products(lanes):
    """1, then products of the first few prime factors of `lanes`, the largest first."""
    factors, rest = [], lanes
    for factor in range(2, lanes + 1):
        while rest % factor == 0:
            factors.append(factor)
            rest //= factor
    return np.cumprod([1, *reversed(factors)]).tolist()


def words(length, seed, epoch, *purpose):
    """The raw stream of Philox-4x64 with this key and counter."""
    mask = 2**64 - 1
    bits = np.random.Philox(
        key=np.array([seed & mask, epoch & mask], np.uint64),
        counter=np.array([0, *purpose, *[0] * (3 - len(purpose))], np.uint64),
    )
    return bits.random_raw(length)


def permutation(length, *key):
    return np.argsort(words(length, *key), kind="stable").tolist()


def order_by_hand(sizes, seed, epoch, lanes):
    """What the module says of the order, sentence by sentence and record by record."""
    shards = permutation(len(sizes), seed, epoch, 0)
    line = [(shard, place) for shard in shards for place in range(sizes[shard])]  # places in rotated shards
    *rotations, start = [int(word) >> 1 for word in words(len(sizes) + 1, seed, epoch, 2)]
    unit = math.gcd(*sizes) or 1
    start = start % max(1, len(line) // unit) * unit
    line = line[start:] + line[:start]
    longer = len(line) % lanes
    segments, start = {}, 0
    for segment in range(lanes):
        lane = reverse_digits(segment, lanes)
        stop = start + len(line) // lanes + (lane < longer)
        places = []
        for shard, group in itertools.groupby(line[start:stop], key=lambda place: place[0]):
            part = [place for _, place in group]
            permuted = [part[i] for i in permutation(len(part), seed, epoch, 1, shard, part[0])]
            places += [(shard, (place + rotations[shard]) % sizes[shard]) for place in permuted]
        segments[lane], start = places, stop
    return [segments[g % lanes][g // lanes] for g in range(len(line))]


@settings(max_examples=40)
@given(shard_sizes, seeds, st.integers(0, 100), lane_counts)
def test_the_order_is_the_one_of_the_design(sizes, seed, epoch, lanes):
    order = EpochOrder(sizes, seed, epoch, lanes)
    places = order.places_at(np.arange(order.records))
    found = list(zip(places.shard.tolist(), places.record.tolist(), strict=True))
    assert found == order_by_hand(sizes, seed, epoch, lanes)


@pytest.mark.parametrize(
    ("sizes", "seed", "epoch", "lanes", "expected"),
    [
        ([5, 3, 7], 0, 0, 1, [11, 10, 13, 14, 12, 9, 8, 6, 5, 7, 4, 0, 2, 1, 3]),
        ([5, 3, 7], 0, 1, 4, [7, 12, 3, 14, 6, 10, 1, 8, 0, 11, 2, 5, 4, 13, 9]),
        ([4, 0, 6, 2], 1234, 7, 6, [11, 1, 5, 2, 4, 7, 10, 0, 6, 3, 9, 8]),
        ([3, 3, 3, 3], -1, 1099511627776, 8, [6, 11, 0, 4, 7, 10, 2, 5, 8, 9, 1, 3]),
        ([10], 42, 0, 2, [7, 8, 3, 9, 4, 0, 5, 1, 6, 2]),
    ],
)
def test_the_order_never_changes(sizes, seed, epoch, lanes, expected):
    assert samples_of(EpochOrder(sizes, seed, epoch, lanes)) == expected


@given(shard_sizes, seeds)
def test_without_shuffle_one_lane_is_the_dataset_s_own_order(sizes, seed):
    order = EpochOrder(sizes, seed, 3, 1, shuffle=False)
    assert samples_of(order) == list(range(sum(sizes)))


@given(shard_sizes, seeds, lane_counts, st.data())
def test_places_may_be_asked_for_in_any_order_and_again(sizes, seed, lanes, data):
    order = EpochOrder(sizes, seed, 0, lanes)
    whole = samples_of(order)
    positions = data.draw(st.lists(st.integers(0, len(whole) - 1), max_size=30)) if whole else []
    assert samples_of(order, positions) == [whole[g] for g in positions]
    assert samples_of(EpochOrder(sizes, seed, 0, lanes), positions) == [whole[g] for g in positions]
    step = data.draw(st.integers(1, 7))
    assert order.places_at(np.arange(1, len(whole), step)).sample.tolist() == whole[1::step]


@settings(max_examples=40)
@given(shard_sizes, seeds, lane_counts, st.booleans())
def test_the_parts_of_a_lane_hold_its_records_shard_by_shard(sizes, seed, lanes, shuffle):
    order = EpochOrder(sizes, seed, 1, lanes, shuffle)
    for lane in range(lanes):
        places = order.places_at(np.arange(lane, order.records, lanes))
        found = list(zip(places.shard.tolist(), places.record.tolist(), strict=True))
        for shard, first, stop in lane_parts(order, lane):
            part, found = found[: stop - first], found[stop - first :]
            assert part
            assert sorted(part) == sorted((shard, record % sizes[shard]) for record in range(first, stop))
            assert 0 <= first < sizes[shard]
            assert (first, stop) == (0, sizes[shard]) or stop - first < sizes[shard]
            assert shuffle or stop <= sizes[shard]
        assert not found


@settings(max_examples=40)
@given(shard_sizes, lane_counts, st.data())
def test_lanes_of_a_rank_adjoin(sizes, lanes, data):
    """Without shuffle a rank's samples are a range, for every world size that is a product of the first factors."""
    order = EpochOrder(sizes, 0, 0, lanes, shuffle=False)
    world = data.draw(st.sampled_from(prefix_products(lanes)))
    ranges = [sorted(order.places_at(np.arange(rank, order.records, world)).sample.tolist()) for rank in range(world)]
    for samples in ranges:
        assert samples == list(range(samples[0], samples[0] + len(samples))) if samples else True


def test_digit_reversal_of_powers_of_two_is_bit_reversal():
    assert [reverse_digits(i, 8) for i in range(8)] == [0, 4, 2, 6, 1, 5, 3, 7]
    assert [reverse_digits(i, 6) for i in range(6)] == [0, 3, 1, 4, 2, 5]
    assert [reverse_digits(i, 5) for i in range(5)] == [0, 1, 2, 3, 4]


def test_more_lanes_than_samples_and_no_samples_at_all():
    assert sorted(samples_of(EpochOrder([2, 0, 1], 0, 0, 64))) == [0, 1, 2]
    for sizes in ([], [0], [0, 0, 0]):
        order = EpochOrder(sizes, 0, 0, 4)
        assert samples_of(order) == []
        assert [lane_parts(order, lane) for lane in range(4)] == [[]] * 4


@pytest.mark.parametrize("lanes", [0, -1])
def test_lanes_are_at_least_one(lanes):
    with pytest.raises(OptionError, match="lanes is a whole number, at least 1"):
        EpochOrder([1], 0, 0, lanes)
