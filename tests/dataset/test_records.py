"""Records by shard and number, from files and from stores: all are read, damage is named, files may go."""

import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from PIL import Image

import tpufeed
from tests.dataset.damaging import flip
from tests.frameworks import lazy
from tpufeed.dataset.manifest import Manifest
from tpufeed.dataset.reader import open_dataset
from tpufeed.errors import (
    RecordError,
    ShardError,
)
from tpufeed.storage.store import open_store

tf = lazy("tensorflow")


@pytest.fixture(params=["local", "memory", "fsspec"])
def dataset(request, dataset_url, memory_url):
    return open_dataset({"local": dataset_url, "memory": memory_url, "fsspec": f"local://{dataset_url}"}[request.param])


def shard_path(folder, split="train", number=0):
    return Path(folder, open_dataset(folder).split(split).variants[0].shards[number].name)


def read_all(reader, shards):
    return [
        bytes(reader.read(number, record)) for number, shard in enumerate(shards) for record in range(shard.records)
    ]


@pytest.mark.uses("tensorflow")
def test_records_are_those_that_tensorflow_reads(dataset, dataset_url):
    for split in ("train", "val"):
        shards = dataset.split(split).variants[0].shards
        files = [str(Path(dataset_url, shard.name)) for shard in shards]
        expected = [record.numpy() for record in tf.data.TFRecordDataset(files)]
        assert len(expected) == dataset.split(split).records > len(shards) > 1
        assert read_all(dataset.reader(split), shards) == expected


def test_each_variant_has_its_own_records(cache_url):
    dataset = open_dataset(cache_url)
    one, other = (dataset.reader("train", variant).read(0, 0) for variant in range(2))
    assert bytes(one) != bytes(other)
    examples = [next(dataset.iter_examples("train", variant)) for variant in range(2)]
    assert len({bytes(example["image/filename"].values[0]) for example in examples}) == 1


def test_records_of_any_order_from_many_threads(dataset):
    shards = dataset.split("train").variants[0].shards
    places = [(number, record) for number, shard in enumerate(shards) for record in range(shard.records)]
    expected = read_all(dataset.reader("train"), shards)
    reader = dataset.reader("train")
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda place: bytes(reader.read(*place)), places[::-1] * 5))
    assert found == expected[::-1] * 5


@pytest.mark.parametrize("where", ["payload", "length", "crc"])
def test_damage_is_told_with_shard_record_and_byte(where, copy):
    path = shard_path(copy, number=1)
    start = _offsets(copy, 1)[1]
    flip(path, start + {"payload": 500, "length": 0, "crc": 9}[where])
    reader = open_dataset(copy).reader("train")
    with pytest.raises(RecordError, match=rf"^{re.escape(str(path))}, record 1, byte {start}: "):
        reader.read(1, 1)
    assert len(reader.read(1, 0)) > 0
    assert len(reader.read(1, 2)) > 0


def _offsets(folder, number):
    dataset = open_dataset(folder)
    sizes = [len(dataset.reader("train").read(number, record)) + 16 for record in range(3)]
    return [sum(sizes[:record]) for record in range(3)]


@pytest.mark.parametrize(
    ("name", "size", "message"),
    [
        ("train-00000-of-00007.tfrecord", 0, r"has 0 bytes, but the manifest says \d+\. Run: tpufeed verify"),
        ("train-00000-of-00007.tfrecord", 1000, r"has 1000 bytes, but the manifest says"),
        ("train-00000-of-00007.tfrecord", None, r"tfrecord: No such file.*Is the dataset complete"),
        ("train.index.npy", 200, r"train\.index\.npy has .* offsets.*tpufeed verify"),
    ],
)
def test_a_file_that_is_cut_or_missing_is_named_when_it_is_opened(name, size, message, copy):
    if size is None:
        (copy / name).unlink()
    else:
        os.truncate(copy / name, size)
    with pytest.raises(ShardError, match=message):
        open_dataset(copy).reader("train").read(0, 0)


def test_verify_is_advised_for_the_dataset_of_shards_elsewhere(write_tfrecords, photo, tmp_path):
    write_tfrecords(tmp_path / "train.tfrecord", [{"image": photo, "label": 0}])
    shards = open_store("memory://shards-of-another-tool")
    shards.put("train.tfrecord", (tmp_path / "train.tfrecord").read_bytes())
    dataset = open_dataset(tpufeed.adopt(shards.url, "memory://adopted").url)
    shards.delete("train.tfrecord")
    with pytest.raises(ShardError, match=r"Run: tpufeed verify memory://adopted$"):
        dataset.reader("train").read(0, 0)


@pytest.mark.parametrize("change", ["replaced", "deleted"])
def test_a_shard_that_goes_while_it_is_mapped_stays_readable(change, copy):
    """A build that is put over an old one must not take the ground from under a training that runs."""
    path = shard_path(copy)
    records = open_dataset(copy).split("train").variants[0].shards[0].records
    expected = [bytes(open_dataset(copy).reader("train").read(0, record)) for record in range(records)]
    reader = open_dataset(copy).reader("train")
    view = reader.read(0, 0)
    if change == "replaced":
        (copy / "new").write_bytes(b"\0" * 10)
        (copy / "new").rename(path)
    else:
        path.unlink()
    assert [bytes(reader.read(0, record)) for record in range(records)] == expected
    assert bytes(view) == expected[0]


@pytest.mark.all
def test_many_shards_are_open_without_a_descriptor_each(tmp_path):
    (tmp_path / "images").mkdir()
    for number in range(150):
        Image.new("RGB", (16, 16), (number, 0, 0)).save(tmp_path / f"images/{number}.png")
    manifest: Manifest = tpufeed.shard(tmp_path / "images", tmp_path / "d", shards=140, workers=1).manifest
    shards = manifest.splits["train"].variants[0].shards
    assert len(shards) == 140
    reader = open_dataset(tmp_path / "d").reader("train")
    first = reader.read(0, 0)
    before = len(os.listdir("/proc/self/fd"))
    views = [reader.read(number, 0) for number in range(len(shards))]
    assert views[0] == first
    del views, first
    reader.read(0, 0)
    assert len(os.listdir("/proc/self/fd")) == before
    assert len(mapped_shards(tmp_path / "d")) == 128
    reader.release()
    assert not mapped_shards(tmp_path / "d")


def mapped_shards(folder):
    lines = Path("/proc/self/maps").read_text().splitlines()
    return [line for line in lines if str(folder) in line and line.endswith(".tfrecord")]
