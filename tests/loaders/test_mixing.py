"""mixup and cutmix: torchvision's definitions, the same in every framework."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
import torch

from tpufeed.errors import OptionError
from tpufeed.images import cutmix, mixup

RANDOM = np.random.default_rng(0)
IMAGES = RANDOM.integers(0, 256, (8, 12, 10, 3), np.uint8)
LABELS = RANDOM.integers(0, 5, 8)
HOT = np.eye(5, dtype=np.float32)[LABELS]
MAKERS = {"torch": torch.from_numpy, "jax": jnp.asarray, "tf": tf.constant}


def drawn(purpose, seed, alpha):
    random = np.random.default_rng([purpose, *seed])
    return np.float32(random.beta(alpha, alpha)), *random.random(2).astype(np.float32)


@pytest.fixture(params=MAKERS)
def make(request):
    return MAKERS[request.param]


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize("labels", [LABELS, HOT], ids=["ids", "hot"])
def test_mixup_is_torchvision_s(make, labels, dtype):
    """torchvision/transforms/v2/_augment.py, MixUp: `inpt.roll(1, 0).mul_(1 - lam).add_(inpt.mul(lam))`."""
    images, mixed_labels = mixup(make(IMAGES.astype(dtype)), make(labels), seed=(3, 1), alpha=0.4, classes=5)
    share, _, _ = drawn(3, (3, 1), 0.4)
    expected = IMAGES * share + np.roll(IMAGES, 1, 0) * (1 - share)
    assert np.asarray(images).dtype == dtype
    np.testing.assert_allclose(np.asarray(images), expected, atol=0.51 if dtype == np.uint8 else 1e-3)
    np.testing.assert_allclose(np.asarray(mixed_labels), HOT * share + np.roll(HOT, 1, 0) * (1 - share), atol=1e-6)


@pytest.mark.parametrize("seed", range(12))
def test_cutmix_is_torchvision_s(make, seed):
    """torchvision/transforms/v2/_augment.py, CutMix: the box, and the share by what of it lies in the image."""
    images, labels = cutmix(make(IMAGES), make(LABELS), seed=seed, classes=5)
    share, x, y = drawn(4, (seed,), 1.0)
    height, width = IMAGES.shape[1:3]
    r_x, r_y, r = int(x * width), int(y * height), 0.5 * np.sqrt(np.float32(1) - share)
    r_w_half, r_h_half = int(r * width), int(r * height)
    x1, y1, x2, y2 = (
        max(r_x - r_w_half, 0),
        max(r_y - r_h_half, 0),
        min(r_x + r_w_half, width),
        min(r_y + r_h_half, height),
    )
    expected = IMAGES.copy()
    expected[:, y1:y2, x1:x2] = np.roll(IMAGES, 1, 0)[:, y1:y2, x1:x2]
    left = 1 - (x2 - x1) * (y2 - y1) / (width * height)
    np.testing.assert_array_equal(np.asarray(images), expected)
    np.testing.assert_allclose(np.asarray(labels), HOT * left + np.roll(HOT, 1, 0) * (1 - left), atol=1e-6)


@pytest.mark.parametrize("mix", [mixup, cutmix])
def test_within_a_jitted_step_a_key_draws(mix):
    calls = []

    @jax.jit
    def step(key, images, labels):
        calls.append(1)
        return mix(images, labels, seed=key, alpha=0.5, classes=5)

    results = [step(jax.random.key(number), IMAGES, LABELS) for number in (0, 1, 0)]
    assert len(calls) == 1
    np.testing.assert_array_equal(results[0][0], results[2][0])
    assert (results[0][0] != results[1][0]).any()
    np.testing.assert_allclose(results[1][1].sum(1), 1, atol=1e-6)
    with pytest.raises(OptionError, match=r"would be constants of a compiled step.*key of jax"):
        jax.jit(lambda images: mix(images, LABELS, seed=1, classes=5))(IMAGES)


@pytest.mark.parametrize("mix", [mixup, cutmix])
def test_sharded_arrays_stay_sharded(mix):
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("data",))
    assert mesh.size == 8
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    images, labels = (jax.device_put(values, sharding) for values in (IMAGES, LABELS))
    mixed, hot = mix(images, labels, seed=5, classes=5)
    alone, alone_hot = mix(jnp.asarray(IMAGES), jnp.asarray(LABELS), seed=5, classes=5)
    assert mixed.sharding.is_equivalent_to(sharding, 4)
    np.testing.assert_array_equal(mixed, alone)
    np.testing.assert_array_equal(hot, alone_hot)


@pytest.mark.parametrize("mix", [mixup, cutmix])
def test_within_a_tf_function_a_tensor_draws(mix):
    @tf.function
    def step(seed, images, labels):
        return mix(images, labels, seed=seed, alpha=0.5, classes=5)

    results = [step(tf.constant([1, number]), tf.constant(IMAGES), tf.constant(LABELS)) for number in (0, 1, 0)]
    assert step.experimental_get_tracing_count() == 1
    np.testing.assert_array_equal(results[0][0], results[2][0])
    assert (results[0][0].numpy() != results[1][0].numpy()).any()
    np.testing.assert_allclose(results[1][1].numpy().sum(1), 1, atol=1e-5)
    with pytest.raises(OptionError, match=r"would be constants of a compiled step.*tensor of two ints"):
        tf.function(lambda images: mix(images, LABELS, seed=1, classes=5), autograph=False)(tf.constant(IMAGES))


@pytest.mark.parametrize(
    ("images", "labels", "options", "said"),
    [
        (IMAGES, LABELS, {}, "a tensor of torch or TensorFlow, or an array of JAX, not ndarray"),
        (torch.zeros(4, 4, 3), LABELS, {}, r"images have the shape \(batch"),
        (torch.zeros(8, 4, 4, 3), LABELS[:4], {}, r"labels have the shape \(8,\) or \(8, classes\), not \(4,\)"),
        (torch.zeros(8, 4, 4, 3), LABELS, {"classes": None}, "say how many classes there are"),
        (torch.zeros(8, 4, 4, 3), LABELS.astype(float), {}, "are ids, not float64"),
        (torch.zeros(8, 4, 4, 3), HOT, {"classes": 7}, "labels have 5 classes; classes=7"),
        (torch.zeros(8, 4, 4, 3), LABELS, {"alpha": 0}, "alpha is a number above 0"),
        (torch.zeros(8, 4, 4, 3), LABELS, {"seed": -1}, "seed is a number of at least 0"),
        (torch.zeros(8, 4, 4, 3), LABELS, {"seed": 0.5}, "seed is a number of at least 0, or several"),
        (torch.zeros(8, 3, 64, 64), LABELS, {}, "cutmix takes images of shape"),
    ],
)
def test_what_cannot_be_mixed_is_refused(images, labels, options, said):
    with pytest.raises(OptionError, match=said):
        cutmix(images, labels, **{"seed": 0, "classes": 5, **options})
