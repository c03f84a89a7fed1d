"""The options of `shard` that decide the bytes of a dataset, checked once."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self, TypeAlias, cast

from tpufeed.dataset.naming import check_split_name, read_classes
from tpufeed.dataset.schema import LOADERS_NAMES, DType, FeatureSpec
from tpufeed.errors import OptionError, url_identity
from tpufeed.images.policy import Images
from tpufeed.options import Count, Names, Rule, Whole, a_dict, check_fields, group, parse_size
from tpufeed.sources.bands import parse_bands
from tpufeed.sources.boxes import FlipPairs, Outside, check_format, declare, format_pairs, parse_pairs
from tpufeed.sources.columns import Declared
from tpufeed.sources.outlines import Outlines
from tpufeed.storage.store import open_store

NameStyle = Literal["tpufeed", "kaggle"]
PictureKind = Literal["image", "mask", "depth"]
LabelType = Literal["class", "number"]
Unlabelled = Literal["reject", "keep"]
_Texts: TypeAlias = Annotated[Mapping[str, str], a_dict("texts", Rule("a text", lambda value: isinstance(value, str)))]
MASKS = "mask"  # the column that `masks=` or `outlines=` makes
BOXES, KEYPOINTS = "boxes", "keypoints"  # columns of sources that declare them, or that several columns make
NODATA = "nodata"  # the mask that `nodata=` makes
GEOREFERENCE = "georeference"  # the column that `georeference=` makes
BOX = 4
_DTYPES: dict[str, DType] = {"image": "uint8", "mask": "uint8", "depth": "int32"}
_PICTURE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TAKEN = LOADERS_NAMES | {"label"}  # columns that loaders make themselves
_PICTURE_FORM = "write image columns like mask=mask_path:mask, of kind image, mask or depth"


class ImageColumn(NamedTuple):
    """A further image of each sample."""

    name: str  # its column in the dataset
    column: str  # the table column of its paths, or the suffix of its files in tars. Empty for a parallel folder
    kind: PictureKind  # "mask" has integers of 8 bits, "depth" of 16 bits

    @property
    def spec(self) -> FeatureSpec:
        """The feature that it becomes: an image file as one bytes value."""
        return FeatureSpec(self.name, _DTYPES[self.kind], kind=self.kind)

    @property
    def missing(self) -> str:
        """The reason code for a sample that lacks it."""
        return "unreadable" if self.kind == "image" else "bad_mask"


# Options of how to read a source, or of the size of shards: an append may have other values. Other options decide the
# bytes of records.
_READING: dict[str, Any] = {"reads": True}
# Options that plan and manifest hold even if they have their defaults. Other options are there only if given.
_ALWAYS_STORED = frozenset(("hosts", "splits", "split_by", "image", "label", "classes", "seed"))
_BESIDE_IMAGES = ("masks", "image_columns", "outlines", "group_by", "bands", "georeference")
_DEFAULT_SHARD_BYTES = 128 * 10**6
_FORM = "write them like train=0.9,val=0.1"
_NO_EXTENSION = (
    "tpufeed was installed without its C extension: kept JPEGs get no restart markers, and loaders decode them whole, "
    "which is up to twice as slow. Install tpufeed from a wheel, or with a C compiler (docs/install.md)"
)


@group
@dataclass(frozen=True, slots=True, kw_only=True)
class Boxes:
    """Where a source has boxes and keypoints, and how it writes them.

    Attributes:
        column: the table column, or the key of a tar's json, that holds the list of a sample's boxes, or with
            `group_by` the column of a row's box, or the four columns of its numbers, like "xmin,ymin,xmax,ymax". Boxes
            are stored as float32 left, top, right, bottom, in pixels of the stored image. A list of labels has one for
            each box.
        format: the numbers of a box in the source, in pixels of the upright image: "xyxy", "xywh", "cxcywh" or "voc"
            ("xyxy" counted from 1), with ",relative" if boxes and keypoints are shares of its width and height.
            Default: "xyxy", for Pascal VOC's files "voc", unless a box there begins at 0.
        outside: what to do with boxes that reach more than 2 pixels beyond their image: "reject" the image; "clip"
            them, or drop them if they lie wholly outside; or "drop" them. The manifest counts dropped and clipped
            boxes. Boxes that reach less far are clipped.
        columns: columns with a value for each box: if a box is dropped, its values are dropped with it. Default with
            `group_by`: those that differ within an image.
        keypoints: the column that holds the list of a sample's keypoints (x, y and maybe a visibility), or a list of
            keypoints for each box; or a table's columns of x and y in turn, like "left_eye_x,left_eye_y,nose_x,nose_y",
            which become the column "keypoints". A point without numbers has the visibility 0, others have 2.
        flip_pairs: pairs of keypoints, by index from 0, that are the left and the right of the same thing, like
            "1:2,3:4", or "none": loaders and caches swap them when they mirror a picture. A list like
            [(1, 2), (3, 4)] does as well. Default: the names of COCO's keypoints, or of the columns, decide.
        pairs: `flip_pairs` as numbers.

    Raises:
        OptionError: a value is not valid, or columns have values of boxes that are nowhere.
    """

    column: str | None = field(default=None, metadata=_READING | {"flat": "boxes"})
    format: str | None = field(default=None, metadata=_READING | {"flat": "box_format"})
    outside: Outside = field(default="reject", metadata={"flat": "boxes_outside"})
    columns: Names | None = field(default=None, metadata=_READING | {"flat": "box_columns"})
    keypoints: str | None = field(default=None, metadata=_READING)
    flip_pairs: str | Sequence[tuple[int, int]] | None = field(default=None, metadata=_READING)
    pairs: FlipPairs | None = field(init=False)

    def __post_init__(self) -> None:
        if self.column is None and self.columns:
            raise OptionError("boxes.columns have a value for each box. Name the column of the boxes: --boxes COLUMN")
        if self.format is not None:
            check_format(self.format)
        object.__setattr__(self, "pairs", None if self.flip_pairs is None else parse_pairs(self.flip_pairs))


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardOptions:
    """Options that decide the bytes of a dataset, besides its source. `tpufeed.shard` documents most.

    Raises:
        OptionError: a value is not valid, or two options do not fit together.
    """

    splits: str | Mapping[str, float] | None = None
    split_by: str | None = field(default=None, metadata=_READING)
    split_with: str | None = None
    image: str | None = field(default=None, metadata=_READING)
    label: str = field(default="auto", metadata=_READING)
    label_separator: str | None = field(default=None, metadata=_READING)
    label_type: LabelType = "class"
    class_level: int = field(default=1, metadata=_READING)
    unlabelled: Unlabelled = "reject"
    classes: str | Path | Sequence[str] | None = None
    shard_bytes: str | int | None = field(default=None, metadata=_READING)
    shards: Count | None = field(default=None, metadata=_READING)
    hosts: Count = field(default=1, metadata=_READING)
    names: NameStyle = "tpufeed"
    seed: Whole = 0
    images: Images = field(default_factory=Images)
    columns: _Texts | None = field(default=None, metadata=_READING)
    rename: _Texts | None = field(default=None, metadata=_READING)
    image_columns: _Texts | None = field(default=None, metadata=_READING)
    bands: str | Sequence[str | int] | None = field(default=None, metadata={"flat": "chosen_bands"})
    georeference: bool = False
    masks: str | Path | None = field(default=None, metadata=_READING)
    texts: bool = field(default=False, metadata=_READING)
    group_by: str | None = field(default=None, metadata=_READING)
    outlines: Outlines | None = None
    boxes: Boxes = field(default_factory=Boxes)
    # `classes` are those of the dataset that an append adds to. If the new source has a list of classes itself, that
    # list still says what its numbers mean.
    keeps_classes: bool = field(default=False, metadata=_READING)
    size_bytes: int = field(init=False)  # `shard_bytes` as a number
    split_shares: dict[str, float] | None = field(init=False)  # by name. None if the source may say the splits itself
    class_names: tuple[str, ...] | None = field(init=False)  # `classes` from their file, or None for those that occur
    box_sides: tuple[str, ...] = field(init=False)  # the four columns that `boxes.column` names, if it is not one
    boxes_name: str | None = field(init=False)  # the column of boxes in the dataset
    points: tuple[str, ...] = field(init=False)  # the columns of x and y that `boxes.keypoints` names, if it is not one
    keypoints_name: str | None = field(init=False)  # the column of keypoints in the dataset
    declared: tuple[Declared, ...] = field(init=False)  # types of `columns`, boxes and keypoints
    band_names: tuple[str, ...] = field(init=False)  # of `bands`, if each is in its own file
    band_numbers: tuple[int, ...] = field(init=False)  # of `bands` within a file, from 1
    image_files: int = field(init=False)  # of an image
    pictures: tuple[ImageColumn, ...] = field(init=False)  # `image_columns` and `masks`
    made: tuple[ImageColumn, ...] = field(init=False)  # masks that the build makes without files of their own
    sizes_differ: bool = field(init=False)  # records may have other sizes than their files
    warnings: tuple[str, ...] = field(init=False)  # sentences for the user before the build

    def __post_init__(self) -> None:  # one check after the other
        check_fields(self)
        if self.shards is not None and self.shard_bytes is not None:
            raise OptionError("give either the size of the shards or their number, not both")
        if self.splits is not None and self.split_by is not None:
            raise OptionError("give either shares of the splits or what the source is split by, not both")
        if self.label_separator is not None and (not self.label_separator or self.label == "none"):
            raise OptionError(
                "label_separator stands between several labels in one text, like '|'. It does not go with label='none'"
            )
        if self.label_type == "number" and (self.label == "none" or self.label_separator or self.classes is not None):
            raise OptionError("label_type='number' is for one number per sample. Leave classes and label_separator out")
        if not self.class_level:
            raise OptionError("class_level counts folders from 1, or from -1 for the innermost, not from 0")
        if self.names == "kaggle" and (self.unlabelled == "keep" or self.label_type == "number"):
            raise OptionError(
                "names='kaggle' needs a class for each sample. Leave unlabelled='keep' and label_type='number' out"
            )
        _check_rename(self.rename or {})
        if self.outlines is not None and (self.masks is not None or MASKS in (self.image_columns or {})):
            raise OptionError(
                f"outlines are drawn as the column {MASKS!r}, which masks or image_columns make as well. Give only one"
            )
        if self.outlines == "semantic" and self.label == "none":
            raise OptionError("semantic outlines are drawn with the ids of classes. Leave label='none' out")
        if self.georeference or self.images.frames is not None:
            _check_images(self)
        is_kept = self.images.pixels == "keep"
        band_names, band_numbers = ((), ()) if self.bands is None else parse_bands(self.bands, is_kept, self.image)
        size_bytes = _DEFAULT_SHARD_BYTES if self.shard_bytes is None else parse_size(self.shard_bytes)
        if size_bytes < 1:
            raise OptionError(f"a shard has at least one byte, not {size_bytes}")
        if self.shards is not None and self.shards % self.hosts:
            raise OptionError(f"the number of shards has to be a multiple of the {self.hosts} hosts, not {self.shards}")
        images, boxes, points = self.images, self.boxes.column, parse_points(self.boxes.keypoints)
        keypoints = KEYPOINTS if points else self.boxes.keypoints
        sides = () if boxes is None else parse_sides(boxes, self.group_by is not None)
        boxes_name = BOXES if sides else boxes
        columns = [Declared.parse(*each) for each in (self.columns or {}).items()]
        has_marks = boxes is not None or keypoints is not None
        has_pictures = bool(self.image_columns) or self.masks is not None
        sizes_differ = images.presize is not None or images.encode != "keep" or images.greyscale == "rgb"
        # Masks have no files, and images that are kept as they are become .npy.
        sizes_differ = sizes_differ or self.outlines is not None or images.pixels == "keep" or images.frames is not None
        made = {MASKS: self.outlines is not None, NODATA: images.nodata == "mask"}
        lacks_markers = images.encode in ("keep", "jpeg") and not images.restart_markers
        for name, value in (
            ("size_bytes", size_bytes),
            ("split_shares", None if self.splits is None else parse_shares(self.splits)),
            ("class_names", None if self.classes is None else read_classes(self.classes)),
            ("box_sides", sides),
            ("boxes_name", boxes_name),
            ("points", points),
            ("keypoints_name", keypoints),
            ("band_names", band_names),
            ("band_numbers", band_numbers),
            ("image_files", images.frames or len(band_names) or 1),
            ("declared", declare(boxes_name, keypoints, columns) if has_marks else tuple(columns)),
            ("pictures", parse_pictures(self.image_columns, self.masks is not None) if has_pictures else ()),
            ("made", tuple(ImageColumn(name, "", "mask") for name, is_made in made.items() if is_made)),
            ("sizes_differ", sizes_differ),
            ("warnings", (_NO_EXTENSION,) if lacks_markers else ()),
        ):
            object.__setattr__(self, name, value)  # the class is frozen

    @classmethod
    def of_flat(cls, options: Mapping[str, Any]) -> Self:
        """Return the options of flat ones (see `OPTIONS`). Others and those that are None are left out."""
        groups: dict[str, dict[str, Any]] = {"": {}, "boxes": {}, "images": {}}
        for flat in OPTIONS.keys() & options.keys():
            if options[flat] is not None:
                owner, option = OPTIONS[flat]
                groups[owner][option.name] = options[flat]
        return cls(**groups[""], boxes=Boxes(**groups["boxes"]), images=Images(**groups["images"]))

    def name_of(self, column: str) -> str:
        """Return the name of a column of the source in the dataset."""
        return (self.rename or {}).get(column, column)

    def to_dict(self) -> dict[str, Any]:
        """Return the options as plain data, for plan and manifest."""
        images = self.images.to_dict()
        owners = {"": self, "boxes": self.boxes}
        stored = {flat: getattr(owners[at], option.name) for flat, (at, option) in OPTIONS.items() if at in owners}
        stored |= {  # in another form than they are given
            "shard_bytes": self.size_bytes if self.shards is None else None,
            "splits": self.split_shares,
            "classes": self.class_names,
            "rename": dict(self.rename or {}),
            "columns": {each.name: str(each) for each in self.declared if each.name in (self.columns or {})},
            "image_columns": [f"{name}={value}" for name, value in (self.image_columns or {}).items()],
            "chosen_bands": [*self.band_names, *self.band_numbers],
            "masks": None if self.masks is None else url_identity(open_store(self.masks).url),
            "flip_pairs": None if self.boxes.pairs is None else format_pairs(self.boxes.pairs),
            "box_columns": list(self.boxes.columns or ()),
        }
        given = {name for name, value in stored.items() if value and value != OPTIONS[name][1].default}
        return {name: value for name, value in stored.items() if name in given | _ALWAYS_STORED} | images


# All options by the names that they have in plans, manifests and flags, where they stand flat: the group and the field.
OPTIONS: Mapping[str, tuple[str, Field[Any]]] = {
    option.metadata.get("flat", option.name): (owner, option)
    for owner, options in (("", ShardOptions), ("boxes", Boxes), ("images", Images))
    for option in fields(options)
    if option.init and option.name not in ("boxes", "images")
}


def parse_shares(split: str | Mapping[str, float]) -> dict[str, float]:
    """Return the shares of "train=0.9,val=0.1", or of a mapping; "train" alone is all of it. Raises OptionError."""
    shares: dict[str, float] = {}
    for part in split.split(",") if isinstance(split, str) else []:
        name, equals, share = (text.strip() for text in part.partition("="))
        if not equals and name.replace(".", "", 1).isdigit():
            raise OptionError(f"{part!r} names no split; {_FORM}")
        if name in shares:
            raise OptionError(f"split {name} is given twice")
        try:
            shares[name] = float(share) if equals else 1.0
        except ValueError:
            raise OptionError(f"{part!r} is not a split with a share; {_FORM}") from None
    if not isinstance(split, str):
        shares = dict(split)
    if not shares:
        raise OptionError("give at least one split, like train=1.0")
    for name, value in shares.items():
        try:
            check_split_name(name)
        except OptionError as error:
            raise OptionError(f"{error}; {_FORM}") from None
        if not 0 < value <= 1:
            raise OptionError(f"split {name}: a share has to be in (0, 1], not {value}; {_FORM}")
    if abs(sum(shares.values()) - 1) > 1e-6:
        raise OptionError(f"the shares of the splits add up to {sum(shares.values()):g}, not 1: {shares}; {_FORM}")
    return shares


def names_in(text: str | None) -> tuple[str, ...]:
    """Return the columns of "hospital,patient", in their order."""
    return tuple(filter(None, map(str.strip, (text or "").split(","))))


def parse_points(keypoints: str | None) -> tuple[str, ...]:
    """Return the columns of "nose_x,nose_y,ear_x,ear_y", or nothing if it is one column. Raises OptionError."""
    names = names_in(keypoints)
    for x, y in zip_longest(names[::2], names[1::2], fillvalue="") if len(names) > 1 else ():
        pairs = {*zip(x.lower(), y.lower(), strict=False)}
        if len(x) != len(y) or ("x", "y") not in pairs or any(one != other for one, other in pairs - {("x", "y")}):
            raise OptionError(
                f"boxes.keypoints names the columns {x!r} and {y!r}. Expected those of x and y in turn, whose names "
                "differ in this letter alone, like nose_x,nose_y"
            )
    if len(set(names)) < len(names):
        raise OptionError(f"boxes.keypoints={keypoints!r} names a column twice. Each point has its own x and y")
    return names if len(names) > 1 else ()


def parse_sides(boxes: str, is_grouped: bool) -> tuple[str, ...]:
    """Return the four columns of "xmin,ymin,xmax,ymax", or nothing if it is one column. Raises OptionError."""
    sides = tuple(name.strip() for name in boxes.split(","))
    if len(sides) == 1 or (len(sides) != BOX and not is_grouped):
        return ()
    if len(set(sides) - {""}) != BOX or len(sides) != BOX:
        raise OptionError(
            f"boxes.column={boxes!r} names {len(sides)} columns. Expected one with all numbers of a box, or four "
            "different ones, like xmin,ymin,xmax,ymax"
        )
    if not is_grouped:
        raise OptionError(
            f"boxes.column={boxes!r} names four columns, of a table with a row for each box. Name also the column that "
            "is equal in all rows of one image: --group-by COLUMN"
        )
    return sides


def _check_images(options: ShardOptions) -> None:
    images = options.images
    if options.georeference and (images.pixels != "keep" or images.presize is not None):
        raise OptionError("georeference is for images that are kept as they are: pass --pixels keep, and no --presize")
    marks = [name for name in ("column", "keypoints") if getattr(options.boxes, name)]
    given = [f"boxes.{name}" for name in marks] + [name for name in _BESIDE_IMAGES if getattr(options, name)]
    if given and images.frames is not None:
        raise OptionError(f"frames make clips, and {given[0]} is for single images. Leave one of them out")


def _check_rename(names: Mapping[str, str]) -> None:
    """Raise OptionError for new names that cannot be."""
    if len({*names.values()}) < len(names):
        raise OptionError(f"rename gives two columns the same name: {names}. Give each its own")
    for new in names.values():
        if new in LOADERS_NAMES | {"mask", "source"}:  # the padding, and the dataset in a mixture
            raise OptionError(f"rename gives a column the name {new!r}, which loaders use. Choose another name")


def parse_pictures(image_columns: Mapping[str, str] | None, masks: bool) -> tuple[ImageColumn, ...]:
    """Return the further images of `image_columns`, and of a parallel folder of `masks`. Raises OptionError."""
    if masks and image_columns:
        raise OptionError(
            "masks names a folder parallel to the images, image_columns names table columns or suffixes of files in "
            "tars: give one of them"
        )
    pictures = [ImageColumn(MASKS, "", "mask")] if masks else []
    for name, value in (image_columns or {}).items():
        column, _, kind = value.rpartition(":")
        if not column or kind not in _DTYPES:
            raise OptionError(f"the image column {name}={value} lacks a column or a known kind; {_PICTURE_FORM}")
        if not _PICTURE_NAME.fullmatch(name) or name in _TAKEN:
            of_loaders = f". Loaders make {', '.join(sorted(_TAKEN))} themselves" if name in _TAKEN else ""
            raise OptionError(f"an image column cannot be called {name!r}: use letters, digits and '_'{of_loaders}")
        pictures.append(ImageColumn(name, column, cast(PictureKind, kind)))
    columns = [picture.column for picture in pictures]
    for column in columns:
        if columns.count(column) > 1:
            raise OptionError(f"two image columns are made from {column!r}; one is enough")
    return tuple(pictures)
