"""What moves with the crops of a cache: further images, masks, boxes and keypoints, for each variant anew."""

import io
from collections.abc import Callable, Mapping, Sequence

import msgspec
import numpy as np
from PIL import Image

from tpufeed.cache.options import CacheOptions, Size
from tpufeed.dataset.schema import FeatureSpec
from tpufeed.errors import RecordError
from tpufeed.images.decoding import Pixels
from tpufeed.images.geometry import Geometry
from tpufeed.images.mending import seen_size
from tpufeed.images.pipeline import Pipeline
from tpufeed.images.policy import encode
from tpufeed.images.protocols import Draws
from tpufeed.loaders.columns import Sample as ParsedSample
from tpufeed.tfrecord.example import Feature, encode_entry
from tpufeed.tfrecord.framing import BytesLike


def moves(spec: FeatureSpec) -> bool:
    """Return true for a feature that another crop makes another."""
    return isinstance(spec.kind, str) or isinstance(spec.of, str)


def cached_spec(spec: FeatureSpec, options: CacheOptions, size: Size) -> FeatureSpec:
    """Return how a cache holds a feature of its source."""
    spec = msgspec.structs.replace(spec, stored_as=msgspec.UNSET, boxes_of=msgspec.UNSET)
    if spec.kind == "boxes" or isinstance(spec.of, str):  # crops drop some
        most = spec.lengths[1] if isinstance(spec.lengths, tuple) else (spec.shape or (0,))[0]
        return msgspec.structs.replace(spec, shape=None, lengths=(0, most))
    if not spec.is_picture:
        return spec
    if options.encode != "raw":
        return msgspec.structs.replace(spec, dtype="bytes", shape=())
    shape = (*size, 3) if spec.kind == "image" else size
    return msgspec.structs.replace(spec, dtype="int32" if spec.kind == "depth" else "uint8", shape=shape)


class Mover:
    """Encodes what moves. Not for several threads.

    Args:
        source: the features of the source.
        options: of the cache.
        pipeline: the ops.
    """

    def __init__(self, source: Sequence[FeatureSpec], options: CacheOptions, pipeline: Pipeline) -> None:
        self._specs = {spec.name: spec for spec in source}
        self._moving = [spec for spec in source[1:] if moves(spec)]
        self._options, self._pipeline = options, pipeline

    def __bool__(self) -> bool:
        return bool(self._moving)

    def encode(
        self,
        features: Mapping[str, Feature],
        where: str,
        image: bytes | memoryview | Pixels,
        draws: Sequence[Sequence[Draws]],
    ) -> list[bytes]:
        """Return the entries of what moves, one for each variant.

        Args:
            features: of the record, by their keys.
            where: the sample's name, for errors.
            image: of the sample, encoded or uint8 pixels.
            draws: for each variant one entry an op.

        Raises:
            ImageError, RecordError: a feature is not what the manifest says.
        """
        entries, upright = [], self._pipeline.upright
        size = image.shape[:2] if isinstance(image, np.ndarray) else seen_size(image, upright)
        for drawn in draws:
            finder = _geometry_finder(self._pipeline, size, drawn)
            sample = ParsedSample(features, where, self._specs, finder, 0.0, upright=upright)
            made = ((spec.name, self._feature(spec, sample, drawn)) for spec in self._moving)
            entries.append(b"".join(encode_entry(name, feature) for name, feature in made))
        return entries

    def _feature(self, spec: FeatureSpec, sample: ParsedSample, draws: Sequence[Draws]) -> Feature:
        if spec.kind == "image":
            return Feature("bytes", (self._image(spec, sample, draws),))
        if spec.kind in ("mask", "depth"):
            return Feature("bytes", (self._mask(sample.mask(spec, 0), spec),))
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

    def _image(self, spec: FeatureSpec, sample: ParsedSample, draws: Sequence[Draws]) -> bytes:
        found = sample.values(spec)
        if len(found) != 1:
            raise RecordError(f"{sample.where}: {spec.key} is missing")
        return bytes(encode_pixels(self._pipeline.run_stored(memoryview(found[0]), spec.shape, draws), self._options))

    def _mask(self, values: np.ndarray[tuple[int, ...], np.dtype[np.integer]], spec: FeatureSpec) -> bytes:
        if self._options.encode == "raw":
            return values.astype("<i4" if spec.kind == "depth" else np.uint8).tobytes()
        buffer = io.BytesIO()
        stored = values.astype(np.uint16 if spec.kind == "depth" else np.uint8)
        Image.fromarray(stored).save(buffer, "PNG", compress_level=3)
        return buffer.getvalue()


def _geometry_finder(pipeline: Pipeline, size: tuple[int, int], draws: Sequence[Draws]) -> Callable[[], Geometry]:
    return lambda: pipeline.geometry(*size, draws)


def encode_pixels(pixels: Pixels, options: CacheOptions) -> BytesLike:
    """The bytes that a record holds of uint8 pixels."""
    if options.encode == "raw":
        return np.ascontiguousarray(pixels).data.cast("B")
    return encode(pixels, options.encode, options.quality)
