"""What a model in JAX wants of uint8 images, done on their devices."""

from typing import Any

import numpy as np

from tpufeed.errors import MissingExtraError

try:
    import jax
    import jax.numpy as jnp
except ImportError as error:
    raise MissingExtraError("JAX", "jax") from error


def scaled(images: jax.Array, scale: list[float], shift: list[float], dtype: Any, layout: str | None) -> jax.Array:
    """`images * scale + shift` by channel; see `to_device_float`."""
    result = images.astype(jnp.float32) * np.array(scale, np.float32) + np.array(shift, np.float32)
    result = result.astype(dtype or jnp.bfloat16)
    return result.transpose(0, 3, 1, 2) if layout == "NCHW" else result
