"""`tpufeed shard`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tpufeed.cli.console import (
    BuildDisplay,
    parse_policies,
    print_build,
    print_json,
    print_table,
    reports_build_errors,
    warn,
)
from tpufeed.cli.engines import BeamArguments, EngineName, RayAddress, describe, make_engine

if TYPE_CHECKING:
    from tpufeed.engines.engine import Engine
    from tpufeed.sharding.build import Preview
    from tpufeed.sharding.options import ShardKeywords


@reports_build_errors
def shard_command(
    src: Annotated[
        str,
        typer.Argument(
            help="Folder of images, in class folders, split folders or none; a table of paths (.csv, .tsv, .jsonl, "
            ".parquet); WebDataset tars ('train-*.tar'). A path or URL."
        ),
    ],
    dst: Annotated[str, typer.Argument(help="Where the dataset goes; a path or URL.")],
    beam: BeamArguments = None,
    shard_size: Annotated[
        str | None, typer.Option(help="Aim for shards of this size, like 128MB.", show_default="128MB")
    ] = None,
    shards: Annotated[int | None, typer.Option(help="Or for so many in the largest split.")] = None,
    hosts: Annotated[int, typer.Option(help="Make the number of shards a multiple of this.")] = 1,
    split: Annotated[
        str | None,
        typer.Option(
            help="Shares, like train=0.9,val=0.1, dealt by a stable hash of the path.",
            show_default="folders called train, val, ...; else all is train",
        ),
    ] = None,
    split_by: Annotated[
        str | None, typer.Option(help="'folder', or the column of a table that says the split.")
    ] = None,
    image: Annotated[
        str | None, typer.Option(help="A table's column of paths, or the extension of a tar's images.")
    ] = None,
    label: Annotated[
        str, typer.Option(help="auto; none; or the column of a table, or part of a tar's samples, that says the label.")
    ] = "auto",
    classes: Annotated[Path | None, typer.Option(help="File with a class's name a line: the line is its id.")] = None,
    seed: Annotated[int, typer.Option(help="Of the global order in which images go into shards.")] = 0,
    check: Annotated[
        str, typer.Option(help="full: decode every image strictly; header: trust what follows a sound header.")
    ] = "full",
    encode: Annotated[
        str, typer.Option(help="keep: the file's own bytes where they need no change; or all as jpeg, png, webp.")
    ] = "keep",
    quality: Annotated[int, typer.Option(help="1 to 100, of JPEG and WebP that are encoded anew.")] = 90,
    presize: Annotated[int | None, typer.Option(help="Shrink larger images to this many pixels.")] = None,
    presize_mode: Annotated[
        str, typer.Option(help="Which side that is: short; long; fit: short, and the middle square is cut out.")
    ] = "short",
    max_pixels: Annotated[int | None, typer.Option(help="Reject larger images by their header.")] = None,
    min_side: Annotated[int | None, typer.Option(help="Reject images with a shorter side.")] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            help="What becomes of odd images, like alpha=black: exif=apply|ignore, cmyk=rgb|reject, "
            "alpha=white|black|reject, deep=scale|reject, greyscale=keep|rgb|reject, animated=first|reject, "
            "extension=sniff|reject (the first is what is done by default). Can be given several times."
        ),
    ] = None,
    max_rejects: Annotated[
        str | None,
        typer.Option(help="Fail where more images cannot be taken: 2%, or 20.", show_default="1%, 10 of however few"),
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Tasks at a time.", show_default="all cores")] = None,
    engine: EngineName = "local",
    ray_address: RayAddress = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Remove what stands at DST first.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    log_json: Annotated[bool, typer.Option("--log-json", help="Report progress as JSON lines on stderr.")] = False,
) -> None:
    """Turn raw images into TFRecord shards with a manifest.

    Interrupted, the same command goes on where it stopped.

    Example: tpufeed shard photos/ gs://bucket/flowers --split train=0.9,val=0.1 --presize 256
    """
    from tpufeed.sharding.build import preview_shard, shard

    chosen: dict[str, Any] = {
        "shard_bytes": shard_size,
        "shards": shards,
        "hosts": hosts,
        "split": split,
        "split_by": split_by,
        "image": image,
        "label": label,
        "classes": classes,
        "seed": seed,
        "check": check,
        "encode": encode,
        "quality": quality,
        "presize": presize,
        "presize_mode": presize_mode,
        "max_pixels": max_pixels,
        "min_side": min_side,
        "policy": parse_policies(policy),
    }
    options: ShardKeywords = {name: value for name, value in chosen.items() if value is not None}  # type: ignore[assignment]
    chosen_engine = make_engine(engine, workers, ray_address, beam)
    if dry_run:
        preview = preview_shard(src, dst, workers=workers, **options)
        print_json(preview) if as_json else _print_preview(preview, chosen_engine)
        return
    with BuildDisplay("sharding", log_json) as display:
        result = shard(
            src,
            dst,
            max_rejects=max_rejects,
            overwrite=overwrite,
            workers=workers,
            engine=chosen_engine,
            listener=display.listen,
            **options,
        )
        display.finish(result)
    print_build(result, as_json)


def _print_preview(preview: "Preview", engine: "Engine | None") -> None:
    rows = [
        (name, f"{split.inputs:,}", str(split.shards), f"{split.bytes / 1e6:,.1f}", _each(split.bytes, split.shards))
        for name, split in preview.splits.items()
    ]
    print_table(preview.destination, ("split", "images", "shards", "MB, about", "MB a shard"), rows)
    print(f"source: {preview.source}, {preview.source_bytes / 1e6:,.1f} MB, {preview.classes:,} classes")
    if preview.ignored_files:
        print(f"left out: {preview.ignored_files:,} files that are no images by their names")
    if preview.listed_twice:
        print(f"listed more than once: {preview.listed_twice:,} rows")
    print(f"tried: {preview.probed} images, of which {preview.probed_rejects} would be rejected")
    free = "not known" if preview.free_bytes is None else f"{preview.free_bytes / 1e6:,.1f} MB"
    print(f"disk: {preview.bytes / 1e6:,.1f} MB needed, {free} free")
    print(f"time: about {preview.seconds:,.0f} s")
    for line in describe(engine):
        print(line)
    print("nothing was changed")
    for warning in preview.warnings:
        warn(warning)


def _each(size: int, shards: int) -> str:
    return f"{size / shards / 1e6:,.1f}" if shards else "-"
