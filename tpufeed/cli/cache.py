"""`tpufeed cache warmup`."""

from typing import Annotated

import typer

from tpufeed.cli import flags
from tpufeed.cli.builds import (
    BeamArguments,
    EngineName,
    RayAddress,
    choose_engine,
    given,
    parse_policies,
    print_preview,
    run_build,
)
from tpufeed.cli.console import echo, find_own_modules, reports_build_errors
from tpufeed.cli.flags import one_of, ops
from tpufeed.measure.wording import number_of

_AUGMENTATION = "Augmentation"


@reports_build_errors
def warmup_command(
    src: Annotated[
        str,
        typer.Argument(metavar="SRC", help="A dataset, or raw images as `tpufeed shard` takes them: a path or URL."),
    ],
    dst: Annotated[str, typer.Argument(metavar="DST", help="Where the cache goes: a path or URL.")],
    beam: BeamArguments = None,
    shares: flags.Shares = None,
    split_by: flags.SplitBy = None,
    image: flags.Image = None,
    label: flags.Label = None,
    classes: flags.Classes = None,
    size: Annotated[
        int | None,
        typer.Option(
            metavar="PIXELS",
            help="Side of the images, where no --op is given.",
            show_default="224",
            rich_help_panel=_AUGMENTATION,
        ),
    ] = None,
    op: Annotated[
        list[str] | None,
        typer.Option(
            metavar="OP",
            autocompletion=ops,
            help="What is applied, in order, like 'RandomResizedCrop(size=224, scale=(0.3, 1.0))', HorizontalFlip, or "
            "a function of yours: my.augment:heavy@2 is version 2 of `heavy` in my/augment.py, here or wherever Python "
            "finds modules. Repeatable.",
            show_default="RandomResizedCrop and HorizontalFlip",
            rich_help_panel=_AUGMENTATION,
        ),
    ] = None,
    final: Annotated[
        list[str] | None,
        typer.Option(
            metavar="OP",
            autocompletion=ops,
            help="Cheap ops that loaders apply live, anew in every epoch, like 'RandomCrop(224)'; no functions of "
            "yours. Repeatable.",
            rich_help_panel=_AUGMENTATION,
        ),
    ] = None,
    variants: Annotated[
        int,
        typer.Option(
            metavar="K",
            help="Augmented versions of each sample; epoch e reads variant e mod K.",
            rich_help_panel=_AUGMENTATION,
        ),
    ] = 1,
    seed: Annotated[
        int, typer.Option(metavar="N", help="Of the augmentation's random numbers.", rich_help_panel=_AUGMENTATION)
    ] = 0,
    shard_size: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Aim for shards of this size, like 64MB.",
            show_default="128MB, less for small caches",
            rich_help_panel=flags.SHARDS,
        ),
    ] = None,
    encode: Annotated[
        str,
        typer.Option(
            metavar="FORMAT",
            autocompletion=one_of("raw", "jpeg", "png", "webp"),
            help="raw: uint8 pixels, fastest; jpeg, webp: a tenth of the bytes; png: half of them.",
            rich_help_panel=flags.IMAGES,
        ),
    ] = "raw",
    quality: flags.Quality = 90,
    max_pixels: flags.MaxPixels = None,
    min_side: flags.MinSide = None,
    policy: flags.Policy = None,
    max_rejects: flags.MaxRejects = None,
    workers: flags.Workers = None,
    engine: EngineName = "local",
    ray_address: RayAddress = None,
    overwrite: flags.Overwrite = False,
    fsync: flags.Fsync = False,
    allow_augmented: Annotated[
        bool,
        typer.Option(
            "--allow-augmented",
            help="Take a SRC that is a cache which random ops have augmented; of its variants the first is read.",
            rich_help_panel=_AUGMENTATION,
        ),
    ] = False,
    dry_run: flags.DryRun = False,
    as_json: flags.AsJson = False,
    log_json: flags.LogJson = False,
) -> None:
    """Precompute the expensive part of an augmentation, in one or more variants.

    Interrupted, the same command goes on where it stopped; a cache that is complete is verified and left as it is.
    The options below Source, --policy, --max-pixels and --min-side are for raw images.

    Examples:
      tpufeed cache warmup flowers flowers-224 --size 224 --variants 4
      tpufeed cache warmup flowers flowers-256 --op 'Resize(256)' --op 'CenterCrop(256)' --final 'RandomCrop(224)'
      tpufeed cache warmup photos gs://bucket/photos-224 --shares train=0.9,val=0.1 --encode jpeg --dry-run
    """
    find_own_modules()
    from tpufeed.cache.build import preview_warmup, warmup
    from tpufeed.cache.options import CacheOptions
    from tpufeed.images.ops import parse_op
    from tpufeed.sharding.options import ShardOptions

    options = given(
        size=size,
        ops=None if op is None else [parse_op(text) for text in op],
        final=None if final is None else [parse_op(text) for text in final],
        variants=variants,
        encode=encode,
        quality=quality,
        seed=seed,
        shard_bytes=shard_size,
    )
    raw = given(
        shares=shares,
        split_by=split_by,
        image=image,
        label=label,
        classes=classes,
        max_pixels=max_pixels,
        min_side=min_side,
        policy=parse_policies(policy) or None,
    )
    chosen = choose_engine(engine, workers, ray_address, beam)
    run = given(
        max_rejects=max_rejects, overwrite=overwrite, allow_augmented=allow_augmented, workers=workers, engine=chosen
    )
    if dry_run:
        preview = preview_warmup(src, dst, CacheOptions(**options), ShardOptions(**raw), **run)
        rows = [
            (name, f"{samples:,}", str(preview.variants), str(preview.shards[name]))
            for name, samples in preview.samples.items()
        ]

        def say_details() -> None:
            each = f"{preview.seconds_a_sample * 1e3:,.1f} ms of one core each"
            echo(f"source: {preview.source}")
            echo(f"tried: {number_of(preview.probed, 'sample')}, {each}")
            echo(f"fingerprint: {preview.fingerprint}")

        print_preview(preview, chosen, as_json, ("split", "samples", "variants", "shards"), rows, say_details)
        return
    run_build(
        "warming",
        lambda listen: warmup(src, dst, listener=listen, fsync=fsync, **run, **options, **raw),
        as_json,
        log_json,
    )
