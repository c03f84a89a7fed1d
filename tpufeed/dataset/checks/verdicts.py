"""What is wrong with a shard as a whole, from what its spans, its size and the index say."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from tpufeed.dataset.checks.offsets import IndexCheck
from tpufeed.dataset.checks.shards import UNKNOWN_LABEL, Ints, Span
from tpufeed.dataset.manifest import Shard
from tpufeed.errors import Damage, StoreError, Unreadable
from tpufeed.tfrecord.crc32c import combine_crc32c

_ANOTHER = "What it holds is sound in itself: a file of another build, or one that was edited"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is known of a shard.

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


def judge_missing(entry: Shard, problem: str) -> Verdict:
    """A shard that is not there."""
    return Verdict(entry, (Damage(entry.name, None, None, problem),), None, _unknown(entry), np.zeros(0, np.int64))


def judge_unreadable(entry: Shard, error: StoreError, damages: Iterable[Damage] = ()) -> Verdict:
    """A shard that cannot be read, but for what `damages` were found in."""
    why = Unreadable(entry.name, str(error))
    return Verdict(entry, tuple(damages), None, _unknown(entry), np.zeros(0, np.int64), why)


def judge_shard(
    entry: Shard, size: int, indexed: Ints | None, spans: Sequence[Span], rescan: Callable[[], Span]
) -> Verdict:
    """A shard of `size` bytes.

    Args:
        entry: what the manifest says of it.
        size: what there is.
        indexed: the offsets of a sound index, by which `spans` were read; None: there is one span, from a scan.
        spans: of the records that are present, in order.
        rescan: reads the shard by its own lengths. Called where it is not what the index says: whether it is damaged
            or another file, only that tells.
    """
    span = _join(spans)
    if indexed is not None and not (span.framed and size == entry.bytes):
        again = rescan()
        if not again.complete:
            return _judge_by_index(entry, size, indexed, span)
        span = again
    if indexed is None and not span.complete:
        return Verdict(entry, tuple(span.damages), None, _fit(span.labels, entry), span.offsets)
    return _judge_whole(entry, size, indexed, span)


def index_damages(index: IndexCheck, number: int, verdict: Verdict) -> list[Damage]:
    """Where an index that is not the manifest's differs from its shard `number`, where that has what it should."""
    entry, actual, suspect = verdict.entry, verdict.offsets, index.offsets(number)
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


def _judge_by_index(entry: Shard, size: int, indexed: Ints, span: Span) -> Verdict:
    """A damaged shard, whose records were looked for where they should be."""
    damages = list(span.damages)
    if size > entry.bytes:
        message = f"{size - entry.bytes} bytes behind the last record"
        damages.append(Damage(entry.name, entry.records, entry.bytes, message))
    elif size < entry.bytes:
        cut = len(span.labels)
        lost = f"; {entry.records - cut} records are lost" if entry.records - cut > 1 else ""
        message = f"truncated; the shard ends at byte {size} of {entry.bytes}{lost}"
        damages.append(Damage(entry.name, cut, int(indexed[cut]), message))
    return Verdict(entry, tuple(damages), None, _fit(span.labels, entry), indexed)


def _judge_whole(entry: Shard, size: int, indexed: Ints | None, span: Span) -> Verdict:
    """A shard whose records follow one another from its start to its end."""
    count, damages = len(span.labels), list(span.damages)
    if count != entry.records or size != entry.bytes:
        is_cut = indexed is not None and count < len(indexed) and bool((span.offsets == indexed[: count + 1]).all())
        message = f"{count} records in {size} bytes; the manifest says {entry.records} in {entry.bytes}. "
        if is_cut:
            damages.append(Damage(entry.name, count, size, f"{message}It was cut here"))
            return Verdict(entry, tuple(damages), None, _fit(span.labels, entry), span.offsets)
        damages.append(Damage(entry.name, None, None, message + _ANOTHER))
        return Verdict(entry, tuple(damages), None, _unknown(entry), span.offsets)
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
    return Verdict(entry, tuple(damages), another, labels, span.offsets)


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
    """As many labels as the manifest counts."""
    fitted = _unknown(entry)
    fitted[: len(labels)] = labels[: entry.records]
    return fitted


def _unknown(entry: Shard) -> Ints:
    return np.full(entry.records, UNKNOWN_LABEL)
