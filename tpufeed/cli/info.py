"""`tpufeed info`."""

import itertools
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tpufeed.cli import flags
from tpufeed.cli.builds import print_splits, split_facts
from tpufeed.cli.console import echo, print_json, print_table, reports_errors
from tpufeed.errors import OptionError
from tpufeed.text import format_count, format_counts

if TYPE_CHECKING:
    from tpufeed.dataset.reader import Dataset

_CLASSES_SHOWN = 20
_SAME_IN_THE_MANIFEST = (
    *("features", "images", "odd", "upright", "rejects", "options"),
    *("input_digest", "run_id", "format_version", "tool_version"),
)
_OPTIONS_SAID_ELSEWHERE = ("command", "source", "asked", "ops", "variants", "source_digest")
_OPTIONS_OF_THE_CACHE = ("live", "encode", "quality", "seed")


@reports_errors
def info_command(
    url: flags.Url,
    version: flags.Version = None,
    select: flags.Select = None,
    versions: Annotated[
        bool, typer.Option("--versions", help="List the versions of a dataset that has grown.")
    ] = False,
    stats: Annotated[
        bool,
        typer.Option(
            "--stats", help="Read all images of a split, and give mean, deviation and percentiles by channel."
        ),
    ] = False,
    split: Annotated[str, typer.Option(metavar="NAME", help="The split of --stats.")] = "train",
    as_json: flags.AsJson = False,
) -> None:
    """Say what a dataset holds.

    Examples:
      tpufeed info flowers
      tpufeed info flowers --versions
      tpufeed info flowers --select fold=0/5 --json
    """
    if versions and select:
        raise OptionError("--versions lists the versions of a whole dataset: leave out --select")
    dataset = flags.open_selected(url, version, select)
    if versions:
        _print_versions(dataset, as_json)
        return
    if stats:
        _print_stats(dataset, split, as_json)
        return
    facts = facts_of(dataset)
    if as_json:
        print_json(facts)
        return
    print_splits(facts["url"], {name: dataset.split(name) for name in facts["splits"]})
    if facts["classes"]:
        _print_classes(facts)
    for line in iter_lines(facts):
        echo(line)


def _print_stats(dataset: "Dataset", split: str, as_json: bool) -> None:
    """Print the statistics of each channel, and the call that normalises by them."""
    from dataclasses import asdict

    from tpufeed.images.pixel_format import RGB8
    from tpufeed.measure.pixel_stats import PERCENTILES, measure_pixels

    found = measure_pixels(dataset, split)
    if as_json:
        print_json({"split": split, "pixels": str(dataset.manifest.pixels), "channels": list(map(asdict, found))})
        return
    rows = [
        (str(channel), *(f"{each:,.6g}" for each in (of.mean, of.deviation, *of.percentiles.values())))
        if of.percentiles
        else (str(channel), *["n/a"] * (2 + len(PERCENTILES)))
        for channel, of in enumerate(found)
    ]
    columns = ("channel", "mean", "deviation", *("least", *(f"{each} %" for each in PERCENTILES[1:-1]), "most"))
    print_table(f"{_printable(dataset.url)}, {split}: {dataset.manifest.pixels}", columns, rows)
    top = 255 if dataset.manifest.pixels.dtype == RGB8.dtype else 1
    mean, std = (
        [float(f"{each / top:.6g}") for each in of]
        for of in zip(*((c.mean, c.deviation or top) for c in found), strict=True)  # a constant channel becomes 0
    )
    echo(f"to normalise: to_device_float(images, mean={mean}, std={std})")
    if dropped := sum(of.not_finite for of in found):
        echo(f"left out: {dropped:,} values that are NaN or infinite")
    if found[0].nodata:
        echo(f"left out: {found[0].nodata:,} pixels without data, by the mask 'nodata'")
    elif lacking := dataset.manifest.odd.get("nodata"):
        images = format_count(lacking, "image")
        echo(f"counted: the nodata values of {images}. A build with --policy nodata=mask leaves them out")


