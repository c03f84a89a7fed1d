"""`tpufeed` without a command: its beginnings, and commands for the working folder, which run as they are printed."""

import itertools
import os
import shlex
import shutil
from contextlib import contextmanager

import pytest

import tpufeed
from tests.tfrecords import encode_features, encode_record
from tpufeed.cli.start import _MOST_NAMES, suggest
from tpufeed.tfrecord.example import Feature


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The working folder, called mine, in an empty one."""
    folder = tmp_path / "mine"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def copy(photo_folder, *targets):
    """Copy a few photographs to each target: their folder of classes, or one class."""
    for target in targets:
        shutil.copytree(photo_folder / "cat" if target.name in ("cat", "dog") else photo_folder, target)


def follow(run, *expected):
    """Compare the commands that are printed for the folder, and run them."""
    done = run()
    assert (done.returncode, done.stderr) == (0, "")
    for beginning in ("shard photos", "adopt tfrecords", "doctor flowers"):
        assert f" tpufeed {beginning}" in done.stdout
    lines = done.stdout.partition("For this folder:\n\n")[2].partition("\n\n")[0].splitlines()
    commands = [line.strip() for line in lines]
    assert commands == list(expected)
    for command in commands:
        ran = run(*shlex.split(command)[1:])
        assert ran.returncode == 0, ran.stderr


def test_a_folder_of_class_folders(run, here, photo_folder):
    copy(photo_folder, here / "cat", here / "dog")
    follow(run, "tpufeed shard . ../mine-dataset")
    assert tpufeed.open_dataset(here.parent / "mine-dataset").class_names == ("cat", "dog")


def test_the_folder_above_it_that_has_a_dataset_too(run, here, photo_folder, dataset_url):
    copy(photo_folder, here / "my photos")
    shutil.copytree(dataset_url, here / "flowers")
    follow(run, "tpufeed info flowers", "tpufeed shard 'my photos' 'my photos-dataset'")


def test_folders_of_splits(run, here, photo_folder):
    copy(photo_folder, here / "train", here / "val")
    follow(run, "tpufeed shard . ../mine-dataset")
    assert set(tpufeed.open_dataset(here.parent / "mine-dataset").manifest.splits) == {"train", "val"}


@pytest.mark.parametrize("folder", ["", "train", "of-others"])
def test_tfrecords_of_others(run, here, photo_folder, folder):
    features = {
        "image": Feature("bytes", [next(photo_folder.glob("*/*.jpg")).read_bytes()]),
        "class": Feature("int64", [1]),
    }
    (here / folder).mkdir(exist_ok=True)
    (here / folder / "flowers00-2.tfrec").write_bytes(2 * encode_record(encode_features(features)))
    follow(run, f"tpufeed adopt {folder if folder == 'of-others' else '.'}")
    assert tpufeed.open_dataset(folder if folder == "of-others" else ".").split("train").records == 2


def test_a_dataset(run, here, dataset_url):
    shutil.copytree(dataset_url, here, dirs_exist_ok=True)
    follow(run, "tpufeed info .")


def test_tars(run, here, photo_folder):
    shutil.make_archive(str(here / "flowers-0000"), "tar", photo_folder / "cat")
    follow(run, "tpufeed shard . ../mine-dataset")


def test_a_table_with_images_beside_it(run, here, photo_folder):
    copy(photo_folder, here / "images")
    rows = [f"images/{path.parent.name}/{path.name},{path.parent.name}\n" for path in photo_folder.glob("*/*.jpg")]
    (here / "train.csv").write_text("path,label\n" + "".join(rows))
    (here / "sample_submission.csv").write_text("id,label\n")
    follow(run, "tpufeed shard train.csv ../mine-dataset")


def test_images_beside_their_annotations_are_one_source(here):
    for name in ("JPEGImages", "Annotations"):
        (here / name).mkdir()
    (here / "JPEGImages/1.jpg").touch()
    (here / "Annotations/1.xml").touch()
    assert suggest(here) == ["tpufeed shard . ../mine-dataset"]


def test_an_empty_folder(run, here):
    done = run()
    assert done.returncode == 0
    assert "For this folder:\n\n  it seems to hold no images, tars, TFRecords or datasets\n\n" in done.stdout


def test_of_a_million_names_it_reads_the_first(here, monkeypatch):
    (here / "notes.txt").touch()
    with os.scandir(here) as entries:
        (entry,) = entries

    @contextmanager
    def scan(_):
        def names():
            yield from itertools.repeat(entry, _MOST_NAMES)
            raise AssertionError("it reads on")

        yield names()

    monkeypatch.setattr(os, "scandir", scan)
    assert suggest(here) == []
