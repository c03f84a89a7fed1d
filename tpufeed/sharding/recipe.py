"""The recipe of `shard`: turn the images of a source into a dataset.

The plan cuts the inputs into shards by the sizes of their records, estimated from a few images.
"""

import itertools
import logging
import secrets
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from tpufeed._version import __version__
from tpufeed.builds.destination import Destination, Reject
from tpufeed.builds.digests import Duplicates, find_duplicates, report_duplicates
from tpufeed.builds.item import Item
from tpufeed.builds.plan import Plan, PlanHeader, Task, at_place, read_plan
from tpufeed.builds.recipe import Draft, Recipe, SplitPreview
from tpufeed.dataset.manifest import Manifest, Sizes
from tpufeed.dataset.naming import PLAN
from tpufeed.dataset.reader import Dataset
from tpufeed.errors import DatasetExistsError, ImageError, ObjectNotFoundError, OptionError, advised, mask_secrets
from tpufeed.images.header import read_header
from tpufeed.images.kept import read_kept
from tpufeed.images.modern import readable_formats
from tpufeed.images.pixel_format import RGB8, PixelFormat
from tpufeed.images.policy import DEEP_BITS, NODATA_MASKED, bits_used
from tpufeed.sharding.inventory import Inventory, take_inventory
from tpufeed.sharding.standing import StandingDataset
from tpufeed.sharding.worker import TINY, TURNED, UNSURE, SampleMaker, ShardContext, read_chosen
from tpufeed.sources.coco_folders import named_splits
from tpufeed.sources.inputs import Files, files_of, iter_taken
from tpufeed.sources.options import NODATA, ShardOptions
from tpufeed.storage.store import open_store

KIND = "shard"
_logger = logging.getLogger(__name__)
_FEATURES_BYTES = 320  # of a record, besides the image, its path and further columns
_PROBED_IMAGES = 64
_MOST_OTHERS = 0.1  # of the probed images may have another pixel format


@dataclass(frozen=True, slots=True)
class SizeEstimate:
    """Estimated bytes of a record: `slope` times its file size, plus `fixed`."""

    slope: float = 1.0
    fixed: float = _FEATURES_BYTES


class Probed(NamedTuple):
    """Says what a sample becomes: the bytes of its images, the size of its image, and its odd cases."""

    bytes: int
    height: int
    width: int
    odd: tuple[str, ...] = ()


def probe_images(inventory: Inventory) -> list[tuple[Item, Probed | ImageError]]:
    """Process a few images as the build would. Return each with what it becomes, or why it cannot be taken."""
    box_format, inputs = inventory.listed.box_format, inventory.sample(_PROBED_IMAGES)
    make = SampleMaker(inventory.features, inventory.classes.names, inventory.options, box_format)

    def probe(item: Item, data: Sequence[bytes]) -> Probed:
        made = make(item, data)
        return Probed(made.bytes, made.image.height, made.image.width, (*made.image.odd, *made.odd))

    return [(item, found) for item, _, found in iter_taken(Files(inventory.base), inputs, probe)]


