"""Columns of a batch by short names."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from tpufeed.dataset import schema
from tpufeed.dataset.manifest import Manifest
from tpufeed.errors import OptionError, RecordError
from tpufeed.tfrecord.example import Feature

IMAGE, SAMPLE, MASK = "image", "sample", "mask"
_OWN_NAMES = frozenset({IMAGE, SAMPLE, MASK})  # what loaders make; no feature can be asked for by these
_FEATURE_OF_NAME = {
    "label": schema.LABEL,
    "text": schema.TEXT,
    "height": schema.HEIGHT,
    "width": schema.WIDTH,
    "channels": schema.CHANNELS,
    "format": schema.FORMAT,
    "filename": schema.FILENAME,
}


@dataclass(frozen=True, slots=True)
class Column:
    """A column besides image and sample: where its values stand in a record.

    `position` is its place among the integers of the fixed layout; None where the record must be parsed.
    """

    name: str
    key: str
    dtype: str
    position: int | None

    def empty(self, rows: int) -> npt.NDArray[Any]:
        """Memory for `rows` values."""
        return np.empty(rows, {"int64": np.int64, "float32": np.float32}.get(self.dtype, np.object_))

    def value(self, features: dict[str, Feature], where: str) -> Any:
        """The one value of a parsed record. Raises RecordError where there is not exactly one."""
        feature = features.get(self.key)
        if feature is None or len(feature.values) != 1:
            raise RecordError(
                f"{where}: {self.key} has {0 if feature is None else len(feature.values)} values, not 1; leave the "
                f"column {self.name!r} out, or give each sample one value"
            )
        value = feature.values[0]
        if isinstance(value, memoryview):
            return str(value, "utf-8") if self.dtype == "string" else bytes(value)
        return value


def resolve_columns(manifest: Manifest, names: Sequence[str] | Literal["default"] | None) -> tuple[str, ...]:
    """The names of a batch's columns in order. Raises OptionError for one that the dataset does not have."""
    label = ("label",) if manifest.labelled else ()
    if names == "default":
        return (IMAGE, *label)
    if names is None:
        return (IMAGE, *label, SAMPLE)
    for name in names:
        if name not in (IMAGE, SAMPLE):
            find_column(manifest, name)
    return tuple(names)


def find_column(manifest: Manifest, name: str) -> Column:
    """The column `name`: a feature of exactly this name goes before what it is short for, except for labels.

    Raises:
        OptionError: the dataset does not have it, or it holds lists, or has no value in some samples.
    """
    features = {feature.name: feature for feature in manifest.features[1:]}
    short = _FEATURE_OF_NAME.get(name, name)
    wanted = name if name in features and (name != "label" or not manifest.labelled) else short
    if wanted not in features or wanted in _OWN_NAMES:
        shorts = [short for short, feature in _FEATURE_OF_NAME.items() if feature in features]
        known = dict.fromkeys((IMAGE, SAMPLE, *shorts, *sorted(features.keys() - _OWN_NAMES)))
        renamed = [feature.name for feature in features.values() if feature.key == name]
        hint = f". What the records call {name!r} is {renamed[0]}" if renamed else ""
        raise OptionError(f"no column {name!r}; this dataset has {', '.join(known)}{hint}")
    feature = features[wanted]
    if feature.shape is None and manifest.options.get("command") != "adopt":  # of others' records one may be skipped
        found, remedy = _lengths_of(feature)
        raise OptionError(
            f"the column {name!r} cannot be batched: {found} (`tpufeed info` says {feature.name} {feature.dtype}[]). "
            f"Leave it out of columns=; or build the dataset anew, with {remedy}"
        )
    ints = schema.fixed_ints(manifest.features)
    return Column(name, feature.key, feature.dtype, ints.index(wanted) if wanted in ints else None)


def _lengths_of(feature: schema.FeatureSpec) -> tuple[str, str]:
    """Say what keeps a feature of any length out of batches, and what to build instead."""
    fill, places = "missing values filled in", "a column for each place of lists of one length"
    if isinstance(feature.lengths, msgspec.UnsetType):  # of a dataset that does not say
        return "it holds lists, or some samples have no value in it", f"{fill}, or {places}"
    least, most = feature.lengths
    if most <= 1 and least == 0:
        return "some samples have no value in it", fill
    if least == most:
        values = "a list of one value" if most == 1 else f"{most} values"
        return f"each sample has {values} in it, and one is wanted", "a column for each of their places"
    return f"samples have {least} to {most} values in it, and one is wanted", "one value for each sample"
