"""Batches of 13 bands of uint16 in each framework: those of the plain loader."""

import numpy as np
import pytest

import tpufeed
from tpufeed.errors import OptionError
from tpufeed.images import HorizontalFlip, RandomResizedCrop

OPS = [RandomResizedCrop(24), HorizontalFlip()]


def make(folder):
    (folder / "raw/a").mkdir(parents=True)
    for number in range(8):
        bands = np.random.default_rng(number).integers(0, 9000, (30, 31, 13)).astype(np.uint16)
        np.save(folder / f"raw/a/{number}.npy", bands)
    images = tpufeed.Images(pixels="keep")
    tpufeed.shard(folder / "raw", folder / "set", images=images, workers=1, progress=False)


@pytest.fixture
def loader(once):
    url = once(make) / "set"
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


@pytest.mark.uses("tensorflow")
def test_tensorflow_alone_is_refused(loader):
    with pytest.raises(OptionError, match="direct=True"):
        loader().to_tf(direct=True)
