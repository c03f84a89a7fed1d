"""Run by test_processes.py: what a process does before it ends, or is to end.

ended.py WAY CACHE DATASET CHECKPOINTS OUT
"""

import json
import sys
import zlib
from pathlib import Path

import tensorflow as tf

import tpufeed

way, cache_url, dataset_url, checkpoints, out = sys.argv[1:]


def leave_an_iteration_open(direct):
    dataset = tpufeed.Loader(cache_url, batch_size=1, prefetch=1, threads=1).to_tf(direct=direct).repeat().batch(16)
    iterator = iter(dataset.prefetch(64))
    next(iterator)
    globals()["kept"] = dataset, iterator


def take_one_thread():
    tf.config.threading.set_inter_op_parallelism_threads(1)
    train, val = (tpufeed.Loader(cache_url, split, batch_size=5).to_tf(direct=True) for split in ("train", "val"))
    for _epoch in range(2):
        for _batches in tf.data.Dataset.zip((train, val.repeat())).map(lambda *both: both, num_parallel_calls=4):
            pass


def go_on():
    found = []
    for path, given in json.loads(checkpoints):
        exact = given.pop("deterministic", False)
        iterator = iter(tpufeed.Loader(cache_url, **given).to_tf(deterministic=exact))
        tf.train.Checkpoint(iterator=iterator).restore(path)
        batches = [next(iterator) for _ in range(4)]
        found.append([[ids.numpy().tolist(), zlib.crc32(images.numpy())] for ids, images in batches])
    Path(out).write_text(json.dumps(found))


def fit_that_fails():
    """A thread of TensorFlow waits for a worker process then, whose socket the interpreter closes at its end."""
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


if way == "one thread":
    take_one_thread()
elif way == "gone on":
    go_on()
elif way == "fit failed":
    fit_that_fails()
else:
    leave_an_iteration_open(way == "left direct")
