"""Keypoints keep their names when a picture is mirrored: a left eye is a left eye in every batch."""

import json
import logging

import msgspec
import numpy as np
import pytest
from PIL import Image, ImageDraw
from typer.testing import CliRunner

import tpufeed
from tests.adoption.test_orientation import with_orientation
from tpufeed.cache import warmup
from tpufeed.cli.app import app
from tpufeed.errors import ManifestError, OptionError
from tpufeed.images import CenterCrop, Custom, HorizontalFlip, RandomResizedCrop, Resize, Rotate, VerticalFlip

COLOURS = np.array([(250, 250, 250), (250, 0, 0), (0, 250, 0), (0, 0, 250), (250, 250, 0)])  # of points 0 to 4
OTHERS = np.array([(0, 250, 250), (250, 0, 250), (250, 120, 0), (0, 110, 110), (120, 0, 250)])  # of the second box
PAIRS, PARTNERS = [(1, 2), (4, 3)], [0, 2, 1, 4, 3]
SIZE, COUNT, RADIUS = (120, 160), 8, 5
RANDOM_OPS = [RandomResizedCrop(96, scale=(0.7, 1.0)), HorizontalFlip(), Rotate(20), VerticalFlip()]


def dots(left, top):
    """Places of the five points of a box: a nose, two eyes and two ears."""
    return [(left + x, top + y) for x, y in ((30, 50), (12, 30), (48, 32), (8, 66), (54, 70))]


