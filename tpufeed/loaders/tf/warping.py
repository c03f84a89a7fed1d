"""Affine maps and blur in TensorFlow graphs: uint8 (h, w, 3) to the same size."""

import math

from tpufeed.errors import MissingExtraError
from tpufeed.images.protocols import Fill
from tpufeed.loaders.tf.resizing import cut_padded, pad

try:
    import tensorflow as tf
except ImportError as error:
    raise MissingExtraError("TensorFlow", "tf") from error


def warp(image: tf.Tensor, rows: tf.Tensor, fill: Fill) -> tf.Tensor:
    """As `tpufeed.images.warping.warp`, to the bit: bilinear in whole numbers, places in 1/32 pixel.

    Args:
        image: uint8 (h, w, 3).
        rows: float64 (2, 3), from the place (x, y, 1) of a new pixel to its place in the image.
        fill: what lies beyond the image.
    """
    height, width = tf.unstack(tf.shape(image)[:2])
    x, y = (_places(rows[number], height, width) for number in (0, 1))
    framed = tf.reshape(pad(image, tf.constant([[1, 1], [1, 1], [0, 0]]), fill), [-1, 3])
    left, right = (tf.clip_by_value(tf.bitwise.right_shift(x, 5) + step, 0, width + 1) for step in (1, 2))
    above, below = (
        tf.clip_by_value(tf.bitwise.right_shift(y, 5) + step, 0, height + 1) * (width + 2) for step in (1, 2)
    )
    x, y = (tf.cast(tf.bitwise.bitwise_and(place, 31), tf.float32)[..., None] for place in (x, y))
    upper = _blended(framed, above + left, above + right, x)
    lower = _blended(framed, below + left, below + right, x)
    return tf.cast((upper * (32 - y) + lower * y + 512) * 2.0**-10, tf.uint8)


def rotate(image: tf.Tensor, degrees: tf.Tensor, fill: Fill) -> tf.Tensor:
    """Counter-clockwise about the middle; `degrees` is a float64 scalar."""
    turn = degrees * (math.pi / 180)
    cos, sin = tf.cos(turn), tf.sin(turn)
    y, x = tf.unstack(tf.cast(tf.shape(image)[:2] - 1, tf.float64) / 2)
    return warp(image, tf.stack([[cos, -sin, x - cos * x + sin * y], [sin, cos, y - sin * x - cos * y]]), fill)


def shear_x(image: tf.Tensor, shear: tf.Tensor, fill: Fill) -> tf.Tensor:
    """Rows move left by `shear` pixels for each that they lie below the upper edge."""
    return warp(image, tf.stack([[1.0, shear, shear / 2], tf.constant([0, 1, 0], tf.float64)]), fill)


def shear_y(image: tf.Tensor, shear: tf.Tensor, fill: Fill) -> tf.Tensor:
    """Columns move up by `shear` pixels for each that they lie right of the left edge."""
    return warp(image, tf.stack([tf.constant([1, 0, 0], tf.float64), [shear, 1.0, shear / 2]]), fill)


def shift(image: tf.Tensor, move: tf.Tensor, fill: Fill) -> tf.Tensor:
    """By whole pixels; `move` is int32 (2,), down and right."""
    return cut_padded(image, tf.concat([-move, tf.shape(image)[:2]], 0), fill)


def blur(image: tf.Tensor, sigma: tf.Tensor) -> tf.Tensor:
    """A Gaussian of `sigma` pixels, a float64 scalar; the kernel reaches three of it, and edges are mirrored.

    In whole numbers, all of which float32 holds exactly: OpenCV's result to the bit.
    """
    weights = _kernel(sigma)
    reach = tf.size(weights) // 2
    sums = tf.cast(image, tf.float32)[None]
    for axis, shape in ((1, [-1, 1, 1, 1]), (2, [1, -1, 1, 1])):
        side = tf.shape(sums)[axis]
        mirrored = tf.gather(sums, _mirrored(tf.range(-reach, side + reach), side), axis=axis)
        kernel = tf.tile(tf.reshape(weights, shape), [1, 1, 3, 1])
        sums = tf.nn.depthwise_conv2d(mirrored, kernel, [1, 1, 1, 1], "VALID")
    return tf.cast((sums[0] + 2.0**15) * 2.0**-16, tf.uint8)


def _kernel(sigma: tf.Tensor) -> tf.Tensor:
    """float32 (n,), n odd: whole numbers that sum to 256, as in OpenCV (modules/imgproc/src/smooth.dispatch.cpp).

    What rounding leaves of a weight is carried on to the next one, so it is their running sums that are rounded.
    """
    reach = tf.cast(tf.round(sigma * 6 + 1), tf.int32) // 2
    exact = tf.exp(-(tf.cast(tf.range(-reach, reach + 1), tf.float64) ** 2) / (2 * sigma**2))
    sums = tf.round(tf.cumsum(256 * exact[:reach] / tf.reduce_sum(exact)))
    outer = sums - tf.concat([tf.zeros([tf.minimum(reach, 1)], tf.float64), sums[:-1]], 0)
    middle = 256 - 2 * tf.reduce_sum(outer)
    return tf.cast(tf.concat([outer, middle[None], outer[::-1]], 0), tf.float32)


def _mirrored(places: tf.Tensor, side: tf.Tensor) -> tf.Tensor:
    """Places beyond an edge mirrored into the image, however far they are; the outermost pixel is not repeated."""
    period = tf.maximum(2 * (side - 1), 1)
    wrapped = places % period
    return tf.minimum(wrapped, tf.maximum(period - wrapped, 0)) % side


def _places(row: tf.Tensor, height: tf.Tensor, width: tf.Tensor) -> tf.Tensor:
    """Of all new pixels one coordinate in the image, int32, in 1/32 pixel; summed in 1/1024 and then rounded."""
    columns, lines = (tf.range(tf.cast(side, tf.float64)) for side in (width, height))
    across = tf.cast(tf.round(columns * (row[0] * 1024)), tf.int32)
    down = tf.cast(tf.round((lines * row[1] + row[2]) * 1024), tf.int32) + 16
    return tf.bitwise.right_shift(across + down[:, None], 5)


def _blended(pixels: tf.Tensor, one: tf.Tensor, other: tf.Tensor, share: tf.Tensor) -> tf.Tensor:
    """Two pixels for each place, the other's share in 1/32. float32 holds all of these whole numbers exactly."""
    first, second = (tf.cast(tf.gather(pixels, places), tf.float32) for places in (one, other))
    return first * (32 - share) + second * share
