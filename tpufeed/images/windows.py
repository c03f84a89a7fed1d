"""Cut windows out of images and resize them, with a filter that suits the ratio."""

from collections.abc import Sequence

import cv2
import numpy as np
import numpy.typing as npt

from tpufeed.errors import ImageError
from tpufeed.images.decoding import Pixels
from tpufeed.images.protocols import Fill, Window, apart, written

MOST_ENLARGED_PIXELS = 1 << 26
_MOST_ASPECT = 16
_LONGEST_SIDE_PX = 32766  # that OpenCV remaps
MOST_AVERAGED = 4  # channels that OpenCV averages over areas


def resize(image: Pixels, height: int, width: int, out: Pixels | None = None) -> Pixels:
    """Resize `image`: bilinear, and averaged over areas if it shrinks by two or more, against aliasing.

    Args:
        image: of shape (h, w, channels), with any strides.
        out: C-contiguous memory of the result's shape to write into. It is returned.
    """
    assert out is None or out.shape[:2] == (height, width), f"{out.shape} is no memory for {height} x {width} pixels"
    if out is not None and image.shape == out.shape:
        out[...] = image
        return out
    if image.shape[:2] == (height, width):
        return image
    shrinks_by_two = image.shape[0] >= 2 * height and image.shape[1] >= 2 * width
    filter_ = cv2.INTER_AREA if shrinks_by_two else cv2.INTER_LINEAR
    if shrinks_by_two and image.ndim == 3 and image.shape[2] > MOST_AVERAGED:
        groups = (image[..., at : at + MOST_AVERAGED] for at in range(0, image.shape[2], MOST_AVERAGED))
        return np.concatenate([resize(group, height, width) for group in groups], 2, out)
    return written(cv2.resize(image, (width, height), dst=out, interpolation=filter_), out)


def resize_reduced(
    reduced: Pixels, factor: int, window: Window, out: Pixels | None = None, origin: tuple[int, int] = (0, 0)
) -> Pixels:
    """Cut and resize a window of an image that the decoder has made smaller by `factor`, as `resize` would.

    A window seldom begins at a whole reduced pixel: if rounded to one, the result was more than 2 levels off on average
    (docs/pixels.md). Maps of whole numbers, in 1/32 pixel, give the same result in all releases of OpenCV.

    Args:
        reduced: of shape (h, w, channels): all of the image, or a part with `factor` pixels around the window.
        factor: 2, 4 or 8.
        window: within the image.
        out: as in `resize`.
        origin: the row and column of the image at which `reduced` begins, multiples of `factor`.
    """
    # Places are computed in the whole image and then moved: rounding must not depend on where a part begins.
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
    border = cv2.BORDER_REPLICATE
    return written(cv2.remap(reduced, whole, parts, cv2.INTER_LINEAR, dst=out, borderMode=border), out)


def _reduced_places(
    start: int, length: int, out_length: int, factor: int, skipped: int, most: int
) -> npt.NDArray[np.int32]:
    """Return the centres of an axis's new pixels among `most` reduced pixels after `skipped` others, in 1/32 pixel."""
    middles = (start + (np.arange(out_length) + 0.5) * (length / out_length)) / factor - 0.5
    places: npt.NDArray[np.int32] = np.clip(np.rint(middles * 32) - skipped * 32, 0, (most - 1) * 32).astype(np.int32)
    return places


def short_side_size(height: int, width: int, short_side_px: int) -> tuple[int, int]:
    """Return `(height, width)` scaled to a shorter side of `short_side_px`, aspect kept."""
    scale = short_side_px / min(height, width)
    return max(short_side_px, round(height * scale)), max(short_side_px, round(width * scale))


def is_too_long(size: tuple[int, int], image: tuple[int, int]) -> bool:
    """Return True for a `size`, (height, width), that is too large for a thin image of few pixels.

    With its shorter side resized to 256, an image of 1x60000 pixels would have four billion.
    """
    pixels = size[0] * size[1]
    enlarged = pixels > max(MOST_ENLARGED_PIXELS, image[0] * image[1])
    return enlarged and max(size) > _MOST_ASPECT * min(size)


