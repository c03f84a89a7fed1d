"""count_cores asks strategies, input contexts, meshes and shardings how many cores a loader feeds."""

import jax
import numpy as np
import pytest
import tensorflow as tf
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

import tpufeed
from tpufeed.errors import OptionError


def test_a_strategy_s_replicas_split_the_global_batch():
    assert tpufeed.count_cores(tf.distribute.OneDeviceStrategy("CPU:0")) == 1
    assert tpufeed.count_cores(tf.distribute.get_strategy()) == 1  # tf_four_devices.py has one of four replicas


def test_an_input_context_hands_batches_to_replicas_as_they_are():
    context = tf.distribute.InputContext(num_input_pipelines=2, input_pipeline_id=1, num_replicas_in_sync=16)
    assert 8 * tpufeed.count_cores(context) == context.get_per_replica_batch_size(8 * 16) == 8


def test_meshes_and_shardings_count_different_rows():
    devices = np.array(jax.devices())
    assert len(devices) == 8
    mesh = Mesh(devices.reshape(4, 2), ("data", "model"))
    assert tpufeed.count_cores(mesh) == 4
    assert tpufeed.count_cores(Mesh(devices, "data")) == 8
    for spec, rows in (
        (PartitionSpec("data"), 4),
        (PartitionSpec(("data", "model")), 8),
        (PartitionSpec("model"), 2),
        (PartitionSpec(), 1),
        (PartitionSpec(None, "data"), 1),
        (PartitionSpec("data", "model", None, None), 4),
    ):
        sharding = NamedSharding(mesh, spec)
        assert tpufeed.count_cores(sharding) == rows
        blocks = {str(shard.index[0]) for shard in jax.device_put(np.zeros((8, 8, 8, 3)), sharding).addressable_shards}
        assert len(blocks) == rows
    assert tpufeed.count_cores(SingleDeviceSharding(devices[0])) == 1


@pytest.mark.parametrize("world", [8, None, "tpu", (0, 8), tpufeed.World(0, 8)])
def test_what_feeds_no_cores_is_refused(world):
    with pytest.raises(OptionError, match=r"world is a tf.distribute.Strategy or InputContext, .* not "):
        tpufeed.count_cores(world)
