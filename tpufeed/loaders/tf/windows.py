"""The windows of window ops in TensorFlow graphs.

A window is int32 (4,): top, left, height, width. It is computed in float64 with Python's roundings, so that it is that
of the CPU op to the pixel.
"""

import math
from collections.abc import Callable
from typing import Any, TypeAlias

from tpufeed.errors import MissingExtraError
from tpufeed.images.ops import CenterCrop, RandomCrop, RandomResizedCrop, Resize
from tpufeed.images.protocols import WindowOp

try:
    import tensorflow as tf
except ImportError as error:
    raise MissingExtraError("TensorFlow", "tf") from error

Sizes: TypeAlias = tuple[tf.Tensor, tf.Tensor]  # int32 (2,): height and width of the image; the same in float64


def find_window(op: WindowOp, size: tf.Tensor, draws: tf.Tensor | None) -> tuple[tf.Tensor, tf.Tensor]:
    """The window of `op`, and int32 (2,), the height and width that it is brought to.

    Args:
        op: one of `WINDOW_OPS`.
        size: int32 (2,), height and width of the image.
        draws: float64 (op.draws,); None for an op without draws.
    """
    sides = tf.cast(size, tf.float64)
    return WINDOW_OPS[type(op)](op, (size, sides), draws)


def _resize(op: Resize, sizes: Sizes, _draws: Any) -> tuple[tf.Tensor, tf.Tensor]:
    size, sides = sizes
    window = tf.concat([[0, 0], size], 0)
    if not isinstance(op.size, int):
        return window, tf.constant(op.size, tf.int32)
    scale = op.size / tf.reduce_min(sides)
    return window, tf.maximum(op.size, tf.cast(tf.round(sides * scale), tf.int32))


def _center_crop(op: CenterCrop, sizes: Sizes, _draws: Any) -> tuple[tf.Tensor, tf.Tensor]:
    size, sides = sizes
    out = op.output_size(None)
    scale = tf.minimum(tf.constant(1.0, tf.float64), tf.reduce_min(sides / out))
    cut = tf.maximum(1, tf.cast(tf.round(tf.constant(out, tf.float64) * scale), tf.int32))
    return tf.concat([(size - cut) // 2, cut], 0), tf.constant(out, tf.int32)


def _random_resized_crop(op: RandomResizedCrop, sizes: Sizes, draws: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """All tries at once, and of those that fit the first; the last, in the middle, always does."""
    _, sides = sizes
    low, high = op.scale
    log_low, log_high = math.log(op.ratio[0]), math.log(op.ratio[1])
    area = sides[0] * sides[1] * (low + draws[0:20:2] * (high - low))
    ratio = tf.exp(log_low + draws[1:20:2] * (log_high - log_low))
    tries = tf.sqrt(tf.stack([area / ratio, area * ratio], 1))
    last = tf.stack([sides[1] / op.ratio[0], sides[0] * op.ratio[1]])
    last = tf.clip_by_value(tf.round(last), tf.constant(1.0, tf.float64), sides)
    cuts = tf.concat([tf.round(tries), last[None]], 0)
    number = tf.argmax(tf.reduce_all((cuts > 0) & (cuts <= sides), 1))
    cut = cuts[number]
    room = sides - cut
    corner = tf.where(number < 10, tf.floor(draws[20:22] * (room + 1)), tf.floor(room / 2))
    return tf.cast(tf.concat([corner, cut], 0), tf.int32), tf.constant(op.output_size(None), tf.int32)


def _random_crop(op: RandomCrop, sizes: Sizes, draws: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    cut = tf.constant(op.output_size(None), tf.int32)
    one, other = tf.fill([2], -op.padding), sizes[0] + op.padding - cut
    low, high = tf.minimum(one, other), tf.maximum(one, other)
    corner = low + tf.cast(draws * tf.cast(high - low + 1, tf.float64), tf.int32)
    return tf.concat([corner, cut], 0), cut


WINDOW_OPS: dict[type[Any], Callable[[Any, Sizes, Any], tuple[tf.Tensor, tf.Tensor]]] = {
    CenterCrop: _center_crop,
    RandomCrop: _random_crop,
    RandomResizedCrop: _random_resized_crop,
    Resize: _resize,
}
