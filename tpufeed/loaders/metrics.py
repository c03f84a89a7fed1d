"""Metrics of a loader: what it has done so far, and how long its consumer waited."""

import logging
from dataclasses import dataclass, replace
from time import perf_counter

from tpufeed.errors import RecordError
from tpufeed.loaders.batch import DecodedBatch

_logger = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
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
        requested_records: of remote datasets, those that were read by requests of their own, as their shards were not
            staged.
        dropped_boxes: boxes of which crops have left nothing, or less than `min_visibility`.
        processes: that decode; 0 where threads of this process do.
        threads: that decode, of all processes together.
        nodes: (NUMA node, processes that keep to it); empty where they may run on all.
        prefetch: batches that are prepared ahead, at the most.
        buffer_bytes: what they take.
    """

    seconds: float = 0.0
    wait_seconds: float = 0.0
    waits: int = 0
    batches: int = 0
    samples: int = 0
    ready: float = 0.0
    read_seconds: float = 0.0
    decode_seconds: float = 0.0
    read_bytes: int = 0
    bad_records: int = 0
    requested_records: int = 0
    dropped_boxes: int = 0
    processes: int
    threads: int
    nodes: tuple[tuple[int, int], ...] = ()
    prefetch: int
    buffer_bytes: int


class LoaderMetrics:
    """Adds up `LoaderStats`, and holds a loader to its budget of bad records.

    Args:
        max_bad_records: the budget.
        stats: what is known from the start.
    """

    def __init__(self, max_bad_records: int, stats: LoaderStats) -> None:
        self._max_bad_records = max_bad_records
        self._bad: set[tuple[int, ...]] = set()
        self._stats = stats
        self._first = 0.0
        self._ready = 0

    def stats(self) -> LoaderStats:
        """Return a copy of the sum so far."""
        return replace(self._stats, ready=self._ready / max(1, self._stats.batches), bad_records=len(self._bad))

    def add(self, batch: DecodedBatch, asked: float, ready: int) -> None:
        """Add a batch that is handed out now; it was asked for at `asked` by `perf_counter`, when `ready` were there.

        Raises:
            RecordError: it has one bad record too many.
        """
        now, stats = perf_counter(), self._stats
        self._first = self._first or asked
        self._ready += ready
        stats.seconds = now - self._first
        stats.wait_seconds += now - asked
        stats.waits += not ready
        stats.batches += 1
        stats.samples += len(next(iter(batch.arrays.values())))
        stats.read_seconds += batch.read_seconds
        stats.decode_seconds += batch.decode_seconds
        stats.read_bytes += batch.read_bytes
        stats.requested_records += batch.requested_records
        stats.dropped_boxes += batch.dropped_boxes
        for record in batch.bad:
            if record.where in self._bad:
                continue
            if len(self._bad) == self._max_bad_records:
                raise RecordError(
                    f"{len(self._bad) + 1} bad records, more than max_bad_records={self._max_bad_records}; the last "
                    f"one: {record.message}. Run tpufeed verify, which lists all damage"
                )
            self._bad.add(record.where)
            _logger.warning(
                "bad record skipped, %d of at most %d: %s", len(self._bad), self._max_bad_records, record.message
            )
