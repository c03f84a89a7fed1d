"""to_tf under TensorFlow: what a tf.data.Dataset alone can get wrong; test_contract.py has what all feeds share."""

import gc
import json

import numpy as np
import pytest

import tpufeed
from tests.adapters.tf.feeds import tf_feed
from tests.frameworks import lazy
from tpufeed.errors import OptionError

tf = lazy("tensorflow")


def as_numpy(element):
    return tf.nest.map_structure(lambda tensor: tensor.numpy(), element)


# Elements


def test_elements_have_static_shapes_and_the_dataset_a_cardinality(cache_url):
    dataset = tpufeed.Loader(cache_url, batch_size=8).to_tf()
    assert dataset.element_spec == (tf.TensorSpec((8, 64, 64, 3), tf.uint8), tf.TensorSpec((8,), tf.int64))
    assert dataset.cardinality() == 8
    assert len(dataset) == 8
    # TensorFlow's own sharding among workers would halve each share.
    policy = tf.data.experimental.AutoShardPolicy.OFF
    assert dataset.options().experimental_distribute.auto_shard_policy == policy
    padded = tpufeed.Loader(cache_url, batch_size=8, remainder="pad", columns=None).to_tf()
    assert padded.element_spec == {
        "image": tf.TensorSpec((8, 64, 64, 3), tf.uint8),
        "label": tf.TensorSpec((8,), tf.int64),
        "sample": tf.TensorSpec((8,), tf.int64),
        "mask": tf.TensorSpec((8,), tf.bool),
    }
    assert len(padded) == 9
    direct = tpufeed.Loader(cache_url, batch_size=8, remainder="pad", columns=None).to_tf(direct=True)
    assert (direct.element_spec, len(direct)) == (padded.element_spec, 9)
    for images, labels in dataset.take(2):
        assert (images.shape, images.dtype) == ((8, 64, 64, 3), tf.uint8)
        assert (labels.shape, labels.dtype) == ((8,), tf.int64)


def test_tensors_that_are_kept_stay_what_they_were(cache_url, stored):
    """They share memory with the host loader's batches."""
    pixels = [stored(cache_url, "train", number).pixels for number in (0, 1)]
    dataset = tpufeed.Loader(cache_url, batch_size=5, columns=["image", "sample"]).to_tf()
    kept = [(epoch, *element) for epoch in range(4) for element in dataset]
    assert len(kept) == 56
    for epoch, images, samples in kept:
        np.testing.assert_array_equal(images.numpy(), pixels[epoch % 2][samples.numpy()])


def test_other_transformations_can_follow(cache_url, stored):
    dataset = tpufeed.Loader(cache_url, batch_size=5, columns=["image", "sample"]).to_tf()
    dataset = dataset.map(lambda image, sample: (tf.cast(image, tf.float32) / 255, sample), num_parallel_calls=2)
    dataset = dataset.unbatch().shuffle(30).batch(14, drop_remainder=True).prefetch(2)
    gc.collect()  # the first dataset is referred to by the last only
    seen = []
    for images, samples in dataset:
        np.testing.assert_allclose(images.numpy() * 255, stored(cache_url).pixels[samples.numpy()], atol=1e-3)
        seen += samples.numpy().tolist()
    assert sorted(seen) == list(range(70))


def test_a_graph_may_iterate(cache_url):
    dataset = tpufeed.Loader(cache_url, batch_size=7, columns=["sample"]).to_tf()

    @tf.function
    def total():
        result = tf.constant(0, tf.int64)
        for ids in dataset:
            result += tf.reduce_sum(ids)
        return result

    assert total().numpy() == total().numpy() == sum(range(70))


# Leaving, errors, threads


def test_iterations_that_take_turns_are_right_and_warned_of(cache_url, caplog):
    dataset = tpufeed.Loader(cache_url, batch_size=5, columns=["sample"]).to_tf()
    with tpufeed.Loader(cache_url, batch_size=5, columns=["sample"]) as loader:
        expected = [[ids.tolist() for ids in loader] for _ in range(2)]
    one, other = iter(dataset), None
    first = [next(one).numpy().tolist()]
    other = iter(dataset)
    second = []
    for _ in range(13):
        second.append(next(other).numpy().tolist())
        first.append(next(one).numpy().tolist())
    second.append(next(other).numpy().tolist())
    assert [first, second] == expected
    assert ["two iterations" in record.message for record in caplog.records] == [True]


# Counters, states, worlds


def test_it_counts_what_tensorflow_took(cache_url):
    loader = tpufeed.Loader(cache_url, batch_size=7, threads=1)
    assert sum(1 for _ in loader.to_tf(deterministic=True)) == 10
    stats = loader.stats()
    assert (stats.batches, stats.samples, stats.threads, stats.bad_records) == (10, 70, 1, 0)
    assert stats.read_bytes > 70 * 64 * 64 * 3
    assert stats.seconds >= stats.wait_seconds > 0
    dataset = loader.to_tf(deterministic=True)
    assert not any(hasattr(dataset, name) for name in ("stats", "state_dict", "loader"))
    assert dataset.class_names == loader.class_names


def test_nothing_is_counted_where_tensorflow_reads_itself(cache_url):
    loader = tpufeed.Loader(cache_url, batch_size=7)
    dataset = loader.to_tf(direct=True)
    for ask in (loader.stats, loader.state_dict):
        with pytest.raises(OptionError, match="direct=True"):
            ask()
    assert len(list(dataset)) == len(list(loader)) == 10
    assert loader.state_dict()["samples"] == loader.stats().samples == 70


