"""Options that several commands have, each with the same flag, value and words, and what shells complete in them."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

# The panels of --help: an option in each of them.
in_source, in_shards, in_images, in_run, in_output, in_data, in_device, in_measuring = (
    partial(typer.Option, rich_help_panel=panel)
    for panel in ("Source", "Shards", "Images", "Run", "Output", "Data", "Device", "Measuring")
)
# The modules that obey these names import numpy and more: they have the names as well, and a test compares them.
ENGINES = ("local", "ray", "beam")
LOADERS = ("numpy", "torch", "tf", "tf-direct", "xla", "jax", "naive")
REAL_DEVICES = ("xla-cpu", "xla-tpu", "jax-cpu", "jax-tpu")
POLICIES = {
    "exif": ("apply", "ignore"),
    "cmyk": ("rgb", "reject"),
    "alpha": ("white", "black", "reject"),
    "deep": ("scale", "reject"),
    "greyscale": ("keep", "rgb", "reject"),
    "animated": ("first", "reject"),
    "bands": ("drop", "reject"),
    "extension": ("sniff", "reject"),
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


Url = Annotated[str, typer.Argument(metavar="URL", help="A dataset or cache: a path or URL.")]
Src = Annotated[
    str,
    typer.Argument(
        metavar="SRC",
        help="Folder of images, in class folders, split folders or none; a table of paths (.csv, .tsv, .jsonl, "
        ".parquet); WebDataset tars ('train-*.tar'); COCO's .json of boxes; Parquet files with the images inside, "
        "as on the Hugging Face hub, or a folder of datasets' save_to_disk. A path or URL.",
    ),
]
AsJson = Annotated[bool, in_output("--json", help="Print the result as JSON on stdout.")]
LogJson = Annotated[bool, in_output("--log-json", help="Report progress, warnings and errors as JSON lines on stderr.")]
Report = Annotated[Path | None, in_output(metavar="FILE", help="Write a page with plots, as out.html.")]
Version = Annotated[
    int | None, typer.Option(metavar="N", help="Of a dataset that has grown.", show_default="the newest")
]
Overwrite = Annotated[bool, in_run("--overwrite", help="Remove what stands at DST first.")]
Fsync = Annotated[
    bool,
    in_run(
        "--fsync", help="Bring local shards to the disk before the manifest: a power cut after the build loses nothing."
    ),
]
DryRun = Annotated[bool, in_run("--dry-run", help="Only say what would be done, or why it cannot be.")]
Workers = Annotated[int | None, in_run(metavar="N", help="Tasks at a time.", show_default="all cores")]
EngineName = Annotated[
    str,
    in_run(
        "--engine",
        metavar="NAME",
        autocompletion=one_of(*ENGINES),
        help="What runs the work: local, which is processes of this host; ray; beam.",
    ),
]
RayAddress = Annotated[
    str | None,
    in_run(
        metavar="HOST:PORT",
        autocompletion=one_of("auto", "local"),
        help="With --engine ray, where the cluster is; auto: the one that this host is in; local: this host alone.",
        show_default="auto",
    ),
]
BeamArguments = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[-- BEAM...]", help="With --engine beam, after `--`: Beam's own options, like --runner=DataflowRunner."
    ),
]
MaxRejects = Annotated[
    str | None,
    in_images(
        metavar="BUDGET",
        help="Fail where more images cannot be taken: 2%, or 20.",
        show_default="1%, 10 of however few",
    ),
]
MaxPixels = Annotated[int | None, in_images(metavar="PIXELS", help="Reject larger images by their header.")]
MinSide = Annotated[int | None, in_images(metavar="PIXELS", help="Reject images with a shorter side.")]
Policy = Annotated[
    list[str] | None,
    in_images(
        metavar="CASE=CHOICE",
        autocompletion=policies,
        help="What becomes of odd images, like alpha=black: "
        + ", ".join(f"{case}={'|'.join(choices)}" for case, choices in POLICIES.items())
        + " (the first is the default). Repeatable.",
    ),
]
Quality = Annotated[int, in_images(metavar="N", help="1 to 100, of JPEG and WebP that are encoded anew.")]
ShardSize = Annotated[
    str | None,
    in_shards("--shard-size", metavar="SIZE", help="Aim for shards of this size, like 64MB.", show_default="128MB"),
]
Splits = Annotated[
    str | None,
    in_source(
        metavar="NAME=SHARE,...",
        help="The share of each split, like train=0.9,val=0.1, dealt by a stable hash of the path.",
        show_default="folders called train, val, ...; else all is train",
    ),
]
SplitBy = Annotated[
    str | None,
    in_source(
        metavar="COLUMN",
        autocompletion=one_of("folder"),
        help="'folder', or the column of a table that says the split.",
    ),
]
Image = Annotated[
    str | None,
    in_source(
        metavar="COLUMN",
        help="A table's column of paths, the extension of a tar's images, or the folder of COCO's images.",
        show_default="by its name",
    ),
]
Label = Annotated[
    str | None,
    in_source(
        metavar="COLUMN",
        autocompletion=one_of("auto", "none"),
        help="auto; none; or the column of a table, or part of a tar's samples, that says the label.",
        show_default="auto",
    ),
]
Columns = Annotated[
    list[str] | None,
    in_source(
        "--column",
        metavar="NAME:DTYPE[SHAPE]",
        help="Type and shape of a further column: embedding:float32[512], tags:int64[] for any number. Repeatable.",
        show_default="as its values are",
    ),
]
Classes = Annotated[
    Path | None,
    in_source(
        metavar="FILE",
        help="File with a class's name a line: the line is its id.",
        show_default="the names found, sorted",
    ),
]
ImageColumns = Annotated[
    list[str] | None,
    in_source(
        "--image-column",
        metavar="NAME=COLUMN:KIND",
        help="Further image of each sample, like mask=mask_path:mask: the column of a table, or the suffix of a tar's "
        "files (mask.png); kind image, mask or depth. Repeatable.",
    ),
]
Duplicates = Annotated[
    str | None,
    in_source(
        metavar="HOW",
        autocompletion=one_of("keep", "report", "drop"),
        help="Of images of the same bytes: report: count and name them; drop: keep one; keep: say nothing.",
        show_default="report",
    ),
]
Masks = Annotated[
    str | None,
    in_source(metavar="DIR", help="Folder of masks, parallel to a folder of images: the same paths, any suffix."),
]
Boxes = Annotated[
    str | None, in_source(metavar="COLUMN", help="Column with the list of a sample's boxes, each of 4 numbers.")
]
BoxFormat = Annotated[
    str | None,
    in_source(
        metavar="FORMAT",
        autocompletion=one_of(
            *(f"{name}{share}" for name in ("xyxy", "xywh", "cxcywh") for share in ("", ",relative"))
        ),
        help="Numbers of a box: xyxy, xywh or cxcywh; with ',relative' as shares of width and height.",
        show_default="xyxy",
    ),
]
Keypoints = Annotated[
    str | None,
    in_source(
        metavar="COLUMN",
        help="Column with a sample's keypoints (x, y, and maybe visibility), or with those of each box.",
    ),
]
FlipPairs = Annotated[
    str | None,
    in_source(
        metavar="N:N,...",
        help="Keypoints that are the left and right of the same, like 1:2,3:4 (from 0): mirroring swaps them; or none.",
        show_default="as COCO's names say",
    ),
]
BoxColumns = Annotated[str | None, in_source(metavar="COLUMN,...", help="Columns with a value for each box.")]
SplitName = Annotated[
    str | None, in_data(metavar="NAME", help="The split to read.", show_default="train, or else the first")
]
LiveOps = Annotated[
    list[str] | None,
    in_data(
        "--op",
        metavar="OP",
        autocompletion=ops,
        help="What loaders apply live, as in `tpufeed cache warmup`. Repeatable.",
        show_default="a cache's live ops, else RandomResizedCrop and HorizontalFlip",
    ),
]
Threads = Annotated[
    int | None, in_data(metavar="N", help="Threads that decode, in each process.", show_default="as loaders choose")
]
Processes = Annotated[
    int | None, in_data(metavar="N", help="Worker processes that decode; 0 for none.", show_default="as loaders choose")
]
Model = Annotated[
    str | None,
    in_device(metavar="NAME", autocompletion=models, help="The model that a TPU trains.", show_default="resnet50"),
]
