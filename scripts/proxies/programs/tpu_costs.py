"""The cost of device ops by the TPU's own compiler, in JSON: `tpu_costs.py TPU,... OPS|... BATCH`. Not run there."""

import json
import os
import sys
from dataclasses import asdict
from functools import partial

from tpufeed.measure.tpu_compiler import ENVIRONMENT, compile_for, tpu_mesh

os.environ.update(ENVIRONMENT)

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

import tpufeed
from tpufeed.adapters.jax.arrays import ARRAYS
from tpufeed.adapters.jax.kernel import ON_TPU
from tpufeed.images import (
    CenterCrop,
    ColorJitter,
    GaussianBlur,
    Grayscale,
    HorizontalFlip,
    RandAugment,
    RandomCrop,
    RandomErasing,
    RandomResizedCrop,
)
from tpufeed.images.device import DeviceOps

SIDE, OUT = 256, 224
TRANSFORMS = ("identity", "translate_x", "translate_y", "brightness", "color", "contrast", "sharpness", "posterize")
CROP, JITTER = (RandomResizedCrop(OUT), HorizontalFlip()), ColorJitter(0.4, 0.4, 0.4, 0.1)
RANDAUGMENT = RandAugment(transforms=(*TRANSFORMS, "solarize", "autocontrast"))
CHAINS = {
    "crop": CROP[:1],
    "crop, flip": CROP,
    "crop, flip, jitter": (*CROP, JITTER),
    "RandAugment": (RANDAUGMENT,),
    "jitter": (JITTER,),
    "flip": CROP[1:],
    "grey": (Grayscale(0.2),),
    "blur": (GaussianBlur(),),
    "erase": (RandomErasing(),),
    "RandomCrop": (RandomCrop(OUT),),
    "CenterCrop": (CenterCrop(OUT),),
}


def main(tpus: str, chains: str, batch: str) -> None:
    for tpu in tpus.split(","):
        one = NamedSharding(tpu_mesh(tpu), PartitionSpec())
        images = jax.ShapeDtypeStruct((int(batch), SIDE, SIDE, 3), jnp.uint8, sharding=one)
        for name in chains.split("|") if chains else CHAINS:
            ops = DeviceOps(CHAINS[name], (SIDE, SIDE))
            numbers = jax.ShapeDtypeStruct((int(batch), ops.width), jnp.float32, sharding=one)
            ways = (
                {"kernel": ON_TPU, "XLA": ARRAYS}
                if name in ("crop, flip", "crop, flip, jitter")
                else {"kernel": ON_TPU}
            )
            for way, arrays in ways.items():
                cost = compile_for(tpu, jax.jit(partial(ops.apply, arrays=arrays)).lower(images, numbers))
                write(name, way, int(batch), cost)
        images = jax.ShapeDtypeStruct((int(batch), OUT, OUT, 3), jnp.uint8, sharding=one)
        write("to_device_float", "XLA", int(batch), compile_for(tpu, jax.jit(tpufeed.to_device_float).lower(images)))


def write(name: str, way: str, batch: int, cost: object) -> None:
    print(json.dumps({"program": name, "way": way, "batch": batch, **asdict(cost)}), flush=True)  # type: ignore[call-overload]


if __name__ == "__main__":
    main(*sys.argv[1:])
