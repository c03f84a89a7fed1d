"""tf_dataset under real TensorFlow: the host stream's batches as tensors of static shape."""

import collections
import gc
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import tensorflow as tf

import tpufeed
from tpufeed.errors import OptionError

EXIT_WITHIN_AN_ITERATION = """
import os, signal, sys
import tensorflow  # only imported: its runtime starts in each child
import tpufeed

for _ in range(3):
    child = os.fork()
    if not child:
        signal.alarm(30)  # ends a process that hangs
        dataset = tpufeed.tf_dataset(sys.argv[1], batch_size=1, prefetch=1, threads=1).repeat().batch(16).prefetch(64)
        iterator = iter(dataset)
        next(iterator)
        sys.exit()
    print(os.waitpid(child, 0)[1])
"""


def as_numpy(element):
    return tf.nest.map_structure(lambda tensor: tensor.numpy(), element)


def decoding_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("tpufeed-decode")]


def wait_for(condition):
    """The deadline only keeps a failing test from hanging."""
    deadline = time.monotonic() + 20
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()


# Elements


def test_elements_have_static_shapes_and_the_dataset_a_cardinality(cache_url):
    dataset = tpufeed.tf_dataset(cache_url, batch_size=8)
    assert dataset.element_spec == (tf.TensorSpec((8, 64, 64, 3), tf.uint8), tf.TensorSpec((8,), tf.int64))
    assert dataset.cardinality() == 8
    assert len(dataset) == 8
    padded = tpufeed.tf_dataset(cache_url, batch_size=8, remainder="pad", columns=None)
    assert padded.element_spec == {
        "image": tf.TensorSpec((8, 64, 64, 3), tf.uint8),
        "label": tf.TensorSpec((8,), tf.int64),
        "sample": tf.TensorSpec((8,), tf.int64),
        "mask": tf.TensorSpec((8,), tf.bool),
    }
    assert len(padded) == 9
    for images, labels in dataset.take(2):
        assert (images.shape, images.dtype) == ((8, 64, 64, 3), tf.uint8)
        assert (labels.shape, labels.dtype) == ((8,), tf.int64)


def test_options_are_checked_when_the_dataset_is_made(cache_url, dataset_url):
    with pytest.raises(OptionError, match="70 samples"):
        tpufeed.tf_dataset(cache_url, batch_size=71)
    with pytest.raises(OptionError, match="differ in size"):
        tpufeed.tf_dataset(dataset_url)
    with pytest.raises(OptionError, match="no column 'x'"):
        tpufeed.tf_dataset(cache_url, columns=["x"])


@pytest.mark.parametrize("columns", [["image", "label", "sample"], None], ids=["tuple", "dict"])
@pytest.mark.parametrize("jpeg", [False, True], ids=["cache", "dataset"])
def test_each_iteration_is_the_next_epoch_of_numpy_loader(cache_url, dataset_url, ops, jpeg, columns):
    url, given = dataset_url if jpeg else cache_url, {"ops": ops} if jpeg else {}
    given |= {"batch_size": 9, "columns": columns, "seed": 3, "remainder": "pad"}
    dataset = tpufeed.tf_dataset(url, **given)
    with tpufeed.numpy_loader(url, **given) as loader:
        for _ in range(3):
            for theirs, ours in zip(loader, dataset, strict=True):
                tf.nest.map_structure(np.testing.assert_array_equal, as_numpy(ours), theirs)


def test_a_rank_s_share_is_that_of_numpy_loader(cache_url):
    given = {"columns": ["sample"], "world": (1, 2), "batch_size": 5}
    with tpufeed.numpy_loader(cache_url, **given) as loader:
        assert [ids.tolist() for ids in loader] == [
            as_numpy(t).tolist() for t in tpufeed.tf_dataset(cache_url, **given)
        ]


def test_unlabelled_data_gives_images_alone(flat_url, stored):
    dataset = tpufeed.tf_dataset(flat_url, batch_size=10, shuffle=False)
    assert dataset.element_spec == tf.TensorSpec((10, 64, 64, 3), tf.uint8)
    np.testing.assert_array_equal(np.concatenate([as_numpy(image) for image in dataset]), stored(flat_url).pixels)
    dataset = tpufeed.tf_dataset(flat_url, batch_size=16, shuffle=False, remainder="pad")
    masks = np.concatenate([as_numpy(mask) for _, mask in dataset])
    assert masks.tolist() == [True] * 20 + [False] * 12


def test_strings_and_numbers_come_as_tensors(cache_url, stored):
    names = ["filename", "text", "height", "sample"]
    dataset = tpufeed.tf_dataset(cache_url, columns=names, batch_size=10)
    assert [spec.dtype for spec in dataset.element_spec] == [tf.string, tf.string, tf.int64, tf.int64]
    assert all(spec.shape == (10,) for spec in dataset.element_spec)
    expected = stored(cache_url)
    for files, texts, heights, samples in dataset:
        assert files.numpy().tolist() == [expected.texts("image/filename")[sample].encode() for sample in samples]
        assert texts.numpy().tolist() == [expected.texts("image/class/text")[sample].encode() for sample in samples]
        assert set(heights.numpy()) == {64}


