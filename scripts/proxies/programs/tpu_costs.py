"""What programs cost by the TPU's own compiler, a JSON line each: `tpu_costs.py TPU BATCH CHAIN|... [FILE.mlir ...]`.

For each chain of device ops as JAX runs it, with all kinds of input for one of them, DCT coefficients among them, and
for images as floats. Then for files of StableHLO text ("WAY, PROGRAM.mlir"). They are compiled for the TPU, not run on
it.
"""

import json
import os
import re
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from tpufeed.measure.tpu_compiler import ENVIRONMENT, ProgramCost, compile_for, tpu_mesh

os.environ.update(ENVIRONMENT)

import jax
import jax.numpy as jnp
from chains import CHAINS, OUT, SIDE
from jax.sharding import NamedSharding, PartitionSpec

import tpufeed
from tpufeed.adapters.jax.arrays import ARRAYS
from tpufeed.adapters.jax.kernel import ON_TPU
from tpufeed.adapters.jax.sharding import SENDS_ROWS
from tpufeed.images.coefficients import of_quality
from tpufeed.images.device import DeviceOps

SENT = "rows" if SENDS_ROWS else "pixels"
EVERY_INPUT = "crop and flip"  # the chain that is also compiled for the ways of sending images that are not used


def main(tpu: str, batch: str, chains: str, *texts: str) -> None:
    images, one = int(batch), NamedSharding(tpu_mesh(tpu), PartitionSpec())

    def compiled(program: str, way: str, given: str, function: Any, *shapes: Any) -> None:
        arguments = [jax.ShapeDtypeStruct(shape, dtype, sharding=one) for shape, dtype in shapes]
        write(program, way, given, images, compile_for(tpu, jax.jit(function).lower(*arguments)))

    for name in filter(None, chains.split("|")):
        ops = DeviceOps(CHAINS[name], (SIDE, SIDE))
        for given in INPUTS if name == EVERY_INPUT else [SENT]:
            shape, pixels = INPUTS[given](images, SIDE)

            def apply(sent: Any, numbers: Any, ops: DeviceOps = ops, pixels: Any = pixels) -> Any:
                return ops.apply(pixels(sent), numbers, ON_TPU)

            way = "JAX, kernel" if ops.width else "JAX"  # without numbers there is no kernel
            compiled(name, way, given, apply, (shape, jnp.uint8), ((images, ops.width), jnp.float32))
        if name == EVERY_INPUT:
            coefficients = of_quality((SIDE, SIDE), 90)
            shape, ops = (images, *coefficients.shape), DeviceOps(CHAINS[name], (SIDE, SIDE), coefficients)
            for way, arrays in {"JAX, kernel": ON_TPU, "JAX, XLA": ARRAYS}.items():
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
        write(program, way, "pixels", images, compile_for(tpu, source), int(number))


def from_rows(images: int, side: int) -> tuple[tuple[int, ...], Any]:
    return (images, side, side * 3), partial(jnp.reshape, shape=(images, side, side, 3))


def from_pixels(images: int, side: int) -> tuple[tuple[int, ...], Any]:
    return (images, side, side, 3), lambda sent: sent


def from_planes(images: int, side: int) -> tuple[tuple[int, ...], Any]:
    return (images, 3, side, side), partial(jnp.transpose, axes=(0, 2, 3, 1))


# How images may reach the TPU: their shape there, and what makes pixels of it.
INPUTS = {"rows": from_rows, "pixels": from_pixels, "planes": from_planes}


def write(program: str, way: str, given: str, images: int, cost: ProgramCost, number: int = 0) -> None:
    """Print a row. Argument `number` has the images."""
    found = asdict(cost)
    layout = found.pop("layouts")[number]
    row = {"program": program, "way": way, "input": given, "batch": images, **found, "layout": layout}
    print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
