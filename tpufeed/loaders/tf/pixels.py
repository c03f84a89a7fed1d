"""Convert and mix images for models in TensorFlow, on the device where they are."""

from typing import Any

import numpy as np
import numpy.typing as npt

from tpufeed.errors import MissingExtraError

try:
    import tensorflow as tf
except ImportError as error:
    raise MissingExtraError("TensorFlow", "tf") from error


def scaled(images: Any, scale: list[float], shift: list[float], dtype: Any, layout: str | None) -> Any:
    """`images * scale + shift` by channel; see `to_device_float`."""
    result = tf.cast(images, tf.float32) * tf.constant(scale, tf.float32) + tf.constant(shift, tf.float32)
    result = tf.cast(result, dtype or tf.bfloat16)
    return tf.transpose(result, (0, 3, 1, 2)) if layout == "NCHW" else result


ARRAYS: Any = tf
KEY = "tensor of two ints, as tf.random.stateless_uniform takes it"


def blend(values: Any, weights: Any) -> Any:
    """`weights * values + (1 - weights) * rolled` along the batch, in the type of `values`; see `mixup`."""
    floats = tf.cast(values, tf.float32)
    mixed = floats * weights + tf.roll(floats, 1, 0) * (1 - weights)
    return tf.cast(tf.round(mixed) if values.dtype.is_integer else mixed, values.dtype)


def one_hot(labels: Any, classes: int | None) -> Any:
    """Labels as float32 (batch, classes)."""
    return tf.cast(labels, tf.float32) if len(labels.shape) == 2 else tf.one_hot(labels, classes or 1)


def send(draws: npt.NDArray[np.float32], _images: Any) -> Any:
    """The draws as tensors."""
    return tf.unstack(tf.constant(draws))


def draw(seed: Any, alpha: float) -> Any:
    """A number of Beta(alpha, alpha), by two of Gamma(alpha), and two uniform ones, by a seed."""
    one, other = tf.unstack(tf.random.stateless_gamma((2,), seed, alpha))
    return one / (one + other), *tf.unstack(tf.random.stateless_uniform((2,), seed + 1))


def count(stop: int, _share: Any) -> Any:
    """0.0, 1.0 ... below `stop`."""
    return tf.range(stop, dtype=tf.float32)


def is_traced(_images: Any) -> bool:
    """Return true within a step that is being compiled."""
    return bool(tf.inside_function())
