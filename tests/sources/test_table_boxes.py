"""Tables with a row for each box, as Open Images, Kaggle and TensorFlow's tutorials have them."""

import json
import os
import re
import tarfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet
from typer.testing import CliRunner

import tpufeed
from tests.sharding.outputs import rejects_of, texts_of
from tests.sharding.previews import preview_shard
from tpufeed.cli.app import app
from tpufeed.errors import BuildError, OptionError, SourceError
from tpufeed.images import RandomResizedCrop
from tpufeed.sources.grouped import open_groups

SIDES = "xmin,ymin,xmax,ymax"
TUTORIAL = [
    "filename,width,height,class,xmin,ymin,xmax,ymax",
    "a.png,64,48,cat,4,4,20,20",
    "b.png,64,48,cow,1,2,3,4.5",
    "c.png,64,48,,,,,",
    "a.png,64,48,cow,30,10,50,40",  # not beside the first of its image
]


@pytest.fixture
def table(tmp_path):
    """`table(lines, name, images)`: a table beside its images of 64x48 pixels."""

    def make(lines, name="boxes.csv", images=("a.png", "b.png", "c.png")):
        for number, image in enumerate(images):
            path = tmp_path / "source" / image
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.full((48, 64, 3), number * 20, np.uint8)).save(path)
        (tmp_path / "source" / name).write_text("\n".join(lines) + "\n")
        return tmp_path / "source" / name

    return make


def shard(source, folder, **options):
    result = tpufeed.shard(
        source, folder, workers=1, **{"group_by": "filename", "boxes": tpufeed.Boxes(column=SIDES), **options}
    )
    tpufeed.verify(result.url, decode="all")
    return result


def spec_of(result, name):
    return next(spec for spec in result.manifest.features if spec.name == name)


def test_rows_of_an_image_become_one_sample(table, tmp_path):
    result = shard(table(TUTORIAL), tmp_path / "d")
    samples = texts_of(result.url)
    assert {path: sample["boxes"] for path, sample in samples.items()} == {
        "a.png": [4, 4, 20, 20, 30, 10, 50, 40],
        "b.png": [1, 2, 3, 4.5],
        "c.png": [],
    }
    assert [samples[name]["image/class/text"] for name in ("a.png", "b.png", "c.png")] == [["cat", "cow"], ["cow"], []]
    assert samples["c.png"]["width"] == [64]
    assert (spec_of(result, "boxes").kind, spec_of(result, "image/class/label").of) == ("boxes", "boxes")
    assert result.warnings == ()


@pytest.mark.parametrize("suffix", ["tsv", "jsonl", "parquet"])
def test_every_kind_of_table_gives_the_same_samples(suffix, table, tmp_path):
    expected = texts_of(shard(table(TUTORIAL), tmp_path / "csv").url)
    header, *rows = [line.split(",") for line in TUTORIAL]
    texts = ("filename", "class")
    records = [
        {name: value if name in texts else float(value) for name, value in zip(header, row, strict=True) if value}
        for row in rows
    ]
    path = table(["\t".join(header), *("\t".join(row) for row in rows)], f"boxes.{suffix}")
    if suffix == "jsonl":
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
    elif suffix == "parquet":
        parquet.write_table(pa.Table.from_pylist([dict.fromkeys(header) | record for record in records]), path)
    assert texts_of(shard(path, tmp_path / "d").url) == expected


def test_open_images(table, tmp_path):
    lines = [
        "ImageID,Source,LabelName,Confidence,XMin,XMax,YMin,YMax,IsOccluded",
        "0a,xclick,/m/01,1,0.25,0.5,0.5,1,0",
        "0a,xclick,/m/02,1,0,1,0,1,1",
        "0b,xclick,/m/02,1,0,0.5,0,0.5,0",
    ]
    source = table(lines, images=["train/0a.jpg", "train/0b.jpg", "train/0c.jpg"])
    command = ["shard", source, tmp_path / "d", "--group-by", "ImageID", "--boxes", "XMin,YMin,XMax,YMax"]
    command += ["--box-format", "xyxy,relative", "--label", "LabelName"]
    done = CliRunner().invoke(app, [*map(str, command)])
    assert done.exit_code == 0, done.stderr
    assert "train/{}.jpg" in done.stderr
    assert "IsOccluded" in done.stderr
    samples = texts_of(tmp_path / "d")
    assert samples.keys() == {"train/0a.jpg", "train/0b.jpg"}
    one = samples["train/0a.jpg"]
    assert (one["boxes"], one["image/class/text"]) == ([16, 24, 32, 48, 0, 0, 64, 48], ["/m/01", "/m/02"])
    assert (one["IsOccluded"], one["Source"], one["Confidence"]) == ([0, 1], ["xclick"], [1])
    assert spec_of(tpufeed.open_dataset(tmp_path / "d"), "IsOccluded").of == "boxes"


