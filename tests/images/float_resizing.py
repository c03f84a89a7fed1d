"""Windows of images resized in float64, with the middles of pixels at halves: what loaders' pixels are held against."""

import numpy as np
import numpy.typing as npt

from tpufeed.images.protocols import Window

Floats = npt.NDArray[np.float64]


def bilinear(image: npt.NDArray[np.uint8], window: Window) -> Floats:
    """The window cut out, then each new pixel between the four old ones around its middle."""
    rows = _between(window.height, _middles(window.height, window.out_height))
    columns = _between(window.width, _middles(window.width, window.out_width))
    return _weighted(rows, _cut(image, window), columns)


def antialiased(image: npt.NDArray[np.uint8], window: Window) -> Floats:
    """Cut the window out and resize it as Pillow's BILINEAR: if it shrinks, by a triangle as wide as a new pixel."""
    rows, columns = _triangles(window.height, window.out_height), _triangles(window.width, window.out_width)
    return _weighted(rows, _cut(image, window), columns)


def bilinear_reduced(image: npt.NDArray[np.uint8], factor: int, window: Window) -> Floats:
    """Means of `factor` x `factor` pixels, counted from the image's corner, then bilinear between those."""
    height, width = (-(-side // factor) * factor for side in image.shape[:2])
    whole = np.pad(image, ((0, height - image.shape[0]), (0, width - image.shape[1]), (0, 0)), "edge")
    means = whole.reshape(height // factor, factor, width // factor, factor, -1).mean(axis=(1, 3))
    middles_y = (window.top + _middles(window.height, window.out_height) + 0.5) / factor - 0.5
    middles_x = (window.left + _middles(window.width, window.out_width) + 0.5) / factor - 0.5
    return _weighted(_between(means.shape[0], middles_y), means, _between(means.shape[1], middles_x))


def _cut(image: npt.NDArray[np.uint8], window: Window) -> npt.NDArray[np.uint8]:
    return image[window.top : window.top + window.height, window.left : window.left + window.width]


def _middles(length: int, out_length: int) -> Floats:
    """Where the middles of new pixels lie; the first old one's is at 0."""
    return (np.arange(out_length) + 0.5) * (length / out_length) - 0.5


def _between(length: int, middles: Floats) -> Floats:
    """The weight of each old pixel, by new pixel."""
    inside = np.clip(middles, 0, length - 1)
    return np.maximum(0.0, 1 - np.abs(np.arange(length) - inside[:, None]))


def _triangles(length: int, out_length: int) -> Floats:
    distances = np.abs(np.arange(length) - _middles(length, out_length)[:, None])
    weights = np.maximum(0.0, 1 - distances / max(1.0, length / out_length))
    return weights / weights.sum(axis=1, keepdims=True)


def _weighted(rows: Floats, image: npt.NDArray[np.generic], columns: Floats) -> Floats:
    return np.einsum("yh,hwc,xw->yxc", rows, image.astype(np.float64), columns, optimize=True)
