"""Options that several commands share, with the same flag, value and help, and the completions for shells."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from tpufeed.dataset.reader import Dataset

# `typer.Option` for each panel of --help.
in_source, in_shards, in_images, in_run, in_output, in_data, in_device, in_measuring = (
    partial(typer.Option, rich_help_panel=panel)
    for panel in ("Source", "Shards", "Images", "Run", "Output", "Data", "Device", "Measuring")
)
# The modules that implement these names import numpy and more. They repeat the names, and a test compares them.
ENGINES = ("local", "ray", "beam")
LOADERS = ("numpy", "torch", "tf", "tf-direct", "xla", "jax", "naive")
REAL_DEVICES = ("xla-cpu", "xla-tpu", "jax-cpu", "jax-tpu")
POLICIES = {
    "exif": ("apply", "ignore"),
    "cmyk": ("rgb", "reject"),
    "alpha": ("white", "black", "reject"),
    "deep": ("scale", "10", "12", "14", "reject"),
    "greyscale": ("keep", "rgb", "reject"),
    "animated": ("first", "reject"),
    "bands": ("drop", "reject"),
    "extension": ("sniff", "reject"),
    "nan": ("reject", "zero", "keep"),
    "nodata": ("keep", "mask"),
    "damaged": ("mend", "reject"),
}


def one_of(*names: str) -> Callable[[str], list[str]]:
    """Return a function that completes a word to one of `names`."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in names if name.startswith(incomplete)]

    return complete


def policies(incomplete: str) -> list[str]:
    """Complete `--policy`."""
    return one_of(*(f"{name}={choice}" for name, choices in POLICIES.items() for choice in choices))(incomplete)


def ops(incomplete: str) -> list[str]:
    """Complete the name of an op."""
    from tpufeed import images

    return one_of(*(name for name in images.__all__ if name != "Custom"))(incomplete)


def tpus(incomplete: str) -> list[str]:
    """Complete `--tpu`."""
    from tpufeed.measure.tpu import TPUS

    return one_of(*TPUS)(incomplete)


def models(incomplete: str) -> list[str]:
    """Complete `--model`."""
    from tpufeed.measure.tpu import MODELS

    return one_of(*MODELS)(incomplete)


def devices(incomplete: str) -> list[str]:
    """Complete `--device`."""
    from tpufeed.measure.tpu import profiles

    return one_of(*(f"emulated:{name}" for name in profiles()), "emulated", *REAL_DEVICES, "none")(incomplete)


def open_selected(url: str, version: int | None, select: list[str] | None) -> "Dataset":
    """Open a dataset, or the view of it that `--select` asks for. Raises as `open_dataset` and `Dataset.select`."""
    from tpufeed.dataset.reader import open_dataset
    from tpufeed.dataset.selection import parse_selection

    dataset = open_dataset(url, version)
    return dataset.select(**parse_selection(select)) if select else dataset


Url = Annotated[str, typer.Argument(metavar="URL", help="A dataset or cache: a path or URL.")]
Src = Annotated[str, typer.Argument(metavar="SRC")]
AsJson = Annotated[bool, in_output("--json", help="Print the result as JSON on stdout.")]
LogJson = Annotated[bool, in_output("--log-json", help="Report progress, warnings and errors as JSON lines on stderr.")]
Report = Annotated[Path | None, in_output(metavar="FILE", help="Write an HTML page with plots, e.g. out.html.")]
Version = Annotated[
    int | None, typer.Option(metavar="N", help="Version of a dataset that has grown.", show_default="the newest")
]
Select = Annotated[
    list[str] | None,
    in_data(
        metavar="TEXT",
        autocompletion=one_of(
            "classes=", "fold=", "without_fold=", "group=", "stratify=yes", "samples=", "drop=", "split=", "ids=kept"
        ),
        help="Only these samples of a dataset: classes=cat,dog; fold=0/5, the first of five parts; without_fold=0/5; "
        "group=COLUMN and stratify=yes for these parts; samples=FILE or drop=FILE, with ids or file names; split=NAME, "
        "to select from this split only; ids=kept, to keep the ids of classes. Repeatable: samples must fit all.",
        show_default="all samples",
    ),
]
Naming = Annotated[str, in_shards(metavar="STYLE", autocompletion=one_of("tpufeed", "kaggle"))]
Overwrite = Annotated[bool, in_run("--overwrite")]
Fsync = Annotated[bool, in_run("--fsync")]
DryRun = Annotated[bool, in_run("--dry-run", help="Only say what would be done, or why it is impossible.")]
Workers = Annotated[int | None, in_run(metavar="N")]
EngineName = Annotated[
    str,
    in_run(
        "--engine",
        metavar="NAME",
        autocompletion=one_of(*ENGINES),
        help="What runs the tasks: local (processes on this host), ray or beam.",
    ),
]
RayAddress = Annotated[
    str | None,
    in_run(
        metavar="HOST:PORT",
        autocompletion=one_of("auto", "local"),
        help="The cluster for --engine ray. auto: the cluster that this host is in. local: only this host.",
        show_default="auto",
    ),
]
BeamArguments = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[-- BEAM...]", help="For --engine beam, after `--`: Beam's own options, e.g. --runner=DataflowRunner."
    ),
]
MaxRejects = Annotated[str | None, in_images(metavar="BUDGET")]
Quality = Annotated[int, in_images(metavar="N")]
SplitBy = Annotated[str | None, in_source(metavar="COLUMN", autocompletion=one_of("folder"))]
Image = Annotated[str | None, in_source(metavar="COLUMN")]
Label = Annotated[str | None, in_source(metavar="COLUMN", autocompletion=one_of("auto", "none", "parent"))]
Masks = Annotated[str | None, in_source(metavar="DIR")]
SplitName = Annotated[
    str | None, in_data(metavar="NAME", help="The split to read.", show_default="train, or the first")
]
LiveOps = Annotated[
    list[str] | None,
    in_data(
        "--op",
        metavar="OP",
        autocompletion=ops,
        help="An op that loaders apply live, written as in `tpufeed cache warmup`. Repeatable.",
        show_default="a cache's live ops, or RandomResizedCrop and HorizontalFlip",
    ),
]
DeviceOps = Annotated[
    list[str] | None,
    in_data(
        "--device-op",
        metavar="OP",
        autocompletion=ops,
        help="An op that loaders leave to the device, written like --op. Repeatable. An emulated device takes no time "
        "for it.",
        show_default="none",
    ),
]
Model = Annotated[
    str | None,
    in_device(metavar="NAME", autocompletion=models, help="The model that a TPU trains.", show_default="resnet50"),
]
