"""Further columns become features: of the narrowest type that holds all values, and none is lost."""

import base64
import decimal
import json
import math
import re
import struct

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpufeed.builds.item import Item
from tpufeed.errors import SourceError
from tpufeed.sharding.inventory import to_line
from tpufeed.sources.columns import ColumnTypes, decode_values, encode_values, flatten
from tpufeed.tfrecord.example import encode_entry

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
NUMBERS_AS_TEXT = st.one_of(
    st.integers().map(str), st.floats().map(str), st.from_regex(r"[+-]?[0-9]{1,30}(\.[0-9]*)?", fullmatch=True)
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-9, 9),
    st.floats(),
    TEXTS,
    NUMBERS_AS_TEXT,
    st.binary(max_size=5),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=2)),
    max_leaves=5,
)
TABLES = st.lists(st.dictionaries(st.sampled_from(["a", "b", "ü"]), VALUES), min_size=1, max_size=6)


def learn(rows):
    types = ColumnTypes()
    for row in rows:
        types.learn(row)
    return types.schema()


def features_of(rows):
    """Each row's features, by way of inventory and plan."""
    types = ColumnTypes()
    items = [Item("x", 1, "1", values=types.learn(row)[0]) for row in rows]
    schema, listed = (
        types.schema(),
        [msgspec.msgpack.decode(to_line(item, 0, {"train": 1.0}, None)[-1], type=Item) for item in items],
    )
    stored = [Item("x", 1, "1", columns=encode_values(item.values, schema)) for item in listed]
    through = [msgspec.json.decode(msgspec.json.encode(item), type=Item) for item in stored]
    return schema, [decode_values(item.columns, schema) for item in through]


def column(*values):
    schema, rows = features_of([{"x": value} for value in values])
    (spec,) = schema
    return spec.dtype, spec.shape, [list(row["x"].values) for row in rows]


@pytest.mark.all
@given(TABLES)
def test_any_values_come_through(rows):
    schema, features = features_of(rows)
    assert {spec.name for spec in schema} == {name for row in rows for name in row}
    for spec in schema:
        for row, found in zip(rows, features, strict=True):
            given_value = row.get(spec.name)
            if isinstance(given_value, list):
                items = flatten(given_value) if spec.each else given_value
            else:
                items = [] if given_value in (None, "") else [given_value]
            values = list(found[spec.name].values)
            assert len(values) == len(items)
            for value, item in zip(values, items, strict=True):
                assert is_same(value, item, spec.dtype), (value, item, spec)
            if spec.shape == ():
                assert len(values) == 1
            encode_entry(spec.name, found[spec.name])  # a record can hold it


def is_same(value, item, dtype):
    if item is None:  # within a list
        item = b"" if dtype in ("bytes", "string") else math.nan
    if dtype == "int64":
        return value == int(decimal.Decimal(item) if isinstance(item, str) else item)  # 1.0 as well
    if dtype == "float32":
        number = float(item)
        return value == number or (math.isnan(value) and math.isnan(number))
    if dtype == "bytes":
        return value == item
    if isinstance(item, dict | list):
        return without_bytes(json.loads(value), item)
    if isinstance(item, bytes):
        return value == item.decode("utf-8", "replace").encode()
    return value == str(item).encode()


def without_bytes(found, item):
    """Bytes within a structure are in base64."""
    if isinstance(item, dict):
        return found.keys() == item.keys() and all(without_bytes(found[key], item[key]) for key in item)
    if isinstance(item, list):
        return len(found) == len(item) and all(map(without_bytes, found, item))
    if isinstance(item, bytes):
        return found == {"base64": base64.b64encode(item).decode()}
    return found == item or (found != found and item != item)  # noqa: PLR0124  # NaN


