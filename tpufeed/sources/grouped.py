"""Read a table with a row for each box: the rows of an image become one sample.

Rows of an image need not be adjacent. They are kept in a temporary file, in which adjacent rows are one entry.
"""

import itertools
import json
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager, suppress
from typing import Any, TypeAlias

import msgspec

from tpufeed.builds.item import Item
from tpufeed.errors import OptionError, SourceError
from tpufeed.sources.database import temporary_table
from tpufeed.sources.inputs import Files
from tpufeed.sources.options import BOX, KEYPOINTS, ShardOptions
from tpufeed.sources.source import Found, Place
from tpufeed.sources.table import Change, Record, Row, TableColumns, TableSource, is_missing, text_of
from tpufeed.text import format_names, format_value

_MOST_ROWS = 100_000  # of an image
_FLAG = (None, 1, "1", "1.0")  # values of a column that marks some boxes
_SAID = 40  # characters of a value in a message
Rows: TypeAlias = list[tuple[int, Record]]  # with their numbers, from 1
_ENCODER, _ROWS = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(list[tuple[int, dict[str, Any]]])
_INT64 = 1 << 63
_TEXTS = frozenset((str, float, bool, type(None)))  # what most tables have: they need no other form


class Groups:
    """The rows of a table by the value of one column. An entry of the database has adjacent rows of equal value.

    Attributes:
        varying: columns that differ within a group. A missing value differs from no other.
        sparse: further columns that some rows of a group have and others lack.
        flags: those of `sparse` that are 1 wherever they have a value: a blank means 0.
    """

    def __init__(self, database: sqlite3.Connection, records: Iterable[Record], column: str, where: str) -> None:
        self._database, self._column, self._where = database, column, where
        self.varying, self.sparse = dict[str, None](), dict[str, None]()
        database.executemany("INSERT INTO runs VALUES(?, ?, ?)", self._iter_runs(records))
        for rows in self.iter_groups("WHERE key IN (SELECT key FROM runs GROUP BY key HAVING COUNT(*) > 1)"):
            self._learn(rows)
        self.sparse = {name: None for name in self.sparse if name not in self.varying}
        self.flags = set(self.sparse)
        for rows in self.iter_groups() if self.flags else ():
            self.flags -= {name for name in self.flags for _, one in rows if one.get(name) not in _FLAG}

    def iter_groups(self, where: str = "") -> Iterator[Rows]:
        """Yield the rows of each group. Raises SourceError if they are too many."""
        runs = self._database.execute(f"SELECT key, rows FROM runs {where} ORDER BY key, row")
        for _, several in itertools.groupby(runs, lambda run: run[0]):
            group: Rows = []
            for _, packed in several:
                group += _ROWS.decode(packed)
                self._check_length(group)
            yield group

    def _iter_runs(self, records: Iterable[Record]) -> Iterator[tuple[bytes | int, int, bytes]]:
        def key_of(pair: tuple[int, Record]) -> bytes | int:
            # A row without a value is a group by itself. As text, SQLite takes no lone surrogates.
            return text_of(pair[1].get(self._column)).encode(errors="surrogatepass") or pair[0]

        for key, pairs in itertools.groupby(enumerate(records, 1), key_of):
            rows = list(itertools.islice(pairs, _MOST_ROWS + 1))
            self._check_length(rows)
            self._learn(rows)
            yield key, rows[0][0], _pack(rows)

    def _learn(self, rows: Rows) -> None:
        if len(rows) > 1:
            names = dict.fromkeys(itertools.chain.from_iterable(record for _, record in rows))
            for name in names:
                values = [value for _, record in rows if (value := record.get(name)) is not None]
                if values[1:] != values[:-1]:
                    self.varying[name] = None
                elif 0 < len(values) < len(rows):
                    self.sparse[name] = None

    def _check_length(self, rows: Rows) -> None:
        if len(rows) > _MOST_ROWS:
            value = str(rows[0][1].get(self._column))[:_SAID]
            raise SourceError(
                f"{self._where}: more than {_MOST_ROWS:,} rows have {value!r} in the column {self._column!r}, which "
                "should name an image: the wrong column?"
            )


@contextmanager
def open_groups(records: Iterable[Record], column: str, where: str) -> Iterator[Groups]:
    """Read all rows of the table `where` into a temporary file, grouped by a column. Raises SourceError."""
    with temporary_table("runs(key BLOB, row INTEGER, rows BLOB)") as database:
        yield Groups(database, records, column, where)


def _pack(rows: Rows) -> bytes:
    """Encode rows. Values that are neither texts, numbers, bytes, lists nor objects become texts, as in all tables."""
    try:
        plain = ((row, one if _TEXTS.issuperset(map(type, one.values())) else _plain(one)) for row, one in rows)
        return _ENCODER.encode(list(plain))
    except UnicodeEncodeError as error:  # JSON may escape halves of a pair
        raise SourceError(f"rows {rows[0][0]} to {rows[-1][0]}: a text that is not UTF-8: {error}") from error


def _plain(value: Any) -> Any:
    if isinstance(value, str | float | bytes) or value is None:
        return value
    if isinstance(value, int):
        return value if -_INT64 <= value < _INT64 else str(value)
    if isinstance(value, list | tuple):
        return list(map(_plain, value))
    return {str(name): _plain(item) for name, item in value.items()} if isinstance(value, dict) else str(value)


def differing(rows: Rows, name: str) -> tuple[tuple[int, Any], tuple[int, Any]] | None:
    """Return the first two different values of a column with their rows, or None if all that there are are equal."""
    values = [value for _, record in rows if (value := record.get(name)) is not None]
    if values[1:] == values[:-1]:
        return None
    found = [(row, record[name]) for row, record in rows if record.get(name) is not None]
    return next(pair for pair in itertools.pairwise(found) if pair[0][1] != pair[1][1])


