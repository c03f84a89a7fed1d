"""The folder of COCO's images is never that of another project or split, and is named."""

import json

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import tpufeed
from tests.sharding.outputs import rejects_of
from tests.sharding.previews import preview_shard
from tpufeed.cli.app import app
from tpufeed.errors import OptionError

NAMES = [f"{number:04d}.png" for number in range(5)]


@pytest.fixture
def make(tmp_path):
    """`make(json, folder=names)`: a COCO file of five images at a path, and folders with images of these names."""

    def make(path, folders, prefix=""):
        for grey, (folder, names) in enumerate(folders.items()):
            for number, name in enumerate(names):
                file = tmp_path / folder / name
                file.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(np.full((20, 30, 3), 10 + 20 * grey + number, np.uint8)).save(file)
            (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        images = [
            {"id": number, "file_name": prefix + name, "width": 30, "height": 20} for number, name in enumerate(NAMES)
        ]
        boxes = [{"id": n, "image_id": n, "category_id": 1, "bbox": [1, 2, 3, 4]} for n in range(len(NAMES))]
        file.write_text(json.dumps({"images": images, "annotations": boxes, "categories": [{"id": 1, "name": "car"}]}))
        return file

    return make


ALL, SOME = NAMES, NAMES[:2] + NAMES[3:]
# (the file, folders with the images that are in them, the folder that is taken)
TAKEN = [
    ("c/annotations/instances_val2017.json", {"c/val2017": ALL, "c/train2017": ALL}, "c/val2017"),
    # One is missing, and a folder of another split has one that is called so.
    ("c/annotations/instances_val2017.json", {"c/val2017": SOME, "c/train2017": ALL}, "c/val2017"),
    ("c/annotations/instances_val.json", {"c/images/val": SOME, "c/images/train": ALL}, "c/images/val"),
    ("c/valid/_annotations.coco.json", {"c/valid": SOME, "c/train": ALL}, "c/valid"),
    ("c/annotations/train.json", {"c/train_images": SOME, "c/test_images": ALL}, "c/train_images"),
    ("c/annotations/site3_boxes.json", {"c/site3": SOME, "c/site4": NAMES[:1]}, "c/site3"),
    ("c/annotations/instances_default.json", {"c/images": ALL}, "c/images"),
    ("c/labels.json", {"c/data": ALL}, "c/data"),
    ("c/labels.json", {"c/flowers": ALL}, "c/flowers"),  # there is no other
    ("c/annotations/a.json", {"c/flowers": ALL}, "c/flowers"),
    ("c/a.json", {"c": ALL, "d": ALL, "c/images": ALL}, "c"),
]
# ... and what the error names
REFUSED = [
    ("a/result.json", {"a/unzipped/deep/images": ALL, "b": ALL, "images": ALL}, "no image like"),
    ("a/annotations/result.json", {"a/unzipped/deep/images": ALL, "b": ALL, "images": ALL}, "no image like"),
    ("a.json", {"a/unzipped/deep": ALL, "b": ALL}, "a.json: images like 0000.png are in"),  # of the project b
    ("a.json", {"b": ALL, "docs": []}, "nothing tells"),
    ("c/annotations/instances_val2017.json", {"c/train2017": ALL}, "another split"),
    ("c/annotations/instances_val2017.json", {"c/val2017": [], "c/train2017": ALL}, "another split"),
    ("c/annotations/instances_val2017.json", {"c/val2017": [], "c/images": ALL}, "val2017 has the name of the file"),
    ("c/annotations/instances_val2017.json", {"c/val2017": SOME, "c/images": ALL}, "and in"),
    ("c/annotations/x.json", {"c/one": SOME}, "4 of 5"),
    ("c/annotations/x.json", {"c/images": ALL, "c/data": ALL}, "and in"),
]


@pytest.mark.parametrize(("path", "folders", "taken"), TAKEN)
def test_the_folder_that_is_taken_is_named(path, folders, taken, make, tmp_path):
    path = make(path, folders)
    result = tpufeed.shard(path, tmp_path / "out", workers=1)
    assert result.listed.images_from == str(tmp_path / taken)
    missing = [name for name in NAMES if name not in folders[taken]]
    assert result.rejects == len(missing)
    if missing:
        assert {name: reason for name, (reason, _) in rejects_of(tmp_path / "out").items()} == {
            name: "unreadable" for name in missing
        }
    assert preview_shard(path, tmp_path / "e").listed.images_from == result.listed.images_from


@pytest.mark.parametrize(("path", "folders", "said"), REFUSED)
def test_no_folder_is_taken_that_may_be_of_something_else(path, folders, said, make, tmp_path):
    path = make(path, folders)
    with pytest.raises(OptionError, match=said) as caught:
        tpufeed.shard(path, tmp_path / "out", workers=1)
    assert "--image DIR" in str(caught.value)
    assert not (tmp_path / "out").exists()
    some = next(folder for folder, names in folders.items() if names)
    result = tpufeed.shard(path, tmp_path / "out", workers=1, image=str(tmp_path / some))
    assert result.images + result.rejects == len(NAMES)


def test_names_with_a_folder_of_another_project(make, tmp_path):
    path = make("a/result.json", {"a/deep/er/images": ALL, "b/images": ALL}, prefix="images/")
    with pytest.raises(OptionError, match="no image like"):
        tpufeed.shard(path, tmp_path / "out", workers=1)


def test_the_command_names_the_folder(make, tmp_path):
    path = make("c/annotations/instances_val2017.json", {"c/val2017": ALL})
    for dry_run in (["--dry-run"], []):
        done = CliRunner().invoke(app, ["shard", str(path), str(tmp_path / "out"), *dry_run])
        assert str(tmp_path / "c/val2017") in done.stdout
    done = CliRunner().invoke(app, ["shard", str(path), str(tmp_path / "more"), "--json"])
    assert json.loads(done.stdout)["listed"]["images_from"] == str(tmp_path / "c/val2017")
