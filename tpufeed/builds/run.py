"""Build the dataset of a recipe, or predict the build.

A run checks the destination, stores its plan there or joins the plan of an earlier run, runs the tasks that are left,
and writes indexes, rejects and manifest. A growing dataset gets the result as its next version.
"""

import itertools
import os
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path, PurePath, PurePosixPath
from typing import Any

import msgspec
import numpy as np
from crc32c import crc32c

from tpufeed._version import __version__
from tpufeed.builds.destination import Destination, Report
from tpufeed.builds.digests import Duplicates
from tpufeed.builds.plan import PlanHeader, TaskRef, with_access, write_plan
from tpufeed.builds.prices import bucket_cost
from tpufeed.builds.recipe import Preview, Recipe, SplitPreview, Trial
from tpufeed.builds.rejects import Rejects, allowed_rejects, too_many
from tpufeed.builds.repair import repair
from tpufeed.builds.versions import check_base, publish
from tpufeed.dataset.listed import UNLISTED, Listed
from tpufeed.dataset.manifest import (
    IndexFile,
    Levels,
    Manifest,
    Markers,
    Part,
    Shard,
    Sizes,
    Split,
    Variant,
    encode_manifest,
    iter_warnings,
    join_levels,
)
from tpufeed.dataset.naming import DIGESTS, MANIFEST, REJECTS, counted, index_name, part_folder, report_name
from tpufeed.dataset.reader import Dataset
from tpufeed.dataset.schema import several_labels
from tpufeed.dataset.writer import IndexWriter, check_writable
from tpufeed.display.progress import Figures, show_progress
from tpufeed.display.summary import Summary
from tpufeed.engines.choice import choose_engine, default_workers
from tpufeed.engines.engine import Done, Engine, Job, Progress
from tpufeed.errors import (
    BuildError,
    DamageError,
    DuplicateWriterError,
    OptionError,
    SourceError,
    StoreError,
    TaskError,
)
from tpufeed.storage.store import open_store

_TRIES = 5  # to grow a dataset while other builds are faster
_REPORTS_AT_A_TIME = 16
_REPORTS_A_BLOCK = 256  # in memory, with the length of each record


@dataclass(frozen=True, slots=True)
class BuildProgress:
    """Progress of a build.

    Attributes:
        total_images: number of images to do, counting each variant of a cache.
        images: number of images done so far.
        bytes: size of the images that this run has done so far: of their files, or in a cache as stored.
        rejects: number of images rejected so far, counting each variant of a cache.
        earlier_images: number of `images` that an earlier run of the same command had done.
        earlier_rejects: number of `rejects` of such a run.
    """

    total_images: int
    images: int = 0
    bytes: int = 0
    rejects: int = 0
    earlier_images: int = 0
    earlier_rejects: int = 0

    def figures(self, seconds: float) -> Figures:
        """Return what a progress bar shows after this many seconds."""
        done = self.images + self.rejects
        rate = (self.images - self.earlier_images) / seconds
        parts = [
            f"{done:,}/{self.total_images:,} images",
            f"{rate:,.0f} img/s",
            f"{self.bytes / seconds / 1e6:,.0f} MB/s",
        ]
        if self.rejects:
            parts.append(f"{self.rejects:,} rejected")
        return Figures(done, self.total_images, parts, self.earlier_images + self.earlier_rejects)


ProgressListener = Callable[[BuildProgress], None]


