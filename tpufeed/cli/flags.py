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
MAX_PIXELS = 178_956_970
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
Src = Annotated[
    str,
    typer.Argument(
        metavar="SRC",
        help="Folder of images, in class folders, split folders or none; a table of paths (.csv, .tsv, .jsonl, "
        ".parquet); WebDataset tars ('train-*.tar'); COCO's .json of boxes, or 'train=a.json,val=b.json'; YOLO's "
        "data.yaml; Pascal VOC's .xml ('Annotations/*.xml'); Parquet with images inside, as on the Hugging Face hub; "
        "a folder of datasets' save_to_disk. A path or URL.",
    ),
]
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
        autocompletion=one_of("classes=", "fold=", "without_fold=", "samples=", "drop=", "split=", "ids=kept"),
        help="Only these samples of a dataset: classes=cat,dog; fold=0/5, the first of five parts; without_fold=0/5; "
        "samples=FILE or drop=FILE, with ids or file names; split=NAME, to select from this split only; ids=kept, to "
        "keep the ids of classes. Repeatable: samples must fit all.",
        show_default="all samples",
    ),
]
Naming = Annotated[
    str,
    in_shards(
        metavar="STYLE",
        autocompletion=one_of("tpufeed", "kaggle"),
        help="tpufeed; or kaggle: shards and keys as the readers of its TPU guides expect (train00-512.tfrec, image, "
        "class, one_hot_class).",
    ),
]
Overwrite = Annotated[bool, in_run("--overwrite", help="Remove what is at DST first.")]
Fsync = Annotated[
    bool,
    in_run(
        "--fsync", help="Flush local shards to disk before the manifest: a power cut after the build loses nothing."
    ),
]
DryRun = Annotated[bool, in_run("--dry-run", help="Only say what would be done, or why it is impossible.")]
Workers = Annotated[int | None, in_run(metavar="N", help="Number of parallel tasks.", show_default="all cores")]
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
        help="The cluster for --engine ray; auto: the cluster that this host is in; local: only this host.",
        show_default="auto",
    ),
]
BeamArguments = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[-- BEAM...]", help="For --engine beam, after `--`: Beam's own options, e.g. --runner=DataflowRunner."
    ),
]
MaxRejects = Annotated[
    str | None,
    in_images(
        metavar="BUDGET",
        help="Fail if more images than this are rejected: 2%, or 20.",
        show_default="1%, but at least 10",
    ),
]
MaxPixels = Annotated[
    int | None,
    in_images(
        metavar="PIXELS", help="Reject images with more pixels, by their header.", show_default=f"{MAX_PIXELS:,}"
    ),
]
MinSide = Annotated[
    int | None, in_images(metavar="PIXELS", help="Reject images with a shorter side.", show_default="1")
]
Policy = Annotated[
    list[str] | None,
    in_images(
        metavar="CASE=CHOICE",
        autocompletion=policies,
        help="What to do with odd images, e.g. alpha=black: "
        + ", ".join(f"{case}={'|'.join(choices)}" for case, choices in POLICIES.items())
        + " (the first is the default). Repeatable.",
    ),
]
Quality = Annotated[int, in_images(metavar="N", help="Quality of encoded JPEG and WebP, 1 to 100.")]
ShardSize = Annotated[
    str | None,
    in_shards("--shard-size", metavar="SIZE", help="Aim for shards of this size, e.g. 64MB.", show_default="128MB"),
]
Splits = Annotated[
    str | None,
    in_source(
        metavar="NAME=SHARE,...",
        help="The share of each split, e.g. train=0.9,val=0.1; a stable hash of the path assigns the images.",
        show_default="folders called train, val, ...; else all images are train",
    ),
]
SplitBy = Annotated[
    str | None,
    in_source(
        metavar="COLUMN",
        autocompletion=one_of("folder"),
        help="'folder', or the column of a table that gives the split.",
    ),
]
Image = Annotated[
    str | None,
    in_source(
        metavar="COLUMN",
        help="The column of a table with paths, 'DIR/{}.jpg' for names, the extension in tars, or COCO's folder.",
        show_default="found by its name",
    ),
]
Label = Annotated[
    str | None,
    in_source(
        metavar="COLUMN",
        autocompletion=one_of("auto", "none", "parent"),
        help="auto; none; the column of a table, or the part of a tar's samples, that gives the label; or parent: the "
        "innermost folders.",
        show_default="auto",
    ),
]
Columns = Annotated[
    list[str] | None,
    in_source(
        "--column",
        metavar="NAME:DTYPE[SHAPE]",
        help="Type and shape of a further column: embedding:float32[512], or tags:int64[] for any number. Repeatable.",
        show_default="from its values",
    ),
]
Classes = Annotated[
    Path | None,
    in_source(
        metavar="FILE",
        help="File with one class name per line; a class's id is its line number, from 0.",
        show_default="the class names found, sorted",
    ),
]
ImageColumns = Annotated[
    list[str] | None,
    in_source(
        "--image-column",
        metavar="NAME=COLUMN:KIND",
        help="Further image of each sample, e.g. mask=mask_path:mask, by the column of a table, or the suffix of files "
        "in a tar (mask.png); the kind is image, mask or depth. Repeatable.",
    ),
]
Masks = Annotated[
    str | None,
    in_source(metavar="DIR", help="Folder of masks for a folder of images, with the same paths and any suffix."),
]
GroupBy = Annotated[
    str | None,
    in_source(metavar="COLUMN", help="For a table with a row per box: the column that names the image of a row."),
]
Outlines = Annotated[
    str | None,
    in_source(
        metavar="KIND",
        autocompletion=one_of("semantic", "instance"),
        help="Draw the outlines of objects as masks of classes (semantic) or of numbered objects (instance).",
    ),
]
Boxes = Annotated[
    str | None,
    in_source(
        metavar="COLUMN",
        help="Column with the list of a sample's boxes, of 4 numbers each; with --group-by the column of a row's box, "
        "or its four columns: xmin,ymin,xmax,ymax.",
    ),
]
BoxFormat = Annotated[
    str | None,
    in_source(
        metavar="FORMAT",
        autocompletion=one_of(
            *(f"{name}{share}" for name in ("xyxy", "xywh", "cxcywh") for share in ("", ",relative")),
            "voc",
        ),
        help="Numbers of a box: xyxy, xywh, cxcywh or voc (xyxy from 1); ',relative': shares of width and height.",
        show_default="xyxy",
    ),
]
Keypoints = Annotated[
    str | None,
    in_source(
        metavar="COLUMN",
        help="Column with the keypoints (x, y, and optionally visibility) of a sample, or of each of its boxes.",
    ),
]
FlipPairs = Annotated[
    str | None,
    in_source(
        metavar="N:N,...",
        help="Pairs of left and right keypoints, which mirroring swaps, e.g. 1:2,3:4 (from 0); or none.",
        show_default="from COCO's names",
    ),
]
BoxColumns = Annotated[str | None, in_source(metavar="COLUMN,...", help="Columns with one value per box.")]
BoxesOutside = Annotated[
    str,
    in_source(
        metavar="HOW",
        autocompletion=one_of("reject", "clip", "drop"),
        help="What to do with boxes that reach more than 2 pixels beyond their image: reject the image, clip or drop "
        "the boxes.",
    ),
]
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
Threads = Annotated[
    int | None, in_data(metavar="N", help="Decoding threads per process.", show_default="chosen by loaders")
]
Processes = Annotated[
    int | None, in_data(metavar="N", help="Worker processes that decode; 0 for none.", show_default="chosen by loaders")
]
Model = Annotated[
    str | None,
    in_device(metavar="NAME", autocompletion=models, help="The model that a TPU trains.", show_default="resnet50"),
]
