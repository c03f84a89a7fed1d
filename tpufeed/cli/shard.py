"""`tpufeed shard`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tpufeed.cli import flags
from tpufeed.cli.builds import engine_of_flags, given, parse_pairs, print_preview, run_build
from tpufeed.cli.console import echo, reports_build_errors
from tpufeed.cli.flags import one_of
from tpufeed.errors import OptionError
from tpufeed.text import format_count

if TYPE_CHECKING:
    from tpufeed.builds.recipe import Preview
    from tpufeed.engines.engine import Engine


@reports_build_errors
def shard_command(
    src: flags.Src,
    dst: Annotated[str, typer.Argument(metavar="DST")],
    beam: flags.BeamArguments = None,
    splits: Annotated[str | None, flags.in_source(metavar="NAME=SHARE,...")] = None,
    split_by: flags.SplitBy = None,
    split_with: Annotated[str | None, flags.in_source(metavar="COLUMN,...")] = None,
    image: flags.Image = None,
    label: flags.Label = None,
    label_separator: Annotated[str | None, flags.in_source(metavar="TEXT")] = None,
    label_type: Annotated[str, flags.in_source(metavar="TYPE", autocompletion=one_of("class", "number"))] = "class",
    class_level: Annotated[int, flags.in_source(metavar="N")] = 1,
    unlabelled: Annotated[str, flags.in_source(metavar="HOW", autocompletion=one_of("reject", "keep"))] = "reject",
    classes: Annotated[
        Path | None,
        flags.in_source(
            metavar="FILE",
            help="File with one class name per line; a class's id is its line number, from 0.",
            show_default="the class names found, sorted",
        ),
    ] = None,
    columns: Annotated[
        list[str] | None,
        flags.in_source(
            "--column",
            metavar="NAME:DTYPE[SHAPE]",
            help="Type and shape of a further column: embedding:float32[512], or tags:int64[] for any number. "
            "Repeatable.",
            show_default="from its values",
        ),
    ] = None,
    rename: Annotated[
        list[str] | None,
        flags.in_source(
            metavar="OLD=NEW",
            help="New name of a further column, e.g. bbox=boxes. Other options name it as the source does. Repeatable.",
        ),
    ] = None,
    shard_bytes: Annotated[str | None, flags.in_shards("--shard-size", metavar="SIZE")] = None,
    shards: Annotated[int | None, flags.in_shards(metavar="N")] = None,
    hosts: Annotated[int, flags.in_shards(metavar="N")] = 1,
    names: flags.Naming = "tpufeed",
    seed: Annotated[int, flags.in_shards(metavar="N")] = 0,
    check: Annotated[str, flags.in_images(metavar="HOW", autocompletion=one_of("full", "header"))] = "full",
    encode: Annotated[
        str, flags.in_images(metavar="FORMAT", autocompletion=one_of("keep", "exact", "jpeg", "png", "webp", "dct"))
    ] = "keep",
    pixels: Annotated[str, flags.in_images(metavar="FORMAT", autocompletion=one_of("rgb8", "keep"))] = "rgb8",
    frames: Annotated[int | None, flags.in_images(metavar="N")] = None,
    frame_stride: Annotated[int | None, flags.in_images(metavar="N")] = None,
    progressive: Annotated[str, flags.in_images(metavar="HOW", autocompletion=one_of("keep", "baseline"))] = "keep",
    quality: flags.Quality = 90,
    presize: Annotated[int | None, flags.in_images(metavar="PIXELS")] = None,
    presize_mode: Annotated[
        str, flags.in_images(metavar="SIDE", autocompletion=one_of("short", "long", "fit"))
    ] = "short",
    max_pixels: Annotated[int | None, flags.in_images(metavar="PIXELS")] = None,
    min_side: Annotated[int, flags.in_images(metavar="PIXELS")] = 1,
    policy: Annotated[
        list[str] | None,
        flags.in_images(
            metavar="CASE=CHOICE",
            autocompletion=flags.policies,
            help="What to do with odd images, e.g. alpha=black: "
            + ", ".join(f"{case}={'|'.join(choices)}" for case, choices in flags.POLICIES.items())
            + " (the first is the default). Repeatable.",
        ),
    ] = None,
    image_columns: Annotated[
        list[str] | None,
        flags.in_source(
            "--image-column",
            metavar="NAME=COLUMN:KIND",
            help="Further image of each sample, e.g. mask=mask_path:mask, by the column of a table, or the suffix of "
            "files in a tar (mask.png); the kind is image, mask or depth. Repeatable.",
        ),
    ] = None,
    chosen_bands: Annotated[str | None, flags.in_source("--bands", metavar="NAME,...")] = None,
    georeference: Annotated[bool, flags.in_source("--georeference")] = False,
    masks: flags.Masks = None,
    texts: Annotated[bool, flags.in_source("--texts")] = False,
    group_by: Annotated[str | None, flags.in_source(metavar="COLUMN")] = None,
    outlines: Annotated[
        str | None, flags.in_source(metavar="KIND", autocompletion=one_of("semantic", "instance"))
    ] = None,
    boxes: Annotated[str | None, flags.in_source(metavar="COLUMN")] = None,
    box_format: Annotated[
        str | None,
        flags.in_source(
            metavar="FORMAT",
            autocompletion=one_of(
                *(f"{name}{share}" for name in ("xyxy", "xywh", "cxcywh") for share in ("", ",relative")),
                "voc",
            ),
        ),
    ] = None,
    keypoints: Annotated[str | None, flags.in_source(metavar="COLUMN")] = None,
    flip_pairs: Annotated[str | None, flags.in_source(metavar="N:N,...")] = None,
    box_columns: Annotated[str | None, flags.in_source(metavar="COLUMN,...")] = None,
    boxes_outside: Annotated[
        str, flags.in_source(metavar="HOW", autocompletion=one_of("reject", "clip", "drop"))
    ] = "reject",
    max_rejects: flags.MaxRejects = None,
    workers: flags.Workers = None,
    engine: flags.EngineName = "local",
    ray_address: flags.RayAddress = None,
    append: Annotated[bool, flags.in_run("--append")] = False,
    allow_different: Annotated[bool, flags.in_run("--allow-different")] = False,
    overwrite: flags.Overwrite = False,
    fsync: flags.Fsync = False,
    dry_run: flags.DryRun = False,
    as_json: flags.AsJson = False,
    log_json: flags.LogJson = False,
) -> None:
    """Turn raw images into TFRecord shards with a manifest.

    If it is interrupted, run the same command again to resume.

    Examples:
      tpufeed shard photos flowers --splits train=0.9,val=0.1
      tpufeed shard flowers.csv from-table --image path --label species --dry-run
      tpufeed shard 'gs://bucket/raw/train-*.tar' gs://bucket/flowers --presize 256 --max-rejects 2%
    """
    values: dict[str, Any] = locals() | {
        "columns": parse_pairs(columns, "type of a column", "embedding:float32[512]"),
        "rename": parse_pairs(rename, "new name of a column", "old=new") or None,
        "image_columns": parse_pairs(image_columns, "image column", "mask=mask_path:mask") or None,
        "box_columns": None if box_columns is None else box_columns.split(","),
        "engine": engine_of_flags(engine, workers, ray_address, beam),
    }
    policies = parse_pairs(policy, "policy", "alpha=black")
    if unknown := sorted(policies.keys() - flags.POLICIES):
        raise OptionError(f"unknown policy {', '.join(unknown)}. Expected {', '.join(sorted(flags.POLICIES))}")
    from tpufeed.builds.run import preview
    from tpufeed.sharding.build import shard, shard_recipe
    from tpufeed.sources.options import ShardOptions

    options = ShardOptions.of_flat(values | policies)
    values |= {"boxes": options.boxes, "images": options.images, "bands": chosen_bands}
    if dry_run:
        recipe = shard_recipe(src, options, append, allow_different)
        _print_preview(preview(recipe, **given(preview, values)), values["engine"], as_json)
        return
    run_build(shard, given(shard, values), as_json, log_json)


@reports_build_errors
def append_command(  # each option is a flag
    src: flags.Src,
    dst: Annotated[str, typer.Argument(metavar="DST")],
    beam: flags.BeamArguments = None,
    split_by: flags.SplitBy = None,
    image: flags.Image = None,
    label: flags.Label = None,
    masks: flags.Masks = None,
    unset: Annotated[list[str] | None, flags.in_source(metavar="OPTION")] = None,
    max_rejects: flags.MaxRejects = None,
    workers: flags.Workers = None,
    engine: flags.EngineName = "local",
    ray_address: flags.RayAddress = None,
    overwrite: Annotated[bool, flags.in_run("--overwrite")] = False,
    fsync: flags.Fsync = False,
    dry_run: flags.DryRun = False,
    as_json: flags.AsJson = False,
    log_json: flags.LogJson = False,
) -> None:
    """Add new images to a dataset, as its next version.

    They are stored with the options of the dataset. Images that are already in it are skipped. No file of the dataset
    is rewritten, so readers of an older version continue.

    Examples:
      tpufeed append photos flowers
      tpufeed append gs://bucket/raw/new gs://bucket/flowers --dry-run
    """
    values: dict[str, Any] = locals() | {"engine": engine_of_flags(engine, workers, ray_address, beam)}
    from tpufeed.builds.run import preview
    from tpufeed.sharding.append import AppendRecipe, append

    if dry_run:
        own = {name: values[name] for name in ("split_by", "image", "label", "masks")}
        recipe = AppendRecipe(src, given=own, unset=unset or ())
        _print_preview(preview(recipe, **given(preview, values)), values["engine"], as_json)
        return
    run_build(append, given(append, values), as_json, log_json)


def _print_preview(preview: "Preview", engine: "Engine | None", as_json: bool) -> None:
    rows = []
    for name, split in preview.splits.items():
        each = f"{split.bytes / split.shards / 1e6:,.1f}" if split.shards else "-"
        rows.append((name, f"{split.inputs:,}", str(split.shards), f"{split.bytes / 1e6:,.1f}", each))

    def print_details() -> None:
        echo(f"source: {preview.source}, {preview.source_bytes / 1e6:,.1f} MB")
        for line in preview.listed.iter_lines(preview.sizes, preview.odd):
            echo(line)
        if preview.pixels:
            echo(f"pixels: {preview.pixels}")
        if preview.version is not None:
            new = sum(split.inputs for split in preview.splits.values())
            echo(f"version {preview.version}: {format_count(new, 'image')} to add")
        echo(f"tried: {format_count(preview.probed, 'image')}, of which {preview.probed_rejects} would be rejected")

    columns = ("split", "images", "shards", "about MB", "MB a shard")
    print_preview(preview, engine, as_json, columns, rows, print_details)
