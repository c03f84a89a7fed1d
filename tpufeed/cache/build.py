"""`warmup`: from a dataset, or raw images, to a cache, and the preview of it."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from tpufeed.build.destination import choose_engine, refuse_source
from tpufeed.build.recipe import Preview
from tpufeed.build.rejects import parse_budget
from tpufeed.build.run import BuildResult, ProgressListener, preview, run
from tpufeed.cache.options import CacheOptions, Encoding, Seed, Variants
from tpufeed.cache.recipe import CacheRecipe
from tpufeed.cache.source import open_source
from tpufeed.engines.engine import Engine
from tpufeed.images.decoding import MAX_PIXELS
from tpufeed.images.policy import MaxPixels, MinSidePx, Quality
from tpufeed.images.protocols import Ops
from tpufeed.options import Count, checked
from tpufeed.sharding.options import ShardOptions
from tpufeed.storage.registry import open_store
from tpufeed.storage.store import Store

_ELSEWHERE = {
    "presize": "a cache has all images of one size: give size=..., or ops=[...] of which one fixes it",
    **dict.fromkeys(
        ("columns", "image_columns", "masks", "boxes", "box_format", "keypoints", "flip_pairs", "box_columns"),
        "make a dataset of them with tpufeed.shard, and warm that",
    ),
}


@checked(_ELSEWHERE)
def warmup(  # noqa: PLR0913  # the public face
    src: str | Path,
    dst: str | Path,
    *,
    size: int | None = None,
    ops: Ops | None = None,
    final: Ops | None = None,
    variants: Variants = 1,
    encode: Encoding = "raw",
    quality: Quality = 90,
    seed: Seed = 0,
    shard_bytes: str | int | None = None,
    shares: str | Mapping[str, float] | None = None,
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
) -> BuildResult:
    """Precompute the expensive part of an augmentation: a second dataset whose images are ready for the step.

    An interrupted call, made again with the same arguments, goes on where it stopped; a finished one is verified and
    nothing is rewritten. Where `src` is a dataset that has grown since, only the samples that are new are warmed, and
    become the next version of the cache.

    Args:
        src: a dataset, or raw images as `tpufeed.shard` takes them: these are decoded once for all variants.
        dst: where the cache goes.
        size: side in pixels of the default ops, `RandomResizedCrop(size)` and `HorizontalFlip()`; 224 by default.
        ops: applied to every sample, with other random numbers in every variant.
        final: ops that loaders apply live to what the cache holds, with other random numbers in every epoch. None of
            the user's own: a loader imports nothing that a manifest names, and has to be given `ops=[...]`.
        variants: K; epoch e reads variant e mod K.
        encode: "raw" stores uint8 pixels, the others encode them.
        quality: of JPEG and WebP, 1 to 100.
        seed: of the random numbers.
        shard_bytes: aim for shards of this size; None: 128 MB, and less where there would be fewer than 64 shards.
        shares: for raw images, as in `tpufeed.shard`; a dataset has its splits and labels.
        split_by: for raw images, too.
        image: for raw images, too.
        label: for raw images, too.
        classes: for raw images, too.
        max_pixels: for raw images, too.
        min_side: for raw images, too.
        policy: for raw images, too.
        max_rejects: fail where more samples than this cannot be taken, as in `tpufeed.shard`.
        overwrite: remove another cache or dataset that stands at `dst`, or the beginnings of one.
        fsync: bring the shards to the disk before the manifest, as in `tpufeed.shard`.
        allow_augmented: take a `src` that is itself a cache which random ops have augmented; of its variants the first
            is read.
        workers: processes; all cores by default.
        engine: what runs the tasks, as in `tpufeed.shard`.
        listener: called with a `BuildProgress` a few times a second.

    Raises:
        OptionError, SourceError, NoInputsError, DatasetNotFoundError, DatasetExistsError, DuplicateWriterError: nothing
            was changed.
        OpError: an op fails on one of the first samples, or gives other pixels when it is run again.
        TooManyRejectsError, TaskError, BuildError: the work failed; what is done stays, and the same call goes on.
    """
    options = CacheOptions(
        size=size,
        ops=ops,
        final=final,
        variants=variants,
        encode=encode,
        quality=quality,
        seed=seed,
        shard_bytes=shard_bytes,
    )
    raw = ShardOptions(
        shares=shares,
        split_by=split_by,
        image=image,
        label=label,
        classes=classes,
        max_pixels=max_pixels,
        min_side=min_side,
        policy=policy,
    )
    recipe, destination, chosen = _prepare(src, dst, options, raw, allow_augmented, workers, engine)
    budget = parse_budget(max_rejects)
    return run(recipe, destination, engine=chosen, budget=budget, overwrite=overwrite, fsync=fsync, listener=listener)


def preview_warmup(  # noqa: PLR0913  # those of `warmup`
    src: str | Path,
    dst: str | Path,
    options: CacheOptions,
    raw: ShardOptions | None = None,
    *,
    max_rejects: str | int | None = None,
    overwrite: bool = False,
    allow_augmented: bool = False,
    workers: Count | None = None,
    engine: Engine | str | None = None,
) -> Preview:
    """Say what `warmup` with the same arguments would do; `raw` describes raw images. Changes nothing.

    Raises:
        OptionError, SourceError, NoInputsError, DatasetNotFoundError, OpError: as `warmup` does.
        DatasetExistsError, DuplicateWriterError: as `warmup` does.
        BuildError, StoreError: there is no room at the destination, or it cannot be written.
    """
    raw = ShardOptions() if raw is None else raw
    recipe, destination, _ = _prepare(src, dst, options, raw, allow_augmented, workers, engine)
    return preview(recipe, destination, budget=parse_budget(max_rejects), overwrite=overwrite, workers=workers)


def _prepare(  # noqa: PLR0913, PLR0917  # those of `warmup`
    src: str | Path,
    dst: str | Path,
    options: CacheOptions,
    raw: ShardOptions,
    allow_augmented: bool,
    workers: Count | None,
    engine: Engine | str | None,
) -> tuple[CacheRecipe, Store, Engine]:
    origin, destination = open_source(src, raw, allow_augmented), open_store(dst, follow=False)
    recipe = CacheRecipe(origin, options)
    chosen = choose_engine(engine, workers, *origin.stores, destination)
    refuse_source(destination, *origin.stores)
    return recipe, destination, chosen
