"""`tpufeed verify`."""

import time
from typing import Annotated

import typer

from tpufeed.cli.console import reports_errors


@reports_errors
def verify_command(url: Annotated[str, typer.Argument(help="A dataset or cache; a path or URL.")]) -> None:
    """Read every byte and compare it with the manifest: sizes, every CRC, index, counts. Exit 1 at the first damage.

    Example: tpufeed verify gs://bucket/flowers
    """
    from tpufeed.dataset.verify import verify

    start = time.monotonic()
    found = verify(url)
    seconds = max(time.monotonic() - start, 1e-9)
    rate = found.bytes / seconds / 1e9
    print(f"sound: {found.records:,} records in {found.shards} shards, {found.bytes / 1e6:,.1f} MB at {rate:.2f} GB/s")
