"""Metrics of a loader: what it has done so far, and what its consumer waited for."""

import logging
from dataclasses import dataclass
from time import perf_counter

from tpufeed.errors import RecordError
from tpufeed.loaders.crew import BadRecord, Filled

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoaderStats:
    """Metrics of a loader since it was made; take the difference of two for a part of a run.

    Attributes:
        seconds: since the first batch was asked for, until the last one was handed out.
        wait_seconds: of these, how long the consumer waited for batches; `wait_seconds / seconds` is its idle share.
        waits: batches that were not ready when they were asked for.
        batches: handed out.
        samples: in them, padding among these.
        ready: batches that were ready when one was asked for, on average: `prefetch` and more of a loader that never
            holds up its consumer, 0 of one that always does.
        read_seconds: of all decoding threads together, reading records and verifying their CRCs; of raw images copying
            them, too.
        decode_seconds: of all decoding threads together, decoding and ops.
        read_bytes: of records.
        bad_records: different ones that were skipped.
        processes: that decode; 0 where threads of this process do.
        threads: that decode, of all processes together.
        prefetch: batches that are prepared ahead, at the most.
        buffer_bytes: what they take.
    """

    seconds: float
    wait_seconds: float
    waits: int
    batches: int
    samples: int
    ready: float
    read_seconds: float
    decode_seconds: float
    read_bytes: int
    bad_records: int
    processes: int
    threads: int
    prefetch: int
    buffer_bytes: int


class Tally:
    """Adds up what `LoaderStats` says, and holds a loader to its budget of bad records."""

    def __init__(self, max_bad_records: int) -> None:
        self._max_bad_records = max_bad_records
        self._bad: set[tuple[int, int, int]] = set()
        self._first = self._last = self._wait = self._read = self._decode = 0.0
        self._waits = self._batches = self._samples = self._ready = self._bytes = 0

    def add(self, filled: Filled, asked: float, ready: int) -> None:
        """A batch is handed out that was asked for at `asked`, by `perf_counter`, when `ready` were there.

        Raises:
            RecordError: it is one bad record too many.
        """
        self._last = perf_counter()
        self._first = self._first or asked
        self._wait += self._last - asked
        self._waits += not ready
        self._ready += ready
        self._batches += 1
        self._samples += len(next(iter(filled.arrays.values())))
        self._read += filled.read_seconds
        self._decode += filled.decode_seconds
        self._bytes += filled.read_bytes
        for record in filled.bad:
            self._skip(record)

    def stats(self, processes: int, threads: int, prefetch: int, batch_bytes: int) -> LoaderStats:
        """Return the sum so far."""
        return LoaderStats(
            seconds=self._last - self._first,
            wait_seconds=self._wait,
            waits=self._waits,
            batches=self._batches,
            samples=self._samples,
            ready=self._ready / max(1, self._batches),
            read_seconds=self._read,
            decode_seconds=self._decode,
            read_bytes=self._bytes,
            bad_records=len(self._bad),
            processes=processes,
            threads=threads,
            prefetch=prefetch,
            buffer_bytes=prefetch * batch_bytes,
        )

    def _skip(self, record: BadRecord) -> None:
        if record.where in self._bad:
            return
        if len(self._bad) == self._max_bad_records:
            raise RecordError(
                f"{len(self._bad) + 1} bad records, more than max_bad_records={self._max_bad_records}; the last one: "
                f"{record.message}. Run tpufeed verify, which lists all damage"
            )
        self._bad.add(record.where)
        _logger.warning(
            "bad record skipped, %d of at most %d: %s", len(self._bad), self._max_bad_records, record.message
        )
