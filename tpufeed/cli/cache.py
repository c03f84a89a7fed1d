"""`tpufeed cache warmup`, also `python -m tpufeed.cache warmup`."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tpufeed.cli.console import BuildDisplay, parse_policies, print_build, print_json, print_table, reports_build_errors
from tpufeed.cli.engines import BeamArguments, EngineName, RayAddress, describe, make_engine

if TYPE_CHECKING:
    from tpufeed.cache.build import CachePreview
    from tpufeed.cache.plan import CacheKeywords
    from tpufeed.engines.engine import Engine


@reports_build_errors
def warmup_command(
    src: Annotated[str, typer.Argument(help="A dataset, or raw images as `tpufeed shard` takes them; a path or URL.")],
    dst: Annotated[str, typer.Argument(help="Where the cache goes; a path or URL.")],
    beam: BeamArguments = None,
    size: Annotated[
        int | None, typer.Option(help="Side of the images in pixels, where no --op is given.", show_default="224")
    ] = None,
    op: Annotated[
        list[str] | None,
        typer.Option(
            help="What is applied, in order, like 'RandomResizedCrop(size=224, scale=(0.3, 1.0))', HorizontalFlip, or "
            "a function of yours: my.augment:heavy@2 is version 2 of `heavy` in my/augment.py, here or wherever Python "
            "finds modules. Several times.",
            show_default="RandomResizedCrop and HorizontalFlip",
        ),
    ] = None,
    final: Annotated[
        list[str] | None,
        typer.Option(
            help="Cheap ops that loaders apply live, anew in every epoch, like 'RandomCrop(224)'; no functions of "
            "yours. Several times."
        ),
    ] = None,
    variants: Annotated[int, typer.Option(help="Augmented versions of each sample; epoch e reads e mod K.")] = 1,
    encode: Annotated[
        str, typer.Option(help="raw: uint8 pixels, fastest; jpeg, webp: a tenth of the bytes; png: half of them.")
    ] = "raw",
    quality: Annotated[int, typer.Option(help="1 to 100, of JPEG and WebP.")] = 90,
    seed: Annotated[int, typer.Option(help="Of the random numbers.")] = 0,
    shard_size: Annotated[
        str | None, typer.Option(help="Aim for shards of this size.", show_default="128MB, less for small caches")
    ] = None,
    split: Annotated[str | None, typer.Option(help="Of raw images: shares, like train=0.9,val=0.1.")] = None,
    split_by: Annotated[str | None, typer.Option(help="Of raw images: 'folder', or a table's column.")] = None,
    image: Annotated[str | None, typer.Option(help="Of raw images: a table's column of paths.")] = None,
    label: Annotated[str | None, typer.Option(help="Of raw images: auto, none, or a table's column.")] = None,
    classes: Annotated[Path | None, typer.Option(help="Of raw images: file with a class's name a line.")] = None,
    max_pixels: Annotated[int | None, typer.Option(help="Of raw images: reject larger ones.")] = None,
    min_side: Annotated[int | None, typer.Option(help="Of raw images: reject those with a shorter side.")] = None,
    policy: Annotated[
        list[str] | None, typer.Option(help="Of raw images: what becomes of odd ones, as in `tpufeed shard`.")
    ] = None,
    max_rejects: Annotated[
        str | None,
        typer.Option(help="Fail where more samples cannot be taken: 2%, or 20.", show_default="1%, 10 of however few"),
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Tasks at a time.", show_default="all cores")] = None,
    engine: EngineName = "local",
    ray_address: RayAddress = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace another cache that stands at DST.")] = False,
    new_dir: Annotated[
        bool, typer.Option("--new-dir", help="Put this cache beside another one that stands at DST.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    log_json: Annotated[bool, typer.Option("--log-json", help="Report progress as JSON lines on stderr.")] = False,
) -> None:
    """Precompute the expensive part of an augmentation, in one or more variants.

    Interrupted, the same command goes on where it stopped; a cache that is complete is verified and left as it is.

    Example: tpufeed cache warmup gs://bucket/flowers gs://bucket/flowers-224 --size 224 --variants 4
    """
    if str(Path.cwd()) not in sys.path:  # as `python -m` has it; last, so that a file here hides no module
        sys.path.append(str(Path.cwd()))
    from tpufeed.cache.build import preview_warmup, warmup
    from tpufeed.images.parsing import parse_op

    chosen: dict[str, Any] = {
        "size": size,
        "ops": None if op is None else [parse_op(text) for text in op],
        "final": None if final is None else [parse_op(text) for text in final],
        "variants": variants,
        "encode": encode,
        "quality": quality,
        "seed": seed,
        "shard_bytes": shard_size,
        "split": split,
        "split_by": split_by,
        "image": image,
        "label": label,
        "classes": classes,
        "max_pixels": max_pixels,
        "min_side": min_side,
        "policy": parse_policies(policy) or None,
    }
    options: CacheKeywords = {name: value for name, value in chosen.items() if value is not None}  # type: ignore[assignment]
    chosen_engine = make_engine(engine, workers, ray_address, beam)
    if dry_run:
        preview = preview_warmup(src, dst, workers=workers, **options)
        print_json(preview) if as_json else _print_preview(preview, chosen_engine)
        return
    with BuildDisplay("warming", log_json) as display:
        result = warmup(
            src,
            dst,
            max_rejects=max_rejects,
            overwrite=overwrite,
            new_dir=new_dir,
            workers=workers,
            engine=chosen_engine,
            listener=display.listen,
            **options,
        )
        display.finish(result)
    print_build(result, as_json)


def _print_preview(preview: "CachePreview", engine: "Engine | None") -> None:
    rows = [
        (name, f"{samples:,}", str(preview.variants), str(preview.shards[name]))
        for name, samples in preview.samples.items()
    ]
    print_table(preview.destination, ("split", "samples", "variants", "shards"), rows)
    print(f"source: {preview.source}")
    print(f"tried: {preview.probed} samples, {preview.seconds_a_sample * 1e3:,.1f} ms of one core each")
    free = "not known" if preview.free_bytes is None else f"{preview.free_bytes / 1e6:,.1f} MB"
    print(f"disk: {preview.bytes / 1e6:,.1f} MB needed, {free} free")
    print(f"time: about {preview.seconds:,.0f} s")
    print(f"fingerprint: {preview.fingerprint}")
    for line in describe(engine):
        print(line)
    print("nothing was changed")
