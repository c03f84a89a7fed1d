"""Read records by shard and number, with their CRCs verified, from local shards, local copies or remote shards."""

import itertools
import logging
import random
import resource
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import NamedTuple

import numpy as np

from tpufeed.dataset.index import Index, Offsets
from tpufeed.dataset.manifest import Manifest, Shard, Variant
from tpufeed.dataset.order import Ints, places_of
from tpufeed.dataset.schema import record_layout
from tpufeed.errors import ObjectChangedError, ObjectNotFoundError, RecordError, ShardError, StoreError, advised
from tpufeed.storage.copies import LocalCopies
from tpufeed.storage.copies_folder import RemoteShard
from tpufeed.storage.local import map_file
from tpufeed.storage.reading import SpanReader
from tpufeed.storage.store import Span, Store
from tpufeed.tfrecord.framing import decode_records
from tpufeed.tfrecord.layout import FixedLayout

_logger = logging.getLogger(__name__)

_MOST_MISSING = 2  # times that images may exceed their shard. Single images that are too small are named when read
OPEN_SHARDS = 128
_MOST_MAPPED = 8192  # shards. A process may map 65,530 files by default
_TRIES = 3  # of a record that arrives damaged
_CHUNK_BYTES = 16 << 20
_MERGED_BYTES = 4 << 20  # neighbours in one request, but few enough to have several requests
_STATS_AT_ONCE = 32
_SCATTERED = 128  # records of a view that are read at once
_INDEX_FOR_OTHERS = 0.01  # share of the bytes of the due shards


