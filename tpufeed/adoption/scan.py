"""Scan shards that another tool wrote: check both CRCs of each record, and sum up its features."""

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
from tpufeed.images.mending import see_image
from tpufeed.storage.store import ObjectInfo, Store
from tpufeed.tfrecord.example import ABSENT, Feature, Kind, decode_example, read_text
from tpufeed.tfrecord.framing import LENGTH_DAMAGED

_UNKNOWN_FORMAT = "unknown"
_GZIP = b"\x1f\x8b"
_SYNSET = "image/class/synset"  # one to one, unlike ImageNet's texts: both 134 and 517 are a crane


class Keys(NamedTuple):
    """Keys of the features that a dataset needs, or None if there is no such feature."""

    image: str  # one bytes value
    label: str | None = None  # the class, one int64
    text: str | None = None  # the class's name
    filename: str | None = None  # the path, or another name of the sample
    several: bool = False  # the label is a list, with the class of each box

    @property
    def class_texts(self) -> tuple[str, ...]:
        """Keys of features that may name the classes, the best first."""
        if self.several:
            return (OBJECT_TEXT,)
        return () if self.label is None else tuple(filter(None, (self.text, _SYNSET)))


@dataclass(slots=True)
class Tally:
    """Sums over one feature."""

    records: int = 0  # that have it
    kinds: set[Kind] = field(default_factory=set)  # of its lists
    values: int = 0  # in all records
    least: int | None = None  # number of values in one record
    most: int = 0
    is_text: bool = True  # all values are UTF-8
    per_box: bool = True  # each record that has it has one value for each of its boxes

    def add(self, values: int) -> None:
        """Note the length of a list."""
        self.least = values if self.least is None else min(self.least, values)
        self.most = max(self.most, values)


@dataclass(slots=True)
class Totals:
    """Sums over the records of a shard, or of several shards."""

    tallies: dict[str, Tally] = field(default_factory=dict)  # by the key of the feature
    class_counts: Counter[int] = field(default_factory=Counter)  # records by label
    formats: Counter[str] = field(default_factory=Counter)  # records by the format of their image
    # For each feature that may name classes, the text of each label, or None if records contradict each other.
    texts: dict[str, dict[int, str | None]] = field(default_factory=dict)
    heights: Counter[int] = field(default_factory=Counter)  # images by their height, as ops see them
    widths: Counter[int] = field(default_factory=Counter)
    turned: int = 0  # images with an EXIF orientation
    told: Counter[Told] = field(
        default_factory=Counter
    )  # those with boxes, by the image that their records' sizes tell
    first_unknown: str | None = None  # place of the first image that tpufeed cannot read

    def add(self, features: dict[str, Feature], keys: Keys, classes: int, place: str, upright: bool) -> None:
        """Count a record. Loaders turn its image if `upright`.

        Raises RecordError or OptionError if it lacks its image or a label in `[0, classes)`.
        """
        image, label = _find_sample(features, keys, classes, place)
        image_format = sniff(image) or _UNKNOWN_FORMAT
        self.formats[image_format] += 1
        boxes = features.get(OBJECT_XMIN)
        orientation, size = see_image(image)
        if size is not None:
            height, width = size[::-1] if upright and orientation >= 5 else size
            self.heights[height] += 1
            self.widths[width] += 1
        if orientation != 1:
            self.turned += 1
            if boxes is not None and len(boxes.values):
                try:
                    self.told[tell_image(features, image)] += 1
                except ImageError:  # loaders name such images
                    self.told["nothing"] += 1
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
                tally.is_text = key != keys.image and None not in map(read_text, feature.values)
        if keys.several:
            self._add_labels(features, keys, classes, place)
        elif label is not None:
            self.class_counts[label] += 1
            for key in self.texts:
                named = features.get(key)
                if named is not None and len(named.values) == 1 and (text := read_text(named.values[0])):
                    self._name(key, label, text)

    def _add_labels(self, features: dict[str, Feature], keys: Keys, classes: int, place: str) -> None:
        """Count the classes of a record's boxes. Raises RecordError or OptionError."""
        labels = [int(label) for label in features.get(str(keys.label), ABSENT).values]
        if labels and not 0 <= min(labels) <= max(labels) < classes:
            raise OptionError(f"{place}: the labels {keys.label!r} are {labels[:9]}, expected 0 to {classes - 1:,}")
        self.class_counts.update(set(labels))
        for key in self.texts:
            for label, text in zip(labels, map(read_text, features.get(key, ABSENT).values), strict=False):
                if text:
                    self._name(key, label, text)

    def merge(self, other: "Totals") -> None:
        """Add the totals of another shard."""
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
        self.heights += other.heights
        self.widths += other.widths
        self.turned += other.turned
        self.told += other.told
        self.first_unknown = self.first_unknown or other.first_unknown

    def _name(self, key: str, label: int, text: str | None) -> None:
        names = self.texts.setdefault(key, {})
        names[label] = text if names.get(label, text) == text else None


