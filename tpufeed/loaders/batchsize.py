"""The batch size that goes with a number of cores."""

from numbers import Integral
from typing import Any

from tpufeed.errors import OptionError

_RANK = 4  # of a batch of images; an array of fewer dimensions would not fit every spec


def batch_size(per_core: int, world: Any) -> int:
    """The `batch_size` to give a loader so that each core gets `per_core` samples a step.

    A TPU core works on tiles of 8 x 128 numbers and pads to them: its samples are best a multiple of 8, and 128 fill
    the lanes of its matrix unit (https://cloud.google.com/tpu/docs/performance-guide). Kaggle's guide begins with
    `16 * strategy.num_replicas_in_sync` (https://www.kaggle.com/docs/tpu), which is `batch_size(16, strategy)`, and
    raises the learning rate with it. Any size that fits the memory works, if it is the same in every step.

    Args:
        per_core: samples of a core in a step, at least 1.
        world: what the loader feeds.

            - a `tf.distribute.Strategy`: the global batch, which Keras' `fit` and `experimental_distribute_dataset`
              split between all replicas; on several hosts too, where each takes its part of it;
            - a `tf.distribute.InputContext`: what `distribute_datasets_from_function` hands to each replica as it is,
              so `per_core` itself;
            - a number of cores;
            - a `jax.sharding.Mesh` or `Sharding` as `jax_loader` takes them: the blocks of rows that this process
              holds, a mesh's along its first axis; devices that hold copies of one block count as one core.

    Raises:
        OptionError: `per_core` is no whole number above 0, or `world` none of these.
    """
    if not _is_count(per_core):
        raise OptionError(f"per_core is the samples of a core in a step, a whole number from 1 on, not {per_core!r}")
    return int(per_core) * _count_cores(world)


def _count_cores(world: Any) -> int:
    """Count the cores that share one batch of the loader."""
    if _is_count(world):
        return int(world)
    if hasattr(world, "input_pipeline_id"):
        return 1
    if hasattr(world, "local_devices") and world.axis_names:
        local = set(world.local_devices)
        return sum(not local.isdisjoint(block) for block in world.devices.reshape(len(world.devices), -1))
    if hasattr(world, "addressable_devices_indices_map"):
        shape = (world.num_devices,) * _RANK  # every way to divide it comes out even
        return len({(rows.start, rows.stop) for rows, *_ in world.addressable_devices_indices_map(shape).values()})
    if _is_count(getattr(world, "num_replicas_in_sync", None)):
        return int(world.num_replicas_in_sync)
    raise OptionError(
        "world is a tf.distribute.Strategy or InputContext, a jax.sharding.Mesh or Sharding, or a number of cores from "
        f"1 on, not {world!r}"
    )


def _is_count(value: Any) -> bool:
    return isinstance(value, Integral) and value is not True and int(value) >= 1
