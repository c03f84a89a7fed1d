"""Cut windows out of images and change their size, with the filter that the ratio asks for."""

import cv2
import numpy as np
import numpy.typing as npt

from tpufeed.images.decoding import Pixels
from tpufeed.images.protocols import Fill, Window, apart


def resize(image: Pixels, height: int, width: int, out: Pixels | None = None) -> Pixels:
    """Resize `image`: bilinear, and averaged over areas where it shrinks by two or more, against aliasing.

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


def resize_reduced(
    reduced: Pixels, factor: int, window: Window, out: Pixels | None = None, origin: tuple[int, int] = (0, 0)
) -> Pixels:
    """Cut and resize a window of an image that the decoder has made smaller by `factor`, as `resize` would.

    A window seldom begins at a whole reduced pixel: rounded to one, the result was more than 2 levels off on average
    (docs/pixels.md). Maps of whole numbers, in 1/32 pixel, give the same in all releases of OpenCV.

    Args:
        reduced: uint8 of shape (h, w, channels): all of the image, or a part with `factor` pixels around the window.
        factor: 2, 4 or 8.
        window: within the image.
        out: as in `resize`.
        origin: the row and column of the image at which `reduced` begins, multiples of `factor`.
    """
    # Places are computed in the whole image and moved then: rounding must not depend on where a part begins.
    above, before = origin[0] // factor, origin[1] // factor
    if window.height >= 2 * factor * window.out_height and window.width >= 2 * factor * window.out_width:
        top, bottom = (round(side / factor) for side in (window.top, window.top + window.height))
        left, right = (round(side / factor) for side in (window.left, window.left + window.width))
        cut = reduced[top - above : bottom - above, left - before : right - before]
        return resize(cut, window.out_height, window.out_width, out)
    y = _reduced_places(window.top, window.height, window.out_height, factor, above, reduced.shape[0])[:, None]
    x = _reduced_places(window.left, window.width, window.out_width, factor, before, reduced.shape[1])
    whole = np.empty((window.out_height, window.out_width, 2), np.int16)
    whole[..., 0], whole[..., 1] = x >> 5, y >> 5
    parts = ((y & 31) << 5 | (x & 31)).astype(np.uint16)
    result: Pixels = cv2.remap(  # type: ignore[assignment]  # uint8 in, uint8 out
        reduced, whole, parts, cv2.INTER_LINEAR, dst=out, borderMode=cv2.BORDER_REPLICATE
    )
    return result if out is None else out


def _reduced_places(
    start: int, length: int, out_length: int, factor: int, skipped: int, most: int
) -> npt.NDArray[np.int32]:
    """Return the middles of an axis' new pixels among `most` reduced ones behind `skipped` others, in 1/32 pixel."""
    middles = (start + (np.arange(out_length) + 0.5) * (length / out_length)) / factor - 0.5
    places: npt.NDArray[np.int32] = np.clip(np.rint(middles * 32) - skipped * 32, 0, (most - 1) * 32).astype(np.int32)
    return places


def short_side_size(height: int, width: int, short_side_px: int) -> tuple[int, int]:
    """Return `(height, width)` scaled, aspect kept, so that the shorter side is `short_side_px`."""
    scale = short_side_px / min(height, width)
    return max(short_side_px, round(height * scale)), max(short_side_px, round(width * scale))


def reduction(height: int, width: int, wanted_height: int, wanted_width: int) -> int:
    """Return the largest of 1, 2, 4, 8 by which a decoder may reduce an image and still give the wanted size."""
    reduce = 8
    while reduce > 1 and (height < wanted_height * reduce or width < wanted_width * reduce):
        reduce //= 2
    return reduce


def cut_padded(image: Pixels, box: tuple[int, int, int, int], fill: Fill, out: Pixels | None = None) -> Pixels:
    """Cut rows `[top, top + height)` and columns `[left, left + width)`; `fill` where the image has none.

    Args:
        image: uint8 RGB of any strides.
        box: (top, left, height, width); it may lie beside the image altogether.
        fill: the level, or (red, green, blue).
        out: C-contiguous memory of (height, width, 3), maybe the image itself; it is what is returned.
    """
    top, left, height, width = box
    view = image[max(0, top) : max(0, top + height), max(0, left) : max(0, left + width)]
    if view.size == 0:
        out = np.empty((height, width, image.shape[2]), np.uint8) if out is None else out
        out[...] = fill
        return out
    above, before = max(0, -top), max(0, -left)
    below, after = height - above - view.shape[0], width - before - view.shape[1]
    padded: Pixels = cv2.copyMakeBorder(  # type: ignore[assignment]  # uint8 in, uint8 out
        apart(view, out), above, below, before, after, cv2.BORDER_CONSTANT, dst=out, value=scalar(fill)
    )
    return padded if out is None else out


def scalar(fill: Fill) -> tuple[int, int, int]:
    """Return `fill` as OpenCV takes it."""
    return (fill, fill, fill) if isinstance(fill, int) else fill