@dataclass(frozen=True, slots=True, repr=False)
class BuildResult(Summary):
    """A finished build.

    Attributes:
        url: URL of the dataset.
        manifest: manifest of the dataset.
        seconds: time of this run.
        images: number of images taken, counting each variant of a cache. If a dataset has grown: those of its new part.
        bytes: size of the shards that hold them.
        earlier_images: number of `images` that were done before this run.
        listed: how the source was understood.
        retries: number of requests to stores that this run repeated.
        warnings: sentences on what would be better for training.
        skipped: number of images of an append that were in the dataset already.
        added: number of samples that the dataset has grown by. None if it is new.
        duplicates: images that the source has more than once. None if there are none, or they were not counted.
        rejected: inputs that this build has rejected, counted by reason. `manifest` counts those of all versions.
    """

    url: str
    manifest: Manifest
    seconds: float
    images: int
    bytes: int
    earlier_images: int
    listed: Listed = UNLISTED
    retries: int = 0
    warnings: tuple[str, ...] = ()
    skipped: int = 0
    added: int | None = None
    duplicates: Duplicates | None = None
    rejected: dict[str, int] = field(default_factory=dict)

    @property
    def rejects(self) -> int:
        """Number of inputs that this build has rejected. Each is in rejects.jsonl."""
        return sum(self.rejected.values())

    def _facts(self) -> dict[str, Any]:
        names = ("url", "images", "earlier_images", "added", "skipped", "rejects", "bytes", "seconds")
        facts = {name: getattr(self, name) for name in names} | {"warnings": len(self.warnings)}
        return {name: value for name, value in facts.items() if value}

    def _details(self) -> dict[str, Any]:
        understood = tuple(self.listed.iter_lines(self.manifest.sizes, self.manifest.odd))
        return self.manifest._details() | {
            "rejects": self.rejected,
            "understood": understood,
            "warnings": self.warnings,
        }


def run(  # noqa: PLR0913  # the options of all builds
    recipe: Recipe,
    dst: str | Path,
    *,
    max_rejects: str | int | None,
    overwrite: bool,
    fsync: bool,
    workers: int | None,
    engine: Engine | str | None,
    listener: ProgressListener | None,
    progress: bool | None,
) -> BuildResult:
    """Build a recipe's dataset: check, plan or join a plan, run the tasks that are left, publish.

    If it is killed anywhere and called again, it ends with the same bytes.

    Args:
        recipe: what to build.
        dst: path or URL of the dataset.
        max_rejects: fail the build if more inputs than this are rejected, see `allowed_rejects`.
        overwrite: once there is a new plan, remove the objects at the destination. If a dataset grows, remove only
            what an interrupted run has left of the next version.
        fsync: write the files of a local store to the disk before the manifest.
        workers: number of processes. None: one per core, fewer with little memory.
        engine: runs the tasks.
        listener: called with the progress.
        progress: whether to show the progress, see `show_progress`.

    Raises:
        TpufeedError: from the checks and the plan, with nothing changed.
        TaskError: a task failed for good. Finished work stays, and the same command continues from there.
        TooManyRejectsError: more inputs are rejected than the budget allows. Finished work stays.
        BuildError: no input could be taken, or the destination belongs to another run now.
    """
    destination, chosen = _open(recipe, dst, max_rejects, workers, engine)
    for _ in range(_TRIES):
        try:
            with show_progress(recipe.verb, progress, listener) as listen:
                finished = recipe.look(destination, overwrite)
                if (present := finished or recipe.base) is not None:
                    repair(recipe, present)
                if recipe.base is not None:
                    check_base(recipe.base)
                if finished is not None:
                    dataset, duplicates = recipe.finish(finished)
                    said = () if duplicates is None else duplicates.warnings
                    result = _finished_result(dataset.url, dataset.manifest)
                    return replace(result, duplicates=duplicates, warnings=said)
                with chosen.prepare(f"{recipe.worker}:run"):
                    return _build(recipe, destination, chosen, max_rejects, overwrite, fsync, listen)
        except (DuplicateWriterError, BuildError):
            # Another build may have published the next version meanwhile: then begin again after that version.
            now = None if recipe.base is None else destination.find_finished()
            if now is None or recipe.base is None or now.number == recipe.base.number:
                raise
    raise BuildError(f"{destination.url} has grown {_TRIES} times during this build. Run the same command again")


