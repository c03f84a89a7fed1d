"""Options of a first build that an append inherits or unsets; its preview refuses what the append refuses."""

import io
import json
import os
import shutil

import numpy as np
import pytest
from PIL import Image

import tpufeed
from tests.sharding.outputs import texts_of
from tests.sharding.previews import preview_append, preview_shard
from tests.sharding.test_append import bytes_below, draw, make_table, samples_of
from tpufeed.errors import (
    BuildError,
    DuplicateWriterError,
    ManifestError,
    OptionError,
    ShardError,
    SourceError,
    TooManyRejectsError,
    TpufeedError,
)


def make_coco(folder, first, count=4, images="images"):
    """COCO's JSON with one box an image, whose photographs have the grey value of their image's id."""
    (folder / images).mkdir(parents=True)
    numbers = range(first, first + count)
    for place, number in enumerate(numbers):
        Image.fromarray(np.full((16, 16, 3), number, np.uint8)).save(folder / images / f"{place}.png")
    content = {
        "images": [
            {"id": number, "file_name": f"{place}.png", "width": 16, "height": 16}
            for place, number in enumerate(numbers)
        ],
        "annotations": [
            {"id": number, "image_id": number, "category_id": 1, "bbox": [1, 1, 4, 4]} for number in numbers
        ],
        "categories": [{"id": 1, "name": "thing"}],
    }
    (folder / "instances.json").write_text(json.dumps(content))
    return folder / "instances.json"


def pixels_by_id(url):
    found = tpufeed.open_dataset(url).iter_examples("train")
    return {int(one["image_id"].values[0]): grey_of(one["image/encoded"].values[0]) for one in found}


def grey_of(data):
    return int(np.asarray(Image.open(io.BytesIO(data))).mean())


def test_coco_s_folder_of_images_is_the_one_of_each_file(tmp_path):
    first, second = make_coco(tmp_path / "a", 10), make_coco(tmp_path / "b", 20)
    tpufeed.shard(first, tmp_path / "d", image=str(tmp_path / "a/images"), workers=1)
    assert tpufeed.append(second, tmp_path / "d", workers=1).added == 4
    third = make_coco(tmp_path / "c", 30, images="far/away/from/it")
    with pytest.raises(OptionError, match="--image DIR"):
        tpufeed.append(third, tmp_path / "d", workers=1)
    tpufeed.append(third, tmp_path / "d", image=str(tmp_path / "c/far/away/from/it"), workers=1)
    assert pixels_by_id(tmp_path / "d") == {
        number: number for first in (10, 20, 30) for number in range(first, first + 4)
    }


def test_what_says_how_to_read_is_inherited_and_can_be_unset(tmp_path):
    rows = [{"label": "a", "photo": "x"}, {"label": "b", "photo": "y"}]
    table = make_table(tmp_path, "one", rows)
    renamed = table.read_text().replace('"path"', '"where"')
    table.write_text(renamed)
    tpufeed.shard(table, tmp_path / "d", image="where", images=tpufeed.Images(presize=8), workers=1)
    second = make_table(tmp_path, "second", rows)
    with pytest.raises(OptionError, match="where"):
        tpufeed.append(second, tmp_path / "d", workers=1)
    tpufeed.append(second, tmp_path / "d", unset=["image"], workers=1)
    third = make_table(tmp_path, "the-third", rows)
    tpufeed.append(third, tmp_path / "d", unset=["image", "presize"], workers=1)
    history = tpufeed.open_dataset(tmp_path / "d").manifest.history
    assert [part.different for part in history] == [{}, {}, {"presize": None}]
    sizes = [int(one["image/height"].values[0]) for one in tpufeed.open_dataset(tmp_path / "d").iter_examples("train")]
    assert sorted(sizes) == [8] * 4 + [12] * 2


POSE = "left_x,left_y,right_x,right_y"


