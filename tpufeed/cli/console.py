"""What all commands share: errors as one line and an exit code, progress, tables and JSON."""

import functools
import logging
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, Self

import msgspec
import typer
from rich.console import Console

from tpufeed.cli import INTERRUPTED, TERMINATED, Stopped
from tpufeed.errors import OptionError, TpufeedError

if TYPE_CHECKING:  # a command imports what it runs when it runs it
    from rich.progress import ProgressColumn

    from tpufeed.dataset.build import BuildProgress, BuildResult

P = ParamSpec("P")

_LOG_SECONDS = 1.0


def reports_errors(command: Callable[P, None]) -> Callable[P, None]:
    """Turn errors raised on purpose into a line on stderr and their exit code; others are bugs and keep their trace."""
    return _reporting(command, "interrupted")


def reports_build_errors(command: Callable[P, None]) -> Callable[P, None]:
    """`reports_errors` for a command that goes on where it was interrupted."""
    return _reporting(command, "interrupted; run the same command again to go on from here")


def _reporting(command: Callable[P, None], interrupted: str) -> Callable[P, None]:
    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        # Other packages log the errors that we handle, with their traces.
        as_lines = bool(kwargs.get("log_json"))
        logging.basicConfig(
            format="%(levelname)s: %(message)s",
            level=logging.CRITICAL,
            handlers=[_EventHandler()] if as_lines else None,
        )
        logging.getLogger("tpufeed").setLevel(logging.WARNING)
        try:
            command(*args, **kwargs)
        except TpufeedError as error:
            if as_lines:
                _log({"event": "error", "type": type(error).__name__, "message": str(error)})
            else:
                print(f"error: {error}", file=sys.stderr)
            raise typer.Exit(error.exit_code) from None
        except (KeyboardInterrupt, Stopped) as stop:
            said = "interrupted" if kwargs.get("dry_run") else interrupted
            if as_lines:
                _log({"event": "interrupted", "message": said})
            else:
                print(said, file=sys.stderr)
            raise typer.Exit(TERMINATED if isinstance(stop, Stopped) else INTERRUPTED) from None

    return run


class _EventHandler(logging.Handler):
    """What is logged, as JSON lines on stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        _log({"event": record.levelname.lower(), "message": record.getMessage()})


class BuildDisplay:
    """Progress of a build: a live line on a terminal, JSON lines on stderr where asked for, else nothing."""

    def __init__(self, verb: str, log_json: bool = False) -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

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
        self._display = Progress(*columns, console=console, disable=not console.is_terminal or log_json, expand=True)
        self._task = self._display.add_task(verb, total=None, counts="", rates="")
        self._log_json = log_json
        self._start, self._due = time.monotonic(), 0.0

    def __enter__(self) -> Self:
        self._display.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._display.stop()

    def listen(self, progress: "BuildProgress") -> None:
        """Show how far the build is."""
        now = time.monotonic()
        seconds = max(now - self._start, 1e-3)
        images, size = (progress.images - progress.earlier_images) / seconds, progress.bytes / seconds / 1e6
        done = progress.images + progress.rejects
        if self._log_json and now >= self._due:
            self._due = now + _LOG_SECONDS
            left = (progress.total_images - done) / images if images > 0 else None
            rates = {"images_per_second": round(images, 1), "mb_per_second": round(size, 2), "eta_seconds": left}
            _log({"event": "progress", **msgspec.to_builtins(progress), **rates})
        self._display.update(
            self._task,
            total=progress.total_images,
            completed=done,
            counts=f"{done:,}/{progress.total_images:,} images",
            rates=f"{images:,.0f} img/s {size:,.0f} MB/s"
            + (f" {progress.rejects:,} rejected" if progress.rejects else ""),
        )

    def finish(self, result: "BuildResult") -> None:
        """Say how the build ended, and what is to be warned of."""
        if self._log_json:
            _log({"event": "done", **build_report(result)})
        else:
            for warning in result.warnings:
                warn(warning)


def parse_policies(texts: Sequence[str] | None) -> dict[str, str]:
    """Choices by name of texts like "alpha=black". Raises OptionError."""
    chosen = {}
    for text in texts or []:
        name, equals, choice = text.partition("=")
        if not equals:
            raise OptionError(f"{text!r} is no policy; write it like alpha=black")
        chosen[name] = choice
    return chosen


def warn(message: str) -> None:
    """A line on stderr that changes no exit code."""
    print(f"warning: {message}", file=sys.stderr)


def print_json(facts: Any) -> None:
    """A JSON document on stdout."""
    print(msgspec.json.format(msgspec.json.encode(facts), indent=2).decode())


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table on stdout; its first column is text, the others are figures."""
    from rich.box import SIMPLE
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(title), title_justify="left", box=SIMPLE)
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left", no_wrap=True)
    for row in rows:
        table.add_row(*map(Text, row))
    Console(highlight=False, soft_wrap=True).print(table)


