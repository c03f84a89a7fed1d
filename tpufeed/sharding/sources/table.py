"""A table of images: CSV, TSV, JSON lines or Parquet with a column of paths."""

import codecs
import csv
import io
import itertools
import json
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from tpufeed.build.item import ImageRef, Item, Label, Labels
from tpufeed.dataset.naming import check_split_name
from tpufeed.errors import (
    ImageError,
    NoInputsError,
    OptionError,
    SourceError,
    TpufeedError,
    url_identity,
)
from tpufeed.sharding.inputs import Files
from tpufeed.sharding.options import ImageColumn, ShardOptions
from tpufeed.sharding.row_groups import parquet_errors
from tpufeed.sharding.sources.source import Found, Place, Source, identity_of, listing, resolve
from tpufeed.storage.reading import open_compared, open_object
from tpufeed.storage.store import BROKEN_LINK, ObjectInfo, Store

if TYPE_CHECKING:
    import _csv

SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet")
IMAGE_COLUMNS = ("path", "image", "file", "filename", "filepath", "file_name", "image_path", "url")
LABEL_COLUMNS = ("label", "class", "category", "cls")
LOADERS_OWN = ("image", "sample", "mask")
# Names of columns that hold a side of a box, in small letters and without "_" and "bbox".
_SIDES = ({"xmin", "ymin"}, {"x1", "y1"}, {"x", "y", "w", "h"}, {"x", "y", "width", "height"}, {"left", "top"})
_BOX_NAMES = frozenset(("bbox", "box", "boundingbox"))
_SEPARATORS = {
    ".csv": {";": "with commas, or with tabs as .tsv", "\t": "with commas, or under a name that ends in .tsv"},
    ".tsv": {",": "with tabs, or under a name that ends in .csv", ";": "with tabs"},
}
_BYTES_AT_ONCE = 1 << 20
_LONGEST_FIELD = 16 << 20  # characters: the mask of an object as text takes up to some hundred thousand
_BEYOND_PYTHON = (ValueError, OverflowError, LookupError)  # a year beyond 9999, a time zone that is not known here
_ROWS_AT_ONCE = 2048
_NO_FILE = "there is no such file"
_MOST_FIELDS = 64  # of a column of objects, which is else taken for one whose keys are data
_MOST_LEVELS = 8
_MANY_SHOWN = 8

Record = Mapping[str, Any]


class Embedded(NamedTuple):
    """An image within a table, in the place of its path: how its sample is called, and where its bytes lie."""

    name: str
    ref: ImageRef


class TableColumns:
    """Columns of a table that are image, label, split and further images. Raises OptionError where they are unknown."""

    def __init__(  # noqa: PLR0913, PLR0917  # those of a table, and what it holds
        self,
        where: str,
        names: Sequence[str],
        image: str | None,
        label: str,
        split: str | None,
        pictures: Sequence[ImageColumn] = (),
        expected: str = "a path",
    ) -> None:
        self._where, self._names, self.expected = where, names, expected
        self.image = self._find("image", image) if image else self._guess("image", IMAGE_COLUMNS)
        if self.image is None:
            raise OptionError(
                f"{where}: none of its columns ({', '.join(names)}) is called {', '.join(IMAGE_COLUMNS[:4])} or the "
                f"like; say which one holds the paths of the images: --image COLUMN{_say_separator(names, where)}"
            )
        self.label = (
            None
            if label == "none"
            else self._guess("label", LABEL_COLUMNS)
            if label == "auto"
            else self._find("label", label)
        )
        self.split = None if split is None else self._find("split", split)
        self.pictures = [(picture, self._find(f"image column {picture.name}", picture.column)) for picture in pictures]
        self._taken = {self.image, self.label, self.split, *(column for _, column in self.pictures)}

    @property
    def files(self) -> list[str]:
        """The columns of paths: that of the image comes first."""
        return [str(self.image), *(column for _, column in self.pictures)]

    def check_others(self, records: Iterable[Record]) -> None:
        """Raises SourceError for a further column that has the name of what a loader gives itself."""
        names = set[str]().union(*records) - self._taken
        for picture, _ in self.pictures:
            if picture.name in names:
                raise SourceError(
                    f"{self._where}: a column is called {picture.name!r}, as the image column of {picture.column!r}; "
                    "give that another name"
                )
        for name in sorted(names.intersection(LOADERS_OWN if self.label is None else (*LOADERS_OWN, "label"))):
            taken = {"image": self.image, "label": self.label}.get(name)
            as_what = "what loaders give themselves" if taken is None else f"the {name}, which {taken!r} is taken for"
            raise SourceError(
                f"{self._where}: a column is called {name!r}, as {as_what}; no loader could be asked for it: rename it "
                f"in the table, like {name}_column"
            )

    def others(self, record: Record) -> Record:
        """The values of a record that are neither label nor split nor the path of an image."""
        return {name: value for name, value in record.items() if name not in self._taken}

    def _find(self, what: str, name: str) -> str:
        if name not in self._names:
            raise OptionError(
                f"{self._where} has no column {name!r} for the {what}; it has "
                f"{', '.join(self._names)}{_say_separator(self._names, self._where)}"
            )
        return name

    def _guess(self, what: str, candidates: Sequence[str]) -> str | None:
        for candidate in candidates:
            found = [name for name in self._names if name.strip().lower() == candidate]
            if len(found) > 1:
                how = "capitals" if all(name == name.strip() for name in found) else "blanks or capitals"
                raise OptionError(
                    f"{self._where}: the columns {', '.join(found)} differ by {how} only; say which one: --{what} "
                    f"{shlex.quote(found[0])}"
                )
            if found:
                return found[0]
        return None


