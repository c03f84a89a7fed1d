"""`verify`: check that a dataset's bytes are what its manifest says, and list everything that is not.

Shards are cut into spans of some MB of records, which threads check; what they find is put together in the order of
shards, those of all variants of a part after one another, so that their labels can be compared and then forgotten.
"""

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from tpufeed.dataset.manifest import Shard
from tpufeed.dataset.naming import MANIFEST
from tpufeed.dataset.reader import Dataset, open_dataset
from tpufeed.dataset.record_check import RecordCheck, parse_picks
from tpufeed.dataset.shard_check import (
    Findings,
    IndexCheck,
    ShardCheck,
    Span,
    Tally,
    check_index,
    classify,
    classify_missing,
    classify_unreadable,
    index_damages,
)
from tpufeed.dataset.walk import Ints
from tpufeed.engines.engine import available_cores
from tpufeed.errors import (
    Damage,
    DatasetDamagedError,
    DatasetUnreadableError,
    ObjectNotFoundError,
    StoreError,
    Unreadable,
)
from tpufeed.storage.store import Store

_SPAN_BYTES = 16 << 20
_REMOTE_THREADS = 16  # they wait for the network
_PROGRESS_SECONDS = 0.1
_NAMED = 3


@dataclass(frozen=True, slots=True)
class Verified:
    """Result of a verification that found nothing wrong.

    Attributes:
        url: of the dataset.
        shards: of all variants.
        records: likewise.
        bytes: of all shards.
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
        listener: called in this thread, some times a second, with how far it is.

    Raises:
        DatasetDamagedError: `damages` lists all there are, with shard, record and byte; `unreadable` the files that
            could not be read.
        DatasetUnreadableError: `unreadable` lists files that could not be read; what could be read is not damaged.
        DatasetNotFoundError: no dataset there.
        ManifestError: its manifest is damaged, which leaves nothing to compare with.
        OptionError: `decode` is no such share.
    """
    picks = parse_picks(decode)
    dataset = open_dataset(url)
    shards = list(_iter_shards(dataset))
    total = sum(shard.entry.bytes for shard in shards)
    check = ShardCheck(dataset.shards, RecordCheck(dataset.manifest), picks)
    meter = _Meter(listener, VerifyProgress(total))
    damages, unreadable = _find_damages(dataset, shards, check, meter)
    if damages:
        raise DatasetDamagedError(_summary(dataset.url, damages, unreadable), damages, unreadable)
    if unreadable:
        raise DatasetUnreadableError(_unreadable_summary(dataset.url, unreadable), unreadable)
    return Verified(dataset.url, len(shards), sum(s.entry.records for s in shards), total, meter.decoded)


@dataclass(frozen=True, slots=True)
class _ShardOf:
    split: str
    variant: int
    number: int
    entry: Shard


@dataclass(frozen=True, slots=True)
class _Job:
    """A shard of `size` bytes whose spans are being checked at `offsets`, or why it cannot be."""

    shard: _ShardOf
    index: IndexCheck
    size: int = 0
    offsets: Ints | None = None
    spans: Sequence[Future[Span]] = ()
    problem: str | StoreError = ""


class _Meter:
    """Adds up what is done and tells the listener."""

    def __init__(self, listener: VerifyListener | None, progress: VerifyProgress) -> None:
        self._listener, self._progress = listener, progress
        self._due = 0.0
        self.decoded = 0
        self._tell()

    def add(self, span: Span) -> None:
        done = self._progress
        self.decoded += span.decoded
        self._progress = replace(
            done,
            bytes=done.bytes + int(span.offsets[-1] - span.offsets[0]),
            records=done.records + len(span.labels),
            damages=done.damages + len(span.damages),
        )
        if time.monotonic() >= self._due or self._progress.bytes >= done.total_bytes:
            self._tell()

    def _tell(self) -> None:
        if self._listener is not None:
            self._listener(self._progress)
        self._due = time.monotonic() + _PROGRESS_SECONDS


def _iter_shards(dataset: Dataset) -> Iterator[_ShardOf]:
    """Yield all variants of a shard one after the other."""
    for name, split in dataset.manifest.splits.items():
        for number in range(len(split.variants[0].shards)):
            for variant, found in enumerate(split.variants):
                yield _ShardOf(name, variant, number, found.shards[number])


def _find_damages(
    dataset: Dataset, shards: Sequence[_ShardOf], check: ShardCheck, meter: _Meter
) -> tuple[tuple[Damage, ...], tuple[Unreadable, ...]]:
    """Return all damages, by file in the manifest's order, then by record; and the files that cannot be read."""
    local = dataset.shards.local_path(MANIFEST) is not None
    threads = available_cores() if local else _REMOTE_THREADS
    tally = Tally(dataset.manifest)
    with ThreadPoolExecutor(threads, "tpufeed-verify") as executor:
        try:
            indexes = _check_indexes(dataset, executor)
            unreadable = [index.unreadable for index in indexes.values()]
            differing = set()
            for job in _iter_jobs(dataset, indexes, shards, check, executor, 2 * threads):
                findings = _classify(job, check, meter)
                found = index_damages(job.index, job.shard.number, findings) if job.offsets is None else []
                differing |= {id(job.index)} if found else set()
                tally.add_damages(found)
                tally.add(job.shard.split, job.shard.variant, findings)
                unreadable.append(findings.unreadable)
        except BaseException:
            executor.shutdown(cancel_futures=True)
            raise
    tally.add_damages(index.problem for index in indexes.values() if index.problem and id(index) not in differing)
    return tally.finish(), tuple(filter(None, unreadable))


