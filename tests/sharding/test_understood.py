"""What a build understood of a source: the block that it prints, the manifest that keeps it, and what it warns of."""

import json
import os
import re

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import tpufeed
from tests.sharding.outputs import samples_of
from tests.sharding.previews import preview_shard
from tpufeed.cli.app import app
from tpufeed.dataset.listed import Listed
from tpufeed.errors import OptionError


@pytest.fixture
def photo(tmp_path):
    """`photo(name, number)`: a small image below the source."""

    def make(name, number=0, pixels=None):
        path = tmp_path / "src" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        found = np.random.default_rng(number).integers(0, 255, (24, 32, 3), np.uint8) if pixels is None else pixels
        Image.fromarray(found).save(path)
        return path

    return make


@pytest.fixture
def table(photo, tmp_path):
    """`table(rows)`: a table of JSON lines beside an image for each row."""

    def make(rows):
        for number, row in enumerate(rows):
            photo(row["path"], number)
        (tmp_path / "src/t.jsonl").write_text("\n".join(map(json.dumps, rows)))
        return tmp_path / "src/t.jsonl"

    return make


def invoke(*words):
    done = CliRunner().invoke(app, list(map(str, words)), env={"COLUMNS": "200", "NO_COLOR": "1"})
    assert not done.exit_code, done.stderr
    return done


def block_of(text):
    return re.findall(r"^(?:taken as|labels|splits|columns|boxes|left out): .*$", text, re.MULTILINE)


def test_the_block_is_that_of_forecast_build_manifest_and_growth(table, photo, tmp_path):
    rows = [{"path": f"{n}.png", "label": "ab"[n % 2], "age": n, "objects": {"bbox": [[n, 1, 4, 5]]}} for n in range(6)]
    source, to = table(rows), tmp_path / "d"
    options = ("--boxes", "objects.bbox", "--box-format", "xywh")
    foretold = invoke("shard", source, to, *options, "--dry-run").stdout
    built = invoke("shard", source, to, *options).stdout
    assert block_of(built) == block_of(foretold) == block_of(invoke("info", to).stdout)
    assert block_of(built) == [
        "taken as: table of paths (named t.jsonl)",
        "labels: the column label: 2 classes: a 3, b 3",
        "splits: none in the source, so all samples are train",
        "columns: age int64, objects.bbox float32[1, 4] boxes",
        "boxes: objects.bbox, as left, top, width, height in pixels; the first: [0.0, 1.0, 4.0, 5.0] in 0.png",
    ]
    rows.append({"path": "6.png", "label": "c", "age": 6, "objects": {"bbox": [[1, 1, 4, 5]]}})
    grown = tpufeed.append(table(rows), to, workers=1)
    first, second = grown.manifest.listed, grown.manifest.history[1].listed
    assert (first.class_count, second.class_count) == (2, 3)
    assert grown.listed == second
    assert "version 2, labels: the column label: 3 classes: a 3, b 3, c 1" in invoke("info", to, "--versions").stdout


def test_a_manifest_from_before_opens(photo, tmp_path):
    photo("a/1.png")
    path = tmp_path / "d/manifest.json"
    tpufeed.shard(tmp_path / "src", path.parent, workers=1)
    manifest = json.loads(path.read_text())
    for listed in ({}, {"kind": "table", "of_a_later_tpufeed": 1}, None):
        manifest["listed"] = listed
        if listed is None:
            del manifest["listed"]
        path.write_text(json.dumps(manifest))
        assert tpufeed.open_dataset(path.parent).manifest.listed == Listed(kind=(listed or {}).get("kind", ""))


@pytest.mark.parametrize(
    ("name", "words"),
    [("split", ("train", "val", "test")), ("Usage", ("Training", "PublicTest", "PrivateTest"))],
)
def test_a_column_with_the_names_of_splits(name, words, table, tmp_path):
    source = table([{"path": f"{n}.png", "label": "a", name: words[n % 3]} for n in range(6)])
    warnings = preview_shard(source, tmp_path / "d").listed.warnings
    assert [f"--split-by {name}" in said for said in warnings] == [True]
    assert preview_shard(source, tmp_path / "d", splits="train=1").listed.warnings == ()
    assert set(tpufeed.shard(source, tmp_path / "d", workers=1, split_by=name).manifest.splits) == set(words)


def test_one_box_for_each_row(table, tmp_path):
    source = table([{"path": f"{n}.png", "label": "a", "bbox": [n, 1, 3, 4]} for n in range(3)])
    (said,) = preview_shard(source, tmp_path / "d").listed.warnings
    assert "pass --group-by path --boxes bbox --box-format xywh. If" in said
    options = {"group_by": "path", "boxes": tpufeed.Boxes(column="bbox", format="xywh"), "label": "none"}
    tpufeed.shard(source, tmp_path / "d", workers=1, **options)
    assert samples_of(tmp_path / "d")["2.png"]["bbox"] == [2, 1, 5, 5]


