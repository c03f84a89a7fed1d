"""Boxes of TensorFlow's Object Detection API: shares of the sides of the stored image, or of the upright one.

The two images differ if there is an EXIF orientation. TensorFlow decodes the stored one. Most programs for drawing
boxes show the upright one. The sizes in a record tell which of the two its writer used.
"""

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from tpufeed.dataset.schema import HEIGHT, WIDTH, FeatureSpec
from tpufeed.errors import RecordError
from tpufeed.images.decoding import inverse_orientation
from tpufeed.images.geometry import Geometry
from tpufeed.images.mending import orientation_of, seen_size
from tpufeed.tfrecord.example import ABSENT, Feature

Told = Literal["stored", "upright", "nothing", "another"]


def tell_image(features: Mapping[str, Feature], image: memoryview) -> Told:
    """Return which image has the sizes in a record, image/height and image/width.

    Args:
        features: features of the record.
        image: its encoded image, with an EXIF orientation.

    Returns:
        "nothing" if there are no sizes, or both images have the same, and "another" if neither has these sizes.

    Raises:
        ImageError: the image's header cannot be read.
    """
    found = [features.get(key, ABSENT) for key in (HEIGHT, WIDTH)]
    if not all(feature.kind == "int64" and len(feature.values) == 1 for feature in found):
        return "nothing"
    said = int(found[0].values[0]), int(found[1].values[0])
    stored, upright = seen_size(image, upright=False), seen_size(image, upright=True)
    if said not in (stored, upright):
        return "another"
    return "nothing" if stored == upright else "upright" if said == upright else "stored"


def read_boxes(
    features: Mapping[str, Feature], spec: FeatureSpec, image: Any, upright: bool, where: str
) -> npt.NDArray[np.float64]:
    """Return the boxes of a record, (n, 4): left, top, right, bottom in shares of the image's sides.

    Args:
        features: features of the record, numbers as arrays.
        spec: spec of the boxes. It may say which image they refer to.
        image: bytes of the encoded image.
        upright: return shares of the upright image, else of the stored one.
        where: name of the record, for errors.

    Raises:
        RecordError: the four sides have different numbers of values.
        ImageError: the image's header cannot be read.
    """
    sides = [features.get(key, ABSENT).values for key in spec.keys]
    if len({len(side) for side in sides}) > 1:
        raise RecordError(f"{where}: {spec.key} has {', '.join(str(len(side)) for side in sides)} values")
    boxes: npt.NDArray[Any] = np.stack([np.asarray(side, np.float64) for side in sides], 1)
    turn = orientation_of(image) if len(boxes) else 1
    if turn == 1 or upright == ((spec.boxes_of or tell_image(features, image)) == "upright"):
        return boxes
    geometry = Geometry.identity(1, 1).turned(turn if upright else inverse_orientation(turn))
    corners = geometry.move_points(boxes.reshape(-1, 2))[0].reshape(-1, 2, 2)
    return np.hstack([corners.min(1), corners.max(1)]).astype(np.float64)
