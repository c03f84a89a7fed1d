from tpufeed.measure.wording import between, number_of


def test_one_thing_and_several() -> None:
    assert [number_of(count, "repeat") for count in (0, 1, 2000)] == ["0 repeats", "1 repeat", "2,000 repeats"]
    assert number_of(1, "batch", "batches") == "1 batch"
    assert number_of(2, "batch", "batches") == "2 batches"


def test_a_range_of_one_value_is_that_value() -> None:
    assert between(11.1, 11.12, 1) == "11.1"
    assert between(1200, 1900.4) == "1,200 to 1,900"