def test_labels_in_one_text_and_labels_that_are_values(table, tmp_path):
    texts = ["Mass|Nodule", "Mass", "No Finding", "Nodule|Edema"]
    source = table([{"path": f"{n}.png", "label": texts[n % 4]} for n in range(8)])
    (said,) = preview_shard(source, tmp_path / "d").listed.warnings
    assert "--label-separator '|'" in said
    result = tpufeed.shard(source, tmp_path / "d", workers=1, label_separator="|")
    assert result.manifest.class_names == ("Edema", "Mass", "No Finding", "Nodule")
    assert result.listed.classes == {"Edema": 2, "Mass": 4, "No Finding": 2, "Nodule": 4}
    assert tpufeed.append(source, tmp_path / "d", workers=1).added == 0
    rows = [{"path": "0.png", "label": label, "box": [0, 0, 4, 4]} for label in ("Mass|Nodule", "Nodule|Edema")]
    foretold = preview_shard(table(rows), tmp_path / "e", group_by="path", label_separator="|")
    assert foretold.listed.classes == {"Edema": 1, "Mass": 1, "Nodule": 1}
    with pytest.raises(OptionError, match=r"0\.png: each box has one label, and 'Mass\|Nodule' has several"):
        preview_shard(
            table(rows), tmp_path / "e", group_by="path", boxes=tpufeed.Boxes(column="box"), label_separator="|"
        )
    source = table([{"path": f"{n}.png", "label": 20.5 + n} for n in range(4)])
    (said,) = preview_shard(source, tmp_path / "e").listed.warnings
    assert "--label-type number" in said
    with pytest.raises(OptionError, match="label_separator"):
        preview_shard(source, tmp_path / "e", label_separator="")


def test_the_same_folders_inside_of_several_classes(photo, tmp_path):
    for number, name in enumerate(
        ("color/images/scab", "color/images/healthy", "grey/images/scab", "grey/images/rust")
    ):
        photo(f"{name}/1.png", number)
    assert preview_shard(tmp_path / "src", tmp_path / "d").listed.warnings == ()  # only one folder is shared
    photo("grey/images/healthy/1.png", 9)
    (said,) = preview_shard(tmp_path / "src", tmp_path / "d").listed.warnings
    assert "--class-level -1" in said
    result = tpufeed.shard(tmp_path / "src", tmp_path / "d", workers=1, class_level=-1)
    assert (result.manifest.class_names, result.listed.warnings) == (("healthy", "rust", "scab"), ())


def test_class_folders_with_a_folder_of_images_each(photo, tmp_path):
    for name in ("cat/images", "dog/images"):
        photo(f"{name}/1.png")
    assert preview_shard(tmp_path / "src", tmp_path / "d").listed.warnings == ()


def test_captions_beside_images(photo, tmp_path):
    for number in range(3):
        photo(f"{number}.png", number).with_suffix(".txt").write_text(f"photo {number}")
    (said,) = preview_shard(tmp_path / "src", tmp_path / "d").listed.warnings
    (options,) = re.findall("pass (--texts .*)", said)
    invoke("shard", tmp_path / "src", tmp_path / "d", *options.split())
    texts = [sample["txt"] for sample in samples_of(tmp_path / "d").values()]
    assert sorted(texts) == [[b"photo 0"], [b"photo 1"], [b"photo 2"]]


def test_special_files_are_counted(photo, tmp_path):
    photo("a/1.png")
    os.mkfifo(tmp_path / "src/a/2.png")
    (tmp_path / "src/notes.txt").touch()
    listed = tpufeed.shard(tmp_path / "src", tmp_path / "d", workers=1).listed
    assert listed.ignored_files == {".txt": 1, "special files": 1}


def test_files_of_16_bits_that_use_12(photo, tmp_path):
    for number in range(4):
        photo(
            f"{'ab'[number % 2]}/{number}.png",
            pixels=np.random.default_rng(number).integers(0, 4096, (24, 32)).astype(np.uint16),
        )
    preview, result = preview_shard(tmp_path / "src", tmp_path / "d"), tpufeed.shard(tmp_path / "src", tmp_path / "d")
    for said in (preview.warnings, result.warnings):
        assert ["--policy deep=12" in one for one in said] == [True]
    assert result.manifest.odd["deep (12 bits used)"] == 4
    result = tpufeed.shard(tmp_path / "src", tmp_path / "e", workers=1, images=tpufeed.Images(deep="12"))
    assert (result.warnings, result.rejects) == ((), 0)
    with tpufeed.Loader(tmp_path / "e", batch_size=4, processes=0) as loader:
        images = next(iter(loader))[0]
    assert len(np.unique(images)) > 200
    # One image that uses all bits: then the others are dark, and no files of 12 bits.
    photo("a/4.png", pixels=np.full((24, 32), 65535, np.uint16))
    assert preview_shard(tmp_path / "src", tmp_path / "f").warnings == ()
