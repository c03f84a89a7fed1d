"""Images inside Parquet files: how an input names one, and the store that reads them.

An image in a Parquet file cannot be read by its place: a row group is compressed, and has to be decoded from its start.
So the inputs of one row group are neighbours in the plan, in the order of their rows, and it is decoded once.
"""

import bisect
import itertools
import re
import threading
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO
from urllib.parse import quote, unquote

from tpufeed.errors import MissingExtraError, ObjectChangedError, ObjectNotFoundError, StoreError, TpufeedError
from tpufeed.storage.reading import open_object
from tpufeed.storage.store import ObjectInfo, Span, Store

_ROW = re.compile(r"(.+?\.parquet):([0-9]+):(.+)", re.IGNORECASE)
_BATCH_BYTES = 16 << 20  # of images to decode at once
_MOST_ROWS = 2048
_MOST_FOOTERS = 512


def name_row(file: str, row: int, leaf: str) -> str:
    """Return the name in a `RowStore` of the image in row `row` (from 0) of a file, in the column of bytes `leaf`."""
    return f"{file}:{row}:{quote(leaf, safe='')}"


@contextmanager
def parquet_errors(where: str, error_type: type[Exception]) -> Iterator[None]:
    """Turn pyarrow's errors for a damaged file into `error_type`. Raises MissingExtraError without pyarrow."""
    try:
        import pyarrow
    except ImportError as error:
        raise MissingExtraError("pyarrow", "parquet") from error
    try:
        yield
    except TpufeedError:
        raise
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError) as error:
        raise error_type(f"{where}: not a readable Parquet file: {error}") from error


def open_parquet(file: BinaryIO, metadata: Any = None) -> Any:
    """Open a Parquet file of images without holding more than a page in memory. Call it within `parquet_errors`."""
    from pyarrow import parquet

    # Without a buffer size, or with `pre_buffer`, the whole row group would be read at once.
    return parquet.ParquetFile(
        file, metadata=metadata, buffer_size=1 << 20, pre_buffer=False, page_checksum_verification=True
    )


def iter_leaf(parquet: Any, group: int, leaf: str) -> Iterator[Any]:
    """Yield the values of a column of bytes in a row group, as Arrow arrays of a few MB."""
    found = chunk_of(parquet.metadata, group, leaf)
    rows = max(1, min(_MOST_ROWS, _BATCH_BYTES * found.num_values // max(1, found.total_uncompressed_size)))
    for batch in parquet.iter_batches(rows, row_groups=[group], columns=[leaf], use_threads=False):
        column = batch.column(0)
        yield column.flatten()[0] if column.type.num_fields else column


def chunk_of(metadata: Any, group: int, leaf: str) -> Any:
    """Return the metadata of a column in a row group. Raises ValueError if there is no such column."""
    row_group = metadata.row_group(group)
    for column in map(row_group.column, range(row_group.num_columns)):
        if column.path_in_schema == leaf:
            return column
    raise ValueError(f"there is no column {leaf!r}")


class RowStore(Store):
    """The images in the Parquet files of the store `base`, as objects that `name_row` names.

    Reading rows in their order decodes each row group once. Read-only. Thread-safe.
    """

    def __init__(self, base: Store) -> None:
        self._base, self.url = base, base.url
        self._lock = threading.Lock()
        self._open: _OpenFile | None = None
        self._footers = dict[tuple[str, str], Any]()

    def read(self, name: str, version: str = "") -> bytes:
        """Read one image. A remote file is opened again for it: what was decoded so far may have been damaged."""
        is_remote = self._base.local_path("x") is None
        with self._lock:
            try:
                return self._read(name, version, is_fresh=is_remote)
            finally:
                if is_remote:
                    self._close()

    def read_range(self, name: str, start: int, stop: int, version: str = "") -> bytes:
        return self.read(name, version)[start:stop]

    def read_many(self, spans: Iterable[Span]) -> Generator[bytes | StoreError, None, None]:
        try:
            for span in spans:
                with self._lock:
                    try:
                        found: bytes | StoreError = self._read(span.name, span.version)
                    except StoreError as error:
                        found = error
                yield found
        finally:
            with self._lock:
                self._close()

    def stat(self, name: str) -> ObjectInfo | None:
        """Return the present state of the image's Parquet file."""
        return self._base.stat(_parse(name)[0])

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise StoreError(f"{self.url}: rows of Parquet files are listed by their source, and cannot be written")

    iter_objects = iter_folders = put = put_file = delete = temporary_folder = _refuse

    def _read(self, name: str, version: str, is_fresh: bool = False) -> bytes:
        file, row, leaf = _parse(name)
        if is_fresh or self._open is None or (self._open.name, self._open.version) != (file, version):
            self._close()
            self._open = _OpenFile(self._base, file, version, self._footers)
        try:
            return self._open.read(row, leaf)
        except StoreError:
            self._close()  # after an error the reader's position is unknown
            raise

    def _close(self) -> None:
        opened, self._open = self._open, None
        if opened is not None:
            opened.close()


def _parse(name: str) -> tuple[str, int, str]:
    match = _ROW.fullmatch(name)
    if match is None:
        raise StoreError(f"{name!r} is not the name of a row in a Parquet file")
    return match[1], int(match[2]), unquote(match[3])


class _OpenFile:
    """One version of a file, read forwards column by column."""

    def __init__(self, store: Store, name: str, version: str, footers: dict[tuple[str, str], Any]) -> None:
        self.name, self.version, self._where = name, version, f"{store.url}/{name}"
        info = store.stat(name)
        if info is None:
            raise ObjectNotFoundError(f"{self._where}: no such object")
        if version and info.version != version:
            raise ObjectChangedError(f"{self._where} has changed since it was listed")
        self._file = open_object(store, name)
        try:
            with parquet_errors(self._where, StoreError):
                # Thousands of row groups are read in random order: this reads one footer per file, not per row group.
                self._parquet = open_parquet(self._file, footers.get((name, version)))
                if len(footers) < _MOST_FOOTERS:
                    footers[name, version] = self._parquet.metadata
                groups = range(self._parquet.metadata.num_row_groups)
                counts = (self._parquet.metadata.row_group(group).num_rows for group in groups)
                self._stops = list(itertools.accumulate(counts))
        except BaseException:
            self._file.close()
            raise
        # For each column: its row group, the first row in memory, the values from there on, and the further batches.
        self._columns = dict[str, tuple[int, int, Any, Iterator[Any]]]()

    def read(self, row: int, leaf: str) -> bytes:
        if row >= (self._stops[-1] if self._stops else 0):
            raise ObjectNotFoundError(f"{self._where} has no row {row}")
        wanted = bisect.bisect_right(self._stops, row)
        place = row - (self._stops[wanted - 1] if wanted else 0)
        group, first, values, batches = self._columns.get(leaf, (-1, 0, (), iter(())))
        with parquet_errors(f"{self._where}, row {row}", StoreError):
            if group != wanted or place < first:
                first, values, batches = 0, (), iter_leaf(self._parquet, wanted, leaf)
            while place >= first + len(values):
                first += len(values)
                values = next(batches, None)
                if values is None:
                    raise ValueError("a row group has fewer rows than the footer says")
            self._columns[leaf] = wanted, first, values, batches
            value: bytes | None = values[place - first].as_py()
        if value is None:
            raise StoreError(f"{self._where}, row {row}: the column {leaf!r} has no bytes")
        return value

    def close(self) -> None:
        with suppress(Exception):
            self._parquet.close()
        self._file.close()
