"""Fetch local copies of shards: the queue of shards that are due, the downloads, and pauses after failures."""

import logging
import os
import threading
import time
from collections.abc import Container, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue

from tpufeed.errors import ShardError, StoreError, mask_secrets
from tpufeed.processes.limits import FULL
from tpufeed.storage.copies_folder import (
    CopiesFolder,
    PartialCopy,
    Refusal,
    RemoteShard,
    copy_key,
    read_crc32c,
    release,
)
from tpufeed.storage.store import Store

_FIRST_RETRY_SECONDS = 1.0
_LAST_RETRY_SECONDS = 60.0
_DAMAGED_AFTER = 3  # downloads with the wrong bytes
_logger = logging.getLogger(__name__)
_HELD = 64  # copies ahead that hold a descriptor. Other processes may evict copies further ahead
_POLL_SECONDS = 0.25  # until the death of another process, or a copy that it no longer uses, is noticed
_STOP_SECONDS = 5.0


@dataclass(slots=True)
class CopiesStats:
    """Counts of one `LocalCopies` since it was made, and figures of its folder."""

    shards_fetched: int = 0  # copies that it has published
    bytes_fetched: int = 0
    retries: int = 0  # repeated downloads
    hits: int = 0  # times that a copy was opened
    misses: int = 0  # times that a copy was wanted but missing
    evictions: int = 0
    used_bytes: int = 0  # in the folder now, by all processes
    budget_bytes: int = 0  # of the folder


class FetchQueue:
    """The shards of one consumer in the order in which they are due.

    A shard is due, then begun or put off, then ahead (its copy is there, and held), then opened. A copy that is not in
    the next list is released: it stays in the folder until room is needed.
    """

    def __init__(self) -> None:
        self.due: dict[RemoteShard, None] = {}  # in order
        self.put_off: dict[RemoteShard, float] = {}  # with the time when each is due again
        self.ahead: dict[RemoteShard, int | None] = {}  # with the descriptor that keeps its copy from being evicted
        self._listed: set[RemoteShard] = set()
        self._begun: set[RemoteShard] = set()
        self._elsewhere: set[RemoteShard] = set()  # put off because another process fetches them

    def replace(
        self, shards: Iterable[RemoteShard], failing: Mapping[RemoteShard, float], in_use: Container[RemoteShard] = ()
    ) -> None:
        """Let `shards` be due instead of all others. A `failing` shard waits until the time given there.

        A shard that is `in_use` becomes due only if its copy is wanted but missing.
        """
        before, self.ahead = self.ahead, {}
        for collection in (self.due, self.put_off, self._elsewhere, self._listed):
            collection.clear()
        for shard in shards:
            self._listed.add(shard)
            if shard in before:
                self.ahead[shard] = before.pop(shard)
            elif shard in in_use:
                continue
            elif shard in failing:
                self.put_off[shard] = failing[shard]
            elif shard not in self._begun:
                self.due[shard] = None
        _release_all(before.values())

    def first(self, now: float) -> RemoteShard | None:
        """Return the shard to begin next."""
        ripe = [shard for shard, at in self.put_off.items() if at <= now]
        if ripe:
            self.due = dict.fromkeys(ripe) | self.due
            for shard in ripe:
                del self.put_off[shard]
                self._elsewhere.discard(shard)
        return next(iter(self.due), None)

    def begin(self, shard: RemoteShard) -> None:
        """Mark a shard as being fetched."""
        self.due.pop(shard, None)
        self._begun.add(shard)

    def postpone(self, shard: RemoteShard, until: float, elsewhere: bool = False) -> None:
        """Let a shard be due again later, because its download failed or another process fetches it."""
        self.due.pop(shard, None)
        self._begun.discard(shard)
        if shard in self._listed:
            self.put_off[shard] = until
            if elsewhere:
                self._elsewhere.add(shard)

    def drop(self, shard: RemoteShard) -> None:
        """Forget a shard that is in use, was opened, or never will be opened."""
        self.due.pop(shard, None)
        self.put_off.pop(shard, None)
        for shards in (self._begun, self._elsewhere, self._listed):
            shards.discard(shard)
        _release_all([self.ahead.pop(shard, None)])

    def fetched(self, shard: RemoteShard, descriptor: int) -> None:
        """Mark a shard as fetched. `descriptor` holds its copy."""
        # Meanwhile it may have been opened, or another list may have come.
        wanted = shard in self._listed and (shard in self.due or shard in self._begun)
        self.due.pop(shard, None)
        self._begun.discard(shard)
        held = wanted and len(self.ahead) < _HELD
        if not held:
            release(descriptor)
        if wanted:
            self.ahead[shard] = descriptor if held else None

    def lose(self, shard: RemoteShard) -> bool:
        """Let a shard whose copy is gone be due at once, and return true if its copy should have been there."""
        if shard not in self._listed or shard in self.due or shard in self._begun or shard in self.put_off:
            return False
        _release_all([self.ahead.pop(shard, None)])
        self.due = {shard: None} | self.due
        return True

    def want_again(self, shard: RemoteShard) -> None:
        """Let a shard whose copy was opened and is gone be due at once."""
        self._listed.add(shard)
        self.lose(shard)

    def is_needed_next(self) -> bool:
        """Return true if no shard before the first due one waits to be opened or is being fetched."""
        return not self.ahead and not self._elsewhere and self._begun.isdisjoint(self._listed)


