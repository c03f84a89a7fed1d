"""to_device_float for JAX, on its 8 CPU devices, against the formula and against torch's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from tpufeed.errors import OptionError
from tpufeed.loaders.pixels import IMAGENET_MEAN, IMAGENET_STD, to_device_float


@pytest.fixture(scope="module")
def images():
    return np.random.default_rng(0).integers(0, 256, (16, 5, 7, 3), np.uint8)


@pytest.fixture(scope="module")
def rows():
    return NamedSharding(Mesh(jax.devices(), ("data",)), P("data"))


def test_the_formula(images):
    made = to_device_float(jnp.asarray(images), dtype=jnp.float32)
    assert (made.shape, made.dtype) == ((16, 5, 7, 3), jnp.float32)
    np.testing.assert_allclose(made, (images / 255 - IMAGENET_MEAN) / IMAGENET_STD, atol=1e-6)
    halves = to_device_float(jnp.asarray(images))
    assert halves.dtype == jnp.bfloat16
    np.testing.assert_array_equal(halves, made.astype(jnp.bfloat16))
    grey = to_device_float(jnp.asarray(images[..., :1]), (0.5,), (0.25,), dtype=jnp.float16)
    np.testing.assert_allclose(grey, ((images[..., :1] / 255) - 0.5) / 0.25, atol=2e-3)


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_it_gives_what_torch_s_gives(images, layout):
    theirs = to_device_float(torch.from_numpy(images), layout=layout)
    ours = to_device_float(jnp.asarray(images), layout=layout)
    assert ours.shape == tuple(theirs.shape)
    np.testing.assert_allclose(ours.astype(jnp.float32), theirs.float().numpy(), atol=2**-6)


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit])
def test_split_arrays_stay_split(images, layout, jit, axis_type):
    def convert(images):
        return to_device_float(images, layout=layout)

    rows = NamedSharding(jax.make_mesh((8,), ("data",), axis_types=(axis_type,)), P("data"))
    made = (jax.jit(convert) if jit else convert)(jax.device_put(images, rows))
    assert made.sharding.is_equivalent_to(rows, 4)
    assert [shard.index[0] for shard in made.addressable_shards] == [slice(n, n + 2) for n in range(0, 16, 2)]
    whole = to_device_float(jnp.asarray(images), layout=layout)
    # Fused it rounds once where the plain calls round twice.
    np.testing.assert_allclose(made.astype(jnp.float32), whole.astype(jnp.float32), atol=2**-6)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda images: to_device_float(images[0]), r"\(batch, height, width, channels\), not \(5, 7, 3\)"),
        (lambda images: to_device_float(images.transpose(0, 3, 1, 2)), "uint8 with as many channels .* uint8 of 7"),
        (lambda images: to_device_float(images.astype(jnp.float32)), "not float32 of 3"),
        (lambda images: to_device_float(images, (0.5,), (0.5,)), r"mean \(1\) and std \(1\)"),
        (lambda images: to_device_float(images, layout="HWC"), "layout is 'NCHW' or 'NHWC', not 'HWC'"),
    ],
)
def test_what_cannot_be_meant_is_refused_within_a_step_too(images, call, message):
    for made in (call, jax.jit(call)):
        with pytest.raises(OptionError, match=message):
            made(jnp.asarray(images))


def test_donated_images_are_taken_where_a_result_fits_their_memory(images, rows):
    """As docs/jax.md says: uint8 for uint8; floats of other sizes leave them as they are."""
    split = jax.device_put(images, rows)
    flipped = jax.jit(lambda images: images[:, :, ::-1], donate_argnums=0)(split)
    np.testing.assert_array_equal(flipped, images[:, :, ::-1])
    assert split.is_deleted()
    split = jax.device_put(images, rows)
    mean = jax.jit(lambda images: to_device_float(images).mean(), donate_argnums=0)(split)
    assert mean.shape == ()
    assert not split.is_deleted()
