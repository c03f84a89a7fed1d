"""The readers of Kaggle's TPU guide, as it has them, over `flowers` and `flowers-64` of docs/kaggle.md."""

import re

import numpy as np
import tensorflow as tf

import tpufeed

AUTO = tf.data.AUTOTUNE
IMAGE_SIZE = [64, 64]
BATCH_SIZE = 16
TRAINING_FILENAMES = tf.io.gfile.glob("flowers/train*.tfrec")
CLASSES = tpufeed.open_dataset("flowers").class_names


def decode_image(image_data):
    image = tf.image.decode_jpeg(image_data, channels=3)
    image = tf.cast(image, tf.float32) / 255.0  # floats in [0, 1]
    return tf.reshape(image, [*IMAGE_SIZE, 3])  # a TPU needs the size


def read_labeled_tfrecord(example):
    features = {"image": tf.io.FixedLenFeature([], tf.string), "class": tf.io.FixedLenFeature([], tf.int64)}
    example = tf.io.parse_single_example(example, features)
    return decode_image(example["image"]), tf.cast(example["class"], tf.int32)


def load_dataset(filenames, read=read_labeled_tfrecord):
    ignore_order = tf.data.Options()
    ignore_order.experimental_deterministic = False  # whichever file answers first
    dataset = tf.data.TFRecordDataset(filenames, num_parallel_reads=AUTO).with_options(ignore_order)
    return dataset.map(read, num_parallel_calls=AUTO)


def count_data_items(filenames):
    return np.sum([int(re.compile(r"-([0-9]*)\.").search(filename).group(1)) for filename in filenames])


def fit(dataset, filenames, loss):
    train = dataset.repeat().shuffle(2048).batch(BATCH_SIZE).prefetch(AUTO)
    pool = tf.keras.layers.GlobalAveragePooling2D()
    layers = [tf.keras.Input([*IMAGE_SIZE, 3]), pool, tf.keras.layers.Dense(len(CLASSES))]
    model = tf.keras.Sequential(layers)
    model.compile("adam", loss, metrics=["accuracy"])
    model.fit(train, steps_per_epoch=count_data_items(filenames) // BATCH_SIZE, epochs=1, verbose=2)


sparse = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
fit(load_dataset(TRAINING_FILENAMES), TRAINING_FILENAMES, sparse)


def read_tfrecord(example):
    features = {
        "image": tf.io.FixedLenFeature([], tf.string),
        "class": tf.io.FixedLenFeature([], tf.int64),
        "label": tf.io.FixedLenFeature([], tf.string),
        "size": tf.io.FixedLenFeature([2], tf.int64),
        "one_hot_class": tf.io.VarLenFeature(tf.float32),
    }
    example = tf.io.parse_single_example(example, features)
    one_hot_class = tf.sparse.to_dense(example["one_hot_class"])
    return decode_image(example["image"]), tf.reshape(one_hot_class, [len(CLASSES)])


categorical = tf.keras.losses.CategoricalCrossentropy(from_logits=True)
fit(load_dataset(TRAINING_FILENAMES, read_tfrecord), TRAINING_FILENAMES, categorical)
CACHED_FILENAMES = tf.io.gfile.glob("flowers-64/train*.tfrec")  # like train-v0-00-512.tfrec
fit(load_dataset(CACHED_FILENAMES), CACHED_FILENAMES, sparse)
assert count_data_items(TRAINING_FILENAMES) == tpufeed.open_dataset("flowers").split("train").records
