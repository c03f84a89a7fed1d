"""Trains a small convolutional net over all devices of all processes, in plain JAX, and goes on where it was stopped.

    python jax_train.py gs://my-bucket/flowers --steps 500 --checkpoint run1

XLA_FLAGS=--xla_force_host_platform_device_count=8 makes 8 devices of a CPU. On several hosts start it on each with
--hosts, and with a checkpoint folder that all of them see.
"""
# ruff: noqa: T201

import argparse
import itertools
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import tpufeed
from tpufeed.images import HorizontalFlip, RandomResizedCrop

WIDTHS = (3, 16, 32, 64)


def make_params(classes, seed=0):
    """Convolutions, each of which halves height and width, and a dense layer."""
    keys = jax.random.split(jax.random.key(seed), len(WIDTHS))
    he = jax.nn.initializers.he_normal()
    layers = [
        {"kernel": he(key, (3, 3, *widths)), "bias": jnp.zeros(widths[1])}
        for key, widths in zip(keys, itertools.pairwise(WIDTHS), strict=False)
    ]
    return {"layers": layers, "dense": he(keys[-1], (WIDTHS[-1], classes)), "bias": jnp.zeros(classes)}


def loss_of(params, image, label):
    """Of uint8 images, which become floats here: a quarter of the bytes had to cross to the devices."""
    values = tpufeed.to_device_float(image)
    for layer in params["layers"]:
        kernel = layer["kernel"].astype(values.dtype)
        values = jax.lax.conv_general_dilated(
            values, kernel, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        values = jax.nn.relu(values + layer["bias"].astype(values.dtype))
    logits = values.astype(jnp.float32).mean((1, 2)) @ params["dense"] + params["bias"]
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), label[:, None], 1).mean()


def step(state, image, label, rate=0.05, momentum=0.9):
    """One step of SGD. The mean over rows that lie on all devices is what makes XLA add up the gradients of all."""
    params, velocity = state
    loss, gradients = jax.value_and_grad(loss_of)(params, image, label)
    velocity = jax.tree.map(lambda v, g: momentum * v + g, velocity, gradients)
    return (jax.tree.map(lambda p, v: p - rate * v, params, velocity), velocity), loss


def save(folder, steps, state, loader):
    """Params first; then, in one move, the file that says which they are and where the loader was."""
    if jax.process_index() == 0:  # the loader's state is the same in all processes
        folder.mkdir(parents=True, exist_ok=True)
        np.savez(folder / f"{steps}.npz", *map(np.asarray, jax.tree.leaves(state)))
        (folder / "new.json").write_text(json.dumps({"steps": steps, "loader": loader.state_dict()}))
        (folder / "new.json").replace(folder / "checkpoint.json")


def restore(folder, state, loader):
    """The steps that are done and the state then; the loader goes on there."""
    if not (folder / "checkpoint.json").is_file():
        return 0, state
    saved = json.loads((folder / "checkpoint.json").read_text())
    loader.load_state_dict(saved["loader"])
    with np.load(folder / f"{saved['steps']}.npz") as arrays:
        state = jax.tree.unflatten(jax.tree.structure(state), [arrays[name] for name in arrays.files])
    print(f"goes on after step {saved['steps']}, in epoch {saved['loader']['epoch']}")
    return saved["steps"], state


def train(options):
    """All of it."""
    dataset = tpufeed.open_dataset(options.url)
    ops = None if dataset.manifest.cache else [RandomResizedCrop(size=options.size), HorizontalFlip()]
    mesh = Mesh(jax.devices(), ("data",))
    everywhere = NamedSharding(mesh, P())
    params = make_params(len(dataset.manifest.class_names))
    state = params, jax.tree.map(jnp.zeros_like, params)
    # The old state's memory becomes the new one's.
    compiled = jax.jit(step, donate_argnums=0, out_shardings=everywhere)
    clock, losses = tpufeed.StepClock(), []
    with tpufeed.jax_loader(
        options.url, sharding=mesh, batch_size=options.batch_size, ops=ops, repeat=True, processes=options.processes
    ) as loader:
        done, state = restore(options.checkpoint, state, loader)
        state = jax.device_put(state, everywhere)
        for number, (image, label) in zip(range(done + 1, options.steps + 1), clock(loader), strict=False):
            state, loss = compiled(state, image, label)
            losses.append(float(loss))  # waits for the devices, so that the clock can tell waits for batches from steps
            if number % options.every == 0 or number == options.steps:
                report = clock.report(image.shape[0])
                idle = "n/a" if report.idle_percent is None else f"{report.idle_percent:.1f} %"
                print(f"step {number}  loss {np.mean(losses):.4f}  idle {idle}", flush=True)
                losses.clear()
                save(options.checkpoint, number, state, loader)


def main():
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("url", help="a dataset or cache with labels")
    parser.add_argument(
        "--checkpoint", type=Path, default=Path("checkpoint"), help="a folder; one with a checkpoint goes on"
    )
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--every", type=int, default=20, help="steps from one report and checkpoint to the next")
    parser.add_argument("--batch-size", type=int, default=64, help="of each process")
    parser.add_argument("--size", type=int, default=96, help="of the crops, where the dataset is no cache")
    parser.add_argument("--processes", type=int, default=None, help="that decode")
    parser.add_argument("--hosts", action="store_true", help="this is one of several processes")
    options = parser.parse_args()
    if options.hosts:
        jax.distributed.initialize()
    train(options)


if __name__ == "__main__":
    main()