class TableSource(Source):
    """The rows of some tables: paths below their folder, elsewhere, or URLs."""

    kind, suffixes = "table", SUFFIXES
    spells_files = True

    def __init__(self, place: Place, options: ShardOptions) -> None:
        if options.split_by == "folder":
            raise OptionError("a table has no folders to split by; name one of its columns")
        self._store, self._files, self._options, self.base = place.store, place.files, options, place.store.url
        self.splits = options.split_by is not None

    def iter_items(self, found: Found) -> Iterator[Item]:
        files = Files(self.base)
        for info in self._files:
            with self._open(info.name) as (columns, records):
                numbered = enumerate(records, 1)
                while chunk := list(itertools.islice(numbered, _ROWS_AT_ONCE)):
                    columns.check_others(record for _, record in chunk)
                    yield from to_items(chunk, columns, files, f"{self.base}/{info.name}")

    def iter_files(self) -> Iterator[str]:
        """Yield what the rows name; no file is looked at."""
        for info in self._files:
            with self._open(info.name) as (columns, records):
                for path in (_to_path(record.get(column)) for record in records for column in columns.files):
                    if isinstance(path, str) and path:
                        yield resolve(self.base, path)

    @contextmanager
    def _open(self, name: str) -> Iterator[tuple[TableColumns, Iterator[Record]]]:
        where, options = f"{self.base}/{name}", self._options
        with listing(f"{where} cannot be read"), open_compared(self._store, name) as file:
            records = iter_flat(_iter_records(file, name, where), where)
            first = list(itertools.islice(records, _ROWS_AT_ONCE))
            if not first:
                raise NoInputsError(f"{where}: the table has no rows")
            names = list(dict.fromkeys(itertools.chain.from_iterable(first)))  # JSON lines may leave some out
            columns = TableColumns(where, names, options.image, options.label, options.split_by, options.pictures)
            yield columns, itertools.chain(first, records)

    def iter_warnings(
        self, found: Found, classes: Sequence[str], columns: Sequence[str], labelled: bool
    ) -> Iterator[str]:
        if self._options.label == "auto" and not labelled and columns:
            yield say_unlabelled(columns)


def say_unlabelled(columns: Sequence[str]) -> str:
    """Return a sentence on rows without labels, whose columns may have been meant."""
    more = f" and {len(columns) - _MANY_SHOWN:,} more" if len(columns) > _MANY_SHOWN else ""
    return (
        f"no labels: none of the columns {', '.join(columns[:_MANY_SHOWN])}{more} is called label, class ...; give "
        "--label COLUMN, or --label none"
    )