@pytest.mark.parametrize(
    ("boxes", "header", "row"),
    [("bbox", "image_id,bbox", 'a,"[1.0, 2, 3, 4]"'), ("x,y,w,h", "image_id,x,y,w,h", "a,1,2,3,4")],
)
def test_kaggle(boxes, header, row, table, tmp_path):
    images = ["images/a.png", "images/b.png", "elsewhere/a.png", "elsewhere/b.png"]
    source = table([header, row, f"b{',' * boxes.count(',')},", row], images=images)
    options = {"group_by": "image_id", "boxes": tpufeed.Boxes(column=boxes, format="xywh"), "image": "images/{}.png"}
    result = shard(source, tmp_path / "d", **options)
    name = "bbox" if boxes == "bbox" else "boxes"
    found = {path: sample[name] for path, sample in texts_of(result.url).items()}
    assert found == {"images/a.png": [1, 2, 4, 6] * 2, "images/b.png": []}
    assert not any("images/" in warning for warning in result.warnings)
    with pytest.raises(OptionError, match=r"elsewhere/\{\}\.png, images/\{\}\.png"):
        preview_shard(source, tmp_path / "e", **options | {"image": None})


def test_paths_may_be_in_another_column(table, tmp_path):
    lines = ["id,file,xmin,ymin,xmax,ymax", "7,b.png,1,2,3,4", "8,a.png,1,2,3,5", "7,b.png,1,2,3,6"]
    samples = texts_of(shard(table(lines), tmp_path / "d", group_by="id", image="file").url)
    assert {path: (sample["id"], sample["boxes"]) for path, sample in samples.items()} == {
        "a.png": ([8], [1, 2, 3, 5]),
        "b.png": ([7], [1, 2, 3, 4, 1, 2, 3, 6]),
    }


def test_columns_of_boxes_that_the_user_names(table, tmp_path):
    """Other columns have one value for each image."""
    lines = [f"filename,{SIDES},score,by", "a.png,1,2,3,4,0.5,x", "a.png,1,2,3,5,0.25,", "b.png,1,2,3,4,1,x"]
    lines += ["c.png,1,2,3,4,1,x", "c.png,1,2,3,4,1,y"]
    result = shard(table(lines), tmp_path / "d", boxes=tpufeed.Boxes(column=SIDES, columns=["score"]))
    samples = texts_of(result.url)
    assert {path: (sample["score"], sample["by"]) for path, sample in samples.items()} == {
        "a.png": ([0.5, 0.25], ["x"]),
        "b.png": ([1], ["x"]),
    }
    ((path, (reason, message)),) = rejects_of(result.url).items()
    assert (path, reason) == ("c.png", "bad_column")
    assert "rows 4 and 5" in message
    assert "'x' and 'y' in the column 'by'" in message


def test_a_value_that_some_boxes_lack(table, tmp_path):
    lines = [f"filename,{SIDES},score", "a.png,1,2,3,4,0.5", "a.png,1,2,3,5,0.25", "a.png,1,2,3,6,"]
    result = shard(table(lines), tmp_path / "d")
    assert texts_of(result.url)["a.png"]["score"] == pytest.approx([0.5, 0.25, np.nan], nan_ok=True)
    assert any("score has 1 nulls" in warning for warning in result.warnings)


def test_rows_of_labels_become_a_list(table, tmp_path):
    lines = ["filename,label,by", "a.png,cat,x", "a.png,cow,y", "b.png,,x", "a.png,cat,y"]
    samples = texts_of(shard(table(lines), tmp_path / "d", boxes=tpufeed.Boxes(column=None)).url)
    assert {path: (sample["image/class/text"], sample["by"]) for path, sample in samples.items()} == {
        "a.png": (["cat", "cow"], ["x", "y", "y"]),
        "b.png": ([], ["x"]),
    }


def test_labels_without_a_box_are_said(table, tmp_path):
    lines = [f"filename,label,{SIDES}", "a.png,none,,,,", "a.png,none,,,,", "b.png,cat,1,2,3,4"]
    result = shard(table(lines), tmp_path / "d")
    assert texts_of(result.url)["a.png"]["image/class/text"] == []
    (said,) = (warning for warning in result.warnings if "no box" in warning)
    assert "2 rows" in said
    assert "'none'" in said


