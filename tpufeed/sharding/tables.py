"""A table of images: CSV, TSV, JSON lines or Parquet with a column of paths."""

import codecs
import csv
import io
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, BinaryIO

from tpufeed.dataset.naming import check_split_name
from tpufeed.errors import (
    AccessError,
    MissingExtraError,
    NoInputsError,
    OptionError,
    SourceError,
    StoreError,
    UnavailableError,
)
from tpufeed.sharding.inputs import Files
from tpufeed.sharding.rows import Label, Row, resolve
from tpufeed.storage.reading import open_compared
from tpufeed.storage.store import BROKEN_LINK, ObjectInfo, Store

if TYPE_CHECKING:
    import _csv

SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet")
_IMAGE_COLUMNS = ("path", "image", "file", "filename", "filepath", "file_name", "image_path", "url")
_LABEL_COLUMNS = ("label", "class", "category", "cls")
LOADERS_OWN = ("image", "sample", "mask")
_SEPARATORS = {
    ".csv": {";": "with commas, or with tabs as .tsv", "\t": "with commas, or under a name that ends in .tsv"},
    ".tsv": {",": "with tabs, or under a name that ends in .csv", ";": "with tabs"},
}
_BYTES_AT_ONCE = 1 << 20
_LONGEST_FIELD = 16 << 20  # characters: the mask of an object as text takes up to some hundred thousand
_BEYOND_PYTHON = (ValueError, OverflowError, LookupError)  # a year beyond 9999, a time zone that is not known here
_ROWS_AT_ONCE = 2048

Record = Mapping[str, Any]


class TableColumns:
    """Columns of a table that are image, label and split. Raises OptionError where they cannot be told."""

    def __init__(self, where: str, names: Sequence[str], image: str | None, label: str, split: str | None) -> None:
        self._where, self._names = where, names
        self.image = self._find("image", image) if image else self._guess("image", _IMAGE_COLUMNS)
        if self.image is None:
            raise OptionError(
                f"{where}: none of its columns ({', '.join(names)}) is called {', '.join(_IMAGE_COLUMNS[:4])} or the "
                f"like; say which one holds the paths of the images: --image COLUMN{_say_separator(names, where)}"
            )
        self.label = (
            None
            if label == "none"
            else self._guess("label", _LABEL_COLUMNS)
            if label == "auto"
            else self._find("label", label)
        )
        self.split = None if split is None else self._find("split", split)

    def check_others(self, records: Iterable[Record]) -> None:
        """Raises SourceError for a further column that has the name of what a loader gives itself."""
        names = set[str]().union(*records) - {self.image, self.label, self.split}
        for name in sorted(names.intersection(LOADERS_OWN if self.label is None else (*LOADERS_OWN, "label"))):
            taken = {"image": self.image, "label": self.label}.get(name)
            as_what = "what loaders give themselves" if taken is None else f"the {name}, which {taken!r} is taken for"
            raise SourceError(
                f"{self._where}: a column is called {name!r}, as {as_what}; no loader could be asked for it: rename it "
                f"in the table, like {name}_column"
            )

    def others(self, record: Record) -> Record:
        """The values of a record that are neither image, label nor split."""
        return {name: value for name, value in record.items() if name not in (self.image, self.label, self.split)}

    def _find(self, what: str, name: str) -> str:
        if name not in self._names:
            raise OptionError(
                f"{self._where} has no column {name!r} for the {what}; it has "
                f"{', '.join(self._names)}{_say_separator(self._names, self._where)}"
            )
        return name

    def _guess(self, what: str, candidates: Sequence[str]) -> str | None:
        for candidate in candidates:
            found = [name for name in self._names if name.lower() == candidate]
            if len(found) > 1:
                raise OptionError(
                    f"{self._where}: the columns {', '.join(found)} differ by capitals only; say which one: --{what} "
                    f"{found[0]}"
                )
            if found:
                return found[0]
        return None


