"""The order of an epoch: a permutation, the same for every world, the same for ever."""

import itertools
import math
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.dataset.lanes import lane_parts
from tpufeed.dataset import order as order_module
from tpufeed.dataset.order import EpochOrder, Repeats, Share, World, default_lanes, reverse_digits
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
    with pytest.raises(OptionError, match="lanes is"):
        EpochOrder([1], 0, 0, lanes)


# Who reads what: shares of a world that cover an epoch, and go on where another world stopped.


remainders = st.sampled_from(["drop", "pad", "repeat"])


@settings(max_examples=60)
@given(st.integers(0, 300), st.integers(1, 20), st.integers(1, 9), remainders, st.integers(0, 350))
def test_ranks_share_the_rest_of_an_epoch(records, batch, world, remainder, start):
    """Batch t of the world is dealt to the ranks; its last batch is dropped, padded or repeated."""
    rest = list(range(start, records))
    step = batch * world
    count = len(rest) // step if remainder == "drop" else -(-len(rest) // step)
    for rank in range(world):
        share = Share(records, batch, World(rank, world), remainder, start)
        assert len(share) == count
        for number in range(count):
            expected = [g for g in range(start + number * step, start + (number + 1) * step) if g % world == rank]
            positions, mask = share.positions(number)
            assert (positions.dtype, mask.dtype) == (np.int64, np.bool_)
            assert positions.tolist() == expected
            assert mask.tolist() == [g < records or remainder != "pad" for g in expected]


def test_a_batch_is_what_the_docs_say():
    share = Share(23, 4, World(1, 3), "pad", start=2)
    assert len(share) == 2
    positions, mask = share.positions(0)
    assert positions.tolist() == [4, 7, 10, 13]
    assert mask.tolist() == [True] * 4
    positions, mask = share.positions(1)
    assert positions.tolist() == [16, 19, 22, 25]
    assert mask.tolist() == [True, True, True, False]


@given(st.integers(1, 300), st.integers(1, 20), st.integers(1, 9), remainders, st.integers(0, 350))
def test_an_epoch_that_wraps_fills_its_last_batch_from_its_start(records, batch, world, remainder, start):
    share = Share(records, batch, World(world - 1, world), remainder, start)
    wrapped = replace(share, wraps=True)
    for number in range(len(share)):
        (positions, mask), (places, same_mask) = share.positions(number), wrapped.positions(number)
        assert places.tolist() == [g % records for g in positions.tolist()]
        assert same_mask.tolist() == mask.tolist()
        given_to_all = start + (number + 1) * batch * world
        assert wrapped.samples_after(number + 1) == min(records, given_to_all)
        assert share.samples_after(number + 1) == (
            wrapped.samples_after(number + 1) if remainder == "pad" else given_to_all
        )


def test_default_lanes_are_the_world_times_a_power_of_two():
    assert default_lanes(World()) == 16
    assert default_lanes(World(0, 8)) == 16
    assert default_lanes(World(0, 32)) == 64
    assert default_lanes(World(0, 3)) == 24


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: World(1, 1), "a rank is in"),
        (lambda: World(-1, 2), "a rank is in"),
        (lambda: World(0, 0), "a rank is in"),
    ],
)
def test_options_out_of_range_are_refused(make, message):
    with pytest.raises(OptionError, match=message):
        make()


# Order and shares together: what worlds of several sizes read, one after the other, and from how many shards.


# Empty shards, shards of one record, and one that holds nearly all.
uneven_sizes = st.lists(st.sampled_from([0, 0, 1, 1, 2, 7, 30]) | st.integers(0, 3000), max_size=10)
worlds = st.integers(1, 12)


def divisors(number):
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]


def samples_of_ranks(make_order, size, batch, start=0, remainder="pad"):
    """Return the real samples of each rank, batch by batch; ranks are processes, so each makes its own order."""
    found = []
    for rank in range(size):
        order = make_order()
        share = Share(order.records, batch, World(rank, size), remainder, start)
        batches = [share.positions(number) for number in range(len(share))]
        found.append([order.places_at(positions[mask] % order.records).sample.tolist() for positions, mask in batches])
    return found


@pytest.mark.all
@given(st.lists(st.integers(0, 60), max_size=8), seeds, st.sampled_from([4, 12, 18, 30]), st.integers(1, 5), st.data())
def test_a_run_that_changes_its_world_again_and_again_sees_each_sample_once(sizes, seed, lanes, batch, data):
    """Stop after some batches, and continue with another world and batch size, again and again."""
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


