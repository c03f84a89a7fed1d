"""Refusals of adopt name the place, the fault and the remedy in one line; nothing is written."""

import io
import itertools
import re
import shutil

import numpy as np
import pytest

import tpufeed
from tpufeed.errors import (
    DatasetExistsError,
    NoInputsError,
    ObjectNotFoundError,
    OptionError,
    RecordError,
    SourceError,
    StoreError,
)


def test_a_folder_without_records(refused, tmp_path):
    (tmp_path / "a.jpg").touch()
    refused(NoInputsError, r"no TFRecord files below .* among 1 files \(1 \.jpg\)\. Give the folder")
    refused(NoInputsError, "the 1 TFRecord files below .* hold no record", [])
    with pytest.raises(NoInputsError, match="among 0 files"):
        tpufeed.adopt(tmp_path / "nowhere")
    (tmp_path / "d").mkdir()
    (tmp_path / "d/manifest.json").touch()
    with pytest.raises(NoInputsError, match=r"0 files \(it is a dataset already\)"):
        tpufeed.adopt(tmp_path / "d", tmp_path / "e")
    with pytest.raises(NoInputsError, match="is a file"):
        tpufeed.adopt(tmp_path / "train.tfrecord")


def test_a_wrong_key_lists_what_there_is(refused, photo):
    records = [{"image": photo, "label": 1, "weight": 0.5, "none": []}]
    there = re.escape("the records have image (bytes), label (int64), none (empty), weight (float)")
    for role in ("image", "label", "text", "filename"):
        refused(OptionError, f"--{role}-key foo: there is no such feature; {there}", records, **{f"{role}_key": "foo"})
    refused(OptionError, f"--text-key label is of kind int64, not bytes; {there}", text_key="label")
    refused(OptionError, rf"feature 'weight' \(float\) is not an encoded image: .*; {there}", image_key="weight")
    refused(OptionError, f"the label 'weight' is of kind float. Labels are int64.*; {there}", label_key="weight")
    refused(OptionError, "--image-key none: a dataset needs images", image_key="none")


def test_what_is_ambiguous(refused, photo):
    several = [{"left": photo, "right": photo, "n": 1}]
    refused(OptionError, "the image could be any of left, right. Choose with --image-key left or another", several)
    message = "the label could be any of n, none. Choose with --label-key n or another"
    refused(OptionError, message, image_key="left")
    refused(OptionError, "the label could be any of label, class, none", [{"image": photo, "label": 1, "class": 2}])


def test_splits_without_labels(refused, photo, tmp_path, write_tfrecords):
    write_tfrecords(tmp_path / "train/0.tfrec", [{"image": photo, "class": 1}])
    write_tfrecords(tmp_path / "test/0.tfrec", [{"image": photo, "id": b"x"}])
    message = (
        r"test/0\.tfrec, record 0, byte 0: feature 'class' is missing. The record has id, image; adopt without "
        r"labels \(--label-key none\), or, if all records of some splits have it, adopt these separately "
        r"\(--only SPLIT --to DST\)"
    )
    refused(RecordError, message)
    refused(OptionError, "has no split 'dev'. The names of its files give test, train", only=["dev"])


@pytest.mark.uses("tensorflow")
def test_tensors_instead_of_images(refused):
    import tensorflow as tf

    pixels = bytes(range(256)) * 12
    serialized = tf.io.serialize_tensor(tf.zeros([16, 16, 3], tf.uint8)).numpy()
    refused(OptionError, "feature 'image' .* is not an encoded image: its 3,072 bytes begin with", [{"image": pixels}])
    refused(OptionError, "serialized", [{"image": serialized}])
    refused(OptionError, r"feature 'image/tensor' \(bytes\) is not an encoded image", [{"image/tensor": pixels}])
    refused(OptionError, r"feature 'image' \(int64\) is not an encoded image", [{"image": list(pixels)}])
    refused(OptionError, "no feature holds an encoded image; the records have x", [{"x": pixels}])


def test_a_first_image_that_is_none(refused, photo, tmp_path, write_tfrecords):
    write_tfrecords(tmp_path / "a.tfrecord", [{"image": photo}])
    refused(OptionError, r"b\.tfrecord, record 0, byte 0: .* as no image file", [{"image": b"x"}], name="b.tfrecord")
    cut = [{"image": photo[:40]}]
    refused(OptionError, r"b\.tfrecord, record 0.* begin with b'\\xff\\xd8.*, but", cut, name="b.tfrecord")


