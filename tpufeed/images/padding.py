"""Windows that reach beyond the image."""

import cv2
import numpy as np

from tpufeed.images.decoding import Pixels
from tpufeed.images.protocols import Fill, apart


def cut_padded(image: Pixels, box: tuple[int, int, int, int], fill: Fill, out: Pixels | None = None) -> Pixels:
    """Rows `[top, top + height)` and columns `[left, left + width)` of the image; `fill` where it has none.

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
    """`fill` as OpenCV takes it."""
    return (fill, fill, fill) if isinstance(fill, int) else fill
