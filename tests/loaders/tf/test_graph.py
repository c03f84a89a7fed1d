"""The graph's windows, flips, colours and erased rectangles have the distributions of the host's ops."""

import math

import numpy as np
import pytest
import tensorflow as tf

from tpufeed.images import (
    CenterCrop,
    ColorJitter,
    Grayscale,
    HorizontalFlip,
    RandomCrop,
    RandomErasing,
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


@pytest.mark.parametrize("op", [HorizontalFlip(0.3), VerticalFlip(0.7), Grayscale(0.2), RandomErasing(0.4)], ids=str)
def test_what_happens_sometimes_happens_that_often(op):
    image = np.arange(1, 61, dtype=np.uint8).reshape(5, 4, 3)
    changed = each(lambda draws: tf.reduce_any(run_ops((op,), tf.constant(image), draws) != image), op.draws)
    share = op.p if not isinstance(op, RandomErasing) else None
    host = uniforms(3, 0, np.arange(COUNT), 0, op.draws).tolist()
    if share is None:  # some rectangles fit never
        share = np.mean([not op.skips(d) and not np.array_equal(op.apply(image, d, None), image) for d in host])
    assert abs(changed.mean() - share) < 0.05


def test_factors_of_jitter_are_uniform():
    grey = np.full((2, 2, 3), 100, np.uint8)
    op = ColorJitter(brightness=(0.5, 1.5))
    levels = each(lambda draws: run_ops((op,), tf.constant(grey), draws)[0, 0, 0], op.draws)
    assert (levels.min(), levels.max()) == (pytest.approx(50, abs=1), pytest.approx(150, abs=1))
    assert abs(levels.mean() - 100) < 3
    assert abs(levels.std() - 100 / math.sqrt(12)) < 1.5


@pytest.mark.parametrize("change", ["brightness", "contrast", "saturation", "hue"])
def test_one_change_of_colour_is_that_of_the_host(change):
    image = np.random.default_rng(0).integers(0, 256, (30, 40, 3), np.uint8)
    amount = 0.1 if change == "hue" else 1.3
    op = ColorJitter(**{change: (amount, amount)})
    found = run_ops((op,), tf.constant(image), tf.constant([0.5] * 5)).numpy()
    expected = op.apply(image, [0.5] * 5, None)
    assert np.abs(found.astype(int) - expected).mean() < 2


@pytest.mark.parametrize("value", [(10, 20, 30), "random"])
def test_an_erased_rectangle(value):
    op = RandomErasing(1.0, value=value)
    image = tf.zeros([40, 50, 3], tf.uint8)
    shares = each(
        lambda draws: tf.reduce_mean(tf.cast(tf.reduce_any(run_ops((op,), image, draws) > 0, 2), tf.float32)), op.draws
    )
    assert abs(shares.mean() - (0.02 + 0.33) / 2) < 0.02
