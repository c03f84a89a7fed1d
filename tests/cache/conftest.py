"""A dataset of photographs to warm caches of, one with an image that does not decode, and the files of a build."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import tpufeed

ROOT = Path(__file__).parents[2]
PHOTOS = 60


@pytest.fixture(scope="session")
def photo_folder(tmp_path_factory):
    """60 photographs in three class folders, two of them PNGs."""
    folder = tmp_path_factory.mktemp("cache") / "photos"
    command = [sys.executable, ROOT / "scripts/make_photos.py", folder, "--count", PHOTOS, "--size", "160x120"]
    subprocess.run([*map(str, command), "--classes", "3"], check=True, capture_output=True)
    for path in sorted(folder.glob("*/*.jpg"))[20:22]:
        Image.open(path).save(path.with_suffix(".png"))
        path.unlink()
    return folder


@pytest.fixture(scope="session")
def source(photo_folder):
    """Its dataset, in two splits."""
    url = photo_folder.parent / "dataset"
    tpufeed.shard(photo_folder, url, shard_bytes="150KB", splits="train=0.8,val=0.2", workers=1)
    return str(url)


@pytest.fixture(scope="session")
def damaged_source(photo_folder):
    """The path of a photograph whose scan is broken, and a dataset that took it for sound."""
    folder = photo_folder.parent / "damaged"
    shutil.copytree(photo_folder, folder)
    path = sorted(folder.glob("*/*.jpg"))[7]
    data = bytearray(path.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 400] = np.random.default_rng(3).bytes(400)
    path.write_bytes(data)
    url = folder.parent / "damaged-dataset"
    tpufeed.shard(folder, url, shard_bytes="150KB", check="header", workers=1)
    return str(path.relative_to(folder)), str(url)


@pytest.fixture(scope="session")
def flat_source(photo_folder):
    """A dataset without labels."""
    folder = photo_folder.parent / "flat"
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
