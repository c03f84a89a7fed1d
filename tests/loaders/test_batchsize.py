"""batch_size asks strategies, input contexts, meshes and shardings how many cores a loader feeds."""

import jax
import numpy as np
import pytest
import tensorflow as tf
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

import tpufeed
from tpufeed.errors import OptionError


def test_a_strategy_s_replicas_split_the_global_batch():
    assert tpufeed.batch_size(16, tf.distribute.OneDeviceStrategy("CPU:0")) == 16
    assert tpufeed.batch_size(16, tf.distribute.get_strategy()) == 16  # tf_four_devices.py has one of four replicas


def test_an_input_context_hands_batches_to_replicas_as_they_are():
    context = tf.distribute.InputContext(num_input_pipelines=2, input_pipeline_id=1, num_replicas_in_sync=16)
    size = tpufeed.batch_size(8, context)
    assert size == context.get_per_replica_batch_size(8 * 16) == 8


@pytest.mark.parametrize("cores", [1, 8, np.int64(8)])
def test_a_number_of_cores(cores):
    size = tpufeed.batch_size(np.int32(128), cores)
    assert size == 128 * cores
    assert type(size) is int


def test_meshes_and_shardings_count_different_rows():
    devices = np.array(jax.devices())
    assert len(devices) == 8
    mesh = Mesh(devices.reshape(4, 2), ("data", "model"))
    assert tpufeed.batch_size(4, mesh) == 16
    assert tpufeed.batch_size(4, Mesh(devices, "data")) == 32
    for spec, rows in (
        (PartitionSpec("data"), 4),
        (PartitionSpec(("data", "model")), 8),
        (PartitionSpec("model"), 2),
        (PartitionSpec(), 1),
        (PartitionSpec(None, "data"), 1),
        (PartitionSpec("data", "model", None, None), 4),
    ):
        sharding = NamedSharding(mesh, spec)
        assert tpufeed.batch_size(4, sharding) == 4 * rows
        blocks = {str(shard.index[0]) for shard in jax.device_put(np.zeros((8, 8, 8, 3)), sharding).addressable_shards}
        assert len(blocks) == rows
    assert tpufeed.batch_size(4, SingleDeviceSharding(devices[0])) == 4


@pytest.mark.parametrize("per_core", [0, -8, 1.5, "16", None])
def test_samples_of_a_core_are_a_number_above_0(per_core):
    with pytest.raises(OptionError, match=r"per_core is the samples of a core .* a whole number from 1 on, not "):
        tpufeed.batch_size(per_core, 8)


@pytest.mark.parametrize("world", [0, -1, 2.0, None, "tpu", (0, 8), tpufeed.World(0, 8)])
def test_what_feeds_no_cores_is_refused(world):
    with pytest.raises(OptionError, match=r"world is a tf.distribute.Strategy or .* a number of cores from 1 on, not "):
        tpufeed.batch_size(16, world)
