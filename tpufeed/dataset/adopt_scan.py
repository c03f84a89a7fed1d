"""Scan shards that another tool wrote: both CRCs of each record, every tf.train.Example, and what is in them."""

import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from tpufeed.dataset.index import Offsets
from tpufeed.dataset.object_boxes import Told, tell_image
from tpufeed.dataset.schema import OBJECT_TEXT, OBJECT_XMIN
from tpufeed.dataset.tfrecord_files import MAGIC_BYTES, unpack_elsewhere
from tpufeed.dataset.walk import Walker
from tpufeed.errors import ImageError, OptionError, RecordError
from tpufeed.images.header import sniff
from tpufeed.images.mending import orientation_of
from tpufeed.storage.store import ObjectInfo, Store
from tpufeed.tfrecord.example import Feature, Kind, decode_example
from tpufeed.tfrecord.framing import LENGTH_DAMAGED

_UNKNOWN_FORMAT = "unknown"
_GZIP = b"\x1f\x8b"
_SYNSET = "image/class/synset"  # one to one where ImageNet's texts are not: both 134 and 517 are a crane


class Keys(NamedTuple):
    """The keys of the features that a dataset needs; None where there is no such feature.

    Attributes:
        image: one bytes value.
        label: the class, one int64.
        text: the class's name.
        filename: the path, or what else names a sample.
        several: the label is a list, of the classes of a sample's boxes.
    """

    image: str
    label: str | None = None
    text: str | None = None
    filename: str | None = None
    several: bool = False

    @property
    def roles(self) -> dict[str, str | None]:
        """The keys by what they are taken for."""
        return {"image": self.image, "label": self.label, "text": self.text, "filename": self.filename}

    @property
    def class_texts(self) -> tuple[str, ...]:
        """Keys that may name the classes, the best first."""
        if self.several:
            return (OBJECT_TEXT,)
        return () if self.label is None else tuple(filter(None, (self.text, _SYNSET)))


@dataclass(slots=True)
class Tally:
    """Sum over one feature.

    Attributes:
        records: that have it.
        kinds: that these hold.
        values: of all of them together; `least` and `most` of one.
        is_text: all of it is UTF-8.
        per_box: each record that has it has one value for each of its boxes.
    """

    records: int = 0
    kinds: set[Kind] = field(default_factory=set)
    values: int = 0
    least: int | None = None
    most: int = 0
    is_text: bool = True
    per_box: bool = True

    @property
    def single(self) -> bool:
        """True where there is always one value."""
        return self.least == self.most == 1

    def add(self, values: int) -> None:
        """Count a list of so many values."""
        self.least = values if self.least is None else min(self.least, values)
        self.most = max(self.most, values)


@dataclass(slots=True)
class Contents:
    """Sum over the records of a shard, or of several.

    Attributes:
        tallies: by the key of a feature.
        class_counts: records by label.
        formats: records by the format of their image.
        texts: for each feature that may name classes the text of each label, None where records contradict each other.
        turned: images whose EXIF orientation decoding leaves to be applied.
        told: those of them that have boxes, by what their records' sizes tell of these.
        first_unknown: place of the first image that tpufeed cannot read.
    """

    tallies: dict[str, Tally] = field(default_factory=dict)
    class_counts: Counter[int] = field(default_factory=Counter)
    formats: Counter[str] = field(default_factory=Counter)
    texts: dict[str, dict[int, str | None]] = field(default_factory=dict)
    turned: int = 0
    told: Counter[Told] = field(default_factory=Counter)
    first_unknown: str | None = None

    def add(self, features: dict[str, Feature], keys: Keys, classes: int, place: str) -> None:
        """Count a record. Raises RecordError or OptionError where it lacks its image or a label in `[0, classes)`."""
        image, label = _find_sample(features, keys, classes, place)
        image_format = sniff(image) or _UNKNOWN_FORMAT
        self.formats[image_format] += 1
        boxes = features.get(OBJECT_XMIN)
        if orientation_of(image) != 1:
            self.turned += 1
            if boxes is not None and len(boxes.values):
                self.told[_tell(features, image)] += 1
        if image_format == _UNKNOWN_FORMAT and self.first_unknown is None:
            self.first_unknown = place
        for key, feature in features.items():
            tally = self.tallies.setdefault(key, Tally())
            tally.records += 1
            if feature.kind is not None:
                tally.kinds.add(feature.kind)
            tally.add(len(feature.values))
            tally.values += len(feature.values)
            tally.per_box = tally.per_box and len(feature.values) == (0 if boxes is None else len(boxes.values))
            if tally.is_text and feature.kind == "bytes":
                tally.is_text = key != keys.image and None not in map(_read_text, feature.values)
        if keys.several:
            self._add_labels(features, keys, classes, place)
        elif label is not None:
            self.class_counts[label] += 1
            for key in self.texts:
                named = features.get(key)
                if named is not None and len(named.values) == 1 and (text := _read_text(named.values[0])):
                    self._name(key, label, text)

    def _add_labels(self, features: dict[str, Feature], keys: Keys, classes: int, place: str) -> None:
        """Count the classes of a record's boxes. Raises RecordError or OptionError."""
        none = Feature(None, ())
        labels = [int(label) for label in features.get(str(keys.label), none).values]
        if labels and not 0 <= min(labels) <= max(labels) < classes:
            raise OptionError(f"{place}: the labels {keys.label!r} are {labels[:9]}, but there are {classes:,} classes")
        self.class_counts.update(set(labels))
        for key in self.texts:
            for label, text in zip(labels, map(_read_text, features.get(key, none).values), strict=False):
                if text:
                    self._name(key, label, text)

    def merge(self, other: "Contents") -> None:
        """Add the contents of another shard."""
        for key, tally in other.tallies.items():
            mine = self.tallies.setdefault(key, Tally())
            mine.records += tally.records
            mine.kinds |= tally.kinds
            mine.values += tally.values
            for values in (tally.most, *(() if tally.least is None else (tally.least,))):
                mine.add(values)
            mine.is_text = mine.is_text and tally.is_text
            mine.per_box = mine.per_box and tally.per_box
        self.class_counts += other.class_counts
        self.formats += other.formats
        for key, names in other.texts.items():
            for label, text in names.items():
                self._name(key, label, text)
        self.turned += other.turned
        self.told += other.told
        self.first_unknown = self.first_unknown or other.first_unknown

    def _name(self, key: str, label: int, text: str | None) -> None:
        names = self.texts.setdefault(key, {})
        names[label] = text if names.get(label, text) == text else None


