"""Batches of 13 bands, uint16 and float32, in each framework: those of the plain loader, also by device ops."""

import sys

import numpy as np
import pytest

import tpufeed
from tests.frameworks import lazy
from tpufeed.errors import OptionError
from tpufeed.images import CenterCrop, ColorJitter, CutMix, HorizontalFlip, MixUp, RandomResizedCrop

tf = lazy("tensorflow")
OPS = [RandomResizedCrop(24), HorizontalFlip()]
FEEDS = {
    "torch": lambda loader: loader.to_torch(),
    "torch device": lambda loader: loader.to_device("cpu"),
    "jax": lambda loader: loader.to_jax(),
    "torch_xla": lambda loader: loader.to_xla(),
    "tensorflow": lambda loader: loader.to_tf(),
    "tensorflow step": lambda loader: loader.to_tf(finish=False).map(tf.function(loader.finish, jit_compile=True)),
}
EACH = [pytest.param(name, marks=pytest.mark.uses(name.split()[0])) for name in FEEDS if name != "torch_xla"]
MOST = {"uint16": 65535, "float32": 1.0}


def make(folder):
    for dtype, most in MOST.items():
        (folder / f"{dtype}-raw/a").mkdir(parents=True)
        for number in range(16):
            bands = (np.random.default_rng(number).random((30, 31, 13)) * most).astype(dtype)
            np.save(folder / f"{dtype}-raw/a/{number}.npy", bands)
        images = tpufeed.Images(pixels="keep")
        tpufeed.shard(folder / f"{dtype}-raw", folder / dtype, images=images, workers=1, progress=False)


def loader(folder, dtype, ops=OPS, **options):
    return tpufeed.Loader(folder / dtype, "train", batch_size=16, ops=ops, processes=0, **options)


def first(name, loader):
    images, labels = next(iter(FEEDS[name](loader)))
    return [np.asarray(each.cpu() if name.startswith("torch") else each) for each in (images, labels)]


def check_batches(name, folder, dtype):
    found, here = first(name, loader(folder, dtype))[0], next(iter(loader(folder, dtype)))[0]
    assert (found.dtype, found.shape) == (dtype, (16, 24, 24, 13))
    assert np.array_equal(found, here)


def check_device_ops(name, folder, dtype):
    """Differences of the four ops add up to 4 of 65,536 levels."""
    for last in (MixUp(), CutMix()):
        ops = {"ops": [CenterCrop(28)], "device_ops": [*OPS, ColorJitter(0.4, 0.4), last]}
        images, labels = next(iter(loader(folder, dtype, **ops)))
        found, mixed = first(name, loader(folder, dtype, **ops))
        assert found.dtype == dtype
        assert np.abs(found.astype(float) - images).max() <= 4 * MOST[dtype] / 65535
        assert np.allclose(mixed, labels, atol=1e-6)
    cut = {"ops": [CenterCrop(28)], "device_ops": [CenterCrop(20)]}
    assert np.array_equal(first(name, loader(folder, dtype, **cut))[0], next(iter(loader(folder, dtype, **cut)))[0])


@pytest.mark.parametrize("dtype", MOST)
@pytest.mark.parametrize("name", [each for each in EACH if "step" not in each.values[0]])
def test_batches_are_those_of_the_loader(name, once, dtype):
    check_batches(name, once(make), dtype)


@pytest.mark.parametrize("dtype", MOST)
@pytest.mark.parametrize("name", EACH)
def test_device_ops_give_the_batches_of_the_host(name, once, dtype):
    check_device_ops(name, once(make), dtype)


@pytest.mark.uses("torch_xla")
@pytest.mark.all
def test_torch_xla(once, run_forks, tmp_path):
    """In a process of its own, as it cannot be imported after TensorFlow."""
    run = {"command": [__file__, str(once(make))], "env": {"CPU_NUM_DEVICES": "1"}}
    ((status, said, why),) = run_forks("torch_xla", [run], tmp_path, PJRT_DEVICE="CPU")
    assert status == 0, why
    assert said == "[]\n"  # no op ran on the host


@pytest.mark.uses("tensorflow")
def test_tensorflow_alone_is_refused(once):
    with pytest.raises(OptionError, match="direct=True"):
        loader(once(make), "uint16").to_tf(direct=True)


def main(folder):
    from pathlib import Path

    from torch_xla.debug import metrics

    for dtype in MOST:
        check_batches("torch_xla", Path(folder), dtype)
        check_device_ops("torch_xla", Path(folder), dtype)
    print([name for name in metrics.counter_names() if "aten::" in name])


if __name__ == "__main__":
    main(*sys.argv[1:])
