"""`tpufeed show`."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from tpufeed.cli.console import reports_errors


@reports_errors
def show_command(
    url: Annotated[str, typer.Argument(help="A dataset or cache; a path or URL.")],
    out: Annotated[Path, typer.Option(help="Where the sheet goes: a file ending in .png, .jpg or .webp.")],
    count: Annotated[int, typer.Option(help="Images on the sheet; of a cache, variants count.")] = 64,
    split: Annotated[str | None, typer.Option(help="The split.", show_default="the first")] = None,
    class_name: Annotated[
        str | None, typer.Option("--class", help="Only samples of this class, by name or id.", show_default="all")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the choice of samples.")] = 0,
    size: Annotated[int, typer.Option(help="Side of the thumbnails in pixels.")] = 160,
) -> None:
    """Draw a labelled contact sheet of samples. Exit 1 where one of them is damaged; the sheet marks it.

    Example: tpufeed show gs://bucket/flowers --out sheet.png --class rose
    """
    from tpufeed.dataset.reader import open_dataset
    from tpufeed.diagnosis.contact_sheet import SheetOptions, check_sheet_path, make_contact_sheet, write_sheet

    check_sheet_path(out)
    options = SheetOptions(count=count, class_name=class_name, seed=seed, size_px=size)
    sheet = make_contact_sheet(open_dataset(url), split, options)
    write_sheet(sheet.image, out)
    print(f"{out}: {sheet.images} images, {sheet.image.width} x {sheet.image.height} pixels")
    for problem in sheet.problems:
        print(f"warning: {problem}", file=sys.stderr)
    if sheet.problems:
        raise typer.Exit(1)
