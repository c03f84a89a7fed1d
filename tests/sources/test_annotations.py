"""A folder of images with annotations among them: each kind is recognised, and the command that it names takes it."""

import json
import re
import shlex
import zipfile

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import tpufeed
from tests.sharding.outputs import texts_of
from tpufeed.cli.app import app


@pytest.fixture
def photos(tmp_path):
    """`photos(folder=...)`: four images in a folder."""

    def make(folder="photos"):
        place = tmp_path / folder
        place.mkdir(parents=True)
        for number in range(4):
            Image.fromarray(np.full((48, 64, 3), number * 50 + len(folder), np.uint8)).save(place / f"{number}.png")
        return place

    return make


def said_of(folder, destination=None, **options):
    result = tpufeed.shard(folder, destination or folder.parent / "of-folder", workers=1, **options)
    return [warning for warning in result.warnings if "not read" in warning]


def run(warning, folder):
    """Run the commands that a warning names; return the dataset of each."""
    found = []
    for number, command in enumerate(warning.rpartition(": ")[2].split("; ")):
        _, *words = shlex.split(command)
        destination = folder.parent / f"taken-{number}"
        done = CliRunner().invoke(app, [str(destination) if word == "DST" else word for word in words])
        assert done.exit_code == 0, done.stderr
        found.append(destination)
    return found


def coco(names):
    return json.dumps(
        {
            "info": {},
            "categories": [{"id": 0, "name": "car"}],
            "images": [{"id": n, "file_name": name, "width": 64, "height": 48} for n, name in enumerate(names)],
            "annotations": [
                {"id": n, "image_id": n, "category_id": 0, "bbox": [1, 2, 3, 4]} for n in range(len(names))
            ],
        }
    )


NAMES = [f"{number}.png" for number in range(4)]


def test_metadata_of_objects(photos):
    folder = photos("my photos")
    rows = [
        {"file_name": name, "objects": {"bbox": [[1, 2, 10, 12]], "categories": [n % 2]}}
        for n, name in enumerate(NAMES)
    ]
    (folder / "annotations.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (said,) = said_of(folder)
    (taken,) = run(said, folder)
    sample = texts_of(taken)["3.png"]
    assert (sample["objects.bbox"], sample["image/class/label"]) == ([1, 2, 11, 14], [1])


@pytest.mark.parametrize("name", ["labels.csv", "train.tsv", "labels.jsonl"])
def test_tables_of_labels(name, photos):
    folder = photos()
    if name.endswith("jsonl"):
        text = "".join(json.dumps({"file_name": file, "label": "ab"[n % 2]}) + "\n" for n, file in enumerate(NAMES))
    else:
        comma = "\t" if name.endswith("tsv") else ","
        rows = [("file_name", "label"), *((file, "ab"[n % 2]) for n, file in enumerate(NAMES))]
        text = "".join(comma.join(row) + "\n" for row in rows)
    (folder / name).write_text(text)
    (said,) = said_of(folder)
    (taken,) = run(said, folder)
    assert tpufeed.open_dataset(taken).manifest.class_names == ("a", "b")


def test_metadata_in_a_deeper_folder(photos):
    folder = photos("photos/cats")
    (folder / "metadata.csv").write_text("file_name,text\n" + "".join(f"{name},of {name}\n" for name in NAMES))
    (said,) = said_of(folder.parent)
    (taken,) = run(said, folder)
    assert texts_of(taken)["2.png"]["text"] == ["of 2.png"]


def test_files_of_coco_in_folders(photos):
    for split in ("a", "b", "c"):
        folder = photos(f"roboflow/{split}")
        (folder / "_annotations.coco.json").write_text(coco(NAMES))
    (said,) = said_of(folder.parent)
    taken = run(said, folder.parent)
    assert [tpufeed.open_dataset(url).manifest.class_names for url in taken] == [("car",)] * 3


def test_files_of_coco_beside_the_folders_of_images(photos):
    folder = photos("coco/val2017")
    photos("coco/cats/black")
    (folder.parent / "annotations").mkdir()
    (folder.parent / "annotations/instances_val2017.json").write_text(coco(NAMES))
    captions = {"images": [{"id": 0}], "annotations": [{"image_id": 0, "caption": "a"}]}
    (folder.parent / "annotations/captions_val2017.json").write_text(json.dumps(captions))
    (said,) = said_of(folder.parent)
    (taken,) = run(said, folder.parent)
    assert len(texts_of(taken)) == 4


def test_tables_with_a_row_for_each_box(photos):
    folder = photos()
    rows = [f"{name},64,48,{label},4,4,20,20\n" for name in NAMES for label in ("cat", "cow")]
    (folder / "_annotations.csv").write_text("filename,width,height,class,xmin,ymin,xmax,ymax\n" + "".join(rows))
    (said,) = said_of(folder)
    (taken,) = run(said, folder)
    sample = texts_of(taken)["1.png"]
    assert (sample["boxes"], sample["image/class/label"]) == ([4, 4, 20, 20] * 2, [0, 1])


OTHERS = {
    "voc": ("{}.xml", "<annotation>\n<object><name>cat</name>{}</object></annotation>"),
    "yolo": ("{}.txt", "0 0.5 0.5 0.1 0.2\n1 0.1 0.1 0.1 0.1\n"),
    "labelme": ("{}.json", '{"version": "5.0", "shapes": [], "imagePath": "x"}'),
}
BOX = "<bndbox><xmin>2</xmin><ymin>3</ymin><xmax>9</xmax><ymax>9</ymax></bndbox>"


@pytest.mark.parametrize("where", ["photos", "labels/deeper"])
@pytest.mark.parametrize("kind", OTHERS)
def test_files_that_no_command_takes_as_they_are(kind, where, photos):
    folder = photos("project/photos")
    name, text = OTHERS[kind]
    (folder.parent / where).mkdir(parents=True, exist_ok=True)
    (folder.parent / "classes.txt").write_text("cat\ndog\n")
    for number in range(4):
        (folder.parent / where / name.format(number)).write_text(text.replace("{}", BOX))
    (said,) = said_of(folder.parent)
    if kind == "voc" and where == "photos":
        (taken,) = run(said, folder.parent)
        assert texts_of(taken)["0.png"]["boxes"] == [1, 2, 9, 9]
    else:
        assert {"voc": "JPEGImages", "yolo": "data.yaml", "labelme": "no command"}[kind] in said
        assert name[2:] in said


def test_a_data_yaml_that_lacks_names(photos):
    folder = photos()
    (folder / "0.txt").write_text("0 0.5 0.5 0.2 0.2")
    (folder / "data.yaml").write_text("train: images")
    (said,) = said_of(folder)
    assert "data.yaml lacks" in said


def test_the_data_yaml_of_a_folder_inside(photos):
    folder = photos("all/set/train")
    (folder.parent / "data.yaml").write_text("train: ../train\nnames: [cat, dog]\n")
    for number in range(4):
        (folder / f"{number}.txt").write_text("1 0.5 0.5 0.5 0.5\n")
    (said,) = said_of(folder.parent.parent)
    (taken,) = run(said, folder.parent.parent)
    assert texts_of(taken)["train/0.png"]["image/class/text"] == ["dog"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("README.txt", "500 photographs\n"),
        ("numbers.txt", "1 " * 3000 + "x\n"),  # as rows these can be cut in more ways than can be tried
        ("notes.csv", "day,place\n1,here\n"),
        ("table.csv", "path,label\nelsewhere.png,cat\n"),  # of other images
        ("meta.jsonl", "{"),
        ("meta.jsonl", '{"file_name": 7}\n'),
        ("meta.csv", ""),
        ("deeper/metadata.parquet", "PAR1"),
        ("settings.json", '{"images": []}'),
        ("@eaDir/metadata.csv", "file_name,label\n0.png,cat\n"),
        ("broken.json", "\xff"),
        ("x.xml", "<html/>"),
    ],
)
def test_other_files_are_only_counted(name, text, photos):
    folder = photos()
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(text, encoding="latin-1")
    assert said_of(folder) == []


