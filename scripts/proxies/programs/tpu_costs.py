"""What programs cost by the TPU's own compiler, a JSON line each: `tpu_costs.py TPU BATCH CHAIN|... [FILE.mlir ...]`.

For each chain of device ops as JAX runs it, for one of them from DCT coefficients, too, and for images as floats. Then
for files of StableHLO text ("WAY, PROGRAM.mlir"). `chains.IMAGES` on `chains.ONE` are also sent in the other ways. What
was compiled once is kept, so a run that was ended continues. They are compiled for the TPU, not run on it.
"""

import json
import os
import re
import sys
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from tpufeed.measure.tpu_compiler import ENVIRONMENT, cost_for, tpu_mesh

os.environ.update(ENVIRONMENT)

import jax
import jax.numpy as jnp
from chains import CHAINS, IMAGES, ONE, OUT, SIDE
from jax.sharding import NamedSharding, PartitionSpec

import tpufeed
from tpufeed.adapters.jax.arrays import ARRAYS
from tpufeed.adapters.jax.kernel import ON_TPU
from tpufeed.adapters.jax.sharding import SENDS_ROWS
from tpufeed.images.coefficients import of_quality
from tpufeed.images.device import DeviceOps

SENT = "rows" if SENDS_ROWS else "pixels"
EVERY_INPUT = "crop and flip"  # the chain that is also compiled for other ways of sending images


def main(tpu: str, batch: str, chains: str, *texts: str) -> None:
    images, one = int(batch), NamedSharding(tpu_mesh(tpu), PartitionSpec())
    other_ways = (tpu, images) == (ONE, IMAGES)

    def compiled(program: str, way: str, given: str, function: Any, *shapes: Any) -> None:
        arguments = [jax.ShapeDtypeStruct(shape, dtype, sharding=one) for shape, dtype in shapes]
        row = {"program": program, "way": way, "input": given, "batch": images}
        write(tpu, row, jax.jit(function).lower(*arguments))

    for name in filter(None, chains.split("|")):
        ops = DeviceOps(CHAINS[name], (SIDE, SIDE))
        for given in INPUTS if name == EVERY_INPUT and other_ways else [SENT]:
            shape, pixels = INPUTS[given](images, SIDE)

            def apply(sent: Any, numbers: Any, ops: DeviceOps = ops, pixels: Any = pixels) -> Any:
                return ops.apply(pixels(sent), numbers, ON_TPU)

            way = "JAX, kernel" if ops.width else "JAX"  # without numbers there is no kernel
            compiled(name, way, given, apply, (shape, jnp.uint8), ((images, ops.width), jnp.float32))
        if name == EVERY_INPUT:
            coefficients = of_quality((SIDE, SIDE), 90)
            shape, ops = (images, *coefficients.shape), DeviceOps(CHAINS[name], (SIDE, SIDE), coefficients)
            for way, arrays in {"JAX, kernel": ON_TPU, **({"JAX, XLA": ARRAYS} if other_ways else {})}.items():
                shapes = (shape, jnp.int8), ((images, ops.width), jnp.float32)
                compiled(f"{name} of coefficients", way, "coefficients", partial(ops.apply, arrays=arrays), *shapes)
    for given in INPUTS if chains else []:
        shape, pixels = INPUTS[given](images, OUT)
        compiled(
            "to_device_float", "JAX", given, lambda sent, pixels=pixels: tpufeed.to_device_float(pixels(sent)),
            (shape, jnp.uint8),
        )  # fmt: skip
    for text in map(Path, texts):
        way, _, program = text.stem.partition(", ")
        source = text.read_text()
        number = re.findall(r"%arg(\d+): tensor<\d+x\d+x\d+x3xui8>", source)[0]
        write(tpu, {"program": program, "way": way, "input": "pixels", "batch": images}, source, int(number))


def from_rows(images: int, side: int) -> tuple[tuple[int, ...], Any]:
    return (images, side, side * 3), partial(jnp.reshape, shape=(images, side, side, 3))


def from_pixels(images: int, side: int) -> tuple[tuple[int, ...], Any]:
    return (images, side, side, 3), lambda sent: sent


def from_planes(images: int, side: int) -> tuple[tuple[int, ...], Any]:
    return (images, 3, side, side), partial(jnp.transpose, axes=(0, 2, 3, 1))


# How images may reach the TPU: their shape there, and what makes pixels of it.
INPUTS = {"rows": from_rows, "pixels": from_pixels, "planes": from_planes}


def write(tpu: str, row: dict[str, Any], source: Any, number: int = 0) -> None:
    """Print the row of a program, with what it costs. Argument `number` has the images."""
    print(time.strftime("%X"), tpu, *row.values(), file=sys.stderr, flush=True)
    found = asdict(cost_for(tpu, source))
    layout = found.pop("layouts")[number]
    print(json.dumps({**row, **found, "layout": layout}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