class Reader:
    """Records of one variant of a split by shard and number. Thread-safe.

    Local shards and local copies of remote ones are mapped into memory and read in place. Other shards are read by
    ranges. Both CRCs of each record are always verified. A shard must not be truncated while it is read. Replacing or
    deleting its file is harmless.

    Args:
        manifest: manifest of the dataset.
        variant: the variant to read.
        shards: store of the shards.
        index_store: store of the index. It may be another one if the dataset was adopted.
        check_current: raises ObjectChangedError once the dataset was rebuilt, see `Dataset.check_current`.
        copies: local copies of remote shards, see `due`.
        open_shards: number of shards to keep open, if the process may open that many. Default: 128. A local copy is in
            use as long as its shard is open.
        threads: threads that several readers share to read ranges. Default: the reader has its own.
    """

    def __init__(  # noqa: PLR0913  # what is read, and what with
        self,
        manifest: Manifest,
        variant: Variant,
        shards: Store,
        index_store: Store,
        check_current: Callable[[], None],
        *,
        copies: LocalCopies | None = None,
        open_shards: int | None = None,
        threads: ThreadPoolExecutor | None = None,
    ) -> None:
        self.layout: FixedLayout = record_layout(manifest.features)
        self._store, self._index_store, self._check_current = shards, index_store, check_current
        self._shards = variant.shards
        pixels = manifest.pixels.bytes_of(manifest.tensor_shape)
        if pixels and pixels > _MOST_MISSING * variant.fewest_record_bytes:  # before a batch's memory is asked for
            shard = min(filter(lambda s: s.records, self._shards), key=lambda s: s.bytes / s.records)
            raise ShardError(
                f"{self._store.url}/{shard.name}: {shard.bytes} bytes cannot hold {shard.records} images of shape "
                f"{manifest.tensor_shape}, as the manifest says. It was edited or damaged. Build the dataset again"
            )
        is_remote = shards.local_path("x") is None
        self._spans = SpanReader(threads) if is_remote or index_store.local_path("x") is None else None
        self._remote = (
            RemoteShards(shards, self._shards, self._spans, index_store.url) if is_remote and self._spans else None
        )
        # There are only copies of files in the store of the shards.
        self._index = Index(index_store, variant, self._spans, copies if index_store.url == shards.url else None)
        self._copies = copies
        wanted, allowed = open_shards or OPEN_SHARDS, _MOST_MAPPED
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if copies is not None and descriptors != resource.RLIM_INFINITY:
            # Each open copy holds a descriptor. These may take a quarter of the process's.
            allowed = max(OPEN_SHARDS, min(descriptors // 4, _MOST_MAPPED))
        self._most_open = min(wanted, allowed)
        self._random = random.Random(0) if wanted > allowed else None
        self._opened: dict[int, _OpenShard] = {}
        self._lock = threading.Lock()
        self._requested = 0  # records since `take_requested`

    def read(self, shard: int, record: int) -> memoryview:
        """Return the payload of a record, valid as long as the view lives.

        Raises:
            RecordError: damage, naming shard, record and byte.
            ShardError: the shard or the index is not the manifest's.
            ObjectChangedError: the dataset was rebuilt, or removed, before the shard was first read.
        """
        return self.read_many([(shard, record)])[0]

    def read_many(
        self, places: Sequence[tuple[int, int]], use: Callable[[int, memoryview], None] | None = None
    ) -> list[memoryview]:
        """Return the payloads of several records, each (shard, record). `use` as in `decode_records`.

        Bytes may have been damaged by the network, or by the disk of local copies: damaged records are read again, and
        `use` is called again. Raises as `read` does.
        """
        shards, damaged, tries_left = {shard for shard, _ in places}, 0, _TRIES

        def where(number: int) -> str:
            nonlocal damaged
            damaged = number
            return f"{self.place(*places[number])}, byte {spans[number][1]}"

        while True:
            opened = self._opened if self._remote is None else self._open(shards)
            spans = []
            for shard, record in places:
                view, offsets = opened.get(shard) or self._open({shard})[shard]
                spans.append((view, offsets.item(record), offsets.item(record + 1)))
            if self._remote is None:
                records = [view[start:stop] for view, start, stop in spans if view is not None]
            else:
                far = [
                    Range(shard, start, stop)
                    for (shard, _), (view, start, stop) in zip(places, spans, strict=True)
                    if view is None
                ]
                if far:
                    with self._lock:
                        self._requested += len(far)
                fetched = iter(self._remote.read(far) if far else ())
                records = [next(fetched) if view is None else view[start:stop] for view, start, stop in spans]
            try:
                return decode_records(records, where, use)
            except RecordError as error:
                if self._remote is None:
                    raise
                # The local copy of its shard, or of the index, may be damaged: that does not count as a try.
                view, copied = spans[damaged][0], self.to_copy(places[damaged][0])
                is_evicted = view is not None and self._copies is not None and self._copies.evict_damaged(copied, view)
                if not is_evicted and not self._index.evict_damaged():
                    tries_left -= 1
                    if not tries_left:
                        raise
                    _logger.warning("%s. Reading it again", error)
                with self._lock:  # their offsets may have been damaged on the way as well
                    for shard in shards:
                        self._opened.pop(shard, None)

    def has_any(self, shards: Iterable[int]) -> bool:
        """Return True if one of these shards, none of them empty, is the manifest's."""
        for shard in shards:
            try:
                self.read(shard, 0)
            except ShardError:
                continue
            except RecordError:
                pass  # damaged, but there
            return True
        return False

    def take_requested(self) -> int:
        """Return the number of records that were requested from the store since the last call."""
        if not self._requested:  # always so for local shards
            return 0
        with self._lock:
            total, self._requested = self._requested, 0
        return total

    def iter_payloads(self, start: int, stop: int) -> Iterator[memoryview]:
        """Yield the payloads of the samples `[start, stop)`. Remote ones are read ahead. Raises as `read` does."""
        return self._iter_read(self._iter_chunks(start, stop))

    def iter_samples(self, samples: Ints) -> Iterator[memoryview]:
        """Yield the payloads of these samples, sorted by their ids, as `iter_payloads` does."""
        starts = np.cumsum([0, *(shard.records for shard in self._shards)])
        parts = (samples[at : at + _SCATTERED] for at in range(0, len(samples), _SCATTERED))
        groups = (itertools.groupby(places_of(part, starts), lambda place: place[0]) for part in parts)
        return self._iter_read([*group] for _, group in itertools.chain.from_iterable(groups))

    def _iter_read(self, chunks: Iterator[list[tuple[int, int]]]) -> Iterator[memoryview]:
        if self._remote is None:
            for chunk in chunks:
                yield from map(self.read, *zip(*chunk, strict=True))
            return
        with ThreadPoolExecutor(1, "tpufeed-ahead") as executor:
            ahead: Future[list[memoryview]] | None = None
            for chunk in chunks:
                now, ahead = ahead, executor.submit(self.read_many, chunk)
                if now is not None:
                    yield from now.result()
            if ahead is not None:
                yield from ahead.result()

    def due(self, shards: Iterable[int]) -> Iterator[RemoteShard]:
        """Yield these shards and the index for `LocalCopies.fetch`, unless they are local files.

        The index is left out if one of many hosts reads so few shards that most of the index would be for others: its
        parts are then read by ranges, with one request per opened shard.
        """
        if self._remote is None:
            return
        copied = list(map(self.to_copy, shards))
        yield from copied
        index, due_bytes = self._index.to_copy(), sum(shard.size_bytes for shard in copied)
        others_bytes = index.size_bytes * (1 - due_bytes / max(1, sum(shard.bytes for shard in self._shards)))
        if self._index_store.url == self._store.url and (not copied or others_bytes <= _INDEX_FOR_OTHERS * due_bytes):
            yield index

    def to_copy(self, shard: int) -> RemoteShard:
        """Return a shard as `LocalCopies` takes it."""
        entry = self._shards[shard]
        return RemoteShard(entry.name, entry.bytes, entry.crc32c, self._store.url)

    def release(self) -> None:
        """Close all shards and connections. Those needed again are opened again."""
        with self._lock:
            self._opened.clear()
        self._index.release()
        if self._spans is not None:
            self._spans.close()

    def place(self, shard: int, record: int) -> str:
        """Return a record's name for errors."""
        return f"{self._store.url}/{self._shards[shard].name}, record {record}"

    def _iter_chunks(self, start: int, stop: int) -> Iterator[list[tuple[int, int]]]:
        """Yield places of consecutive samples, some MB at a time and never of two shards."""
        first = 0
        for shard, entry in enumerate(self._shards):
            begin, end = max(first, start) - first, min(first + entry.records, stop) - first
            step = max(1, _CHUNK_BYTES * entry.records // max(1, entry.bytes))
            for at in range(begin, end, step):
                yield [(shard, record) for record in range(at, min(at + step, end))]
            first += entry.records

    def _open(self, shards: set[int]) -> dict[int, "_OpenShard"]:
        """Return these shards. New ones are opened, from a local copy if there is one."""
        with self._lock:
            opened = {shard: found for shard in shards if (found := self._opened.get(shard)) is not None}
            new = sorted(shards - opened.keys())
            views = [self._view(shard) for shard in new]
            if new:
                self._check_current()  # only now: a mapped file stays what it is
                offsets = self._index.offsets(new)
                opened.update(zip(new, map(_OpenShard, views, offsets), strict=True))
            if self._copies is not None:
                for shard in shards.difference(new):
                    if opened[shard].view is None and (view := self._view(shard)) is not None:
                        opened[shard] = _OpenShard(view, opened[shard].offsets)
            self._opened.update(opened)
            excess = max(0, len(self._opened) - self._most_open)
            if excess and self._random is not None:
                # Fewer may be open than are read in turn. The oldest are due next: closing these would open each again
                # for each of its records.
                closed = self._random.sample(list(self._opened), excess)
            else:
                closed = list(itertools.islice(self._opened, excess))
            for shard in closed:
                del self._opened[shard]
            return opened

    def _view(self, shard: int) -> memoryview | None:
        entry = self._shards[shard]
        if self._remote is not None:
            # A shard that is damaged in its store has no copy: reading by ranges finds the record.
            with suppress(ShardError):
                return None if self._copies is None else self._copies.open(self.to_copy(shard))
            return None
        path = self._store.local_path(entry.name)
        if path is None:
            return None
        try:
            file = self._store.open_local(entry.name)
            assert file is not None, "it has a local path"
            with file:
                size = file.seek(0, 2)
                if size != entry.bytes:
                    raise ShardError(
                        f"{path} has {size} bytes, but the manifest says {entry.bytes}. "
                        f"Run: {advised('verify', self._index_store.url)}"
                    )
                return map_file(file.fileno(), size) if size else memoryview(b"")
        except FileNotFoundError as error:
            raise ShardError(
                f"{error}, but the manifest names this shard. Is the dataset complete? Run: "
                f"{advised('verify', self._index_store.url)}"
            ) from error
        except StoreError:
            raise
        except OSError as error:  # says nothing about its bytes
            raise StoreError(f"{path}: {error.strerror}") from error


class _OpenShard(NamedTuple):
    """A shard's bytes, if they are mapped, and its records' offsets."""

    view: memoryview | None
    offsets: Offsets


class Range(NamedTuple):
    """Bytes `[start, stop)` of shard number `shard`."""

    shard: int
    start: int
    stop: int


class RemoteShards:
    """Reads ranges of one variant's shards. Thread-safe.

    It requests the manifest's generations. If another tool has copied the dataset, the objects have other ones: then
    the present generation is pinned, if size and CRC-32C are the manifest's.
    """

    def __init__(self, store: Store, shards: Sequence[Shard], reader: SpanReader, dataset_url: str) -> None:
        self._store, self._dataset_url = store, dataset_url  # shards that were adopted may be elsewhere
        self._reader = reader
        self._shards = shards
        self._versions: dict[int, str] = {}
        self._pinning = threading.Lock()

    def read(self, ranges: Sequence[Range]) -> list[memoryview]:
        """Return the bytes of each range. Neighbours share a request.

        Raises:
            ShardError: a shard is missing, or is not the manifest's.
            StoreError: a shard cannot be read.
        """
        merged = list(_merge(ranges))
        wholes = [whole for whole, _ in merged]
        if self._store.generations:
            unknown = (number for number in {whole.shard for whole in wholes} - self._versions.keys())
            self._pin({number: "" for number in unknown if self._shards[number].generation is None})
        found = self._reader.read(self._store, [self._span(each) for each in wholes])
        changed = [number for number, data in enumerate(found) if isinstance(data, ObjectChangedError)]
        if changed:
            self._pin({wholes[number].shard: self._span(wholes[number]).version for number in changed})
            again = self._reader.read(self._store, [self._span(wholes[number]) for number in changed])
            for number, data in zip(changed, again, strict=True):
                found[number] = data
        parts: list[memoryview] = []
        for (whole, members), data in zip(merged, found, strict=True):
            if isinstance(data, ObjectNotFoundError):
                raise self._missing(self._shards[whole.shard]) from data
            if isinstance(data, StoreError):
                raise data
            view = memoryview(data)
            parts += [view[start - whole.start : stop - whole.start] for _, start, stop in members]
        return parts

    def _span(self, wanted: Range) -> Span:
        entry = self._shards[wanted.shard]
        version = self._versions.get(wanted.shard, entry.generation or "") if self._store.generations else ""
        return Span(entry.name, wanted.start, wanted.stop, version)

    def _pin(self, shards: Mapping[int, str]) -> None:
        """Look up the present versions of shards. Each comes with the version that is known to be gone."""
        with self._pinning:  # several threads look up the same shards at once
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
                f"{self._store.url}/{entry.name} has {info.size_bytes} bytes{found}, but the manifest says "
                f"{entry.bytes} of {entry.crc32c:#010x}: it was replaced. Run: "
                f"{advised('verify', self._dataset_url)}"
            )
        return info.version

    def _missing(self, entry: Shard) -> ShardError:
        return ShardError(
            f"{self._store.url}/{entry.name}: no such object, but the manifest names this shard. Is the dataset "
            f"complete? Run: {advised('verify', self._dataset_url)}"
        )


def _merge(ranges: Sequence[Range]) -> Iterator[tuple[Range, list[Range]]]:
    """Yield neighbours as one range, with its parts."""
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
