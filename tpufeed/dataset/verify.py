"""`verify`: check that a dataset's bytes are what its manifest says, and list everything that is not.

Threads check one shard each. The variants of a shard follow one another, so that their labels are compared as soon as
all of them are known, and then forgotten.
"""

import io
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tpufeed.dataset.commit import stored_crc32c
from tpufeed.dataset.manifest import Manifest, Shard, Variant
from tpufeed.dataset.naming import MANIFEST
from tpufeed.dataset.reader import Dataset, open_dataset
from tpufeed.dataset.record_check import Picks, RecordCheck, parse_picks
from tpufeed.dataset.walk import Ints, Walker, map_shards
from tpufeed.errors import (
    Damage,
    DatasetDamagedError,
    DatasetUnreadableError,
    ObjectNotFoundError,
    RecordError,
    StoreError,
    Unreadable,
)
from tpufeed.storage.reading import settle
from tpufeed.storage.store import Store
from tpufeed.tfrecord.framing import LENGTH_DAMAGED, OVERHEAD_BYTES

_UNKNOWN = int(np.iinfo(np.int64).min)  # the label of a record that has none, or is damaged
_OFFSET_BYTES = 8
_DAMAGES_NAMED = 3
_CLASSES_NAMED = 5
_MISSING = "is missing; the manifest names it"
_REMOVED = "was removed while it was read"
_ANOTHER = "What it holds is sound in itself: a file of another build, or one that was edited"


@dataclass(frozen=True, slots=True)
class Verified:
    """Result of a verification that found nothing wrong.

    Attributes:
        url: URL of the dataset.
        shards: number of shards of all variants.
        records: number of records of all variants.
        bytes: size of all shards.
        decoded: records whose images were decoded as well.
    """

    url: str
    shards: int
    records: int
    bytes: int
    decoded: int = 0


@dataclass(frozen=True, slots=True)
class VerifyProgress:
    """Progress of a verification."""

    total_bytes: int
    bytes: int = 0
    records: int = 0
    damages: int = 0


VerifyListener = Callable[[VerifyProgress], None]


def verify(url: str | Path, decode: str | None = None, listener: VerifyListener | None = None) -> Verified:
    """Read every byte of a dataset and compare it with the manifest.

    Presence, size and CRC of each shard and index, both CRCs of each record, every feature against the schema, the
    counts of records and classes, and that variants agree on labels. Damage in one record hides no other: where the
    index is sound, checking goes on with the next record.

    Args:
        url: the dataset.
        decode: "all" also decodes every image, "5%" about one in twenty, the same ones each time.
        listener: called in this thread with the progress, at the start and after each shard.

    Raises:
        DatasetDamagedError: `damages` lists all there are, with shard, record and byte; `unreadable` the files that
            could not be read.
        DatasetUnreadableError: `unreadable` lists files that could not be read; what could be read is not damaged.
        DatasetNotFoundError: there is no dataset.
        ManifestError: its manifest is damaged, which leaves nothing to compare with.
        OptionError: `decode` is no such share.
    """
    picks = parse_picks(decode)
    dataset = open_dataset(url)
    variants = [
        (split, number, variant)
        for split, entry in dataset.manifest.splits.items()
        for number, variant in enumerate(entry.variants)
    ]
    checked = map_shards(dataset.store, lambda variant, _: _IndexCheck(dataset.store, variant[2]), variants)
    indexes = dict(zip([variant[:2] for variant in variants], checked, strict=True))
    shards = [
        _ShardPlace(split, variant, number, found.shards[number])
        for split, entry in dataset.manifest.splits.items()
        for number in range(len(entry.variants[0].shards))
        for variant, found in enumerate(entry.variants)
    ]
    check = _ShardCheck(dataset, indexes, picks)
    result, unreadable = _Comparison(dataset.manifest), [index.unreadable for index in indexes.values()]
    progress = VerifyProgress(sum(shard.entry.bytes for shard in shards))
    decoded = 0
    if listener is not None:
        listener(progress)
    with closing(map_shards(dataset.shards, check, shards)) as results:  # an error here stops the threads as well
        for shard, found in zip(shards, results, strict=True):
            result.add(shard, found)
            unreadable.append(found.unreadable)
            decoded += found.decoded
            progress = replace(
                progress,
                bytes=progress.bytes + shard.entry.bytes,
                records=progress.records + found.records,
                damages=progress.damages + len(found.damages),
            )
            if listener is not None:
                listener(progress)
    damages, files = result.finish(indexes.values()), tuple(filter(None, unreadable))
    cannot = "1 file cannot be read" if len(files) == 1 else f"{len(files):,} files cannot be read"
    if damages:
        count = "1 damage" if len(damages) == 1 else f"{len(damages):,} damages"
        also = f"; {cannot} besides" if files else ""
        raise DatasetDamagedError(f"{dataset.url}: {count}: {_name_some(damages)}{also}", damages, files)
    if files:
        message = f"{dataset.url}: {cannot}, what could be read is not damaged: {_name_some(files)}"
        raise DatasetUnreadableError(message, files)
    return Verified(dataset.url, len(shards), progress.records, progress.total_bytes, decoded)


