"""`compact`: the small shards that many appends leave become full ones, as the next version of a dataset.

Runs of adjacent small shards are joined in their order, so that sample i stays sample i. Records are copied as they
are, their CRCs verified. The small shards stay for the versions before, until `prune` removes them.
"""

import itertools
import secrets
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tpufeed.build.commit import (
    Report,
    find_finished,
    join_or_begin,
    open_part,
    put_report,
    put_shard,
    read_report,
)
from tpufeed.build.destination import check_space, choose_engine, see_destination
from tpufeed.build.plan import Owner, Plan, PlanHeader, Task, TaskRef, iter_tasks, read_plan, read_task, write_plan
from tpufeed.build.rejects import RejectBudget
from tpufeed.build.run import ProgressListener, run_build
from tpufeed.build.versions import COMPACT, Layout, Piece, follows, publish, read_offsets
from tpufeed.dataset.manifest import Manifest, Part
from tpufeed.dataset.naming import MANIFEST, PLAN, counted, part_folder
from tpufeed.dataset.reader import Dataset
from tpufeed.dataset.schema import record_layout
from tpufeed.dataset.writer import ShardWriter
from tpufeed.engines import engine
from tpufeed.engines.engine import Job
from tpufeed.errors import (
    BuildError,
    DamageError,
    DatasetNotFoundError,
    DuplicateWriterError,
    ManifestError,
    ObjectNotFoundError,
    OptionError,
)
from tpufeed.storage.registry import open_store
from tpufeed.storage.store import Store

ENTRY = "tpufeed.build.compact:run"
REACH = "tpufeed.build.compact:reach"
_TRIES = 5  # where an append has been quicker
_LARGE_SHARD, _SMALL_SHARD, _ENOUGH_SHARDS = 128 * 10**6, 16 * 10**6, 64  # of a cache whose command says no size
_MOST_HOSTS = 1 << 20
_SMALL = 2  # a shard of less than one part in so many of the usual size is small


@dataclass(frozen=True, slots=True)
class CompactResult:
    """Result of a compaction.

    Attributes:
        url: of the dataset.
        version: that stands now.
        shards_before: number of shards of all splits and variants.
        shards: their number now; the same where there was nothing to join.
        copied_bytes: of the shards that were written.
        seconds: that it took.
    """

    url: str
    version: int
    shards_before: int
    shards: int
    copied_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Run:
    """Shards `[start, stop)` of a split, which become `shards` ones."""

    start: int
    stop: int
    shards: int


@dataclass(frozen=True, slots=True)
class CompactContext:
    """Data that all tasks of a compaction share."""

    dataset: Dataset
    part: str
    header: PlanHeader
    owner: Owner


def compact(
    url: str | Path,
    *,
    overwrite: bool = False,
    fsync: bool = False,
    workers: int | None = None,
    engine: engine.Engine | str | None = None,
    listener: ProgressListener | None = None,
) -> CompactResult:
    """Join the small shards of a dataset, or of a cache, that has grown, as its next version.

    Shards of less than half the usual size are joined with their neighbours, in the same order: samples keep their
    numbers. Readers of the version before go on, and its files stay until `tpufeed.prune` removes them. Interrupted,
    the same call goes on.

    Args:
        url: of the dataset.
        overwrite: discard what an append or a compaction that was interrupted has left; nothing else is removed.
        fsync: bring the new shards to the disk before the manifest.
        workers: processes; all cores by default.
        engine: what runs the tasks, as in `tpufeed.shard`.
        listener: called with a `BuildProgress` a few times a second.

    Raises:
        DatasetNotFoundError: there is no dataset.
        OptionError: it was adopted, so that its shards are another program's.
        DuplicateWriterError: somebody appends to it, or was interrupted; nothing was changed.
        RecordError, ShardError: a record is damaged, and no version is published.
        TaskError, BuildError: the work failed; what is done stays, and the same call goes on.
    """
    start, store = time.monotonic(), open_store(url, follow=False)
    chosen = choose_engine(engine, workers, store)
    with chosen.prepare(ENTRY):
        for _ in range(_TRIES):
            base = _find_base(store)
            runs = find_runs(base.manifest)
            before = _count_shards(base.manifest)
            if not runs:
                return CompactResult(base.url, base.number, before, before, 0, time.monotonic() - start)
            part_store = open_part(store, base.number + 1)
            try:
                plan = _plan(base, part_store, runs, overwrite)
            except DuplicateWriterError as error:
                if _find_base(store).number != base.number:  # it has become a version by now
                    continue
                raise _at_work(base, part_store, error) from error
            job = Job(ENTRY, CompactContext(base, part_store.url, plan.header, plan.owner), REACH)
            result = run_build(
                part_store, plan, job, engine=chosen, budget=RejectBudget(0), fsync=fsync, listener=listener,
                cache=base.manifest.cache,
            )  # fmt: skip
            about = Part(
                folder=part_folder(base.number + 1),
                kind=COMPACT,
                source=plan.header.source,
                run_id=plan.header.run_id,
                input_digest=plan.header.input_digest,
                records={},
            )
            part = Dataset(part_store, result.manifest)
            grown = publish(base, part, about, compact_layout(base.manifest, runs))
            seconds = time.monotonic() - start
            return CompactResult(base.url, grown.number, before, _count_shards(grown.manifest), result.bytes, seconds)
    raise BuildError(f"{store.url} has grown {_TRIES} times meanwhile; run the same command again")