def preview(
    recipe: Recipe,
    dst: str | Path,
    *,
    max_rejects: str | int | None = None,
    overwrite: bool = False,
    workers: int | None = None,
    engine: Engine | str | None = None,
) -> Preview:
    """Predict what `run` with the same arguments would do. Changes nothing.

    Raises:
        TpufeedError: as `run` does before it starts to work.
        TooManyRejectsError: more inputs than the budget allows lack a file or class, or failed when tried.
        BuildError: all inputs do, or there is no room, or the present dataset has lost a file.
    """
    destination, _ = _open(recipe, dst, max_rejects, workers, engine)
    finished, base = recipe.look(destination, overwrite), recipe.base
    present = finished or base
    lost = None if present is None else next(Destination(present.store).iter_lost(present.manifest), None)
    if present is not None and lost is not None:
        raise BuildError(
            f"{present.url}/{lost} is missing or damaged. Nothing was changed. To make only this file again, "
            "run the command that made it, without --dry-run"
        )
    if base is not None:
        check_base(base)
    if finished is not None:
        return _preview_of(recipe, finished)
    own, joined = _check(recipe, destination, overwrite)
    with recipe.draft(is_preview=True) as draft:
        if draft.header is None:
            assert base is not None, "only a dataset that grows may have all samples already"
            complete = _preview_of(recipe, base)
            both = (*recipe.warnings, *draft.warnings)
            return replace(complete, splits={}, bytes=0, skipped=draft.skipped, version=base.number, warnings=both)
        inputs, refused = sum(split.inputs for split in draft.splits.values()), draft.refused
        allowed = allowed_rejects(max_rejects, inputs)
        if refused.total() > allowed:
            advice = "Nothing was changed. Correct the source, or allow more with --max-rejects"
            raise too_many(refused, draft.first_refused, inputs, allowed, advice)
        if inputs and refused.total() == inputs:
            first = draft.first_refused[0]
            raise BuildError(
                f"none of the {inputs} images can be taken. The first: {first.path}: {first.message}. "
                "Nothing was changed. Correct the source"
            )
        if not joined:
            own.check_fits(draft.header, sum(split.bytes for split in draft.splits.values()))
        header = own.plan.header if joined else draft.header
        variants = len(header.variant_numbers)
        splits = {
            name: replace(draft.splits.get(name, SplitPreview(0, 0, 0)), shards=shards * variants)
            for name, shards in header.splits.items()
        }
        of_shards = (
            iter_warnings(name, header.splits[name], split.bytes / variants, header.options.get("hosts", 1))
            for name, split in splits.items()
        )
        shards = sum(split.shards for split in splits.values())
        size = sum(split.bytes for split in splits.values())
        said = itertools.chain(recipe.warnings, header.listed.warnings, *of_shards, draft.warnings)
        tried = {each.name: getattr(draft, each.name) for each in fields(Trial)}
        tried |= {"splits": splits, "warnings": tuple(said), "skipped": header.skipped}
        return Preview(
            source=recipe.source,
            destination=destination.url,
            bytes=size,
            variants=variants,
            classes=len(header.class_names),
            listed=header.listed,
            free_bytes=own.store.free_bytes(),
            cost=bucket_cost(recipe.stores, own.store, draft.gets or inputs, draft.source_bytes, shards, size),
            seconds=inputs * draft.probed_seconds / (workers or default_workers()),
            version=None if base is None else base.number + 1,
            **tried,
        )


def _preview_of(recipe: Recipe, finished: Dataset) -> Preview:
    """Return the preview of a dataset that is finished already."""
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
        listed=finished.manifest.listed,
        free_bytes=finished.store.free_bytes(),
        complete=True,
        fingerprint="" if cache is None else cache.fingerprint,
    )


def _open(
    recipe: Recipe, dst: str | Path, max_rejects: str | int | None, workers: int | None, engine: Engine | str | None
) -> tuple[Destination, Engine]:
    """Open the destination and choose the engine. Raises TpufeedError if the arguments do not fit together."""
    allowed_rejects(max_rejects, 0)  # raises now, not after hours of work, if the budget is wrong
    stores = (open_store(dst, follow=False), *recipe.stores)
    hidden = [store.url for store in (*stores[1:], stores[0]) if not store.shared]
    chosen, places = choose_engine(engine, workers, hidden), list[PurePath]()
    for store in stores:
        path = store.local_path(MANIFEST)
        places.append(PurePosixPath(store.url) if path is None else PurePosixPath(os.path.realpath(path.parent)))
    if places[0] in places[1:]:  # a later build would read or remove it
        raise OptionError(f"{stores[0].url} is the source itself. Take another destination")
    return Destination(stores[0]), chosen


