"""JAX's functions for ops on the device."""

from functools import partial

import jax.numpy as jnp

from tpufeed.images.device import Arrays

ARRAYS = Arrays(
    floats=lambda x: x.astype(jnp.float32),
    levels=lambda x, dtype: x.astype(dtype),
    cast=lambda x, dtype: x.astype(dtype or jnp.bfloat16),
    count=lambda stop, axis, _x: jnp.expand_dims(jnp.arange(stop, dtype=jnp.float32), -3 - axis),
    row=lambda numbers, _x: jnp.array(numbers, jnp.float32),
    where=jnp.where,
    minimum=jnp.minimum,
    maximum=jnp.maximum,
    floor=jnp.floor,
    round=jnp.round,
    exp=jnp.exp,
    # Without this a TPU multiplies in bfloat16 and weights lose 16 bits. Pixel levels are integers and need no more.
    product=partial(jnp.matmul, precision="high"),
    flip=jnp.flip,
    reshape=jnp.reshape,
    transpose=jnp.transpose,
    stack=partial(jnp.stack, axis=-1),
    sum=partial(jnp.sum, keepdims=True),
    least=partial(jnp.min, axis=(-2, -1), keepdims=True),
    most=partial(jnp.max, axis=(-2, -1), keepdims=True),
    layout="NHWC",
    exact_product=partial(jnp.matmul, precision="highest"),
)
