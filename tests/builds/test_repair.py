"""Files that a finished dataset has lost are made again, alone, by the command that made them."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import tpufeed
from tests.builds.grown import files_of
from tests.sharding.previews import preview_shard
from tpufeed import cache
from tpufeed.errors import BuildError

OPTIONS = {"shard_bytes": "200KB", "splits": "train=0.7,val=0.3", "workers": 1}


@pytest.fixture
def whole(url):
    """The files of a dataset that has grown, by name."""
    return files_of(url)


def shard(folders, url):
    tpufeed.shard(folders[0], url, **OPTIONS)


def append(folders, url):
    tpufeed.append(folders[2], url, workers=1)


@pytest.mark.parametrize(
    ("command", "names"),
    [
        (shard, ["train-00000-of-*.tfrecord"]),
        (shard, ["train-00000-of-*.tfrecord", "val-00000-of-*.tfrecord", "train-version-5.index.npy"]),
        (append, ["part-00003/train-*.tfrecord"]),
        (append, ["val-version-5.index.npy"]),
    ],
)
@pytest.mark.parametrize("how", ["gone", "cut"])
def test_the_command_that_made_a_file_makes_it_again_alone(command, names, how, folders, url, whole):
    lost = [path for name in names for path in sorted(url.glob(name))]
    assert len(lost) >= len(names)
    others = {path: path.stat().st_mtime_ns for path in url.rglob("*") if path.is_file() and path not in lost}
    for path in lost:
        path.unlink() if how == "gone" else path.write_bytes(path.read_bytes()[:-9])
    command(folders, url)
    assert files_of(url) == whole
    assert {path: path.stat().st_mtime_ns for path in others} == others
    tpufeed.verify(url)


def test_another_command_says_which_one_makes_it_again(folders, url):
    lost = next(url.glob("part-00003/train-*"))
    lost.unlink()
    before = files_of(url)
    with pytest.raises(BuildError, match=f"{lost.name} is missing.*append of {folders[2]}"):
        shard(folders, url)
    with pytest.raises(BuildError, match=f"{lost.name} is missing.*append of {folders[2]}"):
        tpufeed.compact(url, workers=1)
    with pytest.raises(BuildError, match=f"{lost.name} is missing"):
        preview_shard(folders[0], url, **OPTIONS)
    assert files_of(url) == before


def test_other_bytes_than_the_manifest_s_are_not_put(folders, tmp_path):
    photos = Path(shutil.copytree(folders[0], tmp_path / "photos"))
    tpufeed.shard(photos, tmp_path / "d", **OPTIONS)
    next((tmp_path / "d").glob("train-00000-*")).unlink()
    before = files_of(tmp_path / "d")
    for path in photos.glob("*/*.jpg"):
        Image.fromarray(np.zeros((9, 9, 3), np.uint8)).save(path)
    with pytest.raises(BuildError, match=r"train-00000-.*other bytes"):
        tpufeed.shard(photos, tmp_path / "d", **OPTIONS)
    assert files_of(tmp_path / "d") == before


def test_a_cache_gets_the_shard_of_one_variant_back(dataset_url, tmp_path):
    def warm():
        return cache.warmup(dataset_url, tmp_path / "c", size=24, variants=2, shard_bytes="40KB", workers=1)

    warm()
    before = files_of(tmp_path / "c")
    next((tmp_path / "c").glob("train-v1-00000-*")).unlink()
    (tmp_path / "c/train-v0.index.npy").unlink()
    warm()
    assert files_of(tmp_path / "c") == before
