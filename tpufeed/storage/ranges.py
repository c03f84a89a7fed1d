"""An object as a file to read from, whatever its store."""

import io
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO, cast

from crc32c import crc32c

from tpufeed.errors import ObjectNotFoundError, StoreError
from tpufeed.storage.plainfile import open_plain
from tpufeed.storage.reading import DamagedReadError, settle
from tpufeed.storage.store import ObjectInfo, Store

_BLOCK_BYTES = 4 << 20


def open_object(store: Store, name: str, compare: bool = False) -> BinaryIO:
    """The object, seekable; a remote one is read by ranges of some MB.

    Args:
        store: where it lies.
        name: of the object.
        compare: with the CRC-32C that the store vouches for, when the last byte is read, if none was left out before.
            What is skipped is read as well, up to a block of it; where more is skipped at once, nothing is compared.

    Raises:
        ObjectNotFoundError: there is none.
        StoreError: it cannot be read; reading from it later may raise this as well.
        DamagedReadError: in reading: what came is not the object.
    """
    path = store.local_path(name)
    if path is not None:
        try:
            return open(path, "rb", opener=open_plain)
        except FileNotFoundError as error:
            raise ObjectNotFoundError(f"{path}: {error.strerror}") from error
        except OSError as error:
            raise StoreError(f"{path}: {error.strerror}") from error
    info = store.stat(name)
    if info is None:
        raise ObjectNotFoundError(f"{store.url}/{name}: no such object")
    ranges = _ComparedRanges(store, info) if compare and info.crc32c is not None else _Ranges(store, info)
    return cast(BinaryIO, _Blocks(ranges, _BLOCK_BYTES))


@contextmanager
def open_compared(store: Store, name: str) -> Iterator[BinaryIO]:
    """The object, seekable, compared with the CRC-32C that the store vouches for before a byte of it is given out.

    That is a temporary copy. Where the store has no CRC-32C, or the object is a local file, it is `open_object`.

    Raises:
        ObjectNotFoundError: there is none.
        StoreError: it cannot be read, or there is no room for a copy.
    """
    info = store.stat(name) if store.local_path(name) is None else None
    if info is None or info.crc32c is None or not info.size_bytes:
        with open_object(store, name) as file:
            yield file
        return
    with store.temporary_folder() as folder, (folder / "copy").open("w+b") as copy:
        try:
            os.posix_fallocate(copy.fileno(), 0, info.size_bytes)  # a hole that finds no room would be a SIGBUS
        except OSError as error:
            raise StoreError(
                f"{store.url}/{name}: no room for a copy of {info.size_bytes:,} bytes in {folder.parent}: "
                f"{error.strerror}; set TMPDIR to a folder that has some"
            ) from error
        _fetch(store, info, memoryview(mmap.mmap(copy.fileno(), info.size_bytes)))
        yield copy


def _fetch(store: Store, info: ObjectInfo, view: memoryview) -> None:
    def read() -> int:
        return crc32c(view[: store.read_into(info.name, 0, view, info.version)])

    found = settle(f"{store.url}/{info.name}", read, lambda crc: crc, lambda crc: crc == info.crc32c)
    if found != info.crc32c:
        raise _differs(store, info, found)


def _differs(store: Store, info: ObjectInfo, found: int) -> DamagedReadError:
    return DamagedReadError(
        f"{store.url}/{info.name}: crc32c of what came is {found:08x}; the store says {info.crc32c:08x}"
    )


class _Blocks(io.BufferedReader):
    def read1(self, size: int = -1) -> bytes:
        """Fill the buffer first: `TextIOWrapper` asks for 8 KiB at a time, each of which would be a request."""
        self.peek(1)
        return super().read1(size)


class _Ranges(io.RawIOBase):
    def __init__(self, store: Store, info: ObjectInfo) -> None:
        self._store, self._info = store, info
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._info.size_bytes}[whence]
        self._at = max(0, start + offset)
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # typeshed wants its own Buffer
        stop = min(self._at + len(buffer), self._info.size_bytes)
        if stop <= self._at:
            return 0
        data = self._read(stop)
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)

    def _read(self, stop: int) -> bytes | memoryview:
        return self._store.read_range(self._info.name, self._at, stop)


class _ComparedRanges(_Ranges):
    """Knows the CRC-32C of the first `_done` bytes: of each the first reading, which is what is given out."""

    _done = _crc32c = 0

    def _read(self, stop: int) -> memoryview:
        skipped = self._at - self._done
        start = self._done if 0 < skipped <= _BLOCK_BYTES else self._at
        data = memoryview(self._store.read_range(self._info.name, start, stop, self._info.version))
        if start <= self._done < start + len(data):
            self._crc32c = crc32c(data[self._done - start :], self._crc32c)
            self._done = start + len(data)
            if self._done == self._info.size_bytes and self._crc32c != self._info.crc32c:
                raise _differs(self._store, self._info, self._crc32c)
        return data[self._at - start :]