def _check(recipe: Recipe, destination: Destination, overwrite: bool) -> tuple[Destination, bool]:
    """Return where this build puts its files, and whether it continues an earlier run there. Changes nothing."""
    if recipe.source.encode("utf-8", "replace").decode() != recipe.source:  # a plan could not hold it
        raise SourceError(f"the path of the source, {recipe.source!r}, is not UTF-8. Rename it")
    base = recipe.base
    own = destination if base is None else destination.part(part_folder(base.number + 1))
    joined = own.inspect(overwrite or recipe.is_stale)
    if joined:
        try:
            recipe.recognize(own)
        except DuplicateWriterError as error:
            if base is None:
                raise
            header = own.plan.header
            kind = "append" if header.kind == "shard" else header.kind
            # A warmup with --overwrite would warm all of the cache again.
            way = "by removing" if recipe.grows_by == "warmup" else "with --overwrite, which removes only"
            raise DuplicateWriterError(
                f"{base.url}: another command ({kind} of {header.source}) is making version {base.number + 1}, or was "
                f"interrupted. This is {recipe.grows_by} of {recipe.source}. Nothing was changed. Wait for it, or run "
                f"that command again to finish it, or discard it {way} {own.url}"
            ) from error
    check_writable(own.store)  # now, not after hours of work
    return own, joined


def _build(  # noqa: PLR0913, PLR0917  # one run
    recipe: Recipe,
    destination: Destination,
    engine: Engine,
    max_rejects: str | int | None,
    overwrite: bool,
    fsync: bool,
    listener: ProgressListener,
) -> BuildResult:
    own, joined = _check(recipe, destination, overwrite)
    said, base = recipe.warnings, recipe.base
    if not joined:
        tried = own.store.try_puts()  # before the draft, which may take hours
        with own.store.temporary_folder() as folder:
            with recipe.draft(is_preview=False) as draft:
                said = (*said, *tried, *draft.warnings)
                if draft.header is None:
                    assert base is not None, "only a dataset that grows may have all samples already"
                    nothing = _finished_result(base.url, base.manifest)
                    return replace(nothing, skipped=draft.skipped, added=0, rejected={}, warnings=said)
                own.check_fits(draft.header, sum(split.bytes for split in draft.splits.values()))
                plan = write_plan(folder / "plan", draft.header, draft.tasks)
            joined = not own.put_plan(folder / "plan", plan)
        if joined:  # another run was faster
            try:
                recipe.recognize(own)
            except DuplicateWriterError as error:
                if not overwrite:
                    raise
                raise own.replaced() from error
    own.remove_leftovers()
    own.plan = with_access(own.plan, recipe.source)
    result = _run_tasks(recipe, own, engine, max_rejects, joined, fsync, listener)
    header = own.plan.header
    result = replace(
        result,
        warnings=(
            *said,
            *header.listed.warnings,
            *recipe.judge(result.manifest.sizes or None, result.manifest.odd),
            *result.warnings,
        ),
    )
    if base is None:
        return result
    records = result.manifest.records
    about = Part(
        folder=part_folder(base.number + 1),
        kind=recipe.grows_by,
        source=header.source,
        run_id=header.run_id,
        input_digest=header.input_digest,
        records={} if recipe.layout is not None else records,
        skipped=header.skipped,
        different=dict(recipe.different),
        listed=header.listed,
    )
    grown = publish(base, Dataset(own.store, result.manifest), about, recipe.layout)
    return replace(
        result, url=base.url, manifest=grown.manifest, skipped=about.skipped, added=sum(about.records.values())
    )


