"""The schema of a dataset: the features of a record, their keys, and the fixed layout that follows from them."""

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec
import numpy as np

from tpufeed.errors import ManifestError, OptionError
from tpufeed.images.pixel_format import PIXEL_TYPES, PixelFormat
from tpufeed.tfrecord import example
from tpufeed.tfrecord.layout import FixedLayout

ENCODED = "image/encoded"
TENSOR = "image/tensor"
LABEL = "image/class/label"
TEXT = "image/class/text"
HEIGHT = "image/height"
WIDTH = "image/width"
CHANNELS = "image/channels"
FORMAT = "image/format"
FILENAME = "image/filename"
# With names="kaggle" only: height and width in one feature, and 1 for each class of the sample.
SIZE, ONE_HOT = "image/size", "image/class/one_hot"
# Short names of columns, as loaders and views take them.
FEATURE_OF_NAME = {
    "label": LABEL,
    "text": TEXT,
    "height": HEIGHT,
    "width": WIDTH,
    "channels": CHANNELS,
    "format": FORMAT,
    "filename": FILENAME,
}
# Features that tpufeed writes itself: no further column has one of these names.
OWN_NAMES = frozenset({ENCODED, TENSOR, LABEL, TEXT, HEIGHT, WIDTH, CHANNELS, FORMAT, FILENAME, SIZE, ONE_HOT})
# Columns that loaders make themselves: no further column has one of these names, either.
LOADERS_NAMES = frozenset({"image", "sample", "sample_mask", "window"})
_KAGGLE_KEYS = {
    ENCODED: "image",
    LABEL: "class",
    TEXT: "label",
    FILENAME: "id",
    SIZE: "size",
    ONE_HOT: "one_hot_class",
}

OBJECT_BOXES = "image/object/bbox/*"  # xmin, ymin, xmax and ymax as shares of the image's sides
OBJECT_XMIN = "image/object/bbox/xmin"
OBJECT_PREFIX = "image/object/"  # begins the keys of features that belong to these boxes
UNMOVED = (
    "image/object/mask",
    "image/object/keypoint/",
    "image/segmentation/",
)  # coordinates and masks that ops do not move
OBJECT_LABEL, OBJECT_TEXT = "image/object/class/label", "image/object/class/text"

# Names of the columns that hold the numbers of a box, in small letters and without "_" and "bbox", with their format.
_BOX_SIDES = (
    ("xmin ymin xmax ymax", ""),
    ("x1 y1 x2 y2", ""),
    ("left top right bottom", ""),
    ("x y w h", "xywh"),
    ("x y width height", "xywh"),
    ("xmin ymin width height", "xywh"),
    ("left top width height", "xywh"),
    ("xcenter ycenter width height", "cxcywh"),
)
BOX_NAMES = ("bbox", "box", "boundingbox")
_BOX = 4

DType = Literal["uint8", "uint16", "bool", "int32", "int64", "float16", "float32", "bytes", "string"]
Kind = Literal["image", "mask", "depth", "boxes", "keypoints"]
_LISTS: dict[DType, example.Kind] = {"bool": "int64", "int32": "int64", "int64": "int64", "float32": "float"}
_SCALARS: dict[DType, example.Kind] = {"uint8": "int64", "uint16": "int64", "float16": "float"}


class FeatureSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One feature of a record.

    Numbers are stored in C order in a list of int64 or float32. Protobuf has no lists of uint8, uint16 and float16:
    several of these are one bytes value, little-endian.

    Attributes:
        name: name of the column.
        dtype: type of its values in a batch.
        shape: () for a scalar, or None for a list of as many items as the sample has.
        stored_as: key in the records of an adopted dataset, if it differs from the name.
        lengths: the least and the most items of a sample, if the shape is None.
        item_shape: shape of an item of a list, if it is not a scalar.
        kind: kind of a column that moves with the crop: a further image, a mask (one channel of 8 bits), depth (of 16
            bits), boxes (left, top, right, bottom) or keypoints (x, y, and maybe their visibility), in pixels of the
            stored image.
        of: name of a column of boxes, if this column has one item for each box.
        boxes_of: the image that adopted boxes refer to, as shares of its sides, if it has an EXIF orientation: the
            "stored" image, or the "upright" one. By default the sizes in each record tell. If they do not, it is the
            stored one.
        flip_pairs: pairs of keypoints, by index, that are the left and the right of the same thing: a mirrored image
            swaps them. () if there are none. By default they are unknown, and nothing is swapped.
        pixels: pixel format of an image that is not `RGB8`. A clip is as many encoded images as it has frames.
    """

    name: str
    dtype: DType
    shape: tuple[int, ...] | None = ()
    stored_as: str | msgspec.UnsetType = msgspec.UNSET
    lengths: tuple[int, int] | msgspec.UnsetType = msgspec.UNSET
    item_shape: tuple[int, ...] | msgspec.UnsetType = msgspec.UNSET
    kind: Kind | msgspec.UnsetType = msgspec.UNSET
    of: str | msgspec.UnsetType = msgspec.UNSET
    boxes_of: Literal["stored", "upright"] | msgspec.UnsetType = msgspec.UNSET
    flip_pairs: tuple[tuple[int, int], ...] | msgspec.UnsetType = msgspec.UNSET
    pixels: PixelFormat | msgspec.UnsetType = msgspec.UNSET

    @property
    def key(self) -> str:
        """Key in the records."""
        return self.name if self.stored_as is msgspec.UNSET else self.stored_as

    @property
    def keys(self) -> tuple[str, ...]:
        """All its keys in the records: boxes of TensorFlow's Object Detection API are stored in four lists."""
        if not self.key.endswith(OBJECT_BOXES[-2:]):
            return (self.key,)
        return tuple(self.key[:-1] + side for side in ("xmin", "ymin", "xmax", "ymax"))

    @property
    def each(self) -> tuple[int, ...]:
        """Shape of an item of a list."""
        return () if self.item_shape is msgspec.UNSET else self.item_shape

    @property
    def is_picture(self) -> bool:
        """True for a further image, a mask or depth."""
        return self.kind in ("image", "mask", "depth")

    @property
    def is_raw(self) -> bool:
        """True if one bytes value holds all numbers of a sample."""
        return self.shape != () and self.stored_kind == "bytes" and self.dtype not in ("bytes", "string")

    def count_items(self, feature: example.Feature) -> float:
        """Return the number of items in a record's list, not a whole number if values are left over."""
        if self.is_raw:
            return sum(map(len, feature.values)) / (math.prod(self.each) * np.dtype(self.dtype).itemsize)
        return len(feature.values) / math.prod(self.each)

    @property
    def type_text(self) -> str:
        """Type and shape for people, like `float32[2 to 9, 4] boxes`."""
        if self.is_picture:
            return str(self.kind)
        if isinstance(self.pixels, PixelFormat) and not self.shape:
            return f"{self.dtype}, {self.pixels}"
        kind = f" {self.kind}" if isinstance(self.kind, str) else f" of {self.of}" if isinstance(self.of, str) else ""
        sizes = list(map(str, self.shape or self.each))
        if self.shape is None:
            least, most = self.lengths if isinstance(self.lengths, tuple) else (None, None)
            sizes.insert(0, "" if most is None else str(most) if least == most else f"{least} to {most}")
        if isinstance(self.flip_pairs, tuple):
            kind += f" (flips {' '.join(f'{one}:{other}' for one, other in self.flip_pairs) or 'none'})"
        return f"{self.dtype}[{', '.join(sizes)}]{kind}" if sizes else self.dtype + kind

    @property
    def stored_kind(self) -> example.Kind:
        """The kind of list that a record holds."""
        if self.is_picture:
            return "bytes"
        return _LISTS.get(self.dtype) or ("bytes" if self.shape != () else _SCALARS.get(self.dtype, "bytes"))


def flip_problem(spec: FeatureSpec) -> str:
    """Return why a column cannot have its `flip_pairs`, with the numbers, or "" if it can."""
    if isinstance(spec.flip_pairs, tuple) and spec.kind != "keypoints":
        return "flip_pairs are for keypoints"
    named = Counter(point for pair in spec.flip_pairs or () for point in pair)
    if not named:
        return ""
    twice = next((point for point, times in named.items() if times > 1), None)
    if twice is not None:
        return f"flip_pairs name point {twice} twice. Each point is in one pair"
    least, most = spec.lengths if isinstance(spec.lengths, tuple) else (0, 0)  # a manifest may leave them out
    if len(spec.each) == 2:
        least = most = spec.each[0]
    if least not in (0, most):
        return f"flip_pairs need lists of one length, but samples have {least} to {most} keypoints"
    beyond = next((point for point in named if point < 0 or 0 < most <= point), None)
    return "" if beyond is None else f"flip_pairs name point {beyond}. There are {most} keypoints, counted from 0"


def record_schema(
    labelled: bool,
    several: tuple[int, int] | None = None,
    of: str | None = None,
    pixels: PixelFormat | msgspec.UnsetType = msgspec.UNSET,
) -> tuple[FeatureSpec, ...]:
    """Return the features of the records that `shard` writes, in their order.

    Args:
        labelled: samples have labels.
        several: samples have lists of labels. The shortest and the longest have these lengths.
        of: the column of boxes, if each box has one of these labels.
        pixels: the pixel format of images that are not `RGB8`.
    """
    image = FeatureSpec(ENCODED, "bytes", pixels=pixels)
    sizes = (FeatureSpec(name, "int64") for name in (HEIGHT, WIDTH, CHANNELS))
    middle = (*sizes, FeatureSpec(FORMAT, "string"), FeatureSpec(FILENAME, "string"))
    if several is not None:
        form: dict[str, Any] = {"shape": None, "lengths": several, "of": of or msgspec.UNSET}
        return (image, *middle, FeatureSpec(LABEL, "int64", **form), FeatureSpec(TEXT, "string", **form))
    if labelled:
        return (image, FeatureSpec(LABEL, "int64"), *middle, FeatureSpec(TEXT, "string"))
    return (image, *middle)


