"""From the further columns of a source to features of the right type: int64, float, strings or bytes."""

import base64
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tpufeed.dataset.plan import ColumnValue
from tpufeed.dataset.schema import DType, FeatureSpec, record_schema
from tpufeed.errors import SourceError
from tpufeed.tfrecord.example import Feature

_RESERVED = frozenset(spec.name for spec in record_schema(labelled=True)) | {"image/tensor"}
_DIGITS = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|[+-]?(nan|inf)", re.IGNORECASE)
_SAID = 40  # characters of a value
_LONGEST_INTEGER = 30  # digits, more than 64 bits hold
_LARGEST_FLOAT = 3.4028234663852886e38  # of 32 bits
_WIDER = {("int64", "float32"): "float32", ("float32", "int64"): "float32"}


@dataclass(slots=True)
class _Column:
    dtype: DType | None = None
    single: bool = True
    rows: int = 0
    values: int = 0
    numbers: int = 0
    odd: tuple[int, str] | None = None  # row and value of the first that is no number


class ColumnTypes:
    """Learns from all values what type each column has: text that is all whole numbers is int64, and so on.

    A type that holds all values of the column is taken: float32 for whole and other numbers together, strings where
    anything else meets, and where a number is too large for both. A column with lists, or with missing values, is of
    any length.
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
                column = self._columns[_check_column(name)] = _Column()
            if isinstance(value, list | tuple):
                column.single = False
                for item in value:
                    _widen(column, item, self._rows)
            elif not _is_missing(value):
                column.rows += 1
                _widen(column, value, self._rows)

    def schema(self) -> tuple[FeatureSpec, ...]:
        """The features, in the order in which the columns were met."""
        return tuple(
            FeatureSpec(name, column.dtype or "string", () if column.single and column.rows == self._rows else None)
            for name, column in self._columns.items()
        )

    def iter_warnings(self) -> Iterator[str]:
        """About columns that are text though more than half of their values are numbers; rows count from 1."""
        for name, column in self._columns.items():
            if column.dtype == "string" and column.odd is not None and column.numbers * 2 > column.values:
                row, value = column.odd
                yield f"{name} is text: row {row} says {value}; {column.numbers:,} of {column.values:,} are numbers"


def encode_values(
    values: Mapping[str, Any] | None, schema: Sequence[FeatureSpec]
) -> tuple[tuple[ColumnValue, ...], ...]:
    """A row's values as the plan holds them, in the order of `schema`; what is missing is empty."""
    return tuple(_encode((values or {}).get(spec.name), spec.dtype) for spec in schema)


def decode_values(values: Sequence[Sequence[ColumnValue]], schema: Sequence[FeatureSpec]) -> dict[str, Feature]:
    """The features of a row that `encode_values` made."""
    return {spec.name: _to_feature(items, spec.dtype) for items, spec in zip(values, schema, strict=True)}


def to_json(values: Mapping[str, Any]) -> str:
    """A row's values as text, for the inventory. `json.loads(..., object_hook=revive)` gives them back."""
    return json.dumps({name: _to_storable(value) for name, value in values.items()}, default=_to_plain)


def revive(value: dict[str, Any]) -> Any:
    """Bytes from what `to_json` made of them."""
    return base64.b64decode(value["base64"]) if value.keys() == {"base64"} else value


def _to_storable(value: Any) -> Any:
    """Only what is bytes may look to `revive` like bytes: what has a structure of its own becomes a string at once."""
    if isinstance(value, list | tuple):
        return [_say(item) if isinstance(item, dict | list | tuple) else item for item in value]
    return _say(value) if isinstance(value, dict) else value


def _say(value: Any) -> str:
    return json.dumps(value, default=_to_plain)


def _to_plain(value: Any) -> Any:
    return {"base64": base64.b64encode(value).decode()} if isinstance(value, bytes) else str(value)


def _check_column(name: str) -> str:
    if name in _RESERVED:
        raise SourceError(f"a column is called {name!r}, as a feature that tpufeed writes itself; rename it")
    if not name or name.encode("utf-8", "replace").decode() != name:
        raise SourceError(f"a column is called {name!r}; name it in UTF-8")
    return name


def _is_missing(value: Any) -> bool:
    return value is None or value == ""


def _widen(column: _Column, value: Any, row: int) -> None:
    if _is_missing(value):
        return
    found = _type_of(value)
    column.values += 1
    if found in ("int64", "float32"):
        column.numbers += 1
    elif column.odd is None and not _is_number(value):
        column.odd = row, repr(value)[:_SAID]
    column.dtype = found if column.dtype in (None, found) else _WIDER.get((column.dtype, found), "string")  # type: ignore[assignment]


def _is_number(value: Any) -> bool:
    """Also one that a feature of numbers does not hold: 007, and what is too large."""
    return isinstance(value, int | float) or (isinstance(value, str) and _NUMBER.fullmatch(value) is not None)


def _type_of(value: Any) -> DType:
    if isinstance(value, bytes):
        return "bytes"
    if isinstance(value, str):
        if not _NUMBER.fullmatch(value) or _has_leading_zero(value):  # 007 is a name
            return "string"
        if not _DIGITS.fullmatch(value):
            overflows = math.isinf(float(value)) and "n" not in value.lower()  # 1e400
            return "string" if overflows or not _fits_float(float(value)) else "float32"
        value = int(value[:_LONGEST_INTEGER])
    if isinstance(value, int):
        return "int64" if -(1 << 63) <= value < 1 << 63 else "string"
    return "float32" if isinstance(value, float) and _fits_float(value) else "string"


def _fits_float(value: float) -> bool:
    return not math.isfinite(value) or abs(value) <= _LARGEST_FLOAT


def _has_leading_zero(text: str) -> bool:
    digits = text.lstrip("+-")
    return len(digits) > 1 and digits[0] == "0" and digits[1].isdigit()


def _encode(value: Any, dtype: DType) -> tuple[ColumnValue, ...]:
    items = value if isinstance(value, list | tuple) else [value]
    return tuple(_encode_item(item, dtype) for item in items if not _is_missing(item))


def _encode_item(item: Any, dtype: DType) -> ColumnValue:
    if dtype == "int64":
        return int(item)
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
