"""`tpufeed adopt`."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from tpufeed.cli.console import reports_errors

if TYPE_CHECKING:
    from tpufeed.dataset.adopt import AdoptListener, AdoptProgress, AdoptResult

_KEY = "its key in the records"
_LOOKED_UP = "by names and first records"


@reports_errors
def adopt_command(
    url: Annotated[str, typer.Argument(help="Folder of TFRecord files that another tool wrote; a path or URL.")],
    to: Annotated[
        str | None, typer.Option(help="Where manifest and index go; the files stay.", show_default="beside them")
    ] = None,
    image: Annotated[str | None, typer.Option(help=f"Image: {_KEY}.", show_default=_LOOKED_UP)] = None,
    label: Annotated[
        str | None, typer.Option(help=f"Label, an int64: {_KEY}; or none.", show_default=_LOOKED_UP)
    ] = None,
    text: Annotated[
        str | None, typer.Option(help=f"Name of the class: {_KEY}; or none.", show_default=_LOOKED_UP)
    ] = None,
    filename: Annotated[
        str | None, typer.Option(help=f"Path, or what names a sample: {_KEY}; or none.", show_default=_LOOKED_UP)
    ] = None,
    splits: Annotated[str | None, typer.Option(help="Take only these, like train,val.", show_default="all")] = None,
    classes: Annotated[
        str | None, typer.Option(help="File with the name of a class a line.", show_default="what text tells")
    ] = None,
) -> None:
    """Make a dataset of TFRecords that another tool wrote, without rewriting them: only index and manifest are new.

    Both CRCs of every record are verified. Splits are told by the names of folders or files.

    Example: tpufeed adopt /kaggle/input/flowers/tfrecords-jpeg-224x224 --splits train,val --to flowers
    """
    from tpufeed.dataset.adopt import adopt

    with _progress() as listener:
        result = adopt(
            url,
            to,
            image=image,
            label=label,
            text=text,
            filename=filename,
            splits=splits,
            classes=classes,
            listener=listener,
        )
    _print_result(result)


@contextmanager
def _progress() -> "Iterator[AdoptListener]":
    console = Console(stderr=True)
    columns = (
        TextColumn("adopting"),
        BarColumn(bar_width=None),
        DownloadColumn(),
        TransferSpeedColumn(),
        TextColumn("{task.fields[images]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal, expand=True) as display:
        task = display.add_task("adopting", total=None, images="")

        def listen(progress: "AdoptProgress") -> None:
            images = f"{progress.images:,} images"
            display.update(task, total=progress.total_bytes, completed=progress.bytes, images=images)

        yield listen


def _print_result(result: "AdoptResult") -> None:
    manifest = result.manifest
    total = 0
    for name, split in manifest.splits.items():
        shards = split.variants[0].shards
        size = sum(shard.bytes for shard in shards)
        total += size
        classes = f", {sum(map(bool, split.class_counts))} of {len(manifest.class_names)} classes"
        print(
            f"{name}: {split.records:,} images, {len(shards)} shards, {size / 1e6:,.1f} MB"
            f"{classes if manifest.labelled else ', no labels'}"
        )
    for role, key in manifest.options["keys"].items():
        taken = next((feature for feature in manifest.features if feature.key == key), None)
        print(f"{role}: {'none' if key is None else key}{'' if taken is None else f' ({taken.dtype})'}")
    roles = set(manifest.options["keys"].values())
    others = [f"{feature.key} ({feature.dtype})" for feature in manifest.features if feature.key not in roles]
    if others:
        print(f"other features: {', '.join(others)}")
    if result.left_out:
        print(f"features left out: {', '.join(result.left_out)}")
    print(f"images: {', '.join(f'{name} {count:,}' for name, count in manifest.images.items())}")
    if result.ignored_files:
        print(f"left out: {result.ignored_files:,} files that are no TFRecords")
    rate = f" at {total / result.seconds / 1e6:,.0f} MB/s" if result.seconds else ""
    print(f"adopted {total / 1e6:,.1f} MB in {result.seconds:.1f} s{rate}")
    print(f"dataset: {result.url}")
