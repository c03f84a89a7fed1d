"""to_device_float: what it refuses, whatever the framework. What it gives is tested with each of them."""

import jax.numpy as jnp
import numpy as np
import pytest

from tpufeed import to_device_float
from tpufeed.errors import OptionError

IMAGES = jnp.zeros((2, 4, 4, 3), jnp.uint8)


@pytest.mark.parametrize(
    ("images", "options", "message"),
    [
        (IMAGES, {"mean": 0.5}, r"mean and std have a number for each channel, those of std above 0; not 0\.5, "),
        (IMAGES, {"std": (1, 0, 1)}, r"those of std above 0; not .*, \(1, 0, 1\)"),
        (IMAGES, {"mean": (0.5,)}, r"uint8 with as many channels as mean \(1\) and std \(3\) have values"),
        (IMAGES, {"dtype": np.int32}, "dtype is a float's, like the framework's bfloat16, not .*int32"),
        (IMAGES, {"layout": "CHW"}, "layout is 'NCHW' or 'NHWC', not 'CHW'"),
        (
            np.zeros((2, 4, 4, 3), np.uint8),
            {},
            "a tensor of torch or TensorFlow, or an array of JAX, not ndarray of numpy",
        ),
        (IMAGES[0], {}, r"images have the shape \(batch, height, width, channels\), not \(4, 4, 3\)"),
        (IMAGES.astype(jnp.float32), {}, "images are uint8 with as many channels .*, not float32 of 3"),
    ],
)
def test_what_is_no_batch_of_images_or_does_not_fit_it(images, options, message):
    with pytest.raises(OptionError, match=message):
        to_device_float(images, **options)
