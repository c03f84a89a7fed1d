"""Plan a build: estimate the size of its records from a few of them, and cut the inputs into shards."""

import secrets
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tpufeed import __version__
from tpufeed.build.commit import Reject
from tpufeed.build.item import Item
from tpufeed.build.plan import PlanHeader, Task
from tpufeed.build.recipe import Draft, SplitPreview
from tpufeed.dataset.schema import further_columns
from tpufeed.errors import ImageError, OptionError
from tpufeed.images.policy import ImagePolicy
from tpufeed.sharding.inputs import Files, iter_taken
from tpufeed.sharding.inventory import Inventory
from tpufeed.sharding.options import ShardOptions
from tpufeed.sharding.sample import SampleMaker

KIND = "shard"
FEATURES_BYTES = 320  # of a record, besides the image, its path and further columns
_PROBED_IMAGES = 64


@dataclass(frozen=True, slots=True)
class SizeEstimate:
    """Estimate of a record's bytes: `slope` times its file, and `fixed` more."""

    slope: float = 1.0
    fixed: float = FEATURES_BYTES


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

    estimate: SizeEstimate
    seconds_an_image: float
    images: int
    rejects: int
    read_rejects: tuple[Reject, ...]


def needs_probe(policy: ImagePolicy) -> bool:
    """Return true where records may have other sizes than their files."""
    return policy.presize_px is not None or policy.encode != "keep" or policy.greyscale == "rgb"


def probe_images(inventory: Inventory, options: ShardOptions) -> Probe:
    """Take a few images as the build with `options` would."""
    files, policy = Files(inventory.base), options.images
    inputs = inventory.sample(_PROBED_IMAGES)
    start = time.perf_counter()

    make = SampleMaker(inventory.features, inventory.classes.names, policy, options.to_dict())

    def take(item: Item, data: Sequence[bytes]) -> int:
        return make(item, data).bytes

    taken = list(iter_taken(files, inputs, take))
    sizes = [(sum(file.bytes for file in item.files), size) for item, size in taken if not isinstance(size, ImageError)]
    seconds = time.perf_counter() - start
    estimate = _fit(sizes) if needs_probe(policy) else SizeEstimate()
    rejects = [(item, wrong) for item, wrong in taken if isinstance(wrong, ImageError)]
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
    return SizeEstimate(slope, fixed + FEATURES_BYTES)


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


def draft_shards(
    inventory: Inventory, options: ShardOptions, source: str, identity: dict[str, Any], is_preview: bool
) -> Draft:
    """Plan a build, having tried a few images if the sizes of records do not follow from those of files.

    Args:
        inventory: of the inputs.
        options: of the build.
        source: URL of the inputs.
        identity: the options that the plan is known by.
        is_preview: try a few images in any case.

    Raises:
        OptionError: a shard would be smaller than its largest record, or names of shards would be ambiguous.
    """
    probe = Probe(SizeEstimate(), 0.0, 0, 0, ())
    if is_preview or needs_probe(options.images):
        probe = probe_images(inventory, options)
    draft = plan_shards(inventory, options, probe.estimate, source, identity)
    return replace(
        draft,
        columns=further_columns(inventory.features),
        source_bytes=sum(size for _, size, _ in inventory.totals.values()),
        read_before=inventory.count_reads(options) if is_preview else 0,
        probed=probe.images,
        probed_rejects=probe.rejects,
        probed_seconds=probe.seconds_an_image,
        refused=inventory.rejects + Counter(reject.reason for reject in probe.read_rejects),
        first_refused=[*inventory.first_rejects, *probe.read_rejects],
    )


def plan_shards(
    inventory: Inventory, options: ShardOptions, estimate: SizeEstimate, source: str, identity: dict[str, Any]
) -> Draft:
    """Plan: each split's inputs in the global order, cut into shards of nearly equal size.

    `estimate` is of the sizes of records; otherwise as `draft_shards`.
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
            inputs = inventory.iter_inputs(split)
            sized = (
                (
                    item,
                    0.0
                    if item.duplicate_of
                    else estimate.slope * sum(file.bytes for file in item.files) + estimate.fixed + extra,
                )
                for item, extra in inputs
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
