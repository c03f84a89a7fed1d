"""Run by test_processes.py: writes down what four replicas of a MirroredStrategy on CPU devices were given.

four_devices.py CACHE DATASET OUT
"""

import faulthandler
import json
import os
import sys
import zlib
from pathlib import Path

import keras
import tensorflow as tf

import tpufeed
from tpufeed.images import CenterCrop

COLUMNS = ("image", "sample")
REPLICAS, PER_CORE = 4, 4

os.environ.setdefault("TPUFEED_PROCESSES", "0")  # worker processes take a second to start
faulthandler.dump_traceback_later(280, exit=True)
# Before anything else: TensorFlow makes its devices once.
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * REPLICAS
)


def epochs_of(strategy, distributed):
    """Of two epochs their steps, of those the replicas' columns; images as checksums."""
    return [[replicas_of(strategy, element) for element in distributed] for _ in range(2)]


def replicas_of(strategy, element):
    columns = [strategy.experimental_local_results(column) for column in element]
    return [[numbers(column.numpy()) for column in columns_of_one] for columns_of_one in zip(*columns, strict=True)]


def numbers(column):
    return [zlib.crc32(image) for image in column] if column.ndim == 4 else column.tolist()


def spec_of(distributed):
    """Static shapes by column and replica."""
    return [[part.shape.as_list() for part in spec._value_specs] for spec in distributed.element_spec]


def traced_shapes(strategy, distributed):
    """What shapes a compiled step sees on each replica."""
    shapes = []

    def step(images, samples):
        shapes.append([images.shape.as_list(), samples.shape.as_list()])

    @tf.function
    def run(images, samples):
        strategy.run(step, (images, samples))

    for images, samples in distributed:
        run(images, samples)
    return shapes


def whole(strategy, url):
    """experimental_distribute_dataset splits batches of `PER_CORE * num_replicas_in_sync`."""
    found = {"batch_size": PER_CORE * strategy.num_replicas_in_sync}
    for remainder in ("drop", "pad"):
        dataset = tpufeed.Loader(url, columns=COLUMNS, batch_size=found["batch_size"], remainder=remainder).to_tf()
        distributed = strategy.experimental_distribute_dataset(dataset)
        found[remainder] = epochs_of(strategy, distributed)
        found[f"{remainder} spec"] = spec_of(distributed)
        if remainder == "drop":
            found["traced"] = traced_shapes(strategy, distributed)
    return found


def from_function(strategy, url):
    """Each replica takes a batch of the function's dataset; `rebatched` gives every step one for each of them."""
    found = {}
    for remainder in ("drop", "pad"):

        def plain(context, remainder=remainder):
            size = found["batch_size"] = PER_CORE
            return tpufeed.Loader(url, columns=COLUMNS, batch_size=size, remainder=remainder, world=context).to_tf()

        def rebatched(context, remainder=remainder):
            size = PER_CORE * context.num_replicas_in_sync // context.num_input_pipelines
            dataset = tpufeed.Loader(url, columns=COLUMNS, batch_size=size, remainder=remainder, world=context).to_tf()
            return dataset.rebatch(PER_CORE, drop_remainder=True)

        distributed = strategy.distribute_datasets_from_function(plain)
        found[remainder] = epochs_of(strategy, distributed)
        found[f"{remainder} spec"] = spec_of(distributed)
        distributed = strategy.distribute_datasets_from_function(rebatched)
        found[f"{remainder} rebatched"] = epochs_of(strategy, distributed)
    return found


class Recorder(keras.Model):
    """Writes down which samples each replica's training step was given."""

    def __init__(self):
        super().__init__()
        self.seen = []
        self.layers_ = [keras.layers.Rescaling(1 / 255), keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(3)]

    def call(self, images):
        for layer in self.layers_:
            images = layer(images)
        return images

    def train_step(self, data):
        images, labels, samples = data
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group

        def record(number, ids):
            self.seen.append([int(number), ids.numpy().tolist()])

        tf.py_function(record, [replica, samples], [])
        return super().train_step((images, labels))


def fit(strategy, dataset, **options):
    """What each replica was given in two epochs."""
    with strategy.scope():
        model = Recorder()
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("sgd", loss, metrics=["accuracy"])
    history = model.fit(dataset, epochs=2, verbose=0, **options).history
    return {"seen": model.seen, "steps": int(model.optimizer.iterations.numpy()), "loss": history["loss"]}


def fits(strategy, url):
    """Keras hands a dataset to experimental_distribute_dataset itself, and takes one that is distributed already.

    Where the latter has an end, some replicas take a step too many there: Keras does not know its length.
    """
    given = {"columns": ["image", "label", "sample"], "remainder": "repeat"}
    size = PER_CORE * strategy.num_replicas_in_sync

    def feed(context):
        dataset = tpufeed.Loader(url, batch_size=size, repeat=True, world=context, **given).to_tf()
        return dataset.rebatch(PER_CORE, drop_remainder=True)

    return {
        "whole": fit(strategy, tpufeed.Loader(url, batch_size=size, **given).to_tf()),
        "from function": fit(strategy, strategy.distribute_datasets_from_function(feed), steps_per_epoch=5),
    }


def evaluate(strategy, url):
    """The accuracy as Keras has it, and which samples a model gets right."""
    given = {"batch_size": PER_CORE * strategy.num_replicas_in_sync, "ops": [CenterCrop(64)], "shuffle": False}
    padded = tpufeed.Loader(url, "val", remainder="pad", **given).to_tf()
    # To build a model Keras takes the mean of a batch over the replicas, and there is none of bools.
    weighed = padded.map(lambda images, labels, mask: (images, labels, tf.cast(mask, tf.float32)))
    with strategy.scope():
        inputs = keras.Input((64, 64, 3))
        outputs = keras.layers.Dense(3)(keras.layers.Flatten()(keras.layers.Rescaling(1 / 255)(inputs)))
        model = keras.Model(inputs, outputs)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(loss=loss, weighted_metrics=["accuracy"])
    found = {"accuracy": float(model.evaluate(weighed, verbose=0, return_dict=True)["accuracy"]), "right": []}
    for images, labels, mask in padded:
        found["right"] += (model(images).numpy().argmax(1) == labels.numpy())[mask.numpy()].tolist()
    return found


def main(url, dataset, out):
    strategy = tf.distribute.MirroredStrategy([f"CPU:{index}" for index in range(REPLICAS)])
    found = {
        "replicas": strategy.num_replicas_in_sync,
        "whole": whole(strategy, url),
        "from function": from_function(strategy, url),
        "fit": fits(strategy, url),
        "evaluation": evaluate(strategy, dataset),
    }
    Path(out).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
