"""What ranks tell one another, as bytes: torch_xla's exchange hangs if one rank sends more of them than another."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpufeed.stream.rank_check import EpochSpec

SIZE = 4096
TEXTS = st.one_of(
    st.text(max_size=5000), st.sampled_from(["é" * 1600, "\x00" * 3000, '"\\' * 4000, "\ud800" * 5000, "a" * 9000])
)


@given(st.integers(0, 1 << 20), st.integers(0, 1 << 62), TEXTS, TEXTS)
def test_a_claim_of_any_text_has_the_same_size(rank, batches, order, error):
    spec = EpochSpec(rank, batches, 1 << 40, order, error)
    payload = spec.packed(SIZE)
    assert len(payload) == SIZE
    found = EpochSpec.unpacked(payload)
    assert (found.rank, found.batches, found.batch_size) == (rank, batches, 1 << 40)
    assert EpochSpec.unpacked(spec.packed()) == spec
    for text, kept in ((order, found.order), (error, found.error)):
        assert kept == text or len(json.dumps(text)) > 1900
        assert kept == EpochSpec.unpacked(EpochSpec(7, 1, None, text, text).packed(SIZE)).order  # whatever else is said


@pytest.mark.parametrize("letter", ["a", "é", "\x00"])
def test_texts_that_differ_behind_the_cut_stay_different(letter):
    orders = [EpochSpec.unpacked(EpochSpec(0, 1, order=letter * 5000 + end).packed(SIZE)).order for end in "xy"]
    assert orders[0] != orders[1]
    assert all(order.startswith(letter * 100) for order in orders)