def refuse_too_long(size: tuple[int, int], image: tuple[int, int]) -> ImageError:
    """Return the error for a size that `is_too_long`."""
    return ImageError(
        "too_large",
        f"resized, the image of {image[1]}x{image[0]} pixels would have {size[1]}x{size[0]}, more than "
        f"{MOST_ENLARGED_PIXELS}. Put an op that crops right after Resize, or leave the image out",
    )


def cut_resized(image: Pixels, size: tuple[int, int], box: tuple[int, int, int, int], fill: Fill) -> Pixels:
    """Cut a box out of an enlarged image without making the rest: bilinear, within a level of `resize`.

    Args:
        image: the image.
        size: (height, width) of the whole enlarged image.
        box: (top, left, height, width) in pixels of that image. It may reach beyond.
        fill: as in `cut_padded`.

    Raises:
        ImageError: the box itself is too large.
    """
    top, left, height, width = box
    if is_too_long((height, width), image.shape[:2]) or max(height, width) > _LONGEST_SIDE_PX:
        raise refuse_too_long((height, width), image.shape[:2])
    spans = []
    for axis, (start, length) in enumerate(((top, height), (left, width))):
        low, high = (min(max(place, 0), size[axis]) for place in (start, start + length))
        middles = (np.arange(low, max(high, low + 1)) + 0.5) * (image.shape[axis] / size[axis]) - 0.5
        first = max(0, int(middles[0]))
        stop = max(first + 1, min(image.shape[axis], int(middles[-1]) + 2))
        spans.append((low, high, first, stop, (middles - first).astype(np.float32)))
    (above, below, first_row, stop_row, rows), (before, behind, first_column, stop_column, columns) = spans
    if above >= below or before >= behind:
        return cut_padded(image, (image.shape[0], 0, height, width), fill)
    x, y = np.meshgrid(columns, rows)
    part = image[first_row:stop_row, first_column:stop_column]
    inner = written(cv2.remap(part, x, y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE), None)
    return cut_padded(inner, (top - above, left - before, height, width), fill)


def reduction(height: int, width: int, wanted_height: int, wanted_width: int) -> int:
    """Return the largest of 1, 2, 4, 8 by which a decoder may reduce an image and still give the wanted size."""
    reduce = 8
    while reduce > 1 and (height < wanted_height * reduce or width < wanted_width * reduce):
        reduce //= 2
    return reduce


def cut_padded(image: Pixels, box: tuple[int, int, int, int], fill: Fill, out: Pixels | None = None) -> Pixels:
    """Cut rows `[top, top + height)` and columns `[left, left + width)`, with `fill` beyond the image.

    Args:
        image: of any strides.
        box: (top, left, height, width). It may lie entirely outside the image.
        fill: the level, or (red, green, blue).
        out: C-contiguous memory of (height, width, 3), maybe the image itself. It is returned.
    """
    top, left, height, width = box
    view = image[max(0, top) : max(0, top + height), max(0, left) : max(0, left + width)]
    if view.size == 0:
        out = np.empty((height, width, image.shape[2]), image.dtype) if out is None else out
        out[...] = fill
        return out
    above, before = max(0, -top), max(0, -left)
    below, after = height - above - view.shape[0], width - before - view.shape[1]
    sides, value = (above, below, before, after), scalar(fill)
    return written(cv2.copyMakeBorder(apart(view, out), *sides, cv2.BORDER_CONSTANT, dst=out, value=value), out)


def scalar(fill: Fill) -> Sequence[int]:
    """Return `fill` as OpenCV takes it."""
    return (fill,) * 4 if isinstance(fill, int) else fill


def pair(size: int | tuple[int, int]) -> tuple[int, int]:
    """Return `(height, width)` for the size of an op: a number is both."""
    return (size, size) if isinstance(size, int) else (size[0], size[1])