def find_pixels(inventory: Inventory, standing: StandingDataset | None) -> list[str]:
    """Find the pixel format of a dataset of clips, or one that keeps that of its images, by the first ones.

    Put it into the schema, and return warnings. Raises OptionError if images differ, or do not fit a growing dataset or
    another option.
    """
    counts, examples, options = Counter[PixelFormat](), dict[PixelFormat, str](), inventory.options
    frames, keeps = options.images.frames or msgspec.UNSET, options.images.pixels == "keep"

    def look(item: Item, data: Sequence[bytes]) -> None:
        is_masked = options.images.nodata == "mask"
        kept = read_kept(data[0], is_masked) if options.bands is None else read_chosen(item, data, options)
        if kept is None:
            read_header(data[0])  # what is no image does not count
        found = msgspec.structs.replace(RGB8 if kept is None else kept.pixels, frames=frames)
        counts[found] += 1
        examples.setdefault(found, item.path)

    for _ in iter_taken(Files(inventory.base), inventory.sample(_PROBED_IMAGES) if keeps else (), look):
        pass
    if not counts:
        if keeps and not frames:  # the build will say why none is readable
            return []
        base = standing.manifest.pixels if keeps and standing is not None else RGB8
        counts[msgspec.structs.replace(base, frames=frames)] = 0
    (pixels, most), *others = counts.most_common()
    said = "; ".join(
        f"{count} {found.of_images}, like {examples[found]}" for found, count in counts.most_common() if count
    )
    if counts.total() - most > _MOST_OTHERS * counts.total():
        raise OptionError(
            f"{mask_secrets(inventory.base)}: the images differ, and --pixels keep takes one format. The first "
            f"{counts.total()}: {said}. Shard each kind as a dataset of its own, or leave --pixels keep out"
        )
    if standing is not None and pixels != standing.manifest.pixels:
        raise OptionError(
            f"the images of the dataset are {standing.manifest.pixels}, and the new ones {pixels}"
            f"{f', like {examples[pixels]}' if examples else ''}. Nothing was changed. Shard them as a separate dataset"
        )
    if pixels == RGB8:
        return []
    other = next((spec for spec in inventory.features if (spec.kind if frames else spec.kind == "image")), None)
    if other is not None or options.names == "kaggle":
        what = "names='kaggle' is" if other is None else f"the {other.kind} column {other.name!r} is"
        only, flag = ("single images", "--frames") if frames else ("8-bit RGB", "--pixels keep")
        raise OptionError(f"{what} for {only}, and the images are {pixels}: leave {flag} out, or that option")
    image, *rest = inventory.features
    inventory.features = (msgspec.structs.replace(image, pixels=pixels), *rest)
    return [f"not all images have one format, and others are rejected. The first: {said}"] if others else []


def one_hot_bytes(class_names: Sequence[str]) -> int:
    """Return the bytes that names="kaggle" adds to a record, besides a few."""
    return np.dtype(np.float32).itemsize * len(class_names)


