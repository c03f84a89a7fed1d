"""Folders of images with metadata.csv, .jsonl or .parquet, as Hugging Face's imagefolder has them."""

import json
import shutil

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet

import tpufeed
from tests.sharding.outputs import rejects_of, texts_of
from tpufeed.errors import NoInputsError, OptionError, SourceError
from tpufeed.sources.table import iter_head
from tpufeed.storage.memory import MemoryStore

OBJECTS = [
    {"bbox": [[1, 2, 10, 12], [0, 0, 4.5, 4]], "categories": [1, 0], "area": [120, 18], "id": [5, 6]},
    {"bbox": [], "categories": [], "area": [], "id": []},
    {"bbox": [[5, 5, 5, 5]], "categories": [1], "area": [25], "id": [7]},
]


@pytest.fixture
def folder(tmp_path):
    """`folder(rows, name, images)`: a folder of images of 64x48 pixels with a metadata file, if there are rows."""

    def make(rows, name="metadata.jsonl", images=("0.png", "1.png", "2.png")):
        root = tmp_path / "photos"
        path = root / name
        for number, image in enumerate(images):
            (root / image).parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.full((48, 64, 3), number * 20, np.uint8)).save(root / image)
        if name.endswith("parquet"):
            parquet.write_table(pa.Table.from_pylist(rows), path)
        elif name.endswith("csv"):
            path.write_text(
                "".join(",".join(map(str, row)) + "\n" for row in [rows[0], *(row.values() for row in rows)])
            )
        else:
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return root

    return make


def rows_of(**columns):
    return [
        {"file_name": f"{n}.png", **dict(zip(columns, values, strict=True))}
        for n, values in enumerate(zip(*columns.values(), strict=True))
    ]


def shard(source, folder, **options):
    result = tpufeed.shard(source, folder, workers=1, **options)
    tpufeed.verify(result.url, decode="all")
    return result


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_columns_are_those_of_the_metadata(suffix, folder, tmp_path):
    source = folder(rows_of(text=["a", "b"], label=["cow", "cat"]), f"metadata.{suffix}", ["0.png", "1.png", "x/2.png"])
    (source / "README.md").write_text("of photos")
    result = shard(source, tmp_path / "d")
    samples = texts_of(result.url)
    assert {path: (sample["text"], sample["image/class/text"]) for path, sample in samples.items()} == {
        "0.png": (["a"], ["cow"]),
        "1.png": (["b"], ["cat"]),
    }
    (said,) = result.warnings
    assert f"metadata.{suffix}" in said
    assert "1 other images" in said
    assert result.listed.ignored_files == {".md": 1}


@pytest.mark.parametrize("form", ["object", "list", "parquet"])
def test_objects(form, folder, tmp_path):
    lists = [[dict(zip(one, values, strict=True)) for values in zip(*one.values(), strict=True)] for one in OBJECTS]
    rows = rows_of(objects=lists if form == "list" else OBJECTS)
    result = shard(folder(rows, "metadata.parquet" if form == "parquet" else "metadata.jsonl"), tmp_path / "d")
    samples = texts_of(result.url)
    names = ["objects.bbox", "image/class/label", "objects.area", "objects.id"]
    assert {path: [sample[name] for name in names] for path, sample in samples.items()} == {
        "0.png": [[1, 2, 11, 14, 0, 0, 4.5, 4], [1, 0], [120, 18], [5, 6]],
        "1.png": [[], [], [], []],
        "2.png": [[5, 5, 10, 10], [1], [25], [7]],
    }
    owners = {spec.name: spec.of for spec in result.manifest.features}
    assert {owners[name] for name in names[1:]} == {"objects.bbox"}
    assert any("--box-format xyxy" in warning for warning in result.warnings)


def test_the_user_says_what_boxes_are(folder, tmp_path):
    source = folder(rows_of(objects=[{"bbox": [[1, 2, 10, 12]], "name": ["cat"], "area": [9]}]))
    options = {"boxes": tpufeed.Boxes(column="objects.bbox", format="xyxy"), "label": "none"}
    result = shard(source, tmp_path / "d", **options)
    sample = texts_of(result.url)["0.png"]
    assert (sample["objects.bbox"], sample["objects.name"], sample["objects.area"]) == ([1, 2, 10, 12], ["cat"], [9])
    assert "image/class/label" not in sample
    sample = texts_of(shard(source, tmp_path / "e", label="objects.area").url)["0.png"]
    assert (sample["objects.bbox"], sample["image/class/label"]) == ([1, 2, 11, 14], [9])


