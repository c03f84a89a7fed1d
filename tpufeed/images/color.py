"""Changes of colour that several ops share, on the host and on the device.

Those of the host take uint8 RGB of any strides and write to `out` (C-contiguous, maybe the image itself) if given, else
to new memory: the result may be written to. Factors are those of Pillow's ImageEnhance: 1 leaves the image unchanged, 0
removes the quality, above 1 increases it. But results are rounded, not truncated as in Pillow. Levels are mapped by
tables: these are exact on every machine, and OpenCV looks them up without the GIL.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import cv2
import numpy as np
import numpy.typing as npt

from tpufeed.images.decoding import Pixels
from tpufeed.images.device import Arrays, Planes, whole
from tpufeed.images.pixel_format import RGB8
from tpufeed.images.protocols import keep, written

LEVELS = np.arange(256, dtype=np.float64)
_LUMA = (0.299, 0.587, 0.114)  # ITU-R BT.601, as Pillow and torchvision have it


class Change(NamedTuple):
    """A change of colours by a factor, or another amount."""

    on_host: Callable[[Pixels, float, Pixels | None], Pixels]
    on_device: Callable[[Planes, Any, Arrays], Planes]  # of `x` by an amount as in `p`


def look_up(image: Any, table: npt.NDArray[Any], out: Pixels | None) -> Pixels:
    """Map levels by `table`: 256 numbers, or (256, 3) for one column per channel, rounded and clipped to 0 to 255."""
    levels = np.maximum(np.minimum(np.rint(table), 255), 0).astype(np.uint8)  # np.clip takes five times as long
    return written(cv2.LUT(image, levels if levels.ndim == 1 else levels[None], dst=out), out)


def is_rgb8(image: Pixels) -> bool:
    """Return True for 8-bit RGB."""
    return image.dtype == RGB8.dtype and image.shape[2] == RGB8.channels


def stretched(image: Pixels, factor: float, middle: Any, out: Pixels | None) -> Pixels:
    """Blend an image of any pixel format with levels: rounded, and clipped to what the type holds."""
    levels = (image - np.float32(middle)) * np.float32(factor) + np.float32(middle)
    if image.dtype.kind == "u":
        np.clip(np.rint(levels, out=levels), 0, np.iinfo(image.dtype).max, out=levels)
    return keep(levels.astype(image.dtype, copy=False), out)


def grey(image: Pixels) -> Pixels:
    """Return the grey levels (height, width)."""
    levels: Pixels = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)
    return levels


def grey_on_device(x: Planes, arrays: Arrays) -> Any:
    """Return OpenCV's grey levels, a plane, in its integers: float32 holds them all."""
    return arrays.floor((9798 * x[0] + 19235 * x[1] + 3735 * x[2] + 16384) / 32768)


def _contrast(image: Pixels, factor: float, out: Pixels | None) -> Pixels:
    """Blend with the mean level of the grey image, rounded, or else with the mean of each channel."""
    if not is_rgb8(image):
        return stretched(image, factor, image.mean((0, 1), np.float64), out)
    mean = int(cv2.mean(grey(image))[0] + 0.5)
    return look_up(image, mean + (LEVELS - mean) * factor, out)


def _contrast_on_device(x: Planes, factor: Any, arrays: Arrays) -> Planes:
    def mean(plane: Any) -> Any:
        # Rows first: their sums are exact in float32.
        return arrays.sum(arrays.sum(plane, -1), -2) / float(plane.shape[-2] * plane.shape[-1])

    if arrays.pixels == RGB8:
        means = [arrays.floor(mean(grey_on_device(x, arrays)) + 0.5)] * len(x)
    else:
        means = [mean(plane) for plane in x]
    return [whole(middle + (plane - middle) * factor, arrays) for plane, middle in zip(x, means, strict=True)]


def _saturate(image: Pixels, factor: float, out: Pixels | None) -> Pixels:
    """Blend with the grey image."""
    matrix = factor * np.eye(3) + (1 - factor) * np.array(_LUMA)
    return written(cv2.transform(image, matrix, dst=out), out)


def _saturate_on_device(x: Planes, factor: Any, arrays: Arrays) -> Planes:
    """Do what cv2.transform does, with weights of 1/1024: transform_8u in core/src/matmul.simd.hpp.

    A hue that is shifted afterwards could else be a step off, and levels by 6.
    """
    shares = [(1 - factor) * share for share in _LUMA]
    from_others = [arrays.round(1024 * share) for share in shares]
    grey = sum(weight * plane for weight, plane in zip(from_others, x, strict=True))
    mixed = []
    for plane, share, weight in zip(x, shares, from_others, strict=True):
        from_itself = arrays.round(1024 * (factor + share)) - weight
        mixed.append(whole(arrays.floor((grey + from_itself * plane + 512) / 1024), arrays))
    return mixed


BRIGHTNESS = Change(
    lambda image, factor, out: (
        look_up(image, LEVELS * factor, out) if is_rgb8(image) else stretched(image, factor, 0.0, out)
    ),
    lambda x, factor, arrays: [whole(plane * factor, arrays) for plane in x],
)
CONTRAST = Change(_contrast, _contrast_on_device)
SATURATION = Change(_saturate, _saturate_on_device)