def _print_versions(dataset: "Dataset", as_json: bool) -> None:
    """Print each version up to this one: what it added, and whether it can still be opened."""
    import msgspec

    from tpufeed.dataset.reader import find_versions

    there = find_versions(dataset.store, dataset)
    parts = [
        {"version": number, "kept": number in there, **msgspec.to_builtins(part)}
        for number, part in enumerate(dataset.manifest.history, 1)
    ]
    if as_json:
        print_json(parts)
        return
    splits = list(dataset.manifest.splits)
    rows = []
    for part in parts:
        added = [f"{part['records'].get(name, 0):,}" for name in splits]
        kept = "yes" if part["kept"] else "no"
        rows.append((str(part["version"]), part["kind"], *added, f"{part['skipped']:,}", kept, part["source"]))
    columns = ("version", "made by", *(f"{name} added" for name in splits), "skipped", "kept", "from")
    print_table(_printable(dataset.url), columns, rows, texts=(1, len(columns) - 1))
    for part in parts:
        if part["different"]:
            options = ", ".join(f"{name} {_value(value)}" for name, value in part["different"].items())
            echo(f"version {part['version']} was made with other options: {options}")
    for number, version in enumerate(dataset.manifest.history, 1):
        for line in version.listed.iter_lines():
            echo(f"version {number}, {line}")


def facts_of(dataset: "Dataset") -> dict[str, Any]:
    """Return what --json prints."""
    import msgspec

    from tpufeed.dataset.listed import MOST_CLASSES

    manifest = dataset.manifest
    splits = {
        name: split_facts(dataset.split(name)) | {"class_counts": dataset.class_counts(name)}
        for name in manifest.splits
    }
    cache: dict[str, Any] = msgspec.to_builtins(manifest.cache)
    listed = manifest.listed
    if listed.classes and dataset.number > 1:  # it counts the images of version 1
        each = zip(*(split.class_counts for split in manifest.splits.values()), strict=False)
        counts = {name: sum(of) for name, of in zip(manifest.class_names, each, strict=False) if any(of)}
        first = dict(itertools.islice(counts.items(), MOST_CLASSES))
        listed = msgspec.structs.replace(listed, classes=first, class_count=len(manifest.class_names))
    totals = [sum(counts) for counts in zip(*(split["class_counts"] for split in splits.values()), strict=False)]
    view = dataset.selection and {
        "selected": dataset.selection.text,
        "selected_from": manifest.records,
        "dataset_digest": manifest.content_digest,
    }
    return {
        "url": _printable(dataset.url),
        "data_url": None if manifest.data_url is None else _printable(manifest.data_url),
        "splits": splits,
        "classes": dict(zip(dataset.class_names, totals, strict=False)),
        "sizes": {**msgspec.to_builtins(manifest.sizes), "text": str(manifest.sizes)} if manifest.sizes else None,
        "listed": listed,
        "understood": list(listed.iter_lines(manifest.sizes, manifest.odd)),
        "pixels": str(manifest.pixels),
        "levels": list(manifest.levels or ()),
        "markers": msgspec.to_builtins(manifest.markers) if manifest.markers else None,
        "cache": None if manifest.cache is None else cache | {"source": manifest.options.get("source")},
        "content_digest": dataset.content_digest,
        "version": dataset.number,
        **(view or {}),
        **{name: getattr(manifest, name) for name in _SAME_IN_THE_MANIFEST},
    }


def _print_classes(facts: dict[str, Any]) -> None:
    """Print the records by class and split, for the first classes only."""
    names, splits = list(facts["classes"]), facts["splits"]
    rows = []
    for number, name in enumerate(names[:_CLASSES_SHOWN]):
        counts = [split["class_counts"][number] for split in splits.values()]
        rows.append((str(number), name, *(f"{count:,}" for count in (*counts, facts["classes"][name]))))
    print_table(format_count(len(names), "class", "classes"), ("id", "class", *splits, "all"), rows, texts=(1,))
    if len(names) > _CLASSES_SHOWN:
        echo(f"... and {len(names) - _CLASSES_SHOWN:,} more; --json lists all")


