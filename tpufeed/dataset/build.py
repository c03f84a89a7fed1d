"""Run a stored plan to a finished dataset: do the tasks that are left, then write index, rejects and manifest."""

import itertools
import os
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from tpufeed import __version__
from tpufeed.dataset.advice import manifest_warnings
from tpufeed.dataset.commit import (
    Owner,
    Report,
    check_owner,
    discard_report,
    find_lost,
    forget_old,
    is_intact,
    put_data,
    put_made,
    read_report,
)
from tpufeed.dataset.index import IndexWriter
from tpufeed.dataset.manifest import CacheInfo, IndexFile, Manifest, Shard, Split, Variant, encode_manifest
from tpufeed.dataset.naming import MANIFEST, REJECTS, index_name, report_name
from tpufeed.dataset.plan import Plan, PlanHeader, TaskRef
from tpufeed.dataset.reader import Dataset
from tpufeed.dataset.rejects import RejectBudget, Rejects
from tpufeed.engines.engine import Done, Engine, Event, Job, Progress, available_cores
from tpufeed.errors import BuildError, DamageError, StoreError, TaskError
from tpufeed.storage.store import Store

_REPORTS_AT_A_TIME = 16
_REPORTS_A_BLOCK = 256  # in memory, with the length of each record


@dataclass(frozen=True, slots=True)
class BuildProgress:
    """Progress of a build.

    Attributes:
        total_images: to be done in all, each variant of a cache counted.
        images: done so far.
        bytes: of the shards so far.
        rejects: inputs not taken so far.
        earlier_images: those of `images` that an earlier run of the same command had done.
    """

    total_images: int
    images: int = 0
    bytes: int = 0
    rejects: int = 0
    earlier_images: int = 0


ProgressListener = Callable[[BuildProgress], None]


@dataclass(frozen=True, slots=True)
class BuildResult:
    """A finished build.

    Attributes:
        url: where the dataset stands.
        manifest: what it holds.
        seconds: of this run.
        images: in the dataset, each variant of a cache counted.
        bytes: of all shards.
        earlier_images: those of `images` that were done before this run.
        ignored_files: in the source, that are no images by their names: how many, by their endings (`.txt`).
        listed_twice: inputs that the source names more than once.
        retries: requests to stores that this run made again.
        warnings: what would serve training better, as sentences.
    """

    url: str
    manifest: Manifest
    seconds: float
    images: int
    bytes: int
    earlier_images: int
    ignored_files: dict[str, int]
    listed_twice: int = 0
    retries: int = 0
    warnings: tuple[str, ...] = ()

    @property
    def rejects(self) -> int:
        """Inputs not taken; rejects.jsonl names each."""
        return sum(self.manifest.rejects.values())


@dataclass(frozen=True, slots=True)
class Build:
    """A build that has its plan: what `run_build` runs.

    Attributes:
        store: its destination.
        plan: what it does.
        job: how a task is done.
        engine: what runs tasks.
        budget: rejects beyond it fail the build.
        joined: another run had stored the plan, and may still be at work.
        cache: what the manifest of a cache says besides.
        fsync: bring what stands in a local store to the disk before the manifest.
    """

    store: Store
    plan: Plan
    job: Job
    engine: Engine
    budget: RejectBudget = field(default_factory=RejectBudget)
    joined: bool = False
    cache: CacheInfo | None = None
    fsync: bool = False

    @property
    def owner(self) -> Owner:
        """The run that the destination belongs to."""
        return owner_of(self.plan)


def owner_of(plan: Plan) -> Owner:
    """The run that a destination with this plan belongs to."""
    return Owner(plan.header.run_id, plan.version)


def run_build(build: Build, listener: ProgressListener | None) -> BuildResult:
    """Run the tasks of the plan that are not done, then put index, rejects and, last of all, the manifest.

    Raises:
        TaskError: a task failed for good. What is done stays; the same command goes on from there.
        TooManyRejectsError: more inputs than the budget allows cannot be taken; what is done stays.
        BuildError: no input could be taken, or the destination belongs to another run by now.
    """
    try:
        return _run_build(build, listener)
    except (BuildError, StoreError, DamageError):
        check_owner(build.store, build.owner)  # another run may have removed what this one has missed
        raise


