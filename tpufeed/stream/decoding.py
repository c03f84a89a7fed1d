"""Plan how the samples of a dataset are decoded: its columns, their sizes, and the ops. This reads no record."""

import hashlib
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

import msgspec
import numpy as np

from tpufeed.dataset import schema
from tpufeed.dataset.clips import ClipPipeline
from tpufeed.dataset.manifest import Manifest
from tpufeed.dataset.naming import EVALUATION, is_evaluation
from tpufeed.dataset.order import Ints
from tpufeed.dataset.reader import ClassIds, Dataset
from tpufeed.dataset.sample import iter_flip_warnings
from tpufeed.dataset.schema import HEIGHT, WIDTH, FeatureSpec, fixed_ints
from tpufeed.errors import OptionError, advised
from tpufeed.images.coefficients import of_quality
from tpufeed.images.description import from_dict
from tpufeed.images.device import DeviceOps
from tpufeed.images.mixing import MixingOp
from tpufeed.images.ops import Choose, Custom, RandomResizedCrop
from tpufeed.images.pipeline import Pipeline
from tpufeed.images.pixel_format import PixelFormat
from tpufeed.images.protocols import MovingOp, Op, WindowOp, evaluation_of
from tpufeed.images.rng import uniforms
from tpufeed.stream.columns import (
    IMAGE,
    LABEL,
    SAMPLE,
    Array,
    Columns,
    Items,
    Mask,
    Picture,
    image_column,
    resolve_columns,
)
from tpufeed.stream.joint import JointPipeline
from tpufeed.stream.mixing import BatchOps, Mixing
from tpufeed.stream.options import LoaderOptions, Shared
from tpufeed.stream.sampler import SampleSource
from tpufeed.text import format_value

_logger = logging.getLogger(__name__)
FIX_SIZE = (
    "pass for training ops=[RandomResizedCrop(size=224), HorizontalFlip()], for evaluation "
    "ops=[Resize(256), CenterCrop(224)] (from tpufeed.images)"
)
_RANDOM_CROPS = ("RandomResizedCrop", "RandomCrop")
_OPS = "--op", "Resize(256)", "--op", "CenterCrop(256)"
_NO_SIZE = f"its images may differ in size and no op fixes the size; {FIX_SIZE}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoding:
    """How the samples of a dataset are decoded.

    Attributes:
        url: the dataset's URL.
        classes: the ids that labels get.
        shape: shape of raw images. None if images are encoded.
        pixels: pixel format of the images.
        upright: True if an image is turned by its EXIF orientation before the ops see it.
        size_at: where a record's integers have height and width of its image. None if only the image knows them.
        specs: the features of the dataset by name.
        min_visibility: a box is dropped if less than this share of its area is left.
        pipelines: the ops of each view of an image, with their seed. A single pipeline without views.
        sizes: (height, width) of each view's images. None if they differ from sample to sample.
        columns: the columns that samples are decoded to.
        made: the pipelines that make the pixels: without ops left to a device.
        drawn: the pipelines that draw for these: all ops if columns move with the pixels.
        device_ops: the ops that a device may run. None without such ops, or without images.
        mixing_here: the ops that mix rows, if they are not left to a device.
        numbered: ops of whole batches that run later, each with its place among all ops.
        joint: the pipeline for user ops that change whole samples, if there are any.
    """

    url: str
    classes: ClassIds
    shape: tuple[int, ...] | None
    pixels: PixelFormat
    upright: bool
    size_at: tuple[int, int] | None
    specs: dict[str, FeatureSpec]
    min_visibility: float
    pipelines: Sequence[Pipeline]
    sizes: Sequence[tuple[int, int] | None]
    columns: Columns
    made: Sequence[Pipeline]
    drawn: Sequence[Pipeline]
    device_ops: BatchOps | None = None
    mixing_here: Mixing | None = None
    numbered: Sequence[tuple[int, Op]] = ()
    joint: JointPipeline | None = None

    def device_numbers(self, epoch: int, samples: Ints) -> Array:
        """Return what ops that run over whole batches do to these samples, float32 of shape (samples, numbers)."""
        ops, seed = self.mixing_here or self.device_ops, self.pipelines[0].seed
        assert ops is not None, "there is a column for them"
        if not self.numbered:
            return np.empty((len(samples), 0), np.float32)
        return ops.parameters([uniforms(seed, epoch, samples, place, op.draws) for place, op in self.numbered])


