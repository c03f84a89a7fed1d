"""Whether an index is the manifest's, and the offsets that it gives where it is."""

import io
import itertools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tpufeed.dataset.commit import stored_crc32c
from tpufeed.dataset.manifest import IndexFile, Variant
from tpufeed.errors import Damage, ObjectNotFoundError, StoreError, Unreadable
from tpufeed.storage.reading import settle
from tpufeed.storage.store import Store
from tpufeed.tfrecord.framing import OVERHEAD_BYTES

_ITEM_BYTES = 8


@dataclass(frozen=True, slots=True)
class IndexCheck:
    """An index file, of which only the parts asked for are read.

    Attributes:
        problem: why it is not the manifest's.
        unreadable: what kept it from being read; it has no offsets then, either.
        lost: it has no offsets that could be compared: it is missing, or of another size.
        starts: the byte where each shard's part starts, and the last one's ends.
    """

    store: Store
    variant: Variant
    problem: Damage | None
    unreadable: Unreadable | None
    lost: bool
    starts: tuple[int, ...]

    def offsets(self, shard: int) -> npt.NDArray[np.int64] | None:
        """The offsets of a shard as they stand there; None where they can be no shard's."""
        if self.lost:
            return None
        start, stop = self.starts[shard : shard + 2]
        try:
            data = self.store.read_range(self.variant.index.name, start, stop)
        except StoreError:
            return None
        if len(data) != stop - start:
            return None
        return np.frombuffer(data, "<u8").astype(np.int64)

    def sound_offsets(self, shard: int) -> npt.NDArray[np.int64] | None:
        """The offsets of a shard where they may be relied on, else None."""
        found = None if self.problem or self.unreadable else self.offsets(shard)
        if found is None or found[0] != 0 or found[-1] != self.variant.shards[shard].bytes:
            return None
        return None if (np.diff(found) < OVERHEAD_BYTES).any() else found


def check_index(store: Store, variant: Variant) -> IndexCheck:
    """Presence, size, CRC and number of offsets of a variant's index."""
    entry = variant.index
    lost, message, unreadable = True, "", None
    try:
        found = store.stat(entry.name)
        if found is None:
            message = "is missing; the manifest names it"
        elif found.size_bytes != entry.bytes:
            message = f"{found.size_bytes} bytes; the manifest says {entry.bytes}"
        elif (crc := _read_crc32c(store, entry)) != entry.crc32c:
            lost = False
            message = f"CRC-32C {crc:08x}; the manifest says {entry.crc32c:08x}"
        else:
            message = _count_problem(store, variant)
            lost = bool(message)
    except ObjectNotFoundError:
        message = "was removed while it was read"
    except StoreError as error:
        unreadable = Unreadable(entry.name, str(error))
    problem = Damage(entry.name, None, None, message) if message else None
    return IndexCheck(store, variant, problem, unreadable, lost, _part_starts(variant))


def _read_crc32c(store: Store, entry: IndexFile) -> int:
    return settle(
        f"{store.url}/{entry.name}",
        lambda: stored_crc32c(store, entry.name, entry.bytes),
        identity=lambda crc: crc,
        is_sure=lambda crc: crc == entry.crc32c,
    )


def _part_starts(variant: Variant) -> tuple[int, ...]:
    sizes = [_ITEM_BYTES * (entry.records + 1) for entry in variant.shards]
    return tuple(itertools.accumulate(sizes, initial=variant.index.bytes - sum(sizes)))


def _count_problem(store: Store, variant: Variant) -> str:
    """Why the file is no index of as many records as the manifest counts."""
    return settle(
        f"{store.url}/{variant.index.name}",
        lambda: _read_count_problem(store, variant),
        identity=lambda problem: problem,
        is_sure=lambda problem: not problem,
    )


def _read_count_problem(store: Store, variant: Variant) -> str:
    wanted = sum(entry.records + 1 for entry in variant.shards)
    head = io.BytesIO(store.read_range(variant.index.name, 0, min(variant.index.bytes, 4096)))
    try:
        np.lib.format.read_magic(head)
        shape, _, dtype = np.lib.format.read_array_header_1_0(head)
    except ValueError as error:
        return f"not an npy file: {error}"
    if dtype != np.dtype("<u8") or len(shape) != 1:
        return f"an array of {dtype} of shape {shape}, not of uint64 offsets"
    if shape[0] != wanted or head.tell() + wanted * _ITEM_BYTES != variant.index.bytes:
        return f"{shape[0]} offsets; the manifest's records want {wanted}"
    return ""
