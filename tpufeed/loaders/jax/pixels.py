"""Convert and mix images for models in JAX, on the devices where they are."""

from typing import Any

import numpy as np
import numpy.typing as npt

from tpufeed.errors import MissingExtraError

try:
    import jax
    import jax.numpy as jnp
except ImportError as error:
    raise MissingExtraError("JAX", "jax") from error

ARRAYS: Any = jnp
KEY = "key of jax.random"


def scaled(images: jax.Array, scale: list[float], shift: list[float], dtype: Any, layout: str | None) -> jax.Array:
    """`images * scale + shift` by channel; see `to_device_float`."""
    result = images.astype(jnp.float32) * np.array(scale, np.float32) + np.array(shift, np.float32)
    result = result.astype(dtype or jnp.bfloat16)
    return result.transpose(0, 3, 1, 2) if layout == "NCHW" else result


def blend(values: jax.Array, weights: Any) -> jax.Array:
    """`weights * values + (1 - weights) * rolled` along the batch, in the type of `values`; see `mixup`."""
    whole = jnp.issubdtype(values.dtype, jnp.integer)
    floats = values.astype(jnp.float32)
    mixed = floats * weights + jnp.roll(floats, 1, 0) * (1 - weights)
    return (jnp.round(mixed) if whole else mixed).astype(values.dtype)


def one_hot(labels: jax.Array, classes: int | None) -> jax.Array:
    """Labels as float32 (batch, classes)."""
    return labels.astype(jnp.float32) if labels.ndim == 2 else jax.nn.one_hot(labels, classes or 1, dtype=jnp.float32)


def send(draws: npt.NDArray[np.float32], _images: jax.Array) -> Any:
    """The draws as data of a compiled step."""
    return jnp.asarray(draws)


def draw(key: Any, alpha: float) -> Any:
    """A number of Beta(alpha, alpha) and two uniform ones, by a key."""
    first, second = jax.random.split(key)
    return jax.random.beta(first, alpha, alpha), *jax.random.uniform(second, (2,))


def count(stop: int, _share: jax.Array) -> jax.Array:
    """0.0, 1.0 ... below `stop`."""
    return jnp.arange(stop, dtype=jnp.float32)


def is_traced(images: Any) -> bool:
    """Return true within a step that is being compiled."""
    return isinstance(images, jax.core.Tracer)