def _run_build(build: Build, listener: ProgressListener | None) -> BuildResult:
    start = time.monotonic()
    plan, listener = build.plan, listener or (lambda _: None)
    inputs = plan.header.notes["images"] // len(plan.header.variant_numbers)
    rejects = Rejects(build.store, build.budget, inputs, build.owner)
    pending = []
    earlier = 0
    for ref, report in _iter_trusted(build.store, plan):
        if report is None:
            pending.append(ref)
        else:
            earlier += _images(report)
            rejects.add(report)
    listener(progress := BuildProgress(plan.header.notes["images"], images=earlier, earlier_images=earlier))
    rejects.check()
    if build.joined:
        pending.reverse()  # a first run that is still at work comes from the other end
    retries = _run_tasks(build, pending, rejects, progress, listener)
    manifest = _finish(build, rejects)
    shards = [shard for split in manifest.splits.values() for variant in split.variants for shard in variant.shards]
    return BuildResult(
        url=build.store.url,
        manifest=manifest,
        seconds=time.monotonic() - start,
        images=sum(shard.records for shard in shards),
        bytes=sum(shard.bytes for shard in shards),
        earlier_images=earlier,
        ignored_files=plan.header.ignored_files,
        listed_twice=plan.header.notes.get("listed_twice", 0),
        retries=retries + build.store.retries,
        warnings=manifest_warnings(manifest),
    )


def _run_tasks(
    build: Build, pending: list[TaskRef], rejects: Rejects, progress: BuildProgress, listener: ProgressListener
) -> int:
    """Requests that were repeated on the way."""
    retries = 0
    with _running(build, pending) as events:
        for event in events:
            if isinstance(event, Progress):
                progress = replace(
                    progress,
                    images=progress.images + event.images,
                    bytes=progress.bytes + event.bytes,
                    rejects=progress.rejects + event.rejects,
                )
                listener(progress)
            elif isinstance(event, Done):
                report = _read_report(build.store, build.plan.header, pending[event.number])
                retries += report.retries
                rejects.add(report)
                rejects.check()
    return retries


@contextmanager
def _running(build: Build, pending: list[TaskRef]) -> Iterator[Iterator[Event]]:
    """The engine's events. Within an error's traceback it would run on: it is stopped when the context ends."""
    events = build.engine.run(build.job, pending)
    try:
        try:
            yield events
        finally:
            if isinstance(events, Generator):
                events.close()
    except BaseException:
        # Workers that were stopped in mid-task may have left folders: making one removes those of the dead.
        with suppress(StoreError), build.store.temporary_folder():
            pass
        raise


def finished_result(dataset: Dataset) -> BuildResult:
    """The result of a build that an earlier run had finished: nothing was done."""
    shards = [s for split in dataset.manifest.splits.values() for variant in split.variants for s in variant.shards]
    images = sum(shard.records for shard in shards)
    return BuildResult(dataset.url, dataset.manifest, 0.0, images, sum(shard.bytes for shard in shards), images, {})


def _iter_trusted(store: Store, plan: Plan) -> Iterator[tuple[TaskRef, Report | None]]:
    """Each task with its report, where its shards are what the report says."""
    with ThreadPoolExecutor(available_cores(), "tpufeed-resume") as executor:
        reports = executor.map(lambda ref: _trusted_report(store, plan.header, ref), plan.tasks)
        yield from zip(plan.tasks, reports, strict=True)


def _trusted_report(store: Store, header: PlanHeader, ref: TaskRef) -> Report | None:
    report = read_report(store, ref, header.run_id)
    if report is not None and not (_is_of_task(report, header, ref) and is_intact(store, report)):
        discard_report(store, report)
        return None
    return report


def _read_report(store: Store, header: PlanHeader, ref: TaskRef) -> Report:
    report = read_report(store, ref, header.run_id)
    where = f"{store.url}/{report_name(ref.number)}"
    if report is None:
        raise TaskError(
            f"{where}, the report of {ref.name}, is gone although its task was done; nothing was published. Run the "
            "same command again: it goes on from here"
        )
    if not _is_of_task(report, header, ref):
        raise TaskError(f"{ref.name}: {where} is of another task, or forged")
    return report


def _is_of_task(report: Report, header: PlanHeader, ref: TaskRef) -> bool:
    """Return whether its shards are the task's: a build whose plan was removed may have had as many, of other names."""
    names = [ref.name.replace("-v0-", f"-v{variant}-") for variant in header.variant_numbers]
    records = {len(shard.lengths) for shard in report.shards}
    return (
        report.task == ref.number
        and [shard.name for shard in report.shards] == names
        and all(sum(shard.lengths) == shard.bytes for shard in report.shards)
        and min((length for shard in report.shards for length in shard.lengths), default=0) >= 0
        and len(records) == 1
        and len(report.class_counts) == len(header.class_names)
        and min(report.class_counts, default=0) >= 0
        and sum(report.class_counts) <= max(records)
    )


