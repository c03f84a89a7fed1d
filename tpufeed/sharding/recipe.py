"""The recipe of `shard`: the images of a source become a dataset.

Its plan follows from the sizes of records, which are estimated from a few of them: the inputs are cut into shards.
"""

import secrets
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tpufeed import __version__
from tpufeed.build.commit import Reject, find_finished, find_lost
from tpufeed.build.digests import Duplicates
from tpufeed.build.item import Item
from tpufeed.build.plan import Plan, PlanHeader, Task, check_same_plan, read_plan
from tpufeed.build.recipe import Draft, Recipe, SplitPreview
from tpufeed.dataset.manifest import Manifest
from tpufeed.dataset.naming import PLAN
from tpufeed.dataset.reader import Dataset
from tpufeed.dataset.schema import further_columns, record_schema
from tpufeed.errors import DatasetExistsError, ImageError, ObjectNotFoundError, OptionError
from tpufeed.sharding.duplicates import find_duplicates, report_duplicates
from tpufeed.sharding.inputs import Files, iter_taken
from tpufeed.sharding.inventory import Inventory, take_inventory
from tpufeed.sharding.joined import check_joined
from tpufeed.sharding.options import ShardOptions
from tpufeed.sharding.passes import iter_growth_warnings
from tpufeed.sharding.sources.coco import SUFFIXES as COCO_SUFFIXES
from tpufeed.sharding.standing import StandingDataset
from tpufeed.sharding.worker import TURNED, UNSURE, SampleMaker, ShardContext
from tpufeed.storage.registry import open_store
from tpufeed.storage.store import Store

KIND = "shard"
_FEATURES_BYTES = 320  # of a record, besides the image, its path and further columns
_PROBED_IMAGES = 64


@dataclass(frozen=True, slots=True)
class SizeEstimate:
    """Estimate of a record's bytes: `slope` times its file, and `fixed` more."""

    slope: float = 1.0
    fixed: float = _FEATURES_BYTES


@dataclass(frozen=True, slots=True)
class Probe:
    """Result of taking a few images as the build would.

    Attributes:
        estimate: sizes of records.
        seconds_an_image: that one image takes one core.
        images: tried.
        rejects: how many of them cannot be taken.
        read_rejects: those of the rejects that had to be read to know it.
    """

    estimate: SizeEstimate = SizeEstimate()
    seconds_an_image: float = 0.0
    images: int = 0
    rejects: int = 0
    read_rejects: tuple[Reject, ...] = ()


def probe_images(inventory: Inventory, options: ShardOptions) -> Probe:
    """Take a few images as the build with `options` would."""
    inputs, start = inventory.sample(_PROBED_IMAGES), time.perf_counter()
    make = SampleMaker(inventory.features, inventory.classes.names, options.images, options.to_dict())
    taken = list(iter_taken(Files(inventory.base), inputs, lambda item, data: make(item, data).bytes))
    sizes = [
        (sum(file.bytes for file in item.files), size) for item, _, size in taken if not isinstance(size, ImageError)
    ]
    seconds = time.perf_counter() - start
    estimate = _fit(sizes) if options.sizes_differ else SizeEstimate()
    rejects = [(item, wrong) for item, _, wrong in taken if isinstance(wrong, ImageError)]
    read = tuple(Reject(item.path, wrong.reason, str(wrong)) for item, wrong in rejects if item.problem is None)
    return Probe(estimate, seconds / max(1, len(inputs)), len(inputs), len(rejects), read)


def _fit(sizes: list[tuple[int, int]]) -> SizeEstimate:
    """The straight line through (bytes of the file, bytes stored): neither end of it is below zero."""
    if not sizes:
        return SizeEstimate()
    files, stored = np.array(sizes, np.float64).T
    slope, fixed = 0.0, float(stored.mean())
    if np.ptp(files) > 0:
        slope, fixed = map(float, np.polyfit(files, stored, 1))
        if slope < 0:
            slope, fixed = 0.0, float(stored.mean())
        elif fixed < 0:
            slope, fixed = float(stored.sum() / files.sum()), 0.0
    return SizeEstimate(slope, fixed + _FEATURES_BYTES)


