"""From a stored plan to a finished dataset: run what is not done yet, then index, rejects and manifest."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from tpufeed import __version__
from tpufeed.dataset.commit import Report, is_intact, put_data, read_report
from tpufeed.dataset.index import encode_index
from tpufeed.dataset.manifest import CacheInfo, IndexFile, Manifest, Shard, Split, Variant, encode_manifest
from tpufeed.dataset.naming import MANIFEST, REJECTS, index_name, report_name
from tpufeed.dataset.plan import Plan, PlanHeader
from tpufeed.dataset.reader import Dataset
from tpufeed.engines.engine import Engine, Job, Progress, available_cores
from tpufeed.engines.processes import ProcessEngine
from tpufeed.engines.serial import SerialEngine
from tpufeed.errors import BuildError, OptionError, TaskError
from tpufeed.storage.store import Store
from tpufeed.tfrecord.crc32c import crc32c


@dataclass(frozen=True, slots=True)
class BuildProgress:
    """How far a build is. `earlier_images` of `images` were done by an earlier run of the same command."""

    total_images: int
    images: int = 0
    bytes: int = 0
    rejects: int = 0
    earlier_images: int = 0


ProgressListener = Callable[[BuildProgress], None]


@dataclass(frozen=True, slots=True)
class BuildResult:
    """A finished build. `seconds` are those of this run; `earlier_images` were done before it."""

    url: str
    manifest: Manifest
    seconds: float
    images: int
    bytes: int
    earlier_images: int
    ignored_files: int

    @property
    def rejects(self) -> int:
        """Inputs not taken; rejects.jsonl names each."""
        return sum(self.manifest.rejects.values())


def run_build(
    store: Store,
    plan: Plan,
    job: Job,
    engine: Engine,
    listener: ProgressListener | None,
    cache: CacheInfo | None = None,
) -> BuildResult:
    """Run the tasks of `plan` that are not done, then put index, rejects and, last of all, the manifest.

    Raises:
        TaskError: a task failed for good. What is done stays; the same command goes on from there.
        BuildError: no input could be taken.
    """
    start = time.monotonic()
    listener = listener or (lambda _: None)
    reports = {ref.number: report for ref in plan.tasks if (report := _trusted_report(store, plan, ref.number))}
    earlier = sum(map(_images, reports.values()))
    progress = BuildProgress(plan.header.notes["images"], images=earlier, earlier_images=earlier)
    listener(progress)
    pending = [ref for ref in plan.tasks if ref.number not in reports]
    for event in engine.run(job, pending):
        if isinstance(event, Progress):
            progress = replace(
                progress,
                images=progress.images + event.images,
                bytes=progress.bytes + event.bytes,
                rejects=progress.rejects + event.rejects,
            )
            listener(progress)
    for ref in pending:
        report = read_report(store, ref)
        if report is None:
            raise TaskError(f"{ref.name}: its task ended without a report at {store.url}/{report_name(ref.number)}")
        reports[ref.number] = report
    ordered = [reports[ref.number] for ref in plan.tasks]
    manifest = _finish(store, plan, ordered, cache)
    return BuildResult(
        url=store.url,
        manifest=manifest,
        seconds=time.monotonic() - start,
        images=sum(map(_images, ordered)),
        bytes=sum(shard.bytes for report in ordered for shard in report.shards),
        earlier_images=earlier,
        ignored_files=plan.header.notes.get("ignored_files", 0),
    )


def local_engine(workers: int | None, *stores: Store) -> Engine:
    """The engine for this host: `workers` processes (all cores by default), or none where processes could not see all.

    Raises:
        OptionError: a number of workers below one.
    """
    if workers is not None and workers < 1:
        raise OptionError(f"workers are at least 1, not {workers}")
    count = workers or available_cores()
    return ProcessEngine(count) if count > 1 and all(store.shared for store in stores) else SerialEngine()


def finished_result(dataset: Dataset) -> BuildResult:
    """The result of a build that an earlier run had finished: nothing was done."""
    shards = [s for split in dataset.manifest.splits.values() for variant in split.variants for s in variant.shards]
    images = sum(shard.records for shard in shards)
    return BuildResult(dataset.url, dataset.manifest, 0.0, images, sum(shard.bytes for shard in shards), images, 0)


def _trusted_report(store: Store, plan: Plan, number: int) -> Report | None:
    ref = plan.tasks[number]
    report = read_report(store, ref)
    # Another name: a report of a build whose plan was removed.
    if report is not None and (report.shards[0].name != ref.name or not is_intact(store, report)):
        store.delete(report_name(number))
        return None
    return report


def _images(report: Report) -> int:
    return sum(len(shard.lengths) for shard in report.shards)


def _finish(store: Store, plan: Plan, reports: Sequence[Report], cache: CacheInfo | None) -> Manifest:
    rejects = [reject for report in reports for reject in report.rejects]
    put_data(store, REJECTS, b"".join(msgspec.json.encode(reject) + b"\n" for reject in rejects))
    if not any(map(_images, reports)):
        raise BuildError(
            f"none of the {len(rejects)} images could be taken; the first: {rejects[0].path}: {rejects[0].message}. "
            f"{store.url}/{REJECTS} has the reason of each; mend the source, remove {store.url} and build again"
        )
    header = plan.header
    by_split: dict[str, list[Report]] = {split: [] for split in header.splits}
    for ref, report in zip(plan.tasks, reports, strict=True):
        by_split[ref.split].append(report)
    manifest = Manifest(
        run_id=header.run_id,
        tool_version=__version__,
        splits={split: _finish_split(store, header, split, found) for split, found in by_split.items()},
        class_names=header.class_names,
        features=header.features,
        options={"command": header.kind, "source": header.source, **header.options},
        input_digest=header.input_digest,
        rejects=dict(sorted(Counter(reject.reason for reject in rejects).items())),
        images=_add_up(report.images for report in reports),
        odd=_add_up(report.odd for report in reports),
        cache=cache,
    )
    put_data(store, MANIFEST, encode_manifest(manifest))
    return manifest


def _add_up(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    return dict(sorted(sum(map(Counter, counts), Counter[str]()).items()))


def _finish_split(store: Store, header: PlanHeader, split: str, reports: Sequence[Report]) -> Split:
    variants = []
    for position, variant in enumerate(header.variant_numbers):
        shards = [report.shards[position] for report in reports]
        index = encode_index([np.cumsum([0, *shard.lengths], dtype=np.uint64) for shard in shards])
        name = index_name(split, variant)
        put_data(store, name, index)
        entries = tuple(Shard(shard.name, shard.bytes, shard.crc32c, len(shard.lengths)) for shard in shards)
        variants.append(Variant(entries, IndexFile(name, len(index), crc32c(index))))
    counts = [sum(report.class_counts[number] for report in reports) for number in range(len(header.class_names))]
    return Split(sum(shard.records for shard in variants[0].shards), tuple(counts), tuple(variants))
