"""to_device_float in JAX's own ways: arrays over 8 CPU devices, jitted steps, donated images."""

import numpy as np
import pytest

from tests.frameworks import lazy
from tpufeed.adapters.pixels import to_device_float
from tpufeed.errors import OptionError

jax = lazy("jax")
jnp = lazy("jax.numpy")
AxisType = lazy("jax.sharding:AxisType")
Mesh = lazy("jax.sharding:Mesh")
NamedSharding = lazy("jax.sharding:NamedSharding")
P = lazy("jax.sharding:PartitionSpec")


@pytest.fixture(scope="module")
def images():
    return np.random.default_rng(0).integers(0, 256, (16, 5, 7, 3), np.uint8)


@pytest.mark.first_cases(2)
@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize(("axis_type", "layout"), [("Auto", "NHWC"), ("Explicit", "NCHW")])
def test_split_arrays_stay_split(images, layout, jit, axis_type):
    def convert(images):
        return to_device_float(images, layout=layout)

    rows = NamedSharding(jax.make_mesh((8,), ("data",), axis_types=(AxisType[axis_type],)), P("data"))
    made = (jax.jit(convert) if jit else convert)(jax.device_put(images, rows))
    assert made.sharding.is_equivalent_to(rows, 4)
    assert [shard.index[0] for shard in made.addressable_shards] == [slice(n, n + 2) for n in range(0, 16, 2)]
    whole = to_device_float(jnp.asarray(images), layout=layout)
    # A fused step rounds once; the plain calls round twice.
    np.testing.assert_allclose(made.astype(jnp.float32), whole.astype(jnp.float32), atol=2**-6)


def test_a_jitted_step_refuses_what_a_plain_call_refuses(images):
    with pytest.raises(OptionError, match="uint8 of 7"):
        jax.jit(to_device_float)(jnp.asarray(images.transpose(0, 3, 1, 2)))


def test_donated_images_are_taken_if_a_result_fits_their_memory(images):
    """docs/jax.md says so: uint8 for uint8; floats of other sizes leave them as they are."""
    rows = NamedSharding(Mesh(jax.devices(), ("data",)), P("data"))
    split = jax.device_put(images, rows)
    flipped = jax.jit(lambda images: images[:, :, ::-1], donate_argnums=0)(split)
    np.testing.assert_array_equal(flipped, images[:, :, ::-1])
    assert split.is_deleted()
    split = jax.device_put(images, rows)
    mean = jax.jit(lambda images: to_device_float(images).mean(), donate_argnums=0)(split)
    assert mean.shape == ()
    assert not split.is_deleted()
