"""Changing an image's size in TensorFlow graphs, with the filter that `tpufeed.images.resizing` would take."""

from tpufeed.errors import MissingExtraError
from tpufeed.images.protocols import Fill

try:
    import tensorflow as tf
except ImportError as error:
    raise MissingExtraError("TensorFlow", "tf") from error

_SHORT_OF_THE_EDGE = 1 - 1e-6  # a place that float32 rounds beyond the last pixel would be black


def cut(image: tf.Tensor, window: tf.Tensor, out: tf.Tensor) -> tf.Tensor:
    """A window that lies within the image, brought to the size `out`, int32 (2,)."""
    return resize(tf.slice(image, tf.concat([window[:2], [0]], 0), tf.concat([window[2:], [3]], 0)), out)


def cut_padded(image: tf.Tensor, window: tf.Tensor, fill: Fill) -> tf.Tensor:
    """A window as it is; `fill` where the image has no pixels."""
    within, paddings = clip_window(window, tf.shape(image)[:2])
    view = tf.slice(image, tf.concat([within[:2], [0]], 0), tf.concat([within[2:], [3]], 0))
    return pad(view, paddings, fill)


def clip_window(window: tf.Tensor, size: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The part of the window that lies within an image of `size`, and int32 (3, 2), the pixels missing on each side."""
    start, stop = (tf.clip_by_value(place, 0, size) for place in (window[:2], window[:2] + window[2:]))
    before = tf.clip_by_value(-window[:2], 0, window[2:])
    missing = tf.stack([before, window[2:] - before - (stop - start)], 1)
    return tf.concat([start, stop - start], 0), tf.concat([missing, [[0, 0]]], 0)


def pad(image: tf.Tensor, paddings: tf.Tensor, fill: Fill) -> tf.Tensor:
    """`fill` around the image."""
    if isinstance(fill, int):
        return tf.pad(image, paddings, constant_values=fill)
    # tf.pad knows one value for all channels: zero, so what is to be zero meanwhile is `fill`
    swap = tf.constant(fill, tf.uint8)
    return tf.bitwise.bitwise_xor(tf.pad(tf.bitwise.bitwise_xor(image, swap), paddings), swap)


def resize(image: tf.Tensor, out: tf.Tensor) -> tf.Tensor:
    """`image` at height and width `out`: bilinear, and averaged over areas where it shrinks by two or more."""
    size = tf.shape(image)[:2]

    def change() -> tf.Tensor:
        return tf.cond(tf.reduce_all(size >= 2 * out), lambda: average(image, out), lambda: interpolate(image, out))

    return tf.cond(tf.reduce_all(size == out), lambda: image, change)


def interpolate(image: tf.Tensor, out: tf.Tensor) -> tf.Tensor:
    """Bilinear, whatever the ratio. What has the size already passes as it is."""
    return _levels(tf.raw_ops.ResizeBilinear(images=image[None], size=out, half_pixel_centers=True))


def average(image: tf.Tensor, out: tf.Tensor) -> tf.Tensor:
    """Averages over areas."""
    return _levels(tf.raw_ops.ResizeArea(images=image[None], size=out))


def interpolate_within(image: tf.Tensor, first: tf.Tensor, last: tf.Tensor, out: tf.Tensor) -> tf.Tensor:
    """Bilinear between places within the image.

    Args:
        image: uint8 (h, w, 3).
        first: float64 (2,), where the middle of the first new pixel lies, in pixels down and across; within the image.
        last: likewise that of the last one.
        out: int32 (2,), how many from the one to the other, down and across.
    """
    length = tf.cast(tf.maximum(tf.shape(image)[:2] - 1, 1), tf.float64)
    box = tf.clip_by_value(tf.concat([first / length, last / length], 0), 0.0, _SHORT_OF_THE_EDGE)
    boxes = tf.cast(box, tf.float32)[None]
    return _levels(tf.raw_ops.CropAndResize(image=image[None], boxes=boxes, box_ind=[0], crop_size=out))


def _levels(images: tf.Tensor) -> tf.Tensor:
    """float32 (1, h, w, 3) as uint8 (h, w, 3). The cast cuts off."""
    return tf.cast(tf.squeeze(images, 0) + 0.5, tf.uint8)
