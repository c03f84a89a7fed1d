"""A dataset of photographs and a cache of it; tests that change files change a copy."""

import shutil
from pathlib import Path

import pytest

import tpufeed
from tests.conftest import make_photos
from tests.tfrecords import encode_example, write_file
from tpufeed.cache import warmup
from tpufeed.storage.memory import MemoryStore

PHOTOS = 40


@pytest.fixture(scope="session")
def photo_folder(once):
    """40 photographs of 12 kB in three class folders."""
    return once(make_photos, PHOTOS)


@pytest.fixture(scope="session")
def dataset_url(once, photo_folder):
    """Splits train and val of several shards each; not to be changed."""
    return str(once(_make_dataset, photo_folder))


def _make_dataset(folder, photos):
    tpufeed.shard(photos, folder, shard_bytes="50KB", splits="train=0.7,val=0.3", workers=1)


@pytest.fixture(scope="session")
def cache_url(once, dataset_url):
    """Raw pixels in two variants; not to be changed."""
    return str(once(_make_cache, dataset_url))


def _make_cache(folder, url):
    warmup(url, folder, size=32, variants=2, shard_bytes="40KB", workers=1)


@pytest.fixture
def copy(dataset_url, tmp_path):
    """A copy of the dataset to damage."""
    return Path(shutil.copytree(dataset_url, tmp_path / "copy"))


@pytest.fixture(scope="session")
def memory_url(dataset_url):
    """The dataset in a store without local files."""
    store = MemoryStore(f"memory:/{dataset_url}")
    for path in Path(dataset_url).rglob("*"):
        if path.is_file():
            store.put(str(path.relative_to(dataset_url)), path.read_bytes())
    return store.url


@pytest.fixture(scope="session")
def write_tfrecords():
    """`write_tfrecords(path, records, compression="")`; a record is a dict of values or lists."""
    return lambda path, records, compression="": write_file(path, map(encode_example, records), compression)


@pytest.fixture(scope="session")
def photo(photos):
    return photos["china.jpg"]


@pytest.fixture
def refused(tmp_path, write_tfrecords):
    """`refused(error, message, records, **options)`: adopting these records fails, and leaves all as it was."""

    def check(error, message, records=None, name="train.tfrecord", **options):
        if records is not None:
            write_tfrecords(tmp_path / name, records)
        before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        with pytest.raises(error, match=message) as found:
            tpufeed.adopt(tmp_path, **options)
        assert "\n" not in str(found.value)
        assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
        return str(found.value)

    return check
