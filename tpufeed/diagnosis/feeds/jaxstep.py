"""A training step on JAX's devices, as small as that of `xlastep`."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from tpufeed.loaders.devicefloat import to_device_float

Step = Callable[[Any], None]

_KERNELS = (7, 7, 3, 16), (3, 3, 16, 32)
_STRIDES = (4, 2)
_CLASSES = 1000


def make_step() -> Step:
    """A step that is done when it returns: waits that follow are the loader's."""
    kernels = [0.1 * jax.random.normal(jax.random.key(n), shape) for n, shape in enumerate(_KERNELS)]
    params = [*kernels, jnp.zeros((_KERNELS[-1][-1], _CLASSES))]

    def loss_of(params: Any, image: Any, label: Any) -> Any:
        values = to_device_float(image, dtype=jnp.float32)
        names = ("NHWC", "HWIO", "NHWC")
        for kernel, stride in zip(params, _STRIDES, strict=False):
            values = jax.lax.conv_general_dilated(values, kernel, (stride, stride), "VALID", dimension_numbers=names)
            values = jax.nn.relu(values)
        scores = jax.nn.log_softmax(values.mean((1, 2)) @ params[-1])
        return -jnp.take_along_axis(scores, label[:, None], 1).mean()

    @jax.jit
    def update(params: Any, image: Any, label: Any) -> Any:
        gradients = jax.grad(loss_of)(params, image, label)
        return [param - 0.01 * gradient for param, gradient in zip(params, gradients, strict=True)]

    def step(batch: Any) -> None:
        nonlocal params
        params = update(params, *map(jnp.asarray, batch[:2]))
        jax.block_until_ready(params)  # type: ignore[no-untyped-call]  # JAX leaves it untyped

    return step


def find_devices(platform: str) -> int:
    """How many devices of that platform JAX has. Raises RuntimeError where it has none."""
    return len(jax.devices(platform))
