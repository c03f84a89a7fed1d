"""A folder of images with texts beside them, by the rules of tars."""

import json

import pytest

import tpufeed
from tests.sharding.outputs import rejects_of, samples_of
from tpufeed.errors import NoInputsError, OptionError, SourceError

SPLITS = ("train", "val", "train")


@pytest.fixture
def folder(small_jpegs, tmp_path):
    """`folder(**{name: data})`: three captioned images as img2dataset writes them, and other files."""

    def make(files=()):
        for number in range(3):
            at = tmp_path / f"src/00000/{number:06d}"
            at.parent.mkdir(parents=True, exist_ok=True)
            at.with_suffix(".jpg").write_bytes(small_jpegs[number])
            at.with_suffix(".txt").write_text(f"größe {number}\n", "utf-8")
            at.with_suffix(".json").write_text(json.dumps({"captions": [f"a {number}", "b"], "kind": f"k{number % 2}"}))
        (tmp_path / "src/00000_stats.json").write_text("{}")
        for name, data in dict(files).items():
            (tmp_path / "src" / name).parent.mkdir(exist_ok=True)
            (tmp_path / "src" / name).write_bytes(data)
        return tmp_path / "src"

    return make


def test_texts_become_columns_and_labels(folder, small_jpegs, tmp_path):
    result = tpufeed.shard(folder(), tmp_path / "d", texts=True, label="kind", workers=1)
    assert (result.manifest.class_names, result.listed.ignored_files) == (("k0", "k1"), {".json": 1})
    assert [each.name for each in result.manifest.features[-2:]] == ["captions", "txt"]
    found = samples_of(result.url)
    assert sorted(found) == [f"00000/{number:06d}.jpg" for number in range(3)]
    for number, features in enumerate(found[name] for name in sorted(found)):
        assert features["image/encoded"] == [small_jpegs[number]]
        assert features["txt"] == [f"größe {number}".encode()]
        assert features["captions"] == [f"a {number}".encode(), b"b"]


def test_cls_is_the_label_and_folders_of_splits_are_splits(small_jpegs, tmp_path):
    for number, split in enumerate(SPLITS):
        at = tmp_path / f"src/{split}/{number}"
        at.parent.mkdir(parents=True, exist_ok=True)
        at.with_suffix(".JPG").write_bytes(small_jpegs[number])
        at.with_suffix(".cls").write_text(f"c{number}")
    result = tpufeed.shard(tmp_path / "src", tmp_path / "d", texts=True, workers=1)
    assert {split: info.records for split, info in result.manifest.splits.items()} == {"train": 2, "val": 1}
    labels = {path: features["image/class/label"] for path, features in samples_of(result.url).items()}
    assert (labels, result.manifest.class_names) == (
        {f"{split}/{number}.JPG": [number] for number, split in enumerate(SPLITS)},
        ("c0", "c1", "c2"),
    )


def test_a_caption_without_its_image_is_a_reject(folder, tmp_path):
    result = tpufeed.shard(folder({"a/9.txt": b"lost"}), tmp_path / "d", texts=True, label="none", workers=1)
    (reason, message) = rejects_of(result.url)["a/9.txt"]
    assert (reason, message.partition(".")[0]) == ("unreadable", "the sample has no image, only txt")


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"00000/000001.txt": b"\xff\xfe\xff"}, r"00000/000001: its \.txt is not readable.*UTF-8"),
        ({"00000/000001.json": b"[1]"}, r"00000/000001: its \.json does not hold an object"),
        ({"00000/000001.json": b"{"}, r"00000/000001: its \.json is not readable"),
        ({"00000/000001.TXT": b"a"}, r"000001\.txt: another file is .*000001\.TXT"),
        ({"00000/000001.txt": b"a" * (2 << 20)}, r"has 2097152 bytes"),
    ],
)
def test_bad_texts_are_named(folder, tmp_path, files, said):
    with pytest.raises(SourceError, match=said):
        tpufeed.shard(folder(files), tmp_path / "d", texts=True, label="none", workers=1)


def test_what_has_no_texts(folder, tmp_path):
    (tmp_path / "t.csv").write_text("path\nsrc/00000/000000.jpg\n")
    with pytest.raises(OptionError, match="--texts is for a folder"):
        tpufeed.shard(tmp_path / "t.csv", tmp_path / "d", texts=True, workers=1)
    with pytest.raises(OptionError, match="folders of splits"):
        tpufeed.shard(folder(), tmp_path / "d", texts=True, split_by="folder", workers=1)
    (tmp_path / "none").mkdir()
    (tmp_path / "none/a.bin").touch()
    with pytest.raises(NoInputsError, match=r"0001\.jpg"):
        tpufeed.shard(tmp_path / "none", tmp_path / "d", texts=True, workers=1)
    with pytest.raises(OptionError, match="nowhere"):
        tpufeed.shard(folder(), tmp_path / "d", texts=True, label="nowhere", workers=1)