def test_splits_have_their_own_metadata(folder, tmp_path):
    folder(rows_of(text=["a"]), "train/metadata.jsonl", ["train/0.png", "train/1.png"])
    source = folder(rows_of(text=["b"]), "test/metadata.csv", ["test/0.png"])
    result = shard(source, tmp_path / "d")
    assert {name: split.records for name, split in result.manifest.splits.items()} == {"test": 1, "train": 1}
    assert {path: sample["text"] for path, sample in texts_of(result.url).items()} == {
        "train/0.png": ["a"],
        "test/0.png": ["b"],
    }
    shares = shard(source, tmp_path / "e", splits="train=1.0")
    assert {name: split.records for name, split in shares.manifest.splits.items()} == {"train": 2}


@pytest.mark.parametrize("split_by", [None, "folder"])
def test_metadata_above_the_folders_of_splits(split_by, folder, tmp_path):
    rows = [{"file_name": name, "text": name} for name in ("train/0.png", "val/0.png")]
    source = folder(rows, images=[row["file_name"] for row in rows])
    result = shard(source, tmp_path / "d", split_by=split_by)
    assert {name: split.records for name, split in result.manifest.splits.items()} == {"train": 1, "val": 1}


def test_a_split_may_be_a_column(folder, tmp_path):
    result = shard(folder(rows_of(part=["a", "b"])), tmp_path / "d", split_by="part", label="none")
    assert {name: split.records for name, split in result.manifest.splits.items()} == {"a": 1, "b": 1}


def test_class_folders_are_no_labels(folder, tmp_path):
    rows = [{"file_name": "cat/0.png", "text": "a"}, {"file_name": "cow/1.png", "text": "b"}]
    result = shard(folder(rows, images=["cat/0.png", "cow/1.png"]), tmp_path / "d")
    assert result.manifest.class_names == ()
    assert any("Folders are no classes" in warning for warning in result.warnings)
    assert any("--label" in warning for warning in result.warnings)


def test_further_images_are_beside_the_metadata(folder, tmp_path):
    rows = [{"file_name": "0.png", "other": "1.png", "label": "a"}]
    source = folder(rows, "train/metadata.jsonl", ["train/0.png", "train/1.png"])
    options = {"image_columns": {"second": "other:image"}, "label": "none"}
    result = shard(source, tmp_path / "d", **options)
    assert len(texts_of(result.url)["train/0.png"]["second"]) == 1
    assert not any("left out" in said for said in result.warnings)  # both are taken
    assert any("--label none" in said for said in result.warnings)


def test_frames_of_clips_are_beside_the_metadata(folder, tmp_path):
    names = ["0.png", "1.png", "2.png"]
    source = folder([{"file_name": names}], "train/metadata.jsonl", [f"train/{name}" for name in names])
    result = shard(source, tmp_path / "d", images=tpufeed.Images(frames=3))
    assert len(texts_of(result.url)["train/0.png"]["image/encoded"]) == 3
    assert not any("left out" in said for said in result.warnings)


def test_the_first_rows_may_be_long(folder, tmp_path):
    text = '"' + "a\n" * (1 << 20) + '"'
    source = folder(rows_of(text=[text, text]), "metadata.csv")
    assert shard(source, tmp_path / "d").images == 2
    (source / "metadata.csv").unlink()
    result = shard(folder(rows_of(text=[text], objects=OBJECTS[:1])), tmp_path / "e")
    assert "boxes" in [spec.kind for spec in result.manifest.features]


def test_only_the_first_rows_of_a_remote_file_are_read_ahead(tmp_path, monkeypatch):
    store, stops = MemoryStore(f"memory://{tmp_path.name}"), []
    store.put("metadata.jsonl", b'{"file_name": "0.png"}\n' * (1 << 19))
    monkeypatch.setattr(
        *(store, "read_range", lambda *span: stops.append(span[2]) or MemoryStore.read_range(store, *span))
    )
    assert next(iter_head(store, "metadata.jsonl")) == {"file_name": "0.png"}
    assert max(stops) <= 4 << 20


def test_new_images_may_have_no_boxes(folder, tmp_path):
    """Lists without any box are boxes, as the name of their column says."""
    shard(folder(rows_of(objects=OBJECTS)), tmp_path / "d")
    empty = folder(rows_of(objects=[OBJECTS[1]] * 3)[2:])
    Image.fromarray(np.full((48, 64, 3), 200, np.uint8)).save(empty / "2.png")
    assert tpufeed.append(empty, tmp_path / "d", workers=1).added == 1
    assert [sample["objects.bbox"] for sample in texts_of(tmp_path / "d").values()].count([]) == 2


def test_a_grown_folder_is_appended(folder, tmp_path):
    rows = rows_of(objects=OBJECTS)
    shard(folder(rows[:1]), tmp_path / "d")
    result = tpufeed.append(folder(rows), tmp_path / "d", workers=1)
    assert (result.added, result.skipped) == (2, 1)
    assert texts_of(tmp_path / "d")["2.png"]["objects.bbox"] == [5, 5, 10, 10]