def _name_some(found: Sequence[Damage] | Sequence[Unreadable]) -> str:
    more = f"; and {len(found) - _DAMAGES_NAMED} more" if len(found) > _DAMAGES_NAMED else ""
    return f"{'; '.join(map(str, found[:_DAMAGES_NAMED]))}{more}"


class _IndexCheck:
    """Compares an index file with the manifest. Records are found by it where it is sound.

    Attributes:
        damage: how it differs from the manifest.
        unreadable: what kept it from being read.
        is_blamed: damages of shards name the offsets that are wrong, so `damage` says nothing more.
    """

    def __init__(self, store: Store, variant: Variant) -> None:
        self.damage: Damage | None = None
        self.unreadable: Unreadable | None = None
        self.is_blamed = False
        self._store, self.variant, self.name = store, variant, variant.index.name
        self._has_offsets = False
        try:
            problem = self._find_problem()
        except ObjectNotFoundError:
            problem = _REMOVED
        except StoreError as error:
            problem, self.unreadable = "", Unreadable(self.name, str(error))
        if problem:
            self.damage = Damage(self.name, None, None, problem)

    def offsets(self, shard: int) -> Ints | None:
        """Return the offsets of a shard as they stand there; None where they can be no shard's."""
        index, counts = self.variant.index, [entry.records + 1 for entry in self.variant.shards]
        start = index.bytes - _OFFSET_BYTES * sum(counts[shard:])
        stop = start + _OFFSET_BYTES * counts[shard]
        try:
            data = self._store.read_range(self.name, start, stop) if self._has_offsets else b""
        except StoreError:
            return None
        return np.frombuffer(data, "<u8").astype(np.int64) if len(data) == stop - start else None

    def sound_offsets(self, shard: int) -> Ints | None:
        """Return the offsets of a shard where they may be relied on, else None."""
        found = None if self.damage else self.offsets(shard)
        if found is None or found[0] != 0 or found[-1] != self.variant.shards[shard].bytes:
            return None
        return None if (np.diff(found) < OVERHEAD_BYTES).any() else found

    def _find_problem(self) -> str:
        entry, where = self.variant.index, f"{self._store.url}/{self.name}"
        found = self._store.stat(entry.name)
        if found is None:
            return _MISSING
        if found.size_bytes != entry.bytes:
            return f"{found.size_bytes} bytes; the manifest says {entry.bytes}"
        crc = settle(
            where,
            lambda: stored_crc32c(self._store, entry.name, entry.bytes),
            identity=lambda crc: crc,
            is_sure=lambda crc: crc == entry.crc32c,
        )
        if crc != entry.crc32c:
            self._has_offsets = True  # some of them are right, and tell which are not
            return f"CRC-32C {crc:08x}; the manifest says {entry.crc32c:08x}"
        problem = settle(where, self._find_count_problem, str, lambda problem: not problem)
        self._has_offsets = not problem
        return problem

    def _find_count_problem(self) -> str:
        """Say why the file is no index of as many records as the manifest counts; empty where it is one."""
        index, wanted = self.variant.index, sum(entry.records + 1 for entry in self.variant.shards)
        head = io.BytesIO(self._store.read_range(index.name, 0, min(index.bytes, 4096)))
        try:
            np.lib.format.read_magic(head)
            shape, _, dtype = np.lib.format.read_array_header_1_0(head)
        except ValueError as error:
            return f"not an npy file: {error}"
        if dtype != np.dtype("<u8") or len(shape) != 1:
            return f"an array of {dtype} of shape {shape}, not of uint64 offsets"
        if shape[0] != wanted or head.tell() + wanted * _OFFSET_BYTES != index.bytes:
            return f"{shape[0]} offsets; the manifest's records want {wanted}"
        return ""


