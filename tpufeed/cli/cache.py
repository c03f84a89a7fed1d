"""`tpufeed cache warmup`, also `python -m tpufeed.cache warmup`."""

from typing import Annotated

import typer

from tpufeed.cli.console import build_progress, print_build, reports_errors


@reports_errors
def warmup_command(
    src: Annotated[str, typer.Argument(help="A dataset; a path or URL.")],
    dst: Annotated[str, typer.Argument(help="Where the cache goes; a path or URL.")],
    size: Annotated[int, typer.Option(help="Side of the images in pixels.")] = 224,
    variants: Annotated[int, typer.Option(help="Augmented versions of each sample; epoch e reads e mod K.")] = 1,
    encode: Annotated[str, typer.Option(help="raw: uint8 pixels, fastest; jpeg: a tenth of the bytes.")] = "raw",
    seed: Annotated[int, typer.Option(help="Of the random crops and flips.")] = 0,
    shard_size: Annotated[str, typer.Option(help="Aim for shards of this size, like 128MB.")] = "128MB",
    workers: Annotated[int | None, typer.Option(help="Processes.", show_default="all cores")] = None,
) -> None:
    """Precompute random-resized crops and flips of a dataset, in one or more variants.

    Interrupted, the same command goes on where it stopped; a cache that is complete is left as it is.

    Example: tpufeed cache warmup gs://bucket/flowers gs://bucket/flowers-224 --size 224 --variants 4
    """
    from tpufeed.cache.build import warmup

    with build_progress("warming") as listener:
        result = warmup(
            src,
            dst,
            size=size,
            variants=variants,
            encode=encode,  # type: ignore[arg-type]  # CacheOptions refuses other words
            seed=seed,
            shard_bytes=shard_size,
            workers=workers,
            listener=listener,
        )
    if result.images == result.earlier_images:
        print(f"{result.url} is complete already: nothing to do")
    else:
        print_build(result)