def test_a_state_after_so_many_batches_needs_no_deterministic_dataset(cache_url):
    with tpufeed.Loader(cache_url, batch_size=5, columns=["sample"]) as loader:
        expected = [ids.tolist() for ids in loader]
        feeding = tpufeed.Loader(cache_url, batch_size=5, columns=["sample"])
        for batches, _ids in enumerate(feeding.to_tf().prefetch(3), start=1):
            if batches == 4:
                break
        loader.load_state_dict(feeding.state_dict(batches=batches))
        assert [ids.tolist() for ids in loader] == expected[4:]
        assert feeding.state_dict(batches=14) == loader.stream.state_at(0, 70)


def test_the_world_is_that_of_an_input_context_or_of_tf_config(cache_url, monkeypatch):
    given = {"batch_size": 5, "columns": ["sample"]}
    with tpufeed.Loader(cache_url, world=(1, 2), **given) as loader:
        expected = [ids.tolist() for ids in loader]
    context = tf.distribute.InputContext(num_input_pipelines=2, input_pipeline_id=1, num_replicas_in_sync=4)
    found = [ids.numpy().tolist() for ids in tpufeed.Loader(cache_url, world=context, **given).to_tf()]
    assert found == expected
    config = {"cluster": {"chief": ["a:1"], "worker": ["b:1"], "ps": ["c:1"]}, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    assert [ids.numpy().tolist() for ids in tpufeed.Loader(cache_url, **given).to_tf()] == expected
    config["task"]["type"] = "evaluator"
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    assert len(tpufeed.Loader(cache_url, **given).to_tf()) == 14
    for task in ({"type": "worker", "index": 7}, None, {"type": "ps", "index": 0}):
        monkeypatch.setenv("TF_CONFIG", json.dumps({**config, "task": task}))
        with pytest.raises(OptionError, match=r"TF_CONFIG.*2 workers"):
            tpufeed.Loader(cache_url, **given).to_tf()
    for wrong in ("{", "null", "[]", '{"cluster": {}, "task": {"type": "worker"}}'):
        monkeypatch.setenv("TF_CONFIG", wrong)
        with pytest.raises(OptionError, match="TF_CONFIG"):
            tpufeed.Loader(cache_url, **given).to_tf()


@pytest.mark.parametrize("direct", [False, True])
def test_it_is_not_made_within_a_graph(cache_url, direct):
    with pytest.raises(Exception, match="OptionError: to_tf"):
        tf.data.Dataset.range(2).flat_map(lambda _: tpufeed.Loader(cache_url).to_tf(direct=direct))


@pytest.mark.parametrize(
    ("other", "direct"),
    [
        ({"seed": 1}, False),
        ({"world": (0, 2)}, False),
        ({"lanes": 4}, True),
    ],
    ids=str,
)
def test_a_checkpoint_of_another_iterator_is_refused(cache_url, direct, other, tmp_path):
    given = {"batch_size": 5, "columns": ["sample"], "repeat": True, "direct": direct}
    iterator = iter(tf_feed(cache_url, **given))
    next(iterator)
    path = tf.train.Checkpoint(iterator=iterator).save(tmp_path / "state")
    again = iter(tf_feed(cache_url, **given | other))
    with pytest.raises(tf.errors.OpError, match="checkpoint"):  # noqa: PT012  # up to two batches were taken ahead, and are in the checkpoint
        tf.train.Checkpoint(iterator=again).restore(path)
        for _ in range(3 if not direct else 1):
            next(again)


@pytest.mark.parametrize("remainder", ["pad", "repeat"])
def test_a_checkpoint_at_the_end_of_an_epoch_is_the_start_of_the_next(cache_url, remainder, tmp_path):
    given = {"batch_size": 20, "columns": ["sample"], "repeat": True, "remainder": remainder}
    iterator, paths = iter(tf_feed(cache_url, **given)), []
    checkpoint = tf.train.Checkpoint(iterator=iterator)
    for _ in range(4):  # up to two batches are taken ahead, and are in the checkpoint
        next(iterator)
        paths.append(checkpoint.save(tmp_path / "state"))
    followed = iter(tf_feed(cache_url, **given))
    found = [tf.nest.flatten(as_numpy(next(followed))) for _ in range(8)]
    for done, path in enumerate(paths, 1):
        again = iter(tf_feed(cache_url, **given))
        tf.train.Checkpoint(iterator=again).restore(path)
        for expected in found[done : done + 4]:
            np.testing.assert_array_equal(tf.nest.flatten(as_numpy(next(again))), expected)


def test_steps_that_are_executed_together_take_no_batch_ahead(cache_url):
    loader = tpufeed.Loader(cache_url, batch_size=5, columns=["sample"])
    iterator = iter(loader.to_tf(deterministic=True))

    @tf.function
    def two_steps(iterator):
        return next(iterator), next(iterator)

    for count in range(1, 4):
        two_steps(iterator)
        assert loader.state_dict()["samples"] == 10 * count


def test_an_iterator_keeps_its_dataset_alive(cache_url):
    iterator = iter(tpufeed.Loader(cache_url, batch_size=5, columns=["sample"]).to_tf())
    gc.collect()
    assert sorted(np.concatenate([as_numpy(ids) for ids in iterator])) == list(range(70))