def plan_decoding(
    source: SampleSource, options: LoaderOptions, *, batched: bool = False, on_device: bool = False
) -> Decoding:
    """Return how samples of one dataset are decoded.

    Args:
        source: the dataset, and its classes and salt in a mixture.
        options: `ops` or `views`, `seed`, `columns`, and the options for batching columns.
        batched: True if rows are arrays, so that all images need the same size.
        on_device: True to leave the device ops to a device. Otherwise they run here, after the other ops.

    Raises:
        OptionError: something is not an op; an op that the manifest names is not allowed; columns do not fit.
    """
    url, classes = source.dataset.url, source.classes
    manifest, seed = source.dataset.manifest, options.seed ^ source.salt
    if classes.names is not None:
        manifest = msgspec.structs.replace(manifest, class_names=classes.names)
    views: Sequence[Sequence[Op]] = (options.ops,) if options.ops is not None else options.view_ops
    views = views or (_own_ops(source.dataset, source.split),)
    later = [op for op in options.device_ops or () if not isinstance(op, MixingOp)]
    pipelines, shared = list[Pipeline](), _find_shared(views, options.share)
    for view, ops in enumerate(views):
        # The first view draws with the loader's own seed.
        salt = hashlib.blake2b(b"%d" % view, digest_size=7).digest() if view else b""
        draws = manifest.draws_seed(seed ^ int.from_bytes(salt, "little"))
        # A device gets whole images if its ops are the first ones, so the host's ops see the same pixels.
        whole = bool(later) and not ops
        keys = {own: (pipelines[0].seed, place) for own, place in shared[view].items()} if view else {}
        fast, upright, pixels = not manifest.is_coded, manifest.upright, manifest.pixels
        make = ClipPipeline if pixels.frames else Pipeline
        made = make([*ops, *later], draws, fast, upright, whole=whole, pixels=pixels, shared=keys)
        pipelines.append(made)
    first = pipelines[0].ops
    if late := [op for view in views[1:] for op in view if isinstance(op, Choose) and op not in first]:
        raise OptionError(f"{late[0]} is not in the first view, which draws for all: give it to the first view, too")
    sizes = [pipeline.output_size(manifest.image_size) for pipeline in pipelines]
    if options.views is not None and None in sizes:
        raise OptionError(f"{url}: {_NO_SIZE}; each view needs an op that fixes the size")
    columns = resolve_columns(manifest, options, sizes, classes.is_mixture, first)
    if batched and None in sizes and columns.pooled:
        raise OptionError(f"{url}: {_no_device_size() if options.device_ops else _NO_SIZE}")
    ints = fixed_ints(manifest.features)
    # Height and width written by another tool may belong to another image, or to this one after EXIF turned it.
    is_adopted = manifest.options.get("command") == "adopt"
    has_size = not is_adopted and {HEIGHT, WIDTH} <= set(ints)
    plan = Decoding(
        url=url,
        classes=classes,
        shape=manifest.tensor_shape,
        pixels=manifest.pixels,
        upright=manifest.upright,
        size_at=(ints.index(HEIGHT), ints.index(WIDTH)) if has_size else None,
        specs={spec.name: spec for spec in manifest.features},
        min_visibility=float(options.min_visibility),
        pipelines=pipelines,
        sizes=sizes,
        columns=columns,
        made=pipelines,
        drawn=pipelines,
    )
    later_ops = options.device_ops if options.views is None else None
    if not columns.images and any(isinstance(op, MixingOp) for op in later_ops or ()):
        raise OptionError("MixUp and CutMix need the image: name it in columns=, or leave them out")
    if later_ops is not None and (later_ops or manifest.is_coded) and columns.images:
        plan = _plan_device_ops(plan, manifest, Pipeline(views[0], 0), later_ops, on_device)
    custom = next((op for op in pipelines[0].ops if isinstance(op, Custom) and op.sample), None)
    return plan if custom is None else replace(plan, joint=_cut_at(plan, custom))