def _check_indexes(dataset: Dataset, executor: ThreadPoolExecutor) -> dict[tuple[str, int], IndexCheck]:
    """Check the index of each variant, by split and variant."""
    variants = {
        (name, number): variant
        for name, split in dataset.manifest.splits.items()
        for number, variant in enumerate(split.variants)
    }
    found = executor.map(partial(check_index, dataset.store), variants.values())
    return dict(zip(variants, found, strict=True))


def _iter_jobs(
    dataset: Dataset,
    indexes: Mapping[tuple[str, int], IndexCheck],
    shards: Sequence[_ShardOf],
    check: ShardCheck,
    executor: ThreadPoolExecutor,
    ahead: int,
) -> Iterator[_Job]:
    """Yield jobs in the order of shards, started so far ahead of their being taken that `ahead` spans wait."""
    running: deque[_Job] = deque()
    sizes = executor.map(partial(_stat, dataset.shards), [shard.entry.name for shard in shards])
    for shard, size in zip(shards, list(sizes), strict=True):
        running.append(_start(shard, indexes[shard.split, shard.variant], size, check, executor))
        while len(running) > 1 and sum(len(job.spans) for job in running) > ahead:
            yield running.popleft()
    while running:
        yield running.popleft()


def _stat(store: Store, name: str) -> int | str | StoreError:
    """Return the size of a shard, or why it has none, or why that is unknown."""
    try:
        found = store.stat(name)
    except StoreError as error:
        return error
    return "is missing; the manifest names it" if found is None else found.size_bytes


def _start(
    shard: _ShardOf, index: IndexCheck, size: int | str | StoreError, check: ShardCheck, executor: ThreadPoolExecutor
) -> _Job:
    if not isinstance(size, int):
        return _Job(shard, index, problem=size)
    name, offsets = shard.entry.name, index.sound_offsets(shard.number)
    if offsets is None:
        return _Job(shard, index, size, None, [executor.submit(check.scan, name, size)])
    present = offsets[: max(1, int(np.searchsorted(offsets, size, "right")))]
    spans = [
        executor.submit(check.check_span, name, start, present[start : stop + 1])
        for start, stop in itertools.pairwise(_cut(present))
    ]
    return _Job(shard, index, size, offsets, spans)


def _cut(offsets: Ints) -> list[int]:
    """Return the records with which spans begin, and how many there are."""
    cuts = [0]
    while True:
        stop = int(np.searchsorted(offsets, offsets[cuts[-1]] + _SPAN_BYTES, "right")) - 1
        stop = max(stop, min(cuts[-1] + 1, len(offsets) - 1))
        cuts.append(stop)
        if stop == len(offsets) - 1:
            return cuts


def _classify(job: _Job, check: ShardCheck, meter: _Meter) -> Findings:
    entry = job.shard.entry
    if isinstance(job.problem, StoreError):
        return classify_unreadable(entry, job.problem)
    if job.problem:
        return classify_missing(entry, job.problem)
    spans = list[Span]()
    unreadable: StoreError | None = None
    try:
        for future in job.spans:
            try:
                spans.append(future.result())
            except ObjectNotFoundError:
                raise
            except StoreError as error:  # the other spans are checked all the same
                unreadable = unreadable or error
            else:
                meter.add(spans[-1])
        if unreadable is None:
            return classify(entry, job.size, job.offsets, spans, lambda: check.scan(entry.name, job.size))
    except ObjectNotFoundError:
        return classify_missing(entry, "was removed while it was read")
    except StoreError as error:
        unreadable = error
    return classify_unreadable(entry, unreadable, itertools.chain.from_iterable(span.damages for span in spans))


def _summary(url: str, damages: Sequence[Damage], unreadable: Sequence[Unreadable]) -> str:
    count = "1 damage" if len(damages) == 1 else f"{len(damages):,} damages"
    also = f"; {_count_unreadable(unreadable)} besides" if unreadable else ""
    return f"{url}: {count}: {_name_some(damages)}{also}"


def _unreadable_summary(url: str, unreadable: Sequence[Unreadable]) -> str:
    return f"{url}: {_count_unreadable(unreadable)}, what could be read is not damaged: {_name_some(unreadable)}"


def _count_unreadable(unreadable: Sequence[Unreadable]) -> str:
    return "1 file cannot be read" if len(unreadable) == 1 else f"{len(unreadable):,} files cannot be read"


def _name_some(found: Sequence[Damage] | Sequence[Unreadable]) -> str:
    more = f"; and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    return f"{'; '.join(map(str, found[:_NAMED]))}{more}"
