"""A cache of DCT coefficients with `device_ops`: a batch has the coefficients, and a device decodes them."""

import numpy as np
import pytest

import tpufeed
from tests.conftest import make_photos
from tests.images.dct_reference import decode_planes, pack_planes, read_bytes
from tpufeed import Loader, cache
from tpufeed.dataset.reader import open_dataset
from tpufeed.errors import OptionError
from tpufeed.images import HorizontalFlip, MixUp, RandomCrop, Resize
from tpufeed.images.coefficients import of_quality
from tpufeed.stream.mixing import _NUMPY

SIZE = (32, 48)
IN_ORDER = {"split": "train", "shuffle": False, "batch_size": 4, "processes": 0, "seed": 3}


@pytest.fixture(scope="module")
def caches(tmp_path_factory):
    folder = tmp_path_factory.mktemp("coefficients")
    make_photos(folder / "photos", 12)
    tpufeed.shard(folder / "photos", folder / "data", workers=1)
    for name, options in {
        "dct": {"encode": "dct"},
        "worse": {"encode": "dct", "quality": 50},
        "raw": {},
        "live": {"encode": "dct", "live": [RandomCrop(16)]},
    }.items():
        cache.warmup(folder / "data", folder / name, ops=[Resize(SIZE)], workers=1, **options)
    return folder


def batches(url, on_device, **options):
    with Loader(url, **IN_ORDER | options) as loader:
        iterator = loader.stream.iterate(as_dict=True, on_device=on_device)
        found = [dict(batch) for batch in iterator]
        iterator.close()
        if not on_device:
            return found
        form, columns = loader.stream.batch_form(True)
        assert [column.name for column in columns] == list(form.names)
        assert all(batch[each.name].shape[1:] == each.shape for batch in found for each in columns)
        assert all(batch[each.name].dtype == each.dtype for batch in found for each in columns)
        return found, [loader.stream.run_device_ops(batch, _NUMPY) for batch in found]


def test_a_batch_has_the_coefficients_of_the_records(caches):
    coefficients = of_quality(SIZE, 90)
    found, made = batches(caches / "dct", True, device_ops=[])
    images = iter(np.concatenate([batch["image"] for batch in found]))
    pixels = iter(np.concatenate([batch["image"] for batch in made]))
    for features in open_dataset(caches / "dct").iter_examples("train", 0):
        (data,) = features["image/encoded"].values
        expected = pack_planes(read_bytes(bytes(data))[2], coefficients)
        np.testing.assert_array_equal(next(images), expected)
        assert np.abs(next(pixels).astype(int) - decode_planes(expected, coefficients)).max() <= 1
    assert next(images, None) is None


@pytest.mark.parametrize(
    "ops", [[], [HorizontalFlip()], [RandomCrop(24), HorizontalFlip()], [HorizontalFlip(), MixUp()]]
)
def test_a_device_makes_what_the_host_makes(caches, ops):
    options = {"device_ops": ops, "columns": ["image", "label", "sample"]}
    _, made = batches(caches / "dct", True, **options)
    for device, host in zip(made, batches(caches / "dct", False, **options), strict=True):
        for name in ("label", "sample"):
            np.testing.assert_allclose(device[name], host[name], atol=1e-6)
        off = np.abs(device["image"].astype(int) - host["image"])
        assert off.mean() < 1, "libjpeg rounds after the inverse transform, and again after the colours"
        assert off.max() <= 16, "where AC values beyond 96 are held in steps of 14"


def test_without_device_ops_they_are_pixels(caches):
    (first, *_) = batches(caches / "dct", False, device_ops=[])
    assert (first["image"].dtype, first["image"].shape) == (np.uint8, (4, *SIZE, 3))
    found, made = batches(caches / "raw", True, device_ops=[HorizontalFlip()])
    assert found[0]["image"].dtype == made[0]["image"].dtype == np.uint8


def test_what_needs_pixels_before_is_refused(caches):
    for name, options in (("dct", {"ops": [RandomCrop(16)]}), ("live", {})):
        with pytest.raises(OptionError, match=r"RandomCrop runs on the host.* first in device_ops"):
            Loader(caches / name, **IN_ORDER, device_ops=[HorizontalFlip()], **options)
    for other, said in (("worse", "another quality"), ("raw", "uint8")):
        mixture = tpufeed.Mixture({str(caches / "dct"): 1, str(caches / other): 1})
        assert batches(mixture, False, device_ops=[HorizontalFlip()])
        with pytest.raises(OptionError, match=said):
            batches(mixture, True, device_ops=[HorizontalFlip()])


def test_processes_and_a_state_give_the_same_coefficients(caches):
    found, _ = batches(caches / "dct", True, device_ops=[HorizontalFlip()], shuffle=True)
    again, _ = batches(caches / "dct", True, device_ops=[HorizontalFlip()], shuffle=True, processes=1)
    for one, other in zip(found, again, strict=True):
        for name, values in one.items():
            np.testing.assert_array_equal(values, other[name])
