"""The training of docs/tpu-vm.md, a small network in JAX: python train.py gs://BUCKET BATCH_OF_A_HOST [--pod]."""

import sys

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import tpufeed
from tpufeed.images import CenterCrop, Resize

bucket, batch_size = sys.argv[1], int(sys.argv[2])  # the batch of each host
if "--pod" in sys.argv:
    jax.distributed.initialize()
print(f"{jax.device_count()} cores of {jax.devices()[0].device_kind}", flush=True)
mesh = jax.make_mesh((jax.device_count(),), ("data",))
train = tpufeed.Loader(f"{bucket}/flowers-224", "train", batch_size=batch_size).to_jax(mesh)
whole = {"ops": [Resize(256), CenterCrop(224)], "shuffle": False, "remainder": "pad"}  # the cache has random crops
val = tpufeed.Loader(f"{bucket}/flowers", "val", batch_size=batch_size, **whole).to_jax(mesh)
draw, keys = jax.nn.initializers.he_normal(), jax.random.split(jax.random.key(0), 4)
shapes = (5, 5, 3, 16), (5, 5, 16, 32), (5, 5, 32, 64), (64, len(train.class_names))
weights = [draw(key, shape) for key, shape in zip(keys, shapes, strict=True)]
weights = jax.device_put(weights, NamedSharding(mesh, P()))


def scores_of(weights, images):
    """Return the scores of each image's classes."""
    values = tpufeed.to_device_float(images, dtype=jnp.float32)
    for kernel in weights[:-1]:
        order = ("NHWC", "HWIO", "NHWC")
        values = jax.lax.conv_general_dilated(values, kernel, (4, 4), "SAME", dimension_numbers=order)
        values = jax.nn.relu(values)
    return values.mean((1, 2)) @ weights[-1]


def loss_of(weights, images, labels):
    """Return the mean cross entropy."""
    chances = jax.nn.log_softmax(scores_of(weights, images))
    return -jnp.take_along_axis(chances, labels[:, None], 1).mean()


@jax.jit
def step(weights, images, labels):
    """Return the next weights, and the loss before."""
    loss, slopes = jax.value_and_grad(loss_of)(weights, images, labels)
    return [weight - 0.05 * slope for weight, slope in zip(weights, slopes, strict=True)], loss


@jax.jit
def count_right(weights, images, labels, mask):
    """Count right guesses, padding left out."""
    return ((scores_of(weights, images).argmax(1) == labels) & mask).sum()


for epoch in range(1, 11):
    for images, labels in train:
        weights, loss = step(weights, images, labels)
    right = sum(int(count_right(weights, *batch)) for batch in val)
    print(f"epoch {epoch} of 10: loss {loss:.3f}, {right} of val right", flush=True)
