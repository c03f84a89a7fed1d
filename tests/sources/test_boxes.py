"""Boxes and keypoints: checked, and stored in pixels of the stored image."""

import io
import json
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from typer.testing import CliRunner

import tpufeed
from tests.sharding.outputs import rejects_of, texts_of
from tests.sharding.previews import preview_shard
from tests.sharding.written import encode_tar
from tpufeed.cli.app import app
from tpufeed.dataset.reader import open_dataset
from tpufeed.errors import BuildError, DuplicateWriterError, ImageError, OptionError
from tpufeed.images.policy import Images, store_image, stored_geometry
from tpufeed.sources.boxes import BoxMover, check_format, declare
from tpufeed.sources.columns import ColumnTypes
from tpufeed.tfrecord.example import Feature

HEIGHT, WIDTH = 60, 80
BOXES = [[10.0, 20.0, 30.0, 50.0], [40.5, 0.0, 80.0, 60.0]]
COLOURS = [(230, 20, 20), (20, 200, 30), (30, 30, 220)]


def encoded(size=(HEIGHT, WIDTH), boxes=(), orientation=1):
    """A PNG of grey with rectangles of the boxes, whole pixels of the upright image, stored as `orientation` turns."""
    image = np.full((*size, 3), 128, np.uint8)
    for number, (left, top, right, bottom) in enumerate(boxes):
        image[top:bottom, left:right] = COLOURS[number]
    turns = {1: None, 2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}
    picture, exif, buffer = Image.fromarray(image), Image.Exif(), io.BytesIO()
    if orientation != 1:
        picture, exif[0x0112] = picture.transpose(Image.Transpose(turns[orientation])), orientation
    picture.save(buffer, "PNG", exif=exif)
    return buffer.getvalue()


@pytest.fixture
def table(tmp_path):
    """`table(rows)`: a table of rows, with an image for each."""

    def make(rows, name="table.jsonl", size=(HEIGHT, WIDTH)):
        folder = tmp_path / "source"
        folder.mkdir(exist_ok=True)
        for number in range(len(rows)):
            (folder / f"{number}.png").write_bytes(encoded(size))
        lines = (json.dumps({"path": f"{number}.png", **row}) + "\n" for number, row in enumerate(rows))
        (folder / name).write_text("".join(lines))
        return folder / name

    return make


def shard(url, folder, **options):
    result = tpufeed.shard(
        url, folder, **{"workers": 1, "max_rejects": 20, "boxes": tpufeed.Boxes(column="boxes"), **options}
    )
    tpufeed.verify(result.url, decode="all")
    return result


def spec_of(result, name):
    return next(feature for feature in result.manifest.features if feature.name == name)


def from_corners(boxes, box_format):
    form, comma, _ = box_format.partition(",")
    boxes = np.array(boxes)
    first, second = boxes[:, :2], boxes[:, 2:]
    if form == "xywh":
        second = second - first
    elif form == "cxcywh":
        first, second = (first + second) / 2, second - first
    return (np.hstack([first, second]) / ([WIDTH, HEIGHT, WIDTH, HEIGHT] if comma else 1)).tolist()


@pytest.mark.parametrize("relative", ["", ",relative"])
@pytest.mark.parametrize("form", ["xyxy", "xywh", "cxcywh"])
def test_each_format_is_stored_as_corners_in_pixels(form, relative, table, tmp_path):
    source = table([{"boxes": from_corners(BOXES, form + relative)}, {"boxes": []}, {"boxes": None}, {}])
    result = shard(source, tmp_path / "d", boxes=tpufeed.Boxes(column="boxes", format=form + relative))
    samples = texts_of(result.url)
    assert samples["0.png"]["boxes"] == pytest.approx(np.ravel(BOXES), abs=1e-4)
    assert [samples[f"{number}.png"]["boxes"] for number in (1, 2, 3)] == [[], [], []]
    spec = spec_of(result, "boxes")
    assert (spec.dtype, spec.shape, spec.item_shape, spec.lengths, spec.kind) == (
        "float32",
        None,
        (4,),
        (0, 2),
        "boxes",
    )


def test_whole_pixels_are_the_default(table, tmp_path):
    source = table([{"boxes": [[1, 2, 3, 4]]}])
    assert texts_of(shard(source, tmp_path / "d").url)["0.png"]["boxes"] == [1, 2, 3, 4]


