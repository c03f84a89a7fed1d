"""`warmup`: from a dataset to a cache."""

from dataclasses import fields
from pathlib import Path

from tpufeed.builds.run import BuildResult, ProgressListener, run
from tpufeed.cache.options import CacheOptions, Encoding, Seed, Variants
from tpufeed.cache.recipe import CacheRecipe
from tpufeed.dataset.reader import Dataset
from tpufeed.engines.engine import Engine
from tpufeed.images.policy import Quality
from tpufeed.images.protocols import Ops
from tpufeed.options import Count, checked
from tpufeed.sources.options import OPTIONS, NameStyle

_ELSEWHERE = {
    "presize": "all images of a cache have one size: give size=..., or ops=[...] with one that fixes the size",
    **dict.fromkeys(
        sorted(OPTIONS.keys() - {field.name for field in fields(CacheOptions)} - {"presize"}),
        "make a dataset of the images with tpufeed.shard first, and warm that",
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
    all_splits_random: bool = False,
    max_rejects: str | int | None = None,
    overwrite: bool = False,
    fsync: bool = False,
    allow_augmented: bool = False,
    workers: Count | None = None,
    engine: Engine | str | None = None,
    listener: ProgressListener | None = None,
    progress: bool | None = None,
) -> BuildResult:
    """Precompute the expensive part of an augmentation: make a dataset whose images are ready for training.

    After an interruption the same call resumes. A finished cache is checked, and only lost files are made again. If
    `src` has grown since then, only the new samples are warmed, as the next version of the cache.

    Args:
        src: path or URL of a dataset. It may also be an open dataset, or a view of one (`Dataset.select`). Each image
            is decoded once for all variants. Samples of a view get the pixels that they have in a cache of the whole
            dataset. The cache numbers them from 0.
        dst: path or URL of the cache.
        size: side in pixels of the default ops, `RandomResizedCrop(size)` and `HorizontalFlip()`. Default: 224.
        ops: ops that are applied to every sample, with different random numbers in every variant.
        live: ops that loaders apply live to the cached images, with different random numbers in every epoch. Your own
            functions cannot be among them, because a loader imports nothing that a manifest names: pass `ops=[...]` to
            the loader instead.
        variants: number K of variants, of which epoch e reads variant e mod K.
        encode: "raw" (uint8 pixels, which load fastest), "png" (half of their bytes), "jpeg" or "webp" (a tenth), or
            "dct", for loaders with `device_ops` (a sixth). Images of "dct" are quantized coefficients of JPEGs, which a
            device decodes.
        quality: quality of JPEG and WebP, 1 to 100, and of "dct", 1 to 92.
        seed: seed of the random numbers.
        shard_bytes: aim for shards of this size. Default: 128 MB, or less if there would be fewer than 64 shards.
        names: "kaggle" names shards (`train-v0-00-512.tfrec`) and keys as in `tpufeed.shard`. It needs another `encode`
            than "raw" or "dct", and samples with one label.
        all_splits_random: give val and test the random ops, too. By default they get the evaluation form of `ops`, so
            that all their variants are equal, and loaders apply that of `live`: the middle instead of a random crop,
            and no op that draws.
        max_rejects: fail if more samples than this are rejected, as in `tpufeed.shard`.
        overwrite: remove another cache or dataset at `dst`, or the remains of a build.
        fsync: flush the shards to disk before the manifest, as in `tpufeed.shard`.
        allow_augmented: accept a cache with random ops as `src`. Only its first variant is read.
        workers: number of processes. Default: one per core, fewer with little memory.
        engine: what runs the tasks, as in `tpufeed.shard`.
        listener: called with a `BuildProgress` a few times per second.
        progress: show a progress bar, as in `tpufeed.shard`.

    Raises:
        OptionError, DatasetNotFoundError, DatasetExistsError, DuplicateWriterError: nothing was changed.
        OpError: an op fails on one of the first samples, or gives other pixels when it is run again.
        TooManyRejectsError, TaskError, BuildError: the work failed. Finished work stays, and the same call resumes.
    """
    given = locals()  # `CacheOptions` has the same names
    options = CacheOptions(**{field.name: given[field.name] for field in fields(CacheOptions) if field.init})
    return run(
        CacheRecipe(src, options, allow_augmented),
        dst,
        max_rejects=max_rejects,
        overwrite=overwrite,
        fsync=fsync,
        workers=workers,
        engine=engine,
        listener=listener,
        progress=progress,
    )
