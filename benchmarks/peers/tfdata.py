"""tf.data tuned by hand over tpufeed's shards, plain TensorFlow only. A setting is how the map is parallel.

Parallel interleave over the shards in no fixed order, decode and crop fused in one op, windows drawn by arithmetic (the
op sample_distorted_bounding_box costs 0.15 ms an image), a fixed or automatic parallelism of the map, batch, prefetch.
Like all of tf.data's readers it verifies both CRCs of a record. Raw work also as "parse-batch": batch, then parse.
"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tensorflow as tf

from benchmarks.peers import BATCH, SCALE, SIZE, Source

SETTINGS = dict.fromkeys(("jpeg", "small", "presized", "raw"), "auto")

_TRIES = 10


def batches(source: Source, setting: str) -> Iterator[Any]:
    return iter(dataset(source.plain, source.work != "raw", setting))


def dataset(folder: Path, encoded: bool, setting: str) -> Any:
    """Batches `(uint8 image, int64 label)` of the train split for ever; `setting` is auto, a number or parse-batch."""
    files = sorted(map(str, folder.glob("train-*.tfrecord")))
    shards = tf.data.Dataset.from_tensor_slices(files).shuffle(len(files)).repeat()
    records = shards.interleave(
        lambda file: tf.data.TFRecordDataset(file, buffer_size=8 << 20),
        cycle_length=16,
        num_parallel_calls=tf.data.AUTOTUNE,
        deterministic=False,
    )
    if setting == "parse-batch":
        batched = records.batch(BATCH, drop_remainder=True)
        return batched.map(_parse_raw_batch, num_parallel_calls=tf.data.AUTOTUNE, deterministic=False).prefetch(2)
    calls = tf.data.AUTOTUNE if setting == "auto" else int(setting)
    samples = records.map(_parse_encoded if encoded else _parse_raw, num_parallel_calls=calls, deterministic=False)
    return samples.batch(BATCH, drop_remainder=True).prefetch(2)


_LABEL = {"image/class/label": tf.io.FixedLenFeature([], tf.int64)}
_RAW = {"image/tensor": tf.io.FixedLenFeature([], tf.string), **_LABEL}
_ENCODED = {"image/encoded": tf.io.FixedLenFeature([], tf.string), **_LABEL}


def _parse_raw(record: Any) -> Any:
    parsed = tf.io.parse_single_example(record, _RAW)
    image = tf.io.decode_raw(parsed["image/tensor"], tf.uint8)
    return tf.reshape(image, (SIZE, SIZE, 3)), parsed["image/class/label"]


def _parse_raw_batch(records: Any) -> Any:
    parsed = tf.io.parse_example(records, _RAW)
    images = tf.io.decode_raw(parsed["image/tensor"], tf.uint8)
    return tf.reshape(images, (BATCH, SIZE, SIZE, 3)), parsed["image/class/label"]


def _parse_encoded(record: Any) -> Any:
    parsed = tf.io.parse_single_example(record, _ENCODED)
    encoded = parsed["image/encoded"]
    image = tf.io.decode_and_crop_jpeg(encoded, _window(tf.image.extract_jpeg_shape(encoded)), channels=3)
    image = tf.cast(tf.image.resize(image, (SIZE, SIZE)), tf.uint8)
    return tf.image.random_flip_left_right(image), parsed["image/class/label"]


def _window(shape: Any) -> Any:
    """The window of a random-resized crop: all tries at once, and the first that fits."""
    height, width = tf.cast(shape[0], tf.float32), tf.cast(shape[1], tf.float32)
    area = height * width * tf.random.uniform([_TRIES], *SCALE)
    ratio = tf.exp(tf.random.uniform([_TRIES], math.log(3 / 4), math.log(4 / 3)))
    cut = tf.round(tf.sqrt(tf.stack([area / ratio, area * ratio])))
    # The last column always fits: the largest window within the ratio.
    fallback = tf.stack([tf.minimum(height, tf.round(width * 4 / 3)), tf.minimum(width, tf.round(height * 4 / 3))])
    cut = tf.concat([cut, fallback[:, None]], axis=1)
    fits = (cut[0] <= height) & (cut[1] <= width)
    cut = cut[:, tf.argmax(fits)]
    left_over = tf.stack([height, width]) - cut
    corner = tf.floor(tf.random.uniform([2]) * (left_over + 1))
    return tf.cast(tf.concat([corner, cut], axis=0), tf.int32)
