"""`verify`: check that a dataset's bytes are what its manifest says, and list every difference.

Each thread checks one shard at a time. The variants of a shard follow one another: their labels are compared and then
forgotten.
"""

import itertools
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tpufeed.dataset.index import ITEM_BYTES, NPY_HEADER_BYTES, Index
from tpufeed.dataset.manifest import Manifest, Shard, Variant
from tpufeed.dataset.naming import MANIFEST
from tpufeed.dataset.reader import Dataset, open_dataset
from tpufeed.dataset.record_check import Picks, RecordCheck, parse_picks
from tpufeed.dataset.schema import several_labels
from tpufeed.dataset.walk import Ints, Walker, WalkProgress, map_shards, stored_crc32c
from tpufeed.display.progress import show_progress
from tpufeed.display.summary import Summary
from tpufeed.errors import (
    Damage,
    DatasetDamagedError,
    DatasetUnreadableError,
    ObjectNotFoundError,
    RecordError,
    ShardError,
    StoreError,
    Unreadable,
    advised,
    mask_secrets,
)
from tpufeed.options import checked
from tpufeed.storage.store import Store
from tpufeed.text import format_count
from tpufeed.tfrecord.framing import LENGTH_DAMAGED

_UNKNOWN = int(np.iinfo(np.int64).min)  # label of a record that has no label, or is damaged
_ALIGNED_BYTES = 64  # the header of an npy file has a multiple of this
_DAMAGES_NAMED = 3
_CLASSES_NAMED = 5
_MISSING = "is missing, but the manifest names it"
_REMOVED = "was removed while it was read"
# Of the builds that make lost files again, alone.
_VERBS = {"shard": "shard", "append": "append", "warmup": "cache warmup", "cache warmup": "cache warmup"}
_ANOTHER = "Its records are sound: it is the file of another build, or was edited"


@dataclass(frozen=True, slots=True, repr=False)
class Verified(Summary):
    """Result of a verification that found nothing wrong.

    Attributes:
        url: URL of the dataset.
        shards: number of shards of all variants.
        records: number of records of all variants.
        bytes: size of all shards.
        decoded: number of records whose images were decoded.
    """

    url: str
    shards: int
    records: int
    bytes: int
    decoded: int = 0


@checked()
def verify(
    url: str | Path,
    decode: str | None = None,
    listener: Callable[[WalkProgress], None] | None = None,
    *,
    version: int | None = None,
    progress: bool | None = None,
) -> Verified:
    """Read every byte of a dataset and compare it with the manifest.

    It checks presence, size and CRC of each shard and index, both CRCs of each record, every feature against the
    schema, the text of each label against the name of its class, the counts of records and classes, and that variants
    agree on labels. Damage in one record hides no other: if the index is sound, checking continues with the next one.

    Args:
        url: URL of the dataset.
        decode: "all" also decodes every image, "5%" about one in twenty, the same ones each time.
        listener: called in this thread with the progress, at the start and after each shard.
        version: number of a version of a dataset that has grown. Default: the newest.
        progress: show a progress bar, as in `tpufeed.shard`.

    Raises:
        DatasetDamagedError: `damages` lists all damage with shard, record and byte, `unreadable` the files that could
            not be read.
        DatasetUnreadableError: `unreadable` lists files that could not be read. What could be read is not damaged.
        DatasetNotFoundError: there is no dataset.
        ManifestError: its manifest is damaged, so there is nothing to compare with.
        OptionError: `decode` is neither "all" nor such a share.
    """
    picks = parse_picks(decode)
    dataset = open_dataset(url, version)
    manifest = dataset.manifest
    variants = [variant for split in manifest.splits.values() for variant in split.variants]
    problems = list(map_shards(dataset.store, lambda variant, _: _check_index(dataset.store, variant), variants))
    damages = [problem for problem in problems if isinstance(problem, Damage)]
    unreadable = [problem for problem in problems if isinstance(problem, Unreadable)]
    # With a damaged index, records are found by their own lengths.
    indexes = {
        variant.index.name: None if problem else Index(dataset.store, variant)
        for variant, problem in zip(variants, problems, strict=True)
    }
    shards = [
        _NumberedShard(number, variant.shards[number], variant.index.name, indexes[variant.index.name])
        for split in manifest.splits.values()
        for number in range(len(split.variants[0].shards))
        for variant in split.variants
    ]
    check = _ShardCheck(dataset, picks)
    walked, decoded = WalkProgress(sum(shard.entry.bytes for shard in shards)), 0
    with (
        show_progress("verifying", progress, listener) as listen,
        closing(map_shards(dataset.shards, check, shards)) as results,  # an error here stops the threads as well
    ):
        listen(walked)
        for name, split in manifest.splits.items():
            counts = _ClassCounts(manifest, name)
            for _ in split.variants[0].shards:
                same = list[_CheckedShard]()  # the same shard of each variant
                for found in itertools.islice(results, len(split.variants)):
                    same.append(found)
                    decoded += found.decoded
                    walked = replace(
                        walked,
                        bytes=walked.bytes + found.entry.bytes,
                        records=walked.records + found.records,
                        damages=walked.damages + len(found.damages),
                    )
                    listen(walked)
                unreadable += [found.unreadable for found in same if found.unreadable is not None]
                damages += _compare_variants(same)
                counts.add(same)
            damages += counts.iter_damages()
    names = (name for v in variants for name in (v.index.name, *(shard.name for shard in v.shards)))
    places = {name: place for place, name in enumerate([MANIFEST, *names])}
    damages.sort(key=lambda damage: (places[damage.shard], -1 if damage.record is None else damage.record))
    cannot = "1 file cannot be read" if len(unreadable) == 1 else f"{len(unreadable):,} files cannot be read"
    if damages:
        count = "1 damage" if len(damages) == 1 else f"{len(damages):,} damages"
        also = f"; {cannot} besides" if unreadable else ""
        remedy = _find_remedy(dataset, damages)
        message = f"{dataset.url}: {count}: {_name_some(damages)}{also}. {remedy}"
        raise DatasetDamagedError(message, tuple(damages), tuple(unreadable), remedy)
    if unreadable:
        message = f"{dataset.url}: {cannot}, the others are not damaged: {_name_some(unreadable)}"
        raise DatasetUnreadableError(message, tuple(unreadable))
    return Verified(dataset.url, len(shards), walked.records, walked.total_bytes, decoded)


