"""The erased rectangle in TensorFlow graphs."""

import math

from tpufeed.errors import MissingExtraError
from tpufeed.images.ops import RandomErasing
from tpufeed.loaders.tf.draws import noise

try:
    import tensorflow as tf
except ImportError as error:
    raise MissingExtraError("TensorFlow", "tf") from error

_TOP, _LEFT, _NOISE = 21, 22, 23


def erase(op: RandomErasing, image: tf.Tensor, draws: tf.Tensor) -> tf.Tensor:
    """The rectangle that these draws make of `op` erased, whatever op.p."""
    size = tf.shape(image)[:2]
    corner, cut = _rectangle(op, tf.cast(size, tf.float64), draws)
    rows, columns = (
        (tf.range(size[axis]) >= corner[axis]) & (tf.range(size[axis]) < corner[axis] + cut[axis]) for axis in (0, 1)
    )
    if op.value == "random":
        levels = tf.reshape(noise(draws[_NOISE], 3 * cut[0] * cut[1]), tf.concat([cut, [3]], 0))
        value = tf.pad(levels, tf.concat([tf.stack([corner, size - corner - cut], 1), [[0, 0]]], 0))
    else:
        value = tf.constant(op.value, tf.uint8)
    return tf.where((rows[:, None] & columns)[:, :, None], value, image)


def _rectangle(op: RandomErasing, sides: tf.Tensor, draws: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Corner and size, int32 (2,) each: the first of ten tries that fits; then nothing."""
    low, high = op.scale
    log_low, log_high = math.log(op.ratio[0]), math.log(op.ratio[1])
    area = sides[0] * sides[1] * (low + draws[1:21:2] * (high - low))
    ratio = tf.exp(log_low + draws[2:21:2] * (log_high - log_low))
    tries = tf.round(tf.sqrt(tf.stack([area * ratio, area / ratio], 1)))
    cuts = tf.concat([tries, tf.zeros([1, 2], tf.float64)], 0)
    cut = cuts[tf.argmax(tf.reduce_all(cuts < sides, 1))]
    corner = tf.floor(draws[_TOP : _LEFT + 1] * (sides - cut + 1))
    return tf.cast(corner, tf.int32), tf.cast(cut, tf.int32)
