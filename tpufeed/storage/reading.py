"""Read from any store: many spans at once, an object as a file, and again if bytes look damaged."""

import io
import mmap
import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import BinaryIO, TypeVar, cast

from crc32c import crc32c

from tpufeed.errors import ObjectNotFoundError, StoreError, UnavailableError
from tpufeed.storage.store import ObjectInfo, Span, Store, read_span

READS = 3  # tries to read bytes that look damaged
AT_ONCE = 32
_BLOCK_BYTES = 4 << 20
T = TypeVar("T")


class DamagedReadError(UnavailableError):
    """Raised if reads return other bytes than are stored. They say nothing about the object."""


def settle(
    where: str, read: Callable[[], T], identity: Callable[[T], Hashable], is_sure: Callable[[T], bool] = lambda _: False
) -> T:
    """Call `read` until its result is certain or came twice, as damage on the way differs each time.

    Args:
        where: subject of the reads, for messages.
        read: called up to three times.
        identity: returns equal values for equal bytes.
        is_sure: returns true if one read is enough, as its own CRC is right.

    Raises:
        DamagedReadError: each read returned other bytes.
    """
    seen = list[Hashable]()
    for _ in range(READS):
        found = read()
        if is_sure(found) or identity(found) in seen:
            return found
        seen.append(identity(found))
    raise DamagedReadError(
        f"{where}: {READS} reads returned {READS} different results, so it is not known what is stored. Look for a "
        "fault of the network or of the store, then run it again"
    )


def read_certain(store: Store, name: str, version: str = "", is_text: bool = True) -> bytes:
    """Return an object without a checksum. If the store does not check its reads, it is read until two agree.

    Raises as `Store.read_document`, or for what is not text `Store.read`, and `settle` do.
    """
    read = partial(store.read_document if is_text else store.read, name, version)
    return read() if store.checks_reads else settle(f"{store.url}/{name}", read, identity=lambda data: data)


def read_by_threads(store: Store, spans: Iterable[Span]) -> Generator[bytes | StoreError, None, None]:
    """Read spans as `Store.read_many` does, by `AT_ONCE` threads."""
    with ThreadPoolExecutor(AT_ONCE, "tpufeed-read") as executor:
        waiting = deque[Future[bytes | StoreError]]()
        try:
            for span in spans:
                waiting.append(executor.submit(read_span, store, span))
                if len(waiting) >= 2 * AT_ONCE:  # a slow one at the head then does not stop the others at once
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


class SpanReader:
    """Reads a few spans at a time, and keeps its threads and their connections until `close`. Thread-safe.

    `Store.read_many` is for thousands at a time, and its setup may cost more than a loader's batch. Several readers use
    `shared` threads. Their owner ends them.
    """

    def __init__(self, shared: ThreadPoolExecutor | None = None) -> None:
        self._lock = threading.Lock()
        self._shared = shared
        self._executor: ThreadPoolExecutor | None = None

    def read(self, store: Store, spans: Sequence[Span]) -> list[bytes | StoreError]:
        """Return the bytes of each span of a store, or why they cannot be read."""
        if len(spans) < 2:
            return [read_span(store, span) for span in spans]
        if self._shared is not None:
            return list(self._shared.map(partial(read_span, store), spans))
        with self._lock:
            if self._executor is None:
                self._executor = ThreadPoolExecutor(AT_ONCE, "tpufeed-read")
            # Under the lock, as `close` in another thread could shut the executor down before all spans are submitted.
            results = self._executor.map(partial(read_span, store), spans)
        return list(results)

    def close(self) -> None:
        """End the threads. The next read starts new ones."""
        with self._lock:
            executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown(wait=True)


def read_line(file: BinaryIO) -> bytes:
    """Read a line of any length, but not a hole in a file. Raises ValueError if it is not text."""
    parts = []
    while part := file.readline(_BLOCK_BYTES):
        if b"\0" in part:
            raise ValueError("it is not text: it holds a zero byte")
        parts.append(part)
        if part.endswith(b"\n"):
            break
    return b"".join(parts)


