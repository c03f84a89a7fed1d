"""Run a stored plan to a finished dataset: do the tasks that are left, then write index, rejects and manifest."""

import itertools
import os
import time
from collections import Counter
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import numpy as np

from tpufeed import __version__
from tpufeed.build.commit import (
    Report,
    check_owner,
    discard_report,
    find_lost,
    is_stored,
    put_data,
    put_made,
    read_report,
    remove_old,
    remove_orphans,
)
from tpufeed.build.digests import DigestWriter, Duplicates
from tpufeed.build.plan import Owner, Plan, PlanHeader, TaskRef
from tpufeed.build.rejects import RejectBudget, Rejects
from tpufeed.dataset.advice import manifest_warnings
from tpufeed.dataset.index import IndexWriter
from tpufeed.dataset.manifest import CacheInfo, IndexFile, Manifest, Markers, Shard, Split, Variant, encode_manifest
from tpufeed.dataset.naming import MANIFEST, REJECTS, counted, index_name, removals_name, report_name
from tpufeed.dataset.reader import Dataset
from tpufeed.dataset.schema import several_labels
from tpufeed.engines.engine import Done, Engine, Event, Job, Progress
from tpufeed.errors import BuildError, DamageError, StoreError, TaskError
from tpufeed.processes.limits import available_cores
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
Conclude = Callable[[Path], Duplicates | None]


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
        skipped: images of an append that were in the dataset already.
        added: samples that an append has added; None where it was no append.
        duplicates: images that the source has more than once; None where there are none, or nobody has asked.
        read_before: images that were read before the plan, to find duplicates or to deal them to splits.
        rejected: inputs that this build has not taken, counted by reason; of a dataset that has grown `manifest` counts
            those of all versions.
        images_from: the folder that file names in COCO's JSON were taken to be relative to; else empty.
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
    skipped: int = 0
    added: int | None = None
    duplicates: Duplicates | None = None
    read_before: int = 0
    rejected: dict[str, int] = field(default_factory=dict)
    images_from: str = ""

    @property
    def rejects(self) -> int:
        """Inputs that this build has not taken; rejects.jsonl names each."""
        return sum(self.rejected.values())


