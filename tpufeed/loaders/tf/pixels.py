"""Convert and mix images of TensorFlow on their device."""

from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tpufeed.errors import OptionError


def scaled(images: Any, scale: list[float], shift: list[float], dtype: Any, layout: str | None) -> Any:
    """Return `images * scale + shift` by channel; see `to_device_float`."""
    result = tf.cast(images, tf.float32) * tf.constant(scale, tf.float32) + tf.constant(shift, tf.float32)
    result = tf.cast(result, dtype or tf.bfloat16)
    return tf.transpose(result, (0, 3, 1, 2)) if layout == "NCHW" else result


ARRAYS: Any = tf
OR_KEY = ", or give seed a tensor of two ints, as tf.random.stateless_uniform takes it"

# More than 95 % of the candidates for a gamma are accepted: all of these are rejected in 1 of 10^41 draws.
_CANDIDATES = 32


def roll(values: Any) -> Any:
    """Return the rows, each moved to the place of the next, and the last to the first place."""
    return tf.roll(values, 1, 0)


def blend(values: Any, share: Any) -> Any:
    """Return `share * values + (1 - share) * rolled` along the batch, in the type of `values`; see `mixup`."""
    floats = values if values.dtype == tf.float64 else tf.cast(values, tf.float32)
    share = tf.cast(share, floats.dtype)
    mixed = floats * share + roll(floats) * (1 - share)
    return tf.cast(tf.round(mixed) if values.dtype.is_integer else mixed, values.dtype)


def one_hot(labels: Any, classes: int | None) -> Any:
    """Return labels as float32 (batch, classes)."""
    return (
        tf.cast(labels, tf.float32) if len(labels.shape) == 2 else tf.one_hot(tf.cast(labels, tf.int64), classes or 1)
    )


def send(draws: npt.NDArray[np.float32], _images: Any) -> Any:
    """Return the draws as tensors."""
    return tf.unstack(tf.constant(draws))


def draw(seed: Any, alpha: float, purpose: int) -> Any:
    """Draw a number of Beta(alpha, alpha), from two of Gamma(alpha), and two uniform numbers by a seed."""
    if tuple(seed.shape) != (2,) or not seed.dtype.is_integer:
        raise OptionError(f"a seed that is a tensor has two ints, not {seed.dtype.name} of shape {tuple(seed.shape)}")
    own = tf.random.experimental.stateless_fold_in(seed, purpose)
    first, second, third = tf.unstack(tf.random.experimental.stateless_split(own, 3))
    share = tf.sigmoid(_log_gamma_draw(first, alpha) - _log_gamma_draw(second, alpha))
    return share, *tf.unstack(tf.random.stateless_uniform((2,), third))


def _log_gamma_draw(seed: Any, alpha: float) -> Any:
    """Draw the log of a number of Gamma(alpha): Marsaglia and Tsang (2000), https://doi.org/10.1145/358407.358414.

    XLA can compile this, but has no `tf.random.stateless_gamma`. A logarithm, as for small alpha most numbers are 0 in
    float32.
    """
    candidates, accepts, power = tf.unstack(tf.random.experimental.stateless_split(seed, 3))
    d = alpha + 1 - 1 / 3  # their boost: Gamma(alpha) is Gamma(alpha + 1) times a uniform number's root of alpha
    x = tf.random.stateless_normal((_CANDIDATES,), candidates)
    v = (1 + x / (9 * d) ** 0.5) ** 3
    log_v = tf.math.log(tf.maximum(v, 1e-30))
    tiny = float(np.finfo(np.float32).tiny)  # a uniform number may be 0
    uniform = tf.random.stateless_uniform((_CANDIDATES,), accepts, tiny, 1.0)
    accepted = (v > 0) & (tf.math.log(uniform) < x**2 / 2 + d - d * v + d * log_v)
    first = tf.argmax(tf.cast(accepted, tf.int32))
    root = tf.math.log(tf.random.stateless_uniform((), power, tiny, 1.0)) / alpha
    return np.log(d) + tf.gather(log_v, first) + root


def count(stop: int, _images: Any) -> Any:
    """Return 0.0, 1.0 ... below `stop`."""
    return tf.range(stop, dtype=tf.float32)


def is_traced(_images: Any) -> bool:
    """Return true within a step that is being compiled."""
    return bool(tf.inside_function())
