"""Who reads what: shares of a world that cover an epoch, and go on where another world stopped."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tpufeed.dataset.order import EpochOrder
from tpufeed.dataset.partition import Share, World, default_lanes
from tpufeed.errors import OptionError

records = st.integers(0, 300)
worlds = st.integers(1, 9)
batches = st.integers(1, 20)
remainders = st.sampled_from(["drop", "pad", "repeat"])


def shares(count, batch, world, remainder, start=0):
    return [Share(count, batch, World(rank, world), remainder, start) for rank in range(world)]


def batches_of(share):
    return [share.positions(number) for number in range(len(share))]


@settings(max_examples=40)
@given(records, batches, worlds, remainders, st.integers(0, 350))
def test_all_ranks_have_as_many_batches_of_one_size(count, batch, world, remainder, start):
    lengths = {len(share) for share in shares(count, batch, world, remainder, start)}
    assert len(lengths) == 1
    for share in shares(count, batch, world, remainder, start):
        for positions, mask in batches_of(share):
            assert positions.shape == mask.shape == (batch,)
            assert positions.dtype == np.int64
            assert mask.dtype == np.bool_
            assert ((positions >= 0) & (positions < count)).all()


@settings(max_examples=40)
@given(records, batches, worlds, st.integers(0, 350))
def test_under_pad_each_sample_is_real_once(count, batch, world, start):
    real = []
    for share in shares(count, batch, world, "pad", start):
        for positions, mask in batches_of(share):
            assert (positions[mask] % world == share.world.rank).all()
            real += positions[mask].tolist()
    assert sorted(real) == list(range(start, count))


@settings(max_examples=40)
@given(records, batches, worlds, st.integers(0, 350))
def test_under_drop_no_sample_comes_twice_and_less_than_a_batch_is_dropped(count, batch, world, start):
    seen = []
    for share in shares(count, batch, world, "drop", start):
        for positions, mask in batches_of(share):
            assert mask.all()
            seen += positions.tolist()
    assert sorted(seen) == list(range(start, start + len(seen)))
    assert max(0, count - start) - len(seen) < batch * world


@settings(max_examples=40)
@given(records, batches, worlds, st.integers(0, 350))
def test_under_repeat_all_are_real_and_the_first_come_again(count, batch, world, start):
    seen = []
    for share in shares(count, batch, world, "repeat", start):
        for positions, mask in batches_of(share):
            assert mask.all()
            seen += positions.tolist()
    left = max(0, count - start)
    assert len(seen) == -(-left // (batch * world)) * batch * world
    assert set(range(start, count)) <= set(seen)
    again = sorted(seen)
    for position in range(start, count):
        again.remove(position)
    assert sorted(again) == sorted((count + extra) % count for extra in range(len(again)))


@settings(max_examples=40)
@given(
    st.lists(st.integers(0, 40), max_size=8),
    st.integers(1, 6),
    st.sampled_from([(12, 1), (12, 2), (12, 3), (12, 4), (12, 6), (12, 12), (16, 4), (16, 8), (5, 5)]),
    st.integers(0, 2**32),
)
def test_every_world_that_divides_the_lanes_has_the_same_global_sequence(sizes, batch, lanes_and_world, seed):
    lanes, world = lanes_and_world
    order = EpochOrder(sizes, seed, 1, lanes)
    whole = order.places(0, order.records).sample
    all_ranks = shares(order.records, batch, world, "pad")
    found = []
    for number in range(len(all_ranks[0])):
        step = np.empty(batch * world, np.int64)
        real = np.empty(batch * world, bool)
        for rank, share in enumerate(all_ranks):
            step[rank::world], real[rank::world] = share.positions(number)
        found += step[real].tolist()
    assert order.places_at(np.array(found, np.int64)).sample.tolist() == whole.tolist()


@settings(max_examples=40)
@given(st.integers(1, 300), st.tuples(batches, worlds), st.tuples(batches, worlds), remainders, st.data())
def test_another_world_goes_on_with_exactly_the_rest(count, old, new, remainder, data):
    (batch, world), (new_batch, new_world) = old, new
    first = shares(count, batch, world, remainder)
    done = data.draw(st.integers(0, len(first[0])))
    start = done * first[0].global_batch
    before = [p[m].tolist() for share in first for p, m in batches_of(share)[:done]]
    after = [p[m].tolist() for share in shares(count, new_batch, new_world, "pad", start) for p, m in batches_of(share)]
    seen = {position for batch_ in before for position in batch_}
    rest = sorted(position for batch_ in after for position in batch_)
    assert rest == list(range(start, count))
    assert seen | set(rest) == set(range(count))
    if start <= count:
        assert not seen & set(rest)


def test_a_batch_is_what_the_docs_say():
    share = Share(23, 4, World(1, 3), "pad", start=2)
    assert len(share) == 2
    positions, mask = share.positions(0)
    assert positions.tolist() == [4, 7, 10, 13]
    assert mask.tolist() == [True] * 4
    positions, mask = share.positions(1)
    assert positions.tolist() == [16, 19, 22, 2]
    assert mask.tolist() == [True, True, True, False]


def test_ranks_without_any_sample_left_have_padding_alone():
    for rank in range(4, 8):
        positions, mask = Share(4, 1, World(rank, 8), "pad").positions(0)
        assert not mask.any()
        assert 0 <= positions[0] < 4


@given(worlds, st.integers(1, 5))
def test_default_lanes_divide_and_suffice(size, hosts):
    lanes = default_lanes(World(0, size), hosts)
    assert lanes % size == 0
    assert lanes >= 16 * hosts
    assert lanes >= 2 * size
    assert lanes < max(2 * (16 * hosts + size), 4 * size)


def test_default_lanes_are_the_world_times_a_power_of_two():
    assert default_lanes(World()) == 16
    assert default_lanes(World(0, 8), 1) == 16
    assert default_lanes(World(0, 32), 4) == 64
    assert default_lanes(World(0, 3)) == 24


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: World(1, 1), "a rank is in"),
        (lambda: World(-1, 2), "a rank is in"),
        (lambda: World(0, 0), "a rank is in"),
        (lambda: Share(1, 0, World()), "at least one sample"),
        (lambda: Share(1, 1, World(), "wrap"), "'drop', 'pad' or 'repeat', not 'wrap'"),
    ],
)
def test_options_out_of_range_are_refused(make, message):
    with pytest.raises(OptionError, match=message):
        make()
