"""JAX: samples with several labels (`--task tags`), or a point to be found in each image (`--task point`).

    scripts/make_scenes.py scenes
    tpufeed shard scenes/scenes.jsonl scenes-tfrecord --label tags --keypoints spot --splits train=0.8,val=0.2
    python examples/samples_jax.py --data scenes-tfrecord --task tags
    python examples/samples_jax.py --data scenes-tfrecord --task point

Shapes are static: labels are (batch, classes) as `label_format="multi_hot"` gives them, and points (batch, 1, 2).
Random crops and flips move the points, and a bool says which of them the crop has left in.
"""

import argparse
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

import tpufeed
from tpufeed.images import HorizontalFlip, RandomResizedCrop, Resize

SIZE, WIDTH = 64, 24


def parse(arguments=None):
    """Return the options."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", required=True, help="dataset of scenes, see above")
    parser.add_argument("--task", choices=("tags", "point"), default="tags")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    return parser.parse_args(arguments)


def init(outputs):
    """Four convolutions, the first two with stride 2, and a linear map of each place to `outputs` numbers."""
    random, shapes = np.random.default_rng(0), [(5, 5, 3, WIDTH), *[(3, 3, WIDTH, WIDTH)] * 3, (1, 1, WIDTH, outputs)]
    return [
        {"kernel": jnp.float32(random.normal(0, (2 / np.prod(shape[:3])) ** 0.5, shape)), "bias": jnp.zeros(shape[3])}
        for shape in shapes
    ]


def maps(params, images):
    """Return (batch, height / 4, width / 4, outputs)."""
    values = tpufeed.to_device_float(images, dtype=jnp.float32)
    for number, layer in enumerate(params):
        strides = (2, 2) if number < 2 else (1, 1)
        values = jax.lax.conv_general_dilated(
            values, layer["kernel"], strides, "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        values += layer["bias"]
        if number + 1 < len(params):
            values = jax.nn.relu(values)
    return values


def tags_loss(params, images, labels):
    """Binary cross-entropy of each class, and the share of classes that are right."""
    logits = maps(params, images).max((1, 2))  # is there such a thing anywhere?
    losses = jnp.maximum(logits, 0) - logits * labels + jnp.log1p(jnp.exp(-jnp.abs(logits)))
    return losses.mean(), ((logits > 0) == (labels > 0.5)).mean()


def point_loss(params, images, points, visible):
    """Distance of the map's centre of mass to the point, where it is visible; and how many pixels that is."""
    heat = maps(params, images)[..., 0]
    shares = jax.nn.softmax(heat.reshape(len(heat), -1)).reshape(heat.shape)
    places = (jnp.arange(heat.shape[1]) + 0.5) * 4
    found = jnp.stack([(shares.sum(1) * places).sum(1), (shares.sum(2) * places).sum(1)], 1)
    pixels = jnp.sqrt(((found - points[:, 0]) ** 2).sum(1) + 1e-6)
    seen = visible[:, 0]
    mean = (pixels * seen).sum() / jnp.maximum(seen.sum(), 1)
    return mean / 10, mean


@partial(jax.jit, static_argnums=0)
def step(loss, params, moments, rate, *batch):
    """One step of Adam."""
    (value, measure), gradients = jax.value_and_grad(loss, has_aux=True)(params, *batch)
    first, second, count = moments
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, gradients)
    second = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, second, gradients)
    count += 1
    scale = rate * jnp.sqrt(1 - 0.99**count) / (1 - 0.9**count)
    params = jax.tree.map(lambda p, m, v: p - scale * m / (jnp.sqrt(v) + 1e-8), params, first, second)
    return params, (first, second, count), value, measure


def main(args):
    """Train, print a line an epoch, and return the measure on the split val."""
    loss, columns, outputs = {
        "tags": (tags_loss, ["image", "label"], len(tpufeed.open_dataset(args.data).manifest.class_names)),
        "point": (point_loss, ["image", "spot"], 1),
    }[args.task]
    ops = (
        [RandomResizedCrop(SIZE, scale=(0.7, 1.0)), HorizontalFlip()]
        if args.task == "point"
        else [Resize((SIZE, SIZE))]
    )
    form = {"label_format": "multi_hot"} if args.task == "tags" else {}
    make = partial(tpufeed.Loader, args.data, batch_size=args.batch_size, columns=columns, **form)
    params = init(outputs)
    zeros = jax.tree.map(jnp.zeros_like, params)
    moments = zeros, zeros, 0
    with (
        make("train", ops=ops).to_jax() as train,
        make("val", ops=[Resize((SIZE, SIZE))], shuffle=False).to_jax() as val,
    ):
        for epoch in range(args.epochs):
            for batch in train:
                params, moments, value, _ = step(loss, params, moments, args.learning_rate, *batch)
            measures = [jax.jit(loss)(params, *batch)[1] for batch in val]
            measure = float(np.mean(measures))
            print(f"epoch {epoch + 1}: loss {float(value):.3f}, {args.task} of val {measure:.3f}", flush=True)
    return measure


if __name__ == "__main__":
    main(parse())
