"""Changing an image's size, with the filter that the ratio asks for."""

import cv2

from tpufeed.images.decoding import Pixels


def resize(image: Pixels, height: int, width: int, out: Pixels | None = None) -> Pixels:
    """`image` at height x width: bilinear, and averaged over areas where it shrinks by two or more, against aliasing.

    Args:
        image: uint8 of shape (h, w, channels); any strides.
        out: C-contiguous uint8 memory of the result's shape to write into; it is what is returned.
    """
    assert out is None or out.shape[:2] == (height, width), f"{out.shape} is no memory for {height} x {width} pixels"
    if out is not None and image.shape == out.shape:
        out[...] = image
        return out
    if image.shape[:2] == (height, width):
        return image
    shrinks_by_two = image.shape[0] >= 2 * height and image.shape[1] >= 2 * width
    filter_ = cv2.INTER_AREA if shrinks_by_two else cv2.INTER_LINEAR
    result: Pixels = cv2.resize(image, (width, height), dst=out, interpolation=filter_)  # type: ignore[assignment]
    return result if out is None else out


def short_side_size(height: int, width: int, short_side_px: int) -> tuple[int, int]:
    """`(height, width)` scaled, aspect kept, so that the shorter side is `short_side_px`."""
    scale = short_side_px / min(height, width)
    return max(short_side_px, round(height * scale)), max(short_side_px, round(width * scale))


def reduction(height: int, width: int, wanted_height: int, wanted_width: int) -> int:
    """The largest of 1, 2, 4, 8 by which a decoder may reduce an image and still give the wanted size."""
    reduce = 8
    while reduce > 1 and (height < wanted_height * reduce or width < wanted_width * reduce):
        reduce //= 2
    return reduce