def _find_shared(views: Sequence[Sequence[Op]], share: Shared | None) -> list[dict[int, int]]:
    """Return for each view the places of the ops that draw as ops of the first view, with the places of these.

    Raises OptionError if the views do not have these ops in common.
    """
    if share is None:
        return [{} for _ in views]
    found = list[list[tuple[int, Op]]]()
    for ops in views:
        kind = [each for each in enumerate(ops) if isinstance(each[1], WindowOp | MovingOp) == (share == "crop")]
        last = max((number for number, (_, op) in enumerate(kind, 1) if op.draws), default=0)
        found.append(kind[:last])  # what ops without draws do after the last crop is each view's own
    if not found[0]:
        raise OptionError(f"share={share!r}: the first view has no such op that draws, so there is nothing to share")
    for number, own in enumerate(found):
        for (_, first), (_, op) in zip_longest(found[0], own, fillvalue=(0, None)):
            # Windows of any size are the same part of the image.
            resized = isinstance(op, RandomResizedCrop) and isinstance(first, RandomResizedCrop)
            if (replace(op, size=first.size) if resized else op) != first:  # type: ignore[type-var,union-attr]
                raise OptionError(
                    f"share={share!r}: view 0 has {first or 'no further op'}, and view {number} has "
                    f"{op or 'no further op'} in its place: give both the same. RandomResizedCrop may differ in size"
                )
    return [{own: first for (first, _), (own, _) in zip(found[0], each, strict=True)} for each in found]


def warn_of_flips(plans: Sequence[Decoding]) -> None:
    """Log a warning for each column of keypoints whose names would no longer fit after a flip."""
    for plan in plans:
        for warning in iter_flip_warnings([each.spec for each in plan.columns.fields], plan.pipelines[0].ops):
            _logger.warning("%s: %s", plan.url, warning)


def plan_batches(sources: Sequence[SampleSource], options: LoaderOptions, on_device: bool = False) -> list[Decoding]:
    """Return a plan for each dataset. In a mixture lists have room for the longest list of all datasets.

    Raises OptionError if a dataset does not fit the options, or datasets differ in the names or types of their columns.
    """
    if len(sources) == 1:
        return [plan_decoding(sources[0], options, batched=True, on_device=on_device)]
    labelled = all(source.dataset.manifest.has_label for source in sources)
    if options.columns is None or options.columns == "default":
        own = [IMAGE, *(["label"] if labelled else []), *([SAMPLE] if options.columns is None else [])]
        options = replace(options, columns=own)

    def plan(options: LoaderOptions) -> Iterator[Decoding]:
        for source in sources:
            try:
                yield plan_decoding(source, options, batched=True, on_device=on_device)
            except OptionError as error:
                where = "" if source.dataset.url in str(error) else f"{source.label}: "
                raise OptionError(f"{where}{error}. All datasets of a mixture need the columns asked for") from error

    plans, lists = list(plan(options)), list[dict[str, Items]]()
    for found in plans:
        items = (each for each in found.columns.fields if isinstance(each, Items))
        # Lists as the dataset declares them, even if all of its own have one length.
        lists.append({each.columns[0].name: each for each in items if found.specs[each.spec.name].shape is None})
    padded = {
        name: max(each[name].columns[0].shape[0] for each in lists)
        for name in lists[0]
        if all(name in each for each in lists) and len({each[name].columns for each in lists}) > 1
    }
    if padded:
        plans = list(plan(replace(options, pad={**padded, **(options.pad or {})})))
    first = {column.name: column for column in plans[0].columns.every}
    for source, other in zip(sources[1:], plans[1:], strict=True):
        others = {column.name: column for column in other.columns.every}
        for name in {**first, **others}:
            here, there = first.get(name), others.get(name)
            if here != there:
                said = ["missing" if each is None else f"{each.dtype} {each.shape}" for each in (here, there)]
                sizes = here is not None and there is not None and here.dtype == there.dtype and len(here.shape) == 3
                ops = "give ops that fix one size, or " if sizes else ""
                raise OptionError(
                    f"the column {name!r} is {said[0]} in {sources[0].label} and {said[1]} in {source.label}; a batch "
                    f"needs one shape and type: {ops}leave the column out of columns="
                )
        if other.made[0].coefficients != plans[0].made[0].coefficients:
            raise OptionError(
                f"{source.label} is a cache of another quality than {sources[0].label}, and a device decodes with one: "
                "leave device_ops out, or warm one of them again"
            )
    return plans