def _release_all(descriptors: Iterable[int | None]) -> None:
    for descriptor in descriptors:
        if descriptor is not None:
            release(descriptor)


class ShardDownload:
    """A shard that is being fetched, its partial copy, and the first error."""

    def __init__(self, store: Store, shard: RemoteShard, part: PartialCopy) -> None:
        self.shard = shard
        self.part = part
        self.error: Exception | None = None
        self._store = store
        self._version = ""
        self._left = 0
        self._lock = threading.Lock()

    def cut(self, range_bytes: int) -> list[tuple[int, int]]:
        """Return the ranges to `read`. Raises ShardError if the object is not the manifest's shard."""
        size = self.shard.size_bytes
        if self._store.generations:
            info = self._store.stat(self.shard.name)
            if info is None or info.size_bytes != size or info.crc32c not in (None, self.shard.crc32c):
                found = "missing" if info is None else f"of {info.size_bytes} bytes, CRC-32C {info.crc32c or 0:#010x}"
                raise ShardError(f"it is {found}, but the manifest says {size} bytes of {self.shard.crc32c:#010x}")
            self._version = info.version
        ranges = [(start, min(start + range_bytes, size)) for start in range(0, size, range_bytes)]
        self._left = len(ranges)
        return ranges

    def read(self, start: int, stop: int, buffer: memoryview) -> bool:
        """Fetch a range through `buffer`, and return true for the range that ends last, failed or not.

        Writes from a buffer are faster than page faults in a mapping of the file, and a full disk is an error instead
        of a SIGBUS.
        """
        if self.error is None:
            try:
                buffer = buffer[: stop - start]
                found = self._store.read_into(self.shard.name, start, buffer, self._version)
                if found < len(buffer):
                    raise ShardError(
                        f"it ends at byte {start + found}, but the manifest says {self.shard.size_bytes} bytes"
                    )
                written = 0
                while written < found:
                    written += os.pwrite(self.part.descriptor, buffer[written:], start + written)
            except Exception as error:  # noqa: BLE001  # raised when the last range has ended
                self.error = error
        with self._lock:
            # `-=` is a read and a write: without the lock two threads could both be the last one, or neither.
            self._left -= 1
            return not self._left

    def cancel(self) -> None:
        """Let all ranges that have not begun fail."""
        self.error = self.error or StoreError("fetching local copies was stopped")