def test_a_destination_that_is_taken(photo, tmp_path, write_tfrecords, dataset_url):
    write_tfrecords(tmp_path / "a/x.tfrecord", [{"image": photo}])
    tpufeed.adopt(tmp_path / "a")
    before = (tmp_path / "a/manifest.json").read_bytes()

    def refused(*places, **options):
        with pytest.raises(DatasetExistsError, match=r"manifest\.json, .*not of this source"):
            tpufeed.adopt(*places, **options)

    refused(tmp_path / "a", dataset_url)
    refused(dataset_url)
    refused(tmp_path / "a", image_key="other")
    refused(tmp_path / "a", classes=["rose"])
    refused(tmp_path / "a", exif="apply")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    refused(tmp_path / "b")
    write_tfrecords(tmp_path / "a/y.tfrecord", [{"image": photo}])
    refused(tmp_path / "a")
    (tmp_path / "a/y.tfrecord").unlink()
    (tmp_path / "a/train.index.npy").unlink()
    with pytest.raises(DatasetExistsError, match="lacks an index"):
        tpufeed.adopt(tmp_path / "a")
    assert (tmp_path / "a/manifest.json").read_bytes() == before


@pytest.mark.parametrize("manifest", ['{"name": "kaggle"}', "[1]", "{"])
def test_a_manifest_that_is_none_of_ours_is_left_alone(manifest, photo, tmp_path, write_tfrecords):
    write_tfrecords(tmp_path / "x.tfrecord", [{"image": photo}])
    (tmp_path / "manifest.json").write_text(manifest)
    with pytest.raises(DatasetExistsError, match=r"manifest.json.*--to"):
        tpufeed.adopt(tmp_path)
    assert (tmp_path / "manifest.json").read_text() == manifest


def test_a_destination_that_is_a_file(refused, photo, tmp_path):
    (tmp_path / "file").touch()
    for target in (tmp_path / "file", tmp_path / "file/below"):
        refused(
            OptionError,
            "cannot be a dataset's folder: .*file is a file. Take another destination",
            [{"image": photo}],
            dst=target,
        )


def test_a_folder_that_cannot_be_written_to(refused, photo, monkeypatch):
    asked = []
    monkeypatch.setattr("os.access", lambda path, _mode: asked.append(path))  # root may write anywhere
    refused(
        OptionError, r"cannot be written: .*. Give another place for manifest and index with --to", [{"image": photo}]
    )
    assert asked


def test_names_that_no_manifest_can_hold(refused, photo, tmp_path, write_tfrecords):
    write_tfrecords(tmp_path / "new\nline.tfrecord", [{"image": photo}])
    refused(SourceError, r"'new\\nline\.tfrecord' is not printable UTF-8. Rename it")


def test_a_link_to_nothing_is_no_empty_shard(refused, photo, tmp_path):
    (tmp_path / "b.tfrecord").symlink_to(tmp_path / "nowhere")
    with pytest.raises(StoreError, match=r"b\.tfrecord"):
        tpufeed.adopt(tmp_path)


def test_shards_that_are_missing_later_are_named(photo, tmp_path, write_tfrecords):
    for name in ("a", "b"):
        write_tfrecords(tmp_path / f"from/{name}.tfrecord", [{"image": photo}])
    tpufeed.adopt(tmp_path / "from", tmp_path / "to")
    shutil.move(tmp_path / "from", tmp_path / "gone")
    with pytest.raises((tpufeed.errors.ShardError, ObjectNotFoundError), match=r"from/a\.tfrecord"):
        list(itertools.islice(tpufeed.open_dataset(tmp_path / "to").iter_examples("train"), 1))


@pytest.mark.parametrize("there", [b"mine", b"", "numbers", "another"])
def test_an_index_of_somebody_else_stays(refused, photo, there, tmp_path):
    if isinstance(there, str):
        buffer = io.BytesIO()
        np.save(
            buffer, np.array([0, 5] if there == "another" else [1.5, 2]).astype("u8" if there == "another" else "f8")
        )
        there = buffer.getvalue()
    (tmp_path / "train.index.npy").write_bytes(there)
    refused(DatasetExistsError, r"train\.index\.npy exists already, and is not an index of", [{"image": photo}])


def test_an_index_that_an_adoption_left_before_its_manifest_is_taken(photo, tmp_path, write_tfrecords):
    write_tfrecords(tmp_path / "train.tfrecord", [{"image": photo}, {"image": photo}])
    tpufeed.adopt(tmp_path)
    (tmp_path / "manifest.json").unlink()
    assert tpufeed.adopt(tmp_path).manifest.splits["train"].records == 2
