"""Check a shard against the manifest: its records, its size and its index; and the variants of a shard together."""

import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from tpufeed.dataset.commit import stored_crc32c
from tpufeed.dataset.manifest import Manifest, Shard, Variant
from tpufeed.dataset.naming import MANIFEST
from tpufeed.dataset.record_check import Picks, RecordCheck
from tpufeed.dataset.walk import LENGTH_DAMAGED, Ints, Walked, Walker
from tpufeed.errors import Damage, ObjectNotFoundError, RecordError, StoreError, Unreadable
from tpufeed.storage.reading import settle
from tpufeed.storage.store import Store
from tpufeed.tfrecord.crc32c import combine_crc32c
from tpufeed.tfrecord.framing import OVERHEAD_BYTES

UNKNOWN_LABEL = int(np.iinfo(np.int64).min)

_OFFSET_BYTES = 8
_CLASSES_NAMED = 5
_ANOTHER = "What it holds is sound in itself: a file of another build, or one that was edited"


# The index of a variant: records are found by it, where it is sound.


@dataclass(frozen=True, slots=True)
class IndexCheck:
    """An index file, of which only the parts asked for are read.

    Attributes:
        problem: why it is not the manifest's.
        unreadable: what kept it from being read; it has no offsets then, either.
        lost: it has no offsets that could be compared: it is missing, or of another size.
    """

    store: Store
    variant: Variant
    problem: Damage | None
    unreadable: Unreadable | None
    lost: bool

    def offsets(self, shard: int) -> Ints | None:
        """Return the offsets of a shard as they stand there; None where they can be no shard's."""
        if self.lost:
            return None
        index, counts = self.variant.index, [entry.records + 1 for entry in self.variant.shards]
        start = index.bytes - _OFFSET_BYTES * sum(counts[shard:])
        stop = start + _OFFSET_BYTES * counts[shard]
        try:
            data = self.store.read_range(index.name, start, stop)
        except StoreError:
            return None
        return np.frombuffer(data, "<u8").astype(np.int64) if len(data) == stop - start else None

    def sound_offsets(self, shard: int) -> Ints | None:
        """Return the offsets of a shard where they may be relied on, else None."""
        found = None if self.problem or self.unreadable else self.offsets(shard)
        if found is None or found[0] != 0 or found[-1] != self.variant.shards[shard].bytes:
            return None
        return None if (np.diff(found) < OVERHEAD_BYTES).any() else found


def check_index(store: Store, variant: Variant) -> IndexCheck:
    """Check presence, size, CRC and number of offsets of a variant's index."""
    entry = variant.index
    where = f"{store.url}/{entry.name}"
    lost, message, unreadable = True, "", None
    try:
        found = store.stat(entry.name)
        if found is None:
            message = "is missing; the manifest names it"
        elif found.size_bytes != entry.bytes:
            message = f"{found.size_bytes} bytes; the manifest says {entry.bytes}"
        else:
            crc = settle(
                where,
                lambda: stored_crc32c(store, entry.name, entry.bytes),
                identity=lambda crc: crc,
                is_sure=lambda crc: crc == entry.crc32c,
            )
            if crc != entry.crc32c:
                lost, message = False, f"CRC-32C {crc:08x}; the manifest says {entry.crc32c:08x}"
            else:
                message = settle(where, lambda: _find_count_problem(store, variant), str, lambda problem: not problem)
                lost = bool(message)
    except ObjectNotFoundError:
        message = "was removed while it was read"
    except StoreError as error:
        unreadable = Unreadable(entry.name, str(error))
    problem = Damage(entry.name, None, None, message) if message else None
    return IndexCheck(store, variant, problem, unreadable, lost)


def _find_count_problem(store: Store, variant: Variant) -> str:
    """Say why the file is no index of as many records as the manifest counts; empty where it is one."""
    wanted = sum(entry.records + 1 for entry in variant.shards)
    head = io.BytesIO(store.read_range(variant.index.name, 0, min(variant.index.bytes, 4096)))
    try:
        np.lib.format.read_magic(head)
        shape, _, dtype = np.lib.format.read_array_header_1_0(head)
    except ValueError as error:
        return f"not an npy file: {error}"
    if dtype != np.dtype("<u8") or len(shape) != 1:
        return f"an array of {dtype} of shape {shape}, not of uint64 offsets"
    if shape[0] != wanted or head.tell() + wanted * _OFFSET_BYTES != variant.index.bytes:
        return f"{shape[0]} offsets; the manifest's records want {wanted}"
    return ""


