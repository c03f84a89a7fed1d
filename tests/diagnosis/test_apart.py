import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpufeed.diagnosis.stages.apart import left_over, tell_apart

rates = st.floats(1, 1e6)


def test_ops_are_what_is_left() -> None:
    found = {"reading": (2000.0, 4000.0), "decoding": (1000.0, 2000.0), "all": (500.0, 1000.0)}
    reading, decoding, ops = tell_apart(found, encoded=True, has_ops=True)
    assert (reading.one_thread, reading.images_per_second) == (2000, 4000)
    assert (decoding.images_per_second, decoding.detail) == (2000, "at full size")
    assert (ops.one_thread, ops.images_per_second) == pytest.approx((2000, 4000))


def test_ops_that_make_decoding_cheaper_are_measured_with_it() -> None:
    found = {"reading": (2000.0, 4000.0), "decoding": (100.0, 200.0), "all": (400.0, 800.0)}
    _, decoding, ops = tell_apart(found, encoded=True, has_ops=True)
    assert (decoding.one_thread, decoding.images_per_second) == pytest.approx((500, 1000))
    assert ops.images_per_second is None
    assert "which they make cheaper" in ops.why_not


def test_raw_pixels_are_copied() -> None:
    reading, decoding, ops = tell_apart({"reading": (9.0, 18.0), "all": (8.0, 16.0)}, encoded=False, has_ops=False)
    assert reading.detail == "CRCs verified, pixels copied"
    assert (decoding.images_per_second, decoding.why_not) == (None, "raw pixels need none")
    assert (ops.images_per_second, ops.why_not) == (None, "there are none")


@pytest.mark.parametrize(("whole", "known"), [(4.5, 9.0), (9.5, None)])
def test_live_ops_of_a_raw_cache(whole: float, known: float | None) -> None:
    _, _, ops = tell_apart({"reading": (9.0, 9.0), "all": (whole, whole)}, encoded=False, has_ops=True)
    assert ops.images_per_second == (known if known is None else pytest.approx(known))


@given(rates, rates, rates, st.booleans())
def test_of_any_rates_nothing_is_negative_and_what_is_unknown_says_why(
    reading: float, decoding: float, whole: float, has_ops: bool
) -> None:
    found = {"reading": (reading, reading), "decoding": (decoding, decoding), "all": (whole, whole)}
    for figure in tell_apart(found, encoded=True, has_ops=has_ops):
        if figure.images_per_second is None:
            assert figure.why_not
        else:
            assert figure.images_per_second > 0


@given(rates, rates)
def test_what_is_left_and_its_parts_make_the_whole(one: float, other: float) -> None:
    whole = 1 / (1 / one + 1 / other)
    left = left_over(whole, [one])
    assert left is None or left == pytest.approx(other, rel=0.01) or other > 1e4 * one
