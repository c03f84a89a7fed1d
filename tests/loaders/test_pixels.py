"""to_device_float, mixup and cutmix: torchvision's definitions, the same in every framework, and what is refused."""

from functools import partial

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
import torch
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from tpufeed import to_device_float
from tpufeed.errors import OptionError
from tpufeed.images import cutmix, mixup
from tpufeed.loaders.pixels import IMAGENET_MEAN, IMAGENET_STD

RANDOM = np.random.default_rng(0)


IMAGES = RANDOM.integers(0, 256, (8, 12, 10, 3), np.uint8)


LABELS = RANDOM.integers(0, 5, 8)


HOT = np.eye(5, dtype=np.float32)[LABELS]


MAKERS = {"torch": torch.from_numpy, "jax": jnp.asarray, "tf": tf.constant}


def drawn(purpose, seed, alpha):
    random = np.random.default_rng([purpose, *seed])
    return random.beta(alpha, alpha), *random.random(2)


@pytest.fixture(params=MAKERS)
def make(request):
    return MAKERS[request.param]


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_floats_are_those_of_the_formula(make, layout):
    framework = {"torch": torch, "jax": jnp, "tf": tf}[next(name for name in MAKERS if MAKERS[name] is make)]
    axes = (0, 1, 2, 3) if layout == "NHWC" else (0, 3, 1, 2)

    def floats(images, *given, **options):
        found = to_device_float(make(images), *given, layout=layout, **options)
        return np.asarray(found.float() if framework is torch else jnp.asarray(found), np.float32)

    whole = floats(IMAGES, dtype=framework.float32)
    np.testing.assert_allclose(whole, ((IMAGES / 255 - IMAGENET_MEAN) / IMAGENET_STD).transpose(axes), atol=1e-6)
    np.testing.assert_array_equal(floats(IMAGES), whole.astype(ml_dtypes.bfloat16).astype(np.float32))
    grey = floats(IMAGES[..., :1], (0.5,), (0.25,), dtype=framework.float16)
    np.testing.assert_allclose(grey, ((IMAGES[..., :1] / 255 - 0.5) / 0.25).transpose(axes), atol=2e-3)


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


@pytest.mark.parametrize("seed", [*range(12), 49])  # for 49, 1 - share is 1 in float32, and below it in float64
def test_cutmix_is_torchvision_s(make, seed):
    """torchvision/transforms/v2/_augment.py, CutMix: the box, and the share by what of it lies in the image."""
    images, labels = cutmix(make(IMAGES), make(LABELS), seed=seed, alpha=0.2, classes=5)
    share, x, y = drawn(4, (seed,), 0.2)
    height, width = IMAGES.shape[1:3]
    r_x, r_y, r = int(x * width), int(y * height), 0.5 * np.sqrt(1 - share)
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
    with pytest.raises(OptionError, match="key of jax"):
        jax.jit(lambda images, labels: mix(images, labels, seed=1, classes=5))(IMAGES, LABELS)
    with pytest.raises(OptionError, match=r"\(7, step\)"):
        jax.jit(lambda step, images, labels: mix(images, labels, seed=(7, step), classes=5))(1, IMAGES, LABELS)
    with pytest.raises(OptionError, match=r"int32 of \(\)"):
        step(3, IMAGES, LABELS)


@pytest.mark.parametrize(
    ("axis_type", "spec"), [(AxisType.Auto, P("data")), (AxisType.Explicit, P("data", None, "model"))], ids=str
)
@pytest.mark.parametrize("mix", [mixup, cutmix])
def test_sharded_arrays_stay_sharded(mix, axis_type, spec):
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(axis_type,) * 2)
    sharding, rows = NamedSharding(mesh, spec), NamedSharding(mesh, P("data"))
    images, labels = jax.device_put(IMAGES, sharding), jax.device_put(LABELS, rows)
    mixed, hot = mix(images, labels, seed=5, classes=5)
    alone, alone_hot = mix(jnp.asarray(IMAGES), jnp.asarray(LABELS), seed=5, classes=5)
    np.testing.assert_array_equal(mixed, alone)
    np.testing.assert_array_equal(hot, alone_hot)
    within, within_hot = jax.jit(partial(mix, classes=5))(images, labels, seed=jax.random.key(1))
    for found in (mixed, within):
        assert found.sharding.is_equivalent_to(sharding, 4)
    for found in (hot, within_hot):
        assert found.sharding.is_equivalent_to(rows, 2)


