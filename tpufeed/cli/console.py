"""What all commands share: errors as one line and an exit code, and progress on a terminal."""

import functools
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from tpufeed.cli import INTERRUPTED
from tpufeed.dataset.build import BuildProgress, BuildResult, ProgressListener
from tpufeed.errors import TpufeedError

P = ParamSpec("P")


def reports_errors(command: Callable[P, None]) -> Callable[P, None]:
    """Turn errors raised on purpose into a line on stderr and their exit code; others are bugs and keep their trace."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        # Other packages log the errors that we handle, with their traces.
        logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.CRITICAL)
        logging.getLogger("tpufeed").setLevel(logging.WARNING)
        try:
            command(*args, **kwargs)
        except TpufeedError as error:
            print(f"error: {error}", file=sys.stderr)
            raise typer.Exit(error.exit_code) from None
        except KeyboardInterrupt:
            print("interrupted; run the same command again to go on from here", file=sys.stderr)
            raise typer.Exit(INTERRUPTED) from None

    return run


@contextmanager
def build_progress(verb: str) -> Iterator[ProgressListener]:
    """A live line with counts, rates and the time that is left; silent where stderr is no terminal."""
    columns: list[ProgressColumn] = [
        TextColumn(verb),
        BarColumn(bar_width=None),
        TextColumn("{task.fields[counts]}"),  # no total is known before the first call
        TextColumn("{task.fields[rates]}"),
        TimeElapsedColumn(),
        TextColumn("ETA"),
        TimeRemainingColumn(),
    ]
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal, expand=True) as display:
        task = display.add_task(verb, total=None, counts="", rates="")

        def listen(progress: BuildProgress) -> None:
            seconds = max(display.tasks[task].elapsed or 0, 1e-3)
            images = (progress.images - progress.earlier_images) / seconds
            rejects = f" {progress.rejects:,} rejected" if progress.rejects else ""
            done = progress.images + progress.rejects
            display.update(
                task,
                total=progress.total_images,
                completed=done,
                counts=f"{done:,}/{progress.total_images:,} images",
                rates=f"{images:,.0f} img/s {progress.bytes / seconds / 1e6:,.0f} MB/s{rejects}",
            )

        yield listen


def print_build(result: BuildResult) -> None:
    """The summary of a finished build."""
    manifest = result.manifest
    for name, split in manifest.splits.items():
        shards = [shard for variant in split.variants for shard in variant.shards]
        size = sum(shard.bytes for shard in shards)
        variants = f" in each of {len(split.variants)} variants" if len(split.variants) > 1 else ""
        print(f"{name}: {split.records:,} images{variants}, {len(shards)} shards, {size / 1e6:,.1f} MB")
    if result.ignored_files:
        print(f"left out: {result.ignored_files:,} files whose names are no image's")
    if result.rejects:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in manifest.rejects.items())
        print(f"rejected: {result.rejects:,} images ({reasons}); {result.url}/rejects.jsonl names each")
    done = result.images - result.earlier_images
    if result.earlier_images:
        print(f"done by an earlier run: {result.earlier_images:,} images")
    rate = f" at {done / result.seconds:,.0f} images a second" if done and result.seconds else ""
    print(f"wrote {done:,} images in {result.seconds:.1f} s{rate}")
    print(f"dataset: {result.url}")