def _markers_line(rewritten: int, added: int, unmarked: dict[str, int], is_dct: bool) -> str:
    refused = format_counts(unmarked) if unmarked else ""
    if is_dct:
        stay = f"; JPEGs stay as they are: {refused}" if refused else ""
        return f"DCT images: {rewritten:,} JPEGs kept without loss, {added / 1e6:+z,.2f} MB{stay}"
    none = f"; none in {refused}" if refused else ""
    return f"restart markers: added to {rewritten:,} JPEGs, {added / 1e6:,.2f} MB{none}"


def iter_lines(facts: dict[str, Any]) -> Iterator[str]:
    """Yield the lines below the tables, one for each topic."""
    if "selected" in facts:
        kept = sum(split["images"] for split in facts["splits"].values())
        yield (
            f"selected: {_printable(facts['selected'])}: {kept:,} of {sum(facts['selected_from'].values()):,} samples; "
            "sizes, and all below but the content digest, are those of the whole dataset"
        )
    if facts["data_url"] is not None:
        yield f"shards are at: {facts['data_url']}"
    yield f"images: {format_counts(facts['images'])}"
    if facts["levels"]:
        least, most = facts["levels"]
        bits = f" ({int(most).bit_length()} bits)" if facts["pixels"].startswith("uint16") else ""
        yield f"pixels: {facts['pixels']}, {least:,.6g} to {most:,.6g}{bits}"
    yield from facts["understood"]
    for warning in facts["listed"].warnings:
        yield f"said at the build: {warning}"
    if facts["odd"]:
        yield f"odd cases: {format_counts(facts['odd'])}"
    if facts["markers"]:
        rewritten, added, unmarked = facts["markers"].values()
        yield _markers_line(rewritten, added, unmarked, facts["options"].get("encode") == "dct")
    if facts["upright"]:
        yield "orientation: loaders rotate images by EXIF"
    yield f"rejects: {format_counts(facts['rejects'])}"
    features = (
        f"{feature.name} {feature.type_text}" + (f" as {feature.key}" if feature.key != feature.name else "")
        for feature in facts["features"]
    )
    yield f"features: {', '.join(features)}"
    if facts["cache"] is not None:
        yield from _iter_cache_lines(facts["cache"], facts["options"].get("quality"))
    options = facts["options"]
    known = (*_OPTIONS_SAID_ELSEWHERE, *(_OPTIONS_OF_THE_CACHE if facts["cache"] is not None else ()))
    yield f"made by: tpufeed {facts['tool_version']} {options.get('command', '')}, from {options.get('source', '?')}"
    for name, value in options.items():
        if name not in known and value not in (None, [], ()):
            yield f"  {name}: {_value(value)}"
    if facts["version"] > 1:
        yield f"version: {facts['version']} (--versions lists what each added)"
    yield f"content digest: {facts['content_digest']}"
    if "selected" in facts:
        yield f"  of the whole dataset: {facts['dataset_digest']}"


def _iter_cache_lines(cache: Mapping[str, Any], quality: int | None) -> Iterator[str]:
    *_, height, width, _ = cache["shape"]
    ops = ", ".join(op["op"] for op in cache["ops"]) or "no ops"
    yield f"cache: {cache['encode']} {height}x{width}, {format_count(cache['variants'], 'variant')} of {ops}"
    yield f"  shape: {' x '.join(map(str, cache['shape']))} {cache['dtype']}"
    for title, key in (("op", "ops"), ("live", "live")):
        for op in cache[key]:
            parameters = ", ".join(f"{name}={_value(value)}" for name, value in op.items() if name != "op")
            yield f"  {title}: {op['op']}({parameters})"
    if not cache["live"]:
        yield "  live: none"
    yield f"  encode: {cache['encode']}{'' if quality is None else f', quality {quality}'}"
    yield f"  seed: {cache['seed']}"
    yield f"  source digest: {cache['source_digest']}"
    yield f"  fingerprint: {cache['fingerprint']}"


def _value(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, dict):
        return ", ".join(f"{name} {_value(item)}" for name, item in value.items())
    if isinstance(value, list | tuple):
        return f"({', '.join(map(_value, value))})"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _printable(text: str) -> str:
    """Escape what is not UTF-8: paths may have any bytes, but JSON must be UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode()
