import os
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import numpy as np
import pytest
import tensorflow as tf
from sklearn.utils.class_weight import compute_class_weight

import tpufeed
from tpufeed.dataset import reader as reader_module
from tpufeed.dataset.manifest import Manifest, encode_manifest
from tpufeed.dataset.reader import open_dataset
from tpufeed.errors import (
    DatasetNotFoundError,
    ObjectChangedError,
    OptionError,
    RecordError,
    ShardError,
)


@pytest.fixture(params=["local", "memory", "fsspec"])
def dataset(request, dataset_url, memory_url):
    return open_dataset({"local": dataset_url, "memory": memory_url, "fsspec": f"local://{dataset_url}"}[request.param])


def shard_path(folder, split="train", number=0):
    return Path(folder, open_dataset(folder).split(split).variants[0].shards[number].name)


def flip(path, position):
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 0x10]))


def read_all(reader, shards):
    return [
        bytes(reader.read(number, record)) for number, shard in enumerate(shards) for record in range(shard.records)
    ]


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


@pytest.mark.parametrize("variant", [2, -1])
def test_an_unknown_variant_is_refused(variant, cache_url):
    with pytest.raises(OptionError, match=rf"'val' has 2 variants, so none of number {variant}"):
        open_dataset(cache_url).reader("val", variant)


@pytest.mark.parametrize("url", ["{tmp}/nowhere", "{tmp}", "{tmp}/file", "memory://{tmp}/nothing", "local://{tmp}/no"])
def test_where_no_manifest_is_there_is_no_dataset(url, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(DatasetNotFoundError, match=r"holds no dataset: there is no manifest\.json\. .*tpufeed shard"):
        open_dataset(url.format(tmp=tmp_path))


def test_tfrecords_of_another_tool_are_for_adopt(tmp_path, write_tfrecords):
    file = write_tfrecords(tmp_path / "train.tfrecord", [{"image": b"x"}])
    for url in (tmp_path, file):
        with pytest.raises(DatasetNotFoundError, match=rf"TFRecords that .*: tpufeed adopt {tmp_path} --to DATASET$"):
            open_dataset(url)


def test_shards_without_a_manifest_are_no_dataset(copy):
    (copy / "manifest.json").unlink()
    with pytest.raises(DatasetNotFoundError, match="interrupted"):
        open_dataset(copy)


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
        ("train-00000-of-00007.tfrecord", 0, r"has 0 bytes; the manifest says \d+\. Run: tpufeed verify"),
        ("train-00000-of-00007.tfrecord", 1000, r"has 1000 bytes; the manifest says"),
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


def test_many_shards_are_open_without_a_descriptor_each(photo_folder, tmp_path):
    for number in range(5):
        shutil.copytree(photo_folder, tmp_path / "photos", dirs_exist_ok=number > 0)
        for path in (tmp_path / "photos").glob("*/?????.jpg"):
            path.rename(path.with_name(f"{number}-{path.name}"))
    manifest: Manifest = tpufeed.shard(tmp_path / "photos", tmp_path / "d", shard_bytes="17KB", workers=2).manifest
    shards = manifest.splits["train"].variants[0].shards
    assert len(shards) > 140
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


def test_a_manifest_that_is_copied_over_itself_is_looked_at_once(dataset_url, tmp_path, monkeypatch):
    """And not for each shard that is opened; another dataset in its place is an error at the next shard."""
    folder = tmp_path / "copy"
    shutil.copytree(dataset_url, folder)
    dataset = open_dataset(folder)
    shards = dataset.split("train").variants[0].shards
    assert len(shards) > 4
    manifest = folder / "manifest.json"
    looked = []
    decode = reader_module.decode_manifest
    monkeypatch.setattr(reader_module, "decode_manifest", lambda *given: looked.append(given) or decode(*given))
    for again in (1, 2):
        stamp = manifest.stat().st_mtime_ns + 10**9
        os.utime(manifest, ns=(stamp, stamp))
        reader = dataset.reader("train")
        assert len(read_all(reader, shards)) == dataset.split("train").records
        assert len(looked) == again
    manifest.write_text(manifest.read_text().replace('"class_counts"', '"class_counts" ', 1))
    dataset.reader("train").read(0, 0)  # other bytes, the same content
    other = dataset.manifest.splits["val"]
    changed = msgspec.structs.replace(dataset.manifest, splits={"train": other})
    manifest.write_bytes(encode_manifest(changed))
    with pytest.raises(ObjectChangedError, match="was built anew while it was read"):
        dataset.reader("train").read(1, 0)


def test_a_split_without_records(photo_folder, tmp_path):
    tpufeed.shard(photo_folder, tmp_path / "d", shares="train=0.999999,val=0.000001", workers=1)
    dataset = open_dataset(tmp_path / "d")
    assert list(dataset.iter_examples("val")) == []
    dataset.reader("val")
    with pytest.raises(OptionError, match=r"split 'val' of .*/d has no samples, so no classes to weigh"):
        dataset.class_weights("val")


# Class weights


def labels_of(dataset, split, key="image/class/label"):
    return np.array([example[key].values[0] for example in dataset.iter_examples(split)])


@pytest.mark.parametrize("split", ["train", "val"])
def test_class_weights_are_scikit_learn_s_balanced(split, dataset_url):
    dataset = open_dataset(dataset_url)
    labels = labels_of(dataset, split)
    assert len(set(np.bincount(labels))) > 1
    weights = dataset.class_weights(split)
    assert weights == pytest.approx(
        dict(enumerate(compute_class_weight("balanced", classes=np.arange(3), y=labels).tolist()))
    )
    assert sum(weights[label] for label in labels) == pytest.approx(len(labels))
    assert all(type(label) is int and type(weight) is float for label, weight in weights.items())


def test_a_class_without_samples_weighs_one_and_changes_no_other(photo_folder, write_tfrecords, tmp_path):
    photo = min(photo_folder.rglob("*.jpg")).read_bytes()
    write_tfrecords(tmp_path / "train/a.tfrec", [{"image": photo, "label": label} for label in (1, 1, 1, 3)])
    write_tfrecords(tmp_path / "val/a.tfrec", [{"image": photo, "label": 0}])
    tpufeed.adopt(tmp_path)
    dataset = open_dataset(tmp_path)
    balanced = compute_class_weight("balanced", classes=np.array([1, 3]), y=labels_of(dataset, "train", "label"))
    assert dataset.class_weights("train") == {0: 1.0, 1: balanced[0], 2: 1.0, 3: balanced[1]}
    assert dataset.class_weights("val") == dict.fromkeys(range(4), 1.0)


def test_class_weights_need_labels_and_a_split(dataset_url, photo_folder, tmp_path):
    with pytest.raises(OptionError, match=r"has no split 'test'; it has train, val"):
        open_dataset(dataset_url).class_weights("test")
    tpufeed.shard(photo_folder, tmp_path / "d", label="none", workers=1)
    with pytest.raises(OptionError, match=r"/d has no labels, so no classes to weigh"):
        open_dataset(tmp_path / "d").class_weights("train")
