"""From the records that TensorFlow reads to those of the batches: counted, mixed, and their errors explained."""

import itertools
import random
import re
from collections import deque
from typing import Any

import numpy as np

from tpufeed.errors import AccessError, RecordError, ShardError, StoreError, TpufeedError, UnavailableError
from tpufeed.loaders.tfrecords import HandedReader, RecordFeed, Row, read_one

_LOOKED_AT = 64  # records, where an error does not say in which shard it arose


class Mixer:
    """Draws from some `mixed` records that it holds, checks the marks behind the parts, and keeps padding for last.

    Without any it keeps the order of the feed.
    """

    def __init__(self, tf: Any, feed: RecordFeed, reader: HandedReader, mixed: int, seed: str) -> None:
        self._feed = feed
        self._reader = reader
        self._mixed = mixed
        self._random = random.Random(seed) if mixed else None
        self._tf = tf
        self._stops = np.array([part.stop for part in reader.plan.parts], np.int64)
        self._held: list[Row] = []
        self._padding: deque[Row] = deque()
        self._read: set[int] = set()
        self._ended = False

    def take(self, rows: int) -> list[Row]:
        """The next `rows` records; those of padding come last.

        Raises:
            ShardError: a shard has fewer records than the manifest says, or more.
            RecordError: one is damaged.
            StoreError: what else TensorFlow says.
        """
        taken: list[Row] = []
        while len(taken) < rows:
            if not self._ended and len(self._held) <= self._mixed:
                self._receive()
            else:
                taken.append(self._draw() if self._held else self._padding.popleft())
        return taken

    def finish(self) -> None:
        """Read what is dropped as well: only then is it known that all parts are complete. Raises as `take` does."""
        while not self._ended:
            self._receive()
            self._held.clear()

    def close(self) -> None:
        """End the feed."""
        self._feed.close()

    def _draw(self) -> Row:
        if self._random is not None:
            at = int(self._random.random() * len(self._held))
            self._held[at], self._held[-1] = self._held[-1], self._held[at]
        return self._held.pop()

    def _receive(self) -> None:
        try:
            found = self._feed.take()
        except self._tf.errors.OpError as error:
            raise explain(self._tf, error, self._reader, self._read) from error
        if found is None:
            self._ended = True
            if len(self._read) < len(self._stops):
                raise StoreError(f"TensorFlow read {len(self._read)} of {len(self._stops)} parts of shards to the end")
            return
        records, parts, payloads = found
        is_mark = parts < 0
        parts = np.where(is_mark, -1 - parts, parts)
        wrong = np.where(is_mark, records != self._stops[parts], records >= self._stops[parts])
        for row in np.flatnonzero(wrong):
            raise self._miscount(int(parts[row]), int(records[row]), bool(is_mark[row]))
        self._read.update(parts[is_mark].tolist())
        is_padding = parts >= self._reader.plan.real
        rows = list(zip(parts.tolist(), records.tolist(), payloads.tolist(), strict=True))
        self._padding.extend(rows[row] for row in np.flatnonzero(is_padding & ~is_mark))
        if is_mark.any() or is_padding.any():
            rows = [rows[row] for row in np.flatnonzero(~is_mark & ~is_padding)]
        self._held.extend(reversed(rows))

    def _miscount(self, part: int, record: int, is_mark: bool) -> ShardError:
        expected, stop = self._reader.shard_records(part), int(self._stops[part])
        found = f"ends after {record} records" if is_mark and record < stop else f"has more than {stop} records"
        return ShardError(
            f"{self._reader.urls[part]} {found}; the manifest says {expected}. It was cut or written anew since. Run: "
            f"tpufeed verify {self._reader.dataset_url}"
        )


def explain(tf: Any, error: Any, reader: HandedReader, read: set[int]) -> TpufeedError:
    """TensorFlow's `error` as one of ours; `read` are the parts that were read to their end."""
    message = _text(error)
    if isinstance(error, tf.errors.DataLossError):
        return _find_damage(tf, message, reader, read)
    if isinstance(error, tf.errors.NotFoundError):
        return ShardError(f"{message}. The manifest names this shard; is the dataset complete?")
    if isinstance(error, (tf.errors.PermissionDeniedError, tf.errors.UnauthenticatedError)):
        return AccessError(f"TensorFlow may not read: {message}")
    passing = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.DeadlineExceededError)
    if isinstance(error, passing):
        return UnavailableError(f"TensorFlow gave up: {message}")
    return StoreError(f"TensorFlow: {message}")


def _find_damage(tf: Any, message: str, reader: HandedReader, read: set[int]) -> RecordError:
    """TensorFlow says where in a shard a record is damaged, and not in which: look at the parts that are being read."""
    at = re.search(r"record at (\d+)", message)
    sound = list[str]()
    for part in _unread(reader, read):
        found = None if at is None else reader.record_at(part, int(at[1]))
        if found is not None:
            where = f"{reader.place(part, found[0])}, byte {found[1]}"
            try:
                read_one(tf, reader.urls[part], found[1])
            except tf.errors.OpError as error:
                return RecordError(
                    f"{where}: TensorFlow finds {_text(error)}. Run: tpufeed verify {reader.dataset_url}"
                )
            sound.append(where)
        if len(sound) == _LOOKED_AT:
            break
    among = (
        f"; it is one of {', '.join(sound[:4])}{' ...' if len(sound) > 4 else ''}, which now read well" if sound else ""
    )
    return RecordError(f"TensorFlow found {message}{among}. Run again, or: tpufeed verify {reader.dataset_url}")


def _unread(reader: HandedReader, read: set[int]) -> list[int]:
    """Parts that were not read to their end, those first that their lanes read first."""
    plan = reader.plan
    lanes = [[part for part in range(*lane) if part not in read] for lane in plan.lanes]
    padding = [part for part in range(plan.real, len(plan.parts)) if part not in read]
    turns = itertools.zip_longest(*lanes, padding)
    return [part for turn in turns for part in turn if part is not None]


def _text(error: Any) -> str:
    """What TensorFlow says, without the names of its operators."""
    return re.sub(r"\{\{.*?\}\} ?| ?\[Op:.*", "", str(error.message), flags=re.DOTALL).strip()
