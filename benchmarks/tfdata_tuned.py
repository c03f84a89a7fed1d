"""tf.data tuned by hand over tpufeed's shards, plain TensorFlow only: what our loaders are measured against.

Parallel interleave over the shards in no fixed order, decode and crop fused in one op, windows drawn by arithmetic (the
op sample_distorted_bounding_box costs 0.15 ms an image), a fixed or automatic parallelism of the map, batch, prefetch.
"""

from pathlib import Path
from typing import Any

import tensorflow as tf

SIZE = 224


def dataset(folder: Path, encoded: bool, parallel_calls: int, batch_size: int) -> Any:
    """Batches `(uint8 image, int64 label)` of the train split for ever; `parallel_calls` -1 is AUTOTUNE."""
    files = sorted(map(str, folder.glob("train-*.tfrecord")))
    shards = tf.data.Dataset.from_tensor_slices(files).shuffle(len(files)).repeat()
    records = shards.interleave(
        lambda file: tf.data.TFRecordDataset(file, buffer_size=8 << 20),
        cycle_length=16,
        num_parallel_calls=tf.data.AUTOTUNE,
        deterministic=False,
    )
    parse = _parse_encoded if encoded else _parse_raw
    samples = records.map(parse, num_parallel_calls=parallel_calls, deterministic=False)
    return samples.batch(batch_size, drop_remainder=True).prefetch(2)


def _parse_raw(record: Any) -> Any:
    features = {
        "image/tensor": tf.io.FixedLenFeature([], tf.string),
        "image/class/label": tf.io.FixedLenFeature([], tf.int64),
    }
    parsed = tf.io.parse_single_example(record, features)
    image = tf.io.decode_raw(parsed["image/tensor"], tf.uint8)
    return tf.reshape(image, (SIZE, SIZE, 3)), parsed["image/class/label"]


def _parse_encoded(record: Any) -> Any:
    features = {
        "image/encoded": tf.io.FixedLenFeature([], tf.string),
        "image/class/label": tf.io.FixedLenFeature([], tf.int64),
    }
    parsed = tf.io.parse_single_example(record, features)
    encoded = parsed["image/encoded"]
    image = tf.io.decode_and_crop_jpeg(encoded, _window(tf.image.extract_jpeg_shape(encoded)), channels=3)
    image = tf.cast(tf.image.resize(image, (SIZE, SIZE)), tf.uint8)
    return tf.image.random_flip_left_right(image), parsed["image/class/label"]


def _window(shape: Any) -> Any:
    """The window of a random-resized crop: one try, clipped to the image."""
    height, width = tf.cast(shape[0], tf.float32), tf.cast(shape[1], tf.float32)
    area = height * width * tf.random.uniform([], 0.08, 1.0)
    ratio = tf.exp(tf.random.uniform([], tf.math.log(3 / 4), tf.math.log(4 / 3)))
    cut_height = tf.minimum(tf.round(tf.sqrt(area / ratio)), height)
    cut_width = tf.minimum(tf.round(tf.sqrt(area * ratio)), width)
    top = tf.floor(tf.random.uniform([]) * (height - cut_height + 1))
    left = tf.floor(tf.random.uniform([]) * (width - cut_width + 1))
    return tf.cast(tf.stack([top, left, cut_height, cut_width]), tf.int32)
