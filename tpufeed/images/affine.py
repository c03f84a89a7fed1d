"""Affine maps at an unchanged size: rotations and shears."""

import math

import cv2
import numpy as np
import numpy.typing as npt

from tpufeed.errors import ImageError
from tpufeed.images.decoding import Pixels
from tpufeed.images.protocols import Affine, Fill, apart, written
from tpufeed.images.windows import scalar

Row = tuple[float, float, float]
_LONGEST_SIDE_PX = 24_000


def warp(image: Pixels, rows: tuple[Row, Row], fill: Fill, out: Pixels | None) -> Pixels:
    """Map an image by an affine map: bilinear, in integers, with places rounded to 1/32 pixel.

    OpenCV's own warpAffine gives other pixels from 4.9 to 5.0. A map of whole numbers gives the same in both and is as
    fast (benchmarks/ops.py).

    Args:
        image: of any strides.
        rows: map from the centre (x, y, 1) of a new pixel to its place in the image, in pixels. The centre of the first
            pixel is (0, 0).
        fill: the colour beyond the image.
        out: C-contiguous memory of the image's shape, maybe the image itself. It is returned.

    Raises:
        ImageError: too_large. The map's numbers have 16 bits.
    """
    height, width = image.shape[:2]
    if max(height, width) > _LONGEST_SIDE_PX:
        most = f"rotations and shears take sides of up to {_LONGEST_SIDE_PX}. Put Resize or a crop before them"
        raise ImageError("too_large", f"{width}x{height} pixels: {most}")
    x, y = _places(rows[0], height, width), _places(rows[1], height, width)
    places = np.empty((height, width, 2), np.int16)
    places[..., 0], places[..., 1] = x >> 5, y >> 5
    x &= 31
    y &= 31
    y <<= 5
    y |= x
    result = cv2.remap(
        apart(image, out),
        places,
        y.astype(np.uint16),
        cv2.INTER_LINEAR,
        dst=out,
        borderMode=cv2.BORDER_CONSTANT,
        borderValue=scalar(fill),
    )
    return written(result, out)


def rotation(height: int, width: int, degrees: float) -> tuple[Row, Row]:
    """Return the rows for `warp` that rotate counter-clockwise about the middle, like Pillow's Image.rotate."""
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    y, x = (height - 1) / 2, (width - 1) / 2
    return (cos, -sin, x - cos * x + sin * y), (sin, cos, y - sin * x - cos * y)


def shear_x(shear: float) -> tuple[Row, Row]:
    """Return the rows for `warp` that move pixels left by `shear` for each pixel below the upper edge."""
    return (1, shear, shear / 2), (0, 1, 0)


def shear_y(shear: float) -> tuple[Row, Row]:
    """Return the rows for `warp` that move pixels up by `shear` for each pixel right of the left edge."""
    return (1, 0, 0), (shear, 1, shear / 2)


def as_affine(rows: tuple[Row, Row]) -> Affine:
    """Return the map of places for rows of `warp`, which count from the centre of the first pixel."""
    (a, b, c), (d, e, f) = rows
    return a, b, c + (1 - a - b) / 2, d, e, f + (1 - d - e) / 2


def _places(row: Row, height: int, width: int) -> npt.NDArray[np.int32]:
    """Return one coordinate in the image for all new pixels, in 1/32 pixel. Summed in 1/1024 and then rounded."""
    across = np.rint(np.arange(width) * (row[0] * 1024)).astype(np.int32)
    down = np.rint((np.arange(height) * row[1] + row[2]) * 1024).astype(np.int32) + np.int32(16)
    places: npt.NDArray[np.int32] = across[None] + down[:, None]
    places >>= 5
    return places