def usual_shard_bytes(manifest: Manifest) -> float:
    """Return the size that the shards of a dataset were aimed at."""
    stated, number = manifest.options.get("shard_bytes"), manifest.options.get("shards")
    if isinstance(stated, int):
        return stated
    totals = [sum(shard.bytes for shard in split.variants[0].shards) for split in manifest.splits.values()]
    if isinstance(number, int) and number > 0:  # of the first build, whose shards come first
        return max(
            (shard.bytes for split in manifest.splits.values() for shard in split.variants[0].shards[:number]),
            default=1,
        )
    return min(_LARGE_SHARD, max(_SMALL_SHARD, max(totals, default=0) / _ENOUGH_SHARDS))


def find_runs(manifest: Manifest) -> dict[str, list[Run]]:
    """Return by split the runs of adjacent small shards that become fewer. Pure.

    Raises:
        ManifestError: the number of hosts is none.
    """
    usual, hosts = usual_shard_bytes(manifest), manifest.options.get("hosts", 1)
    if not isinstance(hosts, int) or not 1 <= hosts <= _MOST_HOSTS:
        raise ManifestError(f"{MANIFEST}: hosts is {hosts!r}, no number of hosts. The file was edited or damaged")
    found = dict[str, list[Run]]()
    for name, split in manifest.splits.items():
        stop = 0
        for is_small, group in itertools.groupby(split.variants[0].shards, lambda shard: shard.bytes * _SMALL < usual):
            shards = list(group)
            start, stop = stop, stop + len(shards)
            records, size = sum(shard.records for shard in shards), sum(shard.bytes for shard in shards)
            count = min(records, hosts * max(1, round(size / usual / hosts)))  # none is empty
            if is_small and 0 < count < len(shards):
                found.setdefault(name, []).append(Run(start, stop, count))
    return found


def compact_layout(base: Manifest, runs: Mapping[str, list[Run]]) -> Layout:
    """Return the shards of each split once its runs are joined."""
    layout = dict[str, list[Piece]]()
    for name, split in base.splits.items():
        pieces, place, made = list[Piece](), 0, 0
        for run in runs.get(name, []):
            pieces += [Piece(False, place, run.start), Piece(True, made, made + run.shards)]
            place, made = run.stop, made + run.shards
        pieces.append(Piece(False, place, len(split.variants[0].shards)))
        layout[name] = [piece for piece in pieces if piece.start < piece.stop] or pieces[-1:]
    return layout


def run(context: CompactContext, ref: TaskRef, report_progress: engine.ReportProgress) -> None:
    """Make the shards that `ref` refers to: one, or one of each variant."""
    destination, dataset, header = open_store(context.part, follow=False), context.dataset, context.header
    if read_report(destination, ref, context.owner.run_id) is not None:  # another run was quicker
        return
    task = read_task(destination, ref)
    meter, layout = engine.ProgressMeter(report_progress), record_layout(header.features)
    shards = []
    with destination.temporary_folder() as folder:
        for variant, name in enumerate(header.shard_names(task)):
            path = folder / f"variant-{variant}"
            with ShardWriter(path, layout) as writer:
                for payload in dataset.reader(task.split, variant).iter_payloads(task.first, task.stop):
                    writer.add_payload(payload)
                    meter.add(images=1, size=len(payload))
            written = writer.finish()
            with meter.putting(written.bytes):
                shard_name = counted(name, task.stop - task.first)
                shards.append(put_shard(destination, shard_name, path, written, context.owner))
            path.unlink(missing_ok=True)
    counts = (0,) * len(header.class_names)  # those of the version before stay
    retries = destination.retries + dataset.shards.retries
    put_report(destination, Report(task.number, tuple(shards), counts, {}, (), retries=retries), context.owner)


