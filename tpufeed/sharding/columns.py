"""Convert the further columns of a source to features of the right type: int64, float, strings or bytes."""

import base64
import json
import math
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tpufeed.dataset.plan import ColumnValue
from tpufeed.dataset.schema import DType, FeatureSpec, record_schema
from tpufeed.errors import SourceError
from tpufeed.tfrecord.example import Feature

_RESERVED = frozenset(spec.name for spec in record_schema(labelled=True)) | {"image/tensor"}
_DIGITS = re.compile(r"[+-]?[0-9]+")
_WHOLE = re.compile(r"[+-]?[0-9]+\.?0*")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|[+-]?(nan|inf)", re.IGNORECASE)
_LEADING_ZERO = re.compile(r"[+-]?0[0-9]")
_SAID = 40  # characters of a value
_LONGEST_INTEGER = 30  # digits, more than 64 bits hold
_LARGEST_FLOAT = 3.4028234663852886e38  # of 32 bits
_EXACT_FLOAT = 1 << 24  # up to this, float32 holds all whole numbers
_KEPT_DIGITS = 7  # by float32
_WIDER: dict[tuple[DType, DType], DType] = {("int64", "float32"): "float32", ("float32", "int64"): "float32"}


@dataclass(slots=True)
class _Column:
    dtype: DType | None = None
    rows: int = 0  # with one value that is in no list
    lists: int = 0
    shortest: int = 0
    longest: int = 0
    values: int = 0
    numbers: int = 0
    odd: tuple[int, str] | None = None  # row and value of the first that is no number
    rounded: Any = None  # the first number of which float32 does not keep the digits


class ColumnTypes:
    """Learns from all values what type each column has: text that is all whole numbers is int64, and so on.

    Floats without a fraction are whole numbers: pandas writes `7.0` for each 7 of a column that lacks a value. A type
    that holds all values of the column is taken: float32 for whole and other numbers together, strings where anything
    else meets, and where a number is too large for both. A column with lists, or with missing values, is of any length.
    """

    def __init__(self) -> None:
        self._columns: dict[str, _Column] = {}
        self._rows = 0

    def add(self, values: Mapping[str, Any] | None) -> None:
        """Take note of one row's values.

        Raises:
            SourceError: a column has the name of a feature that tpufeed writes itself, or none.
        """
        self._rows += 1
        for name, value in (values or {}).items():
            column = self._columns.get(name)
            if column is None:
                if name in _RESERVED:
                    raise SourceError(
                        f"a column is called {name!r}, as a feature that tpufeed writes itself; rename it"
                    )
                if not name or name.encode("utf-8", "replace").decode() != name:
                    raise SourceError(f"a column is called {name!r}; name it in UTF-8")
                column = self._columns[name] = _Column()
            if isinstance(value, list | tuple):
                before = column.values
                for item in value:
                    _widen(column, item, self._rows)
                length = column.values - before
                column.shortest = min(length, column.shortest) if column.lists else length
                column.longest = max(length, column.longest)
                column.lists += 1
            elif not _is_missing(value):
                column.rows += 1
                _widen(column, value, self._rows)

    def schema(self) -> tuple[FeatureSpec, ...]:
        """The features, in the order in which the columns were met."""
        specs = []
        for name, column in self._columns.items():
            dtype = column.dtype or "string"
            if column.rows == self._rows:
                specs.append(FeatureSpec(name, dtype))
                continue
            lengths = [1] if column.rows else []
            lengths += [column.shortest, column.longest] if column.lists else []
            lengths += [0] if column.rows + column.lists < self._rows else []
            specs.append(FeatureSpec(name, dtype, None, lengths=(min(lengths), max(lengths))))
        return tuple(specs)

    def iter_warnings(self) -> Iterator[str]:
        """About text of which more than half are numbers (rows count from 1), and digits that are lost."""
        for name, column in self._columns.items():
            if column.dtype == "string" and column.odd is not None and column.numbers * 2 > column.values:
                row, value = column.odd
                yield f"{name} is text: row {row} says {value}; {column.numbers:,} of {column.values:,} are numbers"
            if column.dtype == "float32" and column.rounded is not None:
                said, (becomes,) = str(column.rounded)[:_SAID], _to_float32(float(column.rounded))
                yield (
                    f"{name} is float32, which keeps {_KEPT_DIGITS} digits: {said} becomes {becomes}. A column of "
                    "whole numbers alone keeps all of theirs"
                )


def encode_values(
    values: Mapping[str, Any] | None, schema: Sequence[FeatureSpec]
) -> tuple[tuple[ColumnValue, ...], ...]:
    """A row's values as the plan holds them, in the order of `schema`; what is missing is empty."""
    encoded = []
    for spec in schema:
        value = (values or {}).get(spec.name)
        items = value if isinstance(value, list | tuple) else [value]
        encoded.append(tuple(_encode_item(item, spec.dtype) for item in items if not _is_missing(item)))
    return tuple(encoded)