@pytest.mark.parametrize("mix", [mixup, cutmix])
def test_jax_compiles_for_the_first_step_alone(mix):
    images, labels = jnp.asarray(IMAGES[:7]), jnp.asarray(LABELS[:7])
    compiled = []

    def listen(event, _seconds, **_options):
        if event == "/jax/core/compile/backend_compile_duration":
            compiled[-1] += 1

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        for step in range(4):
            compiled.append(0)
            mix(images, labels, seed=(7, step), classes=5)
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert compiled[0] > 0
    assert compiled[1:] == [0, 0, 0]


@pytest.mark.parametrize("alpha", [0.01, 0.2, 4.0])
def test_within_a_step_shares_are_of_the_same_distribution(alpha):
    """By the largest distance of the cumulative distributions, of 1500 draws each; 0.06 is exceeded once in 100."""
    images, labels, count = np.zeros((2, 1, 1, 1), np.uint8), np.array([0, 1]), 1500

    def share_of(seed):
        return mixup(tf.constant(images), tf.constant(labels), seed=seed, alpha=alpha, classes=2)[1][0, 0]

    @tf.function(jit_compile=True)
    def shares_of(seeds):
        return tf.map_fn(share_of, seeds, fn_output_signature=tf.float32)

    def share_by(key):
        return mixup(jnp.asarray(images), jnp.asarray(labels), seed=key, alpha=alpha, classes=2)[1][0, 0]

    expected = np.sort(np.random.default_rng(1).beta(alpha, alpha, count))
    places = np.concatenate([np.linspace(0, 1, 101)[1:-1], [1e-6, 1e-4, 1e-3]])
    for shares in (
        shares_of(tf.constant([[3, number] for number in range(count)])).numpy(),
        np.asarray(jax.vmap(share_by)(jax.random.split(jax.random.key(3), count))),
    ):
        distance = np.searchsorted(np.sort(shares), places) - np.searchsorted(expected, places)
        assert np.abs(distance).max() / count < 0.06


def test_a_box_changes_no_number(make):
    """Of float64, and of pixels next to infinite ones."""
    images = RANDOM.random((4, 9, 8, 1)).astype(np.float64)
    images[0] = np.inf
    with jax.enable_x64(True):
        mixed = np.asarray(cutmix(make(images), make(LABELS[:4]), seed=1, classes=5)[0])
    assert mixed.dtype == np.float64
    own, other = mixed == images, mixed == np.roll(images, 1, 0)
    assert (own | other).all()
    assert own.any()
    assert other.any()


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.int64])
@pytest.mark.parametrize("mix", [mixup, cutmix])
def test_ids_of_any_integer_type_and_of_no_class(make, dtype, mix):
    ids = np.array([1, 9, 0, 4]).astype(dtype)
    _, labels = mix(make(IMAGES[:4]), make(ids), seed=2, classes=5)
    _, expected = mix(make(IMAGES[:4]), make((ids[:, None] == np.arange(5)).astype(np.float32)), seed=2)
    np.testing.assert_array_equal(np.asarray(labels), np.asarray(expected))


