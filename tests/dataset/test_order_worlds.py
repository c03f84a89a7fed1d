"""Order and shares together: what worlds of several sizes read, one after the other, and from how many shards."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.dataset.lanes import lane_parts
from tpufeed.dataset.order import EpochOrder, Share, World, default_lanes

# Empty shards, shards of one record, and one that holds nearly all.
shard_sizes = st.lists(st.sampled_from([0, 0, 1, 1, 2, 7, 30]) | st.integers(0, 3000), max_size=10)
seeds = st.integers(-(2**63), 2**64 - 1)
worlds = st.integers(1, 12)


def divisors(number):
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]


def samples_of_ranks(make_order, size, batch, start=0, remainder="pad"):
    """For each rank its real samples, batch by batch; each has an order of its own, as each is a process of its own."""
    found = []
    for rank in range(size):
        order = make_order()
        share = Share(order.records, batch, World(rank, size), remainder, start)
        batches = [share.positions(number) for number in range(len(share))]
        found.append([order.places_at(positions[mask] % order.records).sample.tolist() for positions, mask in batches])
    return found


@settings(max_examples=40)
@given(st.lists(st.integers(0, 60), max_size=8), seeds, st.sampled_from([4, 12, 18, 30]), st.integers(1, 5), st.data())
def test_a_run_that_changes_its_world_again_and_again_sees_each_sample_once(sizes, seed, lanes, batch, data):
    """Each part of the run stops after some batches, and the next one goes on with another world and batch size."""
    whole = EpochOrder(sizes, seed, 3, lanes)
    sequence, start = [], 0
    for part in range(4):
        size = data.draw(st.sampled_from(divisors(lanes)))
        ranks = samples_of_ranks(lambda: EpochOrder(sizes, seed, 3, lanes), size, batch, start)
        done = len(ranks[0]) if part == 3 else data.draw(st.integers(0, len(ranks[0])))
        for number in range(done):
            step = [rank[number] for rank in ranks]
            first = (start + number * batch * size) % size  # whose the first position is
            dealt = itertools.zip_longest(*(step[first:] + step[:first]))
            sequence += [sample for row in dealt for sample in row if sample is not None]
        start = min(whole.records, start + done * batch * size)
    assert sequence == whole.places_at(np.arange(whole.records)).sample.tolist()


@settings(max_examples=40)
@given(st.lists(st.integers(0, 60), min_size=1, max_size=8), seeds, worlds, st.integers(1, 9))
def test_remainders_differ_in_the_last_batch_alone(sizes, seed, size, batch):
    def make():
        return EpochOrder(sizes, seed, 1, 2 * size)

    dropped, padded, repeated = (
        samples_of_ranks(make, size, batch, remainder=how) for how in ("drop", "pad", "repeat")
    )
    full = sum(sizes) // (batch * size)
    for some, others in ((dropped, padded), (padded, repeated)):
        assert [rank[:full] for rank in some] == [rank[:full] for rank in others]
    assert {len(rank) for rank in dropped} == {full}
    assert {len(rank) for rank in padded + repeated} == {-(-sum(sizes) // (batch * size))}
    assert all(len(step) == batch for rank in repeated for step in rank)


def runs_of(numbers):
    """How many ranges of adjoining numbers there are."""
    return len(numbers) and 1 + int((np.diff(np.sort(numbers)) > 1).sum())


def touched(order, rank, size):
    return {part.shard for lane in range(rank, order.lanes, size) for part in lane_parts(order, lane)}


@settings(max_examples=40)
@given(shard_sizes, seeds, worlds, st.sampled_from([1, 2, 4]), st.data())
def test_a_shard_is_read_by_one_rank_but_for_those_at_the_borders(sizes, seed, size, hosts, data):
    """With the default lanes, and for any shards: ranks split the line of shards, one range each."""
    lanes = default_lanes(World(0, size), hosts)
    order = EpochOrder(sizes, seed, 2, lanes)
    doubled = data.draw(st.sampled_from([w for w in (size, 2 * size, 4 * size) if lanes % w == 0]))
    reads = [touched(order, rank, doubled) for rank in range(doubled)]
    assert set.union(*reads) == {shard for shard, size in enumerate(sizes) if size}
    borders = doubled if doubled > 1 else 0  # the last rank's range goes on with that of the first
    assert sum(map(len, reads)) <= sum(size > 0 for size in sizes) + borders


@pytest.mark.parametrize(("lanes", "size", "most"), [(24, 3, 1), (24, 6, 1), (24, 12, 1), (24, 2, 2), (18, 6, 2)])
def test_in_how_many_ranges_the_lanes_of_a_rank_lie(lanes, size, most):
    """The figures of docs/order.md."""
    order = EpochOrder([1] * lanes, 0, 0, lanes, shuffle=False)
    ranges = [runs_of(order.places_at(np.arange(rank, lanes, size)).sample) for rank in range(size)]
    assert max(ranges) == most


@given(st.integers(1, 64), st.sampled_from([1, 2, 3, 8]))
def test_default_lanes_let_a_world_double(size, hosts):
    lanes = default_lanes(World(0, size), hosts)
    assert (lanes // size).bit_count() == 1
    assert max(16 * hosts, 2 * size) <= lanes < max(2 * (16 * hosts + size), 4 * size)
    order = EpochOrder([1] * lanes, 0, 0, lanes, shuffle=False)
    for grown in (size, 2 * size):
        assert all(runs_of(order.places_at(np.arange(rank, lanes, grown)).sample) == 1 for rank in range(grown))
