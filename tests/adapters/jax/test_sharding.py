"""Arrays of to_jax over shardings, on 8 CPU devices of one process; test_sharding_processes.py has two processes."""

import copy
import itertools
import subprocess
import sys

import numpy as np
import pytest

import tpufeed
from tests.frameworks import lazy
from tpufeed.dataset.order import World
from tpufeed.errors import LoaderError, OptionError, install_command

Placement = lazy("tpufeed.adapters.jax.sharding:Placement")

jax = lazy("jax")
jnp = lazy("jax.numpy")
AbstractMesh = lazy("jax.sharding:AbstractMesh")
AxisType = lazy("jax.sharding:AxisType")
Mesh = lazy("jax.sharding:Mesh")
NamedSharding = lazy("jax.sharding:NamedSharding")
SingleDeviceSharding = lazy("jax.sharding:SingleDeviceSharding")
P = lazy("jax.sharding:PartitionSpec")

COLUMNS = ["image", "label", "sample"]
BATCH = 16


def make(url, sharding=None, device_prefetch=2, **options):
    loader = tpufeed.Loader(url, **{"batch_size": BATCH, "columns": COLUMNS, "processes": 0} | options)
    return loader.to_jax(sharding, device_prefetch=device_prefetch)


def make_numpy(url, **options):
    return tpufeed.Loader(url, **{"batch_size": BATCH, "columns": COLUMNS, "processes": 0} | options)


def mesh(*shape, axes=("data", "model")):
    return Mesh(np.array(jax.devices()).reshape(shape), axes[: len(shape)])


def samples(batches):
    return [np.asarray(batch[2]).tolist() for batch in batches]


@pytest.fixture(scope="module")
def epochs(cache_url):
    """The samples of Loader's batches."""
    with make_numpy(cache_url) as loader:
        return [samples(loader) for _ in range(3)]


# Arrays


SHARDINGS = {
    "none": lambda: (None, P("data"), mesh(8)),
    "mesh": lambda: (mesh(4, 2), P("data"), mesh(4, 2)),
    "one axis": lambda: (NamedSharding(mesh(2, 4), P("data")), P("data"), mesh(2, 4)),
    "two axes": lambda: (NamedSharding(mesh(2, 4), P(("model", "data"))), P(("model", "data")), mesh(2, 4)),
    "pixels as well": lambda: (NamedSharding(mesh(4, 2), P("data", None, "model")), P("data"), mesh(4, 2)),
    "replicated": lambda: (NamedSharding(mesh(8), P()), P(), mesh(8)),
    "explicit": lambda: (jax.make_mesh((8,), ("x",), axis_types=(AxisType.Explicit,)), P("x"), None),
    "backwards": lambda: (Mesh(jax.devices()[::-1], ("x",)), P("x"), Mesh(jax.devices()[::-1], ("x",))),
    "three devices of eight": lambda: (Mesh(jax.devices()[2:5], ("x",)), P("x"), Mesh(jax.devices()[2:5], ("x",))),
}


@pytest.mark.first_cases(4)
@pytest.mark.parametrize("name", SHARDINGS)
def test_each_device_holds_its_own_rows(cache_url, name):
    given, of_labels, over = SHARDINGS[name]()
    over = over or given
    size = 6 if "three" in name else 8
    options = {"batch_size": size, "remainder": "pad", "seed": 5}
    with make(cache_url, sharding=given, **options) as loader, make_numpy(cache_url, **options) as host:
        seen = []
        for arrays, expected in itertools.zip_longest(loader, host):
            assert len(arrays) == len(expected) == 4
            for array, of_host in zip(arrays, expected, strict=True):
                assert isinstance(array, jax.Array)
                assert array.shape == of_host.shape
                for shard in array.addressable_shards:
                    np.testing.assert_array_equal(np.asarray(shard.data), of_host[shard.index])
            image, label, sample, mask = arrays
            assert [array.dtype for array in arrays] == [jnp.uint8, jnp.int32, jnp.int32, jnp.bool_]
            assert label.sharding == sample.sharding == mask.sharding == NamedSharding(over, of_labels)
            assert image.sharding == (given if isinstance(given, NamedSharding) else NamedSharding(over, of_labels))
            seen += np.asarray(sample)[np.asarray(mask)].tolist()
        assert sorted(seen) == list(range(70))
        assert loader.sharding == image.sharding


def test_one_device(cache_url, epochs):
    sharding = SingleDeviceSharding(jax.devices()[3])
    with make(cache_url, sharding=sharding) as loader:
        batches = list(loader)
    assert samples(batches) == epochs[0]
    assert {array.sharding for batch in batches for array in batch} == {sharding}


def step(weights, images, labels):
    """That of the README."""
    values = tpufeed.to_device_float(images, dtype=jnp.float32).mean((1, 2))
    picked = jnp.take_along_axis(jax.nn.log_softmax(values @ weights), labels[:, None], 1)
    return -picked.mean()