@pytest.mark.parametrize(
    ("rename", "keypoints"),
    [({"score": "trust"}, None), ({}, "keypoints"), ({}, POSE), ({"keypoints": "pose", "score": "trust"}, POSE)],
)
def test_columns_with_values_of_boxes_are_inherited(rename, keypoints, tmp_path):
    """Though the scores and keypoints of the new images are the same in all rows."""
    draw(tmp_path / "in", [f"{number}.png" for number in range(2)])
    for number in range(2):
        box = {"path": f"in/{number}.png", "label": "a", "x0": 1, "y0": 1, "x1": 9, "y1": 9}
        rows = [
            box | {"score": each, "keypoints": [[each, 2]]} | dict(zip(POSE.split(","), (each, 2, 7, 8), strict=True))
            for each in ((1, 2), (3, 3))[number]
        ]
        if keypoints == POSE:
            rows = [{name: value for name, value in row.items() if name != "keypoints"} for row in rows]
        (tmp_path / f"{number}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    boxes = tpufeed.Boxes(column="x0,y0,x1,y1", keypoints=keypoints)
    options = {"rename": rename, "group_by": "path", "boxes": boxes, "workers": 1}
    tpufeed.shard(tmp_path / "0.jsonl", tmp_path / "d", **options)
    assert tpufeed.append(tmp_path / "1.jsonl", tmp_path / "d", workers=1, max_rejects=0).added == 1
    samples = texts_of(tmp_path / "d")
    names = {rename.get(name, name) for name in ("score", *(["keypoints"] if keypoints else []))}
    for name in names:
        lengths = [len(samples[f"in/{number}.png"][name]) for number in range(2)]
        assert lengths[0] == lengths[1] > 1


def test_the_format_of_boxes_can_be_unset(tmp_path):
    draw(tmp_path, ["0.png", "1.png"])
    for number, box in enumerate(([1, 2, 3, 3], [1, 2, 4, 5])):
        row = {"path": f"{number}.png", "boxes": [box]}
        (tmp_path / f"{number}.jsonl").write_text(json.dumps(row))
    boxes = tpufeed.Boxes(column="boxes", format="xywh")
    tpufeed.shard(tmp_path / "0.jsonl", tmp_path / "d", boxes=boxes, workers=1)
    tpufeed.append(tmp_path / "1.jsonl", tmp_path / "d", unset=["box_format"], workers=1)
    assert [sample["boxes"] for _, sample in sorted(texts_of(tmp_path / "d").items())] == [[1, 2, 4, 5]] * 2


def test_shares_and_masks_can_be_unset(tmp_path):
    url = tmp_path / "d"
    tpufeed.shard(
        draw(tmp_path / "old", [f"a/{number}.png" for number in range(20)]), url, splits="train=0.5,val=0.5", workers=1
    )
    new = draw(tmp_path / "new", [f"a/n{number}.png" for number in range(20)], 1)
    tpufeed.append(new, url, unset=["splits"], workers=1)
    assert len([name for name in samples_of(url) if "/n" in name]) == 20
    draw(tmp_path / "masks", [])
    for number in range(4):
        (tmp_path / "masks/a").mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.zeros((12, 12), np.uint8)).save(tmp_path / f"masks/a/m{number}.png")
    masked = draw(tmp_path / "m", [f"a/m{number}.png" for number in range(4)], 2)
    tpufeed.shard(masked, tmp_path / "masked", masks=tmp_path / "masks", workers=1)
    with pytest.raises(OptionError, match="--masks DIR"):
        tpufeed.append(new, tmp_path / "masked", workers=1)
    with pytest.raises(OptionError, match="mask"):  # the dataset has such a column
        tpufeed.append(new, tmp_path / "masked", unset=["masks"], workers=1)


