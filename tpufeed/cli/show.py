"""`tpufeed show`."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from tpufeed.cli import flags
from tpufeed.cli.console import echo, print_json, reports_errors, warn
from tpufeed.text import format_count

_sheet = partial(typer.Option, rich_help_panel="Sheet")


@reports_errors
def show_command(
    url: flags.Url,
    out: Annotated[
        Path,
        flags.in_output(metavar="FILE", help="File for the sheet. Its name ends in .png, .jpg or .webp. Required."),
    ],
    split: flags.SplitName = None,
    select: flags.Select = None,
    count: Annotated[int, _sheet(metavar="N", help="Images on the sheet. Each variant of a cache counts.")] = 64,
    seed: Annotated[int, _sheet(metavar="N", help="Seed for the choice of samples.")] = 0,
    size: Annotated[int, _sheet(metavar="PIXELS", help="Side of the thumbnails.")] = 160,
    version: flags.Version = None,
    as_json: flags.AsJson = False,
) -> None:
    """Draw a labelled contact sheet of samples.

    Damaged samples are marked on the sheet, and the exit code is 1.

    Examples:
      tpufeed show flowers --out sheet.png
      tpufeed show gs://bucket/flowers --split val --select classes=rose --out roses.webp
      tpufeed show flowers --select fold=0/5 --out fold.png
    """
    from tpufeed.measure.contact_sheet import check_sheet_path, make_contact_sheet, write_sheet

    check_sheet_path(out)
    dataset = flags.open_selected(url, version, select)
    sheet = make_contact_sheet(dataset, split, count=count, seed=seed, size_px=size)
    write_sheet(sheet.image, out)
    width, height = sheet.image.size
    if as_json:
        facts = {"file": str(out), "images": len(sheet.corners), "width": width, "height": height}
        print_json(facts | {"problems": sheet.problems})
    else:
        echo(f"{out}: {format_count(len(sheet.corners), 'image')}, {width} x {height} pixels")
    for problem in sheet.problems:
        warn(problem)
    if sheet.problems:
        raise typer.Exit(1)
