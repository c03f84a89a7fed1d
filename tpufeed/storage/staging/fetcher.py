"""The threads that fetch what is due: one begins shards and makes room, the others read ranges."""

import logging
import os
import threading
import time
from collections.abc import Container, Iterable
from contextlib import suppress
from dataclasses import replace
from queue import SimpleQueue

from tpufeed.errors import ShardError, StoreError
from tpufeed.storage.staging.agenda import Agenda
from tpufeed.storage.staging.counts import Counts
from tpufeed.storage.staging.download import Download
from tpufeed.storage.staging.folder import FULL, Claim, Part, Refusal, StageFolder, release
from tpufeed.storage.staging.shard import RemoteShard, copy_key
from tpufeed.storage.staging.troubles import Troubles
from tpufeed.storage.store import Store

_POLL_SECONDS = 0.25  # how soon the death of another process, or a copy that it no longer uses, is noticed
_STOP_SECONDS = 5.0

_logger = logging.getLogger(__name__)


class Fetcher:
    """Fetches into a folder until it is stopped. Thread-safe.

    All connections share one queue of ranges: while the last ranges of a shard are read, the next shard is begun.

    Args:
        store: where the shards are.
        folder: where the copies go.
        counts: counted up.
        connections: ranges to read at once.
        range_bytes: how long they are.
    """

    def __init__(self, store: Store, folder: StageFolder, counts: Counts, connections: int, range_bytes: int) -> None:
        self._counts = counts
        self._store = store
        self._folder = folder
        self._connections = connections
        self._range_bytes = range_bytes
        self._changed = threading.Condition()
        self._news = False
        self._stopped = False
        self._agenda = Agenda()
        self._downloads: set[Download] = set()
        self._ranges: SimpleQueue[tuple[Download, int, int] | None] = SimpleQueue()
        self._troubles = Troubles(store.url)
        self._threads: list[threading.Thread] = []

    def fetch(self, shards: Iterable[RemoteShard], in_use: Container[RemoteShard]) -> None:
        """These are due, in this order, instead of what was asked for before and is not begun."""
        keyed = [(shard, copy_key(self._store.url, shard)) for shard in shards]
        with self._changed:
            keyed = [(shard, key) for shard, key in keyed if shard not in self._troubles.damaged]
            self._agenda.forget_gone(self._folder.has)
            self._agenda.replace(keyed, self._troubles.retry_at, in_use)
            if not self._threads and keyed and not self._stopped:
                self._start()
            self._tell()

    def opened(self, shard: RemoteShard) -> None:
        """Its copy has been opened."""
        with self._changed:
            self._counts.hits += 1
            self._agenda.drop(shard)
            self._tell()

    def missed(self, shard: RemoteShard, key: str) -> None:
        """It was looked for, and is not there. Raises ShardError where it never will be, as its bytes are wrong."""
        with self._changed:
            self._counts.misses += 1
            if shard in self._troubles.damaged:
                raise ShardError(self._troubles.damaged[shard])
            if self._agenda.lose(shard, key):
                self._tell()

    def evicted(self, shard: RemoteShard, key: str) -> None:
        """Its copy was damaged and has gone: it is fetched again at once, if it is this that fetches."""
        with self._changed:
            if self._threads and not self._stopped:
                self._agenda.want_again(shard, key)
                self._tell()

    def warn_once(self, kind: str, message: str) -> None:
        """A warning, for the first of each `kind`."""
        with self._changed:
            self._troubles.warn_once(kind, message)

    def wait(self, seconds: float) -> None:
        """Until something has changed, or that long."""
        with self._changed:
            self._changed.wait(seconds)

    def stop(self) -> None:
        """Let the threads end. Waits for nothing, so that a finalizer may call it."""
        with self._changed:
            if self._stopped:
                return
            self._stopped = True
            self._agenda.clear()
            for download in self._downloads:
                download.cancel(StoreError("the stage was closed"))
            for _ in self._threads:
                self._ranges.put(None)
            self._tell()

    def join(self) -> None:
        """Wait for the threads of a stopped one; one that is stuck in a request ends when that does."""
        deadline = time.monotonic() + _STOP_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def close_descriptors(self) -> None:
        """For a forked process, which would keep locked what this holds and fetches."""
        for descriptor in (*(each.part.descriptor for each in self._downloads), *self._agenda.descriptors()):
            with suppress(OSError):
                os.close(descriptor)

    def _start(self) -> None:
        targets = [self._begin_shards, *[self._read_ranges] * self._connections]
        self._threads = [
            threading.Thread(target=target, name=f"tpufeed-stage-{number}", daemon=True)
            for number, target in enumerate(targets)
        ]
        for thread in self._threads:
            thread.start()

    def _tell(self) -> None:
        self._news = True
        self._changed.notify_all()

    def _begin_shards(self) -> None:
        pause: float | None = 0.0
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._news, pause)
                self._news = False
                if self._stopped:
                    return
            pause = self._advance()

    def _advance(self) -> float | None:
        """Begin shards while there are few ranges to read; returns how long to sleep if there are no news."""
        while self._ranges.qsize() < self._connections:
            with self._changed:
                now = time.monotonic()
                first = self._agenda.first(now)
                if first is None:
                    later = self._agenda.next_time()
                    return None if later is None else max(0.0, later - now)
            try:
                if not self._begin(*first):
                    return _POLL_SECONDS
            except Exception as error:  # noqa: BLE001  # logged, and the thread goes on
                self._fail(*first, error)
        return None

    def _begin(self, shard: RemoteShard, key: str) -> bool:
        """Begin to fetch what is due; False where that has to wait for room."""
        if shard.size_bytes > self._folder.budget_bytes:
            self.warn_once(
                "large",
                f"{self._store.url}/{shard.name} has {shard.size_bytes:,} bytes, the stage in {self._folder.path} a "
                f"budget of {self._folder.budget_bytes:,}: shards like it are read by ranges. Give more stage_bytes",
            )
            with self._changed:
                self._agenda.drop(shard)
            return True
        descriptor = self._folder.hold(key, shard.size_bytes)
        if descriptor is not None:
            self._stage(shard, key, descriptor)
            return True
        claimed = self._claim(shard, key)
        if isinstance(claimed, Part):
            self._launch(shard, claimed)
        elif claimed is not Refusal.FULL:
            with self._changed:
                self._agenda.put_off(shard, key, time.monotonic() + _POLL_SECONDS, elsewhere=True)
        return claimed is not Refusal.FULL

    def _claim(self, shard: RemoteShard, key: str) -> Part | Refusal:
        with self._changed:
            claim = Claim(key, shard.size_bytes, self._agenda.spared(), self._agenda.due())
            needed = self._agenda.is_needed_next()
        claimed = self._folder.claim(claim)
        if claimed is not Refusal.FULL or not needed:
            return claimed
        with self._changed:
            self._agenda.forget_left_over()
            claim = replace(claim, spared=self._agenda.spared())
        claimed = self._folder.claim(claim)
        if claimed is not Refusal.FULL:
            return claimed
        self.warn_once(
            "exceeded",
            f"all shards in {self._folder.path} are in use: it will exceed its budget of "
            f"{self._folder.budget_bytes:,} bytes. Give more stage_bytes, or fewer lanes",
        )
        return self._folder.claim(replace(claim, exceed=True))

    def _launch(self, shard: RemoteShard, part: Part) -> None:
        download = Download(self._store, shard, part)
        try:
            self._folder.reserve(part)
            ranges = download.cut(self._range_bytes)
        except (OSError, ShardError):  # a StoreError is an OSError
            self._folder.discard(part)
            raise
        with self._changed:
            self._agenda.begin(shard)
            self._downloads.add(download)
            self._counts.retries += self._troubles.has(shard)
            if self._stopped:
                ranges = []
                download.cancel(StoreError("the stage was closed"))
            for start, stop in ranges:
                self._ranges.put((download, start, stop))
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
            if self._ranges.qsize() < self._connections:
                with self._changed:
                    self._tell()

    def _finish(self, download: Download) -> None:
        shard, part = download.shard, download.part
        try:
            if download.error is not None:
                raise download.error
            download.verify()
            descriptor = self._folder.publish(part)
        except Exception as error:  # noqa: BLE001  # logged, and the shard is tried again
            download.error = None  # a cycle otherwise: its traceback holds this frame, which holds the download
            with suppress(OSError):
                self._folder.discard(part)
            self._fail(shard, part.key, error)
        else:
            with self._changed:
                self._counts.shards_fetched += 1
                self._counts.bytes_fetched += shard.size_bytes
            self._stage(shard, part.key, descriptor)
        with self._changed:
            self._downloads.discard(download)
            self._tell()

    def _stage(self, shard: RemoteShard, key: str, descriptor: int) -> None:
        with self._changed:
            self._troubles.clear(shard)
            if self._stopped:
                release(descriptor)
            else:
                self._agenda.stage(shard, key, descriptor)
            self._tell()

    def _fail(self, shard: RemoteShard, key: str, error: Exception) -> None:
        full = isinstance(error, OSError) and error.errno in FULL
        if full:
            self._shrink()
        with self._changed:
            if self._stopped:
                return
            self._troubles.add(shard, error, time.monotonic(), quiet=full)
            if shard in self._troubles.damaged:
                self._agenda.drop(shard)
            else:
                self._agenda.put_off(shard, key, self._troubles.retry_at[shard])
            self._tell()

    def _shrink(self) -> None:
        with suppress(OSError):
            used, budget = self._folder.used_bytes(), self._folder.budget_bytes
            if used < budget:
                self._folder.budget_bytes = used
                _logger.warning(
                    "%s is full: the stage there goes on with %s bytes instead of %s",
                    self._folder.path,
                    f"{used:,}",
                    f"{budget:,}",
                )
