"""`tpufeed compact` and `tpufeed prune`."""

from typing import Annotated

import typer

from tpufeed.cli import flags
from tpufeed.cli.builds import given
from tpufeed.cli.console import echo, print_json, reports_build_errors, reports_errors
from tpufeed.errors import advised
from tpufeed.text import format_count


@reports_build_errors
def compact_command(
    url: flags.Url,
    workers: flags.Workers = None,
    overwrite: Annotated[bool, flags.in_run("--overwrite")] = False,
    fsync: flags.Fsync = False,
    as_json: flags.AsJson = False,
) -> None:
    """Join the small shards that appends have left into full shards, as the next version.

    Samples keep their numbers. The small shards stay for readers of earlier versions, until `tpufeed prune`.
    If it is interrupted, run the same command again to resume.

    Examples:
      tpufeed compact flowers
      tpufeed compact gs://bucket/flowers --workers 4 --json
    """
    values = locals()
    from tpufeed.builds.compact import compact

    result = compact(progress=True, **given(compact, values))
    if as_json:
        print_json(result)
        return
    if result.shards == result.shards_before:
        echo(f"{result.url}: nothing to join. It stays at version {result.version}")
        return
    copied = f"copied {result.copied_bytes / 1e6:,.1f} MB in {result.seconds:.1f} s"
    echo(
        f"version {result.version}: joined {format_count(result.shards_before, 'shard')} to {result.shards:,}; {copied}"
    )
    echo(f"to remove the small shards: {advised('prune', result.url)}")


@reports_errors
def prune_command(
    url: flags.Url,
    keep: Annotated[int, typer.Option(metavar="N")] = 1,
    dry_run: flags.DryRun = False,
    as_json: flags.AsJson = False,
) -> None:
    """Remove old versions, and the files that no kept version uses.

    Readers of a removed version fail. Images that were ever appended stay known: no image is added twice.

    Examples:
      tpufeed prune flowers --dry-run
      tpufeed prune gs://bucket/flowers --keep 3
    """
    from tpufeed.builds.prune import prune

    result = prune(url, keep=keep, dry_run=dry_run)
    if as_json:
        print_json(result)
        return
    kept = ", ".join(map(str, result.kept))
    if not result.removed:
        echo(f"{result.url}: nothing to remove. It has version {kept}")
        return
    removed = ", ".join(map(str, result.removed))
    would = "would remove" if dry_run else "removed"
    echo(f"{would} version {removed}: {format_count(result.files, 'file')}, {result.bytes / 1e6:,.1f} MB. Kept: {kept}")
    if dry_run:
        echo("nothing was changed")
