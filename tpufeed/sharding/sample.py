"""The bytes of an input's files become what its record holds."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from tpufeed.dataset.plan import Input
from tpufeed.dataset.schema import FORMAT, FeatureSpec
from tpufeed.errors import ImageError
from tpufeed.images.geometry import Geometry
from tpufeed.images.masks import store_mask
from tpufeed.images.policy import ImagePolicy, StoredImage, store_image, stored_geometry
from tpufeed.sharding.boxes import BoxMover
from tpufeed.sharding.inputs import InputFeatures
from tpufeed.tfrecord.example import Feature


class StoredSample(NamedTuple):
    """A sample as its record holds it.

    Attributes:
        image: its image.
        rest: the features besides image, label and sizes.
        bytes: of its image and its further images.
        dropped_boxes: lie outside the stored image, and were left out.
    """

    image: StoredImage
    rest: dict[str, Feature]
    bytes: int
    dropped_boxes: int = 0


class SampleMaker:
    """Makes samples as a policy and a schema want them.

    Args:
        features: of the records.
        class_names: names of the classes.
        policy: how images are stored.
        options: of the build, as its plan has them.
    """

    def __init__(
        self,
        features: Sequence[FeatureSpec],
        class_names: Sequence[str],
        policy: ImagePolicy,
        options: dict[str, Any],
    ) -> None:
        self.columns = InputFeatures(features, class_names)
        self.keys = {feature.name: feature.key for feature in features}  # of the records
        self._pictures = [spec for spec in features if spec.is_picture]
        self._boxes = BoxMover(features, options.get("box_format"))
        self._policy = policy

    @property
    def depends_on_more(self) -> bool:
        """True if an image may be rejected for more than its own bytes: for its name, its boxes or its masks."""
        return bool(self._pictures or self._boxes or self._policy.extension == "reject")

    def __call__(self, item: Input, data: Sequence[bytes]) -> StoredSample:
        """Return the sample of an input.

        Args:
            item: the input.
            data: the bytes of its `files`.

        Raises:
            ImageError: it cannot be taken; names the file, or column and value.
        """
        image = store_image(data[0], self._policy, item.path)
        rest = {FORMAT: Feature("bytes", (image.format.encode(),)), **self.columns(item)}
        if not self._pictures and not self._boxes:
            return StoredSample(image, rest, len(image.data))
        geometry, size, dropped = stored_geometry(image, self._policy), len(image.data), 0
        if self._boxes:
            rest, dropped = self._boxes.move(rest, image.source, geometry)
        for spec, file, part in zip(self._pictures, item.images, data[1:], strict=True):
            try:
                stored = self._store(spec, part, file.file, image, geometry)
            except ImageError as error:
                raise ImageError(error.reason, f"{spec.name!r}, {file.file}: {error}") from error
            rest[spec.name], size = Feature("bytes", (stored,)), size + len(stored)
        return StoredSample(image, rest, size, dropped)

    def _store(self, spec: FeatureSpec, data: bytes, name: str, image: StoredImage, geometry: Geometry) -> bytes:
        if spec.kind == "image":
            return store_image(data, self._policy, name).data
        return store_mask(data, "mask" if spec.kind == "mask" else "depth", geometry).data
