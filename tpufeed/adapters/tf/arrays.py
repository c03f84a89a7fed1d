"""TensorFlow's functions for ops on the device, for `tf.function` with and without `jit_compile`."""

from functools import partial

import tensorflow as tf

from tpufeed.images.device import Arrays

ARRAYS = Arrays(
    floats=lambda x: tf.cast(x, tf.float32),
    levels=lambda x: tf.cast(x, tf.uint8),
    cast=lambda x, dtype: tf.cast(x, dtype or tf.bfloat16),
    count=lambda stop, _x: tf.range(stop, dtype=tf.float32),
    row=lambda numbers, _x: tf.constant(numbers, tf.float32),
    where=tf.where,
    minimum=tf.minimum,
    maximum=tf.maximum,
    floor=tf.floor,
    round=tf.round,
    exp=tf.exp,
    einsum=tf.einsum,
    flip=lambda x, axis: tf.reverse(x, [axis]),
    reshape=tf.reshape,
    transpose=tf.transpose,
    stack=partial(tf.stack, axis=-1),
    sum=tf.reduce_sum,
    least=tf.reduce_min,
    most=tf.reduce_max,
    layout="NHWC",
)
