"""Crop and flip further images, masks, boxes and keypoints together with the image, for each variant of a cache."""

from collections.abc import Mapping, Sequence
from functools import partial

import msgspec
import numpy as np

from tpufeed.cache.options import CacheOptions, Size
from tpufeed.dataset.sample import Sample
from tpufeed.dataset.schema import FeatureSpec
from tpufeed.errors import RecordError
from tpufeed.images.coefficients import encode_coefficients
from tpufeed.images.decoding import Pixels
from tpufeed.images.masks import encode_mask
from tpufeed.images.mending import seen_size
from tpufeed.images.pipeline import Pipeline
from tpufeed.images.pixel_format import RGB8
from tpufeed.images.policy import encode
from tpufeed.images.protocols import Draws
from tpufeed.tfrecord.example import Feature, encode_entry
from tpufeed.tfrecord.framing import BytesLike
from tpufeed.tfrecord.layout import pack_values


def moves(spec: FeatureSpec) -> bool:
    """Return True for a feature that changes with the crop."""
    return isinstance(spec.kind, str) or isinstance(spec.of, str)


def cached_spec(spec: FeatureSpec, options: CacheOptions, size: Size) -> FeatureSpec:
    """Return how a cache stores this feature."""
    spec = msgspec.structs.replace(spec, stored_as=msgspec.UNSET, boxes_of=msgspec.UNSET)
    if spec.kind == "boxes" or isinstance(spec.of, str):  # crops drop some boxes
        most = spec.lengths[1] if isinstance(spec.lengths, tuple) else (spec.shape or (0,))[0]
        return msgspec.structs.replace(spec, shape=None, lengths=(0, most))
    if not spec.is_picture:
        return spec
    if options.encode != "raw":  # encoded files: a reader learns their size by decoding them
        return msgspec.structs.replace(spec, dtype="bytes", shape=())
    shape = RGB8.shape(size) if spec.kind == "image" else size
    return msgspec.structs.replace(spec, dtype="int32" if spec.kind == "depth" else "uint8", shape=shape)


class Mover:
    """Encodes the features that change with the crop. Not thread-safe."""

    def __init__(self, source: Sequence[FeatureSpec], options: CacheOptions, pipeline: Pipeline) -> None:
        self._specs = {spec.name: spec for spec in source}
        self._moving = [spec for spec in source[1:] if moves(spec)]
        self._options, self._pipeline = options, pipeline

    def encode(
        self,
        features: Mapping[str, Feature],
        where: str,
        image: bytes | memoryview | Pixels,
        draws: Sequence[Sequence[Draws]],
    ) -> list[bytes]:
        """Return the encoded entries of the features that change with the crop, for each variant.

        Args:
            features: features of the record, by their keys.
            where: name of the sample, for errors.
            image: encoded image, or pixels.
            draws: one entry per op, for each variant.

        Raises:
            ImageError, RecordError: a feature is not what the manifest says.
        """
        if not self._moving:
            return [b""] * len(draws)
        entries, upright = [], self._pipeline.upright
        height, width = image.shape[:2] if isinstance(image, np.ndarray) else seen_size(image, upright)
        for drawn in draws:
            find_geometry = partial(self._pipeline.geometry, height, width, drawn)
            sample = Sample(features, where, self._specs, find_geometry, 0.0, upright=upright)
            made = ((spec.name, self._feature(spec, sample, drawn)) for spec in self._moving)
            entries.append(b"".join(encode_entry(name, feature) for name, feature in made))
        return entries

    def _feature(self, spec: FeatureSpec, sample: Sample, draws: Sequence[Draws]) -> Feature:
        if spec.kind == "image":
            found = sample.values(spec)
            if len(found) != 1:
                raise RecordError(f"{sample.where}: {spec.key} is missing")
            pixels = self._pipeline.run_stored(memoryview(found[0]), spec.shape, draws)
            return Feature("bytes", (bytes(encode_pixels(pixels, self._options)),))
        if spec.kind in ("mask", "depth"):
            values = sample.mask(spec, 0)
            if self._options.encode == "raw":
                return Feature("bytes", (values.astype("<i4" if spec.kind == "depth" else np.uint8).tobytes(),))
            return Feature("bytes", (encode_mask(values, "mask" if spec.kind == "mask" else "depth"),))
        if spec.dtype in ("bytes", "string"):
            return Feature("bytes", sample.texts(spec))
        if spec.kind == "boxes":
            items = sample.boxes(spec)
        elif spec.kind == "keypoints":
            items, _ = sample.points(spec)
        else:
            items = sample.items(spec)
        if spec.is_raw:
            return Feature("bytes", (np.ascontiguousarray(items).tobytes(),))
        return Feature(spec.stored_kind, items.ravel().tolist())


def encode_pixels(pixels: Pixels, options: CacheOptions, jpeg: bytes | memoryview | None = None) -> BytesLike:
    """Return the bytes of pixels for a record. `jpeg`: as in `encode_coefficients`."""
    if options.encode == "raw":
        little = pixels.dtype.newbyteorder("<")
        return np.ascontiguousarray(pixels, little).data.cast("B")
    if options.encode == "dct":
        return encode_coefficients(pixels, options.quality, jpeg)
    if pixels.ndim == 4:  # a clip
        return pack_values([encode(frame, options.encode, options.quality) for frame in pixels])
    return encode(pixels, options.encode, options.quality)