def open_object(store: Store, name: str, compare: bool = False) -> BinaryIO:
    """Open an object as a seekable file. A remote object is read in ranges of a few MB.

    With `compare`, the bytes are compared with the store's CRC-32C once the last one is read, if none was left out. For
    that, up to a block of skipped bytes is read. If more is skipped at once, nothing is compared.

    Raises:
        ObjectNotFoundError: there is no such object.
        StoreError: it cannot be read. Reads from the file may raise this as well.
        DamagedReadError: raised by reads from the file that returned other bytes than the object's.
    """
    file = store.open_local(name)
    if file is not None:
        return io.BufferedReader(file)
    info = store.stat(name)
    if info is None:
        raise ObjectNotFoundError(f"{store.url}/{name}: no such object")
    return cast(BinaryIO, _Blocks(_Ranges(store, info, compare and info.crc32c is not None), _BLOCK_BYTES))


@contextmanager
def open_compared(store: Store, name: str) -> Iterator[BinaryIO]:
    """Open a temporary copy of an object as a seekable file, after comparing its CRC-32C with the store's.

    If the store has no CRC-32C, the object is read until the same bytes came twice. For a local file, or an object
    whose size is not known, this is `open_object`.

    Raises:
        ObjectNotFoundError: there is no such object.
        StoreError: it cannot be read, or there is no room for a copy.
    """
    info = store.stat(name) if store.local_path(name) is None else None
    if info is None or not info.size_bytes:
        with open_object(store, name) as file:
            yield file
        return
    with store.temporary_folder() as folder, (folder / "copy").open("w+b") as copy:
        try:
            os.posix_fallocate(copy.fileno(), 0, info.size_bytes)  # a hole on a full disk would be a SIGBUS
        except OSError as error:
            raise StoreError(
                f"{store.url}/{name}: no room for a copy of {info.size_bytes:,} bytes in {folder.parent}: "
                f"{error.strerror}. Set TMPDIR to a folder that has some"
            ) from error
        # Ranges go straight into the file's pages: even an object larger than memory can be compared.
        view = memoryview(mmap.mmap(copy.fileno(), info.size_bytes))

        def read() -> int:
            return crc32c(view[: store.read_into(info.name, 0, view, info.version)])

        found = settle(f"{store.url}/{info.name}", read, lambda crc: crc, lambda crc: crc == info.crc32c)
        if found != info.crc32c is not None:
            raise _differs(store, info, found)
        yield copy


def _differs(store: Store, info: ObjectInfo, found: int) -> DamagedReadError:
    return DamagedReadError(
        f"{store.url}/{info.name}: crc32c of the bytes read is {found:08x}, but the store says {info.crc32c:08x}"
    )


class _Blocks(io.BufferedReader):
    def read1(self, size: int = -1) -> bytes:
        """Fill the buffer first: `TextIOWrapper` reads 8 KiB at a time, each of which would be a request."""
        self.peek(1)
        return super().read1(size)


class _Ranges(io.RawIOBase):
    """Ranges of an object as a file. With `compare`, it keeps the CRC-32C of the first `_done` bytes as first read."""

    def __init__(self, store: Store, info: ObjectInfo, compare: bool) -> None:
        self._store, self._info, self._compare = store, info, compare
        self._at = self._done = self._crc32c = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._info.size_bytes}[whence]
        self._at = max(0, start + offset)
        return self._at

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # typeshed wants its own Buffer
        stop = min(self._at + len(buffer), self._info.size_bytes)
        if stop <= self._at:
            return 0
        if self._compare:
            data = self._read_compared(stop)
        else:
            data = memoryview(self._store.read_range(self._info.name, self._at, stop))
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)

    def _read_compared(self, stop: int) -> memoryview:
        skipped = self._at - self._done
        start = self._done if 0 < skipped <= _BLOCK_BYTES else self._at
        data = memoryview(self._store.read_range(self._info.name, start, stop, self._info.version))
        if start <= self._done < start + len(data):
            self._crc32c = crc32c(data[self._done - start :], self._crc32c)
            self._done = start + len(data)
            if self._done == self._info.size_bytes and self._crc32c != self._info.crc32c:
                raise _differs(self._store, self._info, self._crc32c)
        return data[self._at - start :]
