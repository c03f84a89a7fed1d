"""Images that all have one size, as the manifest says: loaders need no ops."""

import json

import numpy as np
import pytest
from PIL import Image

import tpufeed
from tests.frameworks import lazy
from tpufeed.errors import OptionError, RecordError
from tpufeed.images import HorizontalFlip, RandomResizedCrop

tf = lazy("tensorflow")


def make(folder, sides):
    random = np.random.default_rng(0)
    for number, (height, width) in enumerate(sides):
        path = folder / "photos" / "ab"[number % 2] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 255, (height, width, 3), np.uint8)).save(path)
    return tpufeed.shard(folder / "photos", folder / "dataset", workers=1).url


@pytest.fixture(scope="module")
def alike(tmp_path_factory):
    return make(tmp_path_factory.mktemp("sizes"), [(20, 30)] * 8)


@pytest.mark.parametrize("processes", [0, 1])
def test_images_of_one_size_need_no_ops(alike, processes):
    whole = {int(sample): image for image, sample in tpufeed.TFRecordImages(alike, columns=["image", "sample"])}
    with tpufeed.Loader(alike, batch_size=4, columns=None, processes=processes) as loader:
        for batch in loader:
            for image, sample in zip(batch["image"], batch["sample"], strict=True):
                np.testing.assert_array_equal(image, whole[int(sample)])


@pytest.mark.parametrize(
    ("options", "size"),
    [({"ops": [HorizontalFlip()]}, (20, 30)), ({"device_ops": [RandomResizedCrop(8)]}, (8, 8)), ({}, (20, 30))],
    ids=["ops that keep it", "device_ops", "a view"],
)
def test_the_size_is_known_behind_ops_and_in_views(alike, options, size):
    given = alike if options else tpufeed.open_dataset(alike).select(classes=["a"])
    images, _ = next(iter(tpufeed.Loader(given, batch_size=4, processes=0, **options)))
    assert images.shape == (4, *size, 3)


@pytest.mark.all
@pytest.mark.uses("tensorflow")
def test_caches_and_tensorflow_know_it_too(alike, tmp_path):
    cached = tpufeed.cache.warmup(alike, tmp_path / "cache", ops=[HorizontalFlip()], workers=1)
    assert cached.manifest.cache.shape == (20, 30, 3)
    for direct in (False, True):
        images, _ = next(iter(tpufeed.Loader(alike, batch_size=4).to_tf(direct=direct)))
        assert images.shape == tf.TensorShape((4, 20, 30, 3))


def test_other_images_still_need_ops(tmp_path):
    url = make(tmp_path, [(20, 30), (30, 20)])
    with pytest.raises(OptionError, match="RandomResizedCrop"):
        tpufeed.Loader(url, batch_size=2)
    path = tmp_path / "dataset/manifest.json"
    manifest = json.loads(path.read_text())
    manifest["sizes"] |= {"most": manifest["sizes"]["least"]}  # a lie
    path.write_text(json.dumps(manifest))
    with pytest.raises(RecordError, match=r"train-.*, record \d: the image has (30x20|20x30) pixels, not the promised"):
        list(tpufeed.Loader(url, batch_size=2, processes=0))
