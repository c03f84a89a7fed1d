"""Reading a shard, or a span of its records, and finding everything that is wrong with it. Nothing is held whole."""

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tpufeed.dataset.checks.records import Picks, RecordCheck, Sample
from tpufeed.errors import Damage, RecordError, StoreError
from tpufeed.storage.ranges import open_object
from tpufeed.storage.reading import settle
from tpufeed.storage.store import Store
from tpufeed.tfrecord.crc32c import crc32c
from tpufeed.tfrecord.framing import HEADER_BYTES, OVERHEAD_BYTES, decode_record, decode_records, encode_header

Ints = npt.NDArray[np.int64]
UNKNOWN_LABEL = int(np.iinfo(np.int64).min)

LOCAL_CHUNK_BYTES = 1 << 20  # in the core's own cache when its CRCs are computed
REMOTE_CHUNK_BYTES = 8 << 20  # each is a request


@dataclass(slots=True)
class Span:
    """What came of records `[first, first + len(labels))` of a shard.

    Attributes:
        offsets: where they start, and where the last ends.
        labels: of each, `UNKNOWN_LABEL` where it has none or is damaged.
        crc32c: of their bytes.
        framed: the length of each is what it should be.
        complete: the span reaches to where it should: the end of the records wanted, or of the file.
    """

    first: int
    offsets: Ints
    labels: Ints
    crc32c: int = 0
    decoded: int = 0
    framed: bool = True
    complete: bool = True
    damages: list[Damage] = field(default_factory=list)


class ShardCheck:
    """Checks shards of one dataset. Thread-safe."""

    def __init__(self, store: Store, records: RecordCheck, picks: Picks | None) -> None:
        self._store = store
        self._records = records
        self._picks = picks if records.encoded else None

    def check_span(self, name: str, first: int, offsets: Ints) -> Span:
        """Records `first` and on of shard `name` at `offsets`, which the index gives: damage in one hides no other.

        Raises:
            StoreError: the shard cannot be read.
        """
        return self._settle(name, lambda: self._check_span(name, first, offsets))

    def scan(self, name: str, size: int) -> Span:
        """All records of a shard of `size` bytes, found by their own lengths, as far as these can be trusted.

        Raises:
            StoreError: the shard cannot be read.
        """
        return self._settle(name, lambda: self._scan(name, size))

    def _settle(self, name: str, check: Callable[[], Span]) -> Span:
        """Read again what comes damaged over a network: only what comes twice is the shard's."""
        if self._store.local_path(name) is not None:
            return check()
        return settle(
            f"{self._store.url}/{name}",
            check,
            identity=lambda span: (span.crc32c, tuple(span.damages)),
            is_sure=lambda span: not span.damages and span.framed,
        )

    def _check_span(self, name: str, first: int, offsets: Ints) -> Span:
        span = Span(first, offsets, np.full(len(offsets) - 1, UNKNOWN_LABEL))
        with _open(self._store, name) as reader:
            start = 0
            while start < len(span.labels):
                fitting = int(np.searchsorted(offsets, offsets[start] + reader.chunk_bytes, "right")) - 1
                stop = max(start + 1, fitting)
                data = reader.read(int(offsets[start]), int(offsets[stop]))
                span.crc32c = crc32c(data, span.crc32c)
                self._check_batch(span, name, start, data, (offsets[start : stop + 1] - offsets[start]).tolist())
                start = stop
        return span

    def _scan(self, name: str, size: int) -> Span:
        offsets, labels = [0], list[Ints]()
        span = Span(0, np.zeros(1, np.int64), np.zeros(0, np.int64))
        with _open(self._store, name) as reader:
            while offsets[-1] < size:
                start = offsets[-1]
                data = reader.read(start, min(start + reader.chunk_bytes, size))
                ends = _walk(data)
                if len(ends) == 1:
                    wanted, problem = _next_record(data, size - start)
                    if problem:
                        span.damages.append(Damage(name, len(offsets) - 1, start, problem))
                        span.complete = False
                        break
                    data = reader.read(start, start + wanted)
                    ends = [0, wanted]
                part = Span(len(offsets) - 1, np.array(ends) + start, np.full(len(ends) - 1, UNKNOWN_LABEL))
                self._check_batch(part, name, 0, data, ends)
                span.crc32c = crc32c(data[: ends[-1]], span.crc32c)
                span.decoded += part.decoded
                span.damages += part.damages
                labels.append(part.labels)
                offsets += [start + end for end in ends[1:]]
        span.offsets = np.array(offsets)
        span.labels = np.concatenate([*labels, span.labels])
        return span

    def _check_batch(self, span: Span, name: str, start: int, data: memoryview, ends: Sequence[int]) -> None:
        """Records `start` and on of the span; the first is at `data[ends[0]:ends[1]]`."""
        records = [data[a:b] for a, b in itertools.pairwise(ends)]
        try:
            payloads: Sequence[memoryview | None] = decode_records(records, str)
        except RecordError:
            payloads = [self._payload(span, name, start + number, record) for number, record in enumerate(records)]
        for number, payload in enumerate(payloads, start):
            if payload is not None:
                try:
                    sample = self._records.check(payload)
                    if sample.label is not None:
                        span.labels[number] = sample.label
                    if self._picks is not None and self._picks(name, span.first + number):
                        self._decode(span, sample)
                except RecordError as error:
                    span.damages.append(_damage(span, name, number, str(error)))

    def _decode(self, span: Span, sample: Sample) -> None:
        span.decoded += 1
        self._records.check_image(sample)

    def _payload(self, span: Span, name: str, number: int, record: memoryview) -> memoryview | None:
        wanted = int(span.offsets[number + 1] - span.offsets[number])
        if len(record) == wanted:
            span.framed &= record[:HEADER_BYTES] == encode_header(wanted - OVERHEAD_BYTES)
            try:
                return decode_record(record, "")
            except RecordError as error:
                message = str(error).removeprefix(": ")
        else:
            message = "truncated while it was read"
        span.damages.append(_damage(span, name, number, message))
        return None