class GroupedSource(TableSource):
    """The images of a table that has a row for each box, or a row for each label, of an image."""

    what = "table with several rows per image"

    def __init__(self, place: Place, options: ShardOptions) -> None:
        super().__init__(place, options)
        if len(place.files) > 1:
            raise OptionError(
                f"--group-by takes one table, as several may have rows of the same image; {self.base} has "
                f"{len(place.files)} that match: join them, or shard each separately"
            )
        self._sides = options.box_sides or ((options.boxes.column,) if options.boxes.column is not None else ())

    def prepare(self, name: str, names: Sequence[str], first: Sequence[Record]) -> tuple[TableColumns, Change | None]:
        options, where, group = self._options, f"{self.base}/{name}", str(self._options.group_by)
        columns, change = super().prepare(name, names, first)
        columns.find("group", group)
        for column in (*self._sides, *(options.boxes.columns or ())):
            if column != KEYPOINTS or not options.points:  # these are made of several columns
                columns.find("boxes", column)
        if options.box_sides and options.boxes_name in names:
            raise OptionError(f"{where}: the column {options.boxes_name!r} has the name that all boxes get. Rename it")
        return columns, change

    def iter_items(self, found: Found) -> Iterator[Item]:
        options, files, (info,) = self._options, Files(self.base), self._files
        self._where, self._unboxed = f"{self.base}/{info.name}", Counter[str]()
        group, boxes = str(options.group_by), options.boxes_name
        with self.open(info.name) as (columns, records), open_groups(records, group, self._where) as groups:
            found.notes += dict.fromkeys(self.notes)
            single = {group, columns.split, *columns.files}
            lists = {boxes, columns.label, *options.box_sides}
            each = options.boxes.columns
            if each is None:
                flags = [name for name in groups.sparse if name in groups.flags]
                each = [name for name in (*groups.varying, *flags) if name not in single | lists]
                if boxes is not None and each:
                    self.contents = self.contents._replace(box_columns=tuple(each))
                    found.notes.append(
                        f"these columns differ within an image, and get a value for each box: {format_names(each)}; "
                        "--box-columns names them"
                    )
            odd = [name for name in groups.varying if name not in lists.union(each)]
            if blank := [name for name in groups.sparse if name not in single | lists.union(each)]:
                found.notes.append(
                    f"these columns are blank in some rows of an image, which gets the value of its other rows: "
                    f"{format_names(blank)}. If each row has its own value, fill in the blanks"
                )
            are_flags = groups.flags.intersection(each)
            merged = (self._merge(rows, columns.label, each, odd, are_flags) for rows in groups.iter_groups())
            yield from columns.iter_items(merged, files)
            if self._unboxed:
                found.notes.append(
                    f"{self._unboxed.total():,} rows have a label but no box, so that their images get none: "
                    f"{format_names(sorted(self._unboxed))}"
                )

    def _merge(
        self, rows: Rows, label: str | None, each: Sequence[str], odd: Sequence[str], flags: AbstractSet[str]
    ) -> Row:
        """Return the rows of an image as one.

        `each` are columns with a value for each box, of which `flags` are 1 or blank. `odd` are others that differ
        within some image.
        """
        boxes, problem = self._options.boxes_name, None
        record = dict(rows[0][1])
        for _, one in rows[1:]:  # rows of JSON lines may leave a column out
            record.update((name, value) for name, value in one.items() if record.get(name) is None)
        for name in odd:
            if problem is None and (pair := differing(rows, name)) is not None:
                (first, value), (second, other) = pair
                said = (
                    f"rows {first} and {second} of {self._where} have {format_value(value)} and {format_value(other)}"
                )
                problem = "bad_column", f"{said} in the column {name!r}. Expected one value for the image"
        listed = [one for _, one in rows]  # the rows with a value in each list
        if boxes is not None:
            found, listed = list[Any](), list[Record]()
            for row, one in rows:
                box, wrong = self._read_box(one)
                if wrong:
                    problem = problem or ("bad_box", f"row {row} of {self._where}: {wrong}")
                if box is not None:
                    found.append(box)
                    listed.append(one)
                elif label is not None and not is_missing(one.get(label)):
                    self._unboxed[format_value(one[label])] += 1
            record = {name: value for name, value in record.items() if name not in self._options.box_sides}
            record[boxes] = found
            each = each if label is None else (label, *each)
        elif label is not None:
            labels = [value for one in listed if not is_missing(value := one.get(label))]
            record[label] = [value for place, value in enumerate(labels) if value not in labels[:place]]
        lists = {name: [one.get(name) for one in listed] for name in each}
        for name in flags:
            lists[name] = [0 if value is None else value for value in lists[name]]
        return rows[0][0], {**record, **lists}, problem

    def _read_box(self, record: Record) -> tuple[Any, str]:
        """Return the box of a row, None if it has none, and what is wrong with it."""
        value: Any = [record.get(side) for side in self._sides]
        if not self._options.box_sides:
            (value,) = value
        if isinstance(value, str):
            with suppress(ValueError, RecursionError):
                value = json.loads(value)
        if is_missing(value) or (isinstance(value, list) and all(map(is_missing, value))):
            return None, ""
        with suppress(ValueError, TypeError, OverflowError):
            numbers = list(map(float, value))
            if len(numbers) == BOX:
                return numbers, ""
        said = f"{', '.join(self._sides)} has {format_value(value)}"
        return value, f"{said}. Expected the four numbers of a box, or nothing for no box"
