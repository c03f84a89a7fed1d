"""Train a classifier of flowers with Keras on all cores of a TPU, fed by tpufeed: the script of Kaggle's TPU guide.

    python keras_flowers.py --data flowers --epochs 6 --batch-size 16 --size 64 --out run1        on a CPU
    python keras_flowers.py --data gs://my-bucket/flowers --batch-size 128 --steps-per-execution 16     on a TPU VM
    python keras_flowers.py --data /kaggle/input/.../tfrecords-jpeg-224x224 --cache /tmp/flowers-224    on Kaggle

--data is a dataset of `tpufeed shard`, or a folder or bucket of TFRecords as Kaggle has them: those are adopted as they
are. It has splits train and val. Started again with the same --out, training goes on after the last whole epoch,
up to --epochs in all.
"""

import argparse
import os
import re
import sys
import time
from pathlib import Path

import tensorflow as tf

import tpufeed
from tpufeed.errors import DatasetNotFoundError, TpufeedError
from tpufeed.images import CenterCrop, HorizontalFlip, RandomResizedCrop, Resize

keras = tf.keras  # Keras 3


def parse(arguments):
    """The options as a namespace."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="a dataset, or TFRecords with keys image and class")
    parser.add_argument("--classes", help="of such TFRecords: a file with a class's name a line")
    parser.add_argument("--cache", help="warm a cache here, of two variants, and train from it")
    parser.add_argument("--out", type=Path, default=Path("keras-run"), help="a folder for backups and the model")
    parser.add_argument("--tpu", default="auto", help="its name; local on a TPU VM; none; auto looks for one")
    parser.add_argument("--cpu", type=int, metavar="DEVICES", help="without a TPU: act as so many devices")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=16, help="samples of a core in a step; 128 fill the MXU")
    parser.add_argument("--size", type=int, default=224, help="pixels a side, where the dataset is no cache")
    parser.add_argument("--learning-rate", type=float, default=0.004, help="for a global batch of 256")
    parser.add_argument("--steps-per-execution", type=int, default=1, help="between returns to Python; 16 on a TPU")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(arguments)


def connect(options):
    """The strategy over a TPU's cores where there is a TPU, or else over CPU or GPU."""
    name = find_tpu() if options.tpu == "auto" else options.tpu
    if name is None or name == "none":
        if options.cpu is None:
            return tf.distribute.get_strategy()
        (cpu,) = tf.config.list_physical_devices("CPU")
        devices = [tf.config.LogicalDeviceConfiguration()] * options.cpu
        tf.config.set_logical_device_configuration(cpu, devices)  # TensorFlow makes its devices once
        return tf.distribute.MirroredStrategy([f"CPU:{number}" for number in range(options.cpu)])
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=name)
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
    except (ValueError, RuntimeError, OSError, tf.errors.OpError) as error:  # never train on its CPU instead
        reason = str(error).split("\n", 1)[0][:300]
        sys.exit(
            f"no TPU answers as {name!r}: {reason}\n"
            "On a TPU VM it is --tpu local; the TensorFlow installed must be built for TPUs (pip install "
            "tensorflow-tpu), and no other process may hold the TPU. To train without one: --tpu none"
        )
    return tf.distribute.TPUStrategy(resolver)


def find_tpu():
    """Its name as the environment tells it, or local where this host has a TPU's devices; None without one."""
    chips = [*Path("/dev").glob("accel[0-9]*"), *Path("/dev/vfio").glob("[0-9]*")]
    return os.environ.get("TPU_NAME") or ("local" if chips else None)


def open_data(options):
    """The URL of the dataset, which for TFRecords of other tools is made in --out: Kaggle's inputs are read-only."""
    try:
        tpufeed.open_dataset(options.data)
        return options.data
    except DatasetNotFoundError:
        adopted = options.out / ("adopted-" + re.sub(r"\W+", "-", options.data).strip("-"))
    try:
        tpufeed.open_dataset(adopted)
    except DatasetNotFoundError:
        result = tpufeed.adopt(options.data, adopted, only=["train", "val"], classes=options.classes)
        counts = ", ".join(f"{split.records} in {name}" for name, split in result.manifest.splits.items())
        print(f"adopted {options.data}: {counts}")
    return str(adopted)


def make_model(shape, classes):
    """Takes uint8, so that a quarter of the bytes cross to the device; put yours after the Rescaling."""
    inputs = keras.Input(shape, dtype="uint8")
    outputs = keras.layers.Rescaling(1 / 127.5, offset=-1)(inputs)
    for filters in (16, 32, 64):
        outputs = keras.layers.Conv2D(filters, 3, strides=2, padding="same", activation="relu")(outputs)
    outputs = keras.layers.GlobalAveragePooling2D()(outputs)
    return keras.Model(inputs, keras.layers.Dense(classes, dtype="float32")(outputs))


