"""Convert and mix images of JAX on their devices."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from tpufeed.errors import OptionError

ARRAYS: Any = jnp
OR_KEY = ", or give seed a key of jax.random"


def scaled(images: jax.Array, scale: list[float], shift: list[float], dtype: Any, layout: str | None) -> jax.Array:
    """Return `images * scale + shift` by channel; see `to_device_float`."""
    result = images.astype(jnp.float32) * np.array(scale, np.float32) + np.array(shift, np.float32)
    result = result.astype(dtype or jnp.bfloat16)
    return result.transpose(0, 3, 1, 2) if layout == "NCHW" else result


def roll(values: jax.Array) -> jax.Array:
    """Return the rows, each moved to the place of the next, and the last to the first place; the sharding stays."""
    sharding = jax.typeof(values).sharding if hasattr(jax, "typeof") else None
    if sharding is None or not any(sharding.spec):
        return jnp.roll(values, 1, 0)
    # Along explicit axes of a mesh `jnp.roll` raises: it cuts off one row, which cannot be sharded.
    return jax.sharding.auto_axes(partial(jnp.roll, shift=1, axis=0), out_sharding=sharding)(values)  # type: ignore[no-any-return]


@jax.jit  # else several copies of float32 images would be on the devices between its operations
def blend(values: jax.Array, share: Any) -> jax.Array:
    """Return `share * values + (1 - share) * rolled` along the batch, in the type of `values`; see `mixup`."""
    wide = jnp.promote_types(values.dtype, jnp.float32)
    mixed = values.astype(wide) * share + roll(values).astype(wide) * (1 - share)
    return (jnp.round(mixed) if jnp.issubdtype(values.dtype, jnp.integer) else mixed).astype(values.dtype)


def one_hot(labels: jax.Array, classes: int | None) -> jax.Array:
    """Return labels as float32 (batch, classes)."""
    return labels.astype(jnp.float32) if labels.ndim == 2 else jax.nn.one_hot(labels, classes or 1, dtype=jnp.float32)


def send(draws: npt.NDArray[np.float32], _images: jax.Array) -> Any:
    """Return the draws unchanged: JAX takes numpy's numbers as data, on all devices of the program."""
    return draws


def draw(key: Any, alpha: float, purpose: int) -> Any:
    """Draw a number of Beta(alpha, alpha) and two uniform numbers by a key."""
    try:
        first, second = jax.random.split(jax.random.fold_in(key, purpose))
    except (TypeError, ValueError) as error:
        raise OptionError(f"a seed that is an array is a key of jax.random, not {key.dtype} of {key.shape}") from error
    return jax.random.beta(first, alpha, alpha), *jax.random.uniform(second, (2,))


def count(stop: int, _images: jax.Array) -> jax.Array:
    """Return 0, 1 ... below `stop`."""
    return jnp.arange(stop)


def is_traced(images: Any) -> bool:
    """Return true within a step that is being compiled."""
    return isinstance(images, jax.core.Tracer)
