"""Train a classifier with Keras on all cores of a TPU, fed by tpufeed: the script of Kaggle's TPU guide.

    python keras_tpu.py gs://my-bucket/flowers-224 --steps-per-execution 16     on a TPU VM, or in a Kaggle notebook
    python keras_tpu.py flowers --cpu 4 --epochs 2                              tries it on the CPU, as four devices

The dataset has splits train and val. Presized and augmented (`tpufeed cache warmup`) it feeds faster.
"""
# ruff: noqa: T201

import argparse
import os
import sys

import tensorflow as tf

import tpufeed
from tpufeed.images import CenterCrop, HorizontalFlip, RandomResizedCrop, Resize

keras = tf.keras  # Keras 3, or with TF_USE_LEGACY_KERAS=1 the Keras 2 that some TPU images want


def parse(arguments):
    """The options as a namespace."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="a dataset or a cache")
    parser.add_argument("--tpu", default=os.environ.get("TPU_NAME") or "local", help="its name; local on a TPU VM")
    parser.add_argument("--cpu", type=int, nargs="?", const=2, metavar="DEVICES", help="no TPU: that many CPU devices")
    parser.add_argument("--size", type=int, default=224, help="pixels a side, where the dataset is no cache")
    parser.add_argument("--per-core", type=int, default=16, help="samples of a core in a step; 128 fill the MXU")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--learning-rate", type=float, default=0.004, help="for a global batch of 256")
    parser.add_argument("--steps-per-execution", type=int, default=1, help="between returns to Python; 16 on a TPU")
    return parser.parse_args(arguments)


def connect(arguments):
    """The strategy over a TPU's cores; over CPU devices only where that is asked for."""
    if arguments.cpu is not None:
        (cpu,) = tf.config.list_physical_devices("CPU")
        devices = [tf.config.LogicalDeviceConfiguration()] * arguments.cpu
        tf.config.set_logical_device_configuration(cpu, devices)  # TensorFlow makes its devices once
        return tf.distribute.MirroredStrategy([f"CPU:{number}" for number in range(arguments.cpu)])
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=arguments.tpu)
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
    except (ValueError, RuntimeError, OSError, tf.errors.OpError) as error:
        reason = str(error).split("\n", 1)[0][:300]
        sys.exit(
            f"no TPU answers as {arguments.tpu!r}: {reason}\n"
            "On a TPU VM it is --tpu local; the TensorFlow installed must be built for TPUs (pip install "
            "tensorflow-tpu), and no other process may hold the TPU. To try this script without one: --cpu"
        )
    return tf.distribute.TPUStrategy(resolver)


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


def main(arguments):
    """Train, and print the accuracy before and after."""
    strategy = connect(arguments)
    keras.utils.set_random_seed(0)
    if isinstance(strategy, tf.distribute.TPUStrategy):
        keras.mixed_precision.set_global_policy("mixed_bfloat16")
    dataset = tpufeed.open_dataset(arguments.url)
    side, is_cache = arguments.size, dataset.manifest.cache is not None
    batch = tpufeed.batch_size(arguments.per_core, strategy)
    ops = None if is_cache else [RandomResizedCrop(size=side), HorizontalFlip()]
    train = tpufeed.tf_dataset(arguments.url, "train", batch_size=batch, ops=ops)
    ops = None if is_cache else [Resize(side), CenterCrop(side)]
    val = tpufeed.tf_dataset(arguments.url, "val", batch_size=batch, ops=ops, shuffle=False, remainder="pad")
    # The mask that says what is padding becomes Keras' sample weight; under a strategy that must be a number.
    val = val.map(lambda images, labels, mask: (images, labels, tf.cast(mask, tf.float32)))
    with strategy.scope():
        model = make_model(train.element_spec[0].shape[1:], len(dataset.manifest.class_names))
        model.compile(
            keras.optimizers.Adam(make_schedule(arguments.learning_rate, batch, arguments.epochs, len(train))),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
            weighted_metrics=[keras.metrics.SparseCategoricalAccuracy(name="accuracy_of_real")],
            steps_per_execution=arguments.steps_per_execution,
        )
    print(f"{strategy.num_replicas_in_sync} cores, {len(train)} steps of {batch} an epoch")
    weights = dataset.class_weights("train")  # of classes that are rarer, samples weigh more
    history = model.fit(train, validation_data=val, epochs=arguments.epochs, class_weight=weights, verbose=2).history
    for name, values in (("training", history["accuracy"]), ("held out", history["val_accuracy_of_real"])):
        print(f"accuracy, {name}: {values[0]:.3f} after the first epoch, {values[-1]:.3f} after the last")


if __name__ == "__main__":
    main(parse(sys.argv[1:]))