def _find_remedy(dataset: Dataset, damages: Sequence[Damage]) -> str:
    """Return how to get the damaged files back: the command of each build that has made some of them."""
    manifest, url = dataset.manifest, mask_secrets(dataset.url)
    builds = {part.folder: (part.kind, part.source) for part in manifest.history}
    builds.setdefault("", (manifest.options.get("command", ""), manifest.options.get("source", "")))
    has_other_plan = manifest.cache is not None and len(manifest.history) > 1
    runs, lost, by_folder = list[str](), list[str](), defaultdict[str, list[str]](list)
    for name in dict.fromkeys(damage.shard for damage in damages):
        by_folder[name.rpartition("/")[0]].append(name)
    for folder, (first, *more) in by_folder.items():
        kind, source = builds.get(folder, builds[""])  # adopted shards may be in any folder
        files = f"{first} and {format_count(len(more), 'other')}" if more else first
        if kind == "adopt":
            lost.append(f"Restore {files}, or remove {MANIFEST} and its indexes, and run the same tpufeed adopt again")
        elif first == MANIFEST or has_other_plan or kind not in _VERBS:
            lost.append(f"No command makes {files} alone: restore it, or build all again with --overwrite")
        else:
            runs.append(f"{advised(_VERBS[kind], mask_secrets(source), url)} (makes {files})")
    how = "To get files back, remove the damaged ones, and run, with the options of the build: "
    return ". ".join([*([how + "; ".join(runs)] if runs else []), *lost])


def _name_some(found: Sequence[Damage] | Sequence[Unreadable]) -> str:
    shown = "; ".join(map(str, found[:_DAMAGES_NAMED]))
    return f"{shown}, and {len(found) - _DAMAGES_NAMED:,} more" if len(found) > _DAMAGES_NAMED else shown


def _check_index(store: Store, variant: Variant) -> Damage | Unreadable | None:
    """Return what is wrong with the index of a variant: its size, its CRC, or its number of offsets."""
    entry, problem = variant.index, ""
    header_bytes = entry.bytes - ITEM_BYTES * variant.index_starts[-1]
    try:
        found = store.stat(entry.name)
        if found is None:
            problem = _MISSING
        elif found.size_bytes != entry.bytes:
            problem = f"{found.size_bytes} bytes, but the manifest says {entry.bytes}"
        elif header_bytes < _ALIGNED_BYTES or header_bytes % _ALIGNED_BYTES:
            wanted = NPY_HEADER_BYTES + entry.bytes - header_bytes
            problem = f"{entry.bytes} bytes, but the manifest's records need {wanted}"
        else:
            crc = stored_crc32c(store, entry.name, entry.bytes, entry.crc32c)
            if crc != entry.crc32c:
                problem = f"CRC-32C {crc:08x}, but the manifest says {entry.crc32c:08x}"
    except ObjectNotFoundError:
        problem = _REMOVED
    except StoreError as error:
        return Unreadable(entry.name, str(error))
    return Damage(entry.name, None, None, problem) if problem else None


