"""Refusals of records by adopt name the place, the fault and the remedy in one line."""

import re
import shutil
import subprocess

import tpufeed
from tests.tfrecords import write_file
from tpufeed.errors import (
    OptionError,
    RecordError,
)


def test_records_that_differ_later(refused, photo):
    good = {"image": photo, "label": 1}
    for bad, message in (
        ({"label": 1}, "feature 'image' is missing. The record has label; choose another with --image-key"),
        ({"image": [], "label": 1}, "feature 'image' has 0 values instead of one"),
        ({"image": 7, "label": 1}, "feature 'image' holds 7, not an image"),
        ({"image": photo}, "feature 'label' is missing. .*--label-key none.* --to DST"),
        ({"image": photo, "label": [1, 2]}, "feature 'label' has 2 values instead of one"),
        ({"image": photo, "label": b"cat"}, "feature 'label' is not int64"),
        ({"image": photo, "label": -1}, "the label 'label' is -1. Classes count from 0"),
    ):
        refused(RecordError, rf"train\.tfrecord, record 1, byte \d{{5,}}: {message}", [good, bad])


def test_labels_that_are_no_classes(refused, photo, tmp_path):
    message = "the label 'class' is of kind bytes. Labels are int64, and turning names into numbers would rewrite"
    refused(
        OptionError,
        rf"train\.tfrecord, record 0, byte 0: {message}.*--label-key none",
        [{"image": photo, "class": b"a"}],
    )
    refused(
        OptionError,
        "record 0, byte 0: the label 'label' is 10000000, expected 0 to 999,999",
        [{"image": photo, "label": 10**7}],
    )
    refused(
        OptionError,
        "record 0, byte 0: the label 'label' is 2, expected 0 to 1",
        [{"image": photo, "label": 2}],
        classes=["a", "b"],
    )
    refused(OptionError, "--classes names the classes of labels, but there are none", classes=["a"], label_key="none")
    refused(OptionError, "the classes in .*nowhere cannot be read", classes=tmp_path / "nowhere")
    (tmp_path / "classes.txt").write_text("a\n\nb\n")
    refused(OptionError, r"line 2 of .*classes\.txt is blank, but each line", classes=tmp_path / "classes.txt")
    refused(OptionError, "the class 'a' is twice in the list of classes", classes=["a", "b", "a"])


def test_compressed_shards(refused, photo, tmp_path, write_tfrecords):
    for name in ("x.tfrecord", "y.tfrecord.gz"):
        path = write_tfrecords(tmp_path / name, [{"image": photo}], "GZIP")
        error = refused(OptionError, rf"{name} is compressed \(gzip\)\. .* cannot be adopted. First gunzip")
        subprocess.run(re.search(r"mkdir .*", error)[0], shell=True, cwd=tmp_path, check=True)
        path.unlink()
        assert [found.name for found in (tmp_path / "unpacked").iterdir()] == [name.removesuffix(".gz")]
        assert sum(split.records for split in tpufeed.adopt(tmp_path / "unpacked").manifest.splits.values()) == 1
        shutil.rmtree(tmp_path / "unpacked")
    write_tfrecords(tmp_path / "x.tfrecord", [{"image": photo}], "ZLIB")
    refused(RecordError, r"x\.tfrecord, record 0, byte 0: .*not a TFRecord file, or it is damaged or compressed")


def test_damage(refused, photo, tmp_path, write_tfrecords):
    path = write_tfrecords(tmp_path / "x.tfrecord", [{"image": photo, "id": b"%d" % n} for n in range(3)])
    sound = path.read_bytes()
    second = len(sound) // 3
    for cut in (1, 8, 200):
        path.write_bytes(sound[:-cut])
        refused(RecordError, rf"x\.tfrecord, record 2, byte {2 * second}: truncated")
    path.write_bytes(sound[: second + 7])
    refused(RecordError, rf"x\.tfrecord, record 1, byte {second}: truncated: 7 bytes are left")
    for at, message in ((second + 3, "the CRC of the record's length"), (second + 2000, "the CRC of the payload")):
        path.write_bytes(sound[:at] + bytes([sound[at] ^ 1]) + sound[at + 1 :])
        refused(RecordError, rf"x\.tfrecord, record 1, byte {second}: {message}")
    path.write_bytes(b"a text, and no records")
    refused(RecordError, "record 0, byte 0: the CRC of the record's length .*; this is not a TFRecord file")
    path.write_bytes(b"short")
    refused(RecordError, "record 0, byte 0: truncated: 5 bytes are left")


def test_records_that_are_no_examples(refused, tmp_path):
    write_file(tmp_path / "x.tfrecord", [b"\xff\xff not a message"])
    refused(RecordError, r"x\.tfrecord, record 0, byte 0: not a tf\.train\.Example")


def test_damage_in_one_shard_of_many_ends_the_scan(refused, photo, tmp_path, write_tfrecords):
    for number in range(12):
        path = write_tfrecords(tmp_path / f"train-{number:05d}-of-00012.tfrecord", [{"image": photo}] * 4)
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    refused(RecordError, r"train-00011-of-00012\.tfrecord, record 3")