@pytest.mark.parametrize(
    ("values", "dtype", "shape", "features"),
    [
        ((1, 2), "int64", (), [[1], [2]]),
        (("1", "-2"), "int64", (), [[1], [-2]]),
        (("1234567891.0", "1234567892.0", "-3."), "int64", (), [[1234567891], [1234567892], [-3]]),
        (("9007199254740993.0", "10."), "int64", (), [[9007199254740993], [10]]),
        (("1e-999999999999999999999", "1e+16"), "float32", (), [[0.0], [1e16]]),
        (("9007199254740993.5", "1"), "float32", (), [[9007199254740993.5], [1.0]]),
        (([1.0, 2.0], 3.0), "int64", None, [[1, 2], [3]]),
        ((9.3e18, 1.0), "float32", (), [[9.3e18], [1.0]]),
        ((".5", "-1e3", "7"), "float32", (), [[0.5], [-1000.0], [7.0]]),
        ((float("inf"), "-inf"), "float32", (), [[math.inf], [-math.inf]]),
        (("007", "008"), "string", (), [[b"007"], [b"008"]]),
        (("0", "-0", "10"), "int64", (), [[0], [0], [10]]),
        (("00.5", "1"), "string", (), [[b"00.5"], [b"1"]]),
        (("1", "one", 2), "string", (), [[b"1"], [b"one"], [b"2"]]),
        ((1, None, "", 4), "int64", None, [[1], [], [], [4]]),
        (([1, 2], 3, []), "int64", None, [[1, 2], [3], []]),
        (([1, "2", 0.5],), "float32", None, [[1.0, 2.0, 0.5]]),
        (([[1], [2, 3]],), "string", None, [[b"[1]", b"[2, 3]"]]),
        (({"k": [1]}, 5), "string", (), [[b'{"k": [1]}'], [b"5"]]),
        (({"base64": "no such thing"},), "string", (), [[b'{"base64": "no such thing"}']]),
        ((b"\0\xff", b""), "bytes", (), [[b"\0\xff"], [b""]]),
        ((b"caf\xc3\xa9", "x"), "string", (), [["café".encode()], [b"x"]]),
        ((2**63 - 1, -(2**63)), "int64", (), [[2**63 - 1], [-(2**63)]]),
        ((str(2**63 - 1), str(-(2**63))), "int64", (), [[2**63 - 1], [-(2**63)]]),
        ((2**63, 1), "string", (), [[b"9223372036854775808"], [b"1"]]),
        (("123456789012345678901234567890",), "string", (), [[b"123456789012345678901234567890"]]),
        ((1e39, 1.0), "string", (), [[b"1e+39"], [b"1.0"]]),
        (("1e999", "inf"), "string", (), [[b"1e999"], [b"inf"]]),
        (("1_000", "0x10", "٣", " 1"), "string", (), [[b"1_000"], [b"0x10"], ["٣".encode()], [b" 1"]]),
    ],
    ids=str,
)
def test_types(values, dtype, shape, features):
    assert column(*values) == (dtype, shape, features)


def test_a_not_a_number_stays_one():
    dtype, shape, ((value,), (other,)) = column(float("nan"), "1.5")
    assert (dtype, shape, other) == ("float32", (), 1.5)
    assert math.isnan(value)


def test_the_largest_float_is_one():
    (largest,) = struct.unpack("<f", b"\xff\xff\x7f\x7f")
    assert column(largest)[0] == "float32"
    assert column(largest * 1.0001)[0] == "string"


def test_digits_without_end_are_text():
    digits = "9" * 5000
    assert column(digits) == ("string", (), [[digits.encode()]])


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (("1.5", "2", "tall", "n/a"), None),
        (("1.5", "", "2", "tall", "4", "n/a"), r"row 4 .*'tall'.* 3 of 5"),
        ((1, 2, {"a": "b" * 99}), r"row 3 .*\{'a': 'b{33};"),
        (("007", "12", "13"), None),
        ((2**63, 1, 2), None),
        ((b"\xff", 1, 2), r"row 1 .*b'\\xff'"),
        ((1, 2, 0.5), None),
    ],
    ids=str,
)
def test_a_few_values_that_are_no_numbers(values, said):
    types = ColumnTypes()
    for value in values:
        types.learn({"x": value})
    warnings = list(types.iter_warnings())
    assert len(warnings) == (said is not None)
    assert said is None or re.search(said, warnings[0])


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ((0.5, 16777217), "16777217 becomes 16777216.0"),
        ((0.5, "1700000000.123"), "1700000000.123 becomes 1700000000.0"),
        ((float("nan"), 1234567891.0), "1234567891.0 becomes 1234567936.0"),
        (([0.5, 2**53 + 1],), "9007199254740993 becomes 9007199254740992.0"),
        ((0.5, 16777216, 6.02e23, 33554436, "1e30", float("inf"), 0.123456789), None),
        ((1234567891.0, 1234567892.0), None),
        ((0.5, 1234567891.0, "text"), None),
    ],
    ids=str,
)
def test_digits_that_float32_does_not_keep(values, said):
    types = ColumnTypes()
    for value in values:
        types.learn({"x": value})
    warnings = [text for text in types.iter_warnings() if "float32" in text]
    assert len(warnings) == (said is not None)
    assert said is None or said in warnings[0]


def test_a_column_that_not_all_rows_have_is_of_any_length():
    schema, rows = features_of([{}, {"x": 1}, {"y": "b", "x": 2}])
    assert [(spec.name, spec.dtype, spec.shape) for spec in schema] == [("x", "int64", None), ("y", "string", None)]
    assert [list(row["x"].values) for row in rows] == [[], [1], [2]]


def test_rows_without_columns():
    assert learn([None, None]) == ()
    assert encode_values(None, learn([{"x": 1}, None])) == ((),)


@pytest.mark.parametrize("name", ["image/encoded", "image/class/label", "image/height", "image/tensor"])
def test_a_name_of_tpufeed_s_own(name):
    with pytest.raises(SourceError, match=f"'{name}'"):
        learn([{name: 1}])


@pytest.mark.parametrize("name", ["", "\ud800"])
def test_a_name_that_no_feature_can_have(name):
    with pytest.raises(SourceError, match="UTF-8") as raised:
        learn([{name: 1}])
    str(raised.value).encode()


@pytest.mark.parametrize("value", ["\ud800", ["a", "\ud800"]], ids=["text", "list"])
def test_text_that_is_not_utf8(value):
    with pytest.raises(SourceError, match=r"'\\ud800'"):
        column(value)
