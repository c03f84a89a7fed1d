"""Pascal VOC's XML as a source, in the layouts of VOC2012, Kaggle and Roboflow."""

import shutil

import numpy as np
import pytest

import tpufeed
from tests.gcs_server import GcsServer
from tests.sharding.outputs import rejects_of, texts_of
from tests.sources.test_boxes import encoded, spec_of
from tpufeed.errors import OptionError, SourceError

OBJECT = (
    "<object><name>{}</name><pose>Left</pose><truncated>{}</truncated><difficult>{}</difficult>"
    "<part><name>head</name><bndbox><xmin>1</xmin></bndbox></part>"
    "<bndbox><xmin>{}</xmin><ymin>{}</ymin><xmax>{}</xmax><ymax>{}</ymax></bndbox></object>"
)
DOG, CAT = OBJECT.format("dog", 1, 0, 11, 21, 40, "50.5"), OBJECT.format("cat", 0, 1, 1, 1, 80, 60)
SIZE = "<size><width>80</width><height>60</height><depth>3</depth></size>"


def annotation(*objects, filename="", size=SIZE):
    return f"<annotation><folder>x</folder><filename>{filename}</filename>{size}{''.join(objects)}</annotation>"


FILES = {"2008_0": annotation(DOG, CAT), "2008_1": annotation(CAT), "2008_2": annotation()}


@pytest.fixture
def voc(tmp_path):
    """`voc(files)` writes `.xml` files of images of 80x60 pixels, and the images."""

    def make(files=FILES, xml="Annotations", images="JPEGImages", lists=None):
        root = tmp_path / "VOC2012"
        for folder in (xml, images, "ImageSets/Main"):
            (root / folder).mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (root / xml / f"{name}.xml").write_bytes(text if isinstance(text, bytes) else text.encode())
            (root / images / f"{name}.png").write_bytes(encoded())
        for name, stems in (lists or {}).items():
            (root / f"ImageSets/Main/{name}.txt").write_text("".join(f"{stem}\n" for stem in stems))
        return root

    return make


def shard(url, folder, **options):
    result = tpufeed.shard(url, folder, **{"workers": 1, "max_rejects": 20, **options})
    tpufeed.verify(result.url, decode="all")
    return result


def test_boxes_classes_and_flags(voc, tmp_path):
    result = shard(voc() / "Annotations/*.xml", tmp_path / "d")
    assert result.manifest.class_names == ("cat", "dog")
    sample = texts_of(result.url)["JPEGImages/2008_0.png"]
    assert np.reshape(sample["boxes"], (-1, 4)).tolist() == [[10, 20, 40, 50.5], [0, 0, 80, 60]]
    assert (sample["image/class/text"], sample["difficult"], sample["truncated"]) == (["dog", "cat"], [0, 1], [1, 0])
    assert texts_of(result.url)["JPEGImages/2008_2.png"]["boxes"] == []
    assert spec_of(result, "difficult").type_text == "int64[0 to 2] of boxes"
    assert shard(voc(), tmp_path / "of-folder").manifest.splits == result.manifest.splits


def test_own_splits(voc, tmp_path):
    root = voc({**FILES, "2008_3": annotation(DOG)}, lists={"train": ["2008_0", "2008_1"], "val": ["2008_2", "gone"]})
    result = shard(root, tmp_path / "d")
    assert {name: split.records for name, split in result.manifest.splits.items()} == {"train": 2, "val": 1}
    assert any("1 image" in warning and "2008_3" in warning for warning in result.warnings)
    assert any("1 name" in warning and "gone" in warning for warning in result.warnings)
    assert shard(root, tmp_path / "d2", splits="train=1").images == 4
    (root / "ImageSets/Main/val.txt").rename(root / "ImageSets/Main/trainval.txt")
    (root / "ImageSets/Main/train.txt").unlink()
    assert {name: split.records for name, split in shard(root, tmp_path / "d3").manifest.splits.items()} == {"train": 1}


@pytest.mark.parametrize(
    ("box_format", "left"), [(None, 11), ("xyxy", 11), ("voc", 10)], ids=["proven", "from 0", "from 1"]
)
def test_files_that_count_from_0(box_format, left, voc, tmp_path):
    edge = OBJECT.format("cat", 0, 1, 3, 0, 80, 60).replace("<xmin>3", "<xmin>3.5")
    root = voc({**FILES, "2008_2": annotation(edge)})
    result = shard(root, tmp_path / "d", boxes=tpufeed.Boxes(format=box_format, outside="clip"))
    assert texts_of(result.url)["JPEGImages/2008_0.png"]["boxes"][:4] == [left, left + 10, 40, 50.5]
    assert any("2008_2.xml" in said and "from 0" in said for said in result.warnings) == (box_format is None)
    shard(root, tmp_path / "d", boxes=tpufeed.Boxes(format=box_format, outside="clip"))  # finds the finished build


