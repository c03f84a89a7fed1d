"""The bytes of an input's files become what its record holds."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tpufeed.build.item import Item
from tpufeed.dataset.schema import FORMAT, FeatureSpec
from tpufeed.errors import ImageError
from tpufeed.images.geometry import Geometry
from tpufeed.images.masks import store_mask
from tpufeed.images.policy import ImagePolicy, StoredImage, store_image, stored_geometry
from tpufeed.sharding.boxes import BoxMover
from tpufeed.sharding.inputs import InputFeatures
from tpufeed.tfrecord.example import Feature

_BACK = {6: 8, 8: 6}  # the orientations that undo one another; each other one undoes itself
# Among the odd cases of images with boxes whose source says the sizes of images:
_TURNED = (
    "boxes turned by exif"  # they are of the image as it is stored, and the upright one is kept, or other way round
)
_UNSURE = "exif, boxes not turned"  # upside down, mirrored or square: the sizes do not tell which they are of


class StoredSample(NamedTuple):
    """A sample as its record holds it.

    Attributes:
        image: its image.
        rest: the features besides image, label and sizes.
        bytes: of its image and its further images.
        dropped_boxes: lie outside the stored image, and were left out.
        odd: an odd case of its boxes.
    """

    image: StoredImage
    rest: dict[str, Feature]
    bytes: int
    dropped_boxes: int = 0
    odd: tuple[str, ...] = ()


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

    def __call__(self, item: Item, data: Sequence[bytes]) -> StoredSample:
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
        geometry, size = stored_geometry(image, self._policy), len(image.data)
        dropped, odd = 0, tuple[str, ...]()
        if item.pixels is not None:
            turn, odd = self._find_turn(item.pixels, image)
            odd = odd if self._boxes.has_any(rest) else ()
            of_source = geometry if turn == 1 else stored_geometry(image, self._policy, turn)
            rest, dropped = self._boxes.move(rest, item.pixels, of_source)
        elif self._boxes:
            rest, dropped = self._boxes.move(rest, image.source, geometry)
        for spec, file, part in zip(self._pictures, item.images, data[1:], strict=True):
            try:
                stored = self._store(spec, part, file.place, image, geometry)
            except ImageError as error:
                raise ImageError(error.reason, f"{spec.name!r}, {file.place}: {error}") from error
            rest[spec.name], size = Feature("bytes", (stored,)), size + len(stored)
        return StoredSample(image, rest, size, dropped, odd)

    def _find_turn(self, said: tuple[int, int], image: StoredImage) -> tuple[int, tuple[str, ...]]:
        """Return the orientation that turns the image of which the source says this size to that of the file.

        Raises:
            ImageError: bad_box: it is an image of another size.
        """
        orientation = image.orientation
        if said == image.source:
            is_told = orientation == 1 or (orientation >= 5 and said[0] != said[1])
            return 1, () if is_told else (_UNSURE,)
        if said == image.source[::-1] and orientation >= 5:
            turn = orientation if self._policy.exif == "apply" else _BACK.get(orientation, orientation)
            return turn, (_TURNED,)
        (height, width), (there, across) = said, image.source
        scale = f", {across / width:.4g} of it" if width and height * across == width * there else ""
        raise ImageError(
            "bad_box",
            f"boxes are of an image of {width}x{height} pixels, as the source says, and the file has {across}x{there}"
            f"{scale}. Give the images that the boxes are of, or correct the sizes, boxes and keypoints in the source",
        )

    def _store(self, spec: FeatureSpec, data: bytes, name: str, image: StoredImage, geometry: Geometry) -> bytes:
        if spec.kind == "image":
            return store_image(data, self._policy, name).data
        return store_mask(data, "mask" if spec.kind == "mask" else "depth", geometry).data


def iter_turn_warnings(odd: Mapping[str, int]) -> Iterator[str]:
    """Yield a sentence on images of which nobody can tell whether their boxes have to be turned.

    Args:
        odd: the odd cases of a build, counted.
    """
    if odd.get(_UNSURE):
        others = f", and {odd[_TURNED]:,} others were of the other one and were turned" if odd.get(_TURNED) else ""
        yield (
            f"{odd[_UNSURE]:,} images with boxes have an EXIF orientation, and their sizes do not tell whether the "
            "boxes are of the stored or of the upright image (upside down, mirrored, or square): they were not "
            f"turned{others}. Look at some: tpufeed show. If boxes are of stored images, build with --policy "
            "exif=ignore, which stores images as they are"
        )
