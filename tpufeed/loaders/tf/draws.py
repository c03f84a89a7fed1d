"""The random numbers of `tpufeed.images.draws` as TensorFlow graphs: bit for bit the same, without state.

TensorFlow's own random ops are not used: no loader of another framework could repeat them.
"""

from tpufeed.errors import MissingExtraError

try:
    import tensorflow as tf
except ImportError as error:
    raise MissingExtraError("TensorFlow", "tf") from error

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def uniforms(seed: int, round_: tf.Tensor, samples: tf.Tensor, op: int, count: int) -> tf.Tensor:
    """Uniform numbers in [0, 1), float64 of shape (n, count): those of `tpufeed.images.draws.uniforms`.

    Args:
        seed: of the run.
        round_: int64 scalar, the epoch.
        samples: int64 (n,), ids within the split.
        op: the op's position among the ops.
        count: numbers a sample.
    """
    start = _mix(word(seed + _GOLDEN))
    key = _next(xor(_next(xor(start, tf.bitcast(round_, tf.uint64))), word(op)))
    rows = _mix(tf.bitcast(samples, tf.uint64) * word(_GOLDEN) + key)
    bits = _mix(rows[:, None] + _steps(count))
    return tf.cast(shift(bits, 11), tf.float64) * 2.0**-53


def noise(draw: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    """`count` independent uniform levels, uint8, from one uniform number: those of `tpufeed.images.draws.noise`."""
    start = _next(tf.cast(draw * 2.0**53, tf.uint64))
    words = _mix(_steps(count // 8 + 1) + start)
    return tf.reshape(tf.bitcast(words, tf.uint8), [-1])[:count]


def _steps(count: int | tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.range(1, count + 1), tf.uint64) * word(_GOLDEN)


def _next(z: tf.Tensor) -> tf.Tensor:
    return _mix(z + word(_GOLDEN))


def _mix(z: tf.Tensor) -> tf.Tensor:
    z = xor(z, shift(z, 30)) * word(0xBF58476D1CE4E5B9)
    z = xor(z, shift(z, 27)) * word(0x94D049BB133111EB)
    return xor(z, shift(z, 31))


def xor(one: tf.Tensor, other: tf.Tensor) -> tf.Tensor:
    """Of uint64."""
    return tf.bitwise.bitwise_xor(one, other)


def shift(z: tf.Tensor, bits: int) -> tf.Tensor:
    """uint64 to the right."""
    return tf.bitwise.right_shift(z, tf.constant(bits, tf.uint64))


def word(value: int) -> tf.Tensor:
    """The lower 64 bits of a number, as uint64."""
    return tf.constant(value & _MASK, tf.uint64)
