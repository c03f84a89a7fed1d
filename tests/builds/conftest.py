"""The photographs, the dataset and the cache of `tests/dataset`, and a dataset that has grown."""

import shutil
from pathlib import Path

import pytest

import tpufeed
from tests.builds.grown import PARTS
from tests.dataset.conftest import cache_url, copy, dataset_url, memory_url, photo_folder

__all__ = ["cache_url", "copy", "dataset_url", "memory_url", "photo_folder"]


@pytest.fixture(scope="module")
def folders(photo_folder, tmp_path_factory):
    """The photographs, dealt to some folders."""
    folder = tmp_path_factory.mktemp("parts")
    for number, path in enumerate(sorted(photo_folder.glob("*/*.jpg"))):
        target = folder / str(number % PARTS) / path.parent.name / path.name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, target)
    return [folder / str(number) for number in range(PARTS)]


@pytest.fixture(scope="module")
def grown(folders, tmp_path_factory):
    """A dataset of one build and some appends; not to be changed."""
    url = tmp_path_factory.mktemp("grown") / "d"
    tpufeed.shard(folders[0], url, shard_bytes="200KB", splits="train=0.7,val=0.3", workers=1)
    for folder in folders[1:]:
        tpufeed.append(folder, url, workers=1)
    return url


@pytest.fixture
def url(grown, tmp_path):
    return Path(shutil.copytree(grown, tmp_path / "d"))
