"""Walk the records of a shard, by their own lengths or by an index, and verify both CRCs of each.

A shard is read in chunks; nothing is held whole. Chunks that come damaged are read again: only damage that comes twice
is the shard's, and not the network's.
"""

import itertools
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from tpufeed.errors import RecordError, ShardError, StoreError
from tpufeed.storage.reading import open_object, settle
from tpufeed.storage.store import Store
from tpufeed.tfrecord.crc32c import crc32c
from tpufeed.tfrecord.framing import HEADER_BYTES, OVERHEAD_BYTES, decode_record, decode_records, encode_header

Ints = npt.NDArray[np.int64]

LOCAL_CHUNK_BYTES = 1 << 20  # in the core's own cache when its CRCs are computed
REMOTE_CHUNK_BYTES = 8 << 20  # each is a request
LENGTH_DAMAGED = "the CRC of the record's length does not match"


@dataclass(slots=True)
class Walked:
    """Records of one chunk, one after the other. Valid until the next chunk is asked for.

    Attributes:
        first: number of the first record.
        offsets: byte in the shard where each record starts, and where the last one ends.
        payloads: of each record, or an error that says what is wrong with it; the error does not name the place.
        data: the bytes that were read, from the first offset on.
        is_damaged: something is wrong with these bytes.
        framed: the length that each record gives is the one that its place says.
        problem: why it cannot be told where the next record starts. The walk ends there.
    """

    first: int
    offsets: list[int]
    payloads: Sequence[memoryview | RecordError]
    data: memoryview
    is_damaged: bool = False
    framed: bool = True
    problem: str = ""


class Walker:
    """Walk a shard of `size` bytes.

    Args:
        store: where the shard lies.
        name: its name there.
        size: its bytes.
        version: read this version alone; empty: any.
        chunk_bytes: bytes that are read at once; more where a record is longer. By default what reads fastest.

    Raises while it walks:
        StoreError: the shard cannot be read.
        ShardError: the shard of that version ends before `size`.
    """

    def __init__(self, store: Store, name: str, size: int, version: str = "", chunk_bytes: int | None = None) -> None:
        self.crc32c = 0  # of all records that were walked
        self.where, self.size = f"{store.url}/{name}", size
        self._store, self._name, self._version = store, name, version
        local = not version and store.local_path(name) is not None
        self._chunk_bytes = chunk_bytes or (LOCAL_CHUNK_BYTES if local else REMOTE_CHUNK_BYTES)

    def by_length(self) -> Iterator[Walked]:
        """Walk all records, found by their own lengths, as far as these can be trusted."""
        first, start = 0, 0
        with self._open() as reader:
            while start < self.size:
                walked = self._settle(partial(self._read_by_length, reader, first, start))
                first, start = first + len(walked.payloads), walked.offsets[-1]
                yield walked
                if walked.problem:
                    return

    def by_index(self, first: int, offsets: Ints) -> Iterator[Walked]:
        """Walk the records from number `first` on at `offsets`, which end with the last one's end."""
        done = 0
        with self._open() as reader:
            while done < len(offsets) - 1:
                fitting = int(np.searchsorted(offsets, offsets[done] + self._chunk_bytes, "right")) - 1
                stop = max(done + 1, fitting)
                yield self._settle(partial(self._read_at, reader, first + done, offsets[done : stop + 1].tolist()))
                done = stop

    def _settle(self, read: partial[Walked]) -> Walked:
        walked = settle(self.where, read, lambda found: crc32c(found.data), lambda found: not found.is_damaged)
        self.crc32c = crc32c(walked.data[: walked.offsets[-1] - walked.offsets[0]], self.crc32c)
        return walked

    def _read_at(self, reader: "_Reader", first: int, offsets: list[int]) -> Walked:
        return _decode(first, offsets, reader.read(offsets[0], offsets[-1]))

    def _read_by_length(self, reader: "_Reader", first: int, start: int) -> Walked:
        data = reader.read(start, min(start + max(self._chunk_bytes, OVERHEAD_BYTES), self.size))
        offsets = [start, *(start + end for end in _iter_ends(data))]
        if len(offsets) > 1:
            return _decode(first, offsets, data)
        record_bytes, problem = _next_record(data, self.size - start)
        if problem:
            return Walked(first, offsets, (), data, is_damaged=True, problem=problem)
        return self._read_at(reader, first, [start, start + record_bytes])

    @contextmanager
    def _open(self) -> Iterator["_Reader"]:
        path = self._store.local_path(self._name)
        if path is None or self._version:
            yield _Reader(self._store, self._name, self._version)
            return
        with open_object(self._store, self._name) as file:
            yield _LocalReader(self._store, self._name, file.fileno(), max(self._chunk_bytes, OVERHEAD_BYTES))


