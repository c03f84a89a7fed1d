"""Opening a dataset, and reading its records with their CRCs verified."""

import mmap
import threading
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tpufeed.dataset.index import Index
from tpufeed.dataset.manifest import Manifest, Shard, Split, decode_manifest
from tpufeed.dataset.naming import MANIFEST
from tpufeed.dataset.schema import record_layout
from tpufeed.errors import (
    DatasetExistsError,
    DatasetNotFoundError,
    ObjectNotFoundError,
    OptionError,
    RecordError,
    ShardError,
)
from tpufeed.storage.registry import open_store
from tpufeed.storage.store import Store
from tpufeed.tfrecord.example import Feature, decode_example
from tpufeed.tfrecord.framing import decode_record
from tpufeed.tfrecord.layout import FixedLayout

_MAPPED_SHARDS = 128


@dataclass(frozen=True)
class Dataset:
    """A dataset that exists: its manifest and the store that holds its shards."""

    store: Store
    manifest: Manifest

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
        self._store = dataset.store
        self._shards = variants[variant].shards
        self._index = Index(dataset.store, variants[variant])
        self._mapped: OrderedDict[int, memoryview] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, shard: int, record: int) -> memoryview:
        """The payload of a record, valid as long as the view lives.

        Raises:
            RecordError: damage, naming shard, record and byte.
            ShardError: the shard or the index is not the manifest's.
        """
        offsets = self._index.offsets(shard)
        start, stop = int(offsets[record]), int(offsets[record + 1])
        mapped = self._map(shard)
        if mapped is not None:
            data = mapped[start:stop]
        else:
            data = memoryview(self._store.read_range(self._shards[shard].name, start, stop))
        try:
            return decode_record(data)
        except RecordError as error:
            raise RecordError(f"{self.place(shard, record, start)}: {error}") from error

    def place(self, shard: int, record: int, byte: int | None = None) -> str:
        """How errors name a record."""
        at = "" if byte is None else f", byte {byte}"
        return f"{self._store.url}/{self._shards[shard].name}, record {record}{at}"

    def _map(self, shard: int) -> memoryview | None:
        with self._lock:
            view = self._mapped.get(shard)
            if view is not None:
                self._mapped.move_to_end(shard)
                return view
            entry = self._shards[shard]
            path = self._store.local_path(entry.name)
            if path is None:
                return None
            view = self._mapped[shard] = memoryview(_map_file(path, entry))
            if len(self._mapped) > _MAPPED_SHARDS:
                self._mapped.popitem(last=False)
            return view


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