# The records of a shard.


@dataclass(slots=True)
class Span:
    """Findings on records `[first, first + len(labels))` of a shard.

    Attributes:
        offsets: where they start, and where the last ends.
        labels: of each, `UNKNOWN_LABEL` where it has none or is damaged.
        crc32c: of their bytes.
        decoded: records whose images were decoded.
        framed: the length of each is what it should be.
        complete: the span reaches to where it should: the end of the records wanted, or of the file.
    """

    first: int
    offsets: Ints
    labels: Ints
    crc32c: int = 0
    decoded: int = 0
    framed: bool = True
    complete: bool = True
    damages: list[Damage] = field(default_factory=list)


class ShardCheck:
    """Checks records of shards of one dataset. Thread-safe. Raises StoreError where a shard cannot be read."""

    def __init__(self, store: Store, records: RecordCheck, picks: Picks | None) -> None:
        self._store = store
        self._records = records
        self._picks = picks if records.encoded else None

    def check_span(self, name: str, first: int, offsets: Ints) -> Span:
        """Check records `first` and on of shard `name` at `offsets`, by the index: damage in one hides no other."""
        walker = Walker(self._store, name, int(offsets[-1]))
        return self._check(name, first, walker, walker.by_index(first, offsets), int(offsets[0]))

    def scan(self, name: str, size: int) -> Span:
        """Check all records of a shard of `size` bytes, found by their own lengths, as far as these can be trusted."""
        walker = Walker(self._store, name, size)
        return self._check(name, 0, walker, walker.by_length(), 0)

    def _check(self, name: str, first: int, walker: Walker, chunks: Iterator[Walked], start: int) -> Span:
        span = Span(first, np.zeros(0, np.int64), np.zeros(0, np.int64))
        check, picks, offsets, labels = self._records.check, self._picks, [start], list[int]()
        for walked in chunks:
            offsets += walked.offsets[1:]
            span.framed &= walked.framed
            for number, payload in enumerate(walked.payloads):
                label = None
                try:
                    if isinstance(payload, RecordError):
                        raise payload
                    sample = check(payload)
                    label = sample.label
                    if picks is not None and picks(name, walked.first + number):
                        span.decoded += 1
                        self._records.check_image(sample)
                except RecordError as error:
                    damage = Damage(name, walked.first + number, walked.offsets[number], str(error))
                    span.damages.append(damage)
                labels.append(UNKNOWN_LABEL if label is None else label)
            if walked.problem:
                lost = "; without a sound index it cannot be told where the next record starts: "
                lost += f"{walker.size - offsets[-1]} bytes from here on are not checked"
                message = walked.problem + (lost if walked.problem == LENGTH_DAMAGED else "")
                span.damages.append(Damage(name, first + len(labels), offsets[-1], message))
                span.complete = False
        span.offsets, span.labels, span.crc32c = np.array(offsets), np.array(labels, np.int64), walker.crc32c
        return span


# A shard as a whole, from what its spans, its size and the index say.


@dataclass(frozen=True, slots=True)
class Findings:
    """Findings on a shard.

    Attributes:
        entry: the shard.
        damages: of it.
        another: its bytes are not the manifest's although no record is damaged; to be listed unless something that
            looks at several shards has found the record.
        labels: of each record that the manifest counts, `UNKNOWN_LABEL` where it is not known.
        offsets: where they start.
        unreadable: what kept it from being read whole.
    """

    entry: Shard
    damages: tuple[Damage, ...]
    another: Damage | None
    labels: Ints
    offsets: Ints
    unreadable: Unreadable | None = None


def classify_missing(entry: Shard, problem: str) -> Findings:
    """Return the findings on a shard that is not there."""
    return Findings(entry, (Damage(entry.name, None, None, problem),), None, _unknown(entry), np.zeros(0, np.int64))


def classify_unreadable(entry: Shard, error: StoreError, damages: Iterable[Damage] = ()) -> Findings:
    """Return the findings on a shard that cannot be read, but for what `damages` were found in."""
    why = Unreadable(entry.name, str(error))
    return Findings(entry, tuple(damages), None, _unknown(entry), np.zeros(0, np.int64), why)


