"""Local copies of remote shards: verified, fetched ahead of need, and shared by all processes of a host.

They hold the bytes of shards unchanged. `tpufeed cache` makes something else, a dataset of augmented images. A copy
appears after its CRC-32C was compared. Other processes trust the name (it encodes size and CRC) and the file size. No
copy is evicted while a process uses it, and it stays for the next process. A reader that finds a copy damaged since
then, by a disk or by another program, evicts it.
"""

import logging
import mmap
import os
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Self

from crc32c import crc32c

from tpufeed.errors import mask_secrets
from tpufeed.options import Count, checked
from tpufeed.storage.copies_fetcher import CopiesStats, Fetcher
from tpufeed.storage.copies_folder import CopiesFolder, RemoteShard, copy_key
from tpufeed.storage.store import Store

_logger = logging.getLogger(__name__)


class LocalCopies:
    """Copies of the shards of one or several stores, for one consumer. Thread-safe. A forked child starts again.

    Threads start with the first `fetch`.

    Args:
        store: store of the shards.
        parent: folder of the copies. Default: /dev/shm if it has 2 GiB free, else the user's cache.
        budget_bytes: bytes that all processes together may use there. Default: half of the free space.
        connections: number of ranges to read at once.
        range_bytes: length of a range. Each connection has a buffer of this size.
        others: further stores by their URLs, for shards that name one as their place.

    Raises:
        OptionError: there is no folder for copies, or a number is out of range.
    """

    @checked()
    def __init__(
        self,
        store: Store,
        parent: Path | None = None,
        budget_bytes: Count | None = None,
        connections: Count = 16,
        range_bytes: Count = 8 << 20,
        others: Mapping[str, Store] | None = None,
    ) -> None:
        self._store = store
        self._folder = CopiesFolder(parent, budget_bytes)
        self._stats = CopiesStats()
        self._make_fetcher = partial(Fetcher, store, others or {}, self._folder, self._stats, connections, range_bytes)
        # Weak: only views keep a copy in use. When the last view goes, its mapping goes, and with that the lock.
        self._mapped: weakref.WeakValueDictionary[RemoteShard, mmap.mmap] = weakref.WeakValueDictionary()
        self._renew()
        os.register_at_fork(after_in_child=partial(_after_fork, weakref.ref(self)))

    @property
    def folder(self) -> Path:
        """Folder of the copies."""
        return self._folder.path

    @property
    def budget_bytes(self) -> int:
        """Bytes that copies may take: less than the option if the disk turned out to be full."""
        return self._folder.budget_bytes

    def fetch(self, shards: Iterable[RemoteShard]) -> None:
        """Fetch these shards in order, before they are opened. Returns at once.

        Replaces the shards of the last call, except shards that are being fetched. Shards are fetched as far ahead as
        the budget allows: no shard takes the room of one that is due sooner. A failure is logged once, and the shard is
        tried again later.
        """
        self._fetcher.fetch(shards, self._mapped)

    def open(self, shard: RemoteShard) -> memoryview | None:
        """Return the bytes of a shard, or None if there is no copy (yet). Never waits.

        The copy stays in use as long as the view or anything made from it lives.

        Raises:
            ShardError: several downloads had the wrong size or CRC-32C.
        """
        key = copy_key(self._store.url, shard)
        mapping = self._mapped.get(shard)
        if mapping is None:
            view = self._map(key, shard)
            if view is None:
                self._fetcher.missed(shard)
                return None
        else:
            view = memoryview(mapping)
            self._folder.touch(key)
        self._fetcher.opened(shard)
        return view

    def evict_damaged(self, shard: RemoteShard, view: memoryview) -> bool:
        """Compare a view from `open` with the shard's CRC-32C. If it differs, remove the copy, with a warning.

        Returns true if it differs and is gone: then `open` finds no copy, or a newer one. Reads the whole shard: call
        this only for a damaged record.
        """
        if crc32c(view) == shard.crc32c:
            return False
        key = copy_key(self._store.url, shard)
        try:
            path = self._folder.evict_damaged(key, shard.size_bytes, shard.crc32c)
        except OSError as error:
            self._fetcher.warn_once("evict", f"{self.folder}: a damaged copy cannot be removed: {error.strerror}")
            return False
        mapping = self._mapped.get(shard)
        if mapping is not None and mapping is view.obj:
            self._mapped.pop(shard, None)
        if path is not None:  # of all readers that find it damaged, only the one that removed it warns
            _logger.warning(
                "%s: this copy of %s was damaged. It is removed, and ranges are read until it is fetched again",
                path,
                mask_secrets(f"{shard.place or self._store.url}/{shard.name}"),
            )
            self._fetcher.evicted(shard)
        return True

    def statistics(self) -> CopiesStats:
        """Return the counts so far."""
        return replace(
            self._stats,
            evictions=self._folder.evictions,
            used_bytes=self._folder.used_bytes(),
            budget_bytes=self._folder.budget_bytes,
        )

    def close(self) -> None:
        """Stop fetching. Copies and views stay. The next `fetch` starts again."""
        fetcher = self._fetcher
        self._finalizer()
        self._renew()
        fetcher.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _renew(self) -> None:
        self._fetcher = self._make_fetcher()
        # Threads hold the fetcher, never this object: dropping it without `close` ends them as well.
        self._finalizer = weakref.finalize(self, self._fetcher.stop)

    def _map(self, key: str, shard: RemoteShard) -> memoryview | None:
        try:
            descriptor = self._folder.hold(key, shard.size_bytes)
            if descriptor is None:
                return None
            try:
                if not shard.size_bytes:
                    return memoryview(b"")
                # The mapping keeps a duplicate of the descriptor, and so the lock, until its last view goes.
                mapping = mmap.mmap(descriptor, shard.size_bytes, access=mmap.ACCESS_READ)
            finally:
                os.close(descriptor)
        except OSError as error:  # for example too many open files: read by ranges instead
            self._fetcher.warn_once("open", f"{self.folder}: copies there cannot be opened: {error.strerror}")
            return None
        self._mapped[shard] = mapping
        return memoryview(mapping)


def _after_fork(reference: weakref.ref[LocalCopies]) -> None:
    """Make the copies usable in a forked child: it has no threads, and locks that may never be released."""
    copies = reference()
    if copies is not None:
        copies._fetcher.close_descriptors()
        copies._finalizer.detach()
        copies._renew()
