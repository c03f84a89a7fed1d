"""Scan a shard that another tool wrote: both CRCs of each record and every tf.train.Example."""

import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from tpufeed.dataset.index import Offsets
from tpufeed.dataset.walk import Walker
from tpufeed.errors import OptionError, RecordError
from tpufeed.images.decoding import orientation_of
from tpufeed.images.header import sniff
from tpufeed.storage.store import ObjectInfo, Store
from tpufeed.tfrecord.example import Feature, Kind, decode_example
from tpufeed.tfrecord.framing import LENGTH_DAMAGED

UNKNOWN_FORMAT = "unknown"
_ZLIB_LEVELS = b"\x01\x5e\x9c\xda"


@dataclass(frozen=True, slots=True)
class Wanted:
    """Features that each record must have.

    Attributes:
        image: the key of its image, one bytes value.
        label: the key of its class, one int64 in `[0, classes)`; None where there are no labels.
        classes: see `label`.
        texts: keys that may name the class.
    """

    image: str
    label: str | None
    classes: int
    texts: tuple[str, ...] = ()


@dataclass(slots=True)
class Tally:
    """Sum over a feature: in how many records, of which kinds, always one value, and all of it UTF-8."""

    records: int = 0
    kinds: set[Kind] = field(default_factory=set)
    single: bool = True
    is_text: bool = True

    def add(self, feature: Feature, is_image: bool) -> None:
        """Count a record's feature."""
        self.records += 1
        if feature.kind is not None:
            self.kinds.add(feature.kind)
        self.single = self.single and len(feature.values) == 1
        if self.is_text and feature.kind == "bytes":
            self.is_text = not is_image and all(_read_text(value) is not None for value in feature.values)

    def merge(self, other: "Tally") -> None:
        """Add what another shard's tally says of the same feature."""
        self.records += other.records
        self.kinds |= other.kinds
        self.single = self.single and other.single
        self.is_text = self.is_text and other.is_text


@dataclass(slots=True)
class ShardScan:
    """Contents of a shard.

    `texts` has for each text feature that of each label, None where they contradict; `turned` counts images whose EXIF
    orientation decoding leaves to be applied.
    """

    info: ObjectInfo
    crc32c: int
    offsets: Offsets
    tallies: dict[str, Tally]
    class_counts: Counter[int]
    formats: Counter[str]
    texts: dict[str, dict[int, str | None]]
    first_unknown: str | None = None
    turned: int = 0

    @property
    def records(self) -> int:
        """Records of the shard."""
        return len(self.offsets) - 1


class ScanStopped(Exception):
    """The scan was told to stop: the error of another shard is on its way."""


def make_walker(store: Store, info: ObjectInfo, chunk_bytes: int | None = None) -> Walker:
    """Return the walker of a shard as it was listed. Raises StoreError for a link to nothing."""
    if not info.size_bytes:
        store.read(info.name)  # a broken link passes for an empty file
    return Walker(store, info.name, info.size_bytes, info.version, chunk_bytes)


def iter_records(walker: Walker, stop: threading.Event | None = None) -> Iterator[tuple[int, str, memoryview]]:
    """Yield each record as (offset, its place for messages, payload). A payload is valid until the next is asked for.

    Args:
        walker: of the shard, from its start.
        stop: once set, no more is read.

    Raises:
        RecordError: damage, naming shard, record and byte.
        OptionError: the shard is compressed.
        ShardError, ObjectChangedError: it has changed since it was listed.
        ScanStopped: `stop` was set.
    """
    for walked in walker.walk():
        number = walked.first
        for offset, payload in zip(walked.offsets, walked.payloads, strict=False):  # and where the last one ends
            place = f"{walker.where}, record {number}, byte {offset}"
            if isinstance(payload, RecordError):
                raise RecordError(f"{place}: {payload}")
            yield offset, place, payload
            number += 1
        if walked.problem:
            if not number:
                _refuse_compressed(walker.where, bytes(walked.data[:2]))
            wrong = "; this is no TFRecord file, or damaged" if walked.problem == LENGTH_DAMAGED else ""
            raise RecordError(f"{walker.where}, record {number}, byte {walked.offsets[-1]}: {walked.problem}{wrong}")
        if stop is not None and stop.is_set():
            raise ScanStopped