def test_an_appended_folder_whose_boxes_seem_to_count_otherwise_is_refused(voc, tmp_path):
    root = voc({"2008_0": annotation(OBJECT.format("cat", 0, 1, 0, 0, 80, 60))})
    shard(root, tmp_path / "d")
    shutil.rmtree(root)
    root = voc({"2008_1": annotation()})  # has no boxes
    assert tpufeed.append(root, tmp_path / "d", workers=1).added == 1
    root = voc({"2008_2": annotation(DOG)})
    with pytest.raises(SourceError, match=r"'voc'.*'xyxy'.*--box-format xyxy.*--append"):
        tpufeed.append(root, tmp_path / "d", workers=1)
    shard(root, tmp_path / "d", append=True, boxes=tpufeed.Boxes(format="xyxy"))
    assert texts_of(tmp_path / "d")["JPEGImages/2008_2.png"]["boxes"] == [11, 21, 40, 50.5]


def test_a_name_in_the_lists_of_two_splits_is_named(voc, tmp_path):
    result = shard(voc(lists={"train": ["2008_0", "2008_1"], "val": ["2008_1", "2008_2"]}), tmp_path / "d")
    assert {name: split.records for name, split in result.manifest.splits.items()} == {"train": 2, "val": 1}
    assert [said for said in result.warnings if "2008_1 (train, val)" in said]


def test_lists_of_other_names(voc, tmp_path):
    with pytest.raises(SourceError, match="ImageSets/Main"):
        shard(voc(lists={"train": ["1", "2"]}), tmp_path / "d")


@pytest.mark.parametrize(
    ("xml", "images"), [("annotations", "images"), ("train", "train"), (".", "images"), ("xml", "Images")]
)
def test_layouts_of_tools(xml, images, voc, tmp_path):
    root = voc(xml=xml, images=images)
    result = shard(root / xml / "*.xml", tmp_path / "d")
    names = {f"{name}.png" if xml == images else f"{images}/{name}.png" for name in FILES}
    assert set(texts_of(result.url)) == names


def test_folders_of_splits_as_roboflow_has_them(voc, tmp_path):
    for split in ("train", "valid"):
        root = voc({f"{split}_{name}": text for name, text in FILES.items()}, xml=f"rf/{split}", images=f"rf/{split}")
    root = root / "rf"
    (root / "README.roboflow.txt").write_text("cats and dogs")
    (root / "valid/alone.png").write_bytes(encoded())
    result = shard(root, tmp_path / "d")
    assert {name: split.records for name, split in result.manifest.splits.items()} == {"train": 3, "val": 3}
    assert result.manifest.class_names == ("cat", "dog")
    assert texts_of(result.url)["valid/valid_2008_0.png"]["boxes"] == [10, 20, 40, 50.5, 0, 0, 80, 60]
    assert any("1 images" in warning and "valid/alone.png" in warning for warning in result.warnings)
    dealt = shard(root, tmp_path / "d2", splits="a=0.5,b=0.5")
    assert dealt.manifest.splits.keys() == {"a", "b"}
    for file in root.glob("*/*.xml"):
        file.write_text("<metadata/>")
    assert shard(root, tmp_path / "d3", label="none").manifest.splits["train"].records == 3  # a folder of images


def test_the_name_in_the_file_where_its_own_fits_no_image(voc, tmp_path):
    root = voc()
    (root / "Annotations/2008_0.xml").unlink()
    (root / "Annotations/first.xml").write_text(annotation(DOG, filename="C:\\photos\\2008_0.png"))
    (root / "Annotations/second.xml").write_text(annotation(DOG, filename="2008_1.png"))
    (root / "Annotations/third.xml").write_text(annotation(DOG, filename="2008_9.png"))
    (root / "JPEGImages/alone.png").write_bytes(encoded())
    result = shard(root, tmp_path / "d")
    assert texts_of(result.url)["JPEGImages/2008_0.png"]["image/class/text"] == ["dog"]
    rejects = rejects_of(result.url)
    assert {"Annotations/second.xml", "Annotations/third.xml"} == set(rejects)
    assert "2008_1.xml" in rejects["Annotations/second.xml"][1]
    assert rejects["Annotations/third.xml"][0] == "unreadable"
    assert any("1 image" in warning and "alone.png" in warning for warning in result.warnings)


