"""A parsed record, and where the ops move its boxes, points and masks."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from tpufeed.dataset import schema
from tpufeed.dataset.object_boxes import read_boxes
from tpufeed.dataset.reader import ClassIds
from tpufeed.dataset.schema import FeatureSpec
from tpufeed.errors import RecordError
from tpufeed.images.geometry import Geometry
from tpufeed.images.masks import decode_mask
from tpufeed.images.protocols import Draws, Op
from tpufeed.tfrecord.example import Feature


@dataclass
class Sample:
    """A parsed record that is decoded into a row. `geometry` is computed when a column first asks for it.

    Attributes:
        features: the features of the record by their keys, numbers as arrays.
        where: the record's name, for errors.
        specs: the dataset's features by name.
        find_geometry: computes how the ops move the image.
        min_visibility: a box is dropped if less than this share of its area is left.
        classes: the ids that labels get. None if they stay as stored.
        upright: True if the image is turned by its EXIF orientation before the ops see it.
        draws: random numbers of the ops, one entry per op.
        dropped: number of boxes that were dropped.
    """

    features: Mapping[str, Feature]
    where: str
    specs: Mapping[str, FeatureSpec]
    find_geometry: Callable[[], Geometry]
    min_visibility: float
    classes: ClassIds | None = None
    upright: bool = field(kw_only=True)
    draws: Sequence[Draws] = ()
    dropped: int = 0
    _whole: Geometry | None = None
    _changed: Mapping[str, Any] = field(default_factory=dict)
    _boxes: dict[str, tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]]] = field(default_factory=dict)

    def behind(self, find_geometry: Callable[[], Geometry], whole: Geometry, changed: Mapping[str, Any]) -> "Sample":
        """Return the sample as it is after some of the ops, for the next ops.

        Args:
            find_geometry: computes how the next ops move the image.
            whole: how all ops together move it.
            changed: values by feature name, in pixels of the image. Other columns are as stored.
        """
        return replace(self, find_geometry=find_geometry, _whole=whole, _changed=changed, _boxes={})

    @cached_property
    def geometry(self) -> Geometry:
        """Map from the result to the stored image."""
        return self.find_geometry()

    @property
    def window(self) -> tuple[float, float, float, float]:
        """The part of the stored image that the result shows: (top, left, height, width) in pixels."""
        return (self._whole or self.geometry).bounds()

    def values(self, spec: FeatureSpec) -> Any:
        """Return a feature's values. Raises RecordError if it holds another kind of list."""
        if spec.name in self._changed:  # one value
            return [self._changed[spec.name]]
        feature = self.features.get(spec.key)
        if feature is None or not len(feature.values):  # an empty list has no type
            return np.empty(0, np.int64)
        if feature.kind != spec.stored_kind:
            raise RecordError(f"{self.where}: {spec.key} holds {feature.kind}, not {spec.dtype}")
        return feature.values

    def items(self, spec: FeatureSpec) -> npt.NDArray[Any]:
        """Return the numbers of a list or tensor, of shape (items, *shape of an item).

        Items of dropped boxes are left out. Labels are ids of the mixture's classes. Raises RecordError.
        """
        if spec.name in self._changed:
            items: npt.NDArray[Any] = self._changed[spec.name]
            return items[self._kept(spec, len(items))] if isinstance(spec.of, str) else items
        if len(spec.keys) > 1:  # TensorFlow's Object Detection API, in pixels of the image as the ops see it
            height, width = self.geometry.source
            (image,) = self.features[self.specs[schema.ENCODED].key].values
            shares = read_boxes(self.features, spec, image, self.upright, self.where)
            return (shares * (width, height, width, height)).astype(np.float32)
        found, each = self.values(spec), spec.each if spec.shape is None else spec.shape[1:]
        if spec.is_raw:
            data = b"" if not len(found) else found[0]
            dtype = np.dtype(spec.dtype).newbyteorder("<")
            if len(found) > 1 or len(data) % dtype.itemsize:
                raise RecordError(f"{self.where}: {spec.key} is not an array of {spec.dtype}: {len(data)} bytes")
            found = np.frombuffer(data, dtype)
        size = int(np.prod(each))
        if len(found) % size:
            raise RecordError(
                f"{self.where}: {spec.key} has {len(found)} values, which do not make items of shape {each}"
            )
        items = np.asarray(found).reshape(-1, *each)
        if spec.name == schema.LABEL and self.classes is not None:
            items = self.classes.of(items, lambda _: self.where)
        return items[self._kept(spec, len(items))] if isinstance(spec.of, str) else items

    def boxes(self, spec: FeatureSpec) -> npt.NDArray[np.float32]:
        """Return the boxes that are kept, in pixels of the result."""
        return self._move(spec)[0]

    def points(self, spec: FeatureSpec) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]]:
        """Return points in pixels of the result, and which of them it shows.

        The points of each pair are swapped if the result is a mirror image. Raises RecordError.
        """
        stored = self.items(spec)
        moved, visible = self.geometry.move_points(stored.reshape(-1, stored.shape[-1]))
        moved, visible = moved.reshape(stored.shape), visible.reshape(stored.shape[:-1])
        if not stored.size or not spec.flip_pairs or not self.geometry.is_mirrored:
            return moved, visible
        order = np.arange(stored.shape[-2])
        pairs = np.array(spec.flip_pairs).T
        if pairs.max() >= len(order):
            raise RecordError(f"{self.where}: {spec.key} has {len(order)} points, and flip_pairs name {pairs.max()}")
        order[pairs] = order[pairs[::-1]]
        return moved[..., order, :], visible[..., order]

    def mask(self, spec: FeatureSpec, fill: int, out: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
        """Return a mask, uint8, or depth, int32, as the result shows it. Raises RecordError, ImageError."""
        stored, geometry = self._picture(spec), self.geometry
        if stored.shape != geometry.source:
            raise RecordError(
                f"{self.where}: {spec.key} has {stored.shape[1]}x{stored.shape[0]} pixels; its image has "
                f"{geometry.source[1]}x{geometry.source[0]}"
            )
        return geometry.warp(stored, fill, out)

    def texts(self, spec: FeatureSpec) -> list[bytes]:
        """Return the texts of a list, without those of dropped boxes."""
        found = [bytes(value) for value in self.values(spec)]
        if not isinstance(spec.of, str):
            return found
        return [value for value, kept in zip(found, self._kept(spec, len(found)), strict=True) if kept]

    def _kept(self, spec: FeatureSpec, items: int) -> npt.NDArray[np.bool_]:
        """Return which items belong to boxes that are kept. Raises RecordError."""
        kept = self._move(self.specs[str(spec.of)])[1]
        if len(kept) != items:
            raise RecordError(f"{self.where}: {spec.key} has {items} items for {len(kept)} boxes in {spec.of}")
        return kept

    def _move(self, spec: FeatureSpec) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]]:
        if spec.name not in self._boxes:
            moved, kept = self.geometry.move_boxes(self.items(spec), self.min_visibility)
            self._boxes[spec.name] = moved[kept], kept
            self.dropped += len(kept) - int(kept.sum())
        return self._boxes[spec.name]

    def _picture(self, spec: FeatureSpec) -> npt.NDArray[Any]:
        if spec.name in self._changed:
            mask: npt.NDArray[Any] = self._changed[spec.name]
            return mask
        (data,) = self.values(spec) if len(self.values(spec)) == 1 else (None,)
        if data is None:
            raise RecordError(f"{self.where}: {spec.key} is missing")
        if spec.shape:  # raw, in a cache
            dtype = np.dtype(spec.dtype).newbyteorder("<")
            expected = dtype.itemsize * int(np.prod(spec.shape))
            if len(data) != expected:
                raise RecordError(
                    f"{self.where}: {spec.key} has {len(data)} bytes; {spec.dtype} {spec.shape} takes {expected}"
                )
            return np.frombuffer(data, dtype).reshape(spec.shape)
        if spec.kind == "mask":
            return decode_mask(data, "mask")
        return decode_mask(data, "depth").astype(np.int32)  # which holds every `fill`, such as -1


def iter_flip_warnings(specs: Iterable[FeatureSpec | None], ops: Sequence[Op]) -> Iterator[str]:
    """Yield a warning for each column of keypoints that the ops may mirror without swapping left and right."""
    points = [spec for spec in specs if spec is not None and spec.kind == "keypoints"]
    for spec in points:
        mirrors = next((type(op).__name__ for op in ops if getattr(op, "mirrors", False)), None)
        if mirrors and isinstance(spec.flip_pairs, msgspec.UnsetType):
            yield (
                f"{mirrors} mirrors images, and the dataset does not say which points of {spec.name!r} are left or "
                "right: a mirrored left eye looks like a right eye, but keeps the place of left eyes. Build the "
                "dataset again with the pairs of its points (--flip-pairs 1:2,3:4), or with --flip-pairs none"
            )
