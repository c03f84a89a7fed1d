"""`tpufeed shard`."""

from typing import Annotated

import typer

from tpufeed.cli.console import build_progress, print_build, reports_errors


@reports_errors
def shard_command(
    src: Annotated[str, typer.Argument(help="Folder of class folders, or of unlabelled images; a path or URL.")],
    dst: Annotated[str, typer.Argument(help="Where the dataset goes; a path or URL.")],
    shard_size: Annotated[str, typer.Option(help="Aim for shards of this size, like 64MB or 128MiB.")] = "64MB",
    split: Annotated[str, typer.Option(help="Shares of splits, dealt by a stable hash of the path.")] = "train",
    presize: Annotated[
        int | None, typer.Option(help="Shrink images whose shorter side is longer than this many pixels to it.")
    ] = None,
    check: Annotated[
        str, typer.Option(help="full: decode every image strictly; header: trust what follows a sound header.")
    ] = "full",
    seed: Annotated[int, typer.Option(help="Of the global order in which images go into shards.")] = 0,
    workers: Annotated[int | None, typer.Option(help="Processes.", show_default="all cores")] = None,
) -> None:
    """Turn a folder of raw images into TFRecord shards with a manifest.

    Interrupted, the same command goes on where it stopped.

    Example: tpufeed shard photos/ gs://bucket/flowers --split train=0.9,val=0.1 --presize 256
    """
    from tpufeed.sharding.build import shard

    with build_progress("sharding") as listener:
        result = shard(
            src,
            dst,
            shard_bytes=shard_size,
            split=split,
            presize=presize,
            check=check,  # type: ignore[arg-type]  # ImagePolicy refuses other words
            seed=seed,
            workers=workers,
            listener=listener,
        )
    print_build(result)
