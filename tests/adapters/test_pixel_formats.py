"""Batches of 13 bands of uint16 in each framework: those of the plain loader."""

import numpy as np
import pytest

import tpufeed
from tpufeed.errors import OptionError
from tpufeed.images import CenterCrop, ColorJitter, HorizontalFlip, MixUp, RandomResizedCrop

OPS = [RandomResizedCrop(24), HorizontalFlip()]


def make(folder):
    (folder / "raw/a").mkdir(parents=True)
    for number in range(16):
        bands = np.random.default_rng(number).integers(0, 9000, (30, 31, 13)).astype(np.uint16)
        np.save(folder / f"raw/a/{number}.npy", bands)
    images = tpufeed.Images(pixels="keep")
    tpufeed.shard(folder / "raw", folder / "set", images=images, workers=1, progress=False)


@pytest.fixture
def url(once):
    return once(make) / "set"


@pytest.fixture
def loader(url):
    return lambda: tpufeed.Loader(url, "train", batch_size=8, ops=OPS, processes=0)


@pytest.mark.parametrize(
    ("name", "feed"),
    [
        pytest.param("torch", lambda loader: loader.to_torch(), marks=pytest.mark.uses("torch")),
        pytest.param("torch", lambda loader: loader.to_device("cpu"), marks=pytest.mark.uses("torch")),
        pytest.param("jax", lambda loader: loader.to_jax(), marks=pytest.mark.uses("jax")),
        pytest.param("tensorflow", lambda loader: loader.to_tf(), marks=pytest.mark.uses("tensorflow")),
    ],
)
def test_batches_are_those_of_the_loader(name, feed, loader):
    here = next(iter(loader()))[0]
    found = next(iter(feed(loader())))[0]
    found = np.asarray(found.cpu() if name.startswith("torch") else found)
    assert (found.dtype, found.shape) == (np.uint16, (8, 24, 24, 13))
    assert np.array_equal(found, here)


@pytest.mark.parametrize(
    ("name", "feed"),
    [
        pytest.param("torch", lambda loader: loader.to_device("cpu"), marks=pytest.mark.uses("torch")),
        pytest.param("jax", lambda loader: loader.to_jax(), marks=pytest.mark.uses("jax")),
        pytest.param("tensorflow", lambda loader: loader.to_tf(), marks=pytest.mark.uses("tensorflow")),
    ],
)
def test_device_ops_give_the_batches_of_the_host(name, feed, url):
    def loader():
        ops = {"ops": [CenterCrop(28)], "device_ops": [*OPS, ColorJitter(0.4, 0.4), MixUp()]}
        return tpufeed.Loader(url, "train", batch_size=16, processes=0, columns=["image", "label"], **ops)

    here, labels = next(iter(loader()))
    found = next(iter(feed(loader())))
    images = np.asarray(found[0].cpu() if name == "torch" else found[0])
    assert images.dtype == np.uint16
    assert np.abs(images.astype(int) - here).max() <= 4  # of 9000 levels, by four ops
    assert np.allclose(np.asarray(found[1]), labels, atol=1e-6)


@pytest.mark.uses("tensorflow")
def test_a_compiled_step_of_tensorflow_is_refused(url):
    loader = tpufeed.Loader(url, "train", batch_size=8, ops=[CenterCrop(28)], device_ops=OPS, processes=0)
    with pytest.raises(OptionError, match="uint16 of 13 channels"):
        loader.to_tf(finish=False)


@pytest.mark.uses("tensorflow")
def test_tensorflow_alone_is_refused(loader):
    with pytest.raises(OptionError, match="direct=True"):
        loader().to_tf(direct=True)