def run_build(  # noqa: PLR0913  # both builds call it
    store: Store,
    plan: Plan,
    job: Job,
    *,
    engine: Engine,
    budget: RejectBudget,
    joined: bool = False,
    cache: CacheInfo | None = None,
    fsync: bool = False,
    listener: ProgressListener | None = None,
    conclude: Conclude | None = None,
) -> BuildResult:
    """Run the tasks of the plan that are not done, then put index, rejects and, last of all, the manifest.

    Args:
        store: the destination.
        plan: what the build does.
        job: how a task is done.
        engine: runs the tasks.
        budget: rejects beyond it fail the build.
        joined: another run had stored the plan, and may still be at work.
        cache: what the manifest of a cache says besides.
        fsync: bring what stands in a local store to the disk before the manifest.
        listener: called with the progress.
        conclude: finds duplicates, once digests and rejects are put; it gets a folder for temporary files.

    Raises:
        TaskError: a task failed for good. What is done stays; the same command goes on from there.
        TooManyRejectsError: more inputs than the budget allows cannot be taken; what is done stays.
        BuildError: no input could be taken, or the destination belongs to another run by now.
    """
    start = time.monotonic()
    listener = listener or (lambda _: None)
    images = plan.header.notes["images"] - plan.header.notes.get("dropped", 0)
    try:
        rejects = Rejects(store, budget, images // len(plan.header.variant_numbers), plan.owner)
        pending, earlier = list[TaskRef](), 0
        with ThreadPoolExecutor(available_cores(), "tpufeed-resume") as executor:
            reports = executor.map(lambda ref: _trusted_report(store, plan.header, ref), plan.tasks)
            for ref, report in zip(plan.tasks, reports, strict=True):
                if report is None:
                    pending.append(ref)
                else:
                    earlier += sum(len(shard.lengths) for shard in report.shards)
                    rejects.add(report)
        listener(progress := BuildProgress(images, images=earlier, earlier_images=earlier))
        rejects.check()
        if joined:
            pending.reverse()  # a first run that is still at work comes from the other end
        retries = 0
        # Closed at once where something here fails: within the error's traceback the engine would run on.
        with closing(_iter_events(engine, job, pending, store)) as events:
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
                    report = _read_report(store, plan.header, pending[event.number])
                    retries += report.retries
                    rejects.add(report)
                    rejects.check()
        with store.temporary_folder() as folder:
            manifest, duplicates = _finish(folder, store, plan, rejects, cache, fsync, conclude)
    except (BuildError, StoreError, DamageError):
        check_owner(store, plan.owner)  # another run may have removed what this one has missed
        raise
    return replace(
        finished_result(Dataset(store, manifest)),
        seconds=time.monotonic() - start,
        earlier_images=earlier,
        ignored_files=plan.header.ignored_files,
        listed_twice=plan.header.notes.get("listed_twice", 0),
        retries=retries + store.retries,
        warnings=(*manifest_warnings(manifest), *(() if duplicates is None else duplicates.warnings)),
        duplicates=duplicates,
        read_before=plan.header.notes.get("read_before", 0),
    )


def _iter_events(engine: Engine, job: Job, pending: list[TaskRef], store: Store) -> Generator[Event, None, None]:
    """The engine's events. Where an error ends the iteration, temporary folders of the workers are removed."""
    events = engine.run(job, pending)
    try:
        yield from events
    except BaseException:
        # Workers that were stopped in mid-task may have left folders: making one removes those of the dead.
        with suppress(StoreError), store.temporary_folder():
            pass
        raise


def finished_result(dataset: Dataset) -> BuildResult:
    """The result of a build that an earlier run had finished: nothing was done."""
    shards = [s for split in dataset.manifest.splits.values() for variant in split.variants for s in variant.shards]
    images = sum(shard.records for shard in shards)
    size, rejected = sum(shard.bytes for shard in shards), dict(dataset.manifest.rejects)
    return BuildResult(dataset.url, dataset.manifest, 0.0, images, size, images, {}, rejected=rejected)


def _trusted_report(store: Store, header: PlanHeader, ref: TaskRef) -> Report | None:
    report = read_report(store, ref, header.run_id)
    if report is None:
        return None
    if _is_of_task(report, header, ref) and all(
        is_stored(store, shard.name, shard.bytes, shard.crc32c) for shard in report.shards
    ):
        return report
    discard_report(store, report)
    return None


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
    records = {len(shard.lengths) for shard in report.shards}
    name = counted(ref.name, max(records, default=0))
    names = [name.replace("-v0-", f"-v{variant}-") for variant in header.variant_numbers]
    return (
        report.task == ref.number
        and [shard.name for shard in report.shards] == names
        and all(sum(shard.lengths) == shard.bytes for shard in report.shards)
        and min((length for shard in report.shards for length in shard.lengths), default=0) >= 0
        and len(records) == 1
        and len(report.class_counts) == len(header.class_names)
        and min(report.class_counts, default=0) >= 0
        and (several_labels(header.features) or sum(report.class_counts) <= max(records))
        and max(report.class_counts, default=0) <= max(records)
    )


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


def _finish(  # noqa: PLR0913, PLR0917  # what a build ends with
    folder: Path,
    store: Store,
    plan: Plan,
    rejects: Rejects,
    cache: CacheInfo | None,
    fsync: bool,
    conclude: Conclude | None,
) -> tuple[Manifest, Duplicates | None]:
    """Put indexes and rejects, and at the very end the manifest; `folder` is for temporary files.

    Returns the manifest, and what `conclude` returns.
    """
    header = plan.header
    parts = {split: _Part(header, split, folder) for split in header.splits}
    images, odd, marked, unmarked = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
    tasks, digests = iter(plan.tasks), DigestWriter(folder / "digests")
    # Many reports at a time: 100,000 in a bucket, one after the other, would take an hour.
    with ThreadPoolExecutor(_REPORTS_AT_A_TIME, "tpufeed-reports") as executor:
        while block := list(itertools.islice(tasks, _REPORTS_A_BLOCK)):
            reports = executor.map(lambda ref: _read_report(store, header, ref), block)
            for ref, report in zip(block, reports, strict=True):
                parts[ref.split].add(report)
                digests.add(report.digests)
                images.update(report.images)
                odd.update(report.odd)
                if report.markers is not msgspec.UNSET:
                    marked.update(rewritten=report.markers.rewritten, added_bytes=report.markers.added_bytes)
                    unmarked.update(report.markers.unmarked)
    rejects.put()
    digests.put(store, plan.owner)
    if not any(shard.records for part in parts.values() for shard in part.shards[0]):
        first = rejects.all[0]
        raise BuildError(
            f"none of the {rejects.count} images could be taken; the first: {first.path}: {first.message}. "
            f"{store.url}/{REJECTS} has the reason of each; mend the source and build again with --overwrite"
        )
    manifest = Manifest(
        run_id=header.run_id,
        tool_version=__version__,
        splits={split: part.finish(store, plan.owner) for split, part in parts.items()},
        class_names=header.class_names,
        features=header.features,
        options={"command": header.kind, "source": header.source, **header.options},
        input_digest=header.input_digest,
        rejects=rejects.by_reason(),
        images=dict(sorted(images.items())),
        odd=dict(sorted(odd.items())),
        cache=cache,
        markers=Markers(**marked, unmarked=dict(sorted(unmarked.items()))) if marked else msgspec.UNSET,
    )
    duplicates = None if conclude is None else conclude(folder)
    remove_old(store, header)
    remove_orphans(store, header, manifest)
    store.delete(removals_name(header.run_id))  # before there is a manifest of this run
    lost = find_lost(store, manifest)
    if lost is not None:
        raise BuildError(
            f"{store.url}/{lost} is not there any more as it was put; nothing was published. Run the same command "
            "again: it goes on from here"
        )
    variants = [variant for split in manifest.splits.values() for variant in split.variants]
    for file in (file for variant in variants for file in variant.files) if fsync else ():
        try:
            opened = store.open_local(file.name)
            if opened is None:
                break
            with opened:
                os.fsync(opened.fileno())
        except StoreError:
            raise
        except OSError as error:
            raise StoreError(f"{store.url}/{file.name}: {error.strerror or error}") from error
    put_data(store, MANIFEST, encode_manifest(manifest), plan.owner)
    return manifest, duplicates
