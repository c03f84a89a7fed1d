"""`tpufeed card`."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from tpufeed.cli import flags
from tpufeed.cli.console import echo, print_json, reports_errors, warn
from tpufeed.cli.info import facts_of, iter_lines
from tpufeed.errors import mask_secrets


@reports_errors
def card_command(
    url: flags.Url,
    out: Annotated[
        Path, flags.in_output(metavar="FILE", help="File for the page. Its name ends in .md. The sheet lies beside it.")
    ] = Path("card.md"),
    version: flags.Version = None,
    as_json: flags.AsJson = False,
) -> None:
    """Write a data card: a page of Markdown on a dataset, with a contact sheet.

    The page shows what the dataset holds, where it comes from, how it was made and how to load it. It begins with the
    YAML that the Hugging Face hub reads. Damaged samples are marked on the sheet, and the exit code is 1.

    Examples:
      tpufeed card flowers
      tpufeed card gs://bucket/flowers --out flowers/README.md
    """
    from tpufeed.measure.contact_sheet import make_contact_sheet, write_sheet
    from tpufeed.measure.data_card import format_card
    from tpufeed.measure.files import check_output, write_file

    check_output(out, (".md",), "the page's name must end in .md")
    dataset = flags.open_selected(url, version, None)
    filled = [name for name, split in dataset.manifest.splits.items() if split.records]
    sheet = make_contact_sheet(dataset, "train" if "train" in filled else next(iter(filled), None), count=36)
    picture = out.with_suffix(".png")
    facts = facts_of(dataset)
    write_sheet(sheet.image, picture)
    write_file(out, format_card(dataset, facts, iter_lines(facts), picture.name).encode())
    if as_json:
        print_json({"file": str(out), "sheet": str(picture), "problems": sheet.problems})
    else:
        echo(f"{out}: the card, with {picture.name} beside it")
    for problem in sheet.problems:
        warn(problem)
    if sheet.problems:
        warn(f"the dataset is damaged. Find all of it: tpufeed verify {shlex.quote(mask_secrets(dataset.url))}")
        raise typer.Exit(1)
