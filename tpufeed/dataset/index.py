"""The index of a variant: for each shard in turn its records+1 offsets within the shard; the last is its size.

An npy file of uint64. Where a shard's part starts follows from the manifest's counts, so a reader of a remote dataset
reads only the parts that it needs, and a reader of a local one maps the file.
"""

import io
import itertools
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tpufeed.dataset.manifest import Variant
from tpufeed.errors import ShardError
from tpufeed.storage.store import Store

Offsets = npt.NDArray[np.uint64]

_ITEM = "<u8"
_ITEM_BYTES = 8


def encode_index(offsets_by_shard: Sequence[Offsets]) -> bytes:
    """The file's bytes."""
    buffer = io.BytesIO()
    np.save(buffer, np.concatenate([*offsets_by_shard, np.empty(0, np.uint64)]), allow_pickle=False)
    return buffer.getvalue()


class Index:
    """Offsets of a variant's records. Thread-safe."""

    def __init__(self, store: Store, variant: Variant) -> None:
        self._store = store
        self._variant = variant
        self._where = f"{store.url}/{variant.index.name}"
        self._starts = [0, *itertools.accumulate(shard.records + 1 for shard in variant.shards)]
        self._header_bytes = variant.index.bytes - self._starts[-1] * _ITEM_BYTES
        self._lock = threading.Lock()
        self._mapped: Offsets | None = None
        self._parts: dict[int, Offsets] = {}
        if self._header_bytes < 64:
            raise ShardError(f"{self._where}: {variant.index.bytes} bytes cannot hold the manifest's records")

    def offsets(self, shard: int) -> Offsets:
        """The records+1 offsets of shard number `shard`.

        Raises:
            ShardError: the index does not belong to the manifest.
        """
        with self._lock:
            found = self._parts.get(shard)
            if found is None:
                found = self._parts[shard] = self._load(shard)
        return found

    def _load(self, shard: int) -> Offsets:
        start, stop = self._starts[shard], self._starts[shard + 1]
        path = self._store.local_path(self._variant.index.name)
        if path is not None:
            if self._mapped is None:
                self._mapped = self._map(path)
            part = self._mapped[start:stop]
        else:
            at = self._header_bytes
            data = self._store.read_range(self._variant.index.name, at + start * _ITEM_BYTES, at + stop * _ITEM_BYTES)
            part = np.frombuffer(data, _ITEM, len(data) // _ITEM_BYTES)
        size = self._variant.shards[shard].bytes
        if len(part) != stop - start or part[0] != 0 or part[-1] != size or bool((part[1:] < part[:-1]).any()):
            raise ShardError(
                f"{self._where}: the offsets of {self._variant.shards[shard].name} do not fit its {size} bytes. "
                f"Run: tpufeed verify {self._store.url}"
            )
        return part

    def _map(self, path: Path) -> Offsets:
        try:
            mapped = np.memmap(path, _ITEM, "r", self._header_bytes)
        except (OSError, ValueError) as error:
            raise ShardError(f"{self._where}: {error}. Run: tpufeed verify {self._store.url}") from error
        if len(mapped) != self._starts[-1]:
            raise ShardError(
                f"{self._where} has {len(mapped)} offsets; the manifest's records want {self._starts[-1]}. "
                f"Run: tpufeed verify {self._store.url}"
            )
        return np.asarray(mapped)  # every access of a np.memmap runs Python code
