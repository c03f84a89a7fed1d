"""Device ops of an image in one kernel of a TPU: it moves to the chip once, however many ops there are.

XLA would write and read all images of the batch between changes of colour, and compute for each image also the changes
that were not drawn for it.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from tpufeed.adapters.jax.arrays import ARRAYS
from tpufeed.images.device import Coded, DeviceOps, Planes, coded

_shape: Any = jax.ShapeDtypeStruct  # without types
# Of the largest image between ops. Larger ones take the compiler minutes, as it unrolls planes.
_MOST_PIXELS = 256 * 256


class _Numbers(Sequence[Any]):
    """Numbers of an image in the kernel's memory. Which one may depend on the turn of a loop."""

    def __init__(self, ref: Any, places: range) -> None:
        self._ref, self._places = ref, places

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            return _Numbers(self._ref, self._places[key])
        return self._ref[0, 0, self._places[key] if isinstance(key, int) else self._places.start + key]


def _count(stop: int, axis: int, _x: Any) -> Any:
    shape = (1, stop) if axis == -1 else (stop, 1)
    return jax.lax.broadcasted_iota(jnp.int32, shape, 2 + axis).astype(jnp.float32)


def _product(x: Any, y: Any) -> Any:
    """Multiply each number's first 16 bits: three products of bfloat16, as XLA does for precision="high"."""
    (x, x_rest), (y, y_rest) = map(_halves, (x, y))
    multiply = partial(jnp.dot, preferred_element_type=jnp.float32)
    return multiply(x, y) + multiply(x, y_rest) + multiply(x_rest, y)


def _halves(x: Any) -> tuple[Any, Any]:
    high = x.astype(jnp.bfloat16)
    return high, (x - high.astype(jnp.float32)).astype(jnp.bfloat16)


def _flip(x: Any, axis: int) -> Any:
    """Multiply by ones on the other diagonal. Levels are exact in bfloat16."""
    side = x.shape[axis]
    ones = (_count(side, -1, x) + _count(side, -2, x) == side - 1).astype(jnp.float32).astype(jnp.bfloat16)
    factors = (x.astype(jnp.bfloat16), ones) if axis == -1 else (ones, x.astype(jnp.bfloat16))
    return jnp.dot(*factors, preferred_element_type=jnp.float32)


def _branch(number: Any, changes: Mapping[int, Callable[[], Planes]], x: Planes) -> Planes:
    when: Any = pl.when

    def run(kept: Any) -> Planes:
        _write(kept, x)
        for each, change in changes.items():
            when(number == each)(lambda change=change: _write(kept, change()))
        return _read(kept)

    return _beside(x, run)


def _repeat(times: int, change: Callable[[Any, Planes], Planes], x: Planes) -> Planes:
    loop: Any = jax.lax.fori_loop

    def run(kept: Any) -> Planes:
        _write(kept, x)
        loop(0, times, lambda turn, _: _write(kept, change(turn, _read(kept))), None)
        return _read(kept)

    return _beside(x, run)


def _beside(x: Planes, run: Callable[[Any], Planes]) -> Planes:
    """Call with memory for planes like `x`: if branches return them, the compiler takes four times as long."""
    scoped: Any = pl.run_scoped
    made: Planes = scoped(run, pltpu.VMEM((len(x), *x[0].shape), jnp.float32))
    return made


def _write(kept: Any, x: Planes) -> None:
    for channel, plane in enumerate(x):
        kept[channel] = plane


def _read(kept: Any) -> Planes:
    return [kept[channel] for channel in range(kept.shape[0])]


_IN_KERNEL = replace(
    ARRAYS,
    floats=lambda x: x if x.dtype == jnp.float32 else x.astype(jnp.int32).astype(jnp.float32),
    levels=lambda x, dtype: x.astype(jnp.int32).astype(dtype),
    count=_count,
    product=_product,
    flip=_flip,
    branch=_branch,
    repeat=_repeat,
)


def run(ops: DeviceOps, images: Any, parameters: Any, *, interpret: bool = False) -> Any:
    """Return what `DeviceOps.apply` does. A kernel with larger images would not fit."""
    if ops.most_pixels > _MOST_PIXELS:
        return ops.apply(images, parameters, ARRAYS)
    if not ops.width:  # a kernel takes no empty array
        parameters = jnp.zeros((len(images), 1), jnp.float32)
    batch, width = parameters.shape
    coefficients, floats = ops.coefficients, _IN_KERNEL.floats
    if coefficients is None:
        own, common = [jnp.transpose(images.reshape(batch, *ops.size, 3), (0, 3, 1, 2))], list[Any]()
    else:
        given = coded(coefficients, images, ARRAYS)
        own, common = [given.values, *given.highs], [*given.matrices]

    def change(p_ref: Any, *refs: Any) -> None:
        refs, out_ref = refs[:-1], refs[-1]
        if coefficients is None:
            x: Planes = [floats(refs[0][0, channel]) for channel in range(3)]
        else:
            values, *highs = (floats(ref[0]) for ref in refs[: len(own)])
            x = Coded(values, highs, [ref[:] for ref in refs[len(own) :]], coefficients)
        for channel, plane in enumerate(ops.change(x, _Numbers(p_ref, range(width)), _IN_KERNEL)):
            out_ref[0, channel] = _IN_KERNEL.levels(plane, "uint8")

    moved = math.prod(own[0].shape[1:]) + 3 * math.prod(ops.out_size)
    made = pl.pallas_call(
        change,
        grid=(batch,),
        in_specs=[
            pl.BlockSpec((1, 1, width), lambda number: (number, 0, 0), memory_space=pltpu.SMEM),
            *(
                pl.BlockSpec((1, *each.shape[1:]), lambda number, axes=each.ndim - 1: (number, *[0] * axes))
                for each in own
            ),
            *(pl.BlockSpec(each.shape, lambda _number: (0, 0)) for each in common),
        ],
        out_specs=pl.BlockSpec((1, 3, *ops.out_size), lambda number: (number, 0, 0, 0)),
        out_shape=_shape((batch, 3, *ops.out_size), jnp.uint8),
        cost_estimate=pl.CostEstimate(flops=0, transcendentals=0, bytes_accessed=batch * moved),
        interpret=interpret,
    )(parameters[:, None], *own, *common)
    return jnp.transpose(made, (0, 2, 3, 1))


ON_TPU = replace(ARRAYS, kernel=run)
