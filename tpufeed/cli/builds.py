"""Progress, previews and summaries of builds, for all commands that build."""

import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tpufeed.cli.console import echo, log_event, print_json, print_table, warn
from tpufeed.display.progress import ProgressLine
from tpufeed.errors import OptionError
from tpufeed.text import format_count, format_counts, format_range

if TYPE_CHECKING:  # a command only imports its code when it runs
    from tpufeed.builds.prices import BucketCost
    from tpufeed.builds.recipe import Preview
    from tpufeed.builds.run import BuildProgress, BuildResult
    from tpufeed.dataset.manifest import Split
    from tpufeed.engines.engine import Engine

_LOG_SECONDS = 1.0


def given(function: Callable[..., Any], flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return the flags that are parameters of `function`, except None: then the function's default counts."""
    return {name: flags[name] for name in inspect.signature(function).parameters if flags.get(name) is not None}


def parse_pairs(texts: Sequence[str] | None, what: str, example: str) -> dict[str, str]:
    """Parse texts like the example ("alpha=black", "tags:int64[]") to values by name. Raises OptionError."""
    pairs = dict[str, str]()
    for text in texts or []:
        name, mark, value = text.partition("=") if "=" in example else text.rpartition(":")
        if not mark or not name:
            raise OptionError(f"{text!r} is not a valid {what}. Write it like {example}")
        if name in pairs:
            raise OptionError(f"the {what} {name} is given twice")
        pairs[name] = value
    return pairs


def engine_of_flags(
    name: str, workers: int | None, ray_address: str | None, beam_arguments: Sequence[str] | None
) -> "Engine | None":
    """Return the requested engine, or None for this host. Raises as `make_engine` does."""
    from tpufeed.engines.choice import LOCAL, make_engine

    engine = make_engine(name, workers, ray_address, beam_arguments or ())
    return None if name == LOCAL else engine


def run_build(
    build: "Callable[..., BuildResult]", options: Mapping[str, Any], as_json: bool = False, log_json: bool = False
) -> None:
    """Run a build, show its progress, and print its summary. `log_json` writes progress as JSON lines to stderr."""
    import msgspec

    shown: dict[str, Any] = {"progress": True}
    if log_json:
        line, due = ProgressLine("", False), 0.0  # shows nothing, and estimates the time left

        def listen(progress: "BuildProgress") -> None:
            nonlocal due
            seconds = line.seconds
            line.update(*progress.figures(seconds))
            if time.monotonic() >= due:
                due = time.monotonic() + _LOG_SECONDS
                images = round((progress.images - progress.earlier_images) / seconds, 1)
                rates = {"images_per_second": images, "mb_per_second": round(progress.bytes / seconds / 1e6, 2)}
                facts = msgspec.to_builtins(progress) | rates | {"eta_seconds": line.left}
                log_event({"event": "progress", **facts})

        shown = {"progress": False, "listener": listen}
    result = build(**options, **shown)
    if log_json:
        log_event({"event": "done", **build_report(result)})
    else:
        for warning in result.warnings:
            warn(warning)
    if as_json:
        print_json(build_report(result))
    else:
        _print_build(result)


def build_report(result: "BuildResult") -> dict[str, Any]:
    """Return the JSON report of a finished build."""
    manifest = result.manifest
    done = result.images - result.earlier_images
    return {
        "url": result.url,
        "splits": {name: split_facts(split) for name, split in manifest.splits.items()},
        "images": result.images,
        "earlier_images": result.earlier_images,
        "bytes": result.bytes,
        "classes": len(manifest.class_names),
        "stored": manifest.images,
        "odd": manifest.odd,
        "rejects": result.rejected,
        "listed": result.listed,
        "warnings": result.warnings,
        "retries": result.retries,
        "duplicates": None if result.duplicates is None else asdict(result.duplicates),
        "seconds": result.seconds,
        "images_per_second": done / result.seconds if done and result.seconds else None,
        "content_digest": manifest.content_digest,
        **({} if result.added is None else {"version": manifest.number, "added": result.added}),
        **({} if result.added is None else {"skipped": result.skipped, "rejects_of_all_versions": manifest.rejects}),
    }


def split_facts(split: "Split") -> dict[str, int]:
    """Return the size of a split."""
    shards = [shard for variant in split.variants for shard in variant.shards]
    return {
        "images": split.records,
        "variants": len(split.variants),
        "shards": len(shards),
        "bytes": sum(shard.bytes for shard in shards),
    }


def print_splits(url: str, splits: "Mapping[str, Split]") -> None:
    """Print a table of the sizes of splits and their shards."""
    rows = []
    for name, split in splits.items():
        sizes = [shard.bytes / 1e6 for variant in split.variants for shard in variant.shards]
        each = format_range(min(sizes), max(sizes), 1) if sizes else "-"
        rows.append((name, f"{split.records:,}", str(len(split.variants)), str(len(sizes)), f"{sum(sizes):,.1f}", each))
    print_table(url, ("split", "images", "variants", "shards", "MB", "MB a shard"), rows)


def _print_build(result: "BuildResult") -> None:
    manifest = result.manifest
    if result.added == 0:
        echo(_nothing_new(result.skipped, result.url, manifest.number))
        return
    if result.images == result.earlier_images and not result.seconds:
        echo(f"{result.url} is complete already: nothing to do")
        return
    print_splits(result.url, manifest.splits)
    for what, counts in (("stored", manifest.images), ("odd images", manifest.odd)):
        if counts:
            echo(f"{what}: {format_counts(counts)}")
    of_all = manifest.sizes if result.added is None else None
    for line in result.listed.iter_lines(of_all, manifest.odd):
        echo(line)
    if result.rejects:
        rejected = f"rejected: {format_count(result.rejects, 'image')} ({format_counts(result.rejected)})"
        folder = "" if result.added is None else f"{manifest.history[-1].folder}/"
        echo(f"{rejected}; {result.url}/{folder}rejects.jsonl lists them")
        if manifest.rejects != result.rejected:
            echo(f"rejected by all versions together: {format_count(sum(manifest.rejects.values()), 'image')}")
    if result.duplicates is not None:
        twice = format_count(result.duplicates.images, "image")
        echo(f"duplicates: {twice} more than once; {result.duplicates.report} lists them")
    if result.earlier_images:
        earlier = format_count(result.earlier_images, "image")
        echo(f"done by an earlier run: {earlier}; to see if the source has changed since then, run this again")
    done = result.images - result.earlier_images
    rate = f" at {done / result.seconds:,.0f} images a second" if done and result.seconds else ""
    again = f", {format_count(result.retries, 'request')} repeated" if result.retries else ""
    echo(f"wrote {format_count(done, 'image')} in {result.seconds:.1f} s{rate}{again}")
    if result.added is not None:
        there = f"; {format_count(result.skipped, 'image')} skipped: already there" if result.skipped else ""
        echo(f"version {manifest.number}: {format_count(result.added, 'image')} added{there}")
    echo(f"dataset: {result.url}")


def print_preview(
    preview: "Preview",
    engine: "Engine | None",
    as_json: bool,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    print_details: Callable[[], None],
) -> None:
    """Print what a build would make: a table, details, disk space, time and warnings."""
    if as_json:
        print_json(preview)
        return
    version, skipped = preview.version, preview.skipped
    if preview.complete:
        if version is None:
            echo(f"{preview.destination} is complete already: nothing to do")
        else:
            echo(_nothing_new(skipped, preview.destination, version))
        return
    print_table(preview.destination, columns, rows)
    print_details()
    if skipped:
        echo(f"skipped, because they are in the dataset already: {format_count(skipped, 'image')}")
    free = "unknown" if preview.free_bytes is None else f"{preview.free_bytes / 1e6:,.1f} MB"
    echo(f"disk: {preview.bytes / 1e6:,.1f} MB needed, {free} free")
    if preview.cost is not None:
        echo(f"requests: {_format_cost(preview.cost)}")
    echo(f"time: about {preview.seconds:,.0f} s")
    if engine is not None:
        echo(engine.describe())
    echo("nothing was changed")
    for warning in preview.warnings:
        warn(warning)


def _format_cost(cost: "BucketCost") -> str:
    from tpufeed.builds.prices import PRICES_OF

    requests = f"about {cost.puts:,} puts and {cost.gets:,} gets, ${cost.dollars:,.2f}"
    more = ", ".join(f"${dollars:,.2f} more {place}" for place, dollars in cost.dollars_elsewhere.items())
    stored = f"${cost.dollars_a_month:,.2f} a month to store" if cost.dollars_a_month else ""
    return "; ".join(filter(None, (requests, more, stored, f"prices of Google in {PRICES_OF}")))


def _nothing_new(skipped: int, url: str, version: int) -> str:
    return f"nothing new: all {format_count(skipped, 'image')} are already in {url}, which stays at version {version}"
