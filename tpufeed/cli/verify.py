"""`tpufeed verify`."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from tpufeed.cli import flags
from tpufeed.cli.console import echo, echo_error, print_json, reports_errors
from tpufeed.cli.flags import one_of
from tpufeed.text import format_count

if TYPE_CHECKING:
    from tpufeed.dataset.verify import Verified
    from tpufeed.errors import Damage, Unreadable

_LINES_SHOWN = 100


@reports_errors
def verify_command(
    url: flags.Url,
    decode: Annotated[str | None, typer.Option(metavar="SHARE", autocompletion=one_of("all", "5%"))] = None,
    version: flags.Version = None,
    as_json: flags.AsJson = False,
) -> None:
    """Read every byte and compare it with the manifest.

    Sizes, all CRCs, all features, the index and the counts are compared. All damage is listed with shard, record and
    byte, and all files that cannot be read. The exit code is 1 if there are any.

    Examples:
      tpufeed verify flowers
      tpufeed verify gs://bucket/flowers --decode 5%
      tpufeed verify flowers --decode all --json
    """
    from tpufeed.dataset.verify import verify
    from tpufeed.errors import DatasetDamagedError, DatasetUnreadableError

    start = time.monotonic()
    try:
        found = verify(url, decode, version=version, progress=True)
    except (DatasetDamagedError, DatasetUnreadableError) as error:
        damages, remedy = (error.damages, error.remedy) if isinstance(error, DatasetDamagedError) else ((), "")
        _print_problems(url, damages, error.unreadable, remedy, as_json)
        raise typer.Exit(error.exit_code) from None
    seconds = time.monotonic() - start
    if as_json:
        _print_json(url, found, (), ())
        return
    decoded = f", {format_count(found.decoded, 'image')} decoded" if found.decoded else ""
    size = f"{found.bytes / 1e6:,.1f} MB at {found.bytes / seconds / 1e9:.2f} GB/s"
    echo(f"sound: {format_count(found.records, 'record')} in {format_count(found.shards, 'shard')}, {size}{decoded}")


def _print_problems(
    url: str, damages: "Sequence[Damage]", unreadable: "Sequence[Unreadable]", remedy: str, as_json: bool
) -> None:
    """Print damages and unreadable files to stdout, and a line with their number to stderr."""
    if as_json:
        _print_json(url, None, damages, unreadable)
    else:
        for title, found in (("", damages), ("cannot be read:", unreadable)):
            if title and found:
                echo(title)
            for each in found[:_LINES_SHOWN]:
                echo(each)
            if len(found) > _LINES_SHOWN:
                echo(f"... and {len(found) - _LINES_SHOWN:,} more; --json lists all of them")

    unread = f"{format_count(len(unreadable), 'file')} cannot be read"
    if not damages:
        echo_error(
            f"error: {url}: {unread}. The other files are not damaged. Run it again when the store answers, or as a "
            "user who may read them"
        )
        return
    files = format_count(len({damage.shard for damage in damages}), "file")
    also = f"; {unread} besides" if unreadable else ""
    echo_error(f"error: {url} is damaged: {format_count(len(damages), 'damage')} in {files}{also}. {remedy}")


def _print_json(
    url: str, found: "Verified | None", damages: "Sequence[Damage]", unreadable: "Sequence[Unreadable]"
) -> None:
    import msgspec

    counts = dict.fromkeys(("shards", "records", "bytes", "decoded")) if found is None else msgspec.to_builtins(found)
    print_json(
        {
            **counts,
            "url": url.encode("utf-8", "backslashreplace").decode(),
            "sound": False if damages else None if unreadable else True,  # null: unknown
            "damages": damages,
            "unreadable": unreadable,
        }
    )
