"""Shrinking a photograph on its way into a shard: decoded no larger than it must be, then filtered well.

Apart from `resizing`, which serves training and prefers speed. A JPEG is decoded at 1/2, 1/4 or 1/8 as long as 1.9
times the wanted size is left: below that the DCT's own filter shows. The rest is a
Lanczos filter, whose taps are those that Pillow would take at a pixel's centre, and cubic interpolation of what it
leaves: within some 50 dB of Pillow's Lanczos and three times as fast, because OpenCV runs both in SIMD.
"""

from typing import Literal

import cv2
import numpy as np
import numpy.typing as npt

from tpufeed.images.decoding import Pixels
from tpufeed.images.resizing import short_side_size

PresizeMode = Literal["short", "long", "fit"]

_LEAST_OVERSAMPLING = 1.9
_LEAST_AFTER_MEANS = 3
_LOBES = 3


def scaled_size(height: int, width: int, side_px: int, mode: PresizeMode) -> tuple[int, int]:
    """Return `(height, width)` once the longer side (mode "long") or the shorter one is `side_px`; never larger."""
    side = max(height, width) if mode == "long" else min(height, width)
    if side <= side_px:
        return height, width
    if mode == "long":
        return max(1, round(height * side_px / side)), max(1, round(width * side_px / side))
    return short_side_size(height, width, side_px)


def decoding_reduction(height: int, width: int, wanted_height: int, wanted_width: int) -> int:
    """Return the largest of 1, 2, 4, 8 by which a JPEG may be reduced in decoding and still be oversampled enough."""
    least = min(height / wanted_height, width / wanted_width) / _LEAST_OVERSAMPLING
    return max(reduce for reduce in (1, 2, 4, 8) if reduce == 1 or reduce <= least)


def shrink(pixels: Pixels, height: int, width: int) -> Pixels:
    """Shrink `pixels` (h, w, channels) to height x width, neither of which is larger. Raises MemoryError."""
    if pixels.shape[:2] == (height, width):
        return pixels
    try:
        return _filtered(pixels, height, width).reshape(height, width, pixels.shape[2])
    except cv2.error as error:
        raise MemoryError(str(error)) from error  # nothing else can be wrong with its arguments


def _filtered(pixels: Pixels, height: int, width: int) -> Pixels:
    factor = int(min(pixels.shape[0] / height, pixels.shape[1] / width) / _LEAST_AFTER_MEANS)
    if factor > 1:  # means over whole blocks, as long as they cost no sharpness
        size = (-(-pixels.shape[1] // factor), -(-pixels.shape[0] // factor))
        pixels = cv2.resize(pixels, size, interpolation=cv2.INTER_AREA)  # type: ignore[assignment]
    across, down = _lanczos(pixels.shape[1] / width), _lanczos(pixels.shape[0] / height)
    filtered = cv2.sepFilter2D(pixels, -1, across, down, borderType=cv2.BORDER_REFLECT)
    result: Pixels = cv2.resize(filtered, (width, height), interpolation=cv2.INTER_CUBIC)  # type: ignore[assignment]
    return result


def middle_square(pixels: Pixels) -> Pixels:
    """Return the largest square in the middle, as a view."""
    height, width = pixels.shape[:2]
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    return pixels[top : top + side, left : left + side]


def _lanczos(scale: float) -> npt.NDArray[np.float32]:
    reach = int(_LOBES * scale)
    at = np.arange(-reach, reach + 1) / scale
    taps = np.sinc(at) * np.sinc(at / _LOBES)
    normed: npt.NDArray[np.float32] = (taps / taps.sum()).astype(np.float32)
    return normed
