"""Two views of each image, of tars and Parquet mixed, into JAX; Orbax saves now and then, and the next run goes on.

Datasets are those of docs/shard.md, the mixture that of docs/mixtures.md, the views those of docs/samples.md, and the
checkpoint that of docs/jax.md. The first run is preempted after half of the steps.
"""

from pathlib import Path

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp

import tpufeed
from tpufeed.images import ColorJitter, HorizontalFlip, RandomResizedCrop

STEPS, EVERY = 20, 5
crop = [RandomResizedCrop(32, scale=(0.4, 1.0)), HorizontalFlip(), ColorJitter(0.2, 0.2)]
mixture = tpufeed.Mixture({"out/tars": 0.5, "out/hub": 0.5})
loader = tpufeed.Loader(mixture, "train", batch_size=16, columns=["image"], views=[(crop, 2)], repeat=True).to_jax()


def loss_of(params, images):
    """A view's likeness to the other view of its image, among those of the batch."""
    values = tpufeed.to_device_float(images.reshape(-1, *images.shape[2:]), dtype=jnp.float32)
    values = values.reshape(len(values), 8, 4, 8, 4, 3).mean((2, 4)).reshape(len(values), -1) @ params["weights"]
    values = (values / jnp.linalg.norm(values, axis=1, keepdims=True)).reshape(len(images), 2, -1)
    alike = jax.nn.log_softmax(values[:, 0] @ values[:, 1].T / 0.2)
    return -jnp.diagonal(alike).mean()


@jax.jit
def step(params, images):
    loss, slopes = jax.value_and_grad(loss_of)(params, images)
    return jax.tree.map(lambda weight, slope: weight - 0.05 * slope, params, slopes), loss


params = {"weights": jax.random.normal(jax.random.key(0), (192, 16)) / 14}
options = ocp.CheckpointManagerOptions(max_to_keep=3, save_interval_steps=EVERY)
with loader, ocp.CheckpointManager(Path("checkpoints").absolute(), options=options) as manager:
    done = manager.latest_step() or 0
    if done:
        wanted = ocp.args.Composite(params=ocp.args.StandardRestore(params), loader=ocp.args.JsonRestore())
        saved = manager.restore(done, args=wanted)
        params = saved.params
        loader.load_state_dict(saved.loader)
        print(f"resumes after step {done}, at {saved.loader}")
    losses = []
    for number, images in zip(range(done + 1, (STEPS if done else STEPS // 2) + 1), loader, strict=False):
        params, loss = step(params, images)
        losses.append(loss)
        if manager.should_save(number):
            state = ocp.args.JsonSave(loader.state_dict())
            manager.save(number, args=ocp.args.Composite(params=ocp.args.StandardSave(params), loader=state))
            print(f"loss {jnp.stack(losses).mean():.4f} at step {number}")
            losses.clear()