def _refuse_compressed(where: str, start: bytes) -> None:
    gzip = start == b"\x1f\x8b"
    if gzip or (start[:1] == b"\x78" and start[1:] in _ZLIB_LEVELS):
        way = (
            f"gunzip a copy (its name should then not end in .gz): gunzip -k {where}"
            if gzip
            else ("write a copy without compression: tf.data.TFRecordDataset(file, compression_type='ZLIB')")
        )
        raise OptionError(
            f"{where} is compressed ({'gzip' if gzip else 'zlib'}); records of such a file cannot be read at "
            f"random places, so it cannot be adopted. First {way}"
        )


def scan_shard(store: Store, info: ObjectInfo, wanted: Wanted, stop: threading.Event | None = None) -> ShardScan:
    """Read and check all of a shard.

    Raises:
        RecordError: damage, or a record without what is wanted, naming shard, record and byte.
        OptionError: the shard is compressed, or its labels are no classes.
        ScanStopped: `stop` was set.
    """
    walker = make_walker(store, info)
    scan = ShardScan(info, 0, np.empty(0, np.uint64), {}, Counter(), Counter(), {key: {} for key in wanted.texts})
    offsets = []
    for offset, place, payload in iter_records(walker, stop):
        offsets.append(offset)
        features = decode_example(payload, place)
        image, label = check_features(features, wanted, place)
        found = sniff(image) or UNKNOWN_FORMAT
        scan.formats[found] += 1
        scan.turned += orientation_of(image) != 1
        if found == UNKNOWN_FORMAT and scan.first_unknown is None:
            scan.first_unknown = place
        for key, feature in features.items():
            scan.tallies.setdefault(key, Tally()).add(feature, key == wanted.image)
        if label is not None:
            scan.class_counts[label] += 1
            _note_texts(scan.texts, features, label)
    scan.crc32c, scan.offsets = walker.crc32c, np.array([*offsets, info.size_bytes], np.uint64)
    return scan


def check_features(features: dict[str, Feature], wanted: Wanted, place: str) -> tuple[memoryview, int | None]:
    """The image and the label of a record. Raises RecordError or OptionError where it has not what is wanted."""
    image = _one_value(features, wanted.image, True, place)
    if not isinstance(image, memoryview):
        raise RecordError(f"{place}: feature {wanted.image!r} holds {image!r}, no image")
    if wanted.label is None:
        return image, None
    label = _one_value(features, wanted.label, False, place)
    if not isinstance(label, int):
        raise RecordError(f"{place}: feature {wanted.label!r} is no int64, so no label; see --label")
    if label < 0:
        raise RecordError(
            f"{place}: the label {wanted.label!r} is {label}; classes count from 0. Where it stands for 'unknown', "
            "adopt this split apart with --splits, --label none and --to"
        )
    if label >= wanted.classes:
        raise OptionError(f"{place}: the label {wanted.label!r} is {label}, but there are {wanted.classes:,} classes")
    return image, label


def missing_value(key: str, values: int | None, is_image: bool, place: str, present: Iterable[str]) -> RecordError:
    """The error for a record with `values` values of a feature that it should have one of; None: no such feature."""
    found = "is missing" if values is None else f"has {values} values instead of one"
    way = (
        "choose another with --image"
        if is_image
        else "take the splits that have it with --splits train,val, and adopt the others apart with --splits test "
        "--label none --to DST"
    )
    return RecordError(f"{place}: feature {key!r} {found}; the record has {', '.join(sorted(present))}; {way}")


def _one_value(features: dict[str, Feature], key: str, is_image: bool, place: str) -> object:
    feature = features.get(key)
    if feature is None or len(feature.values) != 1:
        raise missing_value(key, None if feature is None else len(feature.values), is_image, place, features)
    return feature.values[0]


def _note_texts(texts: dict[str, dict[int, str | None]], features: dict[str, Feature], label: int) -> None:
    for key, names in texts.items():
        feature = features.get(key)
        text = _read_text(feature.values[0]) if feature is not None and len(feature.values) == 1 else None
        if text:
            names[label] = text if names.get(label, text) == text else None


def _read_text(value: object) -> str | None:
    try:
        return str(value, "utf-8") if isinstance(value, memoryview) else None
    except UnicodeDecodeError:
        return None