class ShardRecipe(Recipe):
    """A dataset of its own.

    Args:
        src: raw images: a path or URL.
        options: of the build.
    """

    kind, worker = KIND, "tpufeed.sharding.worker"
    standing: StandingDataset | None = None  # that grows

    def __init__(self, src: str | Path, options: ShardOptions) -> None:
        source = open_store(src)
        self.source, self.stores, self.options = source.url, (source,), options
        self.names_base = source.url.lower().endswith(COCO_SUFFIXES)
        self.identity, self.warnings = options.to_dict(), options.warnings

    def look(self, destination: Store, overwrite: bool) -> Dataset | None:
        """Return the dataset that stands, if it is what the recipe would make now. Raises if it is another."""
        finished = None if overwrite else find_finished(destination)
        if finished is None:
            return None
        try:
            plan = read_plan(destination)
        except ObjectNotFoundError:
            raise DatasetExistsError(
                f"{finished.url} already holds a dataset (see: tpufeed info {finished.url}), and {PLAN}, which would "
                "say whether it is this one, is gone; nothing was changed. Take another destination, or say --overwrite"
            ) from None
        check_same_plan(destination, plan.header, KIND, self.source, self.identity)
        lost = find_lost(destination, finished.manifest)
        if lost is not None:
            raise DatasetExistsError(
                f"{finished.url} already holds the dataset of this command, but {lost} is missing or damaged. Nothing "
                f"was changed. Run: tpufeed verify {finished.url}; say --overwrite to build it anew"
            )
        with take_inventory(self.source, self.options) as inventory:
            if inventory.digest != plan.header.input_digest:
                raise DatasetExistsError(
                    f"{finished.url} already holds the dataset of this command, but {self.source} has changed since: "
                    f"{plan.header.images:,} inputs then, {inventory.count:,} now. Nothing was changed. To "
                    f"add what is new: tpufeed append {self.source} {finished.url}. Or take another destination, or "
                    "say --overwrite to build it anew"
                )
        return finished

    def finish(self, finished: Dataset) -> tuple[Dataset, Duplicates | None]:
        """Return what the build has reported of duplicates, too."""
        return finished, None if self.options.duplicates == "keep" else find_duplicates(finished)

    @contextmanager
    def draft(self, is_preview: bool) -> Iterator[Draft]:
        """List the source into a file, and plan in memory that does not grow with the inputs."""
        options, probe = self.options, Probe()
        with take_inventory(self.source, options, self.standing) as inventory:
            reads_before = options.split_by_content or options.duplicates == "drop"
            if reads_before and not is_preview:
                inventory.prepare()
            said = () if self.standing is None else tuple(iter_growth_warnings(inventory))
            if inventory.count == inventory.dropped:  # a dataset that grows has all of them
                yield Draft(header=None, skipped=inventory.skipped + inventory.dropped, warnings=said)
                return
            if is_preview or options.sizes_differ:
                probe = probe_images(inventory, options)
            yield replace(
                plan_shards(inventory, options, probe.estimate, self.source, self.identity),
                warnings=said,
                columns=further_columns(inventory.features) if is_preview else {},
                source_bytes=sum(size for _, size, _ in inventory.totals.values()),
                read_before=inventory.count_reads() if reads_before and is_preview else 0,
                probed=probe.images,
                probed_rejects=probe.rejects,
                probed_seconds=probe.seconds_an_image,
                refused=inventory.rejects + Counter(reject.reason for reject in probe.read_rejects),
                first_refused=[*inventory.first_rejects, *probe.read_rejects],
            )

    def check_joined(self, store: Store, plan: Plan) -> None:
        """Check that the plan names files of the source, and nothing else."""
        check_joined(store, plan, self.source, self.options, None, record_schema(labelled=False)[0])

    def context(self, store: Store, plan: Plan) -> ShardContext:
        """Return what all tasks share."""
        return ShardContext(store.url, plan.header, plan.owner, self.options.images)

    def conclude(self, store: Store, plan: Plan, folder: Path) -> Duplicates | None:
        """Report images that were taken more than once."""
        parts = () if self.standing is None else self.standing.parts
        return None if self.options.duplicates == "keep" else report_duplicates(store, plan, folder, parts)

    def judge(self, manifest: Manifest) -> Iterator[str]:
        """Yield a sentence on images of which nobody can tell whether their boxes have to be turned."""
        unsure, turned = manifest.odd.get(UNSURE), manifest.odd.get(TURNED)
        if unsure:
            others = f", and {turned:,} others were of the other one and were turned" if turned else ""
            yield (
                f"{unsure:,} images with boxes have an EXIF orientation, and their sizes do not tell whether the "
                "boxes are of the stored or of the upright image (upside down, mirrored, or square): they were not "
                f"turned{others}. Look at some: tpufeed show. If boxes are of stored images, build with --policy "
                "exif=ignore, which stores images as they are"
            )


