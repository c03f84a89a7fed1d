"""Walk the records of a shard, by their own lengths or by an index, and verify both CRCs of each.

A shard is read in chunks, never as a whole. A chunk that arrives damaged is read again: damage that comes twice is the
shard's, damage that comes once the network's.
"""

import itertools
import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from tpufeed.display.progress import Figures
from tpufeed.errors import RecordError, ShardError, StoreError
from tpufeed.processes.limits import available_cores
from tpufeed.storage.reading import open_object, settle
from tpufeed.storage.store import Store
from tpufeed.tfrecord.framing import (
    FOOTER_BYTES,
    HEADER_BYTES,
    OVERHEAD_BYTES,
    decode_records,
    encode_header,
    find_problem,
    read_length,
)

Ints = npt.NDArray[np.int64]
T = TypeVar("T")
R = TypeVar("R")

LOCAL_CHUNK_BYTES = 1 << 20  # small enough to be in the core's own cache when its CRCs are computed
REMOTE_CHUNK_BYTES = 8 << 20  # one request
_REMOTE_THREADS = 16  # more than cores, as they wait for the network


def stored_crc32c(store: Store, name: str, size_bytes: int, expected: int) -> int:
    """Return the CRC-32C of an object's first `size_bytes` bytes, read in blocks, and again if it is not the expected
    one.

    Raises:
        ObjectNotFoundError: there is no such object.
        DamagedReadError: each read returned other bytes.
    """

    def read() -> int:
        crc = 0
        for start in range(0, size_bytes, REMOTE_CHUNK_BYTES):
            crc = crc32c(store.read_range(name, start, min(start + REMOTE_CHUNK_BYTES, size_bytes)), crc)
        return crc

    return settle(f"{store.url}/{name}", read, lambda crc: crc, lambda crc: crc == expected)


@dataclass(frozen=True, slots=True)
class WalkProgress:
    """Progress of `verify` or `adopt`: bytes and records read so far, and damages found."""

    total_bytes: int
    bytes: int = 0
    records: int = 0
    damages: int = 0

    def figures(self, seconds: float) -> Figures:
        """Return what a progress bar shows after this many seconds."""
        read = f"{self.bytes / 1e6:,.0f}/{self.total_bytes / 1e6:,.0f} MB"
        parts = [f"{self.records:,} records", read, f"{self.bytes / seconds / 1e6:,.0f} MB/s"]
        if self.damages:
            parts.append(f"{self.damages:,} damaged")
        return Figures(self.bytes, self.total_bytes, parts)


class WalkStopped(Exception):
    """The walk was told to stop, as the error of another shard is on its way to the caller."""


def map_shards(store: Store, work: Callable[[T, threading.Event], R], shards: Iterable[T]) -> Generator[R, None, None]:
    """Yield `work(shard, stop)` of each shard, in order, from threads that work ahead of the caller.

    `stop` is set after an error in a shard or in the caller (Ctrl-C): running walks then end at once.
    """
    stop, running = threading.Event(), deque[Future[R]]()
    threads = _REMOTE_THREADS if store.local_path("x") is None else available_cores()
    with ThreadPoolExecutor(threads, "tpufeed-walk") as executor:
        try:
            for shard in shards:
                running.append(executor.submit(work, shard, stop))
                # Twice the threads: a slow shard at the head then does not stop the others. More would take memory.
                if len(running) > 2 * threads:
                    yield running.popleft().result()
            while running:
                yield running.popleft().result()
        finally:
            stop.set()
            executor.shutdown(cancel_futures=True)


@dataclass(slots=True)
class Walked:
    """Successive records of one chunk. Valid until the next chunk is requested."""

    first: int  # number of the first record
    offsets: list[int]  # byte in the shard where each record starts, and where the last one ends
    payloads: Sequence[memoryview | RecordError]  # or what is wrong with the record, but not where
    data: memoryview  # the bytes that were read, from the first offset on
    is_damaged: bool = False  # something is wrong with these bytes
    framed: bool = True  # each record has the length that follows from its offset
    problem: str = ""  # why the start of the next record cannot be found. The walk ends there