def test_tensors_that_are_kept_stay_what_they_were(cache_url, stored):
    """They share memory with the host loader's batches."""
    pixels = [stored(cache_url, "train", number).pixels for number in (0, 1)]
    dataset = tpufeed.tf_dataset(cache_url, batch_size=5, columns=["image", "sample"])
    kept = [(epoch, *element) for epoch in range(4) for element in dataset]
    assert len(kept) == 56
    for epoch, images, samples in kept:
        np.testing.assert_array_equal(images.numpy(), pixels[epoch % 2][samples.numpy()])


def test_other_transformations_can_follow(cache_url, stored):
    dataset = tpufeed.tf_dataset(cache_url, batch_size=5, columns=["image", "sample"])
    dataset = dataset.map(lambda image, sample: (tf.cast(image, tf.float32) / 255, sample), num_parallel_calls=2)
    dataset = dataset.unbatch().shuffle(30).batch(14, drop_remainder=True).prefetch(2)
    gc.collect()  # the first dataset is referred to by the last only
    seen = []
    for images, samples in dataset:
        np.testing.assert_allclose(images.numpy() * 255, stored(cache_url).pixels[samples.numpy()], atol=1e-3)
        seen += samples.numpy().tolist()
    assert sorted(seen) == list(range(70))


def test_repeat_carries_epochs_inside_one_iteration(cache_url):
    dataset = tpufeed.tf_dataset(cache_url, batch_size=7, columns=["sample"]).repeat(3)
    epochs = np.concatenate([as_numpy(ids) for ids in dataset]).reshape(3, 70)
    for epoch in epochs:
        assert sorted(epoch) == list(range(70))
    assert not (epochs[0] == epochs[1]).all()
    assert not (epochs[1] == epochs[2]).all()


def test_a_graph_may_iterate(cache_url):
    dataset = tpufeed.tf_dataset(cache_url, batch_size=7, columns=["sample"])

    @tf.function
    def total():
        result = tf.constant(0, tf.int64)
        for ids in dataset:
            result += tf.reduce_sum(ids)
        return result

    assert total().numpy() == total().numpy() == sum(range(70))


# Leaving, errors, threads


def test_after_a_break_the_next_epoch_comes(cache_url):
    dataset = tpufeed.tf_dataset(cache_url, batch_size=7, columns=["sample"])
    with tpufeed.numpy_loader(cache_url, batch_size=7, columns=["sample"]) as loader:
        expected = [np.concatenate(list(loader)).tolist() for _ in range(3)]
    for _ids in dataset:
        break
    assert np.concatenate([as_numpy(ids) for ids in dataset]).tolist() == expected[1]
    assert next(iter(dataset)).numpy().tolist() == expected[2][:7]


def test_a_new_iteration_ends_an_older_one_with_an_error(cache_url):
    dataset = tpufeed.tf_dataset(cache_url, batch_size=2, columns=["sample"])
    older = iter(dataset)
    next(older)
    newer = iter(dataset)
    next(newer)
    with pytest.raises(tf.errors.OpError, match=r"newer iteration|closed"):
        collections.deque(older, maxlen=0)
    rest = np.concatenate([as_numpy(ids) for ids in newer])
    assert len(rest) == 68


def test_a_damaged_record_is_named_after_all_batches_before_it(cache_url, damage):
    damaged = damage(cache_url, 33)
    dataset = tpufeed.tf_dataset(damaged.url, batch_size=5, shuffle=False, columns=["sample"])
    delivered = []
    with pytest.raises(tf.errors.OpError) as caught:  # noqa: PT012  # what comes before the error counts
        for ids in dataset:
            delivered += ids.numpy().tolist()
    assert delivered == list(range(30))
    assert f"{damaged.shard}, record {damaged.record}, byte {damaged.byte}" in str(caught.value)
    assert "RecordError" in str(caught.value)
    assert sorted(np.concatenate([as_numpy(ids) for ids in dataset])) == list(range(70))  # variant 1 is sound


def test_a_dataset_that_is_dropped_stops_its_threads(cache_url):
    gc.collect()
    assert wait_for(lambda: not decoding_threads())
    for _ in range(5):
        dataset = tpufeed.tf_dataset(cache_url, batch_size=5, threads=2)
        next(iter(dataset))
        assert 1 <= len(decoding_threads()) <= 2
        del dataset
        gc.collect()
        assert wait_for(lambda: not decoding_threads())


def test_an_iterator_keeps_its_dataset_alive(cache_url):
    iterator = iter(tpufeed.tf_dataset(cache_url, batch_size=5, columns=["sample"]))
    gc.collect()
    assert sorted(np.concatenate([as_numpy(ids) for ids in iterator])) == list(range(70))


def test_a_process_ends_though_an_iteration_is_open(cache_url):
    """TensorFlow's threads are in Python when it does; most of such processes hung before the dataset saw to that."""
    command = [sys.executable, "-c", EXIT_WITHIN_AN_ITERATION, cache_url]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0"] * 3
