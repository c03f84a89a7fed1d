"""to_device_float: the formula in every framework, and what is refused."""

import numpy as np
import pytest

from tests.frameworks import lazy
from tpufeed import to_device_float
from tpufeed.adapters.pixels import IMAGENET_MEAN, IMAGENET_STD
from tpufeed.errors import OptionError

ml_dtypes = lazy("ml_dtypes")

IMAGES = np.random.default_rng(0).integers(0, 256, (8, 12, 10, 3), np.uint8)
FRAMEWORKS = {  # of dtypes, and what makes an array
    "torch": (lazy("torch"), lazy("torch:from_numpy")),
    "jax": (lazy("jax.numpy"), lazy("jax.numpy:asarray")),
    "tensorflow": (lazy("tensorflow"), lazy("tensorflow:constant")),
}


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.uses(name)) for name in FRAMEWORKS])
def test_floats_are_those_of_the_formula(name, layout):
    framework, make = FRAMEWORKS[name]
    axes = (0, 1, 2, 3) if layout == "NHWC" else (0, 3, 1, 2)

    def floats(images, *given, **options):
        found = to_device_float(make(images), *given, layout=layout, **options)
        return np.asarray(found.float() if name == "torch" else found, np.float32)

    whole = floats(IMAGES, dtype=framework.float32)
    np.testing.assert_allclose(whole, ((IMAGES / 255 - IMAGENET_MEAN) / IMAGENET_STD).transpose(axes), atol=1e-6)
    np.testing.assert_array_equal(floats(IMAGES), whole.astype(ml_dtypes.bfloat16).astype(np.float32))
    grey = floats(IMAGES[..., :1], (0.5,), (0.25,), dtype=framework.float16)
    np.testing.assert_allclose(grey, ((IMAGES[..., :1] / 255 - 0.5) / 0.25).transpose(axes), atol=2e-3)
    deep = np.concatenate([IMAGES.astype(np.uint16) * 257] * 3, 3)
    mean, std = np.arange(9) * 5000.0 + 1, np.arange(9) + 90.0
    found = floats(deep, mean.tolist(), std.tolist(), dtype=framework.float32)
    np.testing.assert_allclose(found, ((deep - mean) / std).transpose(axes), rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (None, {"mean": 0.5}, r"mean and std.*0\.5"),
        (None, {"std": (1, 0, 1)}, r"\(1, 0, 1\)"),
        (None, {"mean": (0.5,)}, r"mean \(1\) and std \(3\)"),
        (None, {"dtype": np.int32}, "dtype.*int32"),
        (None, {"layout": "CHW"}, "'CHW'"),
        (np.asarray, {}, "ndarray"),
        (lambda images: images[0], {}, r"\(12, 10, 3\)"),
        (lambda images: images.astype(np.float32), {}, "float32 have no usual"),
        (lambda images: images.astype(np.int32), {}, "int32 of 3"),
    ],
)
@pytest.mark.uses("jax")
def test_what_is_no_batch_of_images_or_does_not_fit_it(change, options, message):
    images = FRAMEWORKS["jax"][1](IMAGES)
    with pytest.raises(OptionError, match=message):
        to_device_float(change(images) if change else images, **options)
