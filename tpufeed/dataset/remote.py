"""Ranges of remote shards, many at once, each pinned to the version whose bytes the manifest describes."""

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from tpufeed.dataset.manifest import Shard
from tpufeed.errors import ObjectChangedError, ObjectNotFoundError, ShardError, StoreError
from tpufeed.storage.reading import SpanReader
from tpufeed.storage.shard_folder import RemoteShard
from tpufeed.storage.store import Span, Store

_MERGED_BYTES = 4 << 20  # neighbours in one request, but not so many that none run beside it
_STATS_AT_ONCE = 32


class Range(NamedTuple):
    """Bytes `[start, stop)` of shard number `shard`."""

    shard: int
    start: int
    stop: int


class RemoteShards:
    """Reads ranges of one variant's shards. Thread-safe.

    The manifest's generation is asked for. Where another tool has copied the dataset the objects have other ones: then
    the present one is pinned, if its size and CRC-32C are the manifest's.
    """

    def __init__(self, store: Store, shards: Sequence[Shard], reader: SpanReader) -> None:
        self._store = store
        self._reader = reader
        self._shards = shards
        self._versions: dict[int, str] = {}
        self._pinning = threading.Lock()

    def to_stage(self, numbers: Iterable[int]) -> Iterator[RemoteShard]:
        """Return the same shards as a stage knows them."""
        for number in numbers:
            entry = self._shards[number]
            yield RemoteShard(entry.name, entry.bytes, entry.crc32c)

    def read(self, ranges: Sequence[Range]) -> list[memoryview]:
        """The bytes of each range; neighbours share a request.

        Raises:
            ShardError: a shard is missing, or another than the manifest says.
            StoreError: it cannot be read.
        """
        merged = list(_merge(ranges))
        found = self._read([whole for whole, _ in merged])
        parts: list[memoryview] = []
        for (whole, members), data in zip(merged, found, strict=True):
            view = memoryview(data)
            parts += [view[start - whole.start : stop - whole.start] for _, start, stop in members]
        return parts

    def _read(self, ranges: Sequence[Range]) -> list[bytes]:
        self._pin({shard: "" for shard, _, _ in ranges if not self._is_pinned(shard)})
        found = self._reader.read([self._span(each) for each in ranges])
        changed = [number for number, data in enumerate(found) if isinstance(data, ObjectChangedError)]
        if changed:
            asked = [(ranges[number].shard, self._span(ranges[number]).version) for number in changed]
            self._pin(dict(asked))
            again = self._reader.read([self._span(ranges[number]) for number in changed])
            for number, data in zip(changed, again, strict=True):
                found[number] = data
        return [self._checked(each, data) for each, data in zip(ranges, found, strict=True)]

    def _span(self, wanted: Range) -> Span:
        entry = self._shards[wanted.shard]
        version = self._versions.get(wanted.shard, entry.generation or "") if self._store.generations else ""
        return Span(entry.name, wanted.start, wanted.stop, version)

    def _is_pinned(self, shard: int) -> bool:
        known = shard in self._versions or self._shards[shard].generation is not None
        return known or not self._store.generations

    def _pin(self, shards: Mapping[int, str]) -> None:
        """Find out the present versions of shards; each comes with the one that is known to be none."""
        with self._pinning:  # several threads find out about the same shards at once
            wanted = [shard for shard, gone in shards.items() if self._versions.get(shard, gone) == gone]
            if not wanted:
                return
            with ThreadPoolExecutor(min(len(wanted), _STATS_AT_ONCE), "tpufeed-pin") as executor:
                self._versions.update(zip(wanted, executor.map(self._present_version, wanted), strict=True))

    def _present_version(self, shard: int) -> str:
        entry = self._shards[shard]
        info = self._store.stat(entry.name)
        if info is None:
            raise self._missing(entry)
        if info.size_bytes != entry.bytes or info.crc32c not in (None, entry.crc32c):
            found = "" if info.crc32c is None else f" of CRC-32C {info.crc32c:#010x}"
            raise ShardError(
                f"{self._store.url}/{entry.name} has {info.size_bytes} bytes{found}; the manifest says "
                f"{entry.bytes} of {entry.crc32c:#010x}: it was replaced. Run: tpufeed verify {self._store.url}"
            )
        return info.version

    def _checked(self, wanted: Range, data: bytes | StoreError) -> bytes:
        if isinstance(data, ObjectNotFoundError):
            raise self._missing(self._shards[wanted.shard]) from data
        if isinstance(data, StoreError):
            raise data
        return data

    def _missing(self, entry: Shard) -> ShardError:
        return ShardError(
            f"{self._store.url}/{entry.name}: no such object; the manifest names this shard. Is the dataset complete?"
        )


def _merge(ranges: Sequence[Range]) -> Iterator[tuple[Range, list[Range]]]:
    """Neighbours as one range, with those that it is made of."""
    members: list[Range] = []
    for each in ranges:
        if members:
            first, last = members[0], members[-1]
            if each.shard == last.shard and each.start == last.stop and each.stop - first.start <= _MERGED_BYTES:
                members.append(each)
                continue
            yield Range(first.shard, first.start, last.stop), members
        members = [each]
    if members:
        yield Range(members[0].shard, members[0].start, members[-1].stop), members
