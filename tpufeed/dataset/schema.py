"""Features of a record: their keys, and the fixed layout that follows from a schema."""

import itertools
from collections import Counter
from collections.abc import Iterable
from typing import Literal

import msgspec

from tpufeed.errors import ManifestError, OptionError
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
_KAGGLE_KEYS = {ENCODED: "image", LABEL: "class", FILENAME: "id"}

OBJECT_BOXES = "image/object/bbox/*"  # xmin, ymin, xmax and ymax in shares of the image's sides
OBJECT_XMIN = "image/object/bbox/xmin"
OBJECT_PREFIX = "image/object/"  # of what belongs to boxes there
UNMOVED = ("image/object/mask", "image/object/keypoint/", "image/segmentation/")  # lie in the picture, and stay there
OBJECT_LABEL, OBJECT_TEXT = "image/object/class/label", "image/object/class/text"

DType = Literal["uint8", "bool", "int32", "int64", "float16", "float32", "bytes", "string"]
Kind = Literal["image", "mask", "depth", "boxes", "keypoints"]
_LISTS: dict[DType, example.Kind] = {"bool": "int64", "int32": "int64", "int64": "int64", "float32": "float"}
_SCALARS: dict[DType, example.Kind] = {"uint8": "int64", "float16": "float"}


class FeatureSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One feature of a record.

    Numbers stand in C order in a list of int64 or float32. Protobuf has no lists of uint8 and float16: more than one
    of these are one bytes value, little-endian.

    Attributes:
        name: of the column.
        dtype: of its values in a batch.
        shape: () is a scalar; None is a list of as many items as the sample has.
        stored_as: the key in the records of an adopted dataset, where that is another than the name.
        lengths: the least and the most items that a sample has where the shape is None; older datasets do not say.
        item_shape: of an item of a list, where that is no scalar.
        kind: what moves with the crop: a further image, a mask (one channel of 8 bits), depth (of 16 bits), boxes
            (left, top, right, bottom) or keypoints (x, y, and maybe their visibility), in pixels of the stored image.
        of: the column of boxes, each of which has one item of this column.
        boxes_of: of adopted boxes, which are shares of the sides of an image with an EXIF orientation: of the "stored"
            image, or of the "upright" one. Without it the sizes of each record tell, and else it is the stored one.
        flip_pairs: of keypoints, which of them are the left and the right of the same, as places in their list: a
            mirrored picture swaps them. () if there are none; without it they are not known, and stay as they are.
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

    @property
    def key(self) -> str:
        """The feature's key in the records."""
        return self.name if self.stored_as is msgspec.UNSET else self.stored_as

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of the records that hold it: boxes of TensorFlow's Object Detection API stand in four lists."""
        if not self.key.endswith(OBJECT_BOXES[-2:]):
            return (self.key,)
        return tuple(self.key[:-1] + side for side in ("xmin", "ymin", "xmax", "ymax"))

    @property
    def each(self) -> tuple[int, ...]:
        """The shape of an item of a list."""
        return () if self.item_shape is msgspec.UNSET else self.item_shape

    @property
    def is_picture(self) -> bool:
        """True for a further image, a mask or depth."""
        return self.kind in ("image", "mask", "depth")

    @property
    def is_raw(self) -> bool:
        """True where one bytes value holds all numbers of a sample."""
        return self.shape != () and self.stored_kind == "bytes" and self.dtype not in ("bytes", "string")

    @property
    def type_text(self) -> str:
        """Type and shape for people, like `float32[2 to 9, 4] boxes`."""
        if self.is_picture:
            return str(self.kind)
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
    """Say why a column cannot have its `flip_pairs`, with the numbers; return "" if it can."""
    if isinstance(spec.flip_pairs, tuple) and spec.kind != "keypoints":
        return "flip_pairs are of keypoints"
    named = Counter(point for pair in spec.flip_pairs or () for point in pair)
    if not named:
        return ""
    twice = next((point for point, times in named.items() if times > 1), None)
    if twice is not None:
        return f"flip_pairs name point {twice} twice; each point is in one pair"
    least, most = spec.lengths if isinstance(spec.lengths, tuple) else (0, 0)  # older datasets do not say it
    if len(spec.each) == 2:
        least = most = spec.each[0]
    if least not in (0, most):
        return f"flip_pairs are of lists of one length, and samples have {least} to {most} keypoints"
    beyond = next((point for point in named if point < 0 or 0 < most <= point), None)
    return "" if beyond is None else f"flip_pairs name point {beyond}; there are {most} keypoints, which count from 0"