@pytest.mark.parametrize(
    ("row", "reason", "words"),
    [
        ("a.png,1,2,wide,4", "bad_box", ["row 1 of", "'wide'", SIDES.replace(",", ", ")]),
        ("a.png,1,2,,4", "bad_box", ["row 1 of", "None", "Expected the four numbers"]),
        ("a.png,5,2,3,4", "bad_box", ["upside down"]),
        ("x.png,1,2,3,4", "unreadable", ["no such file", "row 1 of"]),
        (",1,2,3,4", "unreadable", ["row 1 of", "'filename'"]),
    ],
)
def test_rows_that_are_rejected(row, reason, words, table, tmp_path):
    lines = [f"filename,{SIDES}", row, "b.png,1,2,3,4", "c.png,1,2,3,4"]
    result = shard(table(lines), tmp_path / "d")
    ((_, (found, message)),) = rejects_of(result.url).items()
    assert found == reason
    assert all(word in message for word in words), message
    assert len(texts_of(result.url)) == 2


@pytest.mark.parametrize("value", ["[1, 2, 3]", "[1, 2, 3, 4, 5]", "1 2 3 4", '{"x": 1}', "[[1, 2, 3, 4]]", "7"])
def test_a_box_in_one_column_that_is_no_box(value, table, tmp_path):
    quoted = value.replace('"', '""')
    source = table(["filename,bbox", f'a.png,"{quoted}"', 'b.png,"[1, 2, 3, 4]"', 'a.png,"[1, 2, 3, 4]"'])
    ((path, (reason, message)),) = rejects_of(
        shard(source, tmp_path / "d", boxes=tpufeed.Boxes(column="bbox")).url
    ).items()
    assert (path, reason) == ("a.png", "bad_box")
    assert "row 1 of" in message


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"group_by": "image"}, "no column 'image'"),
        ({"boxes": tpufeed.Boxes(column="xmin,ymin,xmax,top")}, "'top' for the boxes"),
        ({"boxes": tpufeed.Boxes(column="xmin,ymin,xmax")}, "3 columns"),
        ({"boxes": tpufeed.Boxes(column="xmin,ymin,xmax,xmin")}, "four different"),
        ({"group_by": None}, "--group-by COLUMN"),
        ({"boxes": tpufeed.Boxes(column=SIDES, columns=["score"])}, "'score'"),
    ],
)
def test_columns_that_are_not_there(options, message, table, tmp_path):
    with pytest.raises(OptionError, match=message):
        shard(table(TUTORIAL), tmp_path / "d", **options)


def test_other_sources_have_no_rows_to_group(table, tmp_path):
    source = table(TUTORIAL)
    (source.parent / "more.csv").write_text(source.read_text())
    for url in (source.parent, source.parent / "*.csv"):
        with pytest.raises(OptionError, match="--group-by"):
            shard(url, tmp_path / "d")


def test_a_column_called_boxes(table, tmp_path):
    with pytest.raises(OptionError, match="'boxes'"):
        shard(table([f"filename,{SIDES},boxes", "a.png,1,2,3,4,5"]), tmp_path / "d")


def test_names_whose_images_are_not_found(table, tmp_path):
    lines = [f"ImageID,{SIDES}", "a,1,2,3,4", "z,1,2,3,4"]
    with pytest.raises(OptionError, match=r"'ImageID' has names like a .* --image 'FOLDER/\{\}\.jpg'"):
        shard(table(lines), tmp_path / "d", group_by="ImageID")
    result = shard(table(lines), tmp_path / "d", group_by="ImageID", image="{}.png", max_rejects=1)
    assert (texts_of(result.url).keys(), rejects_of(result.url).keys()) == ({"a.png"}, {"z.png"})


def test_a_column_that_names_no_images(table, tmp_path, monkeypatch):
    monkeypatch.setattr("tpufeed.sources.grouped._MOST_ROWS", 2)
    for rows in (["a.png"] * 3, ["a.png", "b.png"] * 3):
        with pytest.raises(SourceError, match=r"'a\.png' in the column 'filename'"):
            shard(table([f"filename,{SIDES}", *(f"{name},1,2,3,4" for name in rows)]), tmp_path / "d")


def test_the_error_for_a_table_without_paths_names_the_option(table, tmp_path):
    source = table(["image_id,x,y,w,h", "a,1,2,3,4"])
    with pytest.raises(OptionError, match="--group-by COLUMN --boxes x,y,w,h --box-format xywh"):
        tpufeed.shard(source, tmp_path / "d")


