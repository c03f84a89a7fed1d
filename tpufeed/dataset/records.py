"""Records of a dataset by shard and number, with their CRCs verified."""

import itertools
import logging
import math
import random
import resource
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tpufeed.dataset.index import Index, Offsets
from tpufeed.dataset.manifest import Shard
from tpufeed.dataset.remote import Range, RemoteShards
from tpufeed.dataset.schema import record_layout
from tpufeed.errors import OptionError, RecordError, ShardError, StoreError
from tpufeed.storage.local import map_file, open_plain
from tpufeed.storage.reading import SpanReader
from tpufeed.storage.shard_cache import ShardCache
from tpufeed.storage.shard_folder import RemoteShard
from tpufeed.tfrecord.framing import decode_records
from tpufeed.tfrecord.layout import FixedLayout

if TYPE_CHECKING:
    from tpufeed.dataset.reader import Dataset

_logger = logging.getLogger(__name__)

_MOST_MISSING = 2  # of a shard's images; single ones that are too small are named when they are read
OPEN_SHARDS = 128
_MOST_MAPPED = 8192  # shards; a process may map 65,530 files by default
_TRIES = 3  # of a record that arrives damaged
_CHUNK_BYTES = 16 << 20
_INDEX_FOR_OTHERS = 0.01  # of the bytes of the shards that are due