def make_schedule(learning_rate, global_batch, epochs, steps):
    """As much higher as the batch is larger (arxiv.org/abs/1706.02677); a fifth of the training warms up to it."""
    peak = learning_rate * global_batch / 256
    warmup = max(1, epochs * steps // 5)
    return keras.optimizers.schedules.CosineDecay(
        0.0, max(1, epochs * steps - warmup), warmup_target=peak, warmup_steps=warmup
    )


class Report(keras.callbacks.Callback):
    """Prints a line an epoch."""

    def __init__(self, batch):
        super().__init__()
        self.batch, self.ends = batch, []

    def on_epoch_begin(self, epoch, logs=None):
        """Rates are of one epoch."""
        self.ends = []

    def on_train_batch_end(self, batch, logs=None):
        """The first time includes compiling, so rates are from then on."""
        self.ends.append((batch, time.perf_counter()))

    def on_epoch_end(self, epoch, logs=None):
        """Of the logs, accuracy counts no padding."""
        (first, start), (last, end) = self.ends[0], self.ends[-1]
        rate = f"{(last - first) * self.batch / (end - start):,.0f}" if last > first else "n/a"
        told = f"loss {logs['loss']:.4f}, accuracy {logs['accuracy']:.3f}"
        print(f"epoch {epoch}: {told}, held out {logs['val_accuracy_of_real']:.3f}, {rate} images/s", flush=True)


def main(options):
    """Train, evaluate with each held-out image once, and save the model."""
    strategy = connect(options)
    keras.utils.set_random_seed(options.seed)
    if isinstance(strategy, tf.distribute.TPUStrategy):
        keras.mixed_precision.set_global_policy("mixed_bfloat16")
    options.out.mkdir(parents=True, exist_ok=True)
    url, batch = open_data(options), options.batch_size * strategy.num_replicas_in_sync
    dataset = tpufeed.open_dataset(url)
    if options.cache is not None:  # done already, it is verified and taken as it is
        tpufeed.cache.warmup(url, options.cache, size=options.size, variants=2)
    is_cache = dataset.manifest.cache is not None
    live = None if is_cache or options.cache else [RandomResizedCrop(size=options.size), HorizontalFlip()]
    loader = tpufeed.Loader(options.cache or url, batch_size=batch, ops=live, seed=options.seed)
    feed = loader.to_tf()
    fixed = None if is_cache else [Resize(options.size), CenterCrop(options.size)]
    val = tpufeed.Loader(url, "val", batch_size=batch, ops=fixed, shuffle=False, remainder="pad").to_tf()
    # The mask that says what is padding becomes Keras' sample weight; under a strategy that must be a number.
    val = val.map(lambda images, labels, mask: (images, labels, tf.cast(mask, tf.float32)))
    with strategy.scope():
        model = make_model(feed.element_spec[0].shape[1:], len(dataset.manifest.class_names))
        model.compile(
            keras.optimizers.Adam(make_schedule(options.learning_rate, batch, options.epochs, len(feed))),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
            weighted_metrics=[keras.metrics.SparseCategoricalAccuracy(name="accuracy_of_real")],
            steps_per_execution=options.steps_per_execution,
        )
    print(f"{strategy.num_replicas_in_sync} cores, {len(feed)} steps of {batch} an epoch", flush=True)
    weights = dataset.class_weights("train")  # of classes that are rarer, samples weigh more
    backup = keras.callbacks.BackupAndRestore(str(options.out / "backup"), delete_checkpoint=False)
    place = tpufeed.keras_state(loader, options.out / "feed.json")  # behind what restores the weights
    given = {"epochs": options.epochs, "class_weight": weights, "callbacks": [Report(batch), backup, place]}
    history = model.fit(feed, validation_data=val, shuffle=False, verbose=0, **given)
    if not history.epoch:
        print(f"already trained {options.epochs} epochs: give more --epochs")
    held_out = model.evaluate(val, return_dict=True, verbose=0)["accuracy_of_real"]
    print(f"accuracy, held out: {held_out:.3f} of {dataset.split('val').records}")
    model.save(options.out / "model.keras")


if __name__ == "__main__":
    try:
        main(parse(sys.argv[1:]))
    except TpufeedError as error:  # says what to do; a trace would hide it
        sys.exit(f"error: {error}")