def _decode(first: int, offsets: list[int], data: memoryview) -> Walked:
    base = offsets[0]
    records = [data[start - base : stop - base] for start, stop in itertools.pairwise(offsets)]
    try:
        return Walked(first, offsets, decode_records(records, str), data)
    except RecordError:  # one of them; find out which, and what is wrong with each
        payloads, framed = list[memoryview | RecordError](), True
    for record, size in zip(records, (stop - start for start, stop in itertools.pairwise(offsets)), strict=True):
        if len(record) != size:
            payloads.append(RecordError("truncated while it was read"))
            continue
        framed &= record[:HEADER_BYTES] == encode_header(size - OVERHEAD_BYTES)
        try:
            payloads.append(decode_record(record, ""))
        except RecordError as error:
            payloads.append(RecordError(str(error).removeprefix(": ")))
    return Walked(first, offsets, payloads, data, True, framed)


def _iter_ends(data: memoryview) -> Iterator[int]:
    """Yield where the whole records at the start of `data` end, as far as the CRCs of their lengths are right."""
    start = 0
    while len(data) - start >= OVERHEAD_BYTES:
        header = data[start : start + HEADER_BYTES]
        length = int.from_bytes(header[:8], "little")
        start += OVERHEAD_BYTES + length
        if start > len(data) or header != encode_header(length):
            return
        yield start


def _next_record(data: memoryview, left: int) -> tuple[int, str]:
    """Return `(bytes of the record at the start of data, "")`, or why they cannot be told."""
    if left < OVERHEAD_BYTES:
        return 0, f"truncated; {left} bytes are left, a record takes at least {OVERHEAD_BYTES}"
    length = int.from_bytes(data[:8], "little")
    if data[:HEADER_BYTES] != encode_header(length):
        return 0, LENGTH_DAMAGED
    if length > left - OVERHEAD_BYTES:
        return 0, f"truncated; the record wants {length} bytes of payload, {left - OVERHEAD_BYTES} are left"
    return OVERHEAD_BYTES + length, ""


class _Reader:
    """Reader of a shard by ranges; a view is valid until the next read."""

    def __init__(self, store: Store, name: str, version: str) -> None:
        self._store, self._name, self._version = store, name, version

    def read(self, start: int, stop: int) -> memoryview:
        data = self._store.read_range(self._name, start, stop, self._version)
        if self._version and len(data) != stop - start:
            raise ShardError(f"{self._store.url}/{self._name}: it has changed, and ends before byte {stop}")
        return memoryview(data)


class _LocalReader(_Reader):
    """Reader into memory that is used again: allocating it for each chunk costs as much as reading.

    Not mmap: it was a few percent faster when measured, and is a SIGBUS where a file is cut meanwhile.
    """

    def __init__(self, store: Store, name: str, descriptor: int, chunk_bytes: int) -> None:
        super().__init__(store, name, "")
        self._descriptor, self._chunk_bytes = descriptor, chunk_bytes
        self._memory = memoryview(bytearray(0))

    def read(self, start: int, stop: int) -> memoryview:
        if stop - start > len(self._memory):
            self._memory = memoryview(bytearray(max(stop - start, self._chunk_bytes)))
        view, done = self._memory[: stop - start], 0
        try:
            while done < len(view) and (count := os.preadv(self._descriptor, [view[done:]], start + done)):
                done += count
        except OSError as error:
            raise StoreError(f"{self._store.local_path(self._name)}: {error.strerror}") from error
        return view[:done]