def fit_sizes(probed: Sequence[tuple[Item, Probed | ImageError]]) -> SizeEstimate:
    """Fit a line through (bytes of the files, bytes to store). Neither slope nor intercept is below zero."""
    sizes = [(sum(file.bytes for file in files_of(item)), it.bytes) for item, it in probed if isinstance(it, Probed)]
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
    """Makes a dataset of the raw images at `src`, a path or URL."""

    kind, worker, verb = KIND, "tpufeed.sharding.worker", "sharding"
    standing: StandingDataset | None = None  # the dataset that grows

    def __init__(self, src: str | Path, options: ShardOptions) -> None:
        splits = named_splits(str(src))
        self.stores, self.options = tuple(store for _, store, _ in splits) or (open_store(src),), options
        named = (f"{split}={store.url.rstrip('/')}/{name}" for split, store, name in splits)
        self.source = ",".join(named) or self.stores[0].url
        self.identity, self.warnings = options.to_dict(), options.warnings

    def look(self, destination: Destination, overwrite: bool) -> Dataset | None:
        """Return the dataset at the destination if it is the one that this recipe makes. Raise if it is another."""
        finished = None if overwrite else destination.find_finished()
        if finished is None:
            return None
        try:
            destination.plan = read_plan(destination.store)
        except ObjectNotFoundError:
            raise DatasetExistsError(
                f"{finished.url} already holds a dataset (see: {advised('info', finished.url)}). Its {PLAN}, which "
                "would tell whether it is this one, is gone. Nothing was changed. Take another destination, or pass "
                "--overwrite"
            ) from None
        self.recognize(destination)
        if any(destination.iter_lost(finished.manifest)):
            return finished  # the run repairs it, also if the source has grown since
        with take_inventory(self.source, self.options) as inventory:
            header = destination.plan.header
            if inventory.digest != header.input_digest:
                raise DatasetExistsError(
                    f"{finished.url} already holds the dataset of this command, but {self.source} has changed since: "
                    f"{header.images:,} inputs then, {inventory.count:,} now. Nothing was changed. To add the new "
                    f"ones: {advised('append', self.source, finished.url)}. Or take another destination, or pass "
                    "--overwrite to build it again"
                )
        return finished

    def finish(self, finished: Dataset) -> tuple[Dataset, Duplicates | None]:
        """Return the dataset, and the duplicates that its build reported."""
        return finished, find_duplicates(finished)

    @contextmanager
    def draft(self, is_preview: bool) -> Iterator[Draft]:
        """List the source into a file, and plan in constant memory."""
        options, probed = self.options, list[tuple[Item, Probed | ImageError]]()
        with take_inventory(self.source, options, self.standing) as inventory:
            said = [] if inventory.growth is None else list(inventory.growth.iter_warnings())
            if not inventory.count:  # the growing dataset has all of them
                yield Draft(header=None, skipped=inventory.skipped, warnings=tuple(said))
                return
            grown = self.standing is not None and self.standing.manifest.pixels.frames
            if options.images.pixels == "keep" or options.images.frames or grown:
                said += find_pixels(inventory, self.standing)
            start = time.perf_counter()
            if is_preview or options.sizes_differ:
                probed = probe_images(inventory)
            seconds = time.perf_counter() - start
            found = [each for _, each in probed if isinstance(each, Probed)]
            sizes, odd = None, Counter(case for each in found for case in each.odd)
            if is_preview and found:
                sizes = Sizes.of(Counter(each.height for each in found), Counter(each.width for each in found))
                said += self.judge(sizes, odd, f" of the {len(found)} that were tried")
            rejects = [(item, wrong) for item, wrong in probed if isinstance(wrong, ImageError)]
            read = [Reject(item.path, wrong.reason, str(wrong)) for item, wrong in rejects if item.problem is None]
            estimate = fit_sizes(probed) if options.sizes_differ else SizeEstimate()
            if options.names == "kaggle":
                estimate = replace(estimate, fixed=estimate.fixed + one_hot_bytes(inventory.classes.names))
            yield replace(
                plan_shards(inventory, estimate, self.source, self.identity),
                warnings=tuple(said),
                sizes=sizes,
                pixels=str(inventory.features[0].pixels or "") if found else "",
                odd=odd,
                source_bytes=sum(size for _, size, _ in inventory.totals.values()),
                probed=len(probed),
                probed_rejects=len(rejects),
                probed_seconds=seconds / max(1, len(probed)),
                refused=inventory.rejects + Counter(reject.reason for reject in read),
                first_refused=[*inventory.first_rejects, *read],
            )

    def follow(self, plan: Plan) -> Plan | None:
        """Return the plan for the present place of the source, if that lists the same inputs as the plan's place."""
        before = mask_secrets(plan.header.source)
        with take_inventory(self.source, self.options, self.standing) as inventory:
            is_same = inventory.digest == plan.header.input_digest
            if is_same:
                plan = at_place(plan, self.source, inventory.base)
        said = (
            "has the same inputs: the build continues with it"
            if is_same
            else "has other paths, sizes or times of files"
        )
        _logger.warning("%s, compared with %s, %s", mask_secrets(self.source), before, said)
        return plan if is_same else None

    def context(self, destination: Destination) -> ShardContext:
        """Return what all tasks share."""
        header, owner = destination.plan.header, destination.owner
        return ShardContext(destination.url, header, owner, self.options, readable_formats())

    def conclude(
        self, destination: Destination, folder: Path, manifest: Manifest
    ) -> tuple[Manifest, Duplicates | None]:
        """Report duplicate images."""
        parts = () if self.standing is None else self.standing.parts
        return manifest, report_duplicates(destination, folder, parts)

    def judge(self, sizes: Sizes | None, odd: Mapping[str, int], whose: str = "") -> Iterator[str]:
        """Yield warnings of images that are too small or too dark, and of boxes that may be shares or turned."""
        images, used = self.options.images, bits_used(odd)
        side = images.presize if images.presize_mode == "fit" else None
        if side is not None and sizes is not None and min(sizes.least) < side:
            ops = "--op", f"Resize({side})", "--op", f"CenterCrop({side})"
            yield (
                f"--presize {side} --presize-mode fit never enlarges, and some images are smaller than {side}x{side}. "
                f"Sizes{whose}: {sizes}. To have one size, reject smaller images with --min-side {side}, or enlarge "
                f"them in a cache of the dataset: {advised('cache warmup', 'DATASET', 'CACHE', *ops)}"
            )
        if used is not None:
            bits = min(bits for bits in DEEP_BITS if bits >= used)
            yield (
                f"images{whose} with 16 bits per channel use at most {used} of them, and are scaled from 16: of 256 "
                f"levels at most {(1 << used - 8) + 1} are left. If their values end at {(1 << bits) - 1:,}, build "
                f"with --policy deep={bits}"
            )
        if images.nodata == "mask" and sizes is not None and NODATA_MASKED not in odd:
            yield (
                f"none of the images{whose} has a value that its file says is no data: the column {NODATA!r} is 0 "
                "everywhere. To say the value of a GeoTIFF: gdal_edit.py -a_nodata 0 FILE"
            )
        if tiny := odd.get(TINY):
            yield (
                f"all boxes of {tiny:,} images are within the first pixel: if their numbers are shares of the width "
                "and height, build with --box-format xyxy,relative, or another format with ,relative"
            )
        unsure, turned = odd.get(UNSURE), odd.get(TURNED)
        if unsure:
            others = f", and {turned:,} others referred to the other image and were turned" if turned else ""
            yield (
                f"{unsure:,} images with boxes have an EXIF orientation (upside down, mirrored, or of a square image) "
                "whose sizes do not tell whether the boxes refer to the stored or to the upright image: they were not "
                f"turned{others}. Look at some: tpufeed show. If boxes refer to stored images, build with --policy "
                "exif=ignore, which stores images as they are"
            )


