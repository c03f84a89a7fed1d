"""Opening a dataset, what a folder without one is called, and class weights."""

import os
import shutil

import msgspec
import numpy as np
import pytest

import tpufeed
from tests.frameworks import lazy
from tpufeed.dataset import reader as reader_module
from tpufeed.dataset.manifest import encode_manifest
from tpufeed.dataset.reader import open_dataset
from tpufeed.errors import (
    DatasetNotFoundError,
    ObjectChangedError,
    OptionError,
)
from tpufeed.storage.local import LocalStore

compute_class_weight = lazy("sklearn.utils.class_weight:compute_class_weight")


@pytest.mark.parametrize("variant", [2, -1])
def test_an_unknown_variant_is_refused(variant, cache_url):
    with pytest.raises(OptionError, match=rf"'val' has 2 variants.* {variant}"):
        open_dataset(cache_url).reader("val", variant)


@pytest.mark.parametrize("url", ["{tmp}/nowhere", "{tmp}", "{tmp}/file", "memory://{tmp}/nothing", "local://{tmp}/no"])
def test_where_no_manifest_is_there_is_no_dataset(url, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(DatasetNotFoundError, match=r"manifest\.json\. .*tpufeed shard"):
        open_dataset(url.format(tmp=tmp_path))


def test_tfrecords_of_another_tool_are_for_adopt(tmp_path, write_tfrecords):
    file = write_tfrecords(tmp_path / "train.tfrecord", [{"image": b"x"}])
    for url in (tmp_path, file):
        with pytest.raises(DatasetNotFoundError, match=f"tpufeed adopt {tmp_path} --to DATASET$"):
            open_dataset(url)


def test_shards_without_a_manifest_are_no_dataset(copy):
    (copy / "manifest.json").unlink()
    with pytest.raises(DatasetNotFoundError, match="interrupted"):
        open_dataset(copy)


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
        assert all(len(reader.read(number, 0)) for number in range(len(shards)))
        assert len(looked) == again
    manifest.write_text(manifest.read_text().replace('"class_counts"', '"class_counts" ', 1))
    dataset.reader("train").read(0, 0)  # other bytes, the same content
    other = dataset.manifest.splits["val"]
    changed = msgspec.structs.replace(dataset.manifest, splits={"train": other})
    manifest.write_bytes(encode_manifest(changed))
    with pytest.raises(ObjectChangedError, match="rebuilt"):
        dataset.reader("train").read(1, 0)


def test_a_split_without_records(photo_folder, tmp_path):
    tpufeed.shard(photo_folder, tmp_path / "d", splits="train=0.999999,val=0.000001", workers=1)
    dataset = open_dataset(tmp_path / "d")
    assert list(dataset.iter_examples("val")) == []
    dataset.reader("val")
    with pytest.raises(OptionError, match=r"'val' of .*/d has no samples"):
        dataset.class_weights("val")


# Class weights


def labels_of(dataset, split, key="image/class/label"):
    return np.array([example[key].values[0] for example in dataset.iter_examples(split)])


@pytest.mark.all
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
    with pytest.raises(OptionError, match=r"'test'.* train, val"):
        open_dataset(dataset_url).class_weights("test")
    tpufeed.shard(photo_folder, tmp_path / "d", label="none", workers=1)
    with pytest.raises(OptionError, match="/d has no labels"):
        open_dataset(tmp_path / "d").class_weights("train")


@pytest.mark.parametrize("times", [1, 5])
def test_a_manifest_that_is_published_while_it_is_opened_is_read_again(times, dataset_url, tmp_path, monkeypatch):
    shutil.copytree(dataset_url, tmp_path / "d")
    data, left, stat = (tmp_path / "d/manifest.json").read_bytes(), [times], LocalStore.stat

    def publish(store, name):
        found = stat(store, name)
        if name == "manifest.json" and left[0]:
            left[0] -= 1
            (tmp_path / "new").write_bytes(data)
            os.utime(tmp_path / "new", ns=(left[0], left[0]))
            (tmp_path / "new").replace(tmp_path / "d/manifest.json")
        return found

    monkeypatch.setattr(LocalStore, "stat", publish)
    if times == 1:
        assert open_dataset(tmp_path / "d").content_digest == open_dataset(dataset_url).content_digest
    else:
        with pytest.raises(ObjectChangedError):
            open_dataset(tmp_path / "d")
