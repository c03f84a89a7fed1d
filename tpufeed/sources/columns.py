"""Convert the further columns of a source to features: their types and shapes are declared or found in the values."""

import base64
import json
import math
import re
import shlex
import struct
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, get_args

import msgspec
import numpy as np
import numpy.typing as npt

from tpufeed.builds.item import ColumnValue
from tpufeed.dataset.naming import splits_mentioned
from tpufeed.dataset.schema import LOADERS_NAMES, OWN_NAMES, DType, FeatureSpec, Kind
from tpufeed.errors import OptionError, SourceError
from tpufeed.tfrecord.example import Feature

_DIGITS = re.compile(r"[+-]?[0-9]+")
_WHOLE = re.compile(r"[+-]?[0-9]+\.?0*")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|[+-]?(nan|inf)", re.IGNORECASE)
_LEADING_ZERO = re.compile(r"[+-]?0[0-9]")
_SAID = 40  # characters of a value in a message
_LONGEST_INTEGER = 30  # digits, more than 64 bits hold
_LARGEST_FLOAT = 3.4028234663852886e38  # of 32 bits
_EXACT_FLOAT = 1 << 24  # up to this, float32 holds all whole numbers
_KEPT_DIGITS = 7  # of a float32
_EXACT_DOUBLE = 1 << 53  # up to this, float64 holds all whole numbers
_NUMBERS = ("int64", "float32")
_MOST_AXES = 32  # of a value
_MOST_TEXTS = 6  # different texts of a column that may name splits
_TEXT = (None, "bytes", "string")  # None: the column has only nulls
_DECLARED = re.compile(r"(?P<dtype>[a-z0-9]+)(?P<list>\[(?P<shape>[0-9, ]*)\])?")
_FORM = "write a type and maybe a shape: float32, float32[512], uint8[28,28], int64[] for a list, float32[,2] for pairs"


class BadValue(Exception):
    """Says what is wrong with a value of a declared column."""