BOXES = [[5, 20, 72, 105], [85, 18, 155, 103]]
POSES = [dots(8, 20), dots(90, 18)]


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """A table of pictures, each with ten coloured dots in two boxes, stored in all orientations of EXIF."""
    folder, rows = tmp_path_factory.mktemp("dots"), []
    picture = Image.new("RGB", SIZE[::-1], (120, 120, 120))
    draw = ImageDraw.Draw(picture)
    for pose, colours in zip(POSES, (COLOURS, OTHERS), strict=True):
        for (x, y), colour in zip(pose, colours.tolist(), strict=True):
            draw.ellipse((x - RADIUS, y - RADIUS, x + RADIUS, y + RADIUS), tuple(colour))
    for number in range(COUNT):
        (folder / f"{number}.png").write_bytes(with_orientation(picture, number % 8 + 1, "PNG"))
        # Point 3 of the first box was not marked.
        poses = [
            [[x, y, 0 if place == 3 and not box else 2] for place, (x, y) in enumerate(pose)]
            for box, pose in enumerate(POSES)
        ]
        rows.append({"path": f"{number}.png", "boxes": BOXES, "poses": poses, "points": poses[0], "label": ["a", "b"]})
    (folder / "table.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / "table.jsonl"


def shard(table, folder, pairs=PAIRS, column=None, keypoints=None, **options):
    boxes = tpufeed.Boxes(column=column, keypoints=keypoints, flip_pairs=pairs)
    return tpufeed.shard(table, folder, workers=1, boxes=boxes, **options)


@pytest.fixture(scope="module")
def of_boxes(pictures, tmp_path_factory):
    return shard(pictures, tmp_path_factory.mktemp("of-boxes") / "d", column="boxes", keypoints="poses").url


@pytest.fixture(scope="module")
def of_images(pictures, tmp_path_factory):
    return shard(pictures, tmp_path_factory.mktemp("of-images") / "d", keypoints="points").url


def find_dots(image, colours):
    """The middle of each dot, (5, 2), from its pixels."""
    found = [np.nonzero(np.abs(image.astype(int) - colour).max(2) < 60) for colour in colours]
    return np.array(
        [
            (np.median(columns) + 0.5, np.median(rows) + 0.5) if len(rows) else (np.nan, np.nan)
            for rows, columns in found
        ]
    )


def is_mirrored(places):
    """The nose, seen from the one eye to the other, lies on the other side."""
    (ax, ay), (bx, by) = places[2] - places[1], places[0] - places[1]
    return ax * by - ay * bx < 0


def check_names(images, points, colours=COLOURS, swaps=True):
    """Each point lies on the dot of its name; returns how many of the pictures were mirrored."""
    mirrored, seen = 0, 0
    for image, rows in zip(images, points, strict=True):
        places = find_dots(image, colours)
        if not np.isfinite(places[:3]).all():
            continue
        mirrored += (turned := is_mirrored(places))
        names = PARTNERS if turned and swaps else range(5)
        for row, name in zip(rows, names, strict=True):
            if name == 3 and colours is COLOURS:
                assert row[2] == 0  # it was not marked: that goes with its name
            elif row[2] and np.isfinite(places[name]).all():
                seen += 1
                assert np.abs(row[:2] - places[name]).max() < 8  # dots are some 30 apart, and a crop may cut one
    assert seen > 2 * len(images)
    return mirrored


def batch_of(url, columns, **options):
    options = {"batch_size": COUNT, "columns": columns, "processes": 0, "seed": 2, **options}
    with tpufeed.Loader(url, **options) as loader:
        return dict(zip(loader.stream.form.names, next(iter(loader)), strict=True))


@pytest.mark.first_cases(2)
@pytest.mark.parametrize(
    ("ops", "mirrored"),
    [
        ([Resize(SIZE)], 0),
        ([HorizontalFlip(1.0), Resize(SIZE)], COUNT),
        ([VerticalFlip(1.0), Resize((90, 120))], COUNT),  # a mirror swaps left and right whichever way it is held
        ([Resize(SIZE), VerticalFlip(1.0), HorizontalFlip(1.0)], 0),
        ([Resize(SIZE), Rotate((180, 180))], 0),
        ([HorizontalFlip(1.0), CenterCrop(SIZE), Rotate(30)], COUNT),
        (RANDOM_OPS, None),
    ],
)
def test_a_mirror_swaps_the_points_of_each_pair(of_boxes, of_images, ops, mirrored):
    batch = batch_of(of_images, ["image", "points"], ops=ops, processes=int(ops is RANDOM_OPS))
    found = check_names(batch["image"], batch["points"])
    assert found == mirrored if mirrored is not None else 0 < found < COUNT
    visible = batch["points"][..., 2] > 0
    np.testing.assert_array_equal(batch["points_visible"], visible)
    for box, colours in enumerate((COLOURS, OTHERS)):
        batch = batch_of(of_boxes, ["image", "boxes", "poses"], ops=ops)
        whole = batch["boxes_length"] == 2
        check_names(batch["image"][whole], batch["poses"][whole, box], colours)
    single = tpufeed.TFRecordImages(of_images, columns=["image", "points"], ops=ops, seed=2)
    samples = [single[number] for number in range(COUNT)]
    check_names([np.asarray(each[0]) for each in samples], [np.asarray(each[1]) for each in samples])


@pytest.mark.parametrize("encode", ["raw", "png"])
def test_caches_hold_the_points_swapped_and_live_flips_swap_on_top(of_images, tmp_path, encode):
    ops, live = [Resize(SIZE), HorizontalFlip()], [HorizontalFlip(1.0)]
    cache = warmup(of_images, tmp_path / "c", ops=ops, live=live, variants=2, encode=encode, workers=1).url
    with tpufeed.Loader(cache, columns=["image", "points"], ops=[], batch_size=COUNT, processes=0) as loader:
        batches = [next(iter(loader)), next(iter(loader))]
    stored = [check_names(images, points) for images, points, _ in batches]
    assert 0 < sum(stored) < 2 * COUNT
    batch = batch_of(cache, ["image", "points"])
    assert check_names(batch["image"], batch["points"]) == COUNT - stored[0]


def unchanged(sample, random):
    return sample


def test_around_a_function_over_whole_samples(of_images):
    """It sees the points by their names in the picture that it sees."""
    for ops in ([HorizontalFlip(1.0)], [HorizontalFlip(1.0), VerticalFlip(1.0)]):
        around = [Resize(SIZE), *ops[:1], Custom(unchanged, sample=True), *ops[1:]]
        batch = batch_of(of_images, ["image", "points"], ops=around)
        assert check_names(batch["image"], batch["points"]) == (COUNT if len(ops) == 1 else 0)


# Columns that do not say their pairs.


def warnings_of(caplog):
    return [record.getMessage() for record in caplog.records if "flip-pairs" in record.getMessage()]


@pytest.mark.all
def test_a_column_without_pairs_is_warned_of_once_a_loader(pictures, of_images, tmp_path, caplog):
    url = shard(pictures, tmp_path / "d", keypoints="points", pairs=None).url
    said = []
    for options in (
        {"ops": [Resize(SIZE), HorizontalFlip(1.0)], "processes": 1},
        {"ops": [Resize(SIZE), HorizontalFlip(0.0), Rotate(10)]},  # mirrors nothing
        {"ops": [Resize(SIZE), VerticalFlip()], "columns": ["image", "sample"]},
    ):
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            batch = batch_of(url, **{"columns": ["image", "points"], **options})
        if "points" in batch:
            check_names(batch["image"], batch["points"], swaps=False)
        said.append(len(warnings_of(caplog)))
    assert said == [1, 0, 0]
    caplog.clear()
    tpufeed.TFRecordImages(url, columns=["points"], ops=[HorizontalFlip()])
    assert len(warnings_of(caplog)) == 1
    assert "'points'" in warnings_of(caplog)[0]
    caplog.clear()
    batch_of(of_images, ["image", "points"], ops=[Resize(SIZE), HorizontalFlip(1.0)])
    assert not warnings_of(caplog)
    result = warmup(url, tmp_path / "c", ops=[Resize(SIZE), HorizontalFlip()], workers=1)
    assert [each for each in result.warnings if "'points'" in each and "flip-pairs" in each]
    assert not warmup(of_images, tmp_path / "e", ops=[Resize(SIZE), HorizontalFlip()], workers=1).warnings


@pytest.mark.parametrize("none", [[], "none"])
def test_points_without_a_left_and_a_right_say_so(pictures, tmp_path, none, caplog):
    url = shard(pictures, tmp_path / "d", keypoints="points", pairs=none).url
    batch = batch_of(url, ["image", "points"], ops=[Resize(SIZE), HorizontalFlip(1.0)])
    assert check_names(batch["image"], batch["points"], swaps=False) == COUNT
    assert not warnings_of(caplog)
    assert "(flips none)" in CliRunner().invoke(app, ["info", str(url)]).stdout


# The dataset's schema.


def test_the_schema_says_the_pairs_and_only_then(pictures, of_images, tmp_path):
    (spec,) = (each for each in tpufeed.open_dataset(of_images).manifest.features if each.name == "points")
    assert spec.flip_pairs == ((1, 2), (4, 3))
    assert "points float32[5, 3] keypoints (flips 1:2 4:3)" in CliRunner().invoke(app, ["info", str(of_images)]).stdout
    words = ["shard", str(pictures), str(tmp_path / "d"), "--keypoints", "points", "--flip-pairs", "1:2,4:3"]
    assert CliRunner().invoke(app, words).exit_code == 0
    assert tpufeed.open_dataset(tmp_path / "d").content_digest == tpufeed.open_dataset(of_images).content_digest
    without = shard(pictures, tmp_path / "e", keypoints="points", pairs=None)
    assert "flip_pairs" not in (tmp_path / "e/manifest.json").read_text()
    assert without.manifest.content_digest != tpufeed.open_dataset(of_images).content_digest


@pytest.mark.parametrize(
    "pairs", [[[1, 5]], [[-1, 2]], [[1, 2], [2, 3]], [[1, 1]]], ids=["beyond", "negative", "in two", "itself"]
)
def test_a_manifest_with_pairs_that_cannot_be_is_refused(of_images, tmp_path, pairs):
    said = json.loads((tpufeed.open_dataset(of_images).store.local_path("manifest.json")).read_bytes())
    next(each for each in said["features"] if each["name"] == "points")["flip_pairs"] = pairs
    (tmp_path / "manifest.json").write_bytes(msgspec.json.encode(said))
    with pytest.raises(ManifestError, match="points"):
        tpufeed.open_dataset(tmp_path)


@pytest.mark.parametrize(
    ("pairs", "said"),
    [
        ([(1, 5)], "5"),
        ([(0, -1)], "-1"),
        ([(1, 2), (3, 2)], "2"),
        ([(3, 3)], "3"),
        ([(1, 2, 3)], r"\(1, 2, 3\)"),
        ("1:2;3:4", "1:2;3:4"),
        ("1:a", "1:a"),
        ([(1.0, 2)], r"1\.0"),
        (True, "True"),
        ([True], "True"),
    ],
)
def test_pairs_that_do_not_fit_are_refused(pictures, tmp_path, pairs, said):
    for options in ({"keypoints": "points"}, {"column": "boxes", "keypoints": "poses"}):
        with pytest.raises(OptionError, match=said):
            shard(pictures, tmp_path / "d", pairs=pairs, **options)
    assert not (tmp_path / "d/manifest.json").exists()


def test_pairs_are_of_keypoints_of_one_number(pictures, tmp_path):
    with pytest.raises(OptionError, match="--keypoints"):
        shard(pictures, tmp_path / "d")
    lines = pictures.read_text().splitlines()
    ragged = pictures.parent / "ragged.jsonl"
    row = json.loads(lines[0])
    for points, rejects in ((row["points"][:4], None), ([], 0)):
        ragged.write_text("\n".join([*lines[1:], json.dumps(row | {"points": points})]) + "\n")
        if rejects is None:
            with pytest.raises(OptionError, match="4 to 5"):
                shard(ragged, tmp_path / "d", keypoints="points")
            continue
        url = shard(ragged, tmp_path / "e", keypoints="points").url  # nobody is in the picture
        batch = batch_of(url, ["points"], ops=[HorizontalFlip(1.0)])
        assert sorted(batch["points_length"].tolist()) == [0, *[5] * 7]
    ragged.write_text("\n".join([*lines[1:], json.dumps(row | {"points": row["points"][:4]})]) + "\n")
    shard(ragged, tmp_path / "g", keypoints="points", pairs="none")  # of which none has a place
    ragged.write_text("\n".join([*lines[1:], json.dumps(row | {"points": []})]) + "\n")
    # As some samples have none, one with four is a reject.
    ragged.write_text(ragged.read_text() + json.dumps(row | {"path": "1.png", "points": row["points"][:4]}) + "\n")
    result = shard(ragged, tmp_path / "f", keypoints="points")
    assert result.manifest.rejects == {"bad_box": 1}


# Datasets that grow.


def test_appended_images_have_the_pairs_of_the_dataset(pictures, tmp_path):
    lines = pictures.read_text().splitlines()
    first, more = pictures.parent / "first.jsonl", pictures.parent / "more.jsonl"
    first.write_text("\n".join(lines[:4]) + "\n")
    more.write_text("\n".join(lines[4:]) + "\n")
    url = shard(first, tmp_path / "d", keypoints="points").url
    assert tpufeed.append(more, url, workers=1).added == 4
    batch = batch_of(url, ["image", "points"], ops=[Resize(SIZE), HorizontalFlip(1.0)])
    assert check_names(batch["image"], batch["points"]) == COUNT
    fewer = pictures.parent / "fewer.jsonl"
    row = json.loads(lines[0])
    (pictures.parent / "new.png").write_bytes((pictures.parent / "0.png").read_bytes())
    fewer.write_text(json.dumps(row | {"path": "new.png", "points": row["points"][:4]}) + "\n")
    with pytest.raises(OptionError, match="4"):
        tpufeed.append(fewer, url, workers=1)
    fewer.write_text(json.dumps(row | {"path": "new.png"}) + "\n")
    with pytest.raises(OptionError, match="flips 1:3"):
        shard(fewer, url, keypoints="points", pairs="1:3", append=True, allow_different=True)
