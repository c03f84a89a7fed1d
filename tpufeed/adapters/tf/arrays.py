"""TensorFlow's functions for ops on the device, for `tf.function` with and without `jit_compile`."""

from functools import partial

import tensorflow as tf

from tpufeed.images.device import Arrays, product_of_parts


def upper(x: tf.Tensor) -> tf.Tensor:
    """Clear the last 16 bits of float32."""
    return tf.bitcast(tf.bitwise.bitwise_and(tf.bitcast(x, tf.int32), -(1 << 16)), tf.float32)


ARRAYS = Arrays(
    floats=lambda x: tf.cast(x, tf.float32),
    levels=tf.cast,
    cast=lambda x, dtype: tf.cast(x, dtype or tf.bfloat16),
    count=lambda stop, axis, _x: tf.expand_dims(tf.range(stop, dtype=tf.float32), -3 - axis),
    row=lambda numbers, _x: tf.constant(numbers, tf.float32),
    where=tf.where,
    minimum=tf.minimum,
    maximum=tf.maximum,
    floor=tf.floor,
    round=tf.round,
    exp=tf.exp,
    product=tf.matmul,
    flip=lambda x, axis: tf.reverse(x, [axis]),
    reshape=tf.reshape,
    transpose=tf.transpose,
    stack=partial(tf.stack, axis=-1),
    sum=partial(tf.reduce_sum, keepdims=True),
    least=partial(tf.reduce_min, axis=(-2, -1), keepdims=True),
    most=partial(tf.reduce_max, axis=(-2, -1), keepdims=True),
    layout="NHWC",
    exact_product=partial(product_of_parts, tf.matmul, upper),
)
