"""Class 11: what the manifest names is the dataset; shards of an earlier run with another count are none of it."""

import shutil
from pathlib import Path

import numpy as np
import pytest

import tpufeed
from tests.faults.remote import names_of, objects
from tpufeed.dataset.reader import open_dataset
from tpufeed.errors import DatasetExistsError
from tpufeed.images import CenterCrop, Resize

OPS = [Resize(40), CenterCrop(32)]


def samples_of(url):
    with tpufeed.Loader(url, columns=["filename"], batch_size=5, shuffle=False, ops=OPS) as loader:
        return np.concatenate(list(loader)).tolist()


@pytest.fixture
def littered(dataset_url, photo_folder, tmp_path):
    """The dataset, with the shards of builds with other counts and seeds beside its own, above and below its number."""
    folder = Path(shutil.copytree(dataset_url, tmp_path / "d"))
    ours = {path.name for path in folder.glob("*.tfrecord")}
    for count in (2, 13):
        result = tpufeed.shard(photo_folder, tmp_path / f"{count}", shards=count, seed=count, workers=1)
        for path in Path(result.url).glob("*.tfrecord"):
            shutil.copy(path, folder)
    litter = {path.name for path in folder.glob("*.tfrecord")} - ours
    assert len(litter) == 15
    return folder, litter


def test_overwrite_leaves_them_and_reads_none_of_them(littered, photo_folder):
    folder, litter = littered
    before = {name: (folder / name).read_bytes() for name in litter}
    tpufeed.shard(photo_folder, folder, shards=5, overwrite=True, workers=1)
    assert {name: (folder / name).read_bytes() for name in litter} == before
    assert len(samples_of(folder)) == len(set(samples_of(folder))) == 40
    assert len(tpufeed.open_dataset(folder).split("train").variants[0].shards) == 5


# In a bucket.


@pytest.fixture
def littered_bucket(server, kept, upload, littered):
    """The same in a bucket: what lies there, and the litter's names."""
    folder, litter = littered
    return upload(folder, "d"), litter


@pytest.mark.all
def test_stale_objects_are_no_part_of_the_dataset(littered_bucket, server, dataset_url):
    url, litter = littered_bucket
    server.clear_log()
    assert samples_of(url) == samples_of(dataset_url)
    assert len(tpufeed.TFRecordImages(url, "train")) == 40
    assert tpufeed.verify(url).records == 40
    assert open_dataset(url).content_digest == open_dataset(dataset_url).content_digest
    asked = {record.name.removeprefix("d/") for record in server.log}
    assert "manifest.json" in asked
    assert not asked & litter
    assert not server.requests(operation="list")


@pytest.mark.all
def test_what_is_listed_is_what_is_there(server, kept):
    """Right after objects were put and deleted, by us and by others."""
    for name in sorted(names_of(server, "kept/photos"))[:12]:
        server.put("bucket", f"p/{name}", server.get("bucket", f"kept/photos/{name}"))
    url, options = "gs://bucket/d", {"shard_bytes": "20KB", "workers": 1}
    assert tpufeed.shard("gs://bucket/p", url, **options).images == 12
    for name in sorted(names_of(server, "p"))[:3]:
        server.remove("bucket", f"p/{name}")
    with pytest.raises(DatasetExistsError, match="12 inputs then, 9 now"):
        tpufeed.shard("gs://bucket/p", url, **options)
    first = names_of(server, "d")
    assert tpufeed.shard("gs://bucket/p", url, overwrite=True, **options).images == 9
    assert names_of(server, "d") != first
    added = sorted(names_of(server, "kept/photos"))[20]
    server.put("bucket", f"p/{added}", server.get("bucket", f"kept/photos/{added}"))
    assert tpufeed.shard("gs://bucket/p", url, overwrite=True, **options).images == 10
    tpufeed.shard("gs://bucket/p", "gs://bucket/fresh", **options)
    assert objects(server, "d") == objects(server, "fresh")
    assert names_of(server, "d") == names_of(server, "fresh")
