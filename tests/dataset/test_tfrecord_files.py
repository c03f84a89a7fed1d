"""Which files are TFRecords, and which split their names tell."""

import pytest

from tpufeed.dataset.tfrecord_files import find_splits, sort_files
from tpufeed.errors import NoInputsError, OptionError
from tpufeed.storage.store import ObjectInfo


def splits_of(*names, url="/data"):
    return find_splits(url, names)


def sort(*names, wanted=None):
    return sort_files("/data", [ObjectInfo(name, 1, "") for name in names], wanted)


@pytest.mark.parametrize(
    "name",
    [
        *("a.tfrecord", "a.tfrecords", "a.tfrec", "A.TFRECORD", "a.tfrecord.gz", "00-224x224-798.tfrec"),
        *("train-00000-of-01024", "flowers-train.tfrecord-00000-of-00002", "train-00000-of-00012.tfrecord"),
        *("x/y/a.tfrec", "my.set-train.tfrecord-00000-of-00002"),
    ],
)
def test_files_that_are_taken(name):
    found = sort(name, "labels.csv")
    assert [info.name for infos in found.splits.values() for info in infos] == [name]
    assert found.ignored == {".csv": 1}


@pytest.mark.parametrize(
    "name",
    [
        *("a.tfrecord.txt", "tfrecord", "a.tar", "a.tfrecord-index", "a.array_record-00000-of-00002", "manifest.json"),
        *("train-of-thought", "_tpufeed/tmp/x/a.tfrecord", "features.json"),
    ],
)
def test_files_that_are_not(name):
    with pytest.raises(NoInputsError):
        sort(name)


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("train/00-224x224-798.tfrec", "train"),
        ("tfrecords-jpeg-224x224/val/00-224x224-232.tfrec", "val"),
        ("Validation/part/a.tfrec", "Validation"),
        ("train-00000-of-00012.tfrecord", "train"),
        ("validation-00000-of-00128", "validation"),
        ("flowers-test.tfrecord-00000-of-00002", "test"),
        ("train_station-test.tfrecord-00000-of-00002", "test"),
        ("train_00.tfrec", "train"),
        ("ld_train00-1338.tfrec", "train"),
        ("test07-687.tfrec", "test"),
        ("flowers00-192x192-230.tfrec", "train"),
        ("anything.tfrecord", "train"),
        ("only_folder/a.tfrecord", "train"),
    ],
)
def test_the_split_of_a_name(name, split):
    assert splits_of(name) == {name: split}


@pytest.mark.parametrize(
    ("url", "names", "splits"),
    [
        ("/data/val/", "00.tfrec", "val"),  # the folder that is given names the split
        ("gs://bucket/train", "00.tfrec", "train"),
        ("/data", "a/x.tfrec a/y.tfrec b-1/x.tfrec", "a a b_1"),  # folders whose names are no words for splits
        ("/data", "root/a/x.tfrec root/b/x.tfrec", "a b"),
        ("/data", "train/x.tfrec test-00000-of-00001.tfrecord", "train test"),
        # Prefixes that share a word stay apart; without any word they are one split.
        (
            "/data",
            "train_a-0-of-1 train_b-0-of-1 val-v0-0-of-1 val-v1-0-of-1 new-0-of-1",
            "train_a train_b val_v0 val_v1 new",
        ),
        ("/data", "cats-00000-of-00002.tfrecord dogs-00000-of-00002.tfrecord", "train train"),
    ],
)
def test_the_splits_of_several_names(url, names, splits):
    assert splits_of(*names.split(), url=url) == dict(zip(names.split(), splits.split(), strict=True))


def test_one_split_in_several_folders_is_refused():
    names = [f"tfrecords-jpeg-{size}/train/00.tfrec" for size in ("192x192", "224x224")]
    with pytest.raises(OptionError, match=r"'train' .* 2 folders \(tfrecords-jpeg-192x192/train, "):
        splits_of(*names)


def test_order_and_choice():
    names = ("train/2.tfrec", "train/10.tfrec", "val/0.tfrec", "test/0.tfrec")
    found = sort(*names)
    assert {split: [info.name for info in infos] for split, infos in found.splits.items()} == {
        "test": ["test/0.tfrec"],
        "train": ["train/10.tfrec", "train/2.tfrec"],
        "val": ["val/0.tfrec"],
    }
    assert list(sort(*names, wanted=["val", "train"]).splits) == ["val", "train"]
    with pytest.raises(OptionError, match=r"'dev'\. .* test, train, val"):
        sort(*names, wanted=["dev"])