class ShardScan(NamedTuple):
    """A shard as it was listed, its CRC-32C, the offsets of its records (the last is its size), and its contents."""

    info: ObjectInfo
    crc32c: int
    offsets: Offsets
    contents: Contents

    @property
    def records(self) -> int:
        """Number of records."""
        return len(self.offsets) - 1


def scan_shard(
    store: Store, keys: Keys, classes: int, info: ObjectInfo, stop: threading.Event | None = None
) -> ShardScan:
    """Read and check all of a shard. Raises as `iter_records` does, and as `Contents.add` does."""
    walker = Walker(store, info.name, info.size_bytes, info.version)
    offsets, contents = list[int](), Contents(texts={key: {} for key in keys.class_texts})
    for offset, place, payload in iter_records(walker, stop):
        offsets.append(offset)
        contents.add(decode_example(payload, place), keys, classes, place)
    return ShardScan(info, walker.crc32c, np.array([*offsets, info.size_bytes], np.uint64), contents)


def iter_records(walker: Walker, stop: threading.Event | None = None) -> Iterator[tuple[int, str, memoryview]]:
    """Yield each record as (offset, its place for messages, payload). A payload is valid until the next is asked for.

    Raises:
        RecordError: damage, naming shard, record and byte.
        OptionError: the shard is compressed.
        ShardError, ObjectChangedError: it has changed since it was listed.
        WalkStopped: `stop` was set.
    """
    number = 0
    for walked in walker.walk(stop=stop):
        for offset, payload in zip(walked.offsets, walked.payloads, strict=False):  # and where the last one ends
            place = f"{walker.where}, record {number}, byte {offset}"
            if isinstance(payload, RecordError):
                raise RecordError(f"{place}: {payload}")
            yield offset, place, payload
            number += 1
        if walked.problem:
            if not number and walked.data[:2] == _GZIP:
                raise OptionError(
                    f"{walker.where} is compressed (gzip); records of such a file cannot be read at random places, so "
                    "it cannot be adopted. First gunzip each file into a folder, and adopt that: "
                    f"{unpack_elsewhere(walker.where, bytes(walked.data[:MAGIC_BYTES]))}"
                )
            wrong = "; this is no TFRecord file, or a damaged or compressed one"
            place = f"{walker.where}, record {number}, byte {walked.offsets[-1]}"
            raise RecordError(f"{place}: {walked.problem}{wrong if walked.problem == LENGTH_DAMAGED else ''}")


def _find_sample(features: dict[str, Feature], keys: Keys, classes: int, place: str) -> tuple[memoryview, int | None]:
    """Return the image and the label of a record. Raises as `Contents.add` does."""
    for key in (keys.image, None if keys.several else keys.label):
        feature = None if key is None else features.get(key)
        if key is not None and (feature is None or len(feature.values) != 1):
            raise missing_value(key, None if feature is None else len(feature.values), keys.image, place, features)
    (image,) = features[keys.image].values
    if not isinstance(image, memoryview):
        raise RecordError(f"{place}: feature {keys.image!r} holds {image!r}, no image")
    label = None if keys.label is None or keys.several else features[keys.label].values[0]
    if label is not None:
        if not isinstance(label, int):
            raise RecordError(f"{place}: feature {keys.label!r} is no int64, so no label; see --label-key")
        if label < 0:
            raise RecordError(
                f"{place}: the label {keys.label!r} is {label}; classes count from 0. Where it stands for "
                "'unknown', adopt this split apart with --splits, --label-key none and --to"
            )
        if label >= classes:
            raise OptionError(f"{place}: the label {keys.label!r} is {label}, but there are {classes:,} classes")
    return image, label


def missing_value(key: str, values: int | None, image: str | None, place: str, present: Iterable[str]) -> RecordError:
    """Return the error for a record with `values` values of a feature that it should have one of; None: it lacks it."""
    found = "is missing" if values is None else f"has {values} values instead of one"
    way = (
        "choose another with --image-key"
        if key == image
        else "take the splits that have it with --splits train,val, and adopt the others apart with --splits test "
        "--label-key none --to DST"
    )
    return RecordError(f"{place}: feature {key!r} {found}; the record has {', '.join(sorted(present))}; {way}")


def _tell(features: dict[str, Feature], image: memoryview) -> Told:
    try:
        return tell_image(features, image)
    except ImageError:  # of which loaders tell
        return "nothing"


def _read_text(value: object) -> str | None:
    try:
        return str(value, "utf-8") if isinstance(value, memoryview) else None
    except UnicodeDecodeError:
        return None
