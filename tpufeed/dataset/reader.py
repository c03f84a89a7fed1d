"""Opening a dataset, and reading its records with their CRCs verified."""

import mmap
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from tpufeed.dataset.index import Index, Offsets
from tpufeed.dataset.manifest import Manifest, Shard, Split, decode_manifest
from tpufeed.dataset.naming import MANIFEST
from tpufeed.dataset.schema import record_layout
from tpufeed.errors import (
    DatasetExistsError,
    DatasetNotFoundError,
    ObjectNotFoundError,
    OptionError,
    ShardError,
)
from tpufeed.storage.registry import open_store
from tpufeed.storage.store import Store
from tpufeed.tfrecord.example import Feature, decode_example
from tpufeed.tfrecord.framing import decode_records
from tpufeed.tfrecord.layout import FixedLayout

_OPEN_SHARDS = 128  # each holds a descriptor


@dataclass(frozen=True)
class Dataset:
    """A dataset that exists: its manifest and the store that holds it, with the index."""

    store: Store
    manifest: Manifest

    @cached_property
    def shards(self) -> Store:
        """The store that holds the shards: `store`, except where a dataset was adopted from elsewhere."""
        return self.store if self.manifest.data_url is None else open_store(self.manifest.data_url)

    @property
    def url(self) -> str:
        """Where it stands."""
        return self.store.url

    @cached_property
    def content_digest(self) -> str:
        """What it holds, see `Manifest.content_digest`."""
        return self.manifest.content_digest

    def split(self, name: str) -> Split:
        """The split `name`. Raises OptionError naming those that there are."""
        found = self.manifest.splits.get(name)
        if found is None:
            raise OptionError(f"{self.url} has no split {name!r}; it has {', '.join(self.manifest.splits) or 'none'}")
        return found

    def reader(self, split: str, variant: int = 0) -> "Reader":
        """A reader of the records of one variant of a split."""
        return Reader(self, split, variant)

    def iter_examples(self, split: str, variant: int = 0) -> Iterator[dict[str, Feature]]:
        """Every sample of a split as its features, in the order of the shards."""
        reader = self.reader(split, variant)
        for shard, entry in enumerate(self.split(split).variants[variant].shards):
            for record in range(entry.records):
                yield decode_example(reader.read(shard, record), reader.place(shard, record))


def open_dataset(url: str | Path) -> Dataset:
    """The dataset at `url`.

    Raises:
        DatasetNotFoundError: no manifest there.
        ManifestError: a manifest that is damaged, or of another format version.
        StoreError: the store cannot be read.
    """
    store = open_store(url)
    found = find_dataset(store)
    if found is None:
        raise DatasetNotFoundError(
            f"{store.url} holds no dataset: there is no {MANIFEST}. Make one with: tpufeed shard PHOTOS {store.url} "
            "(a build that was interrupted has none yet; run its command again)"
        )
    return found


def find_dataset(store: Store) -> Dataset | None:
    """The dataset that `store` holds, or None. Raises as `open_dataset` does."""
    try:
        data = store.read(MANIFEST)
    except ObjectNotFoundError:
        return None
    return Dataset(store, decode_manifest(data, f"{store.url}/{MANIFEST}"))


def refuse_existing(store: Store) -> None:
    """Raises DatasetExistsError where `store` holds a finished dataset."""
    if store.stat(MANIFEST) is not None:
        raise DatasetExistsError(
            f"{store.url} already holds a dataset (see: tpufeed info {store.url}); nothing was changed. Take another "
            "destination, or remove this one first"
        )


class Reader:
    """Records of one variant of a split by shard and number. Thread-safe.

    Local shards are mapped into memory and read in place; remote ones are read by ranges. Either way both CRCs of each
    record are verified. A shard must not be truncated while it is read; replacing or deleting its file is harmless.
    """

    def __init__(self, dataset: Dataset, split: str, variant: int = 0) -> None:
        variants = dataset.split(split).variants
        if not 0 <= variant < len(variants):
            raise OptionError(
                f"{dataset.url}: split {split!r} has {len(variants)} variants, so none of number {variant}"
            )
        self.layout: FixedLayout = record_layout(dataset.manifest.features)
        self._store = dataset.shards
        self._shards = variants[variant].shards
        self._index = Index(dataset.store, variants[variant])
        self._opened: dict[int, _OpenShard] = {}
        self._lock = threading.Lock()

    def read(self, shard: int, record: int) -> memoryview:
        """The payload of a record, valid as long as the view lives.

        Raises:
            RecordError: damage, naming shard, record and byte.
            ShardError: the shard or the index is not the manifest's.
        """
        return self.read_many([(shard, record)])[0]

    def read_many(
        self, places: Sequence[tuple[int, int]], use: Callable[[int, memoryview], None] | None = None
    ) -> list[memoryview]:
        """Payloads of several records, each (shard, record); `use` as in `decode_records`. Raises as `read` does."""
        spans = [self._span(shard, record) for shard, record in places]
        records = [
            view[start:stop]
            if view is not None
            else memoryview(self._store.read_range(self._shards[shard].name, start, stop))
            for (shard, _), (view, start, stop) in zip(places, spans, strict=True)
        ]
        return decode_records(records, lambda number: f"{self.place(*places[number])}, byte {spans[number][1]}", use)

    def place(self, shard: int, record: int) -> str:
        """How errors name a record."""
        return f"{self._store.url}/{self._shards[shard].name}, record {record}"

    def _span(self, shard: int, record: int) -> tuple[memoryview | None, int, int]:
        view, offsets = self._opened.get(shard) or self._open(shard)
        return view, offsets.item(record), offsets.item(record + 1)

    def _open(self, shard: int) -> "_OpenShard":
        with self._lock:
            if shard not in self._opened:
                entry = self._shards[shard]
                path = self._store.local_path(entry.name)
                view = None if path is None else memoryview(_map_file(path, entry))
                while len(self._opened) >= _OPEN_SHARDS:
                    del self._opened[next(iter(self._opened))]
                self._opened[shard] = _OpenShard(view, self._index.offsets(shard))
            return self._opened[shard]


class _OpenShard(NamedTuple):
    """A shard's bytes, where they are mapped, and its records' offsets."""

    view: memoryview | None
    offsets: Offsets


def _map_file(path: Path, shard: Shard) -> mmap.mmap | bytes:
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            if size != shard.bytes:
                raise ShardError(
                    f"{path} has {size} bytes; the manifest says {shard.bytes}. Run: tpufeed verify {path.parent}"
                )
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
    except OSError as error:
        raise ShardError(
            f"{path}: {error.strerror}; the manifest names this shard. Is the dataset complete?"
        ) from error