@dataclass(frozen=True, slots=True)
class _NumberedShard:
    """Shard `number` of a variant, and the variant's index, or None if that is damaged."""

    number: int
    entry: Shard
    index_name: str
    index: Index | None


@dataclass(slots=True)
class _CheckedShard:
    """Findings on a shard.

    Attributes:
        entry: the shard in the manifest.
        labels: labels of the records that were read, `_UNKNOWN` if one is not known. Not as many as in the manifest: a
            forged one may count any number.
        offsets: where the records start, and where the last one ends.
        damages: all damage of the shard.
        another: its bytes are not the manifest's although no record is damaged. It is listed unless the comparison of
            variants finds the record.
        unreadable: why it could not be read whole.
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

    `offsets` and `labels` are the records'. `is_framed` means that each record has the length that the index says,
    `is_complete` that the walk reached the shard's end.
    """

    offsets: Ints
    labels: Ints
    crc32c: int
    decoded: int
    is_framed: bool
    is_complete: bool


class _ShardCheck:
    """Checks shards of one dataset against the manifest and the index. Thread-safe."""

    def __init__(self, dataset: Dataset, picks: Picks | None) -> None:
        self._store = dataset.shards
        self._records = RecordCheck(dataset.manifest)
        self._picks = picks if dataset.manifest.tensor_shape is None else None  # pixels need no decoding

    def __call__(self, shard: _NumberedShard, stop: threading.Event) -> _CheckedShard:
        """Check all of a shard."""
        entry, indexed, problem = shard.entry, None, ""
        found = _CheckedShard(entry, np.zeros(0, np.int64), np.zeros(0, np.int64))
        try:
            info = self._store.stat(entry.name)
            if info is None:
                found.add(None, None, _MISSING)
                return found
            if shard.index is not None:
                try:
                    indexed = shard.index.offsets([shard.number])[0].astype(np.int64)
                except ShardError as error:
                    indexed, problem = None, str(error)
            self._check(found, shard, info.size_bytes, indexed, stop)
            # If the manifest has a wrong size, the offsets do not fit either: one damage is enough.
            if problem and not found.damages and found.another is None:
                found.add(None, None, problem)
        except ObjectNotFoundError:
            found.damages = [Damage(entry.name, None, None, _REMOVED)]
        except StoreError as error:  # damage that was found before stays listed
            found.unreadable = Unreadable(entry.name, str(error))
        return found

    def _check(
        self, found: _CheckedShard, shard: _NumberedShard, size: int, indexed: Ints | None, stop: threading.Event
    ) -> None:
        """Check a shard of `size` bytes. `indexed` has the offsets of its records, if the index is sound."""
        entry = shard.entry
        # If the shard was cut, records behind the cut cannot be read.
        present = None if indexed is None else indexed[: max(1, int(np.searchsorted(indexed, size, "right")))]
        walk = self._walk(entry.name, size, present, found.damages, stop)
        found.records, found.decoded = len(walk.labels), walk.decoded
        if indexed is not None and not (walk.is_framed and size == entry.bytes):
            # The shard is damaged, or is another file: the lengths in its records tell.
            damages = list[Damage]()
            again = self._walk(entry.name, size, None, damages, stop)
            if not again.is_complete:
                count = len(walk.labels)
                if size > entry.bytes:
                    found.add(entry.records, entry.bytes, f"{size - entry.bytes} bytes behind the last record")
                elif size < entry.bytes:
                    lost = f"; {entry.records - count} records are lost" if entry.records - count > 1 else ""
                    message = f"truncated: the shard ends at byte {size} of {entry.bytes}{lost}"
                    found.add(count, int(indexed[count]), message)
                found.labels, found.offsets = walk.labels, indexed
                return
            walk, found.damages = again, damages
        count, found.offsets = len(walk.labels), walk.offsets
        is_indexed = indexed is None or np.array_equal(walk.offsets, indexed[: count + 1])
        if is_indexed or not walk.is_complete:  # in another file, record i need not be sample i
            found.labels = walk.labels[: entry.records]
        if not walk.is_complete:
            return
        if count != entry.records or size != entry.bytes:
            message = f"{count} records in {size} bytes, but the manifest says {entry.records} in {entry.bytes}. "
            if is_indexed and indexed is not None:
                found.add(count, size, f"{message}It was cut here")
            else:
                found.labels = walk.labels[:0]
                found.add(None, None, message + _ANOTHER)
            return
        record, byte, where = None, None, ""
        if (
            indexed is not None
            and shard.index is not None
            and not is_indexed
            # If the index, read again, has these offsets, they were damaged on the way.
            and not np.array_equal(shard.index.offsets([shard.number])[0], walk.offsets)
        ):
            record = int(np.flatnonzero(walk.offsets != indexed)[0])
            byte, where = int(walk.offsets[record]), f"the index ({shard.index_name}) has it at byte {indexed[record]}"
        if walk.crc32c != entry.crc32c and not found.damages:
            message = f"{size} bytes of CRC-32C {walk.crc32c:08x}, but the manifest says {entry.crc32c:08x}. {_ANOTHER}"
            found.another = Damage(entry.name, record, byte, f"{message}; {where}" if where else message)
        elif where and walk.crc32c == entry.crc32c:
            found.add(record, byte, where)

    def _walk(self, name: str, size: int, offsets: Ints | None, damages: list[Damage], stop: threading.Event) -> _Walk:
        """Check each record of a shard, and add to `damages`."""
        walker, labels, starts = Walker(self._store, name, size), list[int](), [0]
        check, picks, decoded, is_framed, problem = self._records.check, self._picks, 0, True, ""
        for walked in walker.walk(offsets, stop):
            starts += walked.offsets[1:]
            is_framed &= walked.framed
            problem = walked.problem
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
        if problem:
            if problem == LENGTH_DAMAGED:
                problem += "; without a sound index the start of the next record is unknown: "
                problem += f"{size - starts[-1]} bytes from here on are not checked"
            damages.append(Damage(name, len(labels), starts[-1], problem))
        return _Walk(np.array(starts), np.array(labels, np.int64), walker.crc32c, decoded, is_framed, not problem)


