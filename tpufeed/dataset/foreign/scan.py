"""Scanning a foreign shard: framing, both CRCs and every tf.train.Example, in memory of a block and a record."""

import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from tpufeed.dataset.index import Offsets
from tpufeed.errors import OptionError, RecordError, ShardError
from tpufeed.images.decoding import orientation_of
from tpufeed.images.header import sniff
from tpufeed.storage.reading import settle
from tpufeed.storage.store import ObjectInfo, Store
from tpufeed.tfrecord.crc32c import crc32c
from tpufeed.tfrecord.example import Feature, Kind, decode_example
from tpufeed.tfrecord.framing import HEADER_BYTES, OVERHEAD_BYTES, decode_record, encode_header

BLOCK_BYTES = 8 << 20
UNKNOWN_FORMAT = "unknown"
_ZLIB_LEVELS = b"\x01\x5e\x9c\xda"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What each record must have.

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
    """What was seen of a feature: in how many records, of which kinds, always one value, and all of it UTF-8."""

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
    """What a shard holds.

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


class ShardStream:
    """Reads a shard from its start to its end in blocks, and computes its CRC-32C on the way.

    A record whose CRCs do not match is fetched again: it is damaged where the same bytes come twice.

    Args:
        store: where it lies.
        info: its name and size.
        block_bytes: what is read at once; more where a record is longer.
        stop: once set, the next read raises ScanStopped.
    """

    def __init__(
        self, store: Store, info: ObjectInfo, block_bytes: int = BLOCK_BYTES, stop: threading.Event | None = None
    ) -> None:
        self.crc32c = 0
        self._store, self._info = store, info
        self._block_bytes = block_bytes
        self._stop = stop
        self._window, self._start = memoryview(b""), 0
        self._where = f"{store.url}/{info.name}"

    def iter_records(self) -> Iterator[tuple[int, str, memoryview]]:
        """Each record as (offset, its place for messages, payload), both CRCs verified. A payload is valid for good.

        Raises:
            RecordError: damage, naming shard, record and byte.
            OptionError: the shard is compressed.
            ShardError, ObjectChangedError: it has changed since it was listed.
        """
        if not self._info.size_bytes:
            self._store.read(self._info.name)  # a broken link passes for an empty file
        offset, number = 0, 0
        while offset < self._info.size_bytes:
            place = f"{self._where}, record {number}, byte {offset}"
            try:
                record, payload = self._record(offset, place)
            except RecordError:
                record, payload = self._record_again(offset, place)
            self.crc32c = crc32c(record, self.crc32c)
            yield offset, place, payload
            offset, number = offset + len(record), number + 1

    def _record(self, offset: int, place: str) -> tuple[memoryview, memoryview]:
        """A record as it stands there, and its payload."""
        record = self._view(offset, offset + OVERHEAD_BYTES + self._read_length(offset, place))
        return record, decode_record(record, place)

    def _record_again(self, offset: int, place: str) -> tuple[memoryview, memoryview]:
        def read() -> tuple[memoryview, memoryview] | RecordError:
            self._window, self._start = memoryview(b""), offset
            try:
                return self._record(offset, place)
            except RecordError as error:
                return error

        # What came last ends where the damage was found.
        found = settle(place, read, lambda _: crc32c(self._window), lambda found: not isinstance(found, RecordError))
        if isinstance(found, RecordError):
            raise found
        return found

    def _read_length(self, offset: int, place: str) -> int:
        left = self._info.size_bytes - offset
        header = bytes(self._view(offset, min(offset + HEADER_BYTES, self._info.size_bytes)))
        length = int.from_bytes(header[:8], "little")
        if left < OVERHEAD_BYTES or header != encode_header(length):
            if not offset:
                self._refuse_compressed(header)
            raise RecordError(
                f"{place}: truncated; {left} bytes are left, a record takes at least {OVERHEAD_BYTES}"
                if left < OVERHEAD_BYTES
                else f"{place}: the CRC of the record's length does not match; this is no TFRecord file, or damaged"
            )
        if length > left - OVERHEAD_BYTES:
            raise RecordError(
                f"{place}: truncated; the record wants {length} bytes of payload, {left - OVERHEAD_BYTES} are left"
            )
        return length

    def _view(self, start: int, stop: int) -> memoryview:
        """The bytes `[start, stop)`; starts never go back."""
        have = self._start + len(self._window)
        if stop > have:
            if self._stop is not None and self._stop.is_set():
                raise ScanStopped
            end = min(max(stop, start + self._block_bytes), self._info.size_bytes)
            data = self._store.read_range(self._info.name, have, end, self._info.version)
            if len(data) != end - have:
                raise ShardError(f"{self._where}: it ends before byte {end}; it was {self._info.size_bytes} bytes long")
            kept = self._window[start - self._start :]
            self._window, self._start = memoryview(b"".join((kept, data)) if kept else data), start
        return self._window[start - self._start : stop - self._start]

    def _refuse_compressed(self, header: bytes) -> None:
        gzip = header.startswith(b"\x1f\x8b")
        if gzip or (header.startswith(b"\x78") and header[1:2] in _ZLIB_LEVELS):
            way = (
                f"gunzip a copy (its name should then not end in .gz): gunzip -k {self._where}"
                if gzip
                else ("write a copy without compression: tf.data.TFRecordDataset(file, compression_type='ZLIB')")
            )
            raise OptionError(
                f"{self._where} is compressed ({'gzip' if gzip else 'zlib'}); records of such a file cannot be read at "
                f"random places, so it cannot be adopted. First {way}"
            )


def scan_shard(store: Store, info: ObjectInfo, wanted: Wanted, stop: threading.Event | None = None) -> ShardScan:
    """Read and check all of a shard.

    Raises:
        RecordError: damage, or a record without what is wanted, naming shard, record and byte.
        OptionError: the shard is compressed, or its labels are no classes.
        ScanStopped: `stop` was set.
    """
    stream = ShardStream(store, info, stop=stop)
    scan = ShardScan(info, 0, np.empty(0, np.uint64), {}, Counter(), Counter(), {key: {} for key in wanted.texts})
    offsets = []
    for offset, place, payload in stream.iter_records():
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
    scan.crc32c, scan.offsets = stream.crc32c, np.array([*offsets, info.size_bytes], np.uint64)
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