class Reader:
    """Records of one variant of a split by shard and number. Thread-safe.

    Local shards are mapped into memory and read in place, as are remote ones that are staged; the others are read by
    ranges. Either way both CRCs of each record are verified. A shard must not be truncated while it is read; replacing
    or deleting its file is harmless.

    Args:
        dataset: what to read.
        split: which part of it.
        variant: of a cache.
        stage: local copies of remote shards, see `due`.
        open_shards: how many are kept open, as far as the process may, 128 by default; a staged one is in use as long
            as it is open.
    """

    def __init__(
        self,
        dataset: "Dataset",
        split: str,
        variant: int = 0,
        stage: ShardCache | None = None,
        open_shards: int | None = None,
    ) -> None:
        variants = dataset.split(split).variants
        if not 0 <= variant < len(variants):
            raise OptionError(
                f"{dataset.url}: split {split!r} has {len(variants)} variants, so none of number {variant}"
            )
        self.layout: FixedLayout = record_layout(dataset.manifest.features)
        self._dataset = dataset
        self._store = dataset.shards
        self._shards = variants[variant].shards
        self._check_shape(dataset.manifest.tensor_shape)
        self._readers = SpanReader(dataset.store), SpanReader(self._store)
        # An adopted dataset may have its index elsewhere: what is staged comes from the store of the shards.
        index_stage = stage if dataset.store.url == self._store.url else None
        self._index = Index(dataset.store, variants[variant], self._readers[0], index_stage)
        self._remote = RemoteShards(self._store, self._shards, self._readers[1]) if dataset.is_remote else None
        self._stage = stage
        wanted, allowed = open_shards or OPEN_SHARDS, _MOST_MAPPED if stage is None else _most_staged()
        self._most_open = min(wanted, allowed)
        self._random = random.Random(0) if wanted > allowed else None
        self._opened: dict[int, _OpenShard] = {}
        self._lock = threading.Lock()

    def read(self, shard: int, record: int) -> memoryview:
        """The payload of a record, valid as long as the view lives.

        Raises:
            RecordError: damage, naming shard, record and byte.
            ShardError: the shard or the index is not the manifest's.
            ObjectChangedError: the dataset was built anew, or removed, before the shard was first read.
        """
        return self.read_many([(shard, record)])[0]

    def read_many(
        self, places: Sequence[tuple[int, int]], use: Callable[[int, memoryview], None] | None = None
    ) -> list[memoryview]:
        """Payloads of several records, each (shard, record); `use` as in `decode_records`. Raises as `read` does.

        Damage of what came over a network may be the network's, and that of a staged copy the disk's: it is asked for
        again, and `use` called again.
        """
        shards, damaged, tries_left = {shard for shard, _ in places}, list[int](), _TRIES
        while True:
            opened = self._opened if self._remote is None else self._open(shards)
            spans = [self._span(opened, shard, record) for shard, record in places]
            try:
                return decode_records(self._cut(places, spans), partial(self._where, places, spans, damaged), use)
            except RecordError as error:
                if self._remote is None:
                    raise
                number = damaged.pop()
                # Each of a batch's shards may have a damaged copy. One that is evicted is no try of the network's.
                if not self._evict_damaged(places[number][0], spans[number][0]):
                    tries_left -= 1
                    if not tries_left:
                        raise
                    _logger.warning("%s; reading it again", error)
                self._forget(shards)

    def iter_payloads(self, start: int, stop: int) -> Iterator[memoryview]:
        """Payloads of the samples `[start, stop)` of the split; remote ones are read ahead. Raises as `read` does."""
        chunks = self._iter_chunks(start, stop)
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
        """List these shards and the index for `ShardCache.fetch`, unless they are files of this machine already.

        The index is left out where a host of many reads so few of the shards that most of it would be for others: then
        its parts come by ranges, a request for each shard that is opened.
        """
        if self._remote is not None:
            staged = list(self._remote.to_stage(shards))
            yield from staged
            if self._dataset.store.url == self._store.url and self._wants_index(staged):
                yield self._index.to_stage()

    def release(self) -> None:
        """Close all shards and connections; those that are asked for again are opened again."""
        with self._lock:
            self._opened.clear()
        self._index.release()
        for reader in self._readers:
            reader.close()

    def place(self, shard: int, record: int) -> str:
        """Return a record's name for errors."""
        return f"{self._store.url}/{self._shards[shard].name}, record {record}"

    def _check_shape(self, shape: tuple[int, int, int] | None) -> None:
        """Before anybody asks for the memory of a batch of such images."""
        if shape is None:
            return
        for shard in self._shards:
            if shard.records * math.prod(shape) > _MOST_MISSING * shard.bytes:
                raise ShardError(
                    f"{self._store.url}/{shard.name}: {shard.bytes} bytes cannot hold {shard.records} images of shape "
                    f"{shape}, as the manifest says. It was edited or damaged; build the dataset again"
                )

    def _wants_index(self, staged: Sequence[RemoteShard]) -> bool:
        index, due_bytes = self._index.to_stage(), sum(shard.size_bytes for shard in staged)
        all_bytes = sum(shard.bytes for shard in self._shards)
        others_bytes = index.size_bytes * (1 - due_bytes / max(1, all_bytes))
        return not staged or others_bytes <= _INDEX_FOR_OTHERS * due_bytes

    def _cut(
        self, places: Sequence[tuple[int, int]], spans: Sequence[tuple[memoryview | None, int, int]]
    ) -> list[memoryview]:
        if self._remote is None:
            return [view[start:stop] for view, start, stop in spans if view is not None]
        far = [
            Range(shard, start, stop)
            for (shard, _), (view, start, stop) in zip(places, spans, strict=True)
            if view is None
        ]
        fetched = iter(self._remote.read(far) if far else ())
        return [next(fetched) if view is None else view[start:stop] for view, start, stop in spans]

    def _where(
        self,
        places: Sequence[tuple[int, int]],
        spans: Sequence[tuple[memoryview | None, int, int]],
        damaged: list[int],
        number: int,
    ) -> str:
        """Name a record that is damaged, and note its number."""
        damaged.append(number)
        return f"{self.place(*places[number])}, byte {spans[number][1]}"

    def _evict_damaged(self, shard: int, view: memoryview | None) -> bool:
        """Return whether a record is damaged because the staged copy of its shard, or of the index, is; it is gone."""
        if self._stage is not None and self._remote is not None and view is not None:
            (staged,) = self._remote.to_stage([shard])
            if self._stage.evict_damaged(staged, view):
                return True
        return self._index.evict_damaged()

    def _forget(self, shards: set[int]) -> None:
        """Open them anew the next time: it may be their offsets that were damaged on the way."""
        with self._lock:
            for shard in shards:
                self._opened.pop(shard, None)

    def _iter_chunks(self, start: int, stop: int) -> Iterator[list[tuple[int, int]]]:
        """Places of the samples in turn, some MB at a time and never of two shards."""
        first = 0
        for shard, entry in enumerate(self._shards):
            begin, end = max(first, start) - first, min(first + entry.records, stop) - first
            step = max(1, _CHUNK_BYTES * entry.records // max(1, entry.bytes))
            for at in range(begin, end, step):
                yield [(shard, record) for record in range(at, min(at + step, end))]
            first += entry.records

    def _span(self, opened: dict[int, "_OpenShard"], shard: int, record: int) -> tuple[memoryview | None, int, int]:
        view, offsets = opened.get(shard) or self._open({shard})[shard]
        return view, offsets.item(record), offsets.item(record + 1)

    def _open(self, shards: set[int]) -> dict[int, "_OpenShard"]:
        """These shards; those that are new are opened, and those that are staged by now are looked at there."""
        with self._lock:
            opened = {shard: found for shard in shards if (found := self._opened.get(shard)) is not None}
            new = sorted(shards - opened.keys())
            views = [self._view(shard) for shard in new]
            if new:
                self._dataset.check_current()  # only now: what is mapped stays the file that it is
                offsets = self._index.offsets(new)
                opened.update(zip(new, map(_OpenShard, views, offsets), strict=True))
            if self._stage is not None:
                for shard in shards.difference(new):
                    if opened[shard].view is None and (view := self._view(shard)) is not None:
                        opened[shard] = _OpenShard(view, opened[shard].offsets)
            self._opened.update(opened)
            for shard in self._to_close(len(self._opened) - self._most_open):
                del self._opened[shard]
            return opened

    def _to_close(self, count: int) -> list[int]:
        """Return so many open shards: those that were opened first, whose records have been read.

        Where fewer may be open than are read in turn, any: the first ones would be just those that are due next, and
        each would be opened again for each of its records.
        """
        if count > 0 and self._random is not None:
            return self._random.sample(list(self._opened), count)
        return list(itertools.islice(self._opened, max(0, count)))

    def _view(self, shard: int) -> memoryview | None:
        entry = self._shards[shard]
        if self._remote is not None:
            # A shard that is damaged where it comes from cannot be staged: reading by ranges finds the record.
            with suppress(ShardError):
                return None if self._stage is None else self._stage.open(*self._remote.to_stage([shard]))
            return None
        path = self._store.local_path(entry.name)
        return None if path is None else _map_shard(path, entry, self._dataset.url)


def _most_staged() -> int:
    """Return how many staged shards may be open: each holds a descriptor, a quarter of which a process may spend so."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST_MAPPED if soft == resource.RLIM_INFINITY else max(OPEN_SHARDS, min(soft // 4, _MOST_MAPPED))


class _OpenShard(NamedTuple):
    """A shard's bytes, where they are mapped, and its records' offsets."""

    view: memoryview | None
    offsets: Offsets


def _map_shard(path: Path, shard: Shard, url: str) -> memoryview:
    try:
        with open(path, "rb", opener=open_plain) as file:
            size = file.seek(0, 2)
            if size != shard.bytes:
                raise ShardError(f"{path} has {size} bytes; the manifest says {shard.bytes}. Run: tpufeed verify {url}")
            return map_file(file.fileno(), size) if size else memoryview(b"")
    except FileNotFoundError as error:
        raise ShardError(
            f"{path}: {error.strerror}; the manifest names this shard. Is the dataset complete?"
        ) from error
    except OSError as error:  # says nothing of its bytes
        raise StoreError(f"{path}: {error.strerror}") from error
