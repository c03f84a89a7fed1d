import pytest

from tpufeed.text import format_count, format_counts, format_range, format_rate


def test_one_thing_and_several() -> None:
    assert [format_count(count, "repeat") for count in (0, 1, 2000)] == ["0 repeats", "1 repeat", "2,000 repeats"]
    assert format_count(1, "batch", "batches") == "1 batch"
    assert format_count(2, "batch", "batches") == "2 batches"


def test_counts_by_name() -> None:
    assert format_counts({"jpeg": 2000, "png": 3}) == "2,000 jpeg, 3 png"
    assert format_counts({}) == "none"


def test_a_range_of_one_value_is_that_value() -> None:
    assert format_range(11.1, 11.12, 1) == "11.1"
    assert format_range(1200, 1900.4) == "1,200 to 1,900"


@pytest.mark.parametrize(
    ("rate", "span", "said"),
    [
        (13_133.3, None, "13,100"),
        (1_444.4, None, "1,440"),
        (87.6, None, "88"),
        (1_444.4, (1_234.0, 1_512.0), "1,200 to 1,500"),
        (104_000.0, (98_700.0, 131_000.0), "99,000 to 130,000"),
        (1_000.0, (996.0, 1_004.0), "1,000"),
        (None, None, "n/a"),
        (float("inf"), None, "n/a"),
    ],
)
def test_a_rate_has_the_digits_that_it_is_worth(
    rate: float | None, span: tuple[float, float] | None, said: str
) -> None:
    assert format_rate(rate, span) == said
