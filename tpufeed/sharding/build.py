"""`shard`: from raw images to a dataset."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from tpufeed.builds.run import BuildResult, ProgressListener, run
from tpufeed.engines.engine import Engine
from tpufeed.errors import OptionError
from tpufeed.images.policy import Images
from tpufeed.options import Count, Whole, checked
from tpufeed.sharding.append import AppendRecipe
from tpufeed.sharding.recipe import ShardRecipe
from tpufeed.sources.options import OPTIONS, Boxes, LabelType, NameStyle, ShardOptions, Unlabelled
from tpufeed.sources.outlines import Outlines

_GROUPED = {
    flat: f"write {owner}=tpufeed.{owner.title()}({option.name}=...)"
    for flat, (owner, option) in OPTIONS.items()
    if owner and flat != "boxes"
}


@checked(_GROUPED | {"policy": "write images=tpufeed.Images(alpha='black')"})
def shard(  # noqa: PLR0913  # the public face
    src: str | Path,
    dst: str | Path,
    *,
    splits: str | Mapping[str, float] | None = None,
    split_by: str | None = None,
    split_with: str | None = None,
    image: str | None = None,
    label: str = "auto",
    label_separator: str | None = None,
    label_type: LabelType = "class",
    class_level: int = 1,
    unlabelled: Unlabelled = "reject",
    classes: str | Path | Sequence[str] | None = None,
    shard_bytes: str | int | None = None,
    shards: Count | None = None,
    hosts: Count = 1,
    names: NameStyle = "tpufeed",
    seed: Whole = 0,
    images: Images | None = None,
    columns: Mapping[str, str] | None = None,
    rename: Mapping[str, str] | None = None,
    image_columns: Mapping[str, str] | None = None,
    bands: str | Sequence[str | int] | None = None,
    georeference: bool = False,
    masks: str | Path | None = None,
    texts: bool = False,
    group_by: str | None = None,
    outlines: Outlines | None = None,
    boxes: Boxes | None = None,
    max_rejects: str | int | None = None,
    append: bool = False,
    allow_different: bool = False,
    overwrite: bool = False,
    fsync: bool = False,
    workers: Count | None = None,
    engine: Engine | str | None = None,
    listener: ProgressListener | None = None,
    progress: bool | None = None,
) -> BuildResult:
    """Turn raw images into a dataset of TFRecord shards.

    After an interruption the same call resumes and ends with the same bytes. If the dataset is already finished, the
    call recognises it and checks that the source has not changed.

    Args:
        src: path or URL of the images: a folder of class folders (maybe inside folders of splits) or of unlabelled
            images; a table of paths (.csv, .tsv, .jsonl, .parquet); one or more WebDataset tars; a COCO .json, several
            like "train=a.json,val=b.json", or a folder of them with their images, as Roboflow and CVAT export it; a
            YOLO data.yaml, or its folder; Pascal VOC's .xml files, or their folder; Parquet files that hold images, or
            a folder of them, as on the Hugging Face hub; a folder that `save_to_disk` of `datasets` wrote.
        dst: path or URL of the new dataset.
        splits: the share of each split, like "train=0.9,val=0.1", dealt by a stable hash of each path. Default: folders
            called train, val and so on are the splits, without them everything is train.
        split_by: "folder" for the folders right below the source, or the table column that holds the split.
        split_with: the column, or columns like "hospital,patient", whose equal values stay in one split, or "folder"
            for the images of each folder. `splits` are dealt by a stable hash of these values. If the source has splits
            itself, they are checked.
        image: the table column that holds paths, names or images, or the place of the images whose names it holds:
            "train_images", "train_images/{}.jpg" or "train_images/{image_id}.jpg"; the extension of the images in tars;
            or the folder that COCO's file names are relative to, like "train=DIR,val=DIR" for several splits.
        label: "auto", "none", the column or key that holds the labels, or a table's columns of 0 and 1, one for each
            class, like "rust,scab". Empty fields are 0.
        label_separator: what stands between several labels in one text, like "|" in "Mass|Nodule": such a sample has
            a list of labels.
        label_type: "class", or "number" for a measured value: the column "label" is float32, and there are no classes.
        class_level: the folder that names the class, if folders are nested: 2 is the second one, -1 the innermost.
        unlabelled: "reject" samples without a label beside labelled ones, or "keep" them with the label -1 (NaN if
            labels are numbers). Of a folder they are the images outside of all class folders.
        classes: names of the classes in the order of their ids, or a file with one name per line. Default: the names
            that occur.
        shard_bytes: aim for shards of this size, in bytes or like "64MB". Default: 128 MB.
        shards: aim for this number of shards in the largest split instead. The size of the others follows.
        hosts: make the number of shards of each split a multiple of this, so that all hosts read equally many.
        names: naming of shards and record keys: "tpufeed", or "kaggle" for programs that follow Kaggle's TPU guides.
            These read shards like `train00-512.tfrec`, which end in their number of records, and the keys `image`,
            `class`, `label` (the class's name), `id` (the sample's path), `size` and `one_hot_class`. Loaders and
            commands read both.
        seed: decides the global order of the inputs.
        images: how images are checked, presized and stored, and what becomes of odd ones, see `tpufeed.Images`.
        columns: types and shapes of further columns if their values do not tell, like {"embedding": "float32[512]"};
            `[]` means any number of values, `[,2]` any number of pairs. Rows that do not fit are rejected (bad_column).
        rename: new names of further columns, like {"bbox": "boxes"}, as those of datasets that are mixed have to be
            equal. Other options name columns as the source does.
        image_columns: further images of each sample, like {"mask": "mask_path:mask"}: a name, the table column with
            their paths or the suffix of their files in a tar ("mask.png"), and a kind: "image"; "mask", a PNG with one
            channel of 8 bits; "depth", a PNG of 16 bits. Masks have the size of the upright image, are resized with it
            by nearest neighbour, and stay PNG.
        bands: with pixels="keep" the channels of an image: bands of its file, by number from 1, like "4,3,2", or files
            with one band each, by name, like "B02,B03,B04". Files of a folder that differ in this name alone
            (tile_B02.tif, tile/B02.tif) are one sample, and a table has a column of paths for each. Images that lack a
            band, or whose bands differ in size or type, are rejected (bad_bands).
        georeference: make a column "georeference" of text: the reference system, the transform and the nodata value of
            each GeoTIFF as JSON (docs/bands.md). Of several bands it is that of the first.
        masks: a folder of masks that mirrors the folder of images: the same relative paths, with any image suffix. It
            makes the column "mask".
        texts: read the files beside each image of a folder, like 0001.txt, 0001.json and 0001.cls of 0001.jpg, as those
            of a WebDataset tar. Labels are in the .cls or a key of the .json, not the names of folders.
        group_by: the table column that is equal in all rows of one image, if a table has a row for each box. These rows
            become one sample, and the column is also that of the paths, unless `image` names another column, or makes
            paths of its values, like "train/{}.jpg".
        outlines: draw the outlines of objects that COCO's JSON and YOLO's labels have as the column "mask": "semantic",
            1 + the id of the class, or "instance", 1 + the place of the object in the list of boxes. 0 is the
            background, 255 a crowd.
        boxes: where the source has boxes and keypoints, and how it writes them, see `tpufeed.Boxes`.
        max_rejects: fail the build if more inputs than this are rejected: a number or "1%". Default: 1 %, but at least
            10.
        append: add the images to the dataset at `dst`, as `tpufeed.append` does, but with these options.
        allow_different: append even if options that decide bytes differ from the dataset's; `tpufeed info` lists them.
        overwrite: once the source is listed, remove the dataset or the unfinished build at `dst`.
        fsync: write the shards of a local `dst` to the disk before the manifest, so that a power cut right after the
            build loses nothing. The build takes as much longer as the disk needs.
        workers: number of processes. Default: one per core, fewer with little memory.
        engine: what runs the tasks: "ray" or "beam" on several hosts, or an `Engine`, see docs/scaleout.md. Default:
            `workers` processes on this host.
        listener: called with a `BuildProgress` a few times a second.
        progress: show a progress bar. Default: in a terminal or a notebook, unless there is a `listener`. False: never.
            True: in a log as well, as a line every 30 seconds.

    Raises:
        OptionError, NoInputsError, SourceError, DatasetExistsError, DuplicateWriterError: nothing was changed.
        TooManyRejectsError: finished work stays, and the same call with a larger budget continues from there.
        TaskError, BuildError: the work failed. Finished work stays, and the same call resumes.
    """
    given = locals() | {"boxes": boxes or Boxes(), "images": images or Images()}  # named as in `ShardOptions`
    options = ShardOptions(**{name: given[name] for name in ShardOptions.__slots__ if name in given})
    return run(
        shard_recipe(src, options, append, allow_different),
        dst,
        max_rejects=max_rejects,
        overwrite=overwrite,
        fsync=fsync,
        workers=workers,
        engine=engine,
        listener=listener,
        progress=progress,
    )


def shard_recipe(
    src: str | Path, options: ShardOptions, append: bool = False, allow_different: bool = False
) -> ShardRecipe:
    """Return the recipe of `shard`. Raises OptionError for `allow_different` without `append`."""
    if append:
        return AppendRecipe(src, options, allow_different=allow_different)
    if allow_different:
        raise OptionError("allow_different is for append=True")
    return ShardRecipe(src, options)
