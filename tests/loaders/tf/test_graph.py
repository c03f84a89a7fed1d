"""The graph's windows and flips have the distributions of the host's ops."""

import math

import numpy as np
import pytest
import tensorflow as tf

from tpufeed.images import (
    CenterCrop,
    HorizontalFlip,
    RandomCrop,
    RandomResizedCrop,
    Resize,
    VerticalFlip,
)
from tpufeed.images.rng import uniforms
from tpufeed.loaders.tf.graph import find_window, run_ops

COUNT = 3000


def each(function, draws):
    """What `function` of a seeded row of draws gives, a few thousand times in one graph."""
    seeds = tf.data.Dataset.range(COUNT)
    found = seeds.map(lambda seed: function(tf.random.stateless_uniform([draws], tf.stack([7, seed]))))
    return np.array(list(found.as_numpy_iterator()), np.float64)


@pytest.mark.parametrize(
    ("op", "height", "width"),
    [
        (RandomResizedCrop(64), 300, 400),
        (RandomResizedCrop(64, (0.9, 1.0), (0.1, 0.2)), 200, 300),  # most tries fail
        (RandomCrop(70, padding=13), 100, 90),
        (RandomCrop((30, 200)), 100, 150),  # too short a side
    ],
    ids=str,
)
def test_windows_have_the_mean_and_spread_of_the_host_s(op, height, width):
    windows = each(lambda draws: find_window(op, tf.constant([height, width]), draws)[0], op.draws)
    host = uniforms(3, 0, np.arange(COUNT), 0, op.draws)
    expected = np.array([op.window(height, width, draws.tolist())[:4] for draws in host], np.float64)
    spread = expected.std(0) + 0.1
    assert np.all(np.abs(windows.mean(0) - expected.mean(0)) < 5 * spread / math.sqrt(COUNT))
    assert np.all(np.abs(windows.std(0) - expected.std(0)) < 0.06 * spread + 0.05)


@pytest.mark.parametrize(
    ("op", "size", "expected"),
    [
        (CenterCrop(31), (70, 90), (19, 29, 31, 31, 31, 31)),
        (CenterCrop((224, 100)), (112, 80), (0, 15, 112, 50, 224, 100)),
        (Resize(50), (100, 200), (0, 0, 100, 200, 50, 100)),
        (Resize((30, 40)), (100, 200), (0, 0, 100, 200, 30, 40)),
    ],
    ids=str,
)
def test_windows_that_are_not_drawn(op, size, expected):
    window, out = find_window(op, tf.constant(size), tf.zeros([0]))
    assert (*window.numpy(), *out.numpy()) == expected == op.window(*size, ())


@pytest.mark.parametrize("op", [HorizontalFlip(0.3), VerticalFlip(0.7)], ids=str)
def test_what_happens_sometimes_happens_that_often(op):
    image = np.arange(1, 61, dtype=np.uint8).reshape(5, 4, 3)
    changed = each(lambda draws: tf.reduce_any(run_ops((op,), tf.constant(image), draws) != image), op.draws)
    assert abs(changed.mean() - op.p) < 0.05
