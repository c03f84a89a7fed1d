"""Run a recipe to a finished dataset, or tell what that would do.

A run checks what is at the destination, stores its plan there or joins that of an earlier run, does the tasks that are
left, and writes index, rejects and manifest. A dataset that grows gets the result as its next version.
"""

import itertools
import os
import time
from collections import Counter
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath, PurePosixPath

import msgspec
import numpy as np

from tpufeed import __version__
from tpufeed.build.commit import (
    Report,
    Standing,
    check_destination,
    check_names,
    check_owner,
    discard_report,
    find_finished,
    find_lost,
    is_stored,
    join_plan,
    open_part,
    put,
    put_plan,
    read_report,
    remove_old,
    remove_orphans,
)
from tpufeed.build.digests import DigestWriter, Duplicates
from tpufeed.build.plan import Owner, Plan, PlanHeader, TaskRef, read_plan, with_access, write_plan
from tpufeed.build.recipe import Draft, Preview, Recipe, SplitPreview
from tpufeed.build.rejects import RejectBudget, Rejects, parse_budget, too_many
from tpufeed.build.versions import publish
from tpufeed.dataset.manifest import (
    IndexFile,
    Manifest,
    Markers,
    Part,
    Shard,
    Split,
    Variant,
    encode_manifest,
    iter_warnings,
)
from tpufeed.dataset.naming import MANIFEST, REJECTS, counted, index_name, part_folder, removals_name, report_name
from tpufeed.dataset.reader import Dataset
from tpufeed.dataset.schema import further_columns, several_labels
from tpufeed.dataset.writer import IndexWriter
from tpufeed.engines.choice import choose_engine
from tpufeed.engines.engine import Done, Engine, Event, Job, Progress
from tpufeed.errors import (
    BuildError,
    DamageError,
    DuplicateWriterError,
    ObjectNotFoundError,
    OptionError,
    StoreError,
    TaskError,
    mask_secrets,
)
from tpufeed.processes.limits import available_cores
from tpufeed.storage.registry import open_store
from tpufeed.storage.store import Store

_TRIES = 5  # at growing a dataset, while others are quicker
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
        images: that the build has taken, each variant of a cache counted; those of the new part if a dataset has grown.
        bytes: of the shards that hold them.
        earlier_images: those of `images` that were done before this run.
        ignored_files: in the source, that are no images by their names: how many, by their endings (`.txt`).
        listed_twice: inputs that the source names more than once.
        retries: requests to stores that this run made again.
        warnings: what would serve training better, as sentences.
        skipped: images of an append that were in the dataset already.
        added: samples that the dataset has more, if it has grown; else None.
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


def run(  # noqa: PLR0913  # how a build is run
    recipe: Recipe,
    dst: str | Path,
    *,
    max_rejects: str | int | None,
    overwrite: bool,
    fsync: bool,
    workers: int | None,
    engine: Engine | str | None,
    listener: ProgressListener | None,
) -> BuildResult:
    """Build what the recipe says: check, plan or join a plan, run the tasks that are left, publish.

    Killed anywhere and called again it ends with the same bytes.

    Args:
        recipe: what is built.
        dst: where the dataset goes, or is.
        max_rejects: fail the build if more inputs than this are rejected.
        overwrite: once there is a new plan, remove what is at the destination; of a dataset that grows only what an
            interrupted run has left of the next version.
        fsync: bring what stands in a local store to the disk before the manifest.
        workers: processes; None: all cores.
        engine: runs the tasks.
        listener: called with the progress.

    Raises:
        TpufeedError: from the checks and the plan, with nothing changed.
        TaskError: a task failed for good. What is done stays; the same command goes on from there.
        TooManyRejectsError: more inputs than the budget allows cannot be taken; what is done stays.
        BuildError: no input could be taken, or the destination belongs to another run by now.
    """
    budget, destination, chosen = _open(recipe, dst, max_rejects, workers, engine)
    for _ in range(_TRIES):
        try:
            finished = recipe.look(destination, overwrite)
            if finished is not None:
                dataset, duplicates = recipe.finish(finished)
                said = () if duplicates is None else duplicates.warnings
                return replace(_finished_result(dataset.url, dataset.manifest), duplicates=duplicates, warnings=said)
            with chosen.prepare(f"{recipe.worker}:run"):
                return _build(recipe, destination, chosen, budget, overwrite, fsync, listener or (lambda _: None))
        except (DuplicateWriterError, BuildError):
            now = None if recipe.base is None else find_finished(destination)
            if now is None or recipe.base is None or now.number == recipe.base.number:
                raise
    raise BuildError(f"{destination.url} has grown {_TRIES} times meanwhile; run the same command again")