@pytest.mark.parametrize("mix", [mixup, cutmix])
def test_a_tf_function_need_not_know_the_batch(mix):
    signature = [tf.TensorSpec((2,), tf.int32), tf.TensorSpec((None, 12, 10, 3), tf.uint8), tf.TensorSpec((None,))]
    signature[2] = tf.TensorSpec((None,), tf.int64)
    step = tf.function(lambda *given: mix(*given[1:], seed=given[0], classes=5), input_signature=signature)
    mixed, labels = step(tf.constant([1, 2]), tf.constant(IMAGES), tf.constant(LABELS))
    assert (mixed.shape, labels.shape) == (IMAGES.shape, HOT.shape)
    for shape, said in (((None, None, None, 3), "cutmix"), (None, "shape")):
        if mix is mixup and shape:
            continue
        signature[1] = tf.TensorSpec(shape, tf.uint8)
        with pytest.raises(OptionError, match=said):
            tf.function(
                lambda *given: mix(*given[1:], seed=given[0], classes=5), input_signature=signature, autograph=False
            ).get_concrete_function()


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("mix", [mixup, cutmix])
def test_within_a_tf_function_a_tensor_draws(mix, jit):
    """Compiled by XLA, too, as TPUs need it."""

    @tf.function(jit_compile=jit)
    def step(seed, images, labels):
        return mix(images, labels, seed=seed, alpha=0.5, classes=5)

    results = [step(tf.constant([1, number]), tf.constant(IMAGES), tf.constant(LABELS)) for number in (0, 1, 0)]
    assert step.experimental_get_tracing_count() == 1
    np.testing.assert_array_equal(results[0][0], results[2][0])
    assert (results[0][0].numpy() != results[1][0].numpy()).any()
    np.testing.assert_allclose(results[1][1].numpy().sum(1), 1, atol=1e-5)
    with pytest.raises(OptionError, match="tensor of two ints"):
        tf.function(lambda images: mix(images, tf.constant(LABELS), seed=1, classes=5), autograph=False)(
            tf.constant(IMAGES)
        )
    with pytest.raises(OptionError, match=r"int32 of shape \(\)"):
        mix(tf.constant(IMAGES), tf.constant(LABELS), seed=tf.constant(3), classes=5)


@pytest.mark.parametrize(
    ("images", "labels", "options", "said"),
    [
        (IMAGES, LABELS, {}, "ndarray"),
        (torch.zeros(8, 4, 4, 3), jnp.asarray(LABELS), {}, "torch and jax"),
        (
            jnp.asarray(IMAGES),
            LABELS,
            {},
            "labels.*ndarray",
        ),
        (torch.zeros(8, 4, 4, 3, dtype=torch.int32), LABELS, {}, "torch.int32"),
        (torch.zeros(4, 4, 3), LABELS, {}, "images.*shape"),
        (torch.zeros(8, 4, 4, 3), LABELS[:4], {}, r"labels.*\(4,\)"),
        (torch.zeros(8, 4, 4, 3), LABELS, {"classes": None}, "classes"),
        (torch.zeros(8, 4, 4, 3), LABELS.astype(float), {}, "torch.float64"),
        (torch.zeros(8, 4, 4, 3), HOT, {"classes": 7}, "classes=7"),
        (torch.zeros(8, 4, 4, 3), LABELS, {"alpha": 0}, "alpha"),
        (torch.zeros(8, 4, 4, 3), LABELS, {"seed": -1}, "seed"),
        (torch.zeros(8, 4, 4, 3), LABELS, {"seed": 0.5}, "seed"),
        (torch.zeros(8, 3, 64, 64), LABELS, {}, "cutmix"),
    ],
)
def test_what_cannot_be_mixed_is_refused(images, labels, options, said):
    labels = torch.from_numpy(labels) if isinstance(images, torch.Tensor) and isinstance(labels, np.ndarray) else labels
    with pytest.raises(OptionError, match=said):
        cutmix(images, labels, **{"seed": 0, "classes": 5, **options})


ZEROS = jnp.zeros((2, 4, 4, 3), jnp.uint8)


@pytest.mark.parametrize(
    ("images", "options", "message"),
    [
        (ZEROS, {"mean": 0.5}, r"mean and std.*0\.5"),
        (ZEROS, {"std": (1, 0, 1)}, r"\(1, 0, 1\)"),
        (ZEROS, {"mean": (0.5,)}, r"mean \(1\) and std \(3\)"),
        (ZEROS, {"dtype": np.int32}, "dtype.*int32"),
        (ZEROS, {"layout": "CHW"}, "'CHW'"),
        (
            np.zeros((2, 4, 4, 3), np.uint8),
            {},
            "ndarray",
        ),
        (ZEROS[0], {}, r"\(4, 4, 3\)"),
        (ZEROS.astype(jnp.float32), {}, "float32 of 3"),
    ],
)
def test_what_is_no_batch_of_images_or_does_not_fit_it(images, options, message):
    with pytest.raises(OptionError, match=message):
        to_device_float(images, **options)