def test_boxes_that_are_text_in_a_csv(tmp_path):
    (tmp_path / "0.png").write_bytes(encoded())
    (tmp_path / "t.csv").write_text('path,boxes,crowd\n0.png,"[[1, 2, 3, 4], [5, 6, 7, 8.5]]","[0, 1]"\n')
    result = shard(
        tmp_path / "t.csv",
        tmp_path / "d",
        columns={"crowd": "int32[]"},
        boxes=tpufeed.Boxes(column="boxes", columns=["crowd"]),
    )
    sample = texts_of(result.url)["0.png"]
    assert (sample["boxes"], sample["crowd"]) == ([1, 2, 3, 4, 5, 6, 7, 8.5], [0, 1])


def test_labels_and_columns_of_boxes_say_whose_they_are(table, tmp_path):
    rows = [
        {"boxes": BOXES, "label": ["cat", "dog"], "crowd": [0, 1], "score": [0.5, 0.25], "note": ["a", "b"], "id": 7},
        {"boxes": [], "label": [], "crowd": [], "score": [], "note": [], "id": 8},
        {"boxes": BOXES[:1], "label": ["cow"], "crowd": [1], "score": [1], "note": ["ä"], "id": 9},
    ]
    columns = ["crowd", "score", "note"]
    result = shard(table(rows), tmp_path / "d", boxes=tpufeed.Boxes(column="boxes", columns=columns))
    assert [spec_of(result, name).of for name in ("image/class/label", "image/class/text", *columns)] == ["boxes"] * 5
    assert not isinstance(spec_of(result, "id").of, str)
    assert result.manifest.class_names == ("cat", "cow", "dog")
    sample = texts_of(result.url)["0.png"]
    assert (sample["image/class/label"], sample["image/class/text"]) == ([0, 2], ["cat", "dog"])
    assert (sample["crowd"], sample["score"], sample["id"]) == ([0, 1], [0.5, 0.25], [7])


def test_one_label_is_that_of_the_image(table, tmp_path):
    result = shard(table([{"boxes": BOXES, "label": "cat"}]), tmp_path / "d")
    assert spec_of(result, "image/class/label").shape == ()


def test_boxes_of_a_tar(tmp_path):
    parts = {"boxes": BOXES, "cats": ["a", "b"], "points": [[1, 2], [3, 4]]}
    members = [("0.png", encoded()), ("0.json", json.dumps(parts).encode()), ("1.png", encoded()), ("1.json", b"{}")]
    (tmp_path / "a.tar").write_bytes(encode_tar(members))
    result = shard(
        tmp_path / "a.tar", tmp_path / "d", label="cats", boxes=tpufeed.Boxes(column="boxes", keypoints="points")
    )
    sample = texts_of(result.url)["a.tar/0.png"]
    assert sample["boxes"] == list(np.ravel(BOXES))
    assert sample["points"] == [1, 2, 3, 4]
    assert texts_of(result.url)["a.tar/1.png"]["points"] == []


# Presizing and turning.