def _damage(span: Span, name: str, number: int, message: str) -> Damage:
    return Damage(name, span.first + number, int(span.offsets[number]), message)


def _walk(data: memoryview) -> list[int]:
    """Where the whole records at the start of `data` end, as far as the CRCs of their lengths are right; 0 before."""
    ends = [0]
    while len(data) - ends[-1] >= OVERHEAD_BYTES:
        header = data[ends[-1] : ends[-1] + HEADER_BYTES]
        length = int.from_bytes(header[:8], "little")
        end = ends[-1] + OVERHEAD_BYTES + length
        if end > len(data) or header != encode_header(length):
            break
        ends.append(end)
    return ends


def _next_record(data: memoryview, left: int) -> tuple[int, str]:
    """`(bytes of the record at the start of data, "")`, or why it cannot be told where the next one starts."""
    if left < OVERHEAD_BYTES:
        return 0, f"truncated; {left} bytes are left, a record takes at least {OVERHEAD_BYTES}"
    length = int.from_bytes(data[:8], "little")
    if data[:HEADER_BYTES] != encode_header(length):
        return 0, (
            "the CRC of the record's length does not match; without a sound index it cannot be told where the next "
            f"record starts: {left} bytes from here on are not checked"
        )
    if length > left - OVERHEAD_BYTES:
        return 0, f"truncated; the record wants {length} bytes of payload, {left - OVERHEAD_BYTES} are left"
    return OVERHEAD_BYTES + length, ""


class _LocalReader:
    """Reads into memory that is used again: allocating it for each chunk costs as much as reading.

    Not mmap: it is a few percent faster (benchmarks/results/verify.json), and a SIGBUS where a file is cut meanwhile.
    """

    chunk_bytes = LOCAL_CHUNK_BYTES

    def __init__(self, descriptor: int, where: str) -> None:
        self._descriptor, self._where = descriptor, where
        self._memory = memoryview(bytearray(0))

    def read(self, start: int, stop: int) -> memoryview:
        if stop - start > len(self._memory):
            self._memory = memoryview(bytearray(max(stop - start, self.chunk_bytes)))
        view, done = self._memory[: stop - start], 0
        try:
            while done < len(view) and (count := os.preadv(self._descriptor, [view[done:]], start + done)):
                done += count
        except OSError as error:
            raise StoreError(f"{self._where}: {error.strerror}") from error
        return view[:done]


class _RemoteReader:
    chunk_bytes = REMOTE_CHUNK_BYTES

    def __init__(self, store: Store, name: str) -> None:
        self._store, self._name = store, name

    def read(self, start: int, stop: int) -> memoryview:
        return memoryview(self._store.read_range(self._name, start, stop))


@contextmanager
def _open(store: Store, name: str) -> Iterator[_LocalReader | _RemoteReader]:
    """A reader whose views are valid until its next read."""
    path = store.local_path(name)
    if path is None:
        yield _RemoteReader(store, name)
        return
    with open_object(store, name) as file:
        yield _LocalReader(file.fileno(), str(path))
