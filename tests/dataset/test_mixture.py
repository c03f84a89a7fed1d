"""The order of mixtures: exact shares, without replacement, the same for every way of asking."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpufeed.dataset.mixture import _LEAVES, _LOTS, LEAF, MixtureOrder, Phase, whole_shares
from tpufeed.dataset.order import random_words

WEIGHTS = st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=7)
SEEDS = st.integers(0, 2**64 - 1)
LANES = st.integers(0, 1 << 20)


def order_of(weights, seed=0):
    return MixtureOrder([Phase(0, whole_shares(weights))], 1 << 21, seed)


@given(WEIGHTS)
def test_shares_are_whole_and_add_up(weights):
    shares = whole_shares(weights)
    assert sum(shares) == 1 << 40
    assert np.allclose(np.array(shares) / 2**40, np.array(weights) / sum(weights), atol=2**-26, rtol=1e-4)


@given(WEIGHTS, SEEDS, LANES, st.integers(0, 50))
def test_at_the_end_of_each_block_each_source_is_within_one_sample_of_its_share(weights, seed, lane, blocks):
    order = order_of(weights, seed)
    (phase,) = order.phases
    assert phase.block >= LEAF
    assert phase.block * min(phase.shares) >= sum(phase.shares), "of at least 1 / least weight samples"
    exact = np.array(phase.shares) / sum(phase.shares) * phase.block * blocks
    counts = order.counts(lane, phase.block * blocks)
    assert counts.sum() == phase.block * blocks
    assert (abs(counts - exact) < 1.001).all()


@given(WEIGHTS, SEEDS, LANES, st.integers(0, 10_000), st.integers(1, 900))
def test_a_source_gives_its_samples_in_turn_wherever_one_begins_to_ask(weights, seed, lane, first, count):
    numbers = np.arange(first, first + count)
    source, number = order_of(weights, seed).draw(lane, numbers)
    before, after = order_of(weights, seed).counts(lane, first), order_of(weights, seed).counts(lane, first + count)
    for each in range(len(weights)):
        assert number[source == each].tolist() == list(range(before[each], after[each]))
    # Another order, asked for single numbers and backwards, says the same.
    other = order_of(weights, seed)
    for at in (count - 1, count // 2, 0):
        one = other.draw(lane, numbers[at : at + 1])
        assert (one.source[0], one.number[0]) == (source[at], number[at])


@given(WEIGHTS, SEEDS, st.integers(0, 2000), st.integers(0, 5000))
def test_the_first_number_is_found_wherever_the_search_begins(weights, seed, sample, near):
    order = order_of(weights, seed)
    source = sample % len(weights)
    at = order.first_where(3, lambda counts: counts[source] > sample, near)
    drawn = order_of(weights, seed).draw(3, np.array([at - 1]))
    assert (drawn.source[0], drawn.number[0]) == (source, sample)


def test_seed_and_lane_decide_the_order_within_a_block():
    numbers = np.arange(4 * LEAF)
    drawn = [order_of([1, 1], seed).draw(lane, numbers).source for seed, lane in ((0, 0), (0, 1), (1, 0))]
    assert (drawn[0] != drawn[1]).any()
    assert (drawn[0] != drawn[2]).any()
    assert drawn[0].tolist() == order_of([1, 1]).draw(0, numbers).source.tolist()


def test_a_source_of_a_millionth_is_drawn_once_in_each_million():
    order = order_of([1, 1e-6])
    block = order.phases[0].block
    assert block == 1 << 20
    places = [order.first_where(0, lambda counts, n=sample: counts[1] > n) - 1 for sample in range(6)]
    assert [place // block for place in places] == sorted(place // block for place in places)
    assert all(0 <= place // block - 0.95 * sample <= 1.2 for sample, place in enumerate(places))
    assert len({place % block for place in places}) == 6, "anywhere in its block"


@given(
    st.lists(
        st.tuples(st.integers(1, 700), st.lists(st.integers(0, 5), min_size=3, max_size=3).filter(any)), max_size=4
    ),
    SEEDS,
    st.integers(1, 6),
)
def test_phases_follow_one_another_at_any_position_and_no_sample_is_lost_between_them(cuts, seed, lanes):
    starts = np.cumsum([0, *(length for length, _ in cuts)]).tolist()
    weights = [[1, 2, 3], *(each for _, each in cuts)]
    phases = [Phase(start, whole_shares(each)) for start, each in zip(starts, weights, strict=True)]
    sources = np.empty((500, lanes), np.int64)
    for lane in range(lanes):
        order = MixtureOrder(phases, lanes, seed)
        source, number = order.draw(lane, np.arange(500))
        sources[:, lane] = source
        for each in range(3):
            assert number[source == each].tolist() == list(range((source == each).sum()))
        assert order.counts(lane, 500).tolist() == [int((source == each).sum()) for each in range(3)]
    stream = sources.reshape(-1).tolist()  # position by position
    for start, stop, each in zip(starts, [*starts[1:], len(stream)], weights, strict=True):
        assert not {part for part in range(3) if not each[part]} & set(stream[start:stop])


def test_random_words_of_a_mixture_are_no_epochs():
    """No epoch of a source has the key of the draws: lots of lane 1 would be records of a part."""
    for epoch in (0, 1, 2, 3):
        for lane in range(3):
            ours = random_words(4, (7, _LOTS), lane, 0, 64).tolist()
            assert ours != random_words(4, (7, epoch), lane, 0, 64).tolist()
    assert min(_LOTS, _LEAVES) > 1 << 62


@pytest.mark.parametrize("size", [2, 100])
def test_memory_does_not_grow_with_the_place(size):
    order = order_of([1.0] * size)
    for number in (0, 10**6, 10**12):
        order.draw(0, np.arange(number, number + 10))
    assert len(order._leaves) == 1
