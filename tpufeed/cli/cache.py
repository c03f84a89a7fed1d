"""`tpufeed cache warmup`."""

from functools import partial
from typing import Annotated, Any

import typer

from tpufeed.cli import flags
from tpufeed.cli.builds import engine_of_flags, given, print_preview, run_build
from tpufeed.cli.console import echo, find_own_modules, reports_build_errors
from tpufeed.cli.flags import one_of
from tpufeed.text import format_count

_in_augmentation = partial(typer.Option, rich_help_panel="Augmentation")


@reports_build_errors
def warmup_command(
    src: flags.Src,
    dst: Annotated[str, typer.Argument(metavar="DST")],
    beam: flags.BeamArguments = None,
    select: flags.Select = None,
    size: Annotated[int | None, _in_augmentation(metavar="PIXELS")] = None,
    ops: Annotated[
        list[str] | None,
        _in_augmentation(
            "--op",
            metavar="OP",
            autocompletion=flags.ops,
            help="An op to apply, in the given order: 'RandomResizedCrop(size=224, scale=(0.3, 1.0))', HorizontalFlip, "
            "or your own function: my.augment:heavy@2 is version 2 of `heavy` in my/augment.py, in this folder or "
            "wherever Python finds modules. Repeatable.",
            show_default="RandomResizedCrop and HorizontalFlip",
        ),
    ] = None,
    live: Annotated[
        list[str] | None,
        _in_augmentation(
            metavar="OP",
            autocompletion=flags.ops,
            help="A cheap op that loaders apply live, with new random numbers in every epoch, e.g. 'RandomCrop(224)', "
            "not your own functions. Repeatable.",
        ),
    ] = None,
    variants: Annotated[int, _in_augmentation(metavar="K")] = 1,
    seed: Annotated[int, _in_augmentation(metavar="N")] = 0,
    shard_bytes: Annotated[str | None, flags.in_shards("--shard-size", metavar="SIZE")] = None,
    names: flags.Naming = "tpufeed",
    encode: Annotated[
        str, flags.in_images(metavar="FORMAT", autocompletion=one_of("raw", "jpeg", "png", "webp", "dct"))
    ] = "raw",
    quality: flags.Quality = 90,
    all_splits_random: Annotated[bool, _in_augmentation("--all-splits-random")] = False,
    max_rejects: flags.MaxRejects = None,
    workers: flags.Workers = None,
    engine: flags.EngineName = "local",
    ray_address: flags.RayAddress = None,
    overwrite: flags.Overwrite = False,
    fsync: flags.Fsync = False,
    allow_augmented: Annotated[bool, _in_augmentation("--allow-augmented")] = False,
    dry_run: flags.DryRun = False,
    as_json: flags.AsJson = False,
    log_json: flags.LogJson = False,
) -> None:
    """Precompute the expensive part of an augmentation, in one or more variants.

    If it is interrupted, run the same command again to resume. A complete cache is verified and stays unchanged.
    Raw images become a dataset first, by tpufeed shard.

    Examples:
      tpufeed cache warmup flowers flowers-224 --size 224 --variants 4
      tpufeed cache warmup flowers flowers-256 --op 'Resize(256)' --op 'CenterCrop(256)' --live 'RandomCrop(224)'
      tpufeed cache warmup gs://bucket/photos gs://bucket/photos-224 --encode jpeg --dry-run
    """
    find_own_modules()
    values: dict[str, Any] = locals() | {"engine": engine_of_flags(engine, workers, ray_address, beam)}
    from tpufeed.builds.run import preview
    from tpufeed.cache.build import warmup
    from tpufeed.cache.options import CacheOptions
    from tpufeed.cache.recipe import CacheRecipe
    from tpufeed.images.description import parse_op

    if select:
        values["src"] = flags.open_selected(src, None, select)
    for name in ("ops", "live"):
        values[name] = None if values[name] is None else [parse_op(text) for text in values[name]]
    if dry_run:
        recipe = CacheRecipe(values["src"], CacheOptions(**given(CacheOptions, values)), allow_augmented)
        foretold = preview(recipe, **given(preview, values))
        rows = [
            (name, f"{split.inputs:,}", str(foretold.variants), str(split.shards))
            for name, split in foretold.splits.items()
        ]

        def print_details() -> None:
            each = f"{foretold.probed_seconds * 1e3:,.1f} ms on one core each"
            echo(f"source: {values['src'].label if select else foretold.source}")
            for line in foretold.listed.iter_lines():
                echo(line)
            echo(f"tried: {format_count(foretold.probed, 'sample')}, {each}")
            echo(f"fingerprint: {foretold.fingerprint}")

        columns = ("split", "samples", "variants", "shards")
        print_preview(foretold, values["engine"], as_json, columns, rows, print_details)
        return
    run_build(warmup, given(warmup, values), as_json, log_json)
