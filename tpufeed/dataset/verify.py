"""`verify`: whether a dataset's bytes are what its manifest says."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tpufeed.dataset.index import Index, Offsets
from tpufeed.dataset.manifest import IndexFile, Shard, Variant
from tpufeed.dataset.reader import Dataset, open_dataset
from tpufeed.dataset.schema import LABEL, record_layout
from tpufeed.engines.engine import available_cores
from tpufeed.errors import DamageError, ObjectNotFoundError, RecordError, ShardError, StoreError
from tpufeed.tfrecord.buffer import BytesLike
from tpufeed.tfrecord.crc32c import crc32c
from tpufeed.tfrecord.framing import iter_records
from tpufeed.tfrecord.layout import FixedLayout


@dataclass(frozen=True, slots=True)
class Verified:
    """What was verified."""

    url: str
    shards: int
    records: int
    bytes: int


@dataclass(frozen=True, slots=True)
class _ShardOf:
    split: str
    variant: Variant
    number: int

    @property
    def entry(self) -> Shard:
        return self.variant.shards[self.number]


def verify(url: str | Path) -> Verified:
    """Read every byte of a dataset and compare it with the manifest.

    Each shard's size and CRC, both CRCs of each record, the index, the records' features, their count and the count of
    each class.

    Args:
        url: the dataset.

    Raises:
        DamageError: the first damage, naming shard, record and byte.
        DatasetNotFoundError: no dataset there.
    """
    dataset = open_dataset(url)
    layout = record_layout(dataset.manifest.features)
    shards = list(_iter_shards(dataset))
    with ThreadPoolExecutor(available_cores(), "tpufeed-verify") as executor:
        found = executor.map(lambda shard: _verify_shard(dataset, shard, layout), shards)
        try:
            counts: dict[tuple[str, int], np.ndarray[tuple[int], np.dtype[np.int64]]] = {}
            for shard, classes in zip(shards, found, strict=True):
                key = shard.split, id(shard.variant)
                counts[key] = counts.get(key, np.zeros_like(classes)) + classes
        except BaseException:
            executor.shutdown(cancel_futures=True)
            raise
    for (split, _), classes in counts.items():
        expected = dataset.manifest.splits[split].class_counts
        if tuple(classes.tolist()) != expected:
            raise ShardError(f"{dataset.url}: split {split!r} has {classes.tolist()} records by class, not {expected}")
    for variant in (variant for split in dataset.manifest.splits.values() for variant in split.variants):
        _verify_file(variant.index, _read(dataset, variant.index.name), f"{dataset.url}/{variant.index.name}")
    total = [shard.entry for shard in shards]
    return Verified(dataset.url, len(total), sum(s.records for s in total), sum(s.bytes for s in total))


def _iter_shards(dataset: Dataset) -> Iterator[_ShardOf]:
    for name, split in dataset.manifest.splits.items():
        for variant in split.variants:
            for number in range(len(variant.shards)):
                yield _ShardOf(name, variant, number)


def _verify_shard(dataset: Dataset, shard: _ShardOf, layout: FixedLayout) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Records by class."""
    entry, where = shard.entry, f"{dataset.url}/{shard.entry.name}"
    data = memoryview(_read(dataset, entry.name))
    offsets: list[int] = []
    classes = np.zeros(len(dataset.manifest.class_names), np.int64)
    label = layout.int_keys.index(LABEL) if LABEL in layout.int_keys else None
    for offset, payload in iter_records(data, where):
        _, ints = layout.decode(payload, f"{where}, record {len(offsets)}, byte {offset}")
        if label is not None:
            if not 0 <= ints[label] < len(classes):
                raise RecordError(
                    f"{where}, record {len(offsets)}, byte {offset}: label {ints[label]} of {len(classes)} classes"
                )
            classes[ints[label]] += 1
        offsets.append(offset)
    if len(offsets) != entry.records:
        raise ShardError(
            f"{where}: {len(offsets)} records; the manifest says {entry.records}. The shard was cut or swapped"
        )
    _verify_file(entry, data, where)
    _verify_index(_read_offsets(dataset, shard), [*offsets, len(data)], where)
    return classes


def _read(dataset: Dataset, name: str) -> bytes:
    try:
        return dataset.store.read(name)
    except ObjectNotFoundError as error:
        raise ShardError(f"{dataset.url}/{name} is missing; the manifest names it") from error
    except StoreError as error:
        raise DamageError(str(error)) from error


def _read_offsets(dataset: Dataset, shard: _ShardOf) -> Offsets:
    try:
        return Index(dataset.store, shard.variant).offsets(shard.number)
    except StoreError as error:
        raise DamageError(str(error)) from error


def _verify_file(entry: Shard | IndexFile, data: BytesLike, where: str) -> None:
    if len(data) != entry.bytes or crc32c(data) != entry.crc32c:
        raise ShardError(
            f"{where}: {len(data)} bytes of CRC-32C {crc32c(data):08x}; the manifest says {entry.bytes} of "
            f"{entry.crc32c:08x}. What it holds is sound in itself: a file of another build"
        )


def _verify_index(found: Offsets, expected: list[int], where: str) -> None:
    differing = np.flatnonzero(found != np.array(expected, np.uint64))
    if len(differing):
        record = int(differing[0])
        raise ShardError(
            f"{where}: the index has record {record} at byte {found[record]}; it is at byte {expected[record]}"
        )