class ShardScan(NamedTuple):
    """A shard as it was listed, its CRC-32C, the offsets of its records (the last is its size), and its totals."""

    info: ObjectInfo
    crc32c: int
    offsets: Offsets
    totals: Totals

    @property
    def records(self) -> int:
        """Number of records."""
        return len(self.offsets) - 1


def scan_shard(
    store: Store,
    keys: Keys,
    classes: int,
    info: ObjectInfo,
    stop: threading.Event | None = None,
    *,
    upright: bool = False,
) -> ShardScan:
    """Read and check all of a shard. Loaders turn its images if `upright`.

    Raises as `iter_records` does, and as `Totals.add` does.
    """
    walker = Walker(store, info.name, info.size_bytes, info.version)
    offsets, totals = list[int](), Totals(texts={key: {} for key in keys.class_texts})
    for offset, place, payload in iter_records(walker, stop):
        offsets.append(offset)
        totals.add(decode_example(payload, place), keys, classes, place, upright)
    return ShardScan(info, walker.crc32c, np.array([*offsets, info.size_bytes], np.uint64), totals)


def iter_records(walker: Walker, stop: threading.Event | None = None) -> Iterator[tuple[int, str, memoryview]]:
    """Yield each record as (offset, place for messages, payload). A payload is valid until the next one is yielded.

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
                raise RecordError(f"{place}: {payload}. Copy the file again, or leave it out")
            yield offset, place, payload
            number += 1
        if walked.problem:
            if not number and walked.data[:2] == _GZIP:
                raise OptionError(
                    f"{walker.where} is compressed (gzip). Its records cannot be read in random order, so it cannot be "
                    "adopted. First gunzip each file into a folder, and adopt that: "
                    f"{unpack_elsewhere(walker.where, bytes(walked.data[:MAGIC_BYTES]))}"
                )
            is_other = walked.problem == LENGTH_DAMAGED
            wrong = "; this is not a TFRecord file, or it is damaged or compressed" if is_other else ""
            place = f"{walker.where}, record {number}, byte {walked.offsets[-1]}"
            raise RecordError(f"{place}: {walked.problem}{wrong}. Copy the file again, or leave it out")


def _find_sample(features: dict[str, Feature], keys: Keys, classes: int, place: str) -> tuple[memoryview, int | None]:
    """Return the image and the label of a record. Raises as `Totals.add` does."""
    for key in (keys.image,) if keys.label is None or keys.several else (keys.image, keys.label):
        values = len(features[key].values) if key in features else None
        if values != 1:
            raise missing_value(key, values, keys.image, place, features)
    (image,) = features[keys.image].values
    if not isinstance(image, memoryview):
        raise RecordError(f"{place}: feature {keys.image!r} holds {image!r}, not an image")
    label = None if keys.label is None or keys.several else features[keys.label].values[0]
    if label is not None:
        if not isinstance(label, int):
            raise RecordError(f"{place}: feature {keys.label!r} is not int64, as a label is. See --label-key")
        if label < 0:
            raise RecordError(
                f"{place}: the label {keys.label!r} is {label}. Classes count from 0. If it means 'unknown', adopt "
                "this split separately with --only, --label-key none and --to"
            )
        if label >= classes:
            raise OptionError(
                f"{place}: the label {keys.label!r} is {label}, expected 0 to {classes - 1:,}. Give "
                "--classes a name for each id"
            )
    return image, label


def missing_value(key: str, values: int | None, image: str | None, place: str, present: Iterable[str]) -> RecordError:
    """Return the error for a record with `values` values of a feature instead of one, None if it lacks the feature."""
    found = "is missing" if values is None else f"has {values} values instead of one"
    way = (
        "choose another with --image-key"
        if key == image
        else "adopt without labels (--label-key none), or, if all records of some splits have it, adopt these "
        "separately (--only SPLIT --to DST)"
    )
    return RecordError(f"{place}: feature {key!r} {found}. The record has {', '.join(sorted(present))}; {way}")
