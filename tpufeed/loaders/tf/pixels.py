"""Convert uint8 images for models in TensorFlow, on the device where they are."""

from typing import Any

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