class _ShardPlace(NamedTuple):
    """Shard `number` of a variant of a split, and its entry in the manifest."""

    split: str
    variant: int
    number: int
    entry: Shard


@dataclass(slots=True)
class _Found:
    """Findings on a shard.

    Attributes:
        entry: the shard.
        labels: of each record that the manifest counts, `_UNKNOWN` where it is not known.
        offsets: where the records start, and where the last one ends.
        damages: of the shard.
        another: its bytes are not the manifest's although no record is damaged; to be listed unless the comparison of
            variants finds the record.
        unreadable: what kept it from being read whole.
        records: number of records that were checked.
        decoded: number of records whose images were decoded.
    """

    entry: Shard
    labels: Ints
    offsets: Ints
    damages: list[Damage] = field(default_factory=list)
    another: Damage | None = None
    unreadable: Unreadable | None = None
    records: int = 0
    decoded: int = 0

    def add(self, record: int | None, byte: int | None, message: str) -> None:
        """Add a damage of the shard."""
        self.damages.append(Damage(self.entry.name, record, byte, message))


class _Walk(NamedTuple):
    """Result of one walk through a shard.

    `offsets` and `labels` are those of its records; `is_framed` says that each record has the length that the index
    says, `is_complete` that the walk came to the shard's end.
    """

    offsets: Ints
    labels: Ints
    crc32c: int
    decoded: int
    is_framed: bool
    is_complete: bool