def test_an_append_groups_rows_as_the_dataset(table, tmp_path):
    """Columns with a value for each box are those of the dataset, even if the new rows do not differ there."""
    header, *rows = [f"filename,class,{SIDES},score,by", "a.png,cat,1,2,3,4,0.5,x", "a.png,cow,1,2,3,5,0.25,x"]
    shard(table([header, *rows]), tmp_path / "d")
    new = table([header, *rows, "b.png,cow,1,1,2,2,0.75,y", "c.png,cow,1,1,2,2,1,y", "c.png,cow,1,1,3,3,1,y"])
    result = tpufeed.append(new, tmp_path / "d", workers=1)
    assert (result.added, result.skipped) == (2, 1)
    samples = texts_of(tmp_path / "d")
    assert {path: (sample["score"], sample["by"]) for path, sample in samples.items()} == {
        "a.png": ([0.5, 0.25], ["x"]),
        "b.png": ([0.75], ["y"]),
        "c.png": ([1, 1], ["y"]),
    }


def test_a_name_that_is_not_utf8(table, tmp_path):
    source = table(['{"path": "\\ud800.png", "bbox": [1, 2, 3, 4]}'], "boxes.jsonl")
    with pytest.raises(SourceError, match="UTF-8"):
        shard(source, tmp_path / "d", group_by="path", boxes=tpufeed.Boxes(column="bbox"))


def test_rows_that_cannot_be_read_leave_no_file_open():
    def rows():
        yield {"filename": "a.png"}
        raise SourceError("no more")

    def is_open(number):
        try:
            return Path(f"/proc/self/fd/{number}").readlink().name.startswith("rows")
        except OSError:  # that of the list itself
            return False

    with pytest.raises(SourceError), open_groups(rows(), "filename", "boxes.csv"):
        pass
    assert not any(map(is_open, os.listdir("/proc/self/fd")))


def _embed(source, row):
    path = source / "t.parquet"
    parquet.write_table(pa.Table.from_pylist([row | {"image": {"bytes": (source / "0.png").read_bytes()}}]), path)
    return path


def _pack(source, row):
    (source / "0.json").write_text(json.dumps(row))
    with tarfile.open(source / "t.tar", "w") as tar:
        for name in ("0.png", "0.json"):
            tar.add(source / name, name)
    return source / "t.tar"


def _describe(source, row):
    (source / "metadata.jsonl").write_text(json.dumps({"file_name": "0.png", **row}))
    return source


def _list(source, row):
    (source / "t.jsonl").write_text(json.dumps({"image": "0.png", **row}))
    return source / "t.jsonl"


FORMS = {"table": _list, "imagefolder": _describe, "tar": _pack, "parquet": _embed}


@pytest.mark.parametrize(
    ("form", "file", "said", "orientation", "box_format", "expected"),
    [
        *(
            (form, (64, 48), (128, 96), 1, "xyxy", "128x96 pixels, and the file has 64x48 (0.5 times)")
            for form in FORMS
        ),
        ("table", (64, 48), (64.5, 48), 1, "xyxy", "impossible"),
        ("table", (64, 48), (None, 48), 1, "xyxy", [8, 12, 32, 24]),
        ("table", (64, 48), (64, 48), 1, "xyxy", [8, 12, 32, 24]),
        ("tar", (64, 48), (64, 48), 6, "xyxy", [24, 8, 36, 32]),  # the box was drawn before EXIF turned the photo
        ("imagefolder", (64, 48), (48, 64), 6, "xyxy", [8, 12, 32, 24]),
        ("table", (64, 48), (129, 96), 1, "xyxy,relative", [8, 12, 32, 24]),  # shares fit an image that was shrunk
        ("table", (64, 48), (128, 96), 6, "xyxy,relative", [24, 8, 36, 32]),
        ("table", (64, 48), (96, 96), 1, "xyxy,relative", "96x96 pixels, and the file has 64x48"),
    ],
)
def test_boxes_are_of_an_image_of_the_width_and_height_in_the_row(
    form, file, said, orientation, box_format, expected, tmp_path
):
    source, exif = tmp_path / "source", Image.Exif()
    source.mkdir()
    exif[0x0112] = orientation
    Image.new("RGB", file).save(source / "0.png", exif=exif)
    box = [8, 12, 32, 24]
    if "relative" in box_format:
        box = [each / side for each, side in zip(box, (64, 48) * 2, strict=True)]
    names = ("image_width", "ImageHeight") if form == "tar" else ("width", "height")
    path = FORMS[form](source, {"bbox": [box], **dict(zip(names, said, strict=True))})
    options = {
        "boxes": tpufeed.Boxes(column="bbox", format=box_format),
        "label": "none",
        "max_rejects": "100%",
        "workers": 1,
    }
    if isinstance(expected, str):
        with pytest.raises(BuildError, match=re.escape(expected)):
            tpufeed.shard(path, tmp_path / "d", **options)
        return
    result = tpufeed.shard(path, tmp_path / "d", **options)
    (sample,) = texts_of(result.url).values()
    assert sample["bbox"] == pytest.approx(expected)