@pytest.mark.all
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


@given(uneven_sizes, seeds, worlds, st.sampled_from([1, 2, 4]), st.data())
def test_a_shard_is_read_by_one_rank_but_for_those_at_the_borders(sizes, seed, size, times, data):
    """With the default lanes or more, and for any shards: ranks split the line of shards, one range each."""
    lanes = default_lanes(World(0, size)) * times
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


@given(st.integers(1, 64))
def test_default_lanes_let_a_world_double(size):
    lanes = default_lanes(World(0, size))
    assert (lanes // size).bit_count() == 1
    assert max(16, 2 * size) <= lanes < max(2 * (16 + size), 4 * size)
    order = EpochOrder([1] * lanes, 0, 0, lanes, shuffle=False)
    for grown in (size, 2 * size):
        assert all(runs_of(order.places_at(np.arange(rank, lanes, grown)).sample) == 1 for rank in range(grown))


# An order keeps O(shards), and makes each permutation once.


def kept_bytes(run):
    """`(kept, at the most)` of what `run` allocates, while its result lives."""
    tracemalloc.start()
    try:
        result = run()
        return tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        del result


def test_one_part_of_each_lane_is_kept():
    def read(shards):
        order = EpochOrder([4000] * shards, 0, 0, 4)
        for first in range(0, order.records, 1000):
            order.places_at(np.arange(first, first + 1000))
        return order

    parts = 4 * 4000 * np.dtype(np.uint16).itemsize
    for shards in (16, 64):
        kept, _ = kept_bytes(lambda shards=shards: read(shards))
        assert parts < kept < parts + 20_000 + 50 * shards


def test_a_hundred_million_records_take_a_few_megabytes():
    def read():
        order = EpochOrder([1000] * 100_000, 0, 0, 64)
        order.places_at(np.arange(40_000_000, 40_010_000))
        return order

    kept, most = kept_bytes(read)
    assert kept < 4e6
    assert most < 12e6


@pytest.mark.parametrize("batch", [1, 37, 400])
def test_each_permutation_is_made_once_an_epoch(monkeypatch, batch):
    made = []
    permutation = order_module._permutation
    monkeypatch.setattr(order_module, "_permutation", lambda *args: made.append(args) or permutation(*args))
    order = EpochOrder([30, 0, 55, 1, 120, 18], 3, 1, 8)
    made.clear()  # that of the shards
    for first in range(0, order.records, batch):
        order.places_at(np.arange(first, min(first + batch, order.records)))
    assert len(made) == sum(len(lane_parts(order, lane)) for lane in range(8))


@given(
    st.lists(st.lists(st.sampled_from([0.1, 1.0, 3.0, 1e-9, 1e12]), max_size=9), min_size=1, max_size=5).filter(any),
    seeds,
    st.integers(0, 2**40),
)
def test_samples_repeat_by_their_weights(shards, seed, epoch):
    weights = np.array([weight for shard in shards for weight in shard])
    repeats = Repeats(weights, np.cumsum([0, *map(len, shards)]))
    samples, before = repeats.find(seed, np.full(len(weights), epoch), np.arange(len(weights)))
    counts = np.bincount(samples, minlength=len(weights))
    exact = weights / weights.sum() * len(weights)
    assert (np.abs(counts - exact) < 1 + 1e-6).all()
    assert (np.diff(samples) >= 0).all()
    assert before.tolist() == [place for count in counts for place in range(count)]
    edges = np.cumsum([0, *map(len, shards)])
    assert repeats.shard_records(seed, epoch) == [counts[a:b].sum() for a, b in itertools.pairwise(edges)]


def test_equal_weights_give_each_sample_once_and_shares_hold_over_epochs():
    once, epochs = Repeats(np.full(7, 0.3), np.array([0, 7])), range(200)
    assert all(once.find(9, np.full(7, each), np.arange(7))[0].tolist() == [*range(7)] for each in epochs)
    odd = Repeats(np.array([1.0, 2.0, 4.0]), np.array([0, 3]))
    drawn = np.concatenate([odd.find(9, np.full(3, each), np.arange(3))[0] for each in range(700)])
    assert np.abs(np.bincount(drawn) - [300, 600, 1200]).max() <= 1