def iter_table(store: Store, name: str, image: str | None, label: str, split: str | None) -> Iterator[Row]:
    """The rows of the table `name`.

    Args:
        store: where the table lies; paths in it are relative to this.
        name: of the table; its ending says what it is.
        image: the column of paths, or None for one that is called path, image, file or the like.
        label: the column of labels; "auto" for one that is called label, class or the like; "none" for no labels.
        split: the column of splits, or None.

    Raises:
        SourceError: the table cannot be read; names the row.
        OptionError: it does not have these columns.
        NoInputsError: it has no rows.
        UnavailableError, AccessError: a store does not answer, or refuses.
    """
    where = f"{store.url}/{name}"
    files = Files(store.url)
    with _open(store, name) as file:
        records = _iter_records(file, name, where)
        first = list(itertools.islice(records, _ROWS_AT_ONCE))
        if not first:
            raise NoInputsError(f"{where}: the table has no rows")
        names = list(dict.fromkeys(itertools.chain.from_iterable(first)))  # JSON lines may leave some out
        columns = TableColumns(where, names, image, label, split)
        numbered = enumerate(itertools.chain(first, records), 1)
        while chunk := list(itertools.islice(numbered, _ROWS_AT_ONCE)):
            columns.check_others(record for _, record in chunk)
            yield from _to_rows(chunk, columns, files, where)


def iter_files(store: Store, name: str, image: str | None) -> Iterator[str]:
    """The files that the rows of the table `name` name, as inputs have them. None is looked at.

    Raises as `iter_table` does.
    """
    where = f"{store.url}/{name}"
    with _open(store, name) as file:
        records = _iter_records(file, name, where)
        first = list(itertools.islice(records, _ROWS_AT_ONCE))
        names = list(dict.fromkeys(itertools.chain.from_iterable(first)))
        column = TableColumns(where, names, image, "none", None).image
        for record in itertools.chain(first, records):
            path = _to_path(record.get(column))  # type: ignore[arg-type]  # there is one
            if isinstance(path, str) and path:
                yield resolve(store.url, path)


@contextmanager
def _open(store: Store, name: str) -> Iterator[BinaryIO]:
    try:
        with open_compared(store, name) as file:
            yield file
    except (UnavailableError, AccessError):
        raise
    except StoreError as error:
        raise SourceError(f"{store.url}/{name} cannot be read: {error}") from error


def _to_rows(chunk: Sequence[tuple[int, Record]], columns: TableColumns, files: Files, where: str) -> Iterator[Row]:
    paths = [_to_path(record.get(columns.image)) for _, record in chunk]  # type: ignore[arg-type]  # there is one
    found = files.stats([resolve(files.base.url, path) for path in paths if isinstance(path, str) and path])
    stats = iter(found)
    for (number, record), path in zip(chunk, paths, strict=True):
        row_split = _to_split(record, columns, f"{where}, row {number}")
        others = columns.others(record)
        label: Label = None
        if columns.label is not None:
            try:
                label = to_label(record.get(columns.label))
            except SourceError as error:
                raise SourceError(f"{where}, row {number}: {error}") from None
        if not isinstance(path, str) or not path:
            found_type = "nothing" if path in (None, "") else f"a value of type {type(path).__name__}"
            message = f"row {number} of {where} has {found_type} in its column {columns.image!r}; expected a path"
            problem = ("unreadable", message)
            yield Row(f"{where}, row {number}", 0, "", label, row_split, columns=others, problem=problem)
            continue
        file = resolve(files.base.url, path)
        problem_found = _problem(info := next(stats), number, where)
        size, version = (info.size_bytes, info.version) if isinstance(info, ObjectInfo) else (0, "")
        yield Row(path, size, version, label, row_split, "" if file == path else file, 0, others, problem_found)


def _to_path(value: Any) -> Any:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value  # some writers of Parquet do so


def _problem(info: ObjectInfo | Exception | None, number: int, where: str) -> tuple[str, str] | None:
    if isinstance(info, UnavailableError | AccessError):  # says nothing of the file
        raise info
    if isinstance(info, Exception):
        return "unreadable", f"row {number} of {where}: {info}"
    if info is None or info.version == BROKEN_LINK:
        return "unreadable", f"there is no such file; row {number} of {where} names it"
    return None


def _to_split(record: Record, columns: TableColumns, where: str) -> str | None:
    if columns.split is None:
        return None
    value = record.get(columns.split)
    if value is None or value == "" or str(value).lower() == "nan":
        raise SourceError(f"{where}: the column {columns.split!r} says no split; fill it in, or leave the row out")
    try:
        return check_split_name(str(value))
    except OptionError as error:
        raise OptionError(f"{where}, column {columns.split!r}: {error}") from None