class Walker:
    """Walks a shard of `size` bytes.

    Args:
        store: store of the shard.
        name: name of the shard.
        size: size of the shard in bytes.
        version: read only this version, or "" for any.
        chunk_bytes: number of bytes to read at once, more if a record is longer. Default: the fastest size.

    Attributes:
        crc32c: CRC-32C of all records that were walked.
        where: URL of the shard, for errors.
    """

    def __init__(self, store: Store, name: str, size: int, version: str = "", chunk_bytes: int | None = None) -> None:
        self.crc32c = 0
        self.where, self.size = f"{store.url}/{name}", size
        self._store, self._name, self._version = store, name, version
        self._path = None if version else store.local_path(name)
        self._chunk_bytes = chunk_bytes or (REMOTE_CHUNK_BYTES if self._path is None else LOCAL_CHUNK_BYTES)

    def walk(self, offsets: Ints | None = None, stop: threading.Event | None = None) -> Iterator[Walked]:
        """Yield all records from the shard's start on, some at a time.

        Args:
            offsets: where the records start and the last one ends, from an index. Damage in one record then does not
                hide the others. Without it, records are found by their own lengths, as far as these can be trusted.
            stop: once set, the walk ends.

        Raises:
            StoreError: the shard cannot be read.
            ShardError: the shard of that version ends before `size`.
            WalkStopped: `stop` was set.
        """
        first, start, end = 0, 0, self.size if offsets is None else int(offsets[-1])
        with self._open() as read:
            while start < end:
                if stop is not None and stop.is_set():
                    raise WalkStopped
                if offsets is None:
                    attempt = partial(self._read_by_length, read, first, start)
                else:
                    fitting = int(np.searchsorted(offsets, start + self._chunk_bytes, "right"))
                    attempt = partial(_read_at, read, first, offsets[first : max(first + 2, fitting)].tolist())
                # Accepted if sound, or if the same comes twice: damage on the way differs each time.
                walked = settle(
                    self.where, attempt, lambda found: crc32c(found.data), lambda found: not found.is_damaged
                )
                self.crc32c = crc32c(walked.data[: walked.offsets[-1] - start], self.crc32c)
                first, start = first + len(walked.payloads), walked.offsets[-1]
                yield walked
                if walked.problem:
                    return

    def _read_by_length(self, read: Callable[[int, int], memoryview], first: int, start: int) -> Walked:
        data = read(start, min(start + max(self._chunk_bytes, OVERHEAD_BYTES), self.size))
        offsets, end = [start], 0
        while len(data) - end >= OVERHEAD_BYTES:
            header = data[end : end + HEADER_BYTES]
            length = int.from_bytes(header[:8], "little")
            end += OVERHEAD_BYTES + length
            # Comparing whole headers takes one call of the CRC. The fault of a bad one is found below.
            if end > len(data) or header != encode_header(length):
                break
            offsets.append(start + end)
        if len(offsets) > 1:
            return _decode(first, offsets, data)
        length, problem = read_length(data, self.size - start)
        if problem:
            return Walked(first, offsets, (), data, is_damaged=True, problem=problem)
        return _read_at(read, first, [start, start + OVERHEAD_BYTES + length])  # a record longer than a chunk

    @contextmanager
    def _open(self) -> Iterator[Callable[[int, int], memoryview]]:
        """Yield `read(start, stop)`. It returns a view that is valid until the next read."""
        if self._path is None:
            yield self._read_range
            return
        # One buffer is reused: allocating one for each chunk costs as much as reading. Not mmap: it was only a few
        # percent faster when measured, and is a SIGBUS if the file is cut meanwhile.
        memory = memoryview(bytearray(0))
        with open_object(self._store, self._name) as file:

            def read(start: int, stop: int) -> memoryview:
                nonlocal memory
                if stop - start > len(memory):
                    memory = memoryview(bytearray(max(stop - start, self._chunk_bytes)))
                view, done = memory[: stop - start], 0
                try:
                    while done < len(view) and (count := os.preadv(file.fileno(), [view[done:]], start + done)):
                        done += count
                except OSError as error:
                    raise StoreError(f"{self._path}: {error.strerror}") from error
                return view[:done]

            yield read

    def _read_range(self, start: int, stop: int) -> memoryview:
        data = self._store.read_range(self._name, start, stop, self._version)
        if self._version and len(data) != stop - start:
            raise ShardError(f"{self.where}: it has changed, and ends before byte {stop}")
        return memoryview(data)


def _read_at(read: Callable[[int, int], memoryview], first: int, offsets: list[int]) -> Walked:
    return _decode(first, offsets, read(offsets[0], offsets[-1]))


def _decode(first: int, offsets: list[int], data: memoryview) -> Walked:
    base = offsets[0]
    records = [data[start - base : stop - base] for start, stop in itertools.pairwise(offsets)]
    try:
        return Walked(first, offsets, decode_records(records, str), data)
    except RecordError:  # find out which record is damaged, and how
        payloads, framed = list[memoryview | RecordError](), True
    for record, (start, stop) in zip(records, itertools.pairwise(offsets), strict=True):
        if len(record) != stop - start:
            payloads.append(RecordError("truncated while it was read"))
            continue
        framed &= record[:HEADER_BYTES] == encode_header(len(record) - OVERHEAD_BYTES)
        problem = find_problem(record)
        payloads.append(RecordError(problem) if problem else record[HEADER_BYTES:-FOOTER_BYTES])
    return Walked(first, offsets, payloads, data, True, framed)