class Declared(NamedTuple):
    """A column whose type and shape the user has declared."""

    name: str
    dtype: DType
    shape: tuple[int, ...] | None = ()  # () for one value, None for any number of items
    each: tuple[int, ...] | None = ()  # shape of an item, or None if the values tell
    kind: Kind | None = None  # boxes or keypoints
    # A column of a growing dataset, with its type from there: a row has one value, a list of any length, or no value.
    grows: bool = False

    @classmethod
    def parse(cls, name: str, text: str) -> "Declared":
        """Parse a declaration like `float32[512]`. Raises OptionError."""
        found = _DECLARED.fullmatch(text.strip())
        if found is None or found["dtype"] not in get_args(DType):
            raise OptionError(f"column {name}: {text!r} is not a type; {_FORM}")
        dtype: DType = found["dtype"]  # type: ignore[assignment]  # it is one of them
        if found["list"] is None:
            return cls(name, dtype)
        if dtype in ("bytes", "string"):
            raise OptionError(f"column {name}: there are no lists of {dtype}; {_FORM}")
        first, *others = (part.strip() for part in found["shape"].split(","))
        try:
            each = tuple(map(int, others))
            shape = None if not first else (int(first), *each)
        except ValueError:
            raise OptionError(f"column {name}: {text!r} has a size that is not a number; {_FORM}") from None
        if 0 in (*each, *(shape or ())):
            raise OptionError(f"column {name}: {text!r} has a size of 0; {_FORM}")
        return cls(name, dtype, shape, each if shape is None else ())

    def __str__(self) -> str:
        if self.shape == ():
            return self.dtype
        sizes = self.shape if self.shape is not None else ("", *(self.each or ()))
        return f"{self.dtype}[{','.join(map(str, sizes))}]"

    def convert(self, value: Any) -> Any:
        """Return a value as numbers, in nested lists, or None if it is missing. Raises BadValue."""
        if self.dtype in ("bytes", "string"):
            if not self.grows or not isinstance(value, list | tuple):
                return None if _is_missing(value) else self._check_text(value)
            keeps_lists = self.dtype == "string"  # a list within the list becomes JSON
            return [
                item if keeps_lists and isinstance(item, list | tuple) else self._check_text(item) for item in value
            ]
        if _is_missing(value):
            if self.shape:
                raise BadValue("has no value")
            return None if self.shape == () or self.grows else []
        if self.grows:
            is_text_of_list = isinstance(value, str) and value.lstrip().startswith("[")
            is_list = is_text_of_list or isinstance(value, list | tuple | bytes)
            return self._replace(shape=None if is_list else self.each, grows=False).convert(value)
        array = self._to_array(value)
        if self.shape is None:
            each = array.shape[1:] if self.each is None else self.each
            if not array.size and array.ndim == 1:
                return []
            if self.kind == "keypoints" and array.ndim == 1 and self.each is None:
                forms = f"--column {self.name}:float32[,2] or float32[,3]"
                raise BadValue(f"is a flat list of {array.size} numbers: tell how many a point has, {forms}")
            if self.kind == "keypoints" and array.shape[1:] in (
                (),
                (math.prod(each),),
            ):  # the numbers of points in turn
                with suppress(ValueError):
                    array = array.reshape(-1, *each)
            if array.ndim != 1 + len(each) or array.shape[1:] != each or 0 in each:
                raise BadValue(f"has the shape {list(array.shape)}")
        elif array.shape != self.shape:
            raise BadValue(f"has the shape {list(array.shape)}")
        return array.tolist()

    def _check_text(self, value: Any) -> Any:
        if value is None:  # within a list
            return None
        if isinstance(value, list | tuple) or (self.dtype == "bytes" and not isinstance(value, bytes)):
            raise BadValue(f"is {str(value)[:_SAID]!r}")
        if self.dtype == "string" and isinstance(value, bytes):
            try:
                return value.decode()
            except UnicodeDecodeError:
                raise BadValue("is not UTF-8") from None
        return value

    def _to_array(self, value: Any) -> npt.NDArray[Any]:
        dtype = np.dtype(self.dtype)
        if isinstance(value, bytes):
            shape = self.shape if self.shape is not None else (-1, *(self.each or ()))
            try:
                found = np.frombuffer(value, dtype.newbyteorder("<")).reshape(shape)
            except ValueError:
                raise BadValue(f"has {len(value)} bytes") from None
            return self._cast(found.view(np.uint8), dtype) if dtype.kind == "b" else found
        if isinstance(value, str) and self.shape != ():
            try:
                value = json.loads(value)
            except (ValueError, RecursionError):
                raise BadValue(f"is {value[:_SAID]!r}") from None
        try:
            found = np.array(value)
        except ValueError:
            raise BadValue("has rows of several lengths") from None
        # float64 does not keep all digits of an int64. Python's numbers do.
        is_inexact = found.dtype.kind == "f" and dtype.kind in "iu" and bool((np.abs(found) >= _EXACT_DOUBLE).any())
        if found.dtype.kind not in "biuf" or is_inexact:
            numbers = [self._to_number(item) for item in flatten([value])]
            found = np.array(numbers, np.float64 if dtype.kind == "f" else np.object_).reshape(found.shape)
        return self._cast(found, dtype)

    def _to_number(self, item: Any) -> int | float:
        """Return one item with all the digits that its type can hold. Raises BadValue if it is not a number."""
        if isinstance(item, str):
            text = item.strip()
            if self.dtype == "bool" and text.lower() in ("true", "false"):
                return text.lower() == "true"
            if not _NUMBER.fullmatch(text):
                raise BadValue(f"is {item[:_SAID]!r}")
            item = _to_int(text) if _WHOLE.fullmatch(text) and len(text) <= _LONGEST_INTEGER else float(text)
            if isinstance(item, float) and math.isinf(item) and "n" not in text.lower():
                raise BadValue(f"holds {text[:_SAID]}")
        if item is None and self.kind is None and self.dtype in ("float16", "float32"):
            return math.nan
        if not isinstance(item, int | float):
            raise BadValue(f"is {str(item)[:_SAID]!r}" if item is not None else f"has null for a value of {self.dtype}")
        try:
            return float(item) if self.dtype in ("float16", "float32") else item
        except OverflowError:
            raise BadValue(f"holds {str(item)[:_SAID]}") from None

    def _cast(self, found: npt.NDArray[Any], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """Return numbers as the declared type. Raises BadValue if it does not hold one of them."""
        if dtype.kind == "f":
            with np.errstate(over="ignore"):
                cast = found.astype(dtype)
            bad = np.isinf(cast) & np.isfinite(found.astype(np.float64))
        else:
            low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
            with np.errstate(invalid="ignore"):  # infinity has no remainder
                bad = ~((found >= low) & (found <= high)) | (found % 1 != 0)
            cast = np.where(bad, 0, found).astype(dtype)
        if bad.any():
            raise BadValue(f"holds {str(found[bad].flat[0])[:_SAID]}")
        return cast


@dataclass(slots=True)
class _Column:
    """The properties that the values of a column share."""

    dtype: DType | None = None
    each: set[tuple[int, ...]] = field(default_factory=set)  # shapes of the items of nested lists
    flat: bool = False  # there is a list of plain values, or a value in no list
    rows: int = 0  # with one value that is in no list
    lists: int = 0
    shortest: int = 0
    longest: int = 0
    values: int = 0
    holes: int = 0  # nulls within lists
    first_hole: int = 0  # its row
    numbers: int = 0
    odd: tuple[int, str] | None = None  # row and text of the first value that is not a number
    rounded: Any = None  # the first number whose digits float32 does not keep
    texts: Counter[str] = field(default_factory=Counter)  # values of rows, up to a few different ones

    def add(self, value: Any, row: int) -> None:
        """Record the value of a row, which may be a list."""
        if isinstance(value, list | tuple):
            shape = _tensor_shape(value)
            if shape is not None:
                self.each.add(shape[1:])
            self.flat |= shape is None and len(value) > 0
            for item in value if shape is None else flatten(value):
                self._widen(item, row)
            self.shortest = min(len(value), self.shortest) if self.lists else len(value)
            self.longest = max(len(value), self.longest)
            self.lists += 1
        elif not _is_missing(value):
            self.rows += 1
            self.flat = True
            self._widen(value, row)
            if isinstance(value, str) and len(self.texts) <= _MOST_TEXTS:
                self.texts[value] += 1

    def _widen(self, value: Any, row: int) -> None:
        """Record a value or an item of a list. Only an item may be None or empty text."""
        if value is None:
            self.holes += 1
            self.first_hole = self.first_hole or row
            return
        found = _type_of(value)
        self.values += 1
        if found in _NUMBERS:
            self.numbers += 1
            if self.rounded is None:
                large = len(value) > _KEPT_DIGITS if isinstance(value, str) else abs(value) > _EXACT_FLOAT
                if large and _is_rounded(value):
                    self.rounded = value
        elif self.odd is None and not (
            # 007 and numbers too large for a numeric feature are numbers all the same.
            isinstance(value, int | float) or (isinstance(value, str) and _NUMBER.fullmatch(value))
        ):
            self.odd = row, repr(value)[:_SAID]
        if found != self.dtype:
            are_numbers = found in _NUMBERS and self.dtype in _NUMBERS
            self.dtype = found if self.dtype is None else "float32" if are_numbers else "string"

    def to_spec(self, name: str, rows: int, declared: "Declared | None") -> FeatureSpec:
        """Return the feature that the column becomes in a source of `rows` rows."""
        least = 0 if self.lists < rows else self.shortest
        if declared is not None and not declared.grows:
            _, dtype, shape, each, kind, _ = declared
            if shape or (shape == () and self.rows == rows):
                return FeatureSpec(name, dtype, shape)
            if shape == ():
                return FeatureSpec(name, dtype, None, lengths=(0, 1))
            if each is None:
                if len(self.each) > 1:
                    shapes = " and ".join(map(str, map(list, sorted(self.each))))
                    raise SourceError(f"the column {name!r} has items of the shapes {shapes}. Expected one shape")
                each = next(iter(self.each), (2,))
            lengths = least, self.longest
            return FeatureSpec(
                name, dtype, None, lengths=lengths, item_shape=each or msgspec.UNSET, kind=kind or msgspec.UNSET
            )
        dtype = self.dtype or "string"
        if declared is not None:
            dtype = declared.dtype
        elif dtype == "int64" and self.holes:
            dtype = "float32"
        if self.each:
            if not self.flat and len(self.each) == 1 and dtype not in ("bytes", "string"):
                (each,) = self.each
                return FeatureSpec(name, dtype, None, lengths=(least, self.longest), item_shape=each)
            dtype = "string"  # each item is JSON
        if self.rows == rows:
            return FeatureSpec(name, dtype)
        counts = [1] if self.rows else []
        counts += [self.shortest, self.longest] if self.lists else []
        counts += [0] if self.rows + self.lists < rows else []
        return FeatureSpec(name, dtype, None, lengths=(min(counts), max(counts)))

    def iter_warnings(self, name: str, declared: "Declared | None") -> Iterator[str]:
        """Yield warnings of text that is mostly numbers, of nulls in lists, and of lost digits."""
        if self.holes:
            is_text = (self.dtype if declared is None else declared.dtype) in _TEXT
            yield (
                f"{name} has {self.holes:,} nulls in lists, the first in row {self.first_hole}: each is "
                + ("empty text" if is_text else "NaN, and the column float32")
            )
        if declared is not None:
            return
        if self.each and (self.flat or len(self.each) > 1):
            yield (f"{name} is text: its nested lists have several shapes. Declare one, like --column {name}:int64[,2]")
            return
        if self.dtype == "string" and self.odd is not None and self.numbers * 2 > self.values:
            row, value = self.odd
            yield f"{name} is text: row {row} says {value}; {self.numbers:,} of {self.values:,} are numbers"
        is_float = self.dtype == "float32" or (self.dtype == "int64" and self.holes)
        if is_float and self.rounded is not None:
            said, (becomes,) = str(self.rounded)[:_SAID], _to_float32(float(self.rounded))
            yield (
                f"{name} is float32, which keeps {_KEPT_DIGITS} digits: {said} becomes {becomes}. Whole numbers alone "
                "keep all digits"
            )


class ColumnTypes:
    """Learns the type of each column from all of its values: text that is all whole numbers is int64, and so on.

    Floats without a fraction are whole numbers: pandas writes 7 as `7.0` in a column that lacks a value. The type holds
    all values of the column: float32 for whole numbers and fractions together, strings if there is anything else or a
    number that is too large. A column with lists or missing values has lists of any length. A list keeps its places:
    null among numbers is NaN, which makes them float32, and null among texts is "".
    """

    def __init__(self, declared: Sequence[Declared] = (), of_boxes: Sequence[str] = ()) -> None:
        self._columns: dict[str, _Column] = {}
        self._declared = {each.name: each for each in declared}
        self._of_boxes = of_boxes  # columns with a value for each box, where null is a missing value
        self._met = set[str]()  # all columns, if some are declared
        self._rows = 0

    def learn(self, values: Mapping[str, Any] | None) -> tuple[dict[str, Any] | None, tuple[str, str] | None]:
        """Record a row's values. Return them with declared columns converted, as plain data, and what is wrong.

        Plain data is None, numbers, text, bytes, and lists of these. Any other structure becomes JSON.

        A row with a value that does not fit its declaration is a reject, with the returned reason and message. It does
        not affect types: one bad number would turn its column into lists of 0 or 1 numbers.

        Raises:
            SourceError: a column has no name, or one that tpufeed or its loaders use themselves.
        """
        if self._declared:
            values, problem = self._convert(values or {})
            if problem is not None:
                return None, problem
        self.count(values)
        return None if values is None else {name: _to_plain(value) for name, value in values.items()}, None

    def forget(self) -> None:
        """Forget all rows, but not the names of their columns: only the rows that `count` is given next decide."""
        self._columns.clear()
        self._rows = 0

    def count(self, values: Mapping[str, Any] | None) -> None:
        """Record a row's values, which are those of declared columns already. Raises as `learn` does."""
        self._rows += 1
        for name, value in (values or {}).items():
            column = self._columns.get(name)
            if column is None:
                if name in OWN_NAMES:
                    raise SourceError(f"a column is called {name!r}, like a feature that tpufeed writes. Rename it")
                if name in LOADERS_NAMES:
                    raise SourceError(
                        f"a column is called {name!r}, which loaders use themselves. Rename it: --rename "
                        f"{name}={name}_column"
                    )
                if not name or name.encode("utf-8", "replace").decode() != name:
                    raise SourceError(f"a column is called {name!r}. Name it in UTF-8")
                column = self._columns[name] = _Column()
            column.add(value, self._rows)

    def _convert(self, values: Mapping[str, Any]) -> tuple[Mapping[str, Any], tuple[str, str] | None]:
        self._met.update(values)
        converted, problem = dict(values), None
        for name, declared in self._declared.items():
            try:
                converted[name] = declared.convert(converted.get(name))
            except BadValue as error:
                reason = "bad_column" if declared.kind is None else "bad_box"
                said = f"is {declared.dtype} in the dataset" if declared.grows else f"was declared as {declared}"
                said = said if declared.each is not None else f"is for {declared.kind}"
                problem = problem or (reason, f"the column {name!r} {error}. It {said}")
        for name in self._of_boxes:
            value = values.get(name)
            if isinstance(value, list | tuple) and None in value:
                found = [item for item in value if item is not None]
                has = f"{str(found)[:_SAID]}, {len(found)} for the {len(value)} boxes, and nulls"
                problem = problem or ("bad_box", f"the column {name!r} has {has}. Expected a value for each box")
        return converted, problem

    def schema(self, needs_all: bool = True) -> tuple[FeatureSpec, ...]:
        """Return the features in order of appearance. Raises OptionError if one is missing and `needs_all`."""
        missing = self._declared.keys() - self._met
        if missing and needs_all:
            have = ", ".join(sorted(self._met)) or "none"
            raise OptionError(
                f"no sample has a column {min(missing)!r}. Its further columns are: {have} (columns of images, labels "
                "and splits do not count)"
            )
        return tuple(
            column.to_spec(name, self._rows, self._declared.get(name))
            for name, column in self._columns.items()
            if name not in missing
        )

    def iter_warnings(self) -> Iterator[str]:
        """Yield warnings of columns whose types may not be what the user meant."""
        for name, column in self._columns.items():
            yield from column.iter_warnings(name, self._declared.get(name))

    def iter_split_warnings(self) -> Iterator[str]:
        """Yield a warning of a column with the names of splits, which nobody has asked for."""
        for name, column in self._columns.items():
            # PublicTest, as some contests have it, has two words.
            said = [splits_mentioned([re.sub("([a-z])([A-Z])", r"\1 \2", text)]) for text in column.texts]
            if len(column.texts) <= _MOST_TEXTS and all(said) and len(set[str]().union(*said)) > 1:
                counts = ", ".join(f"{text} {count:,}" for text, count in column.texts.most_common())
                yield (
                    f"the column {name} names splits ({counts}), and all samples become train: pass --split-by "
                    f"{shlex.quote(name)}, or --splits train=1 if that is meant"
                )


def encode_values(
    values: Mapping[str, Any] | None, schema: Sequence[FeatureSpec]
) -> tuple[tuple[ColumnValue, ...], ...]:
    """Return a row's values as the plan holds them, in the order of `schema`, with missing ones empty."""
    encoded = list[tuple[ColumnValue, ...]]()
    for spec in schema:
        value = (values or {}).get(spec.name)
        if spec.is_raw:
            packed = np.array(() if value is None else value, np.dtype(spec.dtype).newbyteorder("<")).tobytes()
            encoded.append((base64.b64encode(packed).decode(),))
            continue
        items = value if isinstance(value, list | tuple) else [] if _is_missing(value) else [value]
        if spec.each or (spec.shape is not None and len(spec.shape) > 1):
            items = flatten(items)
        encoded.append(tuple(_encode_item(item, spec.dtype) for item in items))
    return tuple(encoded)


def decode_values(values: Sequence[Sequence[ColumnValue]], schema: Sequence[FeatureSpec]) -> dict[str, Feature]:
    """Return the features of a row that `encode_values` made."""
    features = dict[str, Feature]()
    for items, spec in zip(values, schema, strict=True):
        kind = spec.stored_kind
        if spec.lengths == (0, 0) and not spec.is_raw:  # no row has a type. A later version with values does
            features[spec.name] = Feature(None, ())
        elif kind == "int64":
            features[spec.name] = Feature("int64", [int(item) for item in items])
        elif kind == "float":
            features[spec.name] = Feature("float", [float(item) for item in items])
        elif spec.dtype == "string":
            features[spec.name] = Feature("bytes", [str(item).encode() for item in items])
        else:
            features[spec.name] = Feature("bytes", [base64.b64decode(str(item)) for item in items])
    return features


def _tensor_shape(value: Sequence[Any]) -> tuple[int, ...] | None:
    """Return the shape of nested lists of numbers with two axes or more, or None for other values."""
    return _shape_of(value) if value and isinstance(value[0], list | tuple) else None


def _shape_of(value: Any, most: int = _MOST_AXES) -> tuple[int, ...] | None:
    if value is None or isinstance(value, int | float):
        return ()
    if not isinstance(value, list | tuple) or not value or not most:
        return None
    shapes = {_shape_of(item, most - 1) for item in value}
    inner = shapes.pop() if len(shapes) == 1 else None
    return None if inner is None else (len(value), *inner)


def flatten(items: Sequence[Any]) -> list[Any]:
    """Return the values of nested lists in C order."""
    return [value for item in items for value in (flatten(item) if isinstance(item, list | tuple) else (item,))]


def as_text(values: Mapping[str, Any]) -> str:
    """Return plain values as JSON, whose length estimates their bytes in a record."""
    return json.dumps(values, default=_to_json)


def long_as_text(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return plain values with integers of more than 64 bits as text, which their column will be anyway."""

    def is_long(value: Any) -> bool:
        return any(isinstance(item, int) and not _fits_int(item) for item in flatten([value]))

    def shorten(item: Any) -> Any:
        return str(item) if isinstance(item, int) else json.dumps(item) if isinstance(item, list | tuple) else item

    longs = {name: value for name, value in values.items() if is_long(value)}
    return {**values, **{n: [*map(shorten, v)] if isinstance(v, list | tuple) else str(v) for n, v in longs.items()}}


def _to_json(value: Any) -> Any:
    return {"base64": base64.b64encode(value).decode()} if isinstance(value, bytes) else str(value)


def _to_plain(value: Any, in_list: bool = False) -> Any:
    if isinstance(value, list | tuple) and not in_list:
        if _tensor_shape(value) is not None:
            return value
        return [_to_plain(item, in_list=True) for item in value]
    if isinstance(value, dict | list | tuple):
        return json.dumps(value, default=_to_json)
    return value if value is None or isinstance(value, str | int | float | bytes) else str(value)


def _is_missing(value: Any) -> bool:
    return value is None or value == ""


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
    """Return a whole number with all its digits, even if it is written as a float."""
    return int(item.partition(".")[0] if isinstance(item, str) else item)


def _is_rounded(value: Any) -> bool:
    """Return true if float32 changes a number of many digits (seconds since 1970). Few digits (6.02e23) are fine."""
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
    if item is None:  # within a list
        return "nan" if dtype in ("float32", "float16") else ""
    if dtype in ("int64", "int32", "uint16", "uint8", "bool"):
        return _to_int(item)
    if dtype in ("float32", "float16"):
        number = float(item)
        return number if math.isfinite(number) else str(number)  # JSON has no nan
    if dtype == "bytes":
        return base64.b64encode(item).decode()
    if isinstance(item, list | tuple):  # lists of several shapes
        item = json.dumps(item)
    return item.decode("utf-8", "replace") if isinstance(item, bytes) else str(item)
