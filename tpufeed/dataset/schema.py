"""Features of a record: their keys, and the fixed layout that follows from a schema."""

from typing import Literal

import msgspec

from tpufeed.errors import ManifestError
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

DType = Literal["uint8", "int64", "float32", "bytes", "string"]


class FeatureSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One feature: `shape` [] is a scalar, None is of any length; a uint8 shape is (height, width, channels)."""

    name: str
    dtype: DType
    shape: tuple[int, ...] | None = ()


def record_schema(labelled: bool) -> tuple[FeatureSpec, ...]:
    """The features of the records that `shard` writes, in the order in which they stand."""
    image = FeatureSpec(ENCODED, "bytes")
    label = (FeatureSpec(LABEL, "int64"),) if labelled else ()
    sizes = tuple(FeatureSpec(name, "int64") for name in (HEIGHT, WIDTH, CHANNELS))
    text = (FeatureSpec(TEXT, "string"),) if labelled else ()
    return (image, *label, *sizes, FeatureSpec(FORMAT, "string"), FeatureSpec(FILENAME, "string"), *text)


def record_layout(features: tuple[FeatureSpec, ...]) -> FixedLayout:
    """The image and the int64 scalars that follow it stand at fixed places.

    Raises:
        ManifestError: the first feature is no image.
    """
    if not features or features[0].dtype not in ("bytes", "uint8"):
        raise ManifestError(f"the first feature of a dataset is its image; this one's are {[f.name for f in features]}")
    ints: list[str] = []
    for feature in features[1:]:
        if feature.dtype != "int64" or feature.shape != ():
            break
        ints.append(feature.name)
    return FixedLayout(features[0].name, ints)