def classify(
    entry: Shard, size: int, indexed: Ints | None, spans: Sequence[Span], rescan: Callable[[], Span]
) -> Findings:
    """Return the findings on a shard of `size` bytes.

    Args:
        entry: the shard in the manifest.
        size: its bytes.
        indexed: the offsets of a sound index, by which `spans` were read; None: there is one span, from a scan.
        spans: of the records that are present, in order.
        rescan: reads the shard by its own lengths. Called where it is not what the index says: whether it is damaged
            or another file, only that tells.
    """
    span = _join(spans)
    if indexed is not None and not (span.framed and size == entry.bytes):
        again = rescan()
        if not again.complete:
            return _classify_by_index(entry, size, indexed, span)
        span = again
    if indexed is None and not span.complete:
        return Findings(entry, tuple(span.damages), None, _fit(span.labels, entry), span.offsets)
    return _classify_whole(entry, size, indexed, span)


def index_damages(index: IndexCheck, number: int, found: Findings) -> list[Damage]:
    """List where an index that is not the manifest's differs from its shard `number`, where that is as it should be."""
    entry, actual, suspect = found.entry, found.offsets, index.offsets(number)
    if suspect is None or len(suspect) != len(actual) or int(actual[-1]) != entry.bytes:
        return []
    return [
        Damage(
            entry.name,
            record if record < entry.records else None,
            int(actual[record]),
            f"the index ({index.variant.index.name}) has {'it' if record < entry.records else 'the end'} at byte "
            f"{int(suspect[record]) % 2**64}",
        )
        for record in map(int, np.flatnonzero(suspect != actual))
    ]


def _classify_by_index(entry: Shard, size: int, indexed: Ints, span: Span) -> Findings:
    """Return the findings on a damaged shard, whose records were looked for where they should be."""
    damages = list(span.damages)
    if size > entry.bytes:
        message = f"{size - entry.bytes} bytes behind the last record"
        damages.append(Damage(entry.name, entry.records, entry.bytes, message))
    elif size < entry.bytes:
        cut = len(span.labels)
        lost = f"; {entry.records - cut} records are lost" if entry.records - cut > 1 else ""
        message = f"truncated; the shard ends at byte {size} of {entry.bytes}{lost}"
        damages.append(Damage(entry.name, cut, int(indexed[cut]), message))
    return Findings(entry, tuple(damages), None, _fit(span.labels, entry), indexed)


def _classify_whole(entry: Shard, size: int, indexed: Ints | None, span: Span) -> Findings:
    """Return the findings on a shard whose records follow one another from its start to its end."""
    count, damages = len(span.labels), list(span.damages)
    if count != entry.records or size != entry.bytes:
        is_cut = indexed is not None and count < len(indexed) and bool((span.offsets == indexed[: count + 1]).all())
        message = f"{count} records in {size} bytes; the manifest says {entry.records} in {entry.bytes}. "
        if is_cut:
            damages.append(Damage(entry.name, count, size, f"{message}It was cut here"))
            return Findings(entry, tuple(damages), None, _fit(span.labels, entry), span.offsets)
        damages.append(Damage(entry.name, None, None, message + _ANOTHER))
        return Findings(entry, tuple(damages), None, _unknown(entry), span.offsets)
    moved = np.zeros(0, int) if indexed is None else np.flatnonzero(span.offsets != indexed)
    another = None
    if span.crc32c != entry.crc32c and not damages:
        message = f"{size} bytes of CRC-32C {span.crc32c:08x}; the manifest says {entry.crc32c:08x}. {_ANOTHER}"
        record, byte = None, None
        if len(moved) and indexed is not None:
            record, byte = int(moved[0]), int(span.offsets[moved[0]])
            message += f"; the index has this record at byte {indexed[moved[0]]}"
        another = Damage(entry.name, record, byte, message)
    labels = _unknown(entry) if len(moved) else span.labels
    return Findings(entry, tuple(damages), another, labels, span.offsets)


def _join(spans: Sequence[Span]) -> Span:
    first, *rest = spans
    for span in rest:
        size = int(span.offsets[-1] - span.offsets[0])
        first = Span(
            first=0,
            offsets=np.concatenate([first.offsets, span.offsets[1:]]),
            labels=np.concatenate([first.labels, span.labels]),
            crc32c=combine_crc32c(first.crc32c, span.crc32c, size),
            framed=first.framed and span.framed,
            complete=first.complete and span.complete,
            damages=first.damages + span.damages,
        )
    return first


