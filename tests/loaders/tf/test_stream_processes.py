"""Processes that end with an iteration open or by an error in fit, have one thread, or go on from a checkpoint."""

import json
import os
import subprocess
import sys
import zlib

import pytest
import tensorflow as tf

import tpufeed
from tests.loaders.tf.feeds import tf_feed

# TensorFlow takes five seconds to import, so one process does for all; its runtime starts in each fork of it.
PROGRAM = """
import json, os, signal, sys, zlib
import tensorflow as tf
import tpufeed

cache_url, dataset_url, checkpoints, out = sys.argv[1:]


def leave_an_iteration_open(direct):
    dataset = tpufeed.Loader(cache_url, batch_size=1, prefetch=1, threads=1).to_tf(direct=direct).repeat().batch(16)
    iterator = iter(dataset.prefetch(64))
    next(iterator)
    globals()["kept"] = dataset, iterator


def take_one_thread():
    tf.config.threading.set_inter_op_parallelism_threads(1)
    train, val = (tpufeed.Loader(cache_url, split, batch_size=5).to_tf(direct=True) for split in ("train", "val"))
    for epoch in range(2):
        for batches in tf.data.Dataset.zip((train, val.repeat())).map(lambda *both: both, num_parallel_calls=4):
            pass


def go_on():
    found = []
    for path, given in json.loads(checkpoints):
        exact = given.pop("deterministic", False)
        iterator = iter(tpufeed.Loader(cache_url, **given).to_tf(deterministic=exact))
        tf.train.Checkpoint(iterator=iterator).restore(path)
        batches = [next(iterator) for _ in range(4)]
        found.append([[ids.numpy().tolist(), zlib.crc32(images.numpy())] for ids, images in batches])
    with open(out, "w") as file:
        json.dump(found, file)


def fit_that_fails():
    # A thread of TensorFlow waits for a worker process then, whose socket the interpreter closes at its end.
    import keras

    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 1:
                raise ValueError("a bug of the user's")

    model = keras.Sequential([keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(5)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    ops = [tpufeed.images.RandomResizedCrop(size=64)]
    train = tpufeed.Loader(dataset_url, batch_size=4, processes=2, prefetch=1, ops=ops).to_tf()
    model.fit(train, verbose=0, callbacks=[Stop()])


statuses = {}
for name, run in {
    "left": lambda: leave_an_iteration_open(False),
    "left direct": lambda: leave_an_iteration_open(True),
    "one thread": take_one_thread,
    "gone on": go_on,
    "fit failed": fit_that_fails,
}.items():
    child = os.fork()
    if not child:
        signal.alarm(60)  # ends a process that hangs
        run()
        sys.exit()
    statuses[name] = os.waitpid(child, 0)[1]
print(json.dumps(statuses))
"""
GIVEN = [{}, {"repeat": True}, {"deterministic": True}]
SAVED_AFTER, COLUMNS = 5, ["sample", "image"]


@pytest.fixture(scope="module")
def ended(cache_url, dataset_url, tmp_path_factory):
    """`(how the processes ended, what those that went on were given, what they all said)`."""
    folder = tmp_path_factory.mktemp("processes")
    checkpoints = [save(cache_url, given, folder / str(number)) for number, given in enumerate(GIVEN)]
    command = [
        sys.executable,
        "-c",
        PROGRAM,
        cache_url,
        dataset_url,
        json.dumps(checkpoints),
        str(folder / "found.json"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=250)
    found = json.loads((folder / "found.json").read_text())
    return json.loads(done.stdout.splitlines()[-1]), found, done.stderr


def save(url, given, folder):
    """`(path of a checkpoint in the first epoch of `repeat`, else in the second, options of its dataset)`."""
    given = {"batch_size": 5, "columns": COLUMNS, **given}
    dataset = tf_feed(url, **given)
    if "repeat" not in given:
        assert len(list(dataset)) == 14
    iterator = iter(dataset)
    for _ in range(SAVED_AFTER):
        next(iterator)
    return tf.train.Checkpoint(iterator=iterator).save(folder / "state"), given


@pytest.mark.parametrize("way", ["left", "left direct"])
def test_a_process_ends_though_an_iteration_is_open(ended, way):
    """TensorFlow's threads are in Python when it does; most of such processes hung before the dataset saw to that."""
    assert ended[0][way] == 0


def test_a_process_ends_though_fit_was_left_by_an_exception(ended):
    assert os.waitstatus_to_exitcode(ended[0]["fit failed"]) == 1
    assert "ValueError: a bug of the user's" in ended[2].splitlines()


def test_one_thread_of_tensorflow_is_enough(ended):
    assert ended[0]["one thread"] == 0


def test_a_checkpoint_of_an_iterator_is_exact_in_another_process(ended, cache_url):
    assert ended[0]["gone on"] == 0
    with tpufeed.Loader(cache_url, batch_size=5, columns=COLUMNS) as loader:
        epochs = [[[ids.tolist(), zlib.crc32(images)] for ids, images in loader] for _ in range(2)]
    for given, found in zip(GIVEN, ended[1], strict=True):
        assert found == epochs[0 if "repeat" in given else 1][SAVED_AFTER : SAVED_AFTER + 4], given
