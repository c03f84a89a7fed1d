"""JAX's functions for ops on the device."""

from functools import partial

import jax.numpy as jnp

from tpufeed.images.device import Arrays

ARRAYS = Arrays(
    floats=lambda x: x.astype(jnp.float32),
    levels=lambda x: x.astype(jnp.uint8),
    cast=lambda x, dtype: x.astype(dtype or jnp.bfloat16),
    count=lambda stop, _x: jnp.arange(stop, dtype=jnp.float32),
    row=lambda numbers, _x: jnp.array(numbers, jnp.float32),
    where=jnp.where,
    minimum=jnp.minimum,
    maximum=jnp.maximum,
    floor=jnp.floor,
    round=jnp.round,
    exp=jnp.exp,
    # Without this a TPU multiplies in bfloat16 and weights lose 16 bits. Pixel levels are integers and need no more.
    einsum=partial(jnp.einsum, precision="high"),
    flip=jnp.flip,
    reshape=jnp.reshape,
    transpose=jnp.transpose,
    stack=partial(jnp.stack, axis=-1),
    sum=jnp.sum,
    least=jnp.min,
    most=jnp.max,
    layout="NHWC",
)