class _ShardCheck:
    """Checks shards of one dataset against the manifest and the index. Thread-safe."""

    def __init__(self, dataset: Dataset, indexes: Mapping[tuple[str, int], _IndexCheck], picks: Picks | None) -> None:
        self._store, self._indexes = dataset.shards, indexes
        self._records = RecordCheck(dataset.manifest)
        self._picks = picks if self._records.encoded else None

    def __call__(self, shard: _ShardPlace, stop: threading.Event) -> _Found:
        """Check all of a shard."""
        entry, index = shard.entry, self._indexes[shard.split, shard.variant]
        found = _Found(entry, np.full(entry.records, _UNKNOWN), np.zeros(0, np.int64))
        try:
            info = self._store.stat(entry.name)
            if info is None:
                found.add(None, None, _MISSING)
                return found
            indexed = index.sound_offsets(shard.number)
            self._check(found, info.size_bytes, indexed, stop)
        except ObjectNotFoundError:
            found.damages = [Damage(entry.name, None, None, _REMOVED)]
            return found
        except StoreError as error:  # the damages that were found before it stay
            found.unreadable = Unreadable(entry.name, str(error))
            return found
        suspect = index.offsets(shard.number) if indexed is None else None
        if suspect is not None and len(suspect) == len(found.offsets) and found.offsets[-1] == entry.bytes:
            for record in map(int, np.flatnonzero(suspect != found.offsets)):
                index.is_blamed, is_end = True, record == entry.records
                message = f"the index ({index.name}) has {'the end' if is_end else 'it'} at byte "
                message += f"{int(suspect[record]) % 2**64}"
                found.add(None if is_end else record, int(found.offsets[record]), message)
        return found

    def _check(self, found: _Found, size: int, indexed: Ints | None, stop: threading.Event) -> None:
        """Check a shard of `size` bytes, whose records a sound index has at `indexed`."""
        entry, present = found.entry, indexed
        if indexed is not None:  # where the shard was cut, the records behind the cut are not there to be read
            present = indexed[: max(1, int(np.searchsorted(indexed, size, "right")))]
        walk = self._walk(entry.name, size, present, found.damages, stop)
        found.records, found.decoded = len(walk.labels), walk.decoded
        if indexed is not None and not (walk.is_framed and size == entry.bytes):
            # The shard is damaged, or it is another file: only its records' own lengths tell.
            damages = list[Damage]()
            again = self._walk(entry.name, size, None, damages, stop)
            if not again.is_complete:
                count = len(walk.labels)
                if size > entry.bytes:
                    found.add(entry.records, entry.bytes, f"{size - entry.bytes} bytes behind the last record")
                elif size < entry.bytes:
                    lost = f"; {entry.records - count} records are lost" if entry.records - count > 1 else ""
                    message = f"truncated; the shard ends at byte {size} of {entry.bytes}{lost}"
                    found.add(count, int(indexed[count]), message)
                found.labels[:count], found.offsets = walk.labels, indexed
                return
            walk, found.damages = again, damages
        count, found.offsets = len(walk.labels), walk.offsets
        is_cut = indexed is None or np.array_equal(walk.offsets, indexed[: count + 1])
        if is_cut or not walk.is_complete:  # in another file no record is the one of its number
            found.labels[:count] = walk.labels[: entry.records]
        if not walk.is_complete:
            return
        if count != entry.records or size != entry.bytes:
            message = f"{count} records in {size} bytes; the manifest says {entry.records} in {entry.bytes}. "
            if is_cut and indexed is not None:
                found.add(count, size, f"{message}It was cut here")
            else:
                found.labels[:] = _UNKNOWN
                found.add(None, None, message + _ANOTHER)
        elif walk.crc32c != entry.crc32c and not found.damages:
            message = f"{size} bytes of CRC-32C {walk.crc32c:08x}; the manifest says {entry.crc32c:08x}. {_ANOTHER}"
            record, byte = None, None
            if indexed is not None and not is_cut:
                record = int(np.flatnonzero(walk.offsets != indexed)[0])
                byte = int(walk.offsets[record])
                message += f"; the index has this record at byte {indexed[record]}"
            found.another = Damage(entry.name, record, byte, message)

    def _walk(self, name: str, size: int, offsets: Ints | None, damages: list[Damage], stop: threading.Event) -> _Walk:
        """Check each record of a shard, and add to `damages`."""
        walker, labels, starts = Walker(self._store, name, size), list[int](), [0]
        check, picks, decoded, is_framed = self._records.check, self._picks, 0, True
        for walked in walker.walk(offsets, stop):
            starts += walked.offsets[1:]
            is_framed &= walked.framed
            for number, payload in enumerate(walked.payloads, walked.first):
                label = None
                try:
                    if isinstance(payload, RecordError):
                        raise payload
                    sample = check(payload)
                    label = sample.label
                    if picks is not None and picks(name, number):
                        decoded += 1
                        self._records.check_image(sample)
                except RecordError as error:
                    damages.append(Damage(name, number, walked.offsets[number - walked.first], str(error)))
                labels.append(_UNKNOWN if label is None else label)
            if walked.problem:
                message = walked.problem
                if message == LENGTH_DAMAGED:
                    message += "; without a sound index it cannot be told where the next record starts: "
                    message += f"{size - starts[-1]} bytes from here on are not checked"
                damages.append(Damage(name, len(labels), starts[-1], message))
                return _Walk(np.array(starts), np.array(labels, np.int64), walker.crc32c, decoded, is_framed, False)
        return _Walk(np.array(starts), np.array(labels, np.int64), walker.crc32c, decoded, is_framed, True)