def _fit(labels: Ints, entry: Shard) -> Ints:
    """Return as many labels as the manifest counts."""
    fitted = _unknown(entry)
    fitted[: len(labels)] = labels[: entry.records]
    return fitted


def _unknown(entry: Shard) -> Ints:
    return np.full(entry.records, UNKNOWN_LABEL)


# All shards together: variants agree on labels, and there are as many records of each class as the manifest says.


class Tally:
    """Sum of the findings on all shards. The variants of a shard are added one after the other."""

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest
        self._group: list[Findings] = []
        self._damages: list[Damage] = []
        self._counts: dict[tuple[str, int], Ints] = {}
        self._unknown: dict[tuple[str, int], int] = {}

    def add(self, split: str, variant: int, found: Findings) -> None:
        """Count a shard's labels and, after the last variant, compare them."""
        if self._manifest.labelled:
            self._count(split, variant, found.labels)
        self._group.append(found)
        if len(self._group) == len(self._manifest.splits[split].variants):
            self._damages += _iter_group(self._group)
            self._group = []

    def add_damages(self, damages: Iterable[Damage]) -> None:
        """Add damages that need no other shard to be told."""
        self._damages += damages

    def finish(self) -> tuple[Damage, ...]:
        """Return all damages, by file in the manifest's order, then by record."""
        if self._manifest.class_names:
            self._damages += self._iter_wrong_counts()
        places = {MANIFEST: -1}
        for split in self._manifest.splits.values():
            for variant in split.variants:
                for name in (variant.index.name, *(shard.name for shard in variant.shards)):
                    places[name] = len(places)
        return tuple(sorted(self._damages, key=lambda d: (places[d.shard], -1 if d.record is None else d.record)))

    def _count(self, split: str, variant: int, labels: Ints) -> None:
        known = labels[labels != UNKNOWN_LABEL]
        key, classes = (split, variant), len(self._manifest.class_names)
        if classes:
            self._counts[key] = self._counts.get(key, np.zeros(classes, np.int64)) + np.bincount(
                known, minlength=classes
            )
        self._unknown[key] = self._unknown.get(key, 0) + len(labels) - len(known)

    def _iter_wrong_counts(self) -> Iterator[Damage]:
        for (split, variant), found in self._counts.items():
            expected = np.zeros_like(found)
            stated = self._manifest.splits[split].class_counts[: len(found)]
            expected[: len(stated)] = stated
            # Damaged records are of some class: only more than expected is known to be wrong then.
            wrong = np.flatnonzero(found > expected if self._unknown[split, variant] else found != expected)
            if len(wrong):
                several = len(self._manifest.splits[split].variants) > 1
                each = "; ".join(
                    f"{found[number]} records of class {self._manifest.class_names[number]!r}, not {expected[number]}"
                    for number in wrong[:_CLASSES_NAMED]
                )
                more = f"; and {len(wrong) - _CLASSES_NAMED} more classes" if len(wrong) > _CLASSES_NAMED else ""
                where = f"split {split!r}{f', variant {variant}' if several else ''}"
                yield Damage(MANIFEST, None, None, f"class_counts: {where} has {each}{more}")


def _iter_group(variants: Sequence[Findings]) -> Iterator[Damage]:
    """Yield the damages of one shard in all its variants."""
    differing: dict[tuple[str, int], Damage] = {}
    base = variants[0]
    for found in variants[1:]:
        known = (base.labels != UNKNOWN_LABEL) & (found.labels != UNKNOWN_LABEL)
        for record in map(int, np.flatnonzero(known & (base.labels != found.labels))):
            blamed, other = (base, found) if base.another and not found.another else (found, base)
            name = blamed.entry.name
            message = f"label {blamed.labels[record]}; {other.entry.name} has {other.labels[record]}"
            differing.setdefault((name, record), Damage(name, record, int(blamed.offsets[record]), message))
    blamed_names = {name for name, _ in differing}
    for found in variants:
        yield from found.damages
        if found.another is not None and found.entry.name not in blamed_names:
            yield found.another
    yield from differing.values()