def to_label(value: Any) -> Label:
    """A label as a name or an id; None where there is none. Numbers that pandas made floats are ids again.

    Raises:
        SourceError: several labels, which are no class.
    """
    if value is None or value == "" or value != value:  # noqa: PLR0124  # NaN
        return None
    if isinstance(value, list | tuple | dict):
        raise SourceError(
            f"{str(value)[:60]} is no label: a sample has one class. To keep the values as a further column, say "
            "--label none; or call it otherwise, and say which column is the label"
        )
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and -(1 << 63) <= value < 1 << 63:
        return value
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _iter_records(file: BinaryIO, name: str, where: str) -> Iterator[Record]:
    suffix = name[name.rindex(".") :].lower()
    if suffix == ".parquet":
        return _iter_parquet(file, where)
    text = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
    records = (
        _iter_json(text, where)
        if suffix in (".jsonl", ".ndjson")
        else _iter_csv(text, "\t" if suffix == ".tsv" else ",", where)
    )
    return _checked(file, text, records, where)


def _checked(file: BinaryIO, text: io.TextIOWrapper, records: Iterable[Record], where: str) -> Iterator[Record]:
    with text:
        try:
            yield from records
        except UnicodeDecodeError as error:
            raise _not_utf8(file, error, where) from error


def _not_utf8(file: BinaryIO, error: UnicodeDecodeError, where: str) -> SourceError:
    """Return the error for bytes that are not UTF-8. Its line follows from how far the file was read."""
    left = place = file.tell() - len(error.object) + error.start
    wanted = "'CSV UTF-8'" if where.lower().endswith(".csv") else "UTF-8"
    file.seek(0)
    if not place and file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        return SourceError(
            f"{where}: not UTF-8: it looks like UTF-16, as Excel's 'Unicode text' is; save it as {wanted}"
        )
    line = 1
    while left:
        block = file.read(min(left, _BYTES_AT_ONCE))
        line, left = line + block.count(b"\n"), left - len(block) if block else 0
    found = error.object[error.start : error.end]
    return SourceError(f"{where}, line {line}: not UTF-8: {error.reason} ({found!r}); save it as {wanted}")


def _iter_csv(text: io.TextIOWrapper, delimiter: str, where: str) -> Iterator[Record]:
    # A setting of the whole process: more than it had is no harm to others.
    csv.field_size_limit(max(csv.field_size_limit(), _LONGEST_FIELD))
    reader = csv.reader(text, delimiter=delimiter, strict=True)
    rows = reader if delimiter == "," else _iter_lines(reader, where)
    begin = 0  # the line before the row that is being read
    try:
        first = next((fields for fields in rows if fields), [])
        begin = reader.line_num
        header = [name or f"column_{place}" for place, name in enumerate(first)]  # as pandas' index has none
        _check_names(header, where)
        for fields in rows:
            if len(fields) not in (0, len(header)):
                lines = (
                    f"line {begin + 1}" if reader.line_num == begin + 1 else f"lines {begin + 1} to {reader.line_num}"
                )
                raise SourceError(
                    f"{where}, {lines}: {len(fields)} fields; the header has {len(header)} "
                    f"({', '.join(header)}){_say_separator(header, where)}"
                )
            begin = reader.line_num
            if not fields:
                continue
            yield dict(zip(header, (field or None for field in fields), strict=True))
    except csv.Error as error:
        if reader.line_num > begin + 1:
            raise SourceError(
                f"{where}, line {begin + 1}: a quote that opens a field of the row that begins here is not closed "
                f"where it should be ({error}, line {reader.line_num}); close it, and double quotes within the field"
            ) from error
        raise SourceError(f"{where}, line {reader.line_num}: {error}") from error


def _iter_lines(reader: "_csv.Reader", where: str) -> Iterator[list[str]]:
    """The rows of a TSV, a line each: a quote that begins a field would take rows in, up to the next quote."""
    line = 0
    try:
        for fields in reader:
            if reader.line_num > line + 1:
                raise csv.Error("a field spans lines")
            line = reader.line_num
            yield fields
    except csv.Error as error:
        if reader.line_num > line + 1:
            raise SourceError(
                f"{where}, line {line + 1}: a field begins with a quote that does not end in its line; put it in "
                f'quotes and double those within ("""5 inch"), or save the table as .csv'
            ) from error
        raise


def _say_separator(names: Sequence[str], where: str) -> str:
    """Return a sentence on a single name that holds what other programs separate columns by."""
    suffix = where[-4:].lower()
    for separator, remedy in _SEPARATORS.get(suffix, {}).items():
        if len(names) == 1 and separator in names[0]:
            return f". The file seems to be separated by {separator!r}; save it {remedy}"
    return ""


