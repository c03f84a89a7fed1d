"""`tpufeed verify`."""

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from tpufeed.cli.console import print_json, reports_errors

if TYPE_CHECKING:
    from tpufeed.dataset.verify import Verified, VerifyListener, VerifyProgress
    from tpufeed.errors import Damage

_LINES_SHOWN = 100


@reports_errors
def verify_command(
    url: Annotated[str, typer.Argument(help="A dataset or cache; a path or URL.")],
    decode: Annotated[
        str | None,
        typer.Option(help="all: decode every image; 5%: about one in twenty, always the same.", show_default="none"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with every damage.")] = False,
) -> None:
    """Read every byte and compare it with the manifest: sizes, every CRC, every feature, index, counts.

    Lists all damage with shard, record and byte; exit 1 where there is any.

    Example: tpufeed verify gs://bucket/flowers --decode 5%
    """
    from tpufeed.dataset.verify import verify
    from tpufeed.errors import DatasetDamagedError

    start = time.monotonic()
    try:
        with verify_progress() as listener:
            found = verify(url, decode, listener)
    except DatasetDamagedError as error:
        _print_damages(url, error.damages, as_json)
        raise typer.Exit(error.exit_code) from None
    seconds = max(time.monotonic() - start, 1e-9)
    if as_json:
        _print_json(url, found, ())
        return
    rate = found.bytes / seconds / 1e9
    decoded = f", {found.decoded:,} images decoded" if found.decoded else ""
    size = f"{found.bytes / 1e6:,.1f} MB at {rate:.2f} GB/s"
    print(f"sound: {found.records:,} records in {found.shards} shards, {size}{decoded}")


@contextmanager
def verify_progress() -> "Iterator[VerifyListener]":
    """A live line with rates and what is left; silent where stderr is no terminal."""
    columns: list[ProgressColumn] = [
        TextColumn("verifying"),
        BarColumn(bar_width=None),
        TextColumn("{task.fields[counts]}"),
        TimeElapsedColumn(),
        TextColumn("ETA"),
        TimeRemainingColumn(),
    ]
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal, expand=True) as display:
        task = display.add_task("verifying", total=None, counts="")

        def listen(progress: "VerifyProgress") -> None:
            seconds = max(display.tasks[task].elapsed or 0, 1e-3)
            damages = f" {progress.damages:,} damaged" if progress.damages else ""
            counts = f"{progress.records:,} records {progress.bytes / seconds / 1e6:,.0f} MB/s{damages}"
            display.update(task, total=progress.total_bytes, completed=progress.bytes, counts=counts)

        yield listen


def _print_damages(url: str, damages: "Sequence[Damage]", as_json: bool) -> None:
    """The damages as the command's result, and a line that says that there are any."""
    if as_json:
        _print_json(url, None, damages)
    else:
        for damage in damages[:_LINES_SHOWN]:
            print(damage)
        if len(damages) > _LINES_SHOWN:
            print(f"... and {len(damages) - _LINES_SHOWN:,} more; --json lists all of them")
    files = len({damage.shard for damage in damages})
    count = "1 damage" if len(damages) == 1 else f"{len(damages):,} damages"
    print(f"error: {url} is damaged: {count} in {files} file{'s' if files > 1 else ''}", file=sys.stderr)


def _print_json(url: str, found: "Verified | None", damages: "Sequence[Damage]") -> None:
    facts: dict[str, Any] = {
        "url": url.encode("utf-8", "backslashreplace").decode(),
        "sound": not damages,
        **dict.fromkeys(("shards", "records", "bytes", "decoded")),
        "damages": [msgspec.to_builtins(damage) for damage in damages],
    }
    if found is not None:
        facts |= {name: getattr(found, name) for name in ("shards", "records", "bytes", "decoded")}
    print_json(facts)