@pytest.mark.parametrize(
    ("row", "path", "reason", "words"),
    [
        ({"file_name": "9.png"}, "9.png", "unreadable", ["no such file", "row 3"]),
        ({"file_name": "../x.png"}, "../x.png", "unreadable", []),
        ({"file_name": "0.png", "objects": OBJECTS[0]}, "0.png", "bad_column", ["rows 1 and 3", "one row per image"]),
        (
            {"file_name": "2.png", "objects": {"bbox": [[1, "wide", 3, 4]], "categories": [0]}},
            "2.png",
            "bad_box",
            ["wide"],
        ),
        ({"file_name": "2.png", "objects": {"bbox": [[1, 2, 3]], "categories": [0]}}, "2.png", "bad_box", []),
        ({"file_name": "2.png", "objects": {"bbox": [[1, 2, 0, 3]], "categories": [0]}}, "2.png", "bad_box", []),
        (
            {"file_name": "2.png", "objects": {"bbox": [[1, 2, 3, 3]], "categories": [0, 1]}},
            "2.png",
            "bad_box",
            ["for"],
        ),
    ],
)
def test_rows_that_are_rejected(row, path, reason, words, folder, tmp_path):
    defaults = {"objects": {"bbox": [], "categories": []}}
    rows = rows_of(objects=OBJECTS[:2])
    result = shard(folder([{k: v for k, v in one.items()} for one in [*rows, defaults | row]]), tmp_path / "d")
    rejects = rejects_of(result.url)
    assert rejects.keys() == {path}
    assert rejects[path][0] == reason
    assert all(word in rejects[path][1] for word in words), rejects


def test_two_files_of_metadata(folder, tmp_path):
    folder(rows_of(text=["a"]), "metadata.csv")
    with pytest.raises(OptionError, match=r"metadata\.csv and metadata\.jsonl"):
        shard(folder(rows_of(text=["a"])), tmp_path / "d")


def test_metadata_without_names_of_files(folder, tmp_path):
    source = folder([{"image": "0.png", "text": "a"}])
    with pytest.raises(OptionError, match="no column 'file_name'"):
        shard(source, tmp_path / "d")
    assert shard(source, tmp_path / "d", image="image", label="none").images == 1


@pytest.mark.parametrize(
    ("text", "error"), [("{", SourceError), ("", NoInputsError), ("[1]\n", SourceError), ('{"a": 1}\n{', SourceError)]
)
def test_metadata_that_cannot_be_read(text, error, folder, tmp_path):
    source = folder(rows_of(text=["a"]))
    (source / "metadata.jsonl").write_text(text)
    with pytest.raises(error, match=r"metadata\.jsonl"):
        shard(source, tmp_path / "d")


def test_an_image_in_no_folder_of_a_split(folder, tmp_path):
    source = folder(rows_of(text=["a"]), images=["0.png", "train/1.png"])
    with pytest.raises(SourceError, match=r"row 1: 0\.png"):
        shard(source, tmp_path / "d", split_by="folder")


def test_masks_are_of_a_folder_without_metadata(folder, tmp_path):
    """Masks mirror all images, so that the folder is read as without metadata."""
    source = folder(rows_of(text=["a"]))
    (tmp_path / "masks").mkdir()
    for number in range(3):
        Image.fromarray(np.zeros((48, 64), np.uint8)).save(tmp_path / f"masks/{number}.png")
    assert shard(source, tmp_path / "d", masks=tmp_path / "masks").images == 3


@pytest.mark.parametrize("test", [{}, {"objects": {"bbox": [], "categories": []}}])
def test_all_files_of_metadata_say_together_what_belongs_to_boxes(test, folder, tmp_path):
    whole = {"objects": {"bbox": [[2, 2, 10, 10], [30, 10, 10, 10]], "categories": ["car", "bus"], "area": [100, 9]}}
    for split, more in (("test", test), ("train", whole)):
        rows = [{"file_name": "0.png", "n": 1, **more}]
        source = folder(rows, f"{split}/metadata.jsonl", [f"{split}/0.png"])
    result = shard(source, tmp_path / "d", images=tpufeed.Images(presize=24, presize_mode="fit"))
    samples = texts_of(result.url)
    names = ["objects.bbox", "image/class/text", "objects.area"]
    # The middle 48 of 64 pixels: the first box is cut at the left, the second one moves.
    assert [samples["train/0.png"][name] for name in names] == [[0, 1, 2, 6, 11, 5, 16, 10], ["car", "bus"], [100, 9]]
    assert [samples["test/0.png"][name] for name in names] == [[], [], []]
    assert any("test/metadata.jsonl" in said and "objects.area" in said for said in result.warnings)


def test_images_in_a_zip_are_not_said_to_be_left_out(folder, tmp_path):
    source = folder(rows_of(text=["a", "b", "c"]))
    archive = shutil.make_archive(str(tmp_path / "photos"), "zip", source)
    result = shard(f"zip::{archive}", tmp_path / "d")
    assert result.images == 3
    assert not [said for said in result.warnings if "left out" in said]
