"""`tpufeed adopt`."""

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tpufeed.cli import flags
from tpufeed.cli.builds import given, print_splits, split_facts
from tpufeed.cli.console import echo, print_json, reports_errors
from tpufeed.cli.flags import one_of
from tpufeed.text import format_count, format_counts

if TYPE_CHECKING:
    from tpufeed.adoption.adopt import AdoptResult

_KEY = "its key in the records"
_in_features = partial(typer.Option, rich_help_panel="Features")


def _key_option(what: str) -> Any:
    return _in_features(metavar="KEY", help=f"{what}.", show_default="by names and first records")


@reports_errors
def adopt_command(
    url: Annotated[str, typer.Argument(metavar="URL")],
    dst: Annotated[str | None, flags.in_run("--to", metavar="URL")] = None,
    only: Annotated[str | None, flags.in_source(metavar="NAME,...")] = None,
    image_key: Annotated[str | None, _key_option(f"Image: {_KEY}")] = None,
    label_key: Annotated[str | None, _key_option(f"Label, an int64: {_KEY}, or none")] = None,
    text_key: Annotated[str | None, _key_option(f"Name of the class: {_KEY}, or none")] = None,
    filename_key: Annotated[str | None, _key_option(f"Path, or what names a sample: {_KEY}, or none")] = None,
    classes: Annotated[
        str | None,
        flags.in_source(
            metavar="FILE",
            help="File with one class name per line. A class's id is its line number, from 0.",
            show_default="from the class names in the records",
        ),
    ] = None,
    exif: Annotated[str, _in_features(metavar="HOW", autocompletion=one_of("ignore", "apply"))] = "ignore",
    boxes_of: Annotated[
        str, _in_features(metavar="IMAGE", autocompletion=one_of("sizes", "stored", "upright"))
    ] = "sizes",
    as_json: flags.AsJson = False,
) -> None:
    """Make a dataset of TFRecords that another tool wrote, without rewriting them.

    Only the index and the manifest are new. Both CRCs of every record are verified. The names of folders or files
    give the splits.

    Examples:
      tpufeed adopt /kaggle/input/flowers/tfrecords-jpeg-224x224 --only train,val --to flowers
      tpufeed adopt gs://bucket/tfrecords --image-key image --label-key class --classes classes.txt
    """
    values = locals()
    from tpufeed.adoption.adopt import adopt

    result = adopt(progress=True, **given(adopt, values))
    print_json(_facts(result)) if as_json else _print_result(result)


def _facts(result: "AdoptResult") -> dict[str, Any]:
    """Return the JSON report."""
    manifest = result.manifest
    return {
        "url": result.url,
        "splits": {name: split_facts(split) for name, split in manifest.splits.items()},
        "classes": len(manifest.class_names),
        "keys": manifest.options["keys"],
        "stored": manifest.images,
        "odd": manifest.odd,
        "listed": result.listed,
        "seconds": result.seconds,
        "content_digest": manifest.content_digest,
    }


def _print_result(result: "AdoptResult") -> None:
    manifest = result.manifest
    if not result.seconds:
        echo(f"{result.url} is adopted already: nothing to do")
        return
    print_splits(result.url, manifest.splits)
    dtypes = {feature.key: f"{feature.key} ({feature.dtype})" for feature in manifest.features}
    for role, key in manifest.options["keys"].items():
        echo(f"{role}: {'none' if key is None else dtypes.get(key, key)}")
    for line in result.listed.iter_lines(manifest.sizes, manifest.odd):
        echo(line)
    echo(f"images: {format_counts(manifest.images)}")
    if manifest.odd:
        how = "loaders rotate them" if manifest.upright else "loaders leave them as stored"
        echo(f"with an EXIF orientation: {format_count(manifest.odd['exif'], 'image')}; {how}")
    size = sum(split.total_bytes for split in manifest.splits.values()) / 1e6
    echo(f"adopted {size:,.1f} MB in {result.seconds:.1f} s at {size / result.seconds:,.0f} MB/s")
    echo(f"dataset: {result.url}")
