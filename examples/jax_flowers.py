"""Train a small convolutional net over all devices of all processes, in plain JAX, and go on where it was stopped.

    python jax_flowers.py --data flowers --epochs 6 --batch-size 16 --size 64 --out run1   on a CPU
    python jax_flowers.py --data gs://my-bucket/flowers --out run1                         on a TPU VM
    python jax_flowers.py --data gs://my-bucket/flowers --out gs-mount/run1 --pod          on all workers of a pod

The dataset, or cache of one, has labels and splits train and val. XLA_FLAGS=--xla_force_host_platform_device_count=8
makes 8 devices of a CPU.
"""

import argparse
import itertools
import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import tpufeed
from tpufeed.images import CenterCrop, HorizontalFlip, RandomResizedCrop, Resize

WIDTHS = (3, 16, 32, 64)


def parse(arguments):
    """The options as a namespace."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="a dataset or cache with labels, and splits train and val")
    parser.add_argument("--out", type=Path, default=Path("jax-run"), help="a folder; one with a checkpoint goes on")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=128, help="of each process")
    parser.add_argument("--size", type=int, default=224, help="pixels a side, where the dataset is no cache")
    parser.add_argument(
        "--device-ops", action="store_true", help="crop on the devices; --data is a cache of whole images"
    )
    parser.add_argument("--learning-rate", type=float, default=0.05)
    parser.add_argument("--every", type=int, default=100, help="steps from one checkpoint to the next")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pod", action="store_true", help="this is one of several processes, which share --out")
    return parser.parse_args(arguments)


def make_params(classes, seed):
    """Convolutions, each of which halves height and width, and a dense layer."""
    keys = jax.random.split(jax.random.key(seed), len(WIDTHS))
    he = jax.nn.initializers.he_normal()
    layers = [
        {"kernel": he(key, (3, 3, *widths)), "bias": jnp.zeros(widths[1])}
        for key, widths in zip(keys, itertools.pairwise(WIDTHS), strict=False)
    ]
    return {"layers": layers, "dense": he(keys[-1], (WIDTHS[-1], classes)), "bias": jnp.zeros(classes)}


def logits_of(params, image):
    """Of uint8 images, which become bfloat16 here: a quarter of the bytes of floats had to cross to the devices."""
    values = tpufeed.to_device_float(image)
    for layer in params["layers"]:
        kernel = layer["kernel"].astype(values.dtype)
        values = jax.lax.conv_general_dilated(
            values, kernel, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        values = jax.nn.relu(values + layer["bias"].astype(values.dtype))
    return values.astype(jnp.float32).mean((1, 2)) @ params["dense"] + params["bias"]


def loss_of(params, image, label):
    """The mean over rows that lie on all devices is what makes XLA add up the gradients of all."""
    odds = jax.nn.log_softmax(logits_of(params, image))
    return -jnp.take_along_axis(odds, label[:, None], 1).mean()


def step(state, image, label, rate, momentum=0.9):
    """One step of SGD with momentum, its gradients cut to a norm of 1, as a new model's can be large."""
    params, velocity = state
    loss, gradients = jax.value_and_grad(loss_of)(params, image, label)
    norm = jnp.sqrt(sum(jnp.vdot(gradient, gradient) for gradient in jax.tree.leaves(gradients)))
    cut = jnp.minimum(1.0, 1.0 / norm)
    velocity = jax.tree.map(lambda v, g: momentum * v + cut * g, velocity, gradients)
    return (jax.tree.map(lambda p, v: p - rate * v, params, velocity), velocity), loss


def save(folder, place, state, loader):
    """Params first; then, in one move, the file that says which they are and where the loader was."""
    if jax.process_index() == 0:  # the loader's state is the same in all processes
        folder.mkdir(parents=True, exist_ok=True)
        np.savez(folder / f"{place['steps']}.npz", *map(np.asarray, jax.tree.leaves(state)))
        (folder / "new.json").write_text(json.dumps(place | {"loader": loader.state_dict()}))
        (folder / "new.json").replace(folder / "checkpoint.json")
        for older in folder.glob("*.npz"):
            if older.stem != str(place["steps"]):
                older.unlink()


