"""Batches of clips in each framework: those of the plain loader. As floats their channels are behind the frames."""

import sys

import numpy as np
import pytest

import tpufeed
from tests.clips import make_clips
from tests.frameworks import lazy
from tpufeed.errors import OptionError
from tpufeed.images import CenterCrop, CutMix, HorizontalFlip, MixUp, RandomResizedCrop, Resize

jax, torch, tf = lazy("jax"), lazy("torch"), lazy("tensorflow")
OPS = [RandomResizedCrop(24), HorizontalFlip()]
FEEDS = {
    "torch": lambda loader: loader.to_torch(),
    "torch device": lambda loader: loader.to_device("cpu"),
    "jax": lambda loader: loader.to_jax(jax.make_mesh((4,), ("data",), devices=jax.devices()[:4])),  # pairs on each
    "torch_xla": lambda loader: loader.to_xla(),
    "tensorflow": lambda loader: loader.to_tf(),
    "tensorflow step": lambda loader: loader.to_tf(finish=False).map(tf.function(loader.finish, jit_compile=True)),
    "keras": lambda loader: loader.to_keras(),
}
EACH = [pytest.param(name, marks=pytest.mark.uses(name.split()[0])) for name in FEEDS if name != "torch_xla"]


def loader_of(url):
    return lambda **options: tpufeed.Loader(url, "train", batch_size=8, processes=0, **options)


@pytest.fixture
def loader(once):
    return loader_of(once(make_clips) / "set")


def first(name, loader):
    images = next(iter(FEEDS[name](loader)))[0]
    return np.asarray(images.cpu() if name.startswith("torch") else images)


def check_batches(name, loader):
    found = first(name, loader(ops=OPS))
    assert (found.dtype, found.shape) == (np.uint8, (8, 4, 24, 24, 3))
    assert np.array_equal(found, next(iter(loader(ops=OPS)))[0])


def check_device_ops(name, loader):
    for mixing in ([], [MixUp()], [CutMix()]):
        ops = {"ops": [Resize((40, 56))], "device_ops": [*OPS, *mixing]}
        found, here = first(name, loader(**ops)), next(iter(loader(**ops)))[0]
        assert found.shape == here.shape == (8, 4, 24, 24, 3)
        assert np.abs(found.astype(int) - here).max() <= 2
    whole = {"ops": [Resize((40, 56))], "device_ops": [CenterCrop(20)]}  # without numbers
    assert np.array_equal(first(name, loader(**whole)), next(iter(loader(**whole)))[0])


@pytest.mark.parametrize("name", [each for each in EACH if "step" not in each.values[0]])
def test_batches_are_those_of_the_loader(name, loader):
    check_batches(name, loader)


@pytest.mark.parametrize("name", EACH)
def test_device_ops_take_clips(name, loader):
    check_device_ops(name, loader)


@pytest.mark.uses("torch_xla")
@pytest.mark.all
def test_torch_xla(once, run_forks, tmp_path):
    """In a process of its own, as it cannot be imported after TensorFlow."""
    run = {"command": [__file__, str(once(make_clips) / "set")], "env": {"CPU_NUM_DEVICES": "1"}}
    ((status, _, said),) = run_forks("torch_xla", [run], tmp_path, PJRT_DEVICE="CPU")
    assert status == 0, said


@pytest.mark.uses("torch")
def test_floats_have_their_channels_behind_the_frames(loader):
    images = next(iter(loader(ops=OPS).to_torch()))[0]
    floats = tpufeed.to_device_float(images, dtype=torch.float32)
    assert floats.shape == (8, 4, 3, 24, 24)
    one = tpufeed.to_device_float(images[:, 2], dtype=torch.float32)
    assert torch.equal(floats[:, 2], one)
    assert tpufeed.to_device_float(images, layout="NHWC").shape == (8, 4, 24, 24, 3)
    with pytest.raises(OptionError, match="clips also have frames"):
        tpufeed.to_device_float(images[0, 0])


@pytest.mark.uses("tensorflow")
def test_tensorflow_alone_is_refused(loader):
    with pytest.raises(OptionError, match="clips of 4 frames"):
        loader(ops=OPS).to_tf(direct=True)


@pytest.mark.uses("tensorflow")
def test_tensorflow_parses_the_records(once):
    """As docs/format.md says: a clip is a list of images."""
    url = once(make_clips) / "set"
    features = {"image/encoded": tf.io.FixedLenFeature([4], tf.string)}
    for payload in tpufeed.open_dataset(url).iter_payloads("train"):
        frames = tf.io.parse_single_example(bytes(payload), features)["image/encoded"]
        assert tf.io.decode_jpeg(frames[3]).shape == (40, 56, 3)


@pytest.mark.uses("grain")
def test_grain_gives_clips(once):
    source = tpufeed.grain_source(once(make_clips) / "set", "train", ops=OPS)
    assert source.to_map_dataset()[5]["image"].shape == (4, 24, 24, 3)


if __name__ == "__main__":
    check_batches("torch_xla", loader_of(sys.argv[1]))
    check_device_ops("torch_xla", loader_of(sys.argv[1]))