def _run_tasks(  # noqa: PLR0913, PLR0917  # one run
    recipe: Recipe,
    destination: Destination,
    engine: Engine,
    max_rejects: str | int | None,
    joined: bool,
    fsync: bool,
    listener: ProgressListener,
) -> BuildResult:
    """Run the tasks of the plan that are not done, then put indexes, rejects and, last of all, the manifest."""
    start, plan, store = time.monotonic(), destination.plan, destination.store
    header = plan.header
    images = header.images
    inputs = images // len(header.variant_numbers)
    job = Job(f"{recipe.worker}:run", recipe.context(destination), f"{recipe.worker}:reach")
    try:
        rejects = Rejects(destination, inputs, allowed_rejects(max_rejects, inputs))
        pending, earlier = list(plan.tasks), 0
        if joined:  # a new plan has no reports
            pending.clear()
            with ThreadPoolExecutor(_REPORTS_AT_A_TIME, "tpufeed-resume") as executor:
                reports = executor.map(lambda ref: _trusted_report(destination, ref), plan.tasks)
                for ref, report in zip(plan.tasks, reports, strict=True):
                    if report is None:
                        pending.append(ref)
                    else:
                        earlier += sum(len(shard.lengths) for shard in report.shards)
                        rejects.add(report)
            pending.reverse()  # an earlier run that is still running comes from the other end
        rejected = rejects.count * len(header.variant_numbers)
        progress = BuildProgress(images, earlier, 0, rejected, earlier_images=earlier, earlier_rejects=rejected)
        listener(progress)
        rejects.check()
        retries = 0
        try:
            # Close it at once if something here fails: the error's traceback holds it, so the engine would continue.
            with closing(engine.run(job, pending)) as events:
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
                        report = _read_report(destination, pending[event.number])
                        retries += report.retries
                        rejects.add(report)
                        rejects.check()
        except BaseException:
            # Workers stopped in mid-task may have left folders: making a folder removes those of dead processes.
            with suppress(StoreError), store.temporary_folder():
                pass
            raise
        with store.temporary_folder() as folder:
            manifest, duplicates = _finish(recipe, folder, destination, rejects, fsync)
    except (BuildError, StoreError, DamageError):
        destination.check_owner()  # another run may have removed the objects that are missing
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
        listed=header.listed,
        retries=retries + store.retries,
        warnings=(*said, *(() if duplicates is None else duplicates.warnings)),
        duplicates=duplicates,
    )


def _finished_result(url: str, manifest: Manifest) -> BuildResult:
    """Return the result as if an earlier run had finished the build and this one had done nothing."""
    shards = [shard for split in manifest.splits.values() for variant in split.variants for shard in variant.shards]
    images, size_bytes = sum(shard.records for shard in shards), sum(shard.bytes for shard in shards)
    return BuildResult(url, manifest, 0.0, images, size_bytes, images, manifest.listed, rejected=dict(manifest.rejects))


def _trusted_report(destination: Destination, ref: TaskRef) -> Report | None:
    """Return the report of a task that an earlier run has done, or discard it if it is wrong."""
    header = destination.plan.header
    report = destination.read_report(ref, header.run_id)
    if report is None:
        return None
    # A crash of the machine may have kept the report and lost the shards, which were not written to the disk.
    if _is_of_task(report, header, ref) and all(
        destination.is_stored(shard.name, shard.bytes, shard.crc32c) for shard in report.shards
    ):
        return report
    destination.discard_report(report)
    return None


def _read_report(destination: Destination, ref: TaskRef) -> Report:
    """Return the report of a task that is done. Raises TaskError if it is gone or of another task."""
    header = destination.plan.header
    report = destination.read_report(ref, header.run_id)
    where = f"{destination.url}/{report_name(ref.number)}"
    if report is None:
        raise TaskError(
            f"{where}, the report of {ref.name}, is gone although its task was done. Nothing was published. Run the "
            "same command again: it continues from here"
        )
    if not _is_of_task(report, header, ref):
        raise TaskError(f"{ref.name}: {where} belongs to another task, or was forged")
    return report


def _is_of_task(report: Report, header: PlanHeader, ref: TaskRef) -> bool:
    """Return True if the report is of this task: a build whose plan was removed may have left one with its number."""
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