def _iter_reports(store: Store, plan: Plan) -> Iterator[tuple[TaskRef, Report]]:
    """Each task with its report, many at a time: of 100,000 in a bucket, one after the other would take an hour."""
    tasks = iter(plan.tasks)
    with ThreadPoolExecutor(_REPORTS_AT_A_TIME, "tpufeed-reports") as executor:
        while block := list(itertools.islice(tasks, _REPORTS_A_BLOCK)):
            yield from zip(block, executor.map(lambda ref: _read_report(store, plan.header, ref), block), strict=True)


def _images(report: Report) -> int:
    return sum(len(shard.lengths) for shard in report.shards)


class _Part:
    """Sum of the reports of one split; offsets of records go to files in `folder`, and none is kept."""

    def __init__(self, header: PlanHeader, split: str, folder: Path) -> None:
        self.names = [index_name(split, variant) for variant in header.variant_numbers]
        self.paths = [folder / name for name in self.names]
        self.indexes = [IndexWriter(path) for path in self.paths]
        self.shards: list[list[Shard]] = [[] for _ in header.variant_numbers]
        self.class_counts = np.zeros(len(header.class_names), np.int64)

    def add(self, report: Report) -> None:
        self.class_counts += np.array(report.class_counts, np.int64)
        for variant, shard in enumerate(report.shards):
            self.shards[variant].append(
                Shard(shard.name, shard.bytes, shard.crc32c, len(shard.lengths), shard.generation)
            )
            self.indexes[variant].add(shard.lengths)

    def finish(self, store: Store, owner: Owner) -> Split:
        """Put the indexes."""
        variants = []
        for name, path, index, shards in zip(self.names, self.paths, self.indexes, self.shards, strict=True):
            size_bytes, crc = index.finish()
            put_made(store, name, path, size_bytes, crc, owner)
            variants.append(Variant(tuple(shards), IndexFile(name, size_bytes, crc)))
        records = sum(shard.records for shard in variants[0].shards)
        return Split(records, tuple(self.class_counts.tolist()), tuple(variants))


def _finish(build: Build, rejects: Rejects) -> Manifest:
    with build.store.temporary_folder() as folder:
        return _finish_in(folder, build, rejects)


def _finish_in(folder: Path, build: Build, rejects: Rejects) -> Manifest:
    store, header = build.store, build.plan.header
    parts = {split: _Part(header, split, folder) for split in header.splits}
    images, odd = Counter[str](), Counter[str]()
    for ref, report in _iter_reports(store, build.plan):
        parts[ref.split].add(report)
        images.update(report.images)
        odd.update(report.odd)
    rejects.put()
    if not any(shard.records for part in parts.values() for shard in part.shards[0]):
        first = rejects.all[0]
        raise BuildError(
            f"none of the {rejects.count} images could be taken; the first: {first.path}: {first.message}. "
            f"{store.url}/{REJECTS} has the reason of each; mend the source and build again with --overwrite"
        )
    manifest = Manifest(
        run_id=header.run_id,
        tool_version=__version__,
        splits={split: part.finish(store, build.owner) for split, part in parts.items()},
        class_names=header.class_names,
        features=header.features,
        options={"command": header.kind, "source": header.source, **header.options},
        input_digest=header.input_digest,
        rejects=rejects.by_reason(),
        images=dict(sorted(images.items())),
        odd=dict(sorted(odd.items())),
        cache=build.cache,
    )
    forget_old(store, header)
    lost = find_lost(store, manifest)
    if lost is not None:
        raise BuildError(
            f"{store.url}/{lost} is not there any more as it was put; nothing was published. Run the same command "
            "again: it goes on from here"
        )
    if build.fsync:
        _sync(store, manifest)
    put_data(store, MANIFEST, encode_manifest(manifest), build.owner)
    return manifest


def _sync(store: Store, manifest: Manifest) -> None:
    """Bring all files of a manifest to the disk, where they are local. Raises StoreError."""
    for split in manifest.splits.values():
        for path in (store.local_path(file.name) for variant in split.variants for file in variant.files):
            if path is None:
                return
            try:
                with path.open("rb") as file:
                    os.fsync(file.fileno())
            except OSError as error:
                raise StoreError(f"{path}: {error.strerror or error}") from error
