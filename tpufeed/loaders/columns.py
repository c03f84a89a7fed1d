"""Columns of a batch by short names."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from tpufeed.dataset import schema
from tpufeed.dataset.manifest import Manifest
from tpufeed.errors import OptionError, RecordError
from tpufeed.tfrecord.example import Feature

Batch: TypeAlias = npt.NDArray[Any] | tuple[npt.NDArray[Any], ...] | dict[str, npt.NDArray[Any]]

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
    """A column besides image and sample, and where its values stand in a record.

    `position` is its place among the integers of the fixed layout; None where the record must be parsed.
    """

    name: str
    key: str
    dtype: str
    position: int | None

    def empty(self, rows: int) -> npt.NDArray[Any]:
        """Return memory for `rows` values."""
        return np.empty(rows, {"int64": np.int64, "float32": np.float32}.get(self.dtype, np.object_))

    def value(self, features: dict[str, Feature], where: str) -> Any:
        """Return the one value of a parsed record. Raises RecordError where there is not exactly one."""
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


@dataclass(frozen=True, slots=True)
class BatchForm:
    """Form of a batch as it is handed over: a dict or tuple of columns, or an array alone where there is but one."""

    names: tuple[str, ...]
    as_dict: bool

    def package(self, arrays: dict[str, npt.NDArray[Any]]) -> Batch:
        """Return the batch as the training loop gets it."""
        if self.as_dict:
            return {name: arrays[name] for name in self.names}
        return arrays[self.names[0]] if len(self.names) == 1 else tuple(arrays[name] for name in self.names)


def resolve_columns(manifest: Manifest, names: Sequence[str] | Literal["default"] | None) -> tuple[str, ...]:
    """Return the names of a batch's columns in order. Raises OptionError for one that the dataset does not have."""
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
    """Return the column `name`: a feature of exactly this name goes before what it is short for, except for labels.

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
    # What is not a fixed shape cannot be batched; in a dataset that was adopted a record that differs may be skipped.
    if feature.shape is None and manifest.options.get("command") != "adopt":
        fill, places = "missing values filled in", "a column for each place of lists of one length"
        least, most = (None, None) if isinstance(feature.lengths, msgspec.UnsetType) else feature.lengths
        if least is None or most is None:  # of a dataset that does not say
            found, remedy = "it holds lists, or some samples have no value in it", f"{fill}, or {places}"
        elif most <= 1 and least == 0:
            found, remedy = "some samples have no value in it", fill
        elif least == most:
            values = "a list of one value" if most == 1 else f"{most} values"
            found, remedy = f"each sample has {values} in it, and one is wanted", "a column for each of their places"
        else:
            found = f"samples have {least} to {most} values in it, and one is wanted"
            remedy = "one value for each sample"
        raise OptionError(
            f"the column {name!r} cannot be batched: {found} (`tpufeed info` says {feature.name} {feature.dtype}[]). "
            f"Leave it out of columns=; or build the dataset again, with {remedy}"
        )
    ints = schema.fixed_ints(manifest.features)
    return Column(name, feature.key, feature.dtype, ints.index(wanted) if wanted in ints else None)