def kaggle_keys(features: Iterable[FeatureSpec]) -> tuple[FeatureSpec, ...]:
    """Return the features under the keys that Kaggle's TPU guides read, like `image`, `class`, and `id` for the path.

    Raises:
        OptionError: a column has one of these names.
    """
    features = tuple(features)
    taken = next((feature.name for feature in features if feature.name in _KAGGLE_KEYS.values()), None)
    if taken is not None:
        own = next(name for name, key in _KAGGLE_KEYS.items() if key == taken)
        raise OptionError(f"a column is called {taken!r}, the key of {own} with names='kaggle'. Rename the column")
    return tuple(
        msgspec.structs.replace(feature, stored_as=_KAGGLE_KEYS.get(feature.name, feature.stored_as))
        for feature in features
    )


def kaggle_features(own: tuple[FeatureSpec, ...], classes: int) -> tuple[FeatureSpec, ...]:
    """Return the features of `record_schema`, and the ones that only Kaggle's TPU guides read."""
    one_hot = FeatureSpec(ONE_HOT, "float32", None, lengths=(classes, classes))
    labelled = any(feature.name == LABEL for feature in own)
    return (*own, FeatureSpec(SIZE, "int64", (2,)), *((one_hot,) if labelled else ()))


def kaggle_values(
    class_names: Sequence[bytes], labels: Iterable[int] | None, height: int, width: int
) -> dict[str, example.Feature]:
    """Return the text of a sample's labels, if it has any, and the values of the features that are only Kaggle's."""
    values = {SIZE: example.Feature("int64", (height, width))}
    if labels is None:
        return values
    found, one_hot = list(labels), np.zeros(len(class_names), np.float32)
    one_hot[found] = 1
    texts = example.Feature("bytes", [class_names[label] for label in found])
    return {**values, TEXT: texts, ONE_HOT: example.Feature("float", one_hot.tolist())}


def several_labels(features: Iterable[FeatureSpec]) -> bool:
    """Return true if samples have lists of labels."""
    return any(feature.name == LABEL and feature.shape is None for feature in features)


def further_columns(features: Iterable[FeatureSpec]) -> dict[str, str]:
    """Return the types of columns of a user's table by name, like `int64` or `float32[2 to 9, 4] boxes`.

    These are all features that do not have one of tpufeed's own names, and lists of labels.
    """
    shown = (spec for spec in features if spec.name not in OWN_NAMES or (spec.name == LABEL and spec.shape != ()))
    return {spec.name: spec.type_text for spec in shown}


def record_layout(features: tuple[FeatureSpec, ...]) -> FixedLayout:
    """Return the layout with the image, and the int64 scalars that follow it (`fixed_ints`), at fixed places.

    Raises:
        ManifestError: the first feature is not an image.
    """
    if not features or features[0].dtype not in ("bytes", *PIXEL_TYPES):
        raise ManifestError(f"the first feature of a dataset has to be its image. Found {[f.name for f in features]}")
    image, keys = features[0], [feature.key for feature in features[1 : 1 + len(fixed_ints(features))]]
    return FixedLayout(image.key, keys, image.dtype == "bytes" and bool(image.pixels and image.pixels.frames))


def name_boxes(names: Iterable[str]) -> tuple[tuple[str, ...], str]:
    """Return the columns whose names are those of a box or its four sides, and its format, or nothing."""
    bare = {name.rpartition(".")[2].strip().lower().replace("_", ""): name for name in names}
    sides = {name.removeprefix("bbox"): full for name, full in bare.items()}
    for text, form in _BOX_SIDES:
        if all(side in sides for side in text.split()):
            return tuple(sides[side] for side in text.split()), form
    found = next((name for name in BOX_NAMES if name in bare), None)
    return ((bare[found],), "xywh" if found == "bbox" else "") if found else ((), "")  # the usage of COCO


def plain_boxes(features: Iterable[FeatureSpec], options: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the columns of plain numbers that look like boxes. No crop moves these. Empty if there are real boxes.

    Columns that were declared are what they are. `options` are those of the build. Adopted records cannot be changed.
    """
    declared = options.get("columns") or ()
    specs = {spec.name: spec for spec in features}
    if options.get("command") == "adopt" or any(spec.kind == "boxes" for spec in specs.values()):
        return ()
    numbers = [name for name, spec in specs.items() if spec.dtype in _LISTS and name not in OWN_NAMES]
    columns, _ = name_boxes(name for name in numbers if specs[name].kind is msgspec.UNSET and name not in declared)
    found = [specs[name] for name in columns]
    if len(found) == 1 and not ((_BOX,) in (found[0].shape, found[0].each) or found[0].lengths == (_BOX, _BOX)):
        return ()
    return columns


def fixed_ints(features: tuple[FeatureSpec, ...]) -> tuple[str, ...]:
    """Return the names of the integers that `record_layout(features).decode` returns, in the same order."""
    ints = itertools.takewhile(lambda feature: feature.dtype == "int64" and feature.shape == (), features[1:])
    return tuple(feature.name for feature in ints)
