"""The index of a variant: for each shard in turn its records+1 offsets within the shard. The last is its size.

It is an npy file of uint64. The manifest's counts tell where a shard's part starts. So a reader of a remote dataset
reads only the parts that it needs until there is a local copy, and a reader of a local one maps the file. All processes
share its pages, and none keeps them in its page tables: Linux maps up to 2 MB for each part that is read, and in an
epoch over 100,000,000 records each process would come to count the index's 800 MB as its own.
"""

import io
import mmap
import threading
from collections.abc import Sequence
from contextlib import suppress

import numpy as np
import numpy.typing as npt

from tpufeed.dataset.manifest import Variant
from tpufeed.errors import ShardError, StoreError, advised
from tpufeed.storage.copies import LocalCopies
from tpufeed.storage.copies_folder import RemoteShard
from tpufeed.storage.reading import SpanReader, settle
from tpufeed.storage.store import Span, Store
from tpufeed.tfrecord.framing import OVERHEAD_BYTES

Offsets = npt.NDArray[np.uint64]

ITEM = "<u8"
ITEM_BYTES = 8
_COPIED_BYTES = 64 << 10
NPY_HEADER_BYTES = 128  # of any array of one dimension


def encode_index(offsets_by_shard: Sequence[Offsets]) -> bytes:
    """Return the bytes of an index."""
    buffer = io.BytesIO()
    np.save(buffer, np.concatenate([*offsets_by_shard, np.empty(0, np.uint64)]), allow_pickle=False)
    return buffer.getvalue()


def is_index_of(store: Store, name: str, sizes: Sequence[int]) -> bool:
    """Return true if an object is an index of shards of these sizes in this order. Raises StoreError."""
    data = store.read(name)
    if len(data) < NPY_HEADER_BYTES:
        return False
    offsets = np.frombuffer(data, ITEM, (len(data) - NPY_HEADER_BYTES) // ITEM_BYTES, NPY_HEADER_BYTES)
    # Each shard's offsets begin with 0 and end with its size. There are no other zeros.
    starts = np.flatnonzero(offsets == 0)
    ends = offsets[np.append(starts[1:], len(offsets)) - 1] if len(starts) else offsets
    return ends.tolist() == list(sizes) and encode_index([offsets]) == data


class Index:
    """Offsets of a variant's records. Thread-safe."""

    def __init__(
        self, store: Store, variant: Variant, reader: SpanReader | None = None, copies: LocalCopies | None = None
    ) -> None:
        self._store = store
        self._reader = reader
        self._copies = copies
        self._variant = variant
        self._where = f"{store.url}/{variant.index.name}"
        self._starts = variant.index_starts
        self._header_bytes = variant.index.bytes - self._starts[-1] * ITEM_BYTES
        self._lock = threading.Lock()
        self._mapped: memoryview | None = None
        if self._header_bytes < 64:
            raise ShardError(f"{self._where}: {variant.index.bytes} bytes cannot hold the manifest's records")

    def offsets(self, shards: Sequence[int]) -> list[Offsets]:
        """Return the records+1 offsets of each of these shards. Ranges of a remote index are requested at once.

        Raises:
            ShardError: the index does not belong to the manifest.
            DamagedReadError: each read returned other bytes.
        """
        with self._lock:
            if self._mapped is None:
                self._mapped = self._open()
            mapped = self._mapped
        if mapped is not None:
            offsets = np.frombuffer(mapped, ITEM, self._starts[-1], self._header_bytes)
            parts = ((shard, offsets[self._starts[shard] : self._starts[shard + 1]]) for shard in shards)
            try:
                found = [self._checked(shard, part) for shard, part in parts]
            except ShardError:
                if not self.evict_damaged():
                    raise
            else:
                # Small ones are copied: this process then keeps none of the file's pages.
                found = [part.copy() if part.nbytes <= _COPIED_BYTES else part for part in found]
                if isinstance(mapped.obj, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
                    mapped.obj.madvise(mmap.MADV_DONTNEED)  # pages still in use come back from the page cache
                return found
        reader = self._reader = self._reader or SpanReader()
        at, name = self._header_bytes, self._variant.index.name
        spans = [
            Span(name, at + self._starts[shard] * ITEM_BYTES, at + self._starts[shard + 1] * ITEM_BYTES)
            for shard in shards
        ]

        def read() -> list[bytes]:
            found = list[bytes]()
            for data in reader.read(self._store, spans):
                if isinstance(data, StoreError):
                    raise data
                found.append(data)
            return found

        def check(found: list[bytes]) -> list[Offsets]:
            parts = (np.frombuffer(data, ITEM, len(data) // ITEM_BYTES) for data in found)
            return [self._checked(shard, part) for shard, part in zip(shards, parts, strict=True)]

        def are_sound(found: list[bytes]) -> bool:
            with suppress(ShardError):
                return bool(check(found))
            return False

        return check(settle(self._where, read, identity=tuple, is_sure=are_sound))

    def to_copy(self) -> RemoteShard:
        """Return the file as `LocalCopies` takes it."""
        index = self._variant.index
        return RemoteShard(index.name, index.bytes, index.crc32c, self._store.url)

    def evict_damaged(self) -> bool:
        """Evict a damaged local copy, see `LocalCopies.evict_damaged`. Return False if there is no copy."""
        with self._lock:
            mapped = self._mapped
            if mapped is None or self._copies is None or not self._copies.evict_damaged(self.to_copy(), mapped):
                return False
            self._mapped = None
            return True

    def release(self) -> None:
        """Let go of the file. The next call of `offsets` opens it again."""
        with self._lock:
            self._mapped = None

    def _open(self) -> memoryview | None:
        """Map the whole file, if it is on this machine."""
        path = self._store.local_path(self._variant.index.name)
        if path is None:
            if self._copies is not None:
                with suppress(ShardError):  # it is damaged in its store: the parts that are read will tell
                    return self._copies.open(self.to_copy())
            return None
        try:
            file = self._store.open_local(self._variant.index.name)
            assert file is not None, "it has a local path"
            with file:
                mapped = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        except (FileNotFoundError, ValueError) as error:
            raise ShardError(f"{self._where}: {error}. Run: {advised('verify', self._store.url)}") from error
        except StoreError:
            raise
        except OSError as error:  # says nothing about its bytes
            raise StoreError(f"{self._where}: {error.strerror}") from error
        offsets = max(0, len(mapped) - self._header_bytes) / ITEM_BYTES
        if offsets != self._starts[-1]:
            raise ShardError(
                f"{self._where} has {offsets:.12g} offsets, but the manifest needs {self._starts[-1]}. "
                f"Run: {advised('verify', self._store.url)}"
            )
        return mapped

    def _checked(self, shard: int, part: Offsets) -> Offsets:
        entry = self._variant.shards[shard]
        if (
            len(part) != entry.records + 1
            or part[0] != 0
            or part[-1] != entry.bytes
            or bool((np.diff(part.view(np.int64)) < OVERHEAD_BYTES).any())
        ):
            raise ShardError(
                f"{self._where}: the offsets of {entry.name} do not fit its {entry.bytes} bytes. "
                f"Run: {advised('verify', self._store.url)}"
            )
        return part
