import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpufeed.diagnosis.wording import between, number_of, whole_percents


def test_one_thing_and_several() -> None:
    assert [number_of(count, "repeat") for count in (0, 1, 2000)] == ["0 repeats", "1 repeat", "2,000 repeats"]
    assert number_of(1, "batch", "batches") == "1 batch"
    assert number_of(2, "batch", "batches") == "2 batches"


def test_a_range_of_one_value_is_that_value() -> None:
    assert between(11.1, 11.12, 1) == "11.1"
    assert between(1200, 1900.4) == "1,200 to 1,900"


def test_halves_are_not_both_rounded_up() -> None:
    assert whole_percents({"reading": 0.005, "decoding": 0.505, "ops": 0.49}) == {
        "reading": 1,
        "decoding": 50,
        "ops": 49,
    }
    assert whole_percents({}) == {}


@given(st.dictionaries(st.text(max_size=3), st.floats(1e-6, 1e6), min_size=1, max_size=6))
def test_percents_add_up_to_a_hundred(weights: dict[str, float]) -> None:
    total = sum(weights.values())
    shares = {name: weight / total for name, weight in weights.items()}
    found = whole_percents(shares)
    assert sum(found.values()) == 100
    for name, percent in found.items():
        assert percent == pytest.approx(100 * shares[name], abs=1)