def to_items(chunk: Sequence[tuple[int, Record]], columns: TableColumns, files: Files, where: str) -> Iterator[Item]:
    """The rows of some numbered records of the table `where`, whose files are looked at."""
    base, names = files.base.url, columns.files
    paths = [_to_path(record.get(name)) for _, record in chunk for name in names]
    stats = iter(files.stats([resolve(base, path) for path in paths if isinstance(path, str) and path]))
    looked = (_look(path, base, stats) for path in paths)
    for number, record in chunk:
        row = f"row {number} of {where}"
        label: Label | Labels = None
        split = None
        try:
            if columns.label is not None:
                label = to_label(record.get(columns.label))
            if columns.split is not None:
                value = record.get(columns.split)
                split = "nan" if value is None or value == "" else str(value)
                if split.lower() == "nan":
                    raise SourceError(f"the column {columns.split!r} says no split; fill it in, or leave the row out")
                check_split_name(split)
        except (SourceError, OptionError) as error:
            raise type(error)(f"{where}, row {number}: {error}") from None
        others = columns.others(record)
        (path, ref, wrong), *further = itertools.islice(looked, len(names))
        problem = None
        if ref is None:
            path = url_identity(f"{where}, row {number}")
            problem = "unreadable", f"{row} has {wrong} in its column {columns.image!r}; expected {columns.expected}"
        elif wrong is not None:
            reason = wrong.reason if isinstance(wrong, ImageError) else "unreadable"
            problem = reason, f"{wrong}; {row} names it" if wrong == _NO_FILE else f"{row}: {wrong}"
        for (picture, column), (name, found, lack) in zip(columns.pictures, further, strict=True):
            if problem is None and lack is not None:
                said = f"{name!r}: {lack}" if found is not None else f"{lack}; expected {columns.expected}"
                reason = lack.reason if isinstance(lack, ImageError) else picture.missing
                problem = reason, f"{row}, column {column!r}: {said}"
        if ref is None:
            yield Item(path, 0, "", label, split, values=others, problem=problem)
            continue
        images = tuple(found for _, found, _ in further if found is not None) if problem is None else ()
        path = identity_of(base, path)
        file = "" if ref.file == path else ref.file
        yield Item(
            path,
            ref.bytes,
            ref.version,
            label,
            split,
            file,
            ref.offset,
            others,
            problem,
            images,
            row=ref.row,
            leaf=ref.leaf,
        )


def _look(
    path: Any, base: str, stats: Iterator[ObjectInfo | TpufeedError | None]
) -> tuple[Any, ImageRef | None, str | ImageError | None]:
    """Return a path, where its file lies, and what is wrong with either; takes the file's next one of `stats`."""
    if isinstance(path, Embedded):
        return path.name, path.ref, None
    if not isinstance(path, str) or not path:
        return path, None, "nothing" if path in (None, "") else f"a value of type {type(path).__name__}"
    file, info = resolve(base, path), next(stats)
    if isinstance(info, Exception):
        return path, ImageRef(file, 0, ""), info if isinstance(info, ImageError) else str(info)
    if info is None:
        return path, ImageRef(file, 0, ""), _NO_FILE
    return path, ImageRef(file, info.size_bytes, info.version), _NO_FILE if info.version == BROKEN_LINK else None


def _to_path(value: Any) -> Any:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value  # some writers of Parquet do so


def to_label(value: Any) -> Label | Labels:
    """A label as a name or an id, or a list of them; None where there is none. pandas' floats are ids again.

    Raises:
        SourceError: an object, or a list of lists, which are no classes.
    """
    if isinstance(value, list | tuple) and not any(isinstance(item, list | tuple) for item in value):
        return tuple(label for item in value if not isinstance(label := to_label(item), tuple))
    if value is None or value == "" or value != value:  # noqa: PLR0124  # NaN
        return None
    if isinstance(value, dict | list | tuple):
        raise SourceError(
            f"{str(value)[:60]} is no label: a sample has a class, or a list of classes. To keep the values as a "
            "further column, say --label none; or call it otherwise, and say which column is the label"
        )
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and -(1 << 63) <= value < 1 << 63:
        return value
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def iter_head(store: Store, name: str) -> Iterator[Record]:
    """The first records of the table `name`, of text those in its first MB. Raises as `TableSource.iter_items`."""
    where = f"{store.url}/{name}"
    with listing(f"{where} cannot be read"), open_object(store, name) as file:
        if not name.lower().endswith(".parquet"):
            head = file.read(_BYTES_AT_ONCE)
            whole = head if len(head) < _BYTES_AT_ONCE else head[: head.rfind(b"\n") + 1]
            yield from iter_flat(_iter_records(io.BytesIO(whole), name, where), where)
        else:
            yield from iter_flat(_iter_records(file, name, where), where)


def has_box(names: Iterable[str]) -> bool:
    """Return true where columns are called like the sides of one box, or like one box."""
    bare = {name.lower().replace("_", "") for name in names}
    return any(sides <= {name.removeprefix("bbox") for name in bare} for sides in _SIDES) or bool(bare & _BOX_NAMES)