def _compare_variants(shards: Sequence[_CheckedShard]) -> Iterator[Damage]:
    """Yield the damages of a shard's variants, and the records on whose labels these disagree."""
    base, differing = shards[0], dict[tuple[str, int], Damage]()
    for found in shards[1:]:
        count = min(len(base.labels), len(found.labels))
        ours, theirs = base.labels[:count], found.labels[:count]
        known = (ours != _UNKNOWN) & (theirs != _UNKNOWN)
        for record in map(int, np.flatnonzero(known & (ours != theirs))):
            blamed, other = (base, found) if base.another and not found.another else (found, base)
            name = blamed.entry.name
            message = f"label {blamed.labels[record]}; {other.entry.name} has {other.labels[record]}"
            differing.setdefault((name, record), Damage(name, record, int(blamed.offsets[record]), message))
    blamed_names = {name for name, _ in differing}
    for found in shards:
        yield from found.damages
        if found.another is not None and found.entry.name not in blamed_names:
            yield found.another
    yield from differing.values()


class _ClassCounts:
    """Counts records by class in each variant of a split, and compares the counts with the manifest's."""

    def __init__(self, manifest: Manifest, split: str) -> None:
        self._names, self._split, self._entry = manifest.class_names, split, manifest.splits[split]
        self._counted = bool(manifest.labelled and manifest.class_names and not several_labels(manifest.features))
        self._counts = np.zeros((len(self._entry.variants), len(self._names)), np.int64)
        self._complete = [True] * len(self._entry.variants)

    def add(self, shards: Sequence[_CheckedShard]) -> None:
        """Count the labels of one shard's variants."""
        for variant, found in enumerate(shards) if self._counted else ():
            known = found.labels[found.labels != _UNKNOWN]
            self._counts[variant] += np.bincount(known[known >= 0], minlength=len(self._names))
            self._complete[variant] &= len(known) == found.entry.records

    def iter_damages(self) -> Iterator[Damage]:
        """Yield a damage for each variant whose counts are wrong."""
        if not self._counted:
            return
        expected = np.zeros(len(self._names), np.int64)
        stated = self._entry.class_counts[: len(expected)]
        expected[: len(stated)] = stated
        for variant, (found, complete) in enumerate(zip(self._counts, self._complete, strict=True)):
            # Damaged records have unknown classes: then only more records than expected are certainly wrong.
            wrong = np.flatnonzero(found != expected if complete else found > expected).tolist()
            if wrong:
                each = "; ".join(
                    f"{found[label]} records of class {self._names[label]!r}, not {expected[label]}"
                    for label in wrong[:_CLASSES_NAMED]
                )
                more = f"; and {len(wrong) - _CLASSES_NAMED} more classes" if len(wrong) > _CLASSES_NAMED else ""
                where = f"split {self._split!r}{f', variant {variant}' if len(self._counts) > 1 else ''}"
                yield Damage(MANIFEST, None, None, f"class_counts: {where} has {each}{more}")