@pytest.mark.parametrize(("shape", "kind"), [((8,), "Auto"), ((4, 2), "Explicit")], ids=str)
def test_without_sharding_batches_lie_over_the_mesh_that_is_set(cache_url, epochs, shape, kind):
    """Whether it is set when the loader is made, when its length is asked for, or only for the first batch."""
    set_one = jax.make_mesh(shape, ("data", "model")[: len(shape)], axis_types=(AxisType[kind],) * len(shape))
    with jax.set_mesh(set_one), make(cache_url) as within:
        assert len(within) == len(epochs[0])
        assert within.sharding == NamedSharding(set_one, P("data"))
        weights = jax.device_put(np.zeros((3, 5), np.float32), NamedSharding(set_one, P()))
        images, labels, _ = next(iter(within))
        assert images.sharding == within.sharding
        if kind == "Explicit":  # the stricter one; a compilation takes seconds
            assert jax.jit(jax.grad(step))(weights, images, labels).shape == (3, 5)
    with make(cache_url) as loader:
        assert loader.sharding == NamedSharding(mesh(8), P("data"))
        assert len(loader) == len(epochs[0])
        with jax.set_mesh(set_one):
            batches = list(loader)
            assert samples(batches) == epochs[0]
            assert {batch[0].sharding for batch in batches} == {loader.sharding} == {NamedSharding(set_one, P("data"))}
        assert samples(loader) == epochs[1]
        assert loader.sharding.mesh == set_one  # of a step that was compiled for it
        assert samples(copy.copy(loader)) == epochs[2]
    given = jax.make_mesh((8,), ("rows",), axis_types=(AxisType[kind],))
    with jax.set_mesh(set_one), make(cache_url, sharding=given) as loader:
        assert next(iter(loader))[0].sharding == NamedSharding(given, P("rows"))


def test_a_mesh_set_later_that_makes_other_ranks_is_refused(cache_url, monkeypatch):
    """Of two processes: the length of an epoch was told by then."""
    monkeypatch.setattr(Placement, "world", lambda self: World(0, self.sharding.mesh.devices.shape[0] // 4))
    with make(cache_url, batch_size=8) as loader:
        assert len(loader) == 4  # of 16 rows
        with jax.set_mesh(jax.make_mesh((4, 2), ("data", "model"))), pytest.raises(OptionError, match="sharding="):
            next(iter(loader))


def test_integers_are_never_cut_without_a_word(cache_url):
    with jax.enable_x64(True), make(cache_url) as loader:
        assert {batch[2].dtype.name for batch in loader} == {"int64"}  # of the thread's, too
        assert Placement(None).put("sample", np.full(8, 2**31)).dtype == jnp.int64
    placement = Placement(None)
    assert placement.put("sample", np.full(8, 2**31 - 1)).tolist() == [2**31 - 1] * 8
    with pytest.raises(LoaderError, match=r"'sample'.*-2147483649"):
        placement.put("sample", np.array([0] * 7 + [-(2**31) - 1]))


# What cannot be


@pytest.mark.parametrize(
    ("sharding", "message"),
    [
        (lambda: P("data"), r"PartitionSpec\('data'\)"),
        (lambda: "data", "NamedSharding.* not str"),
        (lambda: AbstractMesh((2,), ("data",)), "AbstractMesh"),
        (lambda: NamedSharding(AbstractMesh((2,), ("data",)), P("data")), "Mesh"),
        (lambda: Mesh(np.array(jax.devices()[0]), ()), "axis"),
    ],
)
def test_what_is_no_sharding(cache_url, sharding, message):
    with pytest.raises(OptionError, match=message):
        make(cache_url, sharding=sharding())


@pytest.mark.parametrize(
    ("batch_size", "sharding", "message"),
    [
        (12, lambda: None, "batch of 12 .*8 or 16"),
        (3, lambda: None, "batch of 3 .* 8$"),
        (10, lambda: mesh(4, 2), "batch of 10 .*8 or 12"),
        (8, lambda: NamedSharding(mesh(8), P("data", None, None, None)), None),
        (
            8,
            lambda: NamedSharding(mesh(4, 2), P("data", None, None, "model")),
            r"'image'.*\(64, 64, 3\)",
        ),
    ],
)
def test_a_sharding_that_does_not_divide_the_batch(cache_url, batch_size, sharding, message):
    with make(cache_url, batch_size=batch_size, sharding=sharding()) as loader:
        if message is None:
            assert len(list(loader)) == 8
            return
        with pytest.raises(OptionError, match=message):
            next(iter(loader))


def test_without_jax():
    program = """
import sys
sys.modules["jax"] = None
from tpufeed.errors import MissingExtraError
for name in ("loader", "sharding"):
    try:
        __import__("tpufeed.adapters.jax." + name)
    except MissingExtraError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == f"JAX is not installed: {install_command('jax')}\n" * 2
