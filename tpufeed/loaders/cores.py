"""The number of cores that share a batch."""

from typing import Any

from tpufeed.errors import OptionError

_RANK = 4  # of a batch of images; an array of fewer dimensions would not fit every spec


def count_cores(world: Any) -> int:
    """The number of cores that share one batch of a loader: `batch_size=16 * tpufeed.count_cores(strategy)`.

    A TPU core works on tiles of 8 x 128 numbers and pads to them: its samples are best a multiple of 8, and 128 fill
    the lanes of its matrix unit (https://cloud.google.com/tpu/docs/performance-guide). Kaggle's guide begins with 16 a
    core (https://www.kaggle.com/docs/tpu), and raises the learning rate with the batch. Any size that fits the memory
    works, if it is the same in every step.

    Args:
        world: what the loader feeds.

            - a `tf.distribute.Strategy`: all replicas, as Keras' `fit` and `experimental_distribute_dataset` split the
              global batch between them; on several hosts too, where each takes its part of it;
            - a `tf.distribute.InputContext`: 1, as `distribute_datasets_from_function` hands a batch to each replica;
            - a `jax.sharding.Mesh` or `Sharding` as `to_jax` takes them: the blocks of rows that this process
              holds, a mesh's along its first axis; devices that hold copies of one block count as one core.

    Raises:
        OptionError: `world` is none of these.
    """
    if hasattr(world, "input_pipeline_id"):
        return 1
    if hasattr(world, "local_devices") and world.axis_names:
        local = set(world.local_devices)
        return sum(not local.isdisjoint(block) for block in world.devices.reshape(len(world.devices), -1))
    if hasattr(world, "addressable_devices_indices_map"):
        shape = (world.num_devices,) * _RANK  # every way to divide it comes out even
        return len({(rows.start, rows.stop) for rows, *_ in world.addressable_devices_indices_map(shape).values()})
    if isinstance(getattr(world, "num_replicas_in_sync", None), int):
        return int(world.num_replicas_in_sync)
    raise OptionError(
        f"world is a tf.distribute.Strategy or InputContext, or a jax.sharding.Mesh or Sharding, not {world!r}"
    )