def iter_flat(records: Iterator[Record], where: str) -> Iterator[Record]:
    """The records, with the fields of a column of objects as columns of their own: `objects.bbox`.

    Parquet files with images inside have them so as well. A column stays as it is if it has other values, too, or if
    its objects have so many keys that these are data.

    Raises:
        SourceError: a field is called as another column is.
    """
    first = list(itertools.islice(records, _ROWS_AT_ONCE))
    fields, kept = dict[str, set[str]](), set[str]()
    for record in first:
        for name, value in record.items():
            if isinstance(value, dict):
                fields.setdefault(name, set()).update(field for field, _ in _iter_fields(name, value))
            elif value is not None:
                kept.add(name)
    kept.update(name for name, found in fields.items() if len(found) > _MOST_FIELDS)
    for record in itertools.chain(first, records):
        if not any(isinstance(value, dict) or name in fields for name, value in record.items()):
            yield record
            continue
        flat: dict[str, Any] = {}
        for name, value in record.items():
            is_flat = name not in kept and (isinstance(value, dict) or (value is None and name in fields))
            for field, item in _iter_fields(name, value) if is_flat else [(name, value)]:
                if field in flat:
                    raise SourceError(f"{where}: two columns have the same name: {field}")
                flat[field] = item
        yield flat


def _iter_fields(name: str, value: Any, level: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield the values of an object, of objects in it and so on, by name; of a missing one nothing."""
    for key, item in (value or {}).items():
        if isinstance(item, dict) and level < _MOST_LEVELS:
            yield from _iter_fields(f"{name}.{key}", item, level + 1)
        else:
            yield f"{name}.{key}", item


def _iter_records(file: BinaryIO, name: str, where: str) -> Iterator[Record]:
    suffix = name[name.rindex(".") :].lower()
    if suffix == ".parquet":
        yield from _iter_parquet(file, where)
        return
    with io.TextIOWrapper(file, encoding="utf-8-sig", newline="") as text:
        try:
            if suffix in (".jsonl", ".ndjson"):
                yield from _iter_json(text, where)
            else:
                yield from _iter_csv(text, "\t" if suffix == ".tsv" else ",", where)
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
        has_blanks = any(name != name.strip() for name in first)
        if has_blanks:  # who writes `image, label` writes `a.jpg, cat`, and maybe `a.jpg, "cat, grey"`
            text.seek(0)
            reader = csv.reader(text, delimiter=delimiter, strict=True, skipinitialspace=True)
            rows = reader if delimiter == "," else _iter_lines(reader, where)
            first = [name.strip() for name in next(fields for fields in rows if fields)]
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
            values = map(str.strip, fields) if has_blanks else fields
            yield dict(zip(header, (value or None for value in values), strict=True))
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
    with parquet_errors(where, SourceError):
        from pyarrow import parquet

        rows = parquet.ParquetFile(file)
        _check_names(rows.schema_arrow.names, where)
        for batch in rows.iter_batches(_ROWS_AT_ONCE):
            for values in zip(*(to_python(column, where) for column in batch.columns), strict=True):
                yield dict(zip(batch.schema.names, values, strict=True))


def to_python(array: Any, where: str) -> list[Any]:
    """The values of an Arrow array; times that no type of Python holds as text. Never by way of pandas.

    pyarrow itself wants pandas for nanoseconds.
    """
    import pyarrow
    from pyarrow import types

    kind = array.type
    if "[ns" in str(kind):
        if not types.is_temporal(kind):
            raise SourceError(
                f"{where}: a column of {kind} has nanoseconds within lists or structs; store them as microseconds"
            )
        micro = (
            pyarrow.timestamp("us", kind.tz)
            if types.is_timestamp(kind)
            else pyarrow.duration("us")
            if types.is_duration(kind)
            else pyarrow.time64("us")
        )
        with suppress(pyarrow.ArrowInvalid):  # not all of them are whole microseconds
            array = array.cast(micro)
    if "[ns" not in str(array.type):
        with suppress(*_BEYOND_PYTHON):
            return list(array.to_pylist())
        if not types.is_temporal(kind):
            raise SourceError(f"{where}: a column of {kind} has a value that Python does not hold")
    if types.is_timestamp(kind) and kind.tz is not None:  # without a database of time zones: as UTC
        text = array.cast(pyarrow.int64()).cast(pyarrow.timestamp(array.type.unit)).cast(pyarrow.string()).to_pylist()
        return [None if value is None else f"{value}Z" for value in text]
    if types.is_duration(kind):  # Arrow would say the number alone
        return [
            None if tick is None else f"{tick} {array.type.unit}" for tick in array.cast(pyarrow.int64()).to_pylist()
        ]
    return list(array.cast(pyarrow.string()).to_pylist())