def build_report(result: "BuildResult") -> dict[str, Any]:
    """What `--json` says of a finished build."""
    manifest = result.manifest
    done = result.images - result.earlier_images
    return {
        "url": result.url,
        "splits": {
            name: {
                "images": split.records,
                "variants": len(split.variants),
                "shards": sum(len(variant.shards) for variant in split.variants),
                "bytes": sum(shard.bytes for variant in split.variants for shard in variant.shards),
            }
            for name, split in manifest.splits.items()
        },
        "images": result.images,
        "earlier_images": result.earlier_images,
        "bytes": result.bytes,
        "classes": len(manifest.class_names),
        "stored": manifest.images,
        "odd": manifest.odd,
        "rejects": manifest.rejects,
        "ignored_files": result.ignored_files,
        "listed_twice": result.listed_twice,
        "warnings": result.warnings,
        "retries": result.retries,
        "seconds": result.seconds,
        "images_per_second": done / result.seconds if done and result.seconds else None,
        "content_digest": manifest.content_digest,
    }


def print_build(result: "BuildResult", as_json: bool) -> None:
    """The summary of a finished build."""
    if as_json:
        print_json(build_report(result))
        return
    manifest = result.manifest
    if result.images == result.earlier_images and not result.seconds:
        print(f"{result.url} is complete already: nothing to do")
        return
    rows = []
    for name, split in manifest.splits.items():
        sizes = [shard.bytes / 1e6 for variant in split.variants for shard in variant.shards]
        each = f"{min(sizes):,.1f} to {max(sizes):,.1f}" if sizes else "-"
        rows.append((name, f"{split.records:,}", str(len(split.variants)), str(len(sizes)), f"{sum(sizes):,.1f}", each))
    print_table(result.url, ("split", "images", "variants", "shards", "MB", "MB a shard"), rows)
    for what, counts in (("stored", manifest.images), ("odd images", manifest.odd)):
        if counts:
            print(f"{what}: {_say(counts)}")
    if result.ignored_files:
        print(f"left out: {result.ignored_files:,} files that are no images by their names")
    if result.listed_twice:
        print(f"listed more than once: {result.listed_twice:,} rows")
    if result.rejects:
        print(f"rejected: {result.rejects:,} images ({_say(manifest.rejects)}); {result.url}/rejects.jsonl names each")
    done = result.images - result.earlier_images
    if result.earlier_images:
        print(f"done by an earlier run: {result.earlier_images:,} images")
    rate = f" at {done / result.seconds:,.0f} images a second" if done and result.seconds else ""
    again = f", {result.retries:,} requests made again" if result.retries else ""
    print(f"wrote {done:,} images in {result.seconds:.1f} s{rate}{again}")
    print(f"dataset: {result.url}")


def _say(counts: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in counts.items())


def _log(event: dict[str, Any]) -> None:
    print(msgspec.json.encode(event).decode(), file=sys.stderr, flush=True)