class _Comparison:
    """Compares what was found in shards: variants agree on labels, and each class has as many records as stated."""

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest
        self._variants: list[_Found] = []  # of the present shard
        self._damages: list[Damage] = []
        self._counts: dict[tuple[str, int], Ints] = {}
        self._incomplete: set[tuple[str, int]] = set()

    def add(self, shard: _ShardPlace, found: _Found) -> None:
        """Count a shard's labels and, after the last variant, compare them."""
        known = found.labels[found.labels != _UNKNOWN]
        key, classes = (shard.split, shard.variant), len(self._manifest.class_names)
        if classes and self._manifest.labelled:
            counts = np.bincount(known, minlength=classes)
            self._counts[key] = counts + self._counts.get(key, np.zeros(classes, np.int64))
        if len(known) < len(found.labels):
            self._incomplete.add(key)
        self._variants.append(found)
        if len(self._variants) == len(self._manifest.splits[shard.split].variants):
            self._compare_variants()
            self._variants = []

    def finish(self, indexes: Iterable[_IndexCheck]) -> tuple[Damage, ...]:
        """Return all damages, by file in the manifest's order, then by record."""
        self._damages += [index.damage for index in indexes if index.damage is not None and not index.is_blamed]
        self._damages += self._iter_wrong_counts()
        places = {MANIFEST: -1}
        for split in self._manifest.splits.values():
            for variant in split.variants:
                for name in (variant.index.name, *(shard.name for shard in variant.shards)):
                    places[name] = len(places)
        return tuple(sorted(self._damages, key=lambda d: (places[d.shard], -1 if d.record is None else d.record)))

    def _compare_variants(self) -> None:
        differing: dict[tuple[str, int], Damage] = {}
        base = self._variants[0]
        for found in self._variants[1:]:
            known = (base.labels != _UNKNOWN) & (found.labels != _UNKNOWN)
            for record in map(int, np.flatnonzero(known & (base.labels != found.labels))):
                blamed, other = (base, found) if base.another and not found.another else (found, base)
                name = blamed.entry.name
                message = f"label {blamed.labels[record]}; {other.entry.name} has {other.labels[record]}"
                differing.setdefault((name, record), Damage(name, record, int(blamed.offsets[record]), message))
        blamed_names = {name for name, _ in differing}
        for found in self._variants:
            self._damages += found.damages
            if found.another is not None and found.entry.name not in blamed_names:
                self._damages.append(found.another)
        self._damages += differing.values()

    def _iter_wrong_counts(self) -> Iterator[Damage]:
        names = self._manifest.class_names
        for (split, variant), found in self._counts.items():
            entry, expected = self._manifest.splits[split], np.zeros_like(found)
            expected[: len(entry.class_counts)] = entry.class_counts[: len(found)]
            # Damaged records are of some class: only more than expected is known to be wrong then.
            is_wrong = found > expected if (split, variant) in self._incomplete else found != expected
            wrong = np.flatnonzero(is_wrong).tolist()
            if wrong:
                each = "; ".join(
                    f"{found[label]} records of class {names[label]!r}, not {expected[label]}"
                    for label in wrong[:_CLASSES_NAMED]
                )
                more = f"; and {len(wrong) - _CLASSES_NAMED} more classes" if len(wrong) > _CLASSES_NAMED else ""
                where = f"split {split!r}{f', variant {variant}' if len(entry.variants) > 1 else ''}"
                yield Damage(MANIFEST, None, None, f"class_counts: {where} has {each}{more}")
