"""Train a small net in plain JAX, fed by Grain over a dataset of tpufeed, and go on where it was stopped.

    python grain_flowers.py --data flowers --epochs 6 --batch-size 16 --size 64 --out run1   on a CPU
    python grain_flowers.py --data gs://my-bucket/flowers-224 --out run1 --workers 8         on a TPU VM
    python grain_flowers.py --data gs://my-bucket/flowers-224 --out gs-mount/run1 --pod      on all workers of a pod

The dataset, or cache of one, has labels and splits train and val. The pipeline is set up as MaxText does it: each host
takes its slice of the source, then shuffle, repeat, batch, worker processes and a checkpoint of the iterator.
"""

import argparse
import contextlib
import json
import sys
from pathlib import Path

import grain
import jax
import jax.numpy as jnp
import numpy as np
from absl import flags
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import tpufeed
from tpufeed.images import CenterCrop, HorizontalFlip, RandomResizedCrop, Resize


def parse(arguments):
    """The options as a namespace."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="a dataset or cache with labels, and splits train and val")
    parser.add_argument("--out", type=Path, default=Path("grain-run"), help="a folder; one with a checkpoint goes on")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=128, help="of each process")
    parser.add_argument("--size", type=int, default=224, help="pixels a side, where the dataset is no cache")
    parser.add_argument("--learning-rate", type=float, default=0.1)
    parser.add_argument(
        "--workers", type=int, default=0, help="processes that decode; 0 decodes in threads of this one"
    )
    parser.add_argument("--every", type=int, default=100, help="steps from one checkpoint to the next")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pod", action="store_true", help="this is one of several processes, which share --out")
    return parser.parse_args(arguments)


def my_share(samples):
    """The samples of this host: neighbours, so that of a remote dataset it copies only its own shards."""
    host, hosts = jax.process_index(), jax.process_count()
    equal = len(samples) // hosts
    return samples[host * equal : (host + 1) * equal]


def make_train_feed(options, dataset):
    """Batches of this host for all epochs, the number of an epoch's, and what checkpoints say of the data."""
    ops = None if dataset.manifest.cache else [RandomResizedCrop(size=options.size), HorizontalFlip()]
    source = tpufeed.grain_source(dataset, "train", ops=ops, seed=options.seed)
    samples = my_share(source.to_map_dataset()).seed(options.seed).shuffle()
    batches = samples.batch(options.batch_size, drop_remainder=True)
    steps = len(batches)
    # A repeat of the MapDataset tells shuffle and crops the epoch; one of the IterDataset would not.
    batches = batches.repeat(options.epochs)
    feed = batches.to_iter_dataset(grain.ReadOptions(num_threads=4, prefetch_buffer_size=4))
    if options.workers:
        feed = feed.mp_prefetch(grain.multiprocessing.MultiprocessingOptions(num_workers=options.workers))
    return feed, steps, repr(source)


def make_params(classes, seed):
    """Two convolutions and a dense layer."""
    keys, he = jax.random.split(jax.random.key(seed), 3), jax.nn.initializers.he_normal()
    return [he(keys[0], (5, 5, 3, 16)), he(keys[1], (5, 5, 16, 32)), he(keys[2], (32, classes))]


def logits_of(params, image):
    """Of uint8 images, which become floats here."""
    values = tpufeed.to_device_float(image, dtype=jnp.float32)
    for kernel in params[:2]:
        values = jax.lax.conv_general_dilated(
            values, kernel, (3, 3), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        values = jax.nn.relu(values)
    return values.mean((1, 2)) @ params[2]


def loss_of(params, image, label):
    """The mean over the rows of all devices."""
    odds = jax.nn.log_softmax(logits_of(params, image))
    return -jnp.take_along_axis(odds, label[:, None], 1).mean()


@jax.jit
def step(params, image, label, rate):
    """One step of SGD, its gradients cut to a norm of 1, as a new model's can be large."""
    loss, gradients = jax.value_and_grad(loss_of)(params, image, label)
    cut = jnp.minimum(1.0, 1.0 / jnp.sqrt(sum(jnp.vdot(gradient, gradient) for gradient in gradients)))
    return [param - rate * cut * gradient for param, gradient in zip(params, gradients, strict=True)], loss


def save(folder, steps, params, saved):
    """Params first; then, in one move, the file that says which they are and where the iterator was.

    Hosts have equal shares and take equal steps, so that the state of one host's iterator is that of all.
    """
    if jax.process_index() == 0:
        folder.mkdir(parents=True, exist_ok=True)
        np.savez(folder / f"{steps}.npz", *map(np.asarray, params))
        (folder / "new.json").write_text(json.dumps({"steps": steps} | saved))
        (folder / "new.json").replace(folder / "checkpoint.json")


def restore(folder, params, iterator, data):
    """The steps that are done and the params then; the iterator goes on there."""
    if not (folder / "checkpoint.json").is_file():
        return 0, params
    saved = json.loads((folder / "checkpoint.json").read_text())
    if saved["data"] != data:
        raise SystemExit(f"{folder} was trained on {saved['data']}, and this is {data}: give another --out")
    iterator.set_state(saved["iterator"])
    with np.load(folder / f"{saved['steps']}.npz") as arrays:
        params = [jnp.asarray(arrays[name]) for name in arrays.files]
    print(f"goes on after step {saved['steps']}", flush=True)
    return saved["steps"], params


def train(options, dataset, rows):
    """The params, after the steps that were left to do."""
    params = make_params(len(dataset.manifest.class_names), options.seed)
    feed, steps_an_epoch, data = make_train_feed(options, dataset)
    with contextlib.closing(iter(feed)) as iterator:
        steps, params = restore(options.out, params, iterator, data)
        losses = []
        for batch in iterator:
            image, label = (jax.make_array_from_process_local_data(rows, batch[name]) for name in ("image", "label"))
            params, loss = step(params, image, label, options.learning_rate)
            losses.append(float(loss))
            steps += 1
            ended = steps % steps_an_epoch == 0
            if ended or steps % options.every == 0:
                save(options.out, steps, params, {"iterator": iterator.get_state(), "data": data})
            if ended:
                print(f"epoch {steps // steps_an_epoch - 1}: loss {np.mean(losses):.4f}", flush=True)
                losses = []
    return params


def evaluate(options, dataset, params):
    """The share of held-out images that this host tells right."""
    ops = None if dataset.manifest.cache else [Resize(options.size), CenterCrop(options.size)]
    source = tpufeed.grain_source(dataset, "val", ops=ops)
    right = 0
    for batch in source.to_map_dataset().batch(options.batch_size):  # the last one is smaller
        right += int((logits_of(params, jnp.asarray(batch["image"])).argmax(1) == batch["label"]).sum())
    print(f"accuracy, held out: {right / len(source):.3f} of {len(source)}")


def main(options):
    """All of it."""
    flags.FLAGS.mark_as_parsed()  # Grain's worker processes ask for flags that only absl.app would parse
    if options.pod:
        jax.distributed.initialize()  # before anything asks for devices
    dataset = tpufeed.open_dataset(options.data)
    rows = NamedSharding(Mesh(jax.devices(), ("data",)), P("data"))
    params = train(options, dataset, rows)
    if jax.process_index() == 0:
        evaluate(options, dataset, [np.asarray(param) for param in params])


if __name__ == "__main__":
    main(parse(sys.argv[1:]))