def record_schema(
    labelled: bool, several: tuple[int, int] | None = None, of: str | None = None
) -> tuple[FeatureSpec, ...]:
    """The features of the records that `shard` writes, in the order in which they stand.

    Args:
        labelled: samples have labels.
        several: samples have lists of labels: the length of the shortest and of the longest.
        of: the column of boxes, of which each has one of these labels.
    """
    image = FeatureSpec(ENCODED, "bytes")
    sizes = tuple(FeatureSpec(name, "int64") for name in (HEIGHT, WIDTH, CHANNELS))
    names = FeatureSpec(FORMAT, "string"), FeatureSpec(FILENAME, "string")
    if several is not None:
        owner = msgspec.UNSET if of is None else of
        lists = (FeatureSpec(LABEL, "int64", None, lengths=several, of=owner), FeatureSpec(TEXT, "string", None))
        return (image, *sizes, *names, lists[0], msgspec.structs.replace(lists[1], lengths=several, of=owner))
    label = (FeatureSpec(LABEL, "int64"),) if labelled else ()
    text = (FeatureSpec(TEXT, "string"),) if labelled else ()
    return (image, *label, *sizes, *names, *text)


def kaggle_keys(features: Iterable[FeatureSpec]) -> tuple[FeatureSpec, ...]:
    """The features under the keys that the TPU guides of Kaggle read: `image`, `class` and `id`, the sample's path.

    Raises:
        OptionError: a column has one of these names.
    """
    features = tuple(features)
    taken = next((feature.name for feature in features if feature.name in _KAGGLE_KEYS.values()), None)
    if taken is not None:
        own = next(name for name, key in _KAGGLE_KEYS.items() if key == taken)
        raise OptionError(
            f"a column is called {taken!r}, which is the key of {own} with names='kaggle'; rename the column"
        )
    return tuple(
        msgspec.structs.replace(feature, stored_as=_KAGGLE_KEYS.get(feature.name, feature.stored_as))
        for feature in features
    )


def several_labels(features: Iterable[FeatureSpec]) -> bool:
    """Return true where samples have lists of labels."""
    return any(feature.name == LABEL and feature.shape is None for feature in features)


def further_columns(features: Iterable[FeatureSpec]) -> dict[str, str]:
    """Types of the columns of a user's table, like `int64` or `float32[2 to 9, 4] boxes`.

    They are those of features without a name of tpufeed's own, and of lists of labels.
    """
    own = {TENSOR, *(spec.name for spec in record_schema(labelled=True))}
    shown = (spec for spec in features if spec.name not in own or (spec.name == LABEL and spec.shape != ()))
    return {spec.name: spec.type_text for spec in shown}


def record_layout(features: tuple[FeatureSpec, ...]) -> FixedLayout:
    """The image and the int64 scalars that follow it (`fixed_ints`) stand at fixed places.

    Raises:
        ManifestError: the first feature is no image.
    """
    if not features or features[0].dtype not in ("bytes", "uint8"):
        raise ManifestError(f"the first feature of a dataset is its image; this one's are {[f.name for f in features]}")
    return FixedLayout(features[0].key, [feature.key for feature in features[1 : 1 + len(fixed_ints(features))]])


def fixed_ints(features: tuple[FeatureSpec, ...]) -> tuple[str, ...]:
    """The names of the integers that `record_layout(features).decode` gives, in its order."""
    ints = itertools.takewhile(lambda feature: feature.dtype == "int64" and feature.shape == (), features[1:])
    return tuple(feature.name for feature in ints)
