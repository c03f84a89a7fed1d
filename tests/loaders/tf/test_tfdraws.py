"""The graph's draws are those of tpufeed.images.draws, to the last bit."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from tpufeed.images import draws
from tpufeed.loaders.tf import draws as tf_draws

int64s = st.integers(-(2**63), 2**63 - 1)
seeds = st.integers(-(2**100), 2**100)
samples = st.lists(int64s, min_size=1, max_size=30)


def as_int64(numbers):
    return np.array(numbers, np.int64)


@given(seeds, int64s, samples, st.integers(0, 40), st.integers(1, 25))
def test_uniforms_are_bit_equal(seed, epoch, ids, op, count):
    found = tf_draws.uniforms(seed, tf.constant(epoch, tf.int64), tf.constant(ids, tf.int64), op, count)
    expected = draws.uniforms(seed, epoch, as_int64(ids), op, count)
    assert found.dtype == tf.float64
    assert found.shape == expected.shape == (len(ids), count)
    assert found.numpy().tobytes() == expected.tobytes()


@pytest.mark.parametrize("seed", [-1, -(2**63), 0, 2**63, 2**64 - 1, 2**64])
def test_seeds_at_the_edges(seed):
    for epoch in (0, -1, 2**63 - 1):
        found = tf_draws.uniforms(seed, tf.constant(epoch, tf.int64), tf.range(4, dtype=tf.int64), 0, 3)
        assert found.numpy().tobytes() == draws.uniforms(seed, epoch, np.arange(4), 0, 3).tobytes()


def test_they_are_the_same_within_a_dataset():
    epochs = tf.data.Dataset.range(5)

    @tf.autograph.experimental.do_not_convert
    def draw(epoch):
        return tf_draws.uniforms(-7, epoch, tf.constant([5, 2**62], tf.int64), 3, 22)

    for epoch, found in enumerate(epochs.map(draw)):
        assert found.numpy().tobytes() == draws.uniforms(-7, epoch, as_int64([5, 2**62]), 3, 22).tobytes()


def test_no_samples_have_no_draws():
    found = tf_draws.uniforms(0, tf.constant(0, tf.int64), tf.zeros([0], tf.int64), 0, 22)
    assert found.shape == (0, 22)


@given(st.integers(0, 2**53 - 1), st.integers(0, 200))
def test_noise_is_the_same(number, count):
    draw = number * 2.0**-53
    found = tf_draws.noise(tf.constant(draw, tf.float64), tf.constant(count))
    assert found.dtype == tf.uint8
    assert found.numpy().tobytes() == draws.noise(draw, count).tobytes()
