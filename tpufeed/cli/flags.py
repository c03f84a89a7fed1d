"""Options that several commands have, each with the same flag, value and words, and what shells complete in them."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

SOURCE, SHARDS, IMAGES, RUN, OUTPUT = "Source", "Shards", "Images", "Run", "Output"
FEEDING, DEVICE, MEASURING = "Data", "Device", "Measuring"
# The same names stand where they are obeyed, in modules that import numpy and more. A test compares them.
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
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.", rich_help_panel=OUTPUT)]
LogJson = Annotated[
    bool,
    typer.Option(
        "--log-json", help="Report progress, warnings and errors as JSON lines on stderr.", rich_help_panel=OUTPUT
    ),
]
Report = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write a page with plots, as out.html.", rich_help_panel=OUTPUT)
]
Version = Annotated[
    int | None, typer.Option(metavar="N", help="Of a dataset that has grown.", show_default="the newest")
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Remove what stands at DST first.", rich_help_panel=RUN)]
Fsync = Annotated[
    bool,
    typer.Option(
        "--fsync",
        help="Bring local shards to the disk before the manifest: a power cut after the build loses nothing.",
        rich_help_panel=RUN,
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Only say what would be done, or why it cannot be.", rich_help_panel=RUN)
]
Workers = Annotated[
    int | None, typer.Option(metavar="N", help="Tasks at a time.", show_default="all cores", rich_help_panel=RUN)
]
MaxRejects = Annotated[
    str | None,
    typer.Option(
        metavar="BUDGET",
        help="Fail where more images cannot be taken: 2%, or 20.",
        show_default="1%, 10 of however few",
        rich_help_panel=IMAGES,
    ),
]
MaxPixels = Annotated[
    int | None, typer.Option(metavar="PIXELS", help="Reject larger images by their header.", rich_help_panel=IMAGES)
]
MinSide = Annotated[
    int | None, typer.Option(metavar="PIXELS", help="Reject images with a shorter side.", rich_help_panel=IMAGES)
]
Policy = Annotated[
    list[str] | None,
    typer.Option(
        metavar="CASE=CHOICE",
        autocompletion=policies,
        help="What becomes of odd images, like alpha=black: "
        + ", ".join(f"{case}={'|'.join(choices)}" for case, choices in POLICIES.items())
        + " (the first is the default). Repeatable.",
        rich_help_panel=IMAGES,
    ),
]
Quality = Annotated[
    int, typer.Option(metavar="N", help="1 to 100, of JPEG and WebP that are encoded anew.", rich_help_panel=IMAGES)
]
ShardSize = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE", help="Aim for shards of this size, like 64MB.", show_default="128MB", rich_help_panel=SHARDS
    ),
]
Shares = Annotated[
    str | None,
    typer.Option(
        metavar="NAME=SHARE,...",
        help="Of the splits, like train=0.9,val=0.1, dealt by a stable hash of the path.",
        show_default="folders called train, val, ...; else all is train",
        rich_help_panel=SOURCE,
    ),
]
SplitBy = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN",
        autocompletion=one_of("folder"),
        help="'folder', or the column of a table that says the split.",
        rich_help_panel=SOURCE,
    ),
]
Image = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN",
        help="A table's column of paths, the extension of a tar's images, or the folder of COCO's images.",
        show_default="by its name",
        rich_help_panel=SOURCE,
    ),
]
Label = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN",
        autocompletion=one_of("auto", "none"),
        help="auto; none; or the column of a table, or part of a tar's samples, that says the label.",
        show_default="auto",
        rich_help_panel=SOURCE,
    ),
]
Columns = Annotated[
    list[str] | None,
    typer.Option(
        "--column",
        metavar="NAME:DTYPE[SHAPE]",
        help="Type and shape of a further column: embedding:float32[512], tags:int64[] for any number. Repeatable.",
        show_default="as its values are",
        rich_help_panel=SOURCE,
    ),
]
Classes = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="File with a class's name a line: the line is its id.",
        show_default="the names found, sorted",
        rich_help_panel=SOURCE,
    ),
]
ImageColumns = Annotated[
    list[str] | None,
    typer.Option(
        "--image-column",
        metavar="NAME=COLUMN:KIND",
        help="Further image of each sample, like mask=mask_path:mask: the column of a table, or the suffix of a tar's "
        "files (mask.png); kind image, mask or depth. Repeatable.",
        rich_help_panel=SOURCE,
    ),
]
Duplicates = Annotated[
    str | None,
    typer.Option(
        metavar="HOW",
        autocompletion=one_of("keep", "report", "drop"),
        help="Of images of the same bytes: report: count and name them; drop: keep one; keep: say nothing.",
        show_default="report",
        rich_help_panel=SOURCE,
    ),
]
Masks = Annotated[
    str | None,
    typer.Option(
        metavar="DIR",
        help="Folder of masks, parallel to a folder of images: the same paths, any suffix.",
        rich_help_panel=SOURCE,
    ),
]
Boxes = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN", help="Column with the list of a sample's boxes, each of 4 numbers.", rich_help_panel=SOURCE
    ),
]
BoxFormat = Annotated[
    str | None,
    typer.Option(
        metavar="FORMAT",
        autocompletion=one_of(
            *(f"{name}{share}" for name in ("xyxy", "xywh", "cxcywh") for share in ("", ",relative"))
        ),
        help="Numbers of a box: xyxy, xywh or cxcywh; with ',relative' as shares of width and height.",
        show_default="xyxy",
        rich_help_panel=SOURCE,
    ),
]
Keypoints = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN",
        help="Column with a sample's keypoints (x, y, and maybe visibility), or with those of each box.",
        rich_help_panel=SOURCE,
    ),
]
FlipPairs = Annotated[
    str | None,
    typer.Option(
        metavar="N:N,...",
        help="Keypoints that are the left and right of the same, like 1:2,3:4 (from 0): mirroring swaps them; or none.",
        show_default="as COCO's names say",
        rich_help_panel=SOURCE,
    ),
]
BoxColumns = Annotated[
    str | None,
    typer.Option(metavar="COLUMN,...", help="Columns with a value for each box.", rich_help_panel=SOURCE),
]
SplitName = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="The split to read.", show_default="train, or else the first", rich_help_panel=FEEDING
    ),
]
LiveOp = Annotated[
    list[str] | None,
    typer.Option(
        metavar="OP",
        autocompletion=ops,
        help="What loaders apply live, as in `tpufeed cache warmup`. Repeatable.",
        show_default="a cache's final ops, else RandomResizedCrop and HorizontalFlip",
        rich_help_panel=FEEDING,
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Threads that decode, in each process.",
        show_default="as loaders choose",
        rich_help_panel=FEEDING,
    ),
]
Processes = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Worker processes that decode; 0 for none.",
        show_default="as loaders choose",
        rich_help_panel=FEEDING,
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        autocompletion=models,
        help="The model that a TPU trains.",
        show_default="resnet50",
        rich_help_panel=DEVICE,
    ),
]