def _plan_device_ops(
    plan: Decoding, manifest: Manifest, here: Pipeline, ops: Sequence[Op], on_device: bool
) -> Decoding:
    """Return a plan with `ops`, which a device can run after the ops `here`. Raises OptionError if it cannot."""
    cache, whole, pixels = manifest.cache, plan.pipelines[0], manifest.pixels
    size = here.output_size(manifest.image_size)
    if size is None:
        raise OptionError(f"{plan.url}: {_no_device_size()}")
    cropped = [] if cache is None else [str(op.get("op")) for op in cache.ops if op.get("op") in _RANDOM_CROPS]
    if cropped and any(isinstance(op, RandomResizedCrop) for op in ops):
        raise OptionError(
            f"{plan.url}: the cache holds crops already, of {cropped[0]}, and RandomResizedCrop would crop them "
            f"again: read {_whole()}; or leave RandomResizedCrop out of device_ops"
        )
    first = next((number for number, op in enumerate(ops) if isinstance(op, MixingOp)), len(ops))
    coefficients = None
    if cache is not None and isinstance(cache.quality, int):
        if here.ops:
            raise OptionError(
                f"{plan.url}: {type(here.ops[0]).__name__} runs on the host, before device_ops, and needs pixels, but "
                "of a cache of --encode dct a device gets coefficients: put it first in device_ops, or leave "
                "device_ops out"
            )
        coefficients = of_quality(size, cache.quality)
    image_ops, mixing = DeviceOps(ops[:first], size, coefficients, pixels.frame), None
    if first < len(ops):
        mixing = _plan_mixing(plan, ops[first:], image_ops.out_size, len(manifest.class_names))
    device_ops = BatchOps(image_ops, mixing, pixels)
    # Draws of an op depend on its place among all ops.
    numbered = tuple(enumerate(ops, len(here.ops)))
    if on_device:
        columns = plan.columns.before_device_ops(device_ops.sent, device_ops.width)
        make = ClipPipeline if pixels.frames else Pipeline
        seed, fast, upright = whole.seed, whole.fast, whole.upright
        made = [make(here.ops, seed, fast, upright, pixels=pixels, coefficients=coefficients)]
        drawn = plan.pipelines if columns.fields else made
        return replace(plan, device_ops=device_ops, numbered=numbered, columns=columns, made=made, drawn=drawn)
    if mixing is not None:
        columns = plan.columns.before_device_ops(image_column(IMAGE, pixels, image_ops.out_size), mixing.width)
        plan = replace(plan, columns=columns, mixing_here=mixing)
    return replace(plan, device_ops=device_ops, numbered=numbered[first:])


def _no_device_size() -> str:
    return (
        "device_ops need images of one size, and its images may differ: give host ops that fix it, like "
        f"ops=[Resize(256), CenterCrop(256)], or read {_whole()}"
    )


def _whole() -> str:
    return f"a cache of whole images: {advised('cache warmup', 'DATASET', 'CACHE', *_OPS)}"


