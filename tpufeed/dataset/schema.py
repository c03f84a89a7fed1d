"""Features of a record: their keys, and the fixed layout that follows from a schema."""

import itertools
from collections.abc import Iterable
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
    """One feature: `shape` [] is a scalar, None is of any length; a uint8 shape is (height, width, channels).

    `stored_as` is its key in the records of an adopted dataset, where that is another than its name. `lengths` are the
    least and the most values that the inputs of a dataset have where the shape is None; older datasets do not say.
    """

    name: str
    dtype: DType
    shape: tuple[int, ...] | None = ()
    stored_as: str | msgspec.UnsetType = msgspec.UNSET
    lengths: tuple[int, int] | msgspec.UnsetType = msgspec.UNSET

    @property
    def key(self) -> str:
        """The feature's key in the records."""
        return self.name if self.stored_as is msgspec.UNSET else self.stored_as


def record_schema(labelled: bool) -> tuple[FeatureSpec, ...]:
    """The features of the records that `shard` writes, in the order in which they stand."""
    image = FeatureSpec(ENCODED, "bytes")
    label = (FeatureSpec(LABEL, "int64"),) if labelled else ()
    sizes = tuple(FeatureSpec(name, "int64") for name in (HEIGHT, WIDTH, CHANNELS))
    text = (FeatureSpec(TEXT, "string"),) if labelled else ()
    return (image, *label, *sizes, FeatureSpec(FORMAT, "string"), FeatureSpec(FILENAME, "string"), *text)


def further_columns(features: Iterable[FeatureSpec]) -> dict[str, str]:
    """Types of the columns of a user's table, `int64` or `int64[]`: of features without a name of tpufeed's own."""
    own = {TENSOR, *(spec.name for spec in record_schema(labelled=True))}
    return {spec.name: spec.dtype + "[]" * (spec.shape is None) for spec in features if spec.name not in own}


def record_layout(features: tuple[FeatureSpec, ...]) -> FixedLayout:
    """The image and the int64 scalars that follow it (`fixed_ints`) stand at fixed places.

    Raises:
        ManifestError: the first feature is no image.
    """
    if not features or features[0].dtype not in ("bytes", "uint8"):
        raise ManifestError(f"the first feature of a dataset is its image; this one's are {[f.name for f in features]}")
    return FixedLayout(features[0].key, [feature.key for feature in _leading_ints(features)])


def fixed_ints(features: tuple[FeatureSpec, ...]) -> tuple[str, ...]:
    """The names of the integers that `record_layout(features).decode` gives, in its order."""
    return tuple(feature.name for feature in _leading_ints(features))


def _leading_ints(features: tuple[FeatureSpec, ...]) -> list[FeatureSpec]:
    return list(itertools.takewhile(lambda feature: feature.dtype == "int64" and feature.shape == (), features[1:]))
