"""Class 5: a disk that is full, over its quota, forbidden or read-only, at each place where something is written.

`tests/sharding/test_faults_disk.py` fills a real disk under `tpufeed shard`.
"""

import errno as os_errno
import os
import re
import shutil
from pathlib import Path

import pytest

import tpufeed
from tpufeed.cache import warmup
from tpufeed.dataset.reader import find_dataset, open_dataset
from tpufeed.errors import TpufeedError
from tpufeed.storage.store import open_store

ERRORS = ["ENOSPC", "EDQUOT", "EACCES", "EROFS"]
BUILD = {"size": 32, "variants": 2, "shard_bytes": "40KB", "workers": 1}
MOMENTS = {
    "plan": ("open", r"/tmp/\w+/plan$", 1),
    "shard": ("open", r"/tmp/\w+/(?!plan|object)", 3),
    "shard's name": ("os.link", r"/train-v1-00001-of-\d+\.tfrecord$", 1),
    "report": ("os.link", r"/reports/000002\.json$", 1),
    "index": ("os.link", r"/train-v0\.index\.npy$", 1),
    "manifest": ("os.link", r"/manifest\.json$", 1),
}


def fails_and_leaves_nothing(build, arm, folder, name):
    """The error is ours, names the reason and the file; there is no dataset and no temporary file."""
    with pytest.raises(TpufeedError) as raised, arm as order:
        build()
    assert order.fired == 1
    assert os.strerror(getattr(os_errno, name)) in str(raised.value)
    assert str(folder) in str(raised.value)
    assert raised.value.exit_code == 1
    assert find_dataset(open_store(folder)) is None
    assert not (folder / "_tpufeed/tmp").exists()


@pytest.mark.parametrize(("moment", "error"), [(m, ERRORS[n % 4]) for n, m in enumerate(MOMENTS)])
def test_a_cache_that_cannot_be_written_is_an_error_and_goes_on_later(
    moment, error, dataset_url, cache_url, fault, bytes_of, tmp_path
):
    folder = tmp_path / "c"
    event, match, nth = MOMENTS[moment]
    arm = fault(event, rf"^{re.escape(str(folder))}.*{match}", getattr(os_errno, error), nth)
    fails_and_leaves_nothing(lambda: warmup(dataset_url, folder, **BUILD), arm, folder, error)
    warmup(dataset_url, folder, **BUILD)
    assert bytes_of(folder) == bytes_of(cache_url)


@pytest.mark.parametrize(("name", "error"), [("train.index.npy", "EDQUOT"), ("manifest.json", "EROFS")])
def test_an_adoption_that_cannot_be_written_is_an_error(name, error, dataset_url, fault, tmp_path):
    folder = tmp_path / "foreign"
    folder.mkdir()
    for shard in Path(dataset_url).glob("*.tfrecord"):
        shutil.copy(shard, folder)
    arm = fault("os.link", rf"{folder}/{name}$", getattr(os_errno, error))
    fails_and_leaves_nothing(lambda: tpufeed.adopt(folder), arm, folder, error)
    tpufeed.adopt(folder)
    assert tpufeed.verify(folder).records == 40


def test_a_full_disk_under_overwrite_never_leaves_half_a_dataset(dataset_url, photo_folder, fault, tmp_path):
    """What stood is gone by then; what stands is no dataset, until the same command has gone on."""
    folder = Path(shutil.copytree(dataset_url, tmp_path / "d"))
    arm = fault("os.link", r"/train-00002-of-\d+\.tfrecord$", os_errno.ENOSPC)
    options = {"shard_bytes": "40KB", "seed": 7, "workers": 1}
    build = lambda: tpufeed.shard(photo_folder, folder, overwrite=True, **options)  # noqa: E731
    fails_and_leaves_nothing(build, arm, folder, "ENOSPC")
    tpufeed.shard(photo_folder, folder, **options)
    assert tpufeed.verify(folder).records == len(list(photo_folder.glob("*/*.jpg")))
    assert open_dataset(folder).manifest.options["seed"] == 7