def preview(  # as `run`
    recipe: Recipe,
    dst: str | Path,
    *,
    max_rejects: str | int | None = None,
    overwrite: bool = False,
    workers: int | None = None,
    engine: Engine | str | None = None,
) -> Preview:
    """Tell what `run` with the same arguments would do. Changes nothing.

    Raises:
        TpufeedError: as `run` does before it works.
        TooManyRejectsError, BuildError: more inputs than the budget allows, or all, cannot be taken, of those alone
            that were tried or have no file or class; or there is no room.
    """
    budget, destination, _ = _open(recipe, dst, max_rejects, workers, engine)
    finished, base = recipe.look(destination, overwrite), recipe.base
    if finished is not None:
        return _preview_of(recipe, finished)
    store, standing = _check(recipe, destination, overwrite)
    with recipe.draft(is_preview=True) as draft:
        if draft.header is None:
            assert base is not None, "only a dataset that grows may have all samples already"
            complete = _preview_of(recipe, base)
            said = (*recipe.warnings, *draft.warnings)
            return replace(complete, splits={}, bytes=0, skipped=draft.skipped, version=base.number, warnings=said)
        inputs, refused = sum(split.inputs for split in draft.splits.values()), draft.refused
        allowed = budget.allowed(inputs)
        if refused.total() > allowed:
            advice = "Nothing was changed. Mend the source, or allow more with --max-rejects"
            raise too_many(dict(sorted(refused.items())), draft.first_refused, inputs, allowed, advice)
        if inputs and refused.total() == inputs:
            first = draft.first_refused[0]
            raise BuildError(
                f"none of the {inputs} images can be taken; the first: {first.path}: {first.message}. "
                "Nothing was changed; mend the source"
            )
        if standing.plan is None:
            _check_space(store, draft, standing)
            check_names(store, draft.header, standing)
        header = draft.header if standing.plan is None else standing.plan.header  # which a run would join
        cache, variants = recipe.cache_info(header), len(header.variant_numbers)
        splits = {
            name: replace(draft.splits.get(name, SplitPreview(0, 0, 0)), shards=shards * variants)
            for name, shards in header.splits.items()
        }
        of_shards = (
            iter_warnings(name, header.splits[name], split.bytes / variants, header.options.get("hosts", 1))
            for name, split in splits.items()
        )
        return Preview(
            source=recipe.source,
            destination=destination.url,
            splits=splits,
            bytes=sum(split.bytes for split in splits.values()),
            variants=variants,
            classes=len(header.class_names),
            columns=draft.columns,
            source_bytes=draft.source_bytes,
            ignored_files=header.ignored_files,
            listed_twice=header.listed_twice,
            free_bytes=store.free_bytes(),
            seconds=inputs * draft.probed_seconds / (workers or available_cores()),
            probed=draft.probed,
            probed_rejects=draft.probed_rejects,
            probed_seconds=draft.probed_seconds,
            warnings=(
                *recipe.warnings,
                *header.warnings,
                *itertools.chain.from_iterable(of_shards),
                *draft.warnings,
            ),
            skipped=header.skipped,
            read_before=0 if standing.plan else draft.read_before,
            version=None if base is None else base.number + 1,
            images_from=mask_secrets(header.base) if recipe.names_base else "",
            fingerprint="" if cache is None else cache.fingerprint,
        )


def _preview_of(recipe: Recipe, finished: Dataset) -> Preview:
    """Return the preview of what is finished already."""
    splits = {
        name: SplitPreview(
            split.records,
            sum(len(variant.shards) for variant in split.variants),
            sum(shard.bytes for variant in split.variants for shard in variant.shards),
        )
        for name, split in finished.manifest.splits.items()
    }
    cache = finished.manifest.cache
    return Preview(
        source=recipe.source,
        destination=finished.url,
        splits=splits,
        bytes=sum(split.bytes for split in splits.values()),
        variants=1 if cache is None else cache.variants,
        classes=len(finished.manifest.class_names),
        columns=further_columns(finished.manifest.features),
        free_bytes=finished.store.free_bytes(),
        complete=True,
        fingerprint="" if cache is None else cache.fingerprint,
    )