def test_an_image_in_two_formats_is_told_by_the_name_in_the_file(voc, tmp_path):
    root = voc({name: annotation(CAT, filename=f"{name}.png") for name in FILES})
    for name in FILES:
        shutil.copy(root / f"JPEGImages/{name}.png", root / f"JPEGImages/{name}.jpg")
    assert set(texts_of(shard(root, tmp_path / "d").url)) == {f"JPEGImages/{name}.png" for name in FILES}


ENTITY = '<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]>' + annotation(OBJECT.format("&x;", 0, 0, 1, 1, 2, 2))


@pytest.mark.first_cases(9)
@pytest.mark.parametrize(
    ("text", "said"),
    [
        (annotation(CAT)[:-9], "XML"),
        (ENTITY, "entity"),
        ("<!DOCTYPE annotation SYSTEM 'http://127.0.0.1:1/x.dtd'>" + annotation(CAT), "DTD"),
        (annotation(OBJECT.format("&x;", 0, 0, 1, 1, 2, 2)), "XML"),
        ('<?xml version="1.0" encoding="gbk"?>' + annotation(CAT), "XML"),
        ("<html/>", "html"),
        ("", "XML"),
        (b"<annotation>\xff</annotation>", "XML"),
        ("<a>" * 100_000, "annotation"),
        (b"<annotation>" + b" " * (11 << 20), "10 MB"),
        (annotation(CAT, OBJECT.format("", 0, 0, 1, 1, 2, 2)), "object 2"),
        (annotation("<object><name>cat</name></object>"), "bndbox"),
        (annotation(OBJECT.format("cat", 0, 0, 1, "x", 2, 2)), "'ymin' 'x'"),
        (annotation(OBJECT.format("cat", 0, 0, 1, 1, "nan", 2)), "'xmax' 'nan'"),
        (annotation(OBJECT.format("cat", 0, "maybe", 1, 1, 2, 2)), "'maybe'"),
        (annotation(CAT, size=SIZE.replace("80", "-80")), "width"),
        (annotation(CAT, size=SIZE.replace("80", "800")), "800x60"),
        (annotation(OBJECT.format("cat", 0, 0, 9, 9, 2, 2)), "upside down"),
    ],
)
def test_bad_files_are_rejects(text, said, voc, tmp_path):
    result = shard(voc({**FILES, "2008_1": text}), tmp_path / "d")
    ((name, (code, message)),) = rejects_of(result.url).items()
    assert (name, code) == ("JPEGImages/2008_1.png", "bad_box")
    assert said in message
    assert "2008_1.xml" in message or said in ("upside down", "800x60")
    assert result.manifest.class_names == ("cat", "dog")


def test_sizes_may_be_missing(voc, tmp_path):
    files = {"2008_1": annotation(CAT, size=""), "2008_2": annotation(CAT, size=SIZE.replace("80", "0"))}
    assert shard(voc(files), tmp_path / "d").images == 2


def test_classes_may_be_given_or_left_out(voc, tmp_path):
    assert shard(voc(), tmp_path / "d", classes=["dog", "cat", "cow"]).manifest.class_names == ("dog", "cat", "cow")
    assert shard(voc(), tmp_path / "d2", label="none").manifest.class_names == ()


@pytest.mark.parametrize(
    "options",
    [{"boxes": tpufeed.Boxes(column="b")}, {"boxes": tpufeed.Boxes(format="xywh", column="b")}, {"split_by": "folder"}],
)
def test_options_that_contradict_the_files(options, voc, tmp_path):
    with pytest.raises(OptionError):
        shard(voc(), tmp_path / "d", **options)


def test_images_that_are_nowhere(voc, tmp_path):
    with pytest.raises(OptionError, match="JPEGImages"):
        shard(voc(images="elsewhere") / "Annotations/*.xml", tmp_path / "d")


@pytest.mark.all
def test_a_bucket(voc, monkeypatch, tmp_path):
    root = voc()
    with GcsServer(process=True) as server:
        for key, value in server.environment().items():
            monkeypatch.setenv(key, value)
        for file in root.rglob("*.*"):
            server.put("bucket", f"voc/{file.relative_to(root)}", file.read_bytes())
        local = shard(root, tmp_path / "d").manifest.content_digest
        assert shard("gs://bucket/voc", "gs://bucket/d").manifest.content_digest == local
        assert shard("gs://bucket/voc/Annotations/*.xml", "gs://bucket/e").manifest.content_digest == local
