"""`shard`: from raw images to a dataset."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from tpufeed.build.run import BuildResult, ProgressListener, run
from tpufeed.engines.engine import Engine
from tpufeed.errors import OptionError
from tpufeed.images.header import MAX_PIXELS
from tpufeed.images.policy import Check, Encode, MaxPixels, MinSidePx, PresizeMode, PresizePx, Progressive, Quality
from tpufeed.options import Count, Names, Whole, checked
from tpufeed.sharding.append import AppendRecipe
from tpufeed.sharding.options import POLICIES, ROLES, Handling, NameStyle, ShardOptions
from tpufeed.sharding.recipe import ShardRecipe


@checked({name: f"use policy={{{name!r}: ...}}" for name in POLICIES})
def shard(  # noqa: PLR0913  # the public face
    src: str | Path,
    dst: str | Path,
    *,
    splits: str | Mapping[str, float] | None = None,
    split_by: str | None = None,
    image: str | None = None,
    label: str = "auto",
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
    boxes: str | None = None,
    box_format: str | None = None,
    keypoints: str | None = None,
    flip_pairs: str | Sequence[tuple[int, int]] | None = None,
    box_columns: Names | None = None,
    duplicates: Handling = "report",
    split_by_content: bool = False,
    max_rejects: str | int | None = None,
    append: bool = False,
    allow_different: bool = False,
    overwrite: bool = False,
    fsync: bool = False,
    workers: Count | None = None,
    engine: Engine | str | None = None,
    listener: ProgressListener | None = None,
) -> BuildResult:
    """Turn raw images into a dataset of TFRecord shards.

    The same call after an interruption continues where it stopped, and ends with the same bytes. If the dataset is
    finished, the call recognises it, and compares its source.

    Args:
        src: a folder of class folders (maybe in folders of splits), or of unlabelled images; a table of paths (.csv,
            .tsv, .jsonl, .parquet); one or more WebDataset tars; a .json of COCO's; Parquet files with images inside,
            or a folder of them, as Hugging Face's hub has them; a folder of `datasets`' `save_to_disk`. A path or URL.
        dst: where the dataset goes: a path or URL.
        splits: the share of each split, as a mapping or like "train=0.9,val=0.1", dealt by a stable hash of each path.
            None takes folders called train, val and so on as splits if there are any, else everything is train.
        split_by: "folder" for the folders right below the source, or the column of a table that says the split.
        image: the column of a table that holds paths or images, the extension of a tar's images, or the folder that
            COCO's file names are relative to.
        label: "auto", "none", or the column or key that holds the labels.
        classes: names of classes, whose places are their ids, or a file with one name per line; None: the names that
            occur.
        shard_bytes: aim for shards of this size, in bytes or like "64MB"; 128 MB by default.
        shards: or aim for this number of shards in the largest split; the others get theirs by their size.
        hosts: make the number of shards of each split a multiple of this, so that all hosts read equally many.
        names: how shards and the keys of records are called: "tpufeed", or "kaggle" for programs that follow Kaggle's
            TPU guides: `train00-512.tfrec`, with the number of records at the end, and the keys `image`, `class` and
            `id`, the sample's path. Loaders and commands take both.
        seed: decides the global order of the inputs.
        check: "full" decodes every image strictly, so that none can stop a training; "header" trusts what follows a
            sound header.
        encode: "keep" keeps every JPEG, PNG and still, opaque WebP that needs no change. JPEGs get restart markers
            without loss, so that loaders decode only the window that a crop needs. "exact" stores the very bytes of
            such files; a format stores all images in that format.
        progressive: "keep" leaves progressive JPEGs as they are; "baseline" rewrites them without loss, to decode two
            to three times faster.
        quality: quality of JPEG and WebP that are encoded again, 1 to 100.
        presize: shrink images to this side in pixels, never enlarge; None keeps sizes.
        presize_mode: which side `presize` is: the shorter one, the longer one, or ("fit") the shorter one, and then the
            middle square is cut out.
        max_pixels: reject images with more pixels than this, without decoding them.
        min_side: reject images with a shorter side than this, in pixels.
        policy: choices for odd images, like {"alpha": "black"}: see `tpufeed.images.policy.ImagePolicy`, from `exif` to
            `damaged`.
        columns: types and shapes of further columns that their values do not say, like {"embedding": "float32[512]"};
            `[]` is for any number, `[,2]` for any number of pairs. Rows that do not fit are rejected (bad_column).
        image_columns: further images of each sample, like {"mask": "mask_path:mask"}: a name, the column of a table
            that holds their paths or the suffix of a tar's files ("mask.png"), and a kind: "image"; "mask", a PNG with
            one channel of 8 bits; "depth", of 16 bits. Masks have the size of their upright image, are resized with it
            by nearest neighbour, and stay PNG.
        masks: the folder of masks that is parallel to a folder of images: the same relative path with any suffix of an
            image. It makes the column "mask".
        boxes: the column of a table, or key of a tar's json, that holds the list of a sample's boxes. They are stored
            as float32 left, top, right, bottom, in pixels of the stored image. Labels that are lists are the boxes'.
        box_format: the numbers of a box in the source, in pixels of the upright image: "xyxy", "xywh" or "cxcywh";
            with ",relative" boxes and keypoints are shares of its width and height.
        keypoints: the column that holds the list of a sample's keypoints, x, y and maybe a visibility, or a list of
            keypoints for each box.
        flip_pairs: which keypoints are the left and the right of the same, by their places in the list from 0, like
            [(1, 2), (3, 4)] or "1:2,3:4": loaders and caches swap them when they mirror a picture. [] or "none" if
            there are no pairs. By default COCO's names of keypoints decide.
        box_columns: columns with a value for each box; the value goes if "fit" leaves the box out.
        duplicates: what becomes of images whose files are the same bytes: "report" counts them when all are read, names
            them in _tpufeed/duplicates.jsonl and warns, above all of those in two splits; "drop" keeps the first by
            path, and names the others there; "keep" says nothing. To drop, files of equal size are read beforehand.
        split_by_content: deal images by their bytes instead of their paths, so that equal images are in one split; all
            are read beforehand.
        max_rejects: fail the build if more inputs than this are rejected: a number or "1%". Default: 1 %, but at least
            10.
        append: add the images to the dataset at `dst`, as `tpufeed.append` does, with these options.
        allow_different: append although options that decide bytes are not those of the dataset; info tells of them.
        overwrite: remove what is at `dst`, a dataset or the remains of a build, once the source is listed.
        fsync: bring the shards of a local `dst` to the disk before the manifest, so that a power cut right after the
            build loses nothing. Slower by the time that the disk takes.
        workers: processes; all cores by default.
        engine: what runs the tasks: "ray" or "beam" beyond this host, or an `Engine`, see docs/scaleout.md; `workers`
            processes of this host by default.
        listener: called with a `BuildProgress` a few times a second.

    Raises:
        OptionError, NoInputsError, SourceError, DatasetExistsError, DuplicateWriterError: nothing was changed.
        TooManyRejectsError: what is done stays, and the same call with a larger budget continues from there.
        TaskError, BuildError: the work failed; what is done stays, and the same call continues from there.
    """
    given = locals()  # an option of `ShardOptions` has its name here, too
    options = ShardOptions(**{name: given[name] for name in given.keys() & ROLES})
    return run(
        shard_recipe(src, options, append, allow_different),
        dst,
        max_rejects=max_rejects,
        overwrite=overwrite,
        fsync=fsync,
        workers=workers,
        engine=engine,
        listener=listener,
    )


def shard_recipe(
    src: str | Path, options: ShardOptions, append: bool = False, allow_different: bool = False
) -> ShardRecipe:
    """Return the recipe of `shard`, which `build.run.preview` takes as well.

    Raises:
        OptionError: `allow_different` without `append`.
    """
    if append:
        return AppendRecipe(src, options, allow_different=allow_different)
    if allow_different:
        raise OptionError("allow_different is for append=True")
    return ShardRecipe(src, options)