def count_shards(inventory: Inventory, options: ShardOptions, estimate: SizeEstimate) -> dict[str, tuple[int, float]]:
    """Return for each split: how many shards it gets, and about how many bytes they hold together.

    Raises:
        OptionError: a shard would be smaller than its largest record.
    """
    totals = inventory.totals
    sizes = {
        name: estimate.slope * size + estimate.fixed * count + extra for name, (count, size, extra) in totals.items()
    }
    largest = max(sizes.values())
    shard_bytes = options.size_bytes if options.shards is None else largest / options.shards
    if options.shards is None:
        path, record = inventory.largest(estimate.slope, estimate.fixed)
        if record > shard_bytes:
            raise OptionError(
                f"a shard of {options.size_bytes} bytes cannot hold {path}, whose record takes {record}; give a "
                "--shard-size of at least that, better 64MB to 256MB"
            )
    counted = {}
    for name, size in sizes.items():
        inputs, hosts = totals[name][0], options.hosts
        wanted = hosts * max(1, round(size / shard_bytes / hosts))
        # No shard may be empty; where there are enough inputs for it, they stay a multiple of the hosts.
        counted[name] = wanted if wanted <= inputs else inputs // hosts * hosts or inputs, size
    return counted


def plan_shards(
    inventory: Inventory, options: ShardOptions, estimate: SizeEstimate, source: str, identity: dict[str, Any]
) -> Draft:
    """Plan: each split's inputs in the global order, cut into shards of nearly equal size.

    Args:
        inventory: of the inputs.
        options: of the build.
        estimate: of the sizes of records.
        source: URL of the inputs.
        identity: the options that the plan is known by.

    Raises:
        OptionError: a shard would be smaller than its largest record, or names of shards would be ambiguous.
    """
    shards = count_shards(inventory, options, estimate)
    numbered = [name for name in shards if name[-1].isdigit()] if options.names == "kaggle" else []
    if numbered:  # fold1 + 000 and fold10 + 00 are the same
        raise OptionError(
            f"the name of split {numbered[0]!r} ends in a digit, and with names='kaggle' the number of a shard "
            "follows; rename the split, or leave names='kaggle' out"
        )
    counts = {name: count for name, (count, _, _) in inventory.totals.items()}
    header = PlanHeader(
        kind=KIND,
        source=source,
        options=identity,
        run_id=secrets.token_hex(8),
        input_digest=inventory.digest,
        splits={name: count for name, (count, _) in shards.items()},
        variants=None,
        class_names=inventory.classes.names,
        features=inventory.features,
        base=inventory.base,
        images=inventory.count,
        listed_twice=inventory.listed_twice,
        skipped=inventory.skipped,
        dropped=inventory.dropped,
        read_before=inventory.read_before,
        ignored_files=inventory.ignored_files,
        warnings=inventory.warnings,
        tool_version=__version__,
    )

    def iter_tasks() -> Iterator[Task]:
        number = 0
        for split, (count, total) in shards.items():
            fixed, slope = estimate.fixed, estimate.slope
            sized = (
                (item, 0.0 if item.duplicate_of else slope * sum(file.bytes for file in item.files) + fixed + extra)
                for item, extra in inventory.iter_inputs(split)
            )
            for shard, run in enumerate(cut(sized, counts[split], count, total)):
                yield Task(number, split, shard, count, tuple(run))
                number += 1

    splits = {name: SplitPreview(counts[name], count, int(size)) for name, (count, size) in shards.items()}
    return Draft(header=header, tasks=iter_tasks(), splits=splits)


def cut(sized: Iterable[tuple[Item, float]], count: int, shards: int, total: float) -> Iterator[list[Item]]:
    """`shards` runs of nearly equal size of `count` inputs: one belongs to the run in which its middle byte falls.

    Inputs of size 0, which make no record, go with the one before them, and `count` is without them.
    """
    run: list[Item] = []
    position, number, place, first = 0.0, 0, 0, 0
    for item, size in sized:
        if size:
            runs_left = shards - number - 1
            full = (position + size / 2) * shards >= total * (number + 1)
            if place > first and runs_left and (full or count - place <= runs_left):  # none may be without a record
                yield run
                run, number, first = [], number + 1, place
            position, place = position + size, place + 1
        run.append(item)
    if run:
        yield run
