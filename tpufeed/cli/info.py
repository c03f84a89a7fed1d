"""`tpufeed info`."""

from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tpufeed.cli.console import reports_errors
from tpufeed.dataset.reader import Dataset, open_dataset

_CLASSES_SHOWN = 20


@reports_errors
def info_command(
    url: Annotated[str, typer.Argument(help="A dataset or cache; a path or URL.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say what a dataset holds.

    Example: tpufeed info gs://bucket/flowers
    """
    dataset = open_dataset(url)
    facts = _facts(dataset)
    if as_json:
        print(msgspec.json.format(msgspec.json.encode(facts), indent=2).decode())
        return
    console = Console(highlight=False, soft_wrap=True)
    console.print(_split_table(facts))
    for name in ("classes", "images", "rejects"):
        found = facts[name]
        shown = ", ".join(f"{key} {value:,}" for key, value in list(found.items())[:_CLASSES_SHOWN])
        more = f" and {len(found) - _CLASSES_SHOWN} more" if len(found) > _CLASSES_SHOWN else ""
        console.print(f"{name}: {shown or 'none'}{more}", markup=False)
    if facts["cache"] is not None:
        cache = facts["cache"]
        ops = ", ".join(op["op"] for op in cache["ops"])
        height, width, _ = cache["shape"]
        console.print(f"cache: {cache['encode']} {height}x{width}, {cache['variants']} variants of {ops}", markup=False)
    console.print(f"made by: tpufeed {facts['tool_version']}, {facts['options']}", markup=False)
    console.print(f"content digest: {facts['content_digest']}", markup=False)


def _facts(dataset: Dataset) -> dict[str, Any]:
    manifest = dataset.manifest
    splits = {
        name: {
            "images": split.records,
            "variants": len(split.variants),
            "shards": sum(len(variant.shards) for variant in split.variants),
            "bytes": sum(shard.bytes for variant in split.variants for shard in variant.shards),
            "class_counts": split.class_counts,
        }
        for name, split in manifest.splits.items()
    }
    totals = [sum(counts) for counts in zip(*(split.class_counts for split in manifest.splits.values()), strict=False)]
    return {
        "url": dataset.url.encode("utf-8", "backslashreplace").decode(),
        "splits": splits,
        "classes": dict(zip(manifest.class_names, totals, strict=False)),
        "features": manifest.features,
        "images": manifest.images,
        "rejects": manifest.rejects,
        "cache": None if manifest.cache is None else msgspec.to_builtins(manifest.cache),
        "options": manifest.options,
        "tool_version": manifest.tool_version,
        "content_digest": dataset.content_digest,
    }


def _split_table(facts: dict[str, Any]) -> Table:
    table = Table(title=Text(facts["url"]), title_justify="left")
    table.add_column("split")
    for column in ("images", "variants", "shards", "MB", "MB a shard"):
        table.add_column(column, justify="right")
    for name, split in facts["splits"].items():
        size = split["bytes"] / 1e6
        each = f"{size / split['shards']:,.1f}" if split["shards"] else "-"
        row = (f"{split['images']:,}", str(split["variants"]), str(split["shards"]), f"{size:,.1f}", each)
        table.add_row(name, *row)
    return table