def restore(folder, state, loader):
    """The steps that are done, the epoch to go on in, and the state then; the loader goes on there."""
    if not (folder / "checkpoint.json").is_file():
        return 0, 0, state
    saved = json.loads((folder / "checkpoint.json").read_text())
    loader.load_state_dict(saved["loader"])
    with np.load(folder / f"{saved['steps']}.npz") as arrays:
        state = jax.tree.unflatten(jax.tree.structure(state), [arrays[name] for name in arrays.files])
    print(f"goes on after step {saved['steps']}, in epoch {saved['epoch']}", flush=True)
    return saved["steps"], saved["epoch"], state


def train(options, dataset, mesh):
    """The params, after the epochs that were left to do."""
    crops = [RandomResizedCrop(size=options.size), HorizontalFlip()]
    given = {"batch_size": options.batch_size, "seed": options.seed}
    if options.device_ops:
        given["device_ops"] = crops
    elif not dataset.manifest.cache:
        given["ops"] = crops
    everywhere = NamedSharding(mesh, P())
    # The old state's memory becomes the new one's.
    compiled = jax.jit(step, donate_argnums=0, out_shardings=everywhere)
    params = make_params(len(dataset.manifest.class_names), options.seed)
    with tpufeed.Loader(options.data, **given).to_jax(mesh) as loader:
        steps, begin, state = restore(options.out, (params, jax.tree.map(jnp.zeros_like, params)), loader)
        state = jax.device_put(state, everywhere)
        for epoch in range(begin, options.epochs):
            clock, losses = tpufeed.StepClock(), []
            for image, label in clock(loader):
                state, loss = compiled(state, image, label, options.learning_rate)
                losses.append(float(loss))  # waits for the devices, so that the clock tells waiting from computing
                steps += 1
                if steps % options.every == 0:
                    save(options.out, {"steps": steps, "epoch": epoch}, state, loader)
            save(options.out, {"steps": steps, "epoch": epoch + 1}, state, loader)
            print(f"epoch {epoch}: loss {np.mean(losses):.4f}, {told(clock.report())}", flush=True)
    return state[0]


def told(report):
    """Images a second and the share of the time that steps waited for their batch."""
    if report.images_per_second is None:
        return "n/a images/s, idle n/a"
    return f"{report.images_per_second:,.0f} images/s, idle {report.idle_percent:.1f} %"


def evaluate(options, dataset, params, mesh):
    """The share of held-out images that are told right, each of them seen once: padding is masked."""

    @jax.jit
    def count(params, image, label, mask):
        return ((logits_of(params, image).argmax(1) == label) & mask).sum(), mask.sum()

    cropped = dataset.manifest.cache and not options.device_ops
    ops = None if cropped else [Resize(options.size), CenterCrop(options.size)]
    given = {"batch_size": options.batch_size, "ops": ops, "shuffle": False, "remainder": "pad"}
    with tpufeed.Loader(options.data, "val", **given).to_jax(mesh) as loader:
        counts = [count(params, *batch) for batch in loader]
    right, seen = (int(sum(each)) for each in zip(*counts, strict=True))
    print(f"accuracy, held out: {right / seen:.3f} of {seen}")


def main(options):
    """All of it."""
    if options.pod:
        jax.distributed.initialize()  # before anything asks for devices
    dataset = tpufeed.open_dataset(options.data)
    mesh = Mesh(jax.devices(), ("data",))
    print(f"{len(jax.devices())} devices ({jax.devices()[0].device_kind}), {jax.process_count()} processes")
    evaluate(options, dataset, train(options, dataset, mesh), mesh)


if __name__ == "__main__":
    main(parse(sys.argv[1:]))
