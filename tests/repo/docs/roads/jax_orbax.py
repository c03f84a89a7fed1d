"""A training as Orbax's guide has it: a CheckpointManager that saves now and then, from which the next run goes on.

The loader and its part of a checkpoint are as in docs/jax.md. The first run is preempted after half of the steps.
"""

from pathlib import Path

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp

import tpufeed
from tpufeed.images import HorizontalFlip, RandomResizedCrop

STEPS, EVERY = 40, 10
loader = tpufeed.Loader(
    "flowers", "train", batch_size=8, ops=[RandomResizedCrop(size=64), HorizontalFlip()], repeat=True
).to_jax()
classes = len(tpufeed.open_dataset("flowers").manifest.class_names)


def init_state():
    draw = jax.nn.initializers.he_normal()
    keys = jax.random.split(jax.random.key(0))
    return {"conv": draw(keys[0], (5, 5, 3, 16)), "dense": draw(keys[1], (16, classes))}


def loss_of(state, images, labels):
    values = tpufeed.to_device_float(images, dtype=jnp.float32)
    order = ("NHWC", "HWIO", "NHWC")
    values = jax.nn.relu(jax.lax.conv_general_dilated(values, state["conv"], (4, 4), "SAME", dimension_numbers=order))
    chances = jax.nn.log_softmax(values.mean((1, 2)) @ state["dense"])
    return -jnp.take_along_axis(chances, labels[:, None], 1).mean()


@jax.jit
def train_step(state, images, labels):
    loss, slopes = jax.value_and_grad(loss_of)(state, images, labels)
    return jax.tree.map(lambda weight, slope: weight - 0.1 * slope, state, slopes), loss


state = init_state()
options = ocp.CheckpointManagerOptions(max_to_keep=3, save_interval_steps=EVERY)
with loader, ocp.CheckpointManager(Path("checkpoints").absolute(), options=options) as mngr:
    done = mngr.latest_step()
    if done is not None:
        wanted = ocp.args.Composite(params=ocp.args.StandardRestore(state), loader=ocp.args.JsonRestore())
        restored = mngr.restore(done, args=wanted)
        state = restored.params
        loader.load_state_dict(restored.loader)
        print(f"goes on after step {done}, at {restored.loader}")
    step, losses = 0 if done is None else done, []
    for images, labels in loader:
        state, loss = train_step(state, images, labels)
        step += 1
        losses.append(loss)
        if mngr.should_save(step):
            place = ocp.args.JsonSave(loader.state_dict())
            mngr.save(step, args=ocp.args.Composite(params=ocp.args.StandardSave(state), loader=place))
            print(f"loss {jnp.stack(losses).mean():.4f} at step {step}")
            losses.clear()
        if step == (STEPS if done else STEPS // 2):
            break