def decode_values(values: Sequence[Sequence[ColumnValue]], schema: Sequence[FeatureSpec]) -> dict[str, Feature]:
    """The features of a row that `encode_values` made."""
    return {spec.name: _to_feature(items, spec.dtype) for items, spec in zip(values, schema, strict=True)}


def to_json(values: Mapping[str, Any]) -> str:
    """A row's values as text, for the inventory. `json.loads(..., object_hook=revive)` gives them back."""
    return json.dumps({name: _to_storable(value) for name, value in values.items()}, default=_to_plain)


def revive(value: dict[str, Any]) -> Any:
    """Bytes from what `to_json` made of them."""
    return base64.b64decode(value["base64"]) if value.keys() == {"base64"} else value


def _to_storable(value: Any, in_list: bool = False) -> Any:
    """Only what is bytes may look to `revive` like bytes: what has a structure of its own becomes a string at once."""
    if isinstance(value, list | tuple) and not in_list:
        return [_to_storable(item, in_list=True) for item in value]
    return json.dumps(value, default=_to_plain) if isinstance(value, dict | list | tuple) else value


def _to_plain(value: Any) -> Any:
    return {"base64": base64.b64encode(value).decode()} if isinstance(value, bytes) else str(value)


def _is_missing(value: Any) -> bool:
    return value is None or value == ""


def _widen(column: _Column, value: Any, row: int) -> None:
    if _is_missing(value):
        return
    found = _type_of(value)
    column.values += 1
    if found in ("int64", "float32"):
        column.numbers += 1
        if column.rounded is None:
            large = len(value) > _KEPT_DIGITS if isinstance(value, str) else abs(value) > _EXACT_FLOAT
            if large and _is_rounded(value):
                column.rounded = value
    elif column.odd is None and not _is_number(value):
        column.odd = row, repr(value)[:_SAID]
    if found != column.dtype:
        column.dtype = found if column.dtype is None else _WIDER.get((column.dtype, found), "string")


def _is_number(value: Any) -> bool:
    """Return true for text that is a number, also for 007 and numbers too large for a feature of numbers."""
    return isinstance(value, int | float) or (isinstance(value, str) and _NUMBER.fullmatch(value) is not None)


def _type_of(value: Any) -> DType:
    if isinstance(value, bytes):
        return "bytes"
    if isinstance(value, str):
        digits = _DIGITS.fullmatch(value)
        if not (digits or _NUMBER.fullmatch(value)) or _LEADING_ZERO.match(value):  # 007 is a name
            return "string"
        if not digits:
            number = float(value)
            if number.is_integer() and _WHOLE.fullmatch(value) and _fits_int(_to_int(value)):
                return "int64"
            overflows = math.isinf(number) and "n" not in value.lower()  # 1e400
            return "string" if overflows or not _fits_float(number) else "float32"
        value = int(value[:_LONGEST_INTEGER])
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer() and _fits_int(value)):
        return "int64" if _fits_int(value) else "string"
    return "float32" if isinstance(value, float) and _fits_float(value) else "string"


def _fits_int(value: float) -> bool:
    return -(1 << 63) <= value < 1 << 63


def _to_int(item: Any) -> int:
    """A whole number with all its digits, also one that is written as a float."""
    return int(item.partition(".")[0] if isinstance(item, str) else item)


def _is_rounded(value: Any) -> bool:
    """Return true where float32 changes a number of many digits (seconds since 1970), not one of few (6.02e23)."""
    number = float(value)
    if not _EXACT_FLOAT < abs(number) <= _LARGEST_FLOAT:
        return False
    exact = int(value) if isinstance(value, int) or (isinstance(value, str) and _DIGITS.fullmatch(value)) else number
    return _to_float32(number) != (exact,) and float(f"{number:.{_KEPT_DIGITS}g}") != exact


def _to_float32(number: float) -> tuple[float]:
    return struct.unpack("f", struct.pack("f", number))


def _fits_float(value: float) -> bool:
    return not math.isfinite(value) or abs(value) <= _LARGEST_FLOAT


def _encode_item(item: Any, dtype: DType) -> ColumnValue:
    if dtype == "int64":
        return _to_int(item)
    if dtype == "float32":
        number = float(item)
        return number if math.isfinite(number) else str(number)  # JSON has no nan
    if dtype == "bytes":
        return base64.b64encode(item).decode()
    text = item.decode("utf-8", "replace") if isinstance(item, bytes) else str(item)
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise SourceError(f"{text!r} in a further column of the source is not UTF-8; mend it") from None
    return text


def _to_feature(items: Sequence[ColumnValue], dtype: DType) -> Feature:
    if dtype == "int64":
        return Feature("int64", [int(item) for item in items])
    if dtype == "float32":
        return Feature("float", [float(item) for item in items])
    if dtype == "bytes":
        return Feature("bytes", [base64.b64decode(str(item)) for item in items])
    return Feature("bytes", [str(item).encode() for item in items])