def reach(context: CompactContext, _: TaskRef) -> dict[str, str]:
    """Return what this host sees of the destination, see `Job.reach`."""
    return see_destination(open_store(context.part, follow=False), context.header.run_id)


def _find_base(store: Store) -> Dataset:
    base = find_finished(store)
    if base is None:
        raise DatasetNotFoundError(
            f"{store.url} holds no dataset to compact; make one with: tpufeed shard PHOTOS DATASET"
        )
    if base.manifest.options.get("command") == "adopt" or base.manifest.data_url is not None:
        raise OptionError(
            f"{store.url} was adopted: its shards are another program's, and are not joined. Nothing was changed"
        )
    return base


def _plan(base: Dataset, part: Store, runs: Mapping[str, list[Run]], overwrite: bool) -> Plan:
    """Store the plan of the part, or join the one that a run of the same command has stored."""
    manifest, identity = base.manifest, follows(base)
    if "names" in manifest.options:
        identity["names"] = manifest.options["names"]
    variants = len(next(iter(manifest.splits.values())).variants)
    tasks = list(_iter_tasks(base, runs))
    shards = {name: sum(run.shards for run in of_split) for name, of_split in runs.items()}
    header = PlanHeader(
        kind=COMPACT,
        source=base.url,
        options=identity,
        run_id=secrets.token_hex(8),
        input_digest=base.content_digest,
        splits=shards,
        variants=None if manifest.cache is None else variants,
        class_names=manifest.class_names,
        features=manifest.features,
        notes={"images": variants * sum(task.stop - task.first for task in tasks)},
    )

    def make_plan(path: Path, freed_bytes: int) -> None:
        sizes = (
            shard.bytes
            for name, of_split in runs.items()
            for run in of_split
            for variant in manifest.splits[name].variants
            for shard in variant.shards[run.start : run.stop]
        )
        check_space(part, sum(sizes), freed_bytes)
        write_plan(path, header, tasks)

    plan, joined = join_or_begin(part, COMPACT, base.url, identity, make_plan, overwrite)
    if joined:  # one who may write to the destination could have put it there
        same = (plan.header.splits, plan.header.variants) == (header.splits, header.variants)
        if not same or plan.header.features != header.features or list(iter_tasks(part, plan)) != tasks:
            raise ManifestError(
                f"{part.url}/{PLAN}: no plan of a compaction of {base.url}. Nothing was changed. It was forged, or "
                "written by another version of tpufeed: say --overwrite to discard it"
            )
    return plan


def _iter_tasks(base: Dataset, runs: Mapping[str, list[Run]]) -> Iterator[Task]:
    """Yield a task for each new shard: of each run those of nearly equal size."""
    number = 0
    for name, of_split in runs.items():
        shards = base.manifest.splits[name].variants[0].shards
        firsts = [0, *itertools.accumulate(shard.records for shard in shards)]
        offsets, total, made = read_offsets(base, name, 0), sum(run.shards for run in of_split), 0
        for run in of_split:
            sizes = np.concatenate([np.diff(offsets[shard].astype(np.int64)) for shard in range(run.start, run.stop)])
            edges = _cut(sizes, run.shards)
            for start, stop in itertools.pairwise(edges):
                first = firsts[run.start]
                yield Task(number, name, made, total, (), first + start, first + stop)
                number, made = number + 1, made + 1


def _cut(sizes: "np.ndarray[Any, np.dtype[np.int64]]", count: int) -> list[int]:
    """Return `count` + 1 edges of runs of nearly equal size, none of them empty."""
    ends = np.cumsum(sizes)
    edges = [0]
    for number in range(1, count):
        edge = int(np.searchsorted(ends - sizes / 2, ends[-1] * number / count))  # by the middle byte of each
        edges.append(min(max(edge, edges[-1] + 1), len(sizes) - (count - number)))
    return [*edges, len(sizes)]


def _at_work(base: Dataset, part: Store, error: DuplicateWriterError) -> DuplicateWriterError:
    try:
        header = read_plan(part).header
    except (ObjectNotFoundError, DamageError):
        return error
    return DuplicateWriterError(
        f"{base.url}: another command ({'append' if header.kind == 'shard' else header.kind} of {header.source}) is at "
        f"work on version {base.number + 1}, or was interrupted at it; this is {COMPACT}. Nothing was changed. Wait "
        "for it, or run that command again to finish it; or discard it with --overwrite, which removes "
        f"{part.url} only"
    )


def _count_shards(manifest: Manifest) -> int:
    return sum(len(variant.shards) for split in manifest.splits.values() for variant in split.variants)
