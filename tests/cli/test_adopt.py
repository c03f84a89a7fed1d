"""The command `tpufeed adopt`."""

import json
import re
import shutil

import pytest

from tests.tfrecords import encode_features, encode_record
from tpufeed.dataset.reader import open_dataset
from tpufeed.tfrecord.example import Feature


@pytest.fixture(scope="module")
def flowers(tmp_path_factory, photos):
    """Kaggle's layout; not to be changed."""
    folder = tmp_path_factory.mktemp("adopt") / "tfrecords-jpeg-224x224"
    for split in ("train", "val", "test"):
        (folder / split).mkdir(parents=True)
        records = []
        for number, data in enumerate(photos.values()):
            label = {} if split == "test" else {"class": Feature("int64", [number % 2])}
            features = {"image": Feature("bytes", [data]), "id": Feature("bytes", [b"%d" % number]), **label}
            records.append(encode_record(encode_features(features)))
        (folder / split / "00-224x224-7.tfrec").write_bytes(b"".join(records))
    (folder / "sample_submission.csv").touch()
    return folder


def test_beside_the_files(run, flowers, tmp_path):
    folder = shutil.copytree(flowers, tmp_path / "flowers")
    done = run("adopt", folder, "--only", "train,val")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == str(folder)
    for line, split in zip(lines[4:6], ("train", "val"), strict=True):
        assert re.fullmatch(rf" *{split} +7 +1 +1 +\d\.\d +\d\.\d *", line)
    assert lines[7:14] == [
        "image: image (bytes)",
        "label: class (int64)",
        "text: none",
        "filename: id (string)",
        "taken as: TFRecord files of another tool",
        "labels: the key class: 2 classes: 0 8, 1 6",
        "splits: the names of folders or files",
    ]
    assert lines[15:17] == ["left out: 1 file not named as TFRecords are (1 .csv)", "images: 6 jpeg, 8 png"]
    assert re.fullmatch(r"adopted \d\.\d MB in \d+\.\d s at [\d,]+ MB/s", lines[17])
    assert lines[18:] == [f"dataset: {folder}"]
    facts = json.loads(run("info", folder, "--json").stdout)
    assert facts["options"]["keys"] == {"image": "image", "label": "class", "text": None, "filename": "id"}
    assert facts["classes"] == {"0": 8, "1": 6}
    assert run("verify", folder).stdout.startswith("sound: 14 records in 2 shards")


def test_elsewhere_with_flags(run, flowers, tmp_path):
    (tmp_path / "classes.txt").write_text("rose\ntulip\n")
    flags = (
        "--image-key",
        "image",
        "--label-key",
        "class",
        "--text-key",
        "none",
        "--filename-key",
        "none",
        "--only",
        "val",
    )
    done = run("adopt", flowers, "--to", tmp_path / "to", *flags, "--classes", tmp_path / "classes.txt")
    assert (done.returncode, done.stderr) == (0, "")
    assert {"filename: none", "columns: id string"} <= set(done.stdout.splitlines())
    assert not (flowers / "manifest.json").exists()
    assert run("info", tmp_path / "to").returncode == 0
    assert json.loads(run("info", tmp_path / "to", "--json").stdout)["classes"] == {"rose": 4, "tulip": 3}
    assert run("verify", tmp_path / "to").returncode == 0
    warmed = run("cache", "warmup", tmp_path / "to", tmp_path / "cache", "--size", "32")
    assert warmed.returncode == 0, warmed.stderr


def test_as_json(run, flowers, tmp_path):
    done = run("adopt", flowers, "--to", tmp_path / "to", "--only", "train,val", "--json")
    facts = json.loads(done.stdout)
    size = (flowers / "train/00-224x224-7.tfrec").stat().st_size
    assert facts["splits"]["train"] == {"images": 7, "variants": 1, "shards": 1, "bytes": size}
    assert (facts["classes"], facts["listed"]["ignored_files"]) == (2, {".csv": 1})
    assert facts["listed"]["classes"] == {"0": 8, "1": 6}
    assert facts["keys"] == {"image": "image", "label": "class", "text": None, "filename": "id"}
    assert facts["content_digest"] == open_dataset(tmp_path / "to").content_digest


def test_features_that_are_left_out_are_said(run, tmp_path, photos):
    values = (Feature("int64", [1]), Feature("bytes", [b"x"]))
    records = [encode_features({"image": Feature("bytes", [photos["china.jpg"]]), "odd": odd}) for odd in values]
    (tmp_path / "train.tfrecord").write_bytes(b"".join(map(encode_record, records)))
    assert "\nfeatures left out: odd\n" in run("adopt", tmp_path, "--label-key", "none").stdout


def test_errors_are_one_line_with_their_code(run, flowers, tmp_path):
    for code, message, *arguments in (
        (1, r"test/00-224x224-7\.tfrec, record 0, byte 0: feature 'class' is missing", flowers),
        (
            2,
            "--label-key foo: there is no such feature; the records have class .int64., id",
            flowers,
            "--label-key",
            "foo",
        ),
        (2, "no TFRecord files below .*nowhere among 0 files", tmp_path / "nowhere"),
    ):
        done = run("adopt", *arguments)
        assert (done.returncode, done.stdout) == (code, "")
        assert re.fullmatch(rf"error: .*{message}.*\n", done.stderr), done.stderr
    assert run("adopt", flowers, "--to", tmp_path / "to", "--only", "train").returncode == 0
    done = run("adopt", flowers, "--to", tmp_path / "to", "--only", "train")
    assert (done.returncode, done.stdout) == (0, f"{tmp_path}/to is adopted already: nothing to do\n")
    done = run("adopt", flowers, "--to", tmp_path / "to", "--only", "val")
    assert done.returncode == 2
    assert "already holds a manifest.json, and it is not of this source, these files" in done.stderr
