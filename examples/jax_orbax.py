"""Plain JAX with Orbax: the loader's place lies in the checkpoint with the params, and is restored with them.

    pip install '.[jax]' orbax-checkpoint
    python jax_orbax.py --data flowers --steps 60 --every 10 --out run1   killed, it goes on with the same command
    python jax_orbax.py --data gs://my-bucket/flowers --out gs://my-bucket/run1 --pod     on all workers of a pod

Any number of processes goes on with a checkpoint, where it divides the loader's lanes (16 by default).
"""

import argparse
import sys

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from etils import epath
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import tpufeed
from tpufeed.images import HorizontalFlip, RandomResizedCrop


def parse(arguments):
    """The options as a namespace."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="a dataset or cache with labels and a split train")
    parser.add_argument("--out", default="orbax-run", help="a folder or bucket; one with checkpoints goes on")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--every", type=int, default=100, help="steps from one checkpoint to the next")
    parser.add_argument("--batch-size", type=int, default=128, help="of each process")
    parser.add_argument("--size", type=int, default=224, help="pixels a side, where the dataset is no cache")
    parser.add_argument("--pod", action="store_true", help="this is one of several processes, which share --out")
    return parser.parse_args(arguments)


def loss_of(params, image, label):
    """Softmax regression on the mean colour of each ninth of an image."""
    values = tpufeed.to_device_float(image, dtype=jnp.float32)
    values = jax.image.resize(values, (len(image), 3, 3, 3), "linear").reshape(len(image), -1)
    odds = jax.nn.log_softmax(values @ params["weights"] + params["bias"])
    return -jnp.take_along_axis(odds, label[:, None], 1).mean()


@jax.jit
def step(params, image, label):
    """One step of SGD."""
    loss, gradients = jax.value_and_grad(loss_of)(params, image, label)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), loss


def main(options):
    """Train, from where the newest checkpoint says, if there is one."""
    if options.pod:
        jax.distributed.initialize()  # before anything asks for devices
    manifest = tpufeed.open_dataset(options.data).manifest
    classes = len(manifest.class_names)
    mesh = Mesh(jax.devices(), ("data",))
    params = {"weights": jnp.zeros((27, classes)), "bias": jnp.zeros(classes)}
    params = jax.device_put(params, NamedSharding(mesh, P()))
    loader = tpufeed.Loader(
        options.data,
        batch_size=options.batch_size,
        ops=None if manifest.cache else [RandomResizedCrop(size=options.size), HorizontalFlip()],
        columns=["image", "label", "sample"],
        repeat=True,  # epoch after epoch: steps are counted here
    ).to_jax(mesh)
    saving = ocp.CheckpointManagerOptions(save_interval_steps=options.every, max_to_keep=2)
    with loader, ocp.CheckpointManager(epath.Path(options.out).absolute(), options=saving) as manager:
        done = manager.latest_step() or 0
        if done:
            wanted = ocp.args.Composite(params=ocp.args.StandardRestore(params), loader=ocp.args.JsonRestore())
            saved = manager.restore(done, args=wanted)
            params = saved.params
            loader.load_state_dict(saved.loader)
            print(f"goes on after step {done}", flush=True)
        for number, (image, label, sample) in zip(range(done + 1, options.steps + 1), loader, strict=False):
            params, loss = step(params, image, label)
            # Those of this process. A state may be taken at any time between two batches: this is the next one's place.
            ids = np.concatenate([shard.data for shard in sample.addressable_shards]).tolist()
            print(f"step {number}: loss {loss:.5f}, samples {ids}", flush=True)
            if manager.should_save(number):
                state = loader.state_dict()  # plain data, and a copy: the writing thread may take its time
                parts = {"params": ocp.args.StandardSave(params), "loader": ocp.args.JsonSave(state)}
                manager.save(number, args=ocp.args.Composite(**parts))


if __name__ == "__main__":
    main(parse(sys.argv[1:]))