def test_rows_of_an_image_may_leave_columns_out(table, tmp_path):
    sides = {"xmin": 1, "ymin": 1, "xmax": 5, "ymax": 5}
    rows = [{"site": 5, "x/weather": "sun"}, {}, {}, {"site": 6, "x/weather": "rain"}]
    names = ["a.png", "a.png", "b.png", "b.png"]
    lines = [json.dumps({"filename": name, **sides, **row}) for name, row in zip(names, rows, strict=True)]
    result = shard(table(lines, "t.jsonl"), tmp_path / "d", label="none")
    samples = texts_of(result.url)
    assert [(samples[name]["site"], samples[name]["x/weather"]) for name in ("a.png", "b.png")] == [
        ([5], ["sun"]),
        ([6], ["rain"]),
    ]
    assert [said for said in result.warnings if "site, x/weather" in said]


@pytest.mark.parametrize("named", [None, ["hidden"]])
def test_a_flag_that_is_1_or_blank_belongs_to_its_box(named, table, tmp_path):
    lines = ["filename,xmin,ymin,xmax,ymax,hidden"]
    lines += ["a.png,1,1,5,5,", "a.png,2,2,9,9,1", "b.png,1,1,5,5,", "c.png,1,1,5,5,1", "c.png,2,2,9,9,1"]
    result = shard(table(lines), tmp_path / "d", boxes=tpufeed.Boxes(column=SIDES, columns=named))
    samples = texts_of(result.url)
    assert [samples[name]["hidden"] for name in ("a.png", "b.png", "c.png")] == [[0, 1], [0], [1, 1]]
    assert spec_of(result, "hidden").of == "boxes"


SIDED = {"class": "cat", "xmin": 8, "ymin": 12, "xmax": 32, "ymax": 24}
PLAIN = [
    ("table", {"objects": {"bbox": [[8, 12, 24, 12]]}}, "--boxes objects.bbox --box-format xywh.", "float32[,4]"),
    ("table", SIDED, f"--group-by image --boxes {SIDES}.", "int64"),
    ("table", {"box": [8, 12, 32, 24]}, "--boxes box.", "int64[4]"),
    ("parquet", {"objects": {"bbox": [[8.5, 12, 24, 12]]}}, "--boxes objects.bbox --box-format xywh.", "float32[,4]"),
    ("tar", SIDED, "into one list.", "int64"),
]


@pytest.mark.parametrize(("form", "row", "way", "declaration"), PLAIN)
def test_boxes_that_nobody_named_are_said_and_refused_by_a_crop(form, row, way, declaration, tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    Image.new("RGB", (64, 48)).save(source / "0.png")
    path, name = (
        FORMS[form](source, row),
        "xmin" if row is SIDED else next(iter(row)).replace("objects", "objects.bbox"),
    )
    result = tpufeed.shard(path, tmp_path / "d", label="none", images=tpufeed.Images(presize=32), workers=1)
    (said,) = (said for said in result.warnings if name in said)
    assert way in said
    crop = {"ops": [RandomResizedCrop(16)], "columns": ["image", name], "batch_size": 1, "processes": 0}
    with pytest.raises(OptionError, match=f"RandomResizedCrop moves pixels, and .*{name}"):
        tpufeed.Loader(result.url, **crop)
    tpufeed.Loader(result.url, **{**crop, "ops": [], "columns": [name]}).close()
    cache = tpufeed.cache.warmup(result.url, tmp_path / "c", size=16, workers=1)
    assert name not in {spec.name for spec in cache.manifest.features}
    assert any(name in said for said in cache.warnings)
    columns = {name: declaration}
    result = tpufeed.shard(path, tmp_path / "e", label="none", columns=columns, workers=1)  # they are no boxes
    assert not [said for said in result.warnings if name in said]
    tpufeed.Loader(result.url, **crop).close()
