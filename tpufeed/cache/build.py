"""`warmup`: from a dataset, or raw images, to a cache."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path

from tpufeed.builds.run import BuildResult, ProgressListener, run
from tpufeed.cache.options import CacheOptions, Encoding, Seed, Variants
from tpufeed.cache.recipe import CacheRecipe
from tpufeed.cache.source import RAW_OPTIONS
from tpufeed.dataset.reader import Dataset
from tpufeed.engines.engine import Engine
from tpufeed.images.header import MAX_PIXELS
from tpufeed.images.policy import MaxPixels, MinSidePx, Quality
from tpufeed.images.protocols import Ops
from tpufeed.options import Count, checked
from tpufeed.sources.options import NameStyle, ShardOptions

_ELSEWHERE = {
    "presize": "all images of a cache have one size: give size=..., or ops=[...] with one that fixes the size",
    **dict.fromkeys(
        (
            "columns",
            "image_columns",
            "masks",
            "group_by",
            "outlines",
            "boxes",
            "box_format",
            "keypoints",
            "flip_pairs",
            "box_columns",
            "boxes_outside",
        ),
        "make a dataset with tpufeed.shard first, and warm that",
    ),
}


@checked(_ELSEWHERE)
def warmup(  # noqa: PLR0913  # the public face
    src: str | Path | Dataset,
    dst: str | Path,
    *,
    size: int | None = None,
    ops: Ops | None = None,
    live: Ops | None = None,
    variants: Variants = 1,
    encode: Encoding = "raw",
    quality: Quality = 90,
    seed: Seed = 0,
    shard_bytes: str | int | None = None,
    names: NameStyle = "tpufeed",
    splits: str | Mapping[str, float] | None = None,
    split_by: str | None = None,
    image: str | None = None,
    label: str = "auto",
    classes: str | Path | Sequence[str] | None = None,
    max_pixels: MaxPixels = MAX_PIXELS,
    min_side: MinSidePx = 1,
    policy: Mapping[str, str] | None = None,
    max_rejects: str | int | None = None,
    overwrite: bool = False,
    fsync: bool = False,
    allow_augmented: bool = False,
    workers: Count | None = None,
    engine: Engine | str | None = None,
    listener: ProgressListener | None = None,
    progress: bool | None = None,
) -> BuildResult:
    """Precompute the expensive part of an augmentation: make a dataset whose images are ready for the step.

    The same call after an interruption continues where it stopped. A finished cache is verified, and nothing is
    rewritten. If `src` is a dataset that has grown since then, only the new samples are warmed, as the next version of
    the cache.

    Args:
        src: a dataset, also an open one or a view (`Dataset.select`), or raw images as `tpufeed.shard` takes them. Each
            image is decoded once for all variants. Samples of a view get the pixels that they have in a cache of the
            whole dataset; the cache numbers them from 0.
        dst: where the cache goes.
        size: side in pixels of the default ops, `RandomResizedCrop(size)` and `HorizontalFlip()`. Default: 224.
        ops: ops that are applied to every sample, with different random numbers in every variant.
        live: ops that loaders apply live to the cached images, with different random numbers in every epoch. Your own
            functions cannot be among them, because a loader imports nothing that a manifest names: pass `ops=[...]` to
            the loader instead.
        variants: number K of variants; epoch e reads variant e mod K.
        encode: "raw" stores uint8 pixels; the others encode them.
        quality: quality of JPEG and WebP, 1 to 100.
        seed: seed of the random numbers.
        shard_bytes: aim for shards of this size. Default: 128 MB, or less if there would be fewer than 64 shards.
        names: "kaggle" names shards (`train-v0-00-512.tfrec`) and keys as in `tpufeed.shard`. It needs another `encode`
            than "raw", and samples with one label.
        splits: for raw images only, as in `tpufeed.shard`; a dataset has splits and labels.
        split_by: for raw images only.
        image: for raw images only.
        label: for raw images only.
        classes: for raw images only.
        max_pixels: for raw images only.
        min_side: for raw images only.
        policy: for raw images only.
        max_rejects: fail if more samples than this are rejected, as in `tpufeed.shard`.
        overwrite: remove another cache or dataset at `dst`, or the remains of a build.
        fsync: flush the shards to disk before the manifest, as in `tpufeed.shard`.
        allow_augmented: accept a cache with random ops as `src`; only its first variant is read.
        workers: number of processes. Default: one per core, fewer with little memory.
        engine: what runs the tasks, as in `tpufeed.shard`.
        listener: called with a `BuildProgress` a few times per second.
        progress: show a progress bar, as in `tpufeed.shard`.

    Raises:
        OptionError, SourceError, NoInputsError, DatasetNotFoundError, DatasetExistsError, DuplicateWriterError: nothing
            was changed.
        OpError: an op fails on one of the first samples, or gives other pixels when it is run again.
        TooManyRejectsError, TaskError, BuildError: the work failed; what is done stays, and the same call continues.
    """
    given = locals()  # `CacheOptions` and `ShardOptions` have the same names
    options = CacheOptions(**{field.name: given[field.name] for field in fields(CacheOptions) if field.init})
    raw = ShardOptions(**{name: given[name] for name in RAW_OPTIONS})
    return run(
        CacheRecipe(src, options, raw, allow_augmented),
        dst,
        max_rejects=max_rejects,
        overwrite=overwrite,
        fsync=fsync,
        workers=workers,
        engine=engine,
        listener=listener,
        progress=progress,
    )