class _Totals:
    """Sums of all reports. Offsets of records and digests of images are in files in `folder`, not in memory."""

    def __init__(self, header: PlanHeader, folder: Path) -> None:
        self.images, self.odd = Counter[str](), Counter[str]()
        self.heights, self.widths = Counter[int](), Counter[int]()
        self.markers: Markers | msgspec.UnsetType = msgspec.UNSET
        self.levels: Levels = msgspec.UNSET
        self.class_counts = {split: np.zeros(len(header.class_names), np.int64) for split in header.splits}
        self.variants = dict[str, list[tuple[str, IndexWriter, list[Shard]]]]()
        for split in header.splits:
            names = [index_name(split, variant) for variant in header.variant_numbers]
            self.variants[split] = [(name, IndexWriter(folder / name), []) for name in names]
        self.folder, self.has_digests, self.digest_bytes, self.digest_crc = folder, True, 0, 0

    def add(self, split: str, report: Report) -> None:
        """Add the report of a task of a split. Reports come in the order of the tasks."""
        self.class_counts[split] += np.array(report.class_counts, np.int64)
        for (_, index, shards), shard in zip(self.variants[split], report.shards, strict=True):
            shards.append(Shard(shard.name, shard.bytes, shard.crc32c, len(shard.lengths), shard.generation))
            index.add(np.cumsum([0, *shard.lengths], dtype=np.uint64))
        self.images.update(report.images)
        self.odd.update(report.odd)
        self.heights.update(report.heights)
        self.widths.update(report.widths)
        self.levels = join_levels(self.levels, report.levels)
        if report.markers is not msgspec.UNSET:
            self.markers = (self.markers or Markers()) + report.markers
        if report.digests is msgspec.UNSET:
            self.has_digests = False
            return
        with (self.folder / "digests").open("ab") as file:
            file.write(report.digests)
        self.digest_bytes += len(report.digests)
        self.digest_crc = crc32c(report.digests, self.digest_crc)

    def put(self, destination: Destination) -> dict[str, Split]:
        """Put the digests, if every task has reported them, and the indexes."""
        if self.has_digests and self.digest_bytes:
            destination.put(DIGESTS, self.folder / "digests", self.digest_bytes, self.digest_crc)
        splits = dict[str, Split]()
        for split, counts in self.class_counts.items():
            variants = list[Variant]()
            for name, index, shards in self.variants[split]:
                size_bytes, crc = index.finish()
                destination.put(name, self.folder / name, size_bytes, crc)
                variants.append(Variant(tuple(shards), IndexFile(name, size_bytes, crc)))
            records = sum(shard.records for shard in variants[0].shards)
            splits[split] = Split(records, tuple(counts.tolist()), tuple(variants))
        return splits


def _finish(
    recipe: Recipe, folder: Path, destination: Destination, rejects: Rejects, fsync: bool
) -> tuple[Manifest, Duplicates | None]:
    """Put rejects, digests and indexes, and at the end the manifest. `folder` is for temporary files."""
    plan, store = destination.plan, destination.store
    header, tasks, totals = plan.header, iter(plan.tasks), _Totals(plan.header, folder)
    # Many reports at a time: 100,000 in a bucket, one after the other, would take an hour.
    with ThreadPoolExecutor(_REPORTS_AT_A_TIME, "tpufeed-reports") as executor:
        while block := list(itertools.islice(tasks, _REPORTS_A_BLOCK)):
            reports = executor.map(lambda ref: _read_report(destination, ref), block)
            for ref, report in zip(block, reports, strict=True):
                totals.add(ref.split, report)
    rejected = rejects.put()
    if not any(shard.records for (_, _, shards), *_ in totals.variants.values() for shard in shards):
        first = rejected[0]
        raise BuildError(
            f"none of the {len(rejected)} images could be taken. The first: {first.path}: {first.message}. "
            f"{store.url}/{REJECTS} gives a reason for each. Correct the source and run this again with --overwrite"
        )
    splits = totals.put(destination)
    manifest = Manifest(
        run_id=header.run_id,
        tool_version=__version__,
        splits=splits,
        class_names=header.class_names,
        features=header.features,
        options={"command": header.kind, "source": header.source, **header.options},
        input_digest=header.input_digest,
        rejects=dict(sorted(Counter(reject.reason for reject in rejected).items())),
        images=dict(sorted(totals.images.items())),
        odd=dict(sorted(totals.odd.items())),
        markers=totals.markers,
        sizes=Sizes.of_all(totals.heights, totals.widths, sum(split.records for split in splits.values())),
        levels=totals.levels,
        listed=header.listed,
    )
    manifest, duplicates = recipe.conclude(destination, folder, manifest)
    destination.remove_leftovers(manifest)
    # Someone, or a lifecycle rule of a bucket, may have removed files since their tasks were done.
    for lost in destination.iter_lost(manifest):
        raise BuildError(
            f"{store.url}/{lost} was removed or changed since it was put. Nothing was published. Run the same command "
            "again: it continues from here"
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
    destination.put(MANIFEST, encode_manifest(manifest))
    return manifest, duplicates
