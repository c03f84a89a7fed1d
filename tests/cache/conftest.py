"""A dataset of photographs to warm caches of, one with an image that does not decode, and the files of a build."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import tpufeed
from tests.conftest import make_photos

PHOTOS = 60


@pytest.fixture(scope="session")
def photo_folder(once):
    """60 photographs in three class folders, two of them PNGs."""
    return once(_make_photos)


def _make_photos(folder):
    make_photos(folder, PHOTOS)
    for path in sorted(folder.glob("*/*.jpg"))[20:22]:
        Image.open(path).save(path.with_suffix(".png"))
        path.unlink()


@pytest.fixture(scope="session")
def source(once, photo_folder):
    """Its dataset, in two splits."""
    return str(once(_make_dataset, photo_folder))


def _make_dataset(folder, photos):
    tpufeed.shard(photos, folder, shard_bytes="150KB", splits="train=0.8,val=0.2", workers=1)


@pytest.fixture(scope="session")
def damaged_source(photo_folder, tmp_path_factory):
    """The path of a photograph whose scan is broken, and a dataset that took it for sound."""
    folder = tmp_path_factory.mktemp("cache") / "damaged"
    shutil.copytree(photo_folder, folder)
    path = sorted(folder.glob("*/*.jpg"))[7]
    data = bytearray(path.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 400] = np.random.default_rng(3).bytes(400)
    path.write_bytes(data)
    url = folder.parent / "damaged-dataset"
    tpufeed.shard(folder, url, shard_bytes="150KB", images=tpufeed.Images(check="header"), workers=1)
    return str(path.relative_to(folder)), str(url)


@pytest.fixture(scope="session")
def flat_source(photo_folder, tmp_path_factory):
    """A dataset without labels."""
    folder = tmp_path_factory.mktemp("cache") / "flat"
    folder.mkdir()
    for path in sorted(photo_folder.glob("*/*.jpg"))[:9]:
        shutil.copy(path, folder)
    tpufeed.shard(folder, folder.parent / "flat-dataset", workers=1)
    return str(folder.parent / "flat-dataset")


@pytest.fixture(scope="session")
def bytes_of():
    """`bytes_of(folder)`: the files that must be equal, by name: shards, indexes and rejects."""

    def read(folder):
        names = (".tfrecord", ".npy", "rejects.jsonl")
        return {path.name: path.read_bytes() for path in Path(folder).iterdir() if path.name.endswith(names)}

    return read