def plan_shards(inventory: Inventory, estimate: SizeEstimate, source: str, identity: dict[str, Any]) -> Draft:
    """Plan a build: cut the inputs of each split, in the global order, into shards of nearly equal size.

    `source` (the URL of the inputs) and `identity` (the options as plain data) identify the plan.

    Raises:
        OptionError: a shard would be smaller than its largest record, or names of shards would be ambiguous.
    """
    options, shards = inventory.options, dict[str, int]()
    counts = {name: count for name, (count, _, _) in inventory.totals.items()}
    sizes = {
        name: estimate.slope * size + estimate.fixed * count + extra
        for name, (count, size, extra) in inventory.totals.items()
    }
    if options.shards is None:
        shard_bytes: float = options.size_bytes
        path, record = inventory.query(
            "SELECT path, ? * size + ? + extra AS record FROM inputs ORDER BY record DESC LIMIT 1",
            (estimate.slope, estimate.fixed),
        ).fetchone()
        if int(record) > shard_bytes:
            raise OptionError(
                f"a shard of {options.size_bytes} bytes cannot hold {path}, whose record takes {int(record)}. Pass a "
                "--shard-size of at least that, better 64MB to 256MB"
            )
    else:
        shard_bytes = max(sizes.values()) / options.shards
    for name, size in sizes.items():
        inputs, hosts = counts[name], options.hosts
        wanted = hosts * max(1, round(size / shard_bytes / hosts))
        # No shard may be empty. With enough inputs their number stays a multiple of the hosts.
        shards[name] = wanted if wanted <= inputs else inputs // hosts * hosts or inputs
    numbered = [name for name in shards if name[-1].isdigit()] if options.names == "kaggle" else []
    if numbered:  # fold1 + 000 and fold10 + 00 are the same
        raise OptionError(
            f"the name of split {numbered[0]!r} ends in a digit, and names='kaggle' puts the number of the shard "
            "behind it. Rename the split, or leave names='kaggle' out"
        )
    header = PlanHeader(
        kind=KIND,
        source=source,
        options=identity,
        run_id=secrets.token_hex(8),
        input_digest=inventory.digest,
        splits=shards,
        variants=None,
        class_names=inventory.classes.names,
        features=inventory.features,
        base=inventory.base,
        images=inventory.count,
        skipped=inventory.skipped,
        listed=inventory.listed,
        tool_version=__version__,
    )
    numbers = itertools.count()
    tasks = (
        Task(next(numbers), split, shard, count, tuple(run))
        for split, count in shards.items()
        for shard, run in enumerate(cut(inventory.iter_inputs(split), estimate, counts[split], count, sizes[split]))
    )
    splits = {name: SplitPreview(counts[name], count, int(sizes[name])) for name, count in shards.items()}
    return Draft(header=header, tasks=tasks, splits=splits)


def cut(
    inputs: Iterable[tuple[Item, int]], estimate: SizeEstimate, count: int, shards: int, total: float
) -> Iterator[list[Item]]:
    """Yield a run of inputs for each shard, of nearly equal size: `count` records with `total` bytes in all.

    Each of the `inputs` comes with the bytes of its path and columns. It belongs to the run that holds the middle byte
    of its record.
    """
    run: list[Item] = []
    position, number, place = 0.0, 0, 0
    for item, extra in inputs:
        size = estimate.slope * sum(file.bytes for file in files_of(item)) + estimate.fixed + extra
        runs_left = shards - number - 1
        full = (position + size / 2) * shards >= total * (number + 1)
        if run and runs_left and (full or count - place <= runs_left):  # each needs a record
            yield run
            run, number = [], number + 1
        position, place = position + size, place + 1
        run.append(item)
    if run:
        yield run
