"""`shard`: from raw images to a dataset."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from tpufeed.builds.run import BuildResult, ProgressListener, run
from tpufeed.engines.engine import Engine
from tpufeed.errors import OptionError
from tpufeed.images.header import MAX_PIXELS
from tpufeed.images.policy import Check, Encode, MaxPixels, MinSidePx, PresizeMode, PresizePx, Progressive, Quality
from tpufeed.options import Count, Names, Whole, checked
from tpufeed.sharding.append import AppendRecipe
from tpufeed.sharding.recipe import ShardRecipe
from tpufeed.sources.boxes import Outside
from tpufeed.sources.options import OPTIONS, POLICIES, NameStyle, ShardOptions
from tpufeed.sources.outlines import Outlines


@checked({name: f"use policy={{{name!r}: ...}}" for name in POLICIES})
def shard(  # noqa: PLR0913  # the public face
    src: str | Path,
    dst: str | Path,
    *,
    splits: str | Mapping[str, float] | None = None,
    split_by: str | None = None,
    image: str | None = None,
    label: str = "auto",
    label_separator: str | None = None,
    classes: str | Path | Sequence[str] | None = None,
    shard_bytes: str | int | None = None,
    shards: Count | None = None,
    hosts: Count = 1,
    names: NameStyle = "tpufeed",
    seed: Whole = 0,
    check: Check = "full",
    encode: Encode = "keep",
    progressive: Progressive = "keep",
    quality: Quality = 90,
    presize: PresizePx | None = None,
    presize_mode: PresizeMode = "short",
    max_pixels: MaxPixels = MAX_PIXELS,
    min_side: MinSidePx = 1,
    policy: Mapping[str, str] | None = None,
    columns: Mapping[str, str] | None = None,
    image_columns: Mapping[str, str] | None = None,
    masks: str | Path | None = None,
    group_by: str | None = None,
    outlines: Outlines | None = None,
    boxes: str | None = None,
    box_format: str | None = None,
    keypoints: str | None = None,
    flip_pairs: str | Sequence[tuple[int, int]] | None = None,
    box_columns: Names | None = None,
    boxes_outside: Outside = "reject",
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

    After an interruption the same call continues where it stopped and ends with the same bytes. If the dataset is
    already finished, the call recognises it and checks that the source has not changed.

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
        image: the table column that holds paths, names or images, or the place of the images whose names it holds:
            "train_images", "train_images/{}.jpg" or "train_images/{image_id}.jpg"; the extension of the images in tars;
            or the folder that COCO's file names are relative to, like "train=DIR,val=DIR" for several splits.
        label: "auto", "none", the column or key that holds the labels, or "parent", which takes the innermost folders
            of images for the classes instead of the outer ones.
        label_separator: what stands between several labels in one text, like "|" in "Mass|Nodule": such a sample has
            a list of labels.
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
        check: "full" decodes every image strictly, so that none can stop a training run, "header" trusts everything
            after a sound header.
        encode: "keep" keeps every JPEG, PNG and still, opaque WebP that needs no change, but adds restart markers to
            JPEGs for fast crops, "exact" stores such files unchanged, and "jpeg", "png" or "webp" encodes all images.
            Markers cost no quality, and let loaders decode only the window that a crop needs. Both "keep" and "exact"
            store AVIF, HEIC and JPEG XL as JPEG.
        progressive: "keep" leaves progressive JPEGs as they are, "baseline" rewrites them without loss, to decode two
            to three times faster.
        quality: quality of JPEG and WebP images that are encoded again, 1 to 100.
        presize: shrink images to this side in pixels, never enlarge them. Default: keep their sizes.
        presize_mode: the side that `presize` gives: "short", "long", or "fit", which gives the shorter side and then
            cuts out the middle square.
        max_pixels: reject images with more pixels than this, without decoding them. Default: 178,956,970.
        min_side: reject images with a shorter side than this, in pixels.
        policy: how to treat odd images, like {"alpha": "black"}; see `tpufeed.images.policy.ImagePolicy`, from `exif`
            to `damaged`.
        columns: types and shapes of further columns if their values do not tell, like {"embedding": "float32[512]"};
            `[]` means any number of values, `[,2]` any number of pairs. Rows that do not fit are rejected (bad_column).
        image_columns: further images of each sample, like {"mask": "mask_path:mask"}: a name, the table column with
            their paths or the suffix of their files in a tar ("mask.png"), and a kind: "image"; "mask", a PNG with one
            channel of 8 bits; "depth", a PNG of 16 bits. Masks have the size of the upright image, are resized with it
            by nearest neighbour, and stay PNG.
        masks: a folder of masks that mirrors the folder of images: the same relative paths, with any image suffix. It
            makes the column "mask".
        group_by: the table column that is equal in all rows of one image, if a table has a row for each box. These rows
            become one sample, and the column is also that of the paths, unless `image` names another column, or makes
            paths of its values, like "train/{}.jpg".
        outlines: draw the outlines of objects that COCO's JSON and YOLO's labels have as the column "mask": "semantic",
            1 + the id of the class, or "instance", 1 + the place of the object in the list of boxes. 0 is the
            background, 255 a crowd.
        boxes: the table column, or the key of a tar's json, that holds the list of a sample's boxes, or with `group_by`
            the column of a row's box, or the four columns of its numbers, like "xmin,ymin,xmax,ymax". Boxes are stored
            as float32 left, top, right, bottom, in pixels of the stored image. A list of labels has one for each box.
        box_format: the numbers of a box in the source, in pixels of the upright image: "xyxy", "xywh", "cxcywh" or
            "voc" ("xyxy" counted from 1), with ",relative" if boxes and keypoints are shares of its width and height.
            Default: "xyxy", for Pascal VOC's files "voc", unless a box there begins at 0.
        keypoints: the column that holds the list of a sample's keypoints (x, y and maybe a visibility), or a list of
            keypoints for each box.
        flip_pairs: pairs of keypoints, by index from 0, that are the left and the right of the same thing, like
            "1:2,3:4", or "none": loaders and caches swap them when they mirror a picture. A list like
            [(1, 2), (3, 4)] does as well. Default: COCO's names of keypoints decide.
        box_columns: columns with a value for each box: if a box is dropped, its values are dropped with it.
            Default with `group_by`: those that differ within an image.
        boxes_outside: what to do with boxes that reach more than 2 pixels beyond their image: "reject" the image;
            "clip" them, or drop them if they lie wholly outside; or "drop" them. The manifest counts dropped and
            clipped boxes. Boxes that reach less far are clipped.
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
        progress: show a progress bar. Default: where a person watches, in a terminal or a notebook, unless there is a
            `listener`. False: never. True: in a log as well, as a line every 30 seconds.

    Raises:
        OptionError, NoInputsError, SourceError, DatasetExistsError, DuplicateWriterError: nothing was changed.
        TooManyRejectsError: finished work stays, and the same call with a larger budget continues from there.
        TaskError, BuildError: the work failed; finished work stays, and the same call continues from there.
    """
    given = locals()  # options have the same names here as in `ShardOptions`
    options = ShardOptions(**{name: given[name] for name in given.keys() & OPTIONS})
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
