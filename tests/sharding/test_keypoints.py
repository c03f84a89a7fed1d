"""Keypoints in columns of x and y: one list that moves with crops and flips."""

import csv

import numpy as np
import pytest
from PIL import Image

import tpufeed
from tests.sharding.outputs import rejects_of, samples_of
from tpufeed.errors import OptionError, SourceError
from tpufeed.images import CenterCrop, HorizontalFlip

POINTS = "left_eye_x,left_eye_y,right_eye_x,right_eye_y,nose_x,nose_y"
ROWS = [(10, 12, 30, 12, 20, 22), (11, 12, "", "", 20, 22)]


@pytest.fixture
def table(tmp_path):
    """`table(rows, header)`: a CSV with an image of 40 x 40 pixels for each row."""

    def make(rows, header=POINTS):
        with (tmp_path / "t.csv").open("w", newline="") as file:
            lines = csv.writer(file)
            lines.writerow(["path", "label", *header.split(",")])
            for number, row in enumerate(rows):
                Image.fromarray(np.full((40, 40, 3), number, np.uint8)).save(tmp_path / f"{number}.png")
                lines.writerow([f"{number}.png", "ab"[number % 2], *row])
        return tmp_path / "t.csv"

    return make


def test_columns_of_x_and_y_are_keypoints(table, tmp_path):
    made = tpufeed.shard(table(ROWS), tmp_path / "d", boxes=tpufeed.Boxes(keypoints=POINTS), workers=1)
    (spec,) = (spec for spec in made.manifest.features if spec.kind == "keypoints")
    assert (spec.name, spec.lengths, spec.item_shape) == ("keypoints", (3, 3), (3,))
    assert spec.flip_pairs == ((0, 1),)  # as their names say
    found = {path: values["keypoints"] for path, values in samples_of(tmp_path / "d").items()}
    assert found["0.png"] == [10, 12, 2, 30, 12, 2, 20, 22, 2]
    assert found["1.png"] == [11, 12, 2, 0, 0, 0, 20, 22, 2]
    options = {"columns": ["image", "keypoints", "sample"], "processes": 0, "shuffle": False, "batch_size": 2}
    with tpufeed.Loader(tmp_path / "d", "train", ops=[CenterCrop(32), HorizontalFlip(1.0)], **options) as loader:
        batch = next(iter(loader))
    points = next(each for each in batch if each.shape == (2, 3, 3))[..., :2]
    visible = next(each for each in batch if each.shape == (2, 3) and each.dtype == bool)
    whole = int(visible.all(1).argmax())
    # 4 pixels are cut off on each side, then x is mirrored, and left and right are swapped.
    assert np.allclose(points[whole], [[32 - 26, 8], [32 - 6, 8], [32 - 16, 18]]), points
    assert visible.sum(1).tolist() in ([3, 2], [2, 3])


def test_rows_of_boxes_have_keypoints_each(table, tmp_path):
    header = f"{POINTS},x1,y1,x2,y2"
    source = table([(*row, 1, 1, 38, 38) for row in ROWS], header)
    text = source.read_text().replace("1.png", "0.png").replace(",b,", ",a,")
    source.write_text(text)
    boxes = tpufeed.Boxes(column="x1,y1,x2,y2", keypoints=POINTS)
    made = tpufeed.shard(source, tmp_path / "d", group_by="path", boxes=boxes, workers=1)
    types = {spec.name: spec.type_text for spec in made.manifest.features}
    assert types["keypoints"].startswith("float32[2, 3, 3] keypoints")


def test_points_that_are_no_numbers_are_rejects(table, tmp_path):
    rows = [*ROWS, ("here", 12, 30, 12, 20, 22), (10, "", 30, 12, 20, 22)]
    boxes = tpufeed.Boxes(keypoints=POINTS)
    tpufeed.shard(table(rows), tmp_path / "d", boxes=boxes, max_rejects=2, workers=1)
    found = rejects_of(tmp_path / "d")
    assert {path: reason for path, (reason, _) in found.items()} == {"2.png": "bad_box", "3.png": "bad_box"}
    assert "'here'" in found["2.png"][1]


@pytest.mark.parametrize("keypoints", ["nose_x,ear_y", "nose_x,nose_y,ear_x", "nose_y,nose_x", "a,b"])
def test_columns_that_are_not_x_and_y_in_turn(table, tmp_path, keypoints):
    with pytest.raises(OptionError, match=r"Expected those of x and y in turn"):
        tpufeed.shard(table(ROWS), tmp_path / "d", boxes=tpufeed.Boxes(keypoints=keypoints))


def test_points_that_are_nowhere(table, tmp_path):
    with pytest.raises(OptionError, match=r"no column 'ear_x' for the keypoints. It has path, label, left_eye_x"):
        tpufeed.shard(table(ROWS), tmp_path / "d", boxes=tpufeed.Boxes(keypoints="ear_x,ear_y"))
    source = table([(*row, 1) for row in ROWS], f"{POINTS},keypoints")
    with pytest.raises((OptionError, SourceError), match=r"the name that the points get\. Rename it"):
        tpufeed.shard(source, tmp_path / "d", boxes=tpufeed.Boxes(keypoints=POINTS))