class Fetcher:
    """Threads that fetch shards into a folder until they are stopped. Thread-safe.

    All connections share one queue of ranges: while the last ranges of a shard are read, the next shard is begun. Takes
    the arguments of `LocalCopies`, and updates `counts`.
    """

    def __init__(
        self,
        store: Store,
        others: Mapping[str, Store],
        folder: CopiesFolder,
        counts: CopiesStats,
        connections: int,
        range_bytes: int,
    ) -> None:
        self._counts = counts
        self._store = store
        self._others = others
        self._folder = folder
        self._connections = connections
        self._range_bytes = range_bytes
        self._changed = threading.Condition()
        self._news = False
        self._stopped = False
        self._queue = FetchQueue()
        self._downloads: set[ShardDownload] = set()
        self._ranges: SimpleQueue[tuple[ShardDownload, int, int] | None] = SimpleQueue()
        self._damaged: dict[RemoteShard, str] = {}  # not tried again, as each download had wrong bytes
        self._retry_at: dict[RemoteShard, float] = {}  # in the seconds of `time.monotonic`
        self._failures: dict[RemoteShard, int] = {}
        self._wrong: dict[RemoteShard, int] = {}
        self._warned: set[str] = set()
        self._threads: list[threading.Thread] = []
        self._key = partial(copy_key, store.url)

    def fetch(self, shards: Iterable[RemoteShard], in_use: Container[RemoteShard]) -> None:
        """Let these shards be due, in this order, instead of those of the last call that have not begun."""
        with self._changed:
            shards = [shard for shard in shards if shard not in self._damaged]
            # Forget fetched copies that are gone because another process found them damaged.
            for shard in [shard for shard in self._queue.ahead if not self._folder.has(self._key(shard))]:
                _release_all([self._queue.ahead.pop(shard)])
            self._queue.replace(shards, self._retry_at, in_use)
            if not self._threads and shards and not self._stopped:
                targets = [self._begin_shards, *[self._read_ranges] * self._connections]
                for number, target in enumerate(targets):
                    thread = threading.Thread(target=target, name=f"tpufeed-copies-{number}", daemon=True)
                    self._threads.append(thread)
                    thread.start()
            self._tell()

    def opened(self, shard: RemoteShard) -> None:
        """Count a copy that was opened, and make room for the next."""
        with self._changed:
            self._counts.hits += 1
            self._queue.drop(shard)
            self._tell()

    def missed(self, shard: RemoteShard) -> None:
        """Count a missing copy. Raises ShardError if each download had the wrong bytes."""
        with self._changed:
            self._counts.misses += 1
            if shard in self._damaged:
                raise ShardError(self._damaged[shard])
            if self._queue.lose(shard):
                self._tell()

    def evicted(self, shard: RemoteShard) -> None:
        """Fetch a shard again after its damaged copy was evicted, if this process fetches."""
        with self._changed:
            if self._threads and not self._stopped:
                self._queue.want_again(shard)
                self._tell()

    def warn_once(self, kind: str, message: str) -> None:
        """Log a warning for the first of each `kind`."""
        with self._changed:
            if kind not in self._warned:
                self._warned.add(kind)
                _logger.warning("%s", mask_secrets(message))

    def stop(self) -> None:
        """Tell the threads to end. Does not wait for them: a finalizer may call it."""
        with self._changed:
            if self._stopped:
                return
            self._stopped = True
            self._queue.replace((), {})
            for download in self._downloads:
                download.cancel()
            for _ in self._threads:
                self._ranges.put(None)
            self._tell()

    def join(self) -> None:
        """Wait for the threads after `stop`. A thread that is stuck in a request ends when that does."""
        deadline = time.monotonic() + _STOP_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def close_descriptors(self) -> None:
        """Close all descriptors in a forked process: they would keep the locks of its parent."""
        # Not `release`: a fork shares the parent's locks, so unlocking here would unlock them there.
        for descriptor in (*(each.part.descriptor for each in self._downloads), *self._queue.ahead.values()):
            if descriptor is not None:
                with suppress(OSError):
                    os.close(descriptor)

    def _tell(self) -> None:
        self._news = True
        self._changed.notify_all()

    def _begin_shards(self) -> None:
        pause: float | None = 0.0
        while True:
            with self._changed:
                # A change between two waits notifies no thread: `_news` remembers it.
                self._changed.wait_for(lambda: self._news, pause)
                self._news = False
                if self._stopped:
                    return
            pause = None
            while self._ranges.qsize() < self._connections:
                with self._changed:
                    now = time.monotonic()
                    first = self._queue.first(now)
                    if first is None:
                        later = min(self._queue.put_off.values(), default=None)
                        pause = None if later is None else max(0.0, later - now)
                        break
                try:
                    if not self._begin(first):
                        # Room comes when other processes let go of copies, but nobody tells this process.
                        pause = _POLL_SECONDS
                        break
                except Exception as error:  # noqa: BLE001  # logged, and the thread continues
                    self._fail(first, error)

    def _begin(self, shard: RemoteShard) -> bool:
        """Begin to fetch a shard that is due, and return False if it has to wait for room."""
        if shard.size_bytes > self._folder.budget_bytes:
            self.warn_once(
                "large",
                f"{shard.place or self._store.url}/{shard.name} has {shard.size_bytes:,} bytes. Local copies in "
                f"{self._folder.path} have a budget of {self._folder.budget_bytes:,}: such shards are read by ranges. "
                "Give more local_bytes",
            )
            with self._changed:
                self._queue.drop(shard)
            return True
        descriptor = self._folder.hold(self._key(shard), shard.size_bytes)
        if descriptor is not None:
            self._fetched(shard, descriptor)
            return True
        claimed = self._claim(shard)
        if isinstance(claimed, PartialCopy):
            self._launch(shard, claimed)
        elif claimed is Refusal.TAKEN:
            with self._changed:
                self._queue.postpone(shard, time.monotonic() + _POLL_SECONDS, elsewhere=True)
        return claimed is not Refusal.FULL

    def _claim(self, shard: RemoteShard) -> PartialCopy | Refusal:
        with self._changed:
            spared = frozenset(map(self._key, self._queue.ahead))
            due = {self._key(each): number for number, each in enumerate(self._queue.due)}
            needed = self._queue.is_needed_next()
        claimed = self._folder.claim(self._key(shard), shard.size_bytes, spared, due)
        if claimed is Refusal.FULL and needed:
            self.warn_once(
                "exceeded",
                f"all shards in {self._folder.path} are in use: it will exceed its budget of "
                f"{self._folder.budget_bytes:,} bytes. Give more local_bytes, or fewer lanes",
            )
            claimed = self._folder.claim(self._key(shard), shard.size_bytes, spared, due, exceed=True)
        return claimed

    def _launch(self, shard: RemoteShard, part: PartialCopy) -> None:
        download = ShardDownload(self._others.get(shard.place, self._store), shard, part)
        try:
            self._folder.reserve(part)
            ranges = download.cut(self._range_bytes)
        except (OSError, ShardError):  # a StoreError is an OSError
            self._folder.discard(part)
            raise
        with self._changed:
            self._queue.begin(shard)
            self._downloads.add(download)
            self._counts.retries += shard in self._failures
            # A `stop` since the claim has ended the readers: remove the part now, not at the end of the process.
            if self._stopped:
                ranges = []
                download.cancel()
            for start, stop in ranges:
                self._ranges.put((download, start, stop))
        # An empty shard has no last range whose reader could finish it.
        if not ranges:
            self._finish(download)

    def _read_ranges(self) -> None:
        buffer = memoryview(b"")
        while (work := self._ranges.get()) is not None:
            download, start, stop = work
            if len(buffer) < stop - start:
                buffer = memoryview(bytearray(stop - start))
            if download.read(start, stop, buffer):
                self._finish(download)
            # The queue runs low: begin the next shard now, while other connections read the last ranges of this one.
            if self._ranges.qsize() < self._connections:
                with self._changed:
                    self._tell()

    def _finish(self, download: ShardDownload) -> None:
        shard, part = download.shard, download.part
        try:
            # The bytes are read back from the file: bytes damaged between socket and file must not be published.
            if download.error is not None:
                raise download.error
            found = read_crc32c(part.descriptor, shard.size_bytes)
            if found != shard.crc32c:
                raise ShardError(f"its CRC-32C is {found:#010x}, but the manifest says {shard.crc32c:#010x}")
            descriptor = self._folder.publish(part)
        except Exception as error:  # noqa: BLE001  # logged, and the shard is tried again
            download.error = None  # a cycle otherwise: its traceback holds this frame, and this frame the download
            with suppress(OSError):
                self._folder.discard(part)
            self._fail(shard, error)
        else:
            with self._changed:
                self._counts.shards_fetched += 1
                self._counts.bytes_fetched += shard.size_bytes
            self._fetched(shard, descriptor)
        with self._changed:
            self._downloads.discard(download)
            self._tell()

    def _fetched(self, shard: RemoteShard, descriptor: int) -> None:
        with self._changed:
            for record in (self._failures, self._wrong, self._retry_at):
                record.pop(shard, None)
            if self._stopped:
                release(descriptor)
            else:
                self._queue.fetched(shard, descriptor)
            self._tell()

    def _fail(self, shard: RemoteShard, error: Exception) -> None:
        full = isinstance(error, OSError) and error.errno in FULL
        if full:
            with suppress(OSError):
                used, budget = self._folder.used_bytes(), self._folder.budget_bytes
                if used < budget:
                    # From now on a claim evicts something first, instead of filling the disk again.
                    self._folder.budget_bytes = used
                    text = f"{self._folder.path} is full: local copies there continue with {used:,} bytes"
                    _logger.warning(f"{text} instead of {budget:,}")
        with self._changed:
            if self._stopped:
                return
            times = self._failures[shard] = self._failures.get(shard, 0) + 1
            # The exponent is capped as well: 2.0 ** 1024 is an OverflowError, after 17 hours of failures.
            delay = min(_LAST_RETRY_SECONDS, _FIRST_RETRY_SECONDS * 2.0 ** min(times - 1, 10))
            place = f"{mask_secrets(shard.place or self._store.url)}/{shard.name}"
            if times == 1 and not full:
                bug = None if isinstance(error, OSError | ShardError) else error  # a bug of ours, with its trace
                text = "%s has no local copy: %s. It is read by ranges, and the copy will be tried again"
                _logger.warning(text, place, error, exc_info=bug)
            if isinstance(error, ShardError):  # it may have been damaged on the way: try again at once
                wrong = self._wrong[shard] = self._wrong.get(shard, 0) + 1
                delay = 0.0
                if wrong == _DAMAGED_AFTER:
                    found = f"{place}: {error}, in each of {wrong} downloads"
                    self._damaged[shard] = f"{found}. Run tpufeed verify on the dataset"
            self._retry_at[shard] = time.monotonic() + delay
            if shard in self._damaged:
                self._queue.drop(shard)
            else:
                self._queue.postpone(shard, self._retry_at[shard])
            self._tell()