def _plan_mixing(plan: Decoding, ops: Sequence[Op], size: tuple[int, int], named_classes: int) -> Mixing:
    """Return the ops that mix rows. Raises OptionError if they cannot mix a column, or are not the last ones."""
    name, other = type(ops[0]).__name__, next((op for op in ops if not isinstance(op, MixingOp)), None)
    if other is not None:
        raise OptionError(f"{name} mixes whole batches: put {type(other).__name__} before it in device_ops")
    label = next((column for column in plan.columns.every if column.name == LABEL), None)
    if label is None or bool(label.shape) != (label.dtype == "float32") or label.dtype == "O":
        raise OptionError(
            f"{name} mixes labels with images: ask for the column 'label', with one class per sample or "
            "label_format='multi_hot'"
        )
    classes = label.shape[0] if label.shape else named_classes
    if not classes:
        raise OptionError(
            f"{name} needs the number of classes, and {plan.url} does not name its classes: give --classes as you "
            "shard or adopt it"
        )
    mixing = [op for op in ops if isinstance(op, MixingOp)]
    blends = next((type(op).__name__ for op in mixing if op.blends), "")
    others, masks = list[str](), list[str]()
    for each in plan.columns.fields:
        column = each.columns[0].name
        if isinstance(each, Picture):
            others.append(column)
        elif isinstance(each, Mask) and not blends:
            masks.append(column)
        elif each.moves and column != LABEL:
            raise OptionError(
                f"{blends or name} cannot mix the column {column!r}, which would no longer fit the "
                "images: leave it out of columns=" + (f", or {blends} out" if isinstance(each, Mask) else "")
            )
    return Mixing(mixing, size, classes, others, masks, plan.pixels.frame)


def _cut_at(plan: Decoding, custom: Custom) -> JointPipeline | None:
    """Return the pipeline for user ops that change whole samples. None if there is nothing to change but pixels."""
    fields = [each for each in plan.columns.fields if not isinstance(each, Picture)]
    handed = {
        each.columns[0].name: each.spec
        for each in fields
        if each.spec is not None and (each.moves or each.spec.name != schema.LABEL)
    }
    if len(plan.pipelines) > 1 and handed:
        raise OptionError(
            f"{custom} cannot change {', '.join(handed)} with each view: leave views= out, or these columns"
        )
    handed = {spec.of: plan.specs[spec.of] for spec in handed.values() if isinstance(spec.of, str)} | handed
    if not handed:
        return None
    if plan.pixels.frames:
        raise OptionError(f"{custom} cannot change {', '.join(handed)} with clips: leave it, or these columns, out")
    picture = next((each for each in plan.columns.fields if isinstance(each, Picture)), None)
    if picture is not None:
        (column,) = picture.columns
        raise OptionError(
            f"{custom} cannot change {column.name!r} with the image, masks and boxes: leave that column out"
        )
    if plan.device_ops is not None and any(each.moves for each in fields if each.columns[0].name in handed):
        raise OptionError(
            f"{custom} changes masks and boxes together with the pixels, so no device op can follow it: leave "
            "device_ops out, and put its ops into ops"
        )
    return JointPipeline(plan.made[0], handed, fields)


def _own_ops(dataset: Dataset, split: str) -> Sequence[Op]:
    """Return the ops that a cache's manifest leaves to loaders of a split."""
    manifest = dataset.manifest
    ops = [] if manifest.cache is None else [from_dict(each) for each in manifest.cache.live]
    for op in ops:
        if isinstance(op, Custom):  # the author of a manifest must not choose what is imported here
            raise OptionError(
                f"{dataset.url}: its manifest names {format_value(op.target)} among the live ops, and loaders import "
                "nothing that a manifest names. If you want it to run, pass all live ops yourself: "
                f"ops=[..., Custom({format_value(op.target)})]"
            )
    return evaluation_of(ops) if EVALUATION in manifest.options and is_evaluation(split) else ops