def _open(
    recipe: Recipe, dst: str | Path, max_rejects: str | int | None, workers: int | None, engine: Engine | str | None
) -> tuple[RejectBudget, Store, Engine]:
    budget, destination = parse_budget(max_rejects), open_store(dst, follow=False)
    hidden = [store.url for store in (*recipe.stores, destination) if not store.shared]
    chosen, places = choose_engine(engine, workers, hidden), list[PurePath]()
    for store in (destination, *recipe.stores):
        path = store.local_path(MANIFEST)
        places.append(PurePosixPath(store.url) if path is None else PurePosixPath(os.path.realpath(path.parent)))
    if places[0] in places[1:]:  # it would be read or removed by a later build
        raise OptionError(f"{destination.url} is the source itself; take another destination")
    return budget, destination, chosen


def _check(recipe: Recipe, destination: Store, overwrite: bool) -> tuple[Store, Standing]:
    """Check where a build would begin or go on, as its preview does; return the store that it works in."""
    base, kind = recipe.base, recipe.kind
    store = destination if base is None else open_part(destination, base.number + 1)
    try:
        standing = check_destination(store, kind, recipe.source, recipe.identity, overwrite or recipe.is_stale)
    except DuplicateWriterError as error:
        if base is None:
            raise
        raise _at_work(recipe, base, store, error) from error
    if standing.plan is not None:
        recipe.check_joined(store, standing.plan)
    return store, standing


def _check_space(store: Store, draft: Draft, standing: Standing) -> None:
    """Raise BuildError if the shards do not fit, once what is to be removed is gone."""
    free, wanted = store.free_bytes(), sum(split.bytes for split in draft.splits.values())
    room = None if free is None else free + sum(info.size_bytes for info in standing.old)
    if room is not None and wanted > room:
        raise BuildError(
            f"{store.url} has room for {room / 1e6:,.1f} MB; the shards will take about {wanted / 1e6:,.1f} MB. "
            "Nothing was changed. Make room, take another destination, or store smaller images"
        )


def _at_work(recipe: Recipe, base: Dataset, part: Store, error: DuplicateWriterError) -> DuplicateWriterError:
    try:
        header = read_plan(part).header
    except (ObjectNotFoundError, DamageError):
        return error
    kind = "append" if header.kind == "shard" else header.kind
    return DuplicateWriterError(
        f"{base.url}: another command ({kind} of {header.source}) is at work on version {base.number + 1}, or was "
        f"interrupted at it; this is {recipe.grows_by} of {recipe.source}. Nothing was changed. Wait for it, or run "
        f"that command again to finish it; or discard it with --overwrite, which removes {part.url} only"
    )


def _build(  # noqa: PLR0913, PLR0917  # one run
    recipe: Recipe,
    destination: Store,
    engine: Engine,
    budget: RejectBudget,
    overwrite: bool,
    fsync: bool,
    listener: ProgressListener,
) -> BuildResult:
    store, standing = _check(recipe, destination, overwrite)
    plan, said, base = standing.plan, tuple[str, ...](), recipe.base
    joined = plan is not None
    if plan is None:
        with store.temporary_folder() as folder:
            with recipe.draft(is_preview=False) as draft:
                said = draft.warnings
                if draft.header is None:
                    assert base is not None, "only a dataset that grows may have all samples already"
                    nothing = _finished_result(base.url, base.manifest)
                    return replace(nothing, skipped=draft.skipped, added=0, rejected={}, warnings=said)
                _check_space(store, draft, standing)
                made = write_plan(folder / "plan", draft.header, draft.tasks)
            plan = put_plan(store, folder / "plan", made, standing)
    if plan is None:
        joined = True
        plan = join_plan(store, recipe.kind, recipe.source, recipe.identity, overwrite)
        recipe.check_joined(store, plan)
    remove_old(store, plan.header)
    plan = with_access(plan, recipe.source)
    result = _run_tasks(recipe, store, plan, engine, budget, joined, fsync, listener)
    header = plan.header
    result = replace(
        result,
        warnings=(*recipe.warnings, *said, *header.warnings, *recipe.judge(result.manifest), *result.warnings),
        images_from=header.base if recipe.names_base else "",
    )
    if base is None:
        return result
    records = {name: split.records for name, split in result.manifest.splits.items()}
    about = Part(
        folder=part_folder(base.number + 1),
        kind=recipe.grows_by,
        source=header.source,
        run_id=header.run_id,
        input_digest=header.input_digest,
        records={} if recipe.layout is not None else records,
        skipped=header.skipped,
        different=dict(recipe.different),
    )
    grown = publish(base, Dataset(store, result.manifest), about, recipe.layout)
    return replace(
        result, url=base.url, manifest=grown.manifest, skipped=about.skipped, added=sum(about.records.values())
    )


