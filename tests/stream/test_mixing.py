"""Pairs of rows are mixed as a plain loop mixes them, in every framework."""

import numpy as np
import pytest

from tests.frameworks import lazy
from tpufeed.images import CutMix, MixUp
from tpufeed.stream.mixing import Mixing, mix_on_host

JAX = lazy("tpufeed.adapters.jax.arrays:ARRAYS")
TF = lazy("tpufeed.adapters.tf.arrays:ARRAYS")
TORCH = lazy("tpufeed.adapters.torch.arrays:ARRAYS")

jax = lazy("jax")
tf = lazy("tensorflow")
torch = lazy("torch")

ROWS, SIZE, CLASSES = 10, (6, 8), 4


@pytest.fixture
def batch():
    random = np.random.default_rng(3)
    images = random.integers(0, 256, (ROWS, *SIZE, 3), np.uint8)
    labels = random.integers(-1, CLASSES + 1, ROWS)  # some are no classes
    return images, labels, [random.random((ROWS, 2)), random.random((ROWS, 4))]


def mixed_one_by_one(images, labels, numbers):
    """Images and labels after MixUp, then CutMix."""
    hot = np.zeros((ROWS, CLASSES))
    for row, label in enumerate(labels):
        if 0 <= label < CLASSES:
            hot[row, label] = 1
    pairs = [row ^ 1 for row in range(ROWS)]
    share = numbers[:, 0].astype(np.float64)
    images = np.rint(images * share[:, None, None, None] + images[pairs] * (1 - share)[:, None, None, None])
    hot = hot * share[:, None] + hot[pairs] * (1 - share[:, None])
    before, hot_before = images.copy(), hot.copy()
    for row, (kept, top, left, bottom, right) in enumerate(numbers[:, 1:]):
        box = slice(int(top), int(bottom)), slice(int(left), int(right))
        images[row][box] = before[row ^ 1][box]
        pasted = (bottom - top) * (right - left) / (SIZE[0] * SIZE[1])
        assert kept == pytest.approx(1 - pasted)
        hot[row] = hot_before[row] * (1 - pasted) + hot_before[row ^ 1] * pasted
    return images, hot


@pytest.mark.all
@pytest.mark.uses("jax", "tensorflow", "torch")
def test_every_framework_mixes_as_a_plain_loop_does(batch):
    images, labels, draws = batch
    mixing = Mixing([MixUp(), CutMix()], SIZE, CLASSES, others=["night"])
    numbers = mixing.parameters(draws)
    assert numbers.shape == (ROWS, mixing.width) == (ROWS, 6)
    expected, hot = mixed_one_by_one(images, labels, numbers)
    for name, mixed in mixed_by_each_framework(mixing, images, labels, numbers, night=images[::-1].copy()).items():
        assert np.abs(mixed["image"].astype(int) - expected).max() <= 1, name
        night, _ = mixed_one_by_one(images[::-1], labels, numbers)
        assert np.abs(mixed["night"].astype(int) - night).max() <= 1, name
        np.testing.assert_allclose(mixed["label"], hot, atol=1e-6, err_msg=name)


def mixed_by_each_framework(mixing, images, labels, numbers, **others):
    columns = {"image": images, "label": labels, **others}
    on_host = {name: column.copy() for name, column in columns.items()}
    mix_on_host(mixing, on_host, numbers)
    found = {"numpy": on_host}
    found["jax"] = jax.jit(lambda *given: mixing.apply(*given, JAX))(columns, numbers)
    tensors = {name: torch.from_numpy(column) for name, column in columns.items()}
    found["torch"] = mixing.apply(tensors, torch.from_numpy(numbers), TORCH)
    step = tf.function(lambda *given: mixing.apply(*given, TF), jit_compile=True)
    found["tf"] = step({name: tf.constant(column) for name, column in columns.items()}, tf.constant(numbers))
    return {name: {each: np.asarray(column) for each, column in mixed.items()} for name, mixed in found.items()}


@pytest.mark.all
@pytest.mark.uses("jax", "tensorflow", "torch")
def test_a_mask_gets_the_box_of_its_image(batch):
    images, labels, draws = batch
    mixing = Mixing([CutMix(), CutMix(p=0.5)], SIZE, CLASSES, masks=["mask", "depth"])
    numbers = mixing.parameters([draws[1], draws[1][::-1]])
    levels = {"mask": images[..., 0].copy(), "depth": images[..., 1].astype(np.int32) * 1000 - 1}
    for name, mixed in mixed_by_each_framework(mixing, images, labels, numbers, **levels).items():
        assert not np.array_equal(mixed["image"], images), name
        np.testing.assert_array_equal(mixed["mask"], mixed["image"][..., 0], name)
        np.testing.assert_array_equal(mixed["depth"], mixed["image"][..., 1].astype(int) * 1000 - 1, name)
        assert (mixed["mask"].dtype, mixed["depth"].dtype) == (np.uint8, np.int32)


def test_labels_of_several_classes_are_taken_as_they_are(batch):
    images, _, draws = batch
    hot = np.random.default_rng(4).integers(0, 2, (ROWS, CLASSES)).astype(np.float32)
    mixing = Mixing([MixUp()], SIZE, CLASSES)
    numbers = mixing.parameters(draws[:1])
    columns = {"image": images, "label": hot}
    mix_on_host(mixing, columns, numbers)
    mixed = columns["label"]
    swapped = hot.reshape(-1, 2, CLASSES)[:, ::-1].reshape(ROWS, CLASSES)
    np.testing.assert_allclose(mixed, hot * numbers + swapped * (1 - numbers), atol=1e-6)