def rectangles(size):
    height, width = size
    return [
        [0, 0, width // 3, height // 2],
        [width // 2, height // 4, width, height // 2 + 3],
        [width // 4, height - 9, width // 4 * 3, height],
    ]


@pytest.mark.first_cases(4)
@pytest.mark.parametrize("mode", ["short", "long", "fit"])
@pytest.mark.parametrize("size", [(60, 97), (700, 331)])
def test_boxes_move_with_the_pixels(size, mode, tmp_path):
    boxes = rectangles(size)
    centres = [[(left + right) / 2, (top + bottom) / 2] for left, top, right, bottom in boxes]
    rows = []
    for orientation in range(1, 9):
        (tmp_path / f"{orientation}.png").write_bytes(encoded(size, boxes, orientation))
        rows.append({"path": f"{orientation}.png", "boxes": boxes, "points": centres, "number": [0, 1, 2]})
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    options = {
        "images": tpufeed.Images(presize=40, presize_mode=mode),
        "boxes": tpufeed.Boxes(column="boxes", keypoints="points", columns=["number"]),
    }
    samples = texts_of(shard(tmp_path / "t.jsonl", tmp_path / "d", **options).url)
    assert len(samples) == 8
    for name, sample in samples.items():
        image = np.asarray(Image.open(io.BytesIO(sample["image/encoded"][0].encode("latin-1")))).astype(int)
        assert len(sample["number"]) == (2 if (size, mode) == ((700, 331), "fit") else 3), name
        stored = np.reshape(sample["boxes"], (-1, 4))
        for number, (left, top, right, bottom) in zip(sample["number"], stored, strict=True):
            shown = np.abs(image - COLOURS[number]).sum(axis=2) < np.abs(image - 128).sum(axis=2)
            rows, columns = np.flatnonzero(shown.any(axis=1)), np.flatnonzero(shown.any(axis=0))
            found = [columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]
            assert found == pytest.approx([left, top, right, bottom], abs=1), name
        if mode != "fit":
            middle = np.reshape(sample["boxes"], (-1, 2, 2)).mean(axis=1)
            assert np.reshape(sample["points"], (-1, 2)) == pytest.approx(middle, abs=1e-3), name


def test_an_orientation_that_is_ignored_turns_no_boxes(tmp_path):
    (tmp_path / "0.png").write_bytes(encoded((60, 80), [], 6))  # 60 wide and 80 high as it is stored, 80x60 upright
    (tmp_path / "t.jsonl").write_text(json.dumps({"path": "0.png", "boxes": [[0, 70, 50, 80]]}))
    shard(tmp_path / "t.jsonl", tmp_path / "d", images=tpufeed.Images(exif="ignore"))
    with pytest.raises(tpufeed.errors.BuildError, match="80x60"):
        shard(tmp_path / "t.jsonl", tmp_path / "e")


def test_boxes_outside_the_square_are_left_out_with_all_that_is_theirs(table, tmp_path):
    boxes = [[0, 0, 9, 60], [10, 0, 30, 60], [70, 0, 75, 9], [5, 30, 15, 40]]  # of 80x60: 10 to 70 is cut out
    points = [[[left, top, 2], [right, bottom, 1]] for left, top, right, bottom in boxes]
    rows = [
        {
            "boxes": boxes,
            "label": ["a", "b", "c", "d"],
            "crowd": [1, 2, 3, 4],
            "grey": [1, 2, 3, 4],
            "pose": points,
            "note": ["w", "x", "y", "z"],
        },
        {"boxes": boxes[1:2], "label": ["b"], "crowd": [9], "grey": [9], "pose": points[1:2], "note": ["u"]},
    ]
    options = {
        "boxes": tpufeed.Boxes(column="boxes", keypoints="pose", columns=["crowd", "grey", "note"]),
        "columns": {"grey": "uint8[]"},
    }
    result = shard(table(rows), tmp_path / "d", images=tpufeed.Images(presize=30, presize_mode="fit"), **options)
    sample = texts_of(result.url)["0.png"]
    assert np.reshape(sample["boxes"], (-1, 4)).tolist() == [[0, 0, 10, 30], [0, 15, 2.5, 20]]
    assert (sample["image/class/text"], sample["crowd"], sample["grey"]) == (["b", "d"], [2, 4], ["\2\4"])
    assert sample["note"] == ["x", "z"]
    assert np.reshape(sample["pose"], (2, 2, 3)).tolist() == [[[0, 0, 2], [10, 30, 1]], [[-2.5, 15, 0], [2.5, 20, 1]]]
    assert result.manifest.odd["box outside"] == 2
    assert [split.class_counts for split in result.manifest.splits.values()] == [(0, 2, 0, 1)]
    for name in ("boxes", "crowd", "grey", "pose", "note", "image/class/label", "image/class/text"):
        assert spec_of(result, name).lengths == (0, 4)


# Bad input.


BAD = {
    "not a number": (
        [[1, 2, float("nan"), 4]],
        r"\[1.0, 2.0, nan, 4.0\]",
    ),
    "infinite": ([BOXES[0], [1, 2, float("inf"), 4]], "number 2 .* inf"),
    "upside down": (
        [[1, 30, 20, 10]],
        r"\[1.0, 30.0, 20.0, 10.0\]",
    ),
    "empty": ([[1, 2, 1, 10]], r"\[1.0, 2.0, 1.0, 10.0\]"),
    "next to nothing": ([[1, 2, 1.0000002, 2.0000002]], r"\[1.0, 2.0, 1.0, 2.0\]"),
    "outside": ([[1, 2, 82.1, 10]], "80x60"),
    "beyond the top": ([[1, -3, 8, 10]], "80x60"),
    "just beyond": ([[80.2, 1, 80.9, 10]], "80x60"),
    "three numbers": ([[1, 2, 3]], r"\[1, 3\]"),
    "several lengths": ([[1, 2, 3, 4], [1, 2, 3]], "'boxes'"),
    "no list": ("a box", "'a box'"),
    "text": ([[1, 2, 3, "x"]], "'boxes' .*x"),
}


def test_a_bad_box_is_a_reject_with_its_value(table, tmp_path):
    source = table([{"boxes": BOXES}, *({"boxes": value} for value, _ in BAD.values())])
    result = shard(source, tmp_path / "d")
    assert set(texts_of(result.url)) == {"0.png"}
    rejects = rejects_of(tmp_path / "d")
    assert len(rejects) == len(BAD)
    for number, (bad, (_, said)) in enumerate(BAD.items(), 1):
        reason, message = rejects[f"{number}.png"]
        assert reason == "bad_box", bad
        assert re.search(said, message), message


@pytest.mark.parametrize(
    ("box_format", "box"),
    [
        ("xywh", [1, 2, 0, 4]),
        ("xywh", [1, 2, 3, -4]),
        ("cxcywh,relative", [0.5, 0.5, 0, 1]),
        ("xywh,relative", [0, 0, 2, 1]),
    ],
)
def test_bad_boxes_of_other_formats(box_format, box, table, tmp_path):
    good = from_corners(BOXES, box_format)
    shard(
        table([{"boxes": good}, {"boxes": [box]}]),
        tmp_path / "d",
        boxes=tpufeed.Boxes(column="boxes", format=box_format),
    )
    ((reason, message),) = rejects_of(tmp_path / "d").values()
    assert reason == "bad_box"
    assert f"is {[float(number) for number in box]}" in message


def test_a_box_is_clipped_that_reaches_two_pixels_beyond(table, tmp_path):
    result = shard(table([{"boxes": [[-2, -0.5, 82, 61.9]]}]), tmp_path / "d")
    assert texts_of(result.url)["0.png"]["boxes"] == [0, 0, 80, 60]
    assert "box clipped" not in result.manifest.odd


# Of 80x60: inside, almost two pixels beyond, far beyond, wholly outside.
BEYOND = [[1, 2, 3, 4], [-1.9, 5, 20, 61.9], [-20, 10, 100, 30], [200, 10, 300, 30]]


@pytest.mark.parametrize("box_format", ["xyxy", "cxcywh,relative"])
@pytest.mark.parametrize("how", ["clip", "drop"])
def test_boxes_beyond_the_image_are_clipped_or_dropped_with_their_values(how, box_format, table, tmp_path):
    poses = [[[number, 1]] for number in range(4)]
    said = {"label": list("abcd"), "score": [0, 1, 2, 3]}
    rows = [{"boxes": from_corners(BEYOND, box_format), **said, "pose": poses}]
    rows.append({"boxes": from_corners(BEYOND[3:], box_format), "label": ["d"], "score": [9], "pose": poses[:1]})
    options = {
        "boxes": tpufeed.Boxes(column="boxes", columns=["score"], keypoints="pose", outside=how, format=box_format)
    }
    result = shard(table(rows), tmp_path / how, **options)
    samples, kept = texts_of(result.url), 3 if how == "clip" else 2
    stored = np.reshape(samples["0.png"]["boxes"], (-1, 4))
    assert stored == pytest.approx(np.array([[1, 2, 3, 4], [0, 5, 20, 60], [0, 10, 80, 30]][:kept]), abs=1e-3)
    assert samples["0.png"]["image/class/text"] == ["a", "b", "c"][:kept]
    assert samples["0.png"]["score"] == [0, 1, 2][:kept]
    assert len(samples["0.png"]["pose"]) == 2 * kept
    assert [samples["1.png"][name] for name in ("boxes", "image/class/label", "score", "pose")] == [[]] * 4
    assert spec_of(result, "boxes").lengths == (0, 4)
    assert result.manifest.odd == ({"box outside": 2, "box clipped": 1} if how == "clip" else {"box outside": 3})
    assert result.manifest.options["boxes_outside"] == how
    assert tpufeed.append(tmp_path / "source/table.jsonl", result.url, workers=1).added == 0


def test_a_policy_for_boxes_that_there_is_not(table, tmp_path):
    with pytest.raises(OptionError, match=r"boxes\.outside"):
        shard(table([{"boxes": []}]), tmp_path / "d", boxes=tpufeed.Boxes(column="boxes", outside="keep"))


@pytest.mark.parametrize("box", [[1, 2, 1, 4], [300, 10, 200, 30], [float("nan"), 1, 2, 3]])
def test_boxes_that_are_no_boxes_are_rejects_anyhow(box, table, tmp_path):
    shard(
        table([{"boxes": BEYOND}, {"boxes": [box]}]),
        tmp_path / "d",
        boxes=tpufeed.Boxes(column="boxes", outside="drop"),
    )
    assert {name: reason for name, (reason, _) in rejects_of(tmp_path / "d").items()} == {"1.png": "bad_box"}


def test_as_many_labels_and_values_as_boxes(table, tmp_path):
    good = {"boxes": BOXES, "label": ["cat", "dog"], "crowd": [0, 1], "pose": [[[1, 2], [3, 4]], [[5, 6], [7, 8]]]}
    bad = [
        ({"label": ["cat"]}, "'label'"),
        ({"crowd": [0, 0, 1]}, r"'crowd' .*\[0, 0, 1\]"),
        ({"crowd": [0, None]}, r"'crowd' .*\[0\]"),
        ({"pose": [[[1, 2], [3, 4]]]}, "'pose'"),
    ]
    source = table([good, *({**good, **values} for values, _ in bad)])
    assert (
        shard(source, tmp_path / "d", boxes=tpufeed.Boxes(column="boxes", columns=["crowd"], keypoints="pose")).images
        == 1
    )
    rejects = rejects_of(tmp_path / "d")
    for number, (_, said) in enumerate(bad, 1):
        reason, message = rejects[f"{number}.png"]
        assert reason == "bad_box"
        assert re.search(said, message), message


# Keypoints.


def test_keypoints_without_boxes(table, tmp_path):
    rows = [{"eyes": [[1.5, 2], [0, 0]]}, {"eyes": []}, {"eyes": [[5, float("nan")]]}, {"eyes": [[100, -5]]}]
    result = shard(
        table(rows),
        tmp_path / "d",
        boxes=tpufeed.Boxes(keypoints="eyes"),
        images=tpufeed.Images(presize=30, presize_mode="fit"),
    )
    samples = texts_of(result.url)
    assert samples["0.png"]["eyes"] == [-4.25, 1, -5, 0]
    assert samples["3.png"]["eyes"] == [45, -2.5]  # a point may lie outside
    assert rejects_of(tmp_path / "d") == {
        "2.png": (
            "bad_box",
            "number 1 of the 1 in the column 'eyes' is [5.0, nan]: a keypoint has finite numbers",
        )
    }
    spec = spec_of(result, "eyes")
    assert (spec.dtype, spec.shape, spec.item_shape, spec.kind) == ("float32", None, (2,), "keypoints")


def test_left_and_right_keypoints_of_a_mirrored_image_are_swapped_if_there_are_any(table, tmp_path):
    source = table([{"eyes": eyes, "width": HEIGHT, "height": WIDTH} for eyes in ([[10, 20], [30, 40]], [])])
    for number in range(2):
        (source.parent / f"{number}.png").write_bytes(encoded(orientation=5))
    samples = texts_of(shard(source, tmp_path / "d", boxes=tpufeed.Boxes(keypoints="eyes", flip_pairs="0:1")).url)
    assert [samples[f"{number}.png"]["eyes"] for number in range(2)] == [[40, 30, 20, 10], []]


@pytest.mark.parametrize(("each", "points"), [("[,2]", [[1, 2], [3, 4], [5, 6]]), ("[,3]", [[1, 2, 3], [4, 5, 6]])])
def test_a_flat_list_of_keypoints_is_cut_as_declared(each, points, table, tmp_path):
    source = table([{"eyes": [1, 2, 3, 4, 5, 6]}, {"eyes": [1, 2, 3, 4, 5]}])
    result = shard(source, tmp_path / "d", boxes=tpufeed.Boxes(keypoints="eyes"), columns={"eyes": f"float32{each}"})
    sample = tpufeed.TFRecordImages(str(result.url), columns=["eyes"])[0]
    assert np.asarray(sample[0]).tolist() == points
    assert rejects_of(result.url)["1.png"][0] == "bad_box"
    with pytest.raises(BuildError, match=r"flat list of 5 numbers.*--column eyes:float32\[,2\]"):
        shard(source, tmp_path / "e", boxes=tpufeed.Boxes(keypoints="eyes"))


def test_keypoints_of_boxes_keep_what_was_not_marked(table, tmp_path):
    pose = [[[0, 0, 0], [40, 30, 2]], [[80, 60, 1], [0, 0, 0]]]
    result = shard(
        table([{"boxes": BOXES, "pose": pose}]),
        tmp_path / "d",
        boxes=tpufeed.Boxes(column="boxes", keypoints="pose"),
        images=tpufeed.Images(presize=30, presize_mode="fit"),
    )
    assert spec_of(result, "pose").item_shape == (2, 3)
    assert spec_of(result, "pose").of == "boxes"
    found = np.reshape(texts_of(result.url)["0.png"]["pose"], (2, 2, 3))
    assert found.tolist() == [[[0, 0, 0], [15, 15, 2]], [[35, 30, 0], [0, 0, 0]]]


def test_shares_of_width_and_height_are_those_of_keypoints_too(table, tmp_path):
    rows = [{"boxes": [[0.5, 0.5, 1, 1]], "eyes": [[0.25, 0.5, 1]]}]
    result = shard(
        table(rows), tmp_path / "d", boxes=tpufeed.Boxes(column="boxes", keypoints="eyes", format="cxcywh,relative")
    )
    sample = texts_of(result.url)["0.png"]
    assert (sample["boxes"], sample["eyes"]) == ([0, 0, 80, 60], [20, 30, 1])


# Options.


@pytest.mark.parametrize(
    ("boxes", "match"),
    [
        ({"format": "ltrb"}, "'ltrb'"),
        ({"format": "xywh,percent"}, "percent"),
        ({"column": None, "format": "xywh"}, r"boxes\.format"),
        ({"column": None, "columns": ["crowd"]}, "--boxes"),
        ({"column": "bbox"}, "'bbox'"),
        ({"columns": "crowd"}, r"boxes\.columns"),
        ({"columns": ["crowds"]}, "'crowds'"),
        ({"columns": ["id"]}, "'id'"),
        ({"keypoints": "boxes"}, "'boxes'"),
        ({"column": None, "keypoints": "eyes"}, r"\[2, 2\]"),
    ],
)
def test_options_that_cannot_be(boxes, match, table, tmp_path):
    row = {"boxes": BOXES, "crowd": [0, 1], "id": 7, "eyes": [[[1, 2], [3, 4]], [[1, 2], [3, 4]]]}
    with pytest.raises(OptionError, match=match):
        shard(table([row]), tmp_path / "d", boxes=tpufeed.Boxes(**{"column": "boxes"} | boxes))
    with pytest.raises(OptionError, match=r"int64\[,4\]"):
        shard(table([row]), tmp_path / "d", columns={"boxes": "int64[,4]"})


def test_the_same_command_with_another_format_is_another_build(table, tmp_path):
    source = table([{"boxes": BOXES}, {"boxes": []}])
    first = shard(source, tmp_path / "d", boxes=tpufeed.Boxes(column="boxes", format="xyxy"))
    assert shard(source, tmp_path / "d", boxes=tpufeed.Boxes(column="boxes", format="xyxy")).manifest == first.manifest
    with pytest.raises(DuplicateWriterError, match="box_format"):
        shard(source, tmp_path / "d", boxes=tpufeed.Boxes(column="boxes", format="xywh"))
    with pytest.raises(DuplicateWriterError, match="boxes"):
        tpufeed.shard(source, tmp_path / "d")
    assert first.manifest.options["boxes"] == "boxes"
    assert (
        preview_shard(source, tmp_path / "e", boxes=tpufeed.Boxes(column="boxes")).listed.columns["boxes"]
        == "float32[0 to 2, 4] boxes"
    )


def test_flags(table, tmp_path):
    row = {"boxes": from_corners(BOXES, "xywh"), "crowd": [0, 1], "area": [1, 2], "eyes": [[1, 2, 1]]}
    flags = ["--boxes", "boxes", "--box-format", "xywh", "--keypoints", "eyes", "--box-columns", "crowd,area"]
    words = ["shard", str(table([row])), str(tmp_path / "d"), *flags]
    assert CliRunner().invoke(app, words).exit_code == 0
    given = open_dataset(tmp_path / "d").manifest.options
    assert [given[name] for name in ("boxes", "box_format", "keypoints", "box_columns")] == [
        "boxes",
        "xywh",
        "eyes",
        ["crowd", "area"],
    ]
    assert texts_of(tmp_path / "d")["0.png"]["boxes"] == list(np.ravel(BOXES))


# For all boxes.

SIDES = st.integers(8, 300)
SHARES = st.tuples(*[st.integers(0, 64).map(lambda share: share / 64)] * 4)


FORMS = st.sampled_from(["xyxy", "xywh", "cxcywh"])


@given(SIDES, SIDES, st.lists(SHARES, max_size=6), FORMS, st.booleans(), st.data())
def test_what_is_stored_lies_within_the_image_or_is_refused(height, width, shares, form, relative, data):
    mode = data.draw(st.sampled_from(["short", "long", "fit"]))
    policy = Images(presize=data.draw(st.integers(8, 64)), presize_mode=mode, check="header")
    image = store_image(encoded((height, width)), policy)
    boxes = np.sort(np.array(shares, np.float64).reshape(-1, 2, 2), axis=1).reshape(-1, 4)
    if form == "xywh":
        boxes[:, 2:] -= boxes[:, :2]
    elif form == "cxcywh":
        boxes = np.hstack([(boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2]])
    if not relative:
        boxes *= [width, height, width, height]
    types = ColumnTypes(declare("boxes", None, ()))
    _, wrong = types.learn({"boxes": boxes.tolist()})
    assert wrong is None
    mover = BoxMover(types.schema(), form + ",relative" * relative)
    features = {"boxes": Feature("float", boxes.ravel().tolist())}
    if len(boxes) and (boxes[:, 2:] - (boxes[:, :2] if form == "xyxy" else 0)).min() <= 0:
        with pytest.raises(ImageError, match="'boxes'"):
            mover.move(features, image.source, stored_geometry(image, policy))
        return
    moved, kept, _ = mover.move(features, image.source, stored_geometry(image, policy))
    dropped = len(kept) - kept.sum()
    stored = np.reshape(moved["boxes"].values, (-1, 4))
    assert len(stored) + dropped == len(boxes)
    assert dropped == 0 or mode == "fit"
    assert (stored >= 0).all()
    assert (stored <= [image.width, image.height, image.width, image.height]).all()
    assert (stored[:, 2:] >= stored[:, :2]).all()


@pytest.mark.parametrize("text", ["", "XYXY", "xyxy,", "xyxy,relative,relative", "relative"])
def test_formats_that_are_none(text):
    with pytest.raises(OptionError, match="box format"):
        check_format(text)


def test_a_keypoint_without_numbers_is_a_bad_box():
    _, problem = ColumnTypes(declare(None, "points", ())).learn({"points": [[]]})
    assert problem == ("bad_box", "the column 'points' has the shape [1, 0]. It is for keypoints")


def test_shares_that_are_taken_for_pixels_are_said(table, tmp_path):
    rows = [{"boxes": [[0, 0, 0.5, 1], [0.25, 0.25, 0.5, 0.5]]}, {"boxes": [[0, 0, 1, 1], [1, 2, 3, 4]]}, {"boxes": []}]
    result = shard(table(rows), tmp_path / "d")
    assert result.manifest.odd == {"boxes within one pixel": 1}
    assert [said.startswith("all boxes of 1 images") for said in result.warnings].count(True) == 1
    assert not shard(
        table(rows[:1]), tmp_path / "d2", boxes=tpufeed.Boxes(column="boxes", format="xyxy,relative")
    ).manifest.odd