def test_what_cannot_be_unset(tmp_path):
    tpufeed.shard(draw(tmp_path / "old", ["a/0.png", "a/1.png"]), tmp_path / "d", workers=1)
    with pytest.raises(OptionError, match="'colour'"):
        tpufeed.append(tmp_path / "old", tmp_path / "d", unset=["colour"], workers=1)
    with pytest.raises(OptionError, match="unset"):
        tpufeed.append(tmp_path / "old", tmp_path / "d", unset="image", workers=1)
    with pytest.raises(OptionError, match="label"):
        tpufeed.append(tmp_path / "old", tmp_path / "d", unset=["label"], label="none", workers=1)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folders that `base` copies; not to be changed."""
    tmp_path = tmp_path_factory.mktemp("base")
    draw(tmp_path / "more", [f"{'ab'[number % 2]}/m{number}.png" for number in range(12)], 1)
    draw(tmp_path / "other", ["a/o0.png", "b/o1.png"], 2)
    for number in range(12):
        (tmp_path / "broken/a").mkdir(parents=True, exist_ok=True)
        (tmp_path / f"broken/a/{number}.png").write_bytes(b"no image %d" % number)
    draw(tmp_path / "few", ["a/f0.png"], 3)
    (tmp_path / "few/a/bad.png").write_bytes(b"no image")
    (tmp_path / "ids").mkdir()
    draw(tmp_path / "ids", ["0.png", "1.png"], 4)
    (tmp_path / "ids/table.csv").write_text("path,label\n0.png,0\n1.png,1\n")
    (tmp_path / "scores").mkdir()
    draw(tmp_path / "scores", ["0.png"], 5)
    (tmp_path / "scores/table.csv").write_text("path,label,score\n0.png,a,1\n")
    tpufeed.shard(
        draw(tmp_path / "old", [f"{'ab'[number % 2]}/{number}.png" for number in range(8)]), tmp_path / "d", workers=1
    )
    return tmp_path


@pytest.fixture
def base(whole, tmp_path):
    """A dataset of 8 images, and sources to append to it."""
    return shutil.copytree(whole, tmp_path, dirs_exist_ok=True)


def interrupted(folder):
    with pytest.raises(TooManyRejectsError):
        tpufeed.append(folder / "few", folder / "d", max_rejects=0, workers=1)


def forged(folder):
    interrupted(folder)
    plan = folder / "d/part-00002/_tpufeed/plan.jsonl"
    plan.write_bytes(plan.read_bytes()[:-20])


def without_shard(folder):
    next((folder / "d").glob("*.tfrecord")).unlink()


def with_damaged_index(folder):
    path = next((folder / "d").glob("*.npy"))
    path.write_bytes(path.read_bytes()[:-1] + b"\x01")


REFUSED = {
    "broken": ("broken", {}, TooManyRejectsError, None),
    "none of few": ("broken", {"max_rejects": 12}, BuildError, None),
    "budget": ("few", {"max_rejects": 0}, TooManyRejectsError, None),
    "no budget": ("more", {"max_rejects": "some"}, OptionError, None),
    "another": ("other", {}, DuplicateWriterError, interrupted),
    "a plan cut short": ("few", {}, ManifestError, forged),
    "ids": ("ids/table.csv", {}, SourceError, None),
    "a column more": ("scores/table.csv", {}, OptionError, None),
    "an image of a folder": ("more", {"image": "x"}, OptionError, None),
    "unset": ("more", {"unset": ["no such"]}, OptionError, None),
    "masks": ("more", {"masks": "nowhere"}, TpufeedError, None),
    "the dataset itself": ("d", {}, OptionError, None),
    "a shard is gone": ("more", {}, BuildError, without_shard),
    "the index is damaged": ("more", {}, ShardError, with_damaged_index),
    "workers": ("more", {"workers": 0}, OptionError, None),
    "an engine": ("more", {"engine": "steam"}, OptionError, None),
}


@pytest.mark.parametrize("case", REFUSED)
def test_the_preview_refuses_what_the_append_refuses(case, base):
    source, options, error, prepare = REFUSED[case]
    if prepare is not None:
        prepare(base)
    before = bytes_below(base / "d")
    options = {"workers": 1} | options
    with pytest.raises(error) as told:
        preview_append(base / source, base / "d", **options)
    assert bytes_below(base / "d") == before
    with pytest.raises(type(told.value)):
        tpufeed.append(base / source, base / "d", **options)
    after = bytes_below(base / "d")
    assert {name: after[name] for name in before} == before


@pytest.mark.parametrize(
    "options",
    [
        {"images": tpufeed.Images(presize=8)},
        {"images": tpufeed.Images(encode="jpeg")},
        {"seed": 1},
        {"classes": ["b", "a"]},
        {"splits": "train=0.5,val=0.5"},
    ],
)
def test_the_preview_refuses_options_that_are_not_the_dataset_s(options, base):
    run = {"append": True, "workers": 1}
    for different in (False, True) if "classes" in options else (False,):
        with pytest.raises(OptionError) as told:
            preview_shard(base / "more", base / "d", **options, allow_different=different, **run)
        with pytest.raises(OptionError) as refused:
            tpufeed.shard(base / "more", base / "d", allow_different=different, **options, **run)
        assert str(told.value) == str(refused.value)
    with pytest.raises(OptionError, match="append"):
        preview_shard(base / "more", base / "e", allow_different=True)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_the_preview_refuses_a_dataset_that_cannot_be_written(base):
    (base / "d").chmod(0o555)
    with pytest.raises(TpufeedError):
        preview_append(base / "more", base / "d")
    with pytest.raises(TpufeedError):
        tpufeed.append(base / "more", base / "d", workers=1)


def test_the_preview_has_the_figures_of_the_append(base):
    shutil.copytree(base / "old", base / "more", dirs_exist_ok=True)
    draw(base / "more", ["a/0.png"], 9)  # of the path of an image in the dataset
    told = preview_append(base / "more", base / "d", workers=1)
    result = tpufeed.append(base / "more", base / "d", workers=1)
    assert (
        (told.version, told.skipped, told.complete) == (2, 7, False) == (result.manifest.number, result.skipped, False)
    )
    assert {name: split.inputs for name, split in told.splits.items()} == result.manifest.history[-1].records
    assert told.classes == len(result.manifest.class_names)
    assert set(told.warnings) == set(result.warnings)
    assert any("other content" in warning for warning in told.warnings)
    told = preview_append(base / "more", base / "d", workers=1)
    result = tpufeed.append(base / "more", base / "d", workers=1)
    assert (
        (told.version, told.skipped, told.complete) == (2, 20, True) == (result.manifest.number, result.skipped, True)
    )


def test_an_append_that_goes_on_is_previewed(base):
    interrupted(base)
    assert preview_append(base / "few", base / "d", max_rejects=1).version == 2
    assert preview_append(base / "other", base / "d", overwrite=True).version == 2
    assert tpufeed.append(base / "few", base / "d", max_rejects=1, workers=1).added == 1


def test_rejects_of_an_append_are_its_own(base):
    first = tpufeed.append(base / "few", base / "d", workers=1)
    assert (first.rejects, first.rejected) == (1, {"not_an_image": 1})
    second = tpufeed.append(base / "more", base / "d", workers=1)
    assert (second.rejects, second.manifest.rejects) == (0, {"not_an_image": 1})
    again = tpufeed.append(base / "more", base / "d", workers=1)
    assert (again.added, again.rejects) == (0, 0)