def _run_tasks(  # noqa: PLR0913, PLR0917  # one run
    recipe: Recipe,
    store: Store,
    plan: Plan,
    engine: Engine,
    budget: RejectBudget,
    joined: bool,
    fsync: bool,
    listener: ProgressListener,
) -> BuildResult:
    """Run the tasks of the plan that are not done, then put index, rejects and, last of all, the manifest."""
    start = time.monotonic()
    images = plan.header.images - plan.header.dropped
    job = Job(f"{recipe.worker}:run", recipe.context(store, plan), f"{recipe.worker}:reach")
    try:
        rejects = Rejects(store, budget, images // len(plan.header.variant_numbers), plan.owner)
        pending, earlier = list[TaskRef](), 0
        with ThreadPoolExecutor(_REPORTS_AT_A_TIME, "tpufeed-resume") as executor:
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
            manifest, duplicates = _finish(recipe, folder, store, plan, rejects, fsync)
    except (BuildError, StoreError, DamageError):
        check_owner(store, plan.owner)  # another run may have removed what this one has missed
        raise
    said = list[str]()
    for name, split in manifest.splits.items():
        shards = split.variants[0].shards
        size_bytes = sum(shard.bytes for shard in shards)
        said += iter_warnings(name, len(shards), size_bytes, manifest.options.get("hosts", 1))
    return replace(
        _finished_result(store.url, manifest),
        seconds=time.monotonic() - start,
        earlier_images=earlier,
        ignored_files=plan.header.ignored_files,
        listed_twice=plan.header.listed_twice,
        retries=retries + store.retries,
        warnings=(*said, *(() if duplicates is None else duplicates.warnings)),
        duplicates=duplicates,
        read_before=plan.header.read_before,
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


def _finished_result(url: str, manifest: Manifest) -> BuildResult:
    """Return the result of a build that an earlier run had finished: nothing was done."""
    shards = [shard for split in manifest.splits.values() for variant in split.variants for shard in variant.shards]
    images, size_bytes = sum(shard.records for shard in shards), sum(shard.bytes for shard in shards)
    return BuildResult(url, manifest, 0.0, images, size_bytes, images, {}, rejected=dict(manifest.rejects))


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
            self.indexes[variant].add(np.cumsum([0, *shard.lengths], dtype=np.uint64))

    def finish(self, store: Store, owner: Owner) -> Split:
        """Put the indexes."""
        variants = []
        for name, path, index, shards in zip(self.names, self.paths, self.indexes, self.shards, strict=True):
            size_bytes, crc = index.finish()
            put(store, name, path, owner, size_bytes, crc)
            variants.append(Variant(tuple(shards), IndexFile(name, size_bytes, crc)))
        records = sum(shard.records for shard in variants[0].shards)
        return Split(records, tuple(self.class_counts.tolist()), tuple(variants))


def _finish(  # what a build ends with
    recipe: Recipe, folder: Path, store: Store, plan: Plan, rejects: Rejects, fsync: bool
) -> tuple[Manifest, Duplicates | None]:
    """Put indexes and rejects, and at the very end the manifest; `folder` is for temporary files."""
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
    by_reason = rejects.put()
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
        rejects=by_reason,
        images=dict(sorted(images.items())),
        odd=dict(sorted(odd.items())),
        cache=recipe.cache_info(header),
        markers=Markers(**marked, unmarked=dict(sorted(unmarked.items()))) if marked else msgspec.UNSET,
    )
    duplicates = recipe.conclude(store, plan, folder)
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
    put(store, MANIFEST, encode_manifest(manifest), plan.owner)
    return manifest, duplicates
