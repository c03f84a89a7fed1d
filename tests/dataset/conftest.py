"""A dataset of photographs and a cache of it; tests that change files change a copy."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tpufeed
from tpufeed.cache import warmup
from tpufeed.storage.memory import MemoryStore

ROOT = Path(__file__).parents[2]
PHOTOS = 40


@pytest.fixture(scope="session")
def photo_folder(tmp_path_factory):
    """40 photographs of 12 kB in three class folders."""
    folder = tmp_path_factory.mktemp("dataset") / "photos"
    command = [sys.executable, ROOT / "scripts/make_photos.py", folder, "--count", PHOTOS, "--size", "160x120"]
    subprocess.run([*map(str, command), "--classes", "3"], check=True, capture_output=True)
    return folder


@pytest.fixture(scope="session")
def dataset_url(photo_folder):
    """Splits train and val of several shards each; not to be changed."""
    url = photo_folder.parent / "dataset"
    tpufeed.shard(photo_folder, url, shard_bytes="50KB", splits="train=0.7,val=0.3", workers=1)
    return str(url)


@pytest.fixture(scope="session")
def cache_url(dataset_url):
    """Raw pixels in two variants; not to be changed."""
    warmup(dataset_url, f"{dataset_url}-cache", size=32, variants=2, shard_bytes="40KB", workers=1)
    return f"{dataset_url}-cache"


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
    """`write_tfrecords(path, records, compression="")`: by TensorFlow itself; a record is a dict of values or lists."""
    import tensorflow as tf

    def to_feature(value):
        values = value if isinstance(value, list) else [value]
        if not values:
            return tf.train.Feature()
        if isinstance(values[0], bytes):
            return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
        if isinstance(values[0], float):
            return tf.train.Feature(float_list=tf.train.FloatList(value=values))
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))

    def write(path, records, compression=""):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tf.io.TFRecordWriter(str(path), compression) as writer:
            for record in records:
                features = tf.train.Features(feature={key: to_feature(value) for key, value in record.items()})
                writer.write(tf.train.Example(features=features).SerializeToString())
        return path

    return write


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