def test_a_table_of_what_class_folders_say_already(photos):
    folder = photos("photos/cat")
    (folder.parent / "index.csv").write_text("path,label\ncat/0.png,cat\n")
    assert said_of(folder.parent) == []


def test_who_wants_no_labels_hears_of_none(photos):
    folder = photos()
    (folder / "labels.csv").write_text("file_name,label\n0.png,a\n")
    assert said_of(folder, label="none") == []


@pytest.mark.parametrize("kind", ["coco", "yolo", "voc"])
def test_in_a_zip_the_advice_is_to_unpack_it(kind, photos, tmp_path):
    folder = photos("set/in/images/train" if kind == "yolo" else "set/in/train")
    if kind == "coco":
        (folder / "_annotations.coco.json").write_text(coco(NAMES))
    for number in range(4):
        if kind == "yolo":
            labels = tmp_path / "set/in/labels/train"
            labels.mkdir(parents=True, exist_ok=True)
            (labels / f"{number}.txt").write_text("0 .5 .5 .5 .5\n")
            (tmp_path / "set/in/data.yaml").write_text("train: images/train\nnames: [car]\n")
        elif kind == "voc":
            box = "<bndbox><xmin>1</xmin><ymin>2</ymin><xmax>9</xmax><ymax>9</ymax></bndbox>"
            text = f"<annotation><filename>{number}.png</filename><object><name>car</name>{box}</object></annotation>"
            (folder / f"{number}.xml").write_text(text)
    with zipfile.ZipFile(tmp_path / "my set.zip", "w") as archive:
        for path in sorted((tmp_path / "set").rglob("*.*")):
            archive.write(path, path.relative_to(tmp_path / "set"))
    (said,) = (each for each in said_of(f"zip::{tmp_path}/my set.zip", tmp_path / "of-zip") if "in the zip" in each)
    _, source, _, into = shlex.split(re.search(r"\((unzip .*)\)", said)[1])  # Info-ZIP's, which not each machine has
    zipfile.ZipFile(source).extractall(into)
    (command,) = said_of(into, tmp_path / "unpacked")
    (destination,) = run(command, tmp_path / "x")
    assert "boxes" in [each.name for each in tpufeed.open_dataset(destination).manifest.features]
