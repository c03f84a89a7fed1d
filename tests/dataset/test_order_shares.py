"""Who reads what: shares of a world that cover an epoch, and go on where another world stopped."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tpufeed.dataset.order import Share, World, default_lanes
from tpufeed.errors import OptionError

remainders = st.sampled_from(["drop", "pad", "repeat"])


@settings(max_examples=120)
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
    assert default_lanes(World(0, 8), 1) == 16
    assert default_lanes(World(0, 32), 4) == 64
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