def _check_names(names: Sequence[str], where: str) -> None:
    if len(set(names)) < len(names):
        raise SourceError(f"{where}: two columns have the same name: {', '.join(names)}")


def _iter_json(text: io.TextIOWrapper, where: str) -> Iterator[Record]:
    for number, line in enumerate(text, 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line.rstrip("\r\n"))
        except (ValueError, RecursionError) as error:
            # The decoder counts lines within this one.
            said = f"{error.msg} (column {error.pos + 1})" if isinstance(error, json.JSONDecodeError) else error
            raise SourceError(f"{where}, line {number}: not JSON: {said}") from error
        if not isinstance(record, dict):
            raise SourceError(f"{where}, line {number}: {line.strip()[:60]} is no object; expected one a line")
        yield record


def _iter_parquet(file: BinaryIO, where: str) -> Iterator[Record]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise MissingExtraError("pyarrow", "parquet") from error
    try:
        rows = parquet.ParquetFile(file)
        _check_names(rows.schema_arrow.names, where)
        for batch in rows.iter_batches(_ROWS_AT_ONCE):
            for values in zip(*map(_to_python, batch.columns), strict=True):
                yield dict(zip(batch.schema.names, values, strict=True))
    except (SourceError, StoreError):
        raise
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError) as error:
        raise SourceError(f"{where}: not a readable Parquet file: {error}") from error


def _to_python(array: Any) -> list[Any]:
    """The values of an Arrow array; as text where no type of Python holds them. Never by way of pandas.

    pyarrow itself wants pandas for nanoseconds, in columns and within lists, structs and maps.
    """
    from pyarrow import types

    kind = array.type
    if "[ns" not in str(kind):
        with suppress(*_BEYOND_PYTHON):
            return list(array.to_pylist())
    elif types.is_temporal(kind):
        with suppress(*_BEYOND_PYTHON):
            return list(_iter_times(array))
    if types.is_struct(kind):
        names = [kind.field(place).name for place in range(kind.num_fields)]
        rows = zip(*map(_to_python, array.flatten()), strict=True)
        valid = array.is_valid().to_pylist()
        return [dict(zip(names, row, strict=True)) if there else None for there, row in zip(valid, rows, strict=True)]
    if types.is_nested(kind):
        lists = [_to_python(scalar.values) if scalar.is_valid else None for scalar in array]
        if types.is_map(kind):
            return [None if items is None else [tuple(item.values()) for item in items] for items in lists]
        return lists
    return [_to_text(scalar) for scalar in array]


def _iter_times(array: Any) -> Iterator[Any]:
    """Nanoseconds as Python's times, dates or durations of microseconds; as text where there is more to them."""
    import pyarrow
    from pyarrow import types

    kind = array.type
    micro = (
        pyarrow.timestamp("us", kind.tz)
        if types.is_timestamp(kind)
        else pyarrow.duration("us")
        if types.is_duration(kind)
        else pyarrow.time64("us")
    )
    ticks = array.cast(pyarrow.int64()).to_pylist()
    micros = [None if tick is None else tick // 1000 for tick in ticks]
    for tick, time in zip(ticks, pyarrow.array(micros, pyarrow.int64()).cast(micro).to_pylist(), strict=True):
        if tick is None or tick % 1000 == 0:
            yield time
            continue
        if isinstance(time, timedelta):
            seconds = whole = str(time - timedelta(microseconds=time.microseconds))
        else:
            seconds, whole = str(time.replace(microsecond=0, tzinfo=None)), str(time.replace(microsecond=0))
        yield f"{seconds}.{tick % 10**9:09}{whole[len(seconds) :]}"  # before the time zone


def _to_text(scalar: Any) -> Any:
    """A value, or its text where it is a time that Python's types cannot hold."""
    import pyarrow
    from pyarrow import types

    try:
        return scalar.as_py()
    except _BEYOND_PYTHON:
        kind = scalar.type
        if not types.is_temporal(kind):
            raise
        utc = types.is_timestamp(kind) and kind.tz is not None
        if utc:
            scalar = pyarrow.scalar(scalar.value, pyarrow.timestamp(kind.unit))
        unit = "Z" if utc else f" {kind.unit}" if types.is_duration(kind) else ""
        return f"{scalar.cast(pyarrow.string()).as_py()}{unit}"
