"""Outlines of objects in COCO's JSON become masks, equal to those of pycocotools."""

import base64
import io
import json
import sys
from contextlib import nullcontext

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from pycocotools import mask as pycocotools
from pycocotools.coco import COCO
from typer.testing import CliRunner

import tpufeed
from tests.sharding.forging import PLAN, begun, forge
from tests.sharding.outputs import rejects_of, samples_of
from tests.sources.test_boxes import COLOURS, encoded
from tpufeed.builds.item import Item, Outline
from tpufeed.builds.plan import iter_tasks, read_plan
from tpufeed.cli.app import app
from tpufeed.errors import ImageError, MissingExtraError, OptionError
from tpufeed.images import HorizontalFlip, RandomResizedCrop
from tpufeed.sources.outlines import MaskDrawer, find_fault
from tpufeed.storage.store import open_store

HEIGHT, WIDTH = 60, 80
LEFT, RIGHT = [4, 5, 30, 5, 30, 25, 4, 25], [40, 10, 70, 10, 70, 50, 40, 50]  # rectangles
WHOLE = [0, 0, WIDTH, 0, WIDTH, HEIGHT, 0, HEIGHT]
RANDOM = np.random.default_rng(0)
BLOT = (RANDOM.random((HEIGHT, WIDTH)) < 0.3).astype(np.uint8)


def runs(pixels, compressed=True, **others):
    """A mask as COCO writes it."""
    packed = pycocotools.encode(np.asfortranarray(pixels, np.uint8))
    counts = packed["counts"].decode()
    if not compressed:
        flat = np.ravel(pixels, order="F")
        ends = np.flatnonzero(np.diff(flat, prepend=0, append=1 - flat[-1]))
        counts = np.diff(ends, prepend=0).tolist()
    return {"size": list(pixels.shape), "counts": counts, **others}


def annotation(segmentation=None, category=1, **others):
    box = {"bbox": [0, 0, 80, 60], "category_id": category, "iscrowd": 0}
    return {**box, **({} if segmentation is None else {"segmentation": segmentation}), **others}


@pytest.fixture
def coco(tmp_path):
    """`coco(lists)`: a file with an image for each list of annotations, or an image as bytes and its list."""

    def make(lists, classes=3, size=(HEIGHT, WIDTH), file="all.json"):
        (tmp_path / "coco/images").mkdir(parents=True, exist_ok=True)
        images, annotations = [], []
        for number, said in enumerate(lists):
            data, ones = said if isinstance(said, tuple) else (encoded(size), said)
            image = tmp_path / f"coco/images/{number}.png"
            if not image.exists() or image.read_bytes() != data:
                image.write_bytes(data)
            images.append({"id": number, "file_name": f"{number}.png", "height": size[0], "width": size[1]})
            annotations += [{"id": 100 * number + each, "image_id": number, **one} for each, one in enumerate(ones)]
        categories = [{"id": 1 + number, "name": f"class {number}"} for number in range(classes)]
        content = {"images": images, "annotations": annotations, "categories": categories}
        path = tmp_path / "coco" / file
        path.write_text(json.dumps(content))
        return path

    return make


def shard(url, folder, outlines="semantic", **options):
    result = tpufeed.shard(url, folder, outlines=outlines, **{"workers": 1, "max_rejects": 40, **options})
    tpufeed.verify(result.url, decode="all")
    return result


def masks_of(result):
    """The mask of each sample, by the number of its image."""
    return {
        int(path.removesuffix(".png")): np.asarray(Image.open(io.BytesIO(sample["mask"][0])))
        for path, sample in samples_of(result.url).items()
    }


def peers_mask(path, number):
    """What pycocotools draws of an annotation."""
    peer = COCO(str(path))
    return peer.annToMask(peer.anns[number])


def star(points, reach):
    angles = np.sort(RANDOM.random(points)) * 2 * np.pi
    radii = RANDOM.uniform(reach / 4, reach, points)
    middle = RANDOM.uniform(0, WIDTH), RANDOM.uniform(0, HEIGHT)
    return (
        np.stack([middle[0] + radii * np.cos(angles), middle[1] + radii * np.sin(angles)], 1).ravel().round(2).tolist()
    )


SEGMENTATIONS = {
    "triangle": [[10.5, 3.25, 60.1, 20.7, 30.3, 55.55]],
    "of two parts": [LEFT, RIGHT],
    "parts one in the other": [WHOLE, LEFT],
    "crossing itself": [[5, 5, 70, 50, 70, 5, 5, 50]],
    "beyond the image": [[-20, -10.5, 95, 20, 40, 300]],
    "one part outside": [LEFT, [200, 200, 210, 200, 210, 210]],
    "thinner than a pixel": [[10, 10, 10.01, 10, 10, 10.01]],
    "the same point": [[10, 10, 10, 10, 10, 10]],
    "all": [WHOLE],
    "ties of rounding": [[0.7, 0.7, 12.3, 0.5, 12.3, 12.3, 0.1, 12.7]],
    "run lengths": runs(BLOT),
    "run lengths from the first pixel": runs(1 - BLOT),
    "run lengths of nothing": runs(BLOT * 0),
    "run lengths of all": runs(BLOT * 0 + 1),
    "counts": runs(BLOT, compressed=False),
    "counts of zero": {"size": [HEIGHT, WIDTH], "counts": [0, 0, 0, 0, 7, 3, 0, 0, HEIGHT * WIDTH - 10]},
    **{f"star {number}": [star(5 + number, 8 * number + 2)] for number in range(8)},
}


@pytest.mark.parametrize("kind", ["semantic", "instance"])
def test_masks_are_those_of_pycocotools(coco, tmp_path, kind):
    path = coco([[annotation(each)] for each in SEGMENTATIONS.values()])
    result = shard(path, tmp_path / "d", kind)
    assert result.images == len(SEGMENTATIONS)
    spec = result.manifest.features[-1]
    assert (spec.name, spec.dtype, spec.shape, spec.kind) == ("mask", "uint8", (), "mask")
    masks = masks_of(result)
    for number, name in enumerate(SEGMENTATIONS):
        np.testing.assert_array_equal(masks[number], peers_mask(path, 100 * number), err_msg=name)
    assert result.manifest.odd["outline without pixels"] == 3


@pytest.mark.parametrize("pixels", [[[0, 1], [1, 1]], np.pad(np.ones((2, 3)), ((2, 6), (3, 4))), np.ones((1, 1))])
def test_run_lengths_of_small_masks(pixels, coco, tmp_path):
    pixels = np.array(pixels, np.uint8)
    box = {"bbox": [0, 0, pixels.shape[1], pixels.shape[0]]}
    lists = [[annotation(runs(pixels, compressed), **box)] for compressed in (True, False)]
    for mask in masks_of(shard(coco(lists, size=pixels.shape), tmp_path / "d")).values():
        np.testing.assert_array_equal(mask, pixels)


def test_classes_later_ones_over_earlier_ones_over_crowds(coco, tmp_path):
    crowd = annotation(runs(BLOT | (np.arange(HEIGHT) < 12)[:, None]), 1, iscrowd=1)
    lists = [[annotation([LEFT], 3), crowd, annotation([[20, 0, 50, 0, 50, 60, 20, 60]], 2)], []]
    masks = masks_of(shard(coco(lists), tmp_path / "d"))
    expected = np.where(BLOT | (np.arange(HEIGHT) < 12)[:, None], 255, 0)
    expected[5:25, 4:30] = 3
    expected[:, 20:50] = 2
    np.testing.assert_array_equal(masks[0], expected)
    assert not masks[1].any()
    instances = masks_of(shard(coco(lists), tmp_path / "i", "instance"))[0]
    np.testing.assert_array_equal(instances, np.select([expected == 3, expected == 2], [1, 3], expected))


def test_objects_are_numbered_like_the_boxes_that_are_kept(coco, tmp_path):
    """Here "fit" cuts the first box away."""
    boxes = [[0, 0, 9, 60], [20, 0, 20, 60], [40, 0, 20, 60]]
    outlines = [[[x, y, x + w, y, x + w, y + h, x, y + h]] for x, y, w, h in boxes]
    path = coco([[annotation(each, 3 - n, bbox=boxes[n]) for n, each in enumerate(outlines)]])
    options = {"images": tpufeed.Images(presize=30, presize_mode="fit")}
    result = shard(path, tmp_path / "d", "instance", **options)
    (sample,), (mask,) = samples_of(result.url).values(), masks_of(result).values()
    assert mask.shape == (30, 30)
    for number, (left, top, right, bottom) in enumerate(np.reshape(sample["boxes"], (-1, 4)).round().astype(int), 1):
        assert set(mask[top:bottom, left:right].ravel()) == {number}
    assert set(mask.ravel()) == {0, 1, 2}
    semantic = next(iter(masks_of(shard(path, tmp_path / "s", **options)).values()))
    np.testing.assert_array_equal(semantic, np.select([mask == 1, mask == 2], [2, 1]))


@pytest.mark.first_cases(7)
@pytest.mark.parametrize("exif", ["apply", "ignore"])
@pytest.mark.parametrize("presize", [None, 30])
@pytest.mark.parametrize("said", ["upright", "stored"])
@pytest.mark.parametrize("orientation", [1, 6, 8, 5])
def test_masks_are_turned_and_resized_like_the_image(orientation, said, presize, exif, coco, tmp_path):
    left, top, right, bottom = 6, 10, 36, 40
    data = encoded(boxes=[(left, top, right, bottom)], orientation=orientation)
    size, corners = (HEIGHT, WIDTH), (left, top, right, bottom)
    if said == "stored":  # where the colour is in the file
        red = np.asarray(Image.open(io.BytesIO(data))) == COLOURS[0]
        rows, columns = np.nonzero(red.all(-1))
        size, corners = red.shape[:2], (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)
    left, top, right, bottom = map(int, corners)
    one = annotation(
        [[left, top, right, top, right, bottom, left, bottom]], bbox=[left, top, right - left, bottom - top]
    )
    result = shard(coco([(data, [one])], size=size), tmp_path / "d", images=tpufeed.Images(presize=presize, exif=exif))
    (sample,), (mask,) = samples_of(result.url).values(), masks_of(result).values()
    image = np.asarray(Image.open(io.BytesIO(sample["image/encoded"][0])))
    is_red = np.abs(image.astype(int) - COLOURS[0]).max(-1) < 60
    assert mask.shape == image.shape[:2]
    assert set(mask.ravel()) == {0, 1}
    assert (is_red != mask).sum() <= (0 if presize is None else mask.shape[0] + mask.shape[1])


@pytest.mark.parametrize("kind", ["semantic", "instance"])
def test_an_object_without_an_outline_is_counted(kind, coco, tmp_path):
    lists = [
        [annotation(), annotation([RIGHT], 2), annotation([]), annotation(segmentation=None) | {"segmentation": None}]
    ]
    result = shard(coco(lists), tmp_path / "d", kind)
    assert result.manifest.odd == {"no outline": 3}
    (mask,) = masks_of(result).values()
    assert set(mask.ravel()) == {0, 2}
    assert not any("outline" in said for said in result.warnings)
    boxes_only = shard(coco([lists[0][2:]], file="boxes.json"), tmp_path / "d2", kind)
    assert any(said.startswith("no object has an outline") for said in boxes_only.warnings)


TOTAL = HEIGHT * WIDTH
BAD = {
    "two points": ([[1, 2, 3, 4]], "polygon 1 of 1 has 4 numbers, (1.0, 2.0, 3.0, 4.0)"),
    "none": ([LEFT, []], "polygon 2 of 2 has 0 numbers"),
    "odd": ([[1, 2, 3, 4, 5, 6, 7]], "7 numbers"),
    "not nested": (LEFT, "expected a list of polygons"),
    "text": ([["1", 2, 3, 4, 5, 6]], '[["1", 2, 3, 4, 5, 6]]'),
    "null": ([[None, 2, 3, 4, 5, 6]], "null"),
    "a number": (7, "7"),
    "another size": (runs(BLOT.T), "its run lengths are for 60x80 pixels. The image has 80x60"),
    "no size": ({"counts": "abc"}, "size"),
    "a size of nothing": ({"counts": [], "size": [0, 0]}, "0x0"),
    "a negative size": ({"counts": "0", "size": [-HEIGHT, -WIDTH]}, "-80x-60"),
    "counts too short": ({"counts": [TOTAL - 1], "size": [HEIGHT, WIDTH]}, f"add up to {TOTAL - 1:,}"),
    "counts too long": ({"counts": [TOTAL, 1], "size": [HEIGHT, WIDTH]}, f"add up to {TOTAL + 1:,}"),
    "counts below 0": ({"counts": [TOTAL + 1, -1], "size": [HEIGHT, WIDTH]}, "from 0"),
    "counts with parts": ({"counts": [TOTAL - 0.5, 0.5], "size": [HEIGHT, WIDTH]}, "expected a list"),
    "huge counts": ({"counts": [2**63, TOTAL], "size": [HEIGHT, WIDTH]}, "xpected"),
    "no counts": ({"counts": [], "size": [HEIGHT, WIDTH]}, "add up to 0"),
    "no text": ({"counts": "", "size": [HEIGHT, WIDTH]}, "damaged"),
    "text cut short": (runs(BLOT) | {"counts": runs(BLOT)["counts"][:-2]}, "add up to"),
    "text without an end": (runs(BLOT) | {"counts": runs(BLOT)["counts"] + "o"}, "damaged"),
    "a number of many characters": (runs(BLOT) | {"counts": "P" * 12 + "0"}, "damaged"),
    "another alphabet": (runs(BLOT) | {"counts": "über!"}, "damaged: über!"),
    "a NUL": (runs(BLOT) | {"counts": runs(BLOT)["counts"] + "\0" + "0"}, "damaged"),
    # A worker knows the image.
    "outside": ([[100, 5, 120, 5, 110, 30]], "outside the image of 80x60 pixels: ((100.0, 5.0"),
    "above": ([[10, -5, 20, -5, 15, -30]], "outside"),
    "endless": ([[-1e9, 5, 1e9, 5, 15, 30]], "pixels long"),
}


@pytest.mark.first_cases(7)
@pytest.mark.parametrize("name", BAD)
def test_bad_outlines_are_rejects_that_name_the_value(name, coco, tmp_path):
    segmentation, message = BAD[name]
    result = shard(coco([[annotation([LEFT])], [annotation([LEFT]), annotation(segmentation)]]), tmp_path / "d")
    ((path, (reason, said)),) = rejects_of(result.url).items()
    assert (result.images, path, reason) == (1, "1.png", "bad_mask")
    assert message in said
    if name in ("outside", "above", "endless"):
        assert "outline 2 of 2" in said
    else:
        assert "all.json" in said
        assert "annotation 101" in said


@pytest.mark.all
def test_an_image_of_too_many_objects_is_a_reject(coco, tmp_path):
    most, crowd = [annotation([LEFT])] * 254, [annotation([RIGHT], iscrowd=1)]
    path = coco([most + crowd, most + most[:1]])
    result = shard(path, tmp_path / "d", "instance")
    assert set(np.unique(masks_of(result)[0])) == {0, 254, 255}
    assert rejects_of(result.url)["1.png"][0] == "bad_mask"
    assert "254 objects" in rejects_of(result.url)["1.png"][1]
    assert shard(path, tmp_path / "s").images == 2


@given(
    st.text(alphabet="".join(map(chr, range(48, 112))), min_size=1, max_size=30), st.integers(1, 9), st.integers(1, 9)
)
def test_run_lengths_are_sound_if_and_only_if_they_fill_the_image(text, height, width):
    outline = Outline(counts=text.encode(), size=(height, width))
    wrong = find_fault(outline, (height, width))
    if not wrong:
        decoded = pycocotools.decode({"counts": outline.counts, "size": [height, width]})
        assert pycocotools.area(pycocotools.encode(decoded)) == decoded.sum()
    with pytest.raises(ImageError, match="run lengths") if wrong else nullcontext():
        MaskDrawer("instance", False).draw(Item("a", 1, "", outlines=(outline,)), np.ones(1, bool), (height, width))


def test_relative_outlines_are_shares_of_the_sides():
    polygon = tuple(number / side for number, side in zip(LEFT, [WIDTH, HEIGHT] * 4, strict=True))
    item = Item("a", 1, "", outlines=(Outline((polygon,)),))
    mask, _ = MaskDrawer("instance", True).draw(item, np.ones(1, bool), (HEIGHT, WIDTH))
    assert mask.sum() == 26 * 20
    assert mask[5:25, 4:30].all()


def test_without_the_option_a_plan_and_its_records_have_no_outlines(coco, tmp_path):
    path = coco([[annotation(each)] for each in ([LEFT], [[1]], 7, runs(BLOT))])
    result = shard(path, tmp_path / "d", None)
    assert result.images == 4
    assert "outlines" not in result.manifest.options
    assert "mask" not in [spec.name for spec in result.manifest.features]
    store = open_store(result.url)
    assert not any(item.outlines for task in iter_tasks(store, read_plan(store)) for item in task.inputs)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"outlines": "panoptic"}, "panoptic"),
        ({"masks": "masks"}, "'mask'"),
        ({"image_columns": {"mask": "file:mask"}}, "'mask'"),
        ({"label": "none"}, "classes"),
    ],
)
def test_options_that_do_not_fit(options, message, coco, tmp_path):
    with pytest.raises(OptionError, match=message):
        shard(coco([[annotation([LEFT])]]), tmp_path / "d", **options)
    assert not (tmp_path / "d").exists()


def test_more_classes_than_values(coco, tmp_path):
    lists = [[annotation([LEFT], 254)]]
    assert masks_of(shard(coco(lists, classes=254), tmp_path / "d"))[0].max() == 254
    with pytest.raises(OptionError, match="255 classes"):
        shard(coco(lists, classes=255), tmp_path / "e")
    assert not (tmp_path / "e").exists()
    assert masks_of(shard(coco(lists, classes=255), tmp_path / "i", "instance", label="none"))[0].max() == 1


def test_sources_without_outlines_are_refused(coco, tmp_path):
    coco([[]])
    with pytest.raises(OptionError, match="COCO"):
        shard(tmp_path / "coco/images", tmp_path / "d")
    (tmp_path / "coco/table.csv").write_text("path\nimages/0.png\n")
    with pytest.raises(OptionError, match="COCO"):
        shard(tmp_path / "coco/table.csv", tmp_path / "d")


def test_without_pycocotools_nothing_is_written(coco, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pycocotools", None)
    with pytest.raises(MissingExtraError, match=r"\[annotations\]"):
        shard(coco([[annotation([LEFT])]]), tmp_path / "d")
    assert not (tmp_path / "d").exists()


def test_changed_outlines_are_another_source(coco, tmp_path):
    shard(coco([[annotation([LEFT])]]), tmp_path / "d")
    assert shard(coco([[annotation([LEFT])]]), tmp_path / "d").images == 1  # finished before
    with pytest.raises(OSError, match="has changed"):
        shard(coco([[annotation([RIGHT])]]), tmp_path / "d")


def test_an_append_inherits_outlines_and_tries_a_mended_one_again(coco, tmp_path):
    outside = [[100, 5, 120, 5, 110, 30]]
    shard(coco([[annotation([LEFT], 2)], [annotation(outside)]]), tmp_path / "d")
    again = coco([[annotation([LEFT], 2)], [annotation(outside)], [annotation([RIGHT], 3)]])
    assert tpufeed.append(again, tmp_path / "d", workers=1).images == 1
    result = tpufeed.append(coco([[], [annotation([RIGHT])]]), tmp_path / "d", workers=1)
    masks = masks_of(result)
    assert [masks[number].max() for number in range(3)] == [2, 1, 3]


def test_a_plan_of_another_run_is_checked_like_the_source(coco, tmp_path):
    path, folder = coco([[annotation([LEFT])], [annotation(runs(BLOT))], [annotation([RIGHT])]]), tmp_path / "d"
    masks = masks_of(shard(path, folder))
    honest = (begun(folder) / PLAN).read_bytes()
    np.testing.assert_equal(masks_of(shard(path, folder)), masks)
    (begun(folder) / PLAN).write_bytes(honest)

    def harm(header, tasks):
        items = {item["path"]: item for item in tasks[0]["inputs"]}
        items["0.png"]["outlines"] *= 2
        items["1.png"]["outlines"][0][1] = base64.b64encode(b"oooo").decode()

    forge(folder, harm)
    result = shard(path, folder)
    assert {name: reason for name, (reason, _) in rejects_of(result.url).items()} == dict.fromkeys(
        ("0.png", "1.png"), "bad_mask"
    )


def test_a_loader_moves_masks_with_the_crop(coco, tmp_path):
    rectangle = (6, 10, 36, 40)
    left, top, right, bottom = rectangle
    segmentation = [[left, top, right, top, right, bottom, left, bottom]]
    result = shard(coco([(encoded(boxes=[rectangle]), [annotation(segmentation, 2)])] * 8), tmp_path / "d")
    ops = [RandomResizedCrop(48, scale=(0.3, 0.9)), HorizontalFlip()]
    with tpufeed.Loader(result.url, batch_size=8, ops=ops, columns=("image", "mask"), seed=1, processes=0) as loader:
        images, masks = next(iter(loader))
    assert (masks.dtype, masks.shape) == (np.uint8, (8, 48, 48))
    assert set(np.unique(masks)) == {0, 2}
    is_red = np.abs(images.astype(int) - COLOURS[0]).max(-1) < 60
    assert ((masks == 2) != is_red).mean() < 0.04
    assert len({mask.tobytes() for mask in masks}) == 8


def test_the_flag(coco, tmp_path):
    path = coco([[annotation([LEFT]), annotation([RIGHT])]])
    arguments = ["shard", str(path), str(tmp_path / "d"), "--outlines", "instance", "--workers", "1"]
    preview = CliRunner().invoke(app, [*arguments, "--dry-run"])
    assert "mask" in preview.output
    outcome = CliRunner().invoke(app, arguments)
    assert outcome.exit_code == 0, outcome.output
    assert set(np.unique(masks_of(tpufeed.open_dataset(tmp_path / "d"))[0])) == {0, 1, 2}


def test_a_file_with_other_types_than_cocos(coco, tmp_path):
    """Such a file is decoded again, row by row."""
    path = coco([[annotation([LEFT], 2), annotation([RIGHT], 3, iscrowd=True)], [annotation([LEFT])], []])
    content = json.loads(path.read_text())
    for one in content["annotations"]:
        one.update(image_id=str(one["image_id"]), category_id=f"{one['category_id']}.0", id=f"a{one['id']}")
    content["annotations"][2]["segmentation"][0][3] = float("nan")
    path.write_text(json.dumps(content))
    result = shard(path, tmp_path / "d")
    masks = masks_of(result)
    assert set(np.unique(masks[0])) == {0, 2, 255}
    assert not masks[2].any()
    ((path, (reason, message)),) = rejects_of(result.url).items()
    assert (path, reason) == ("1.png", "bad_mask")
    assert "annotation a100" in message
    assert "null" in message


@pytest.mark.parametrize("outside", ["clip", "drop"])
def test_objects_whose_boxes_are_dropped_are_not_drawn(outside, coco, tmp_path):
    beyond = annotation([[70, 5, 150, 5, 150, 30, 70, 30]], 2, bbox=[70, 5, 80, 25])
    away = annotation([[100, 5, 150, 5, 150, 30, 100, 30]], 3, bbox=[100, 5, 50, 25])
    path = coco([[away, beyond, annotation([LEFT], 1, bbox=[4, 5, 26, 20])]])
    masks = masks_of(shard(path, tmp_path / "d", "instance", boxes=tpufeed.Boxes(outside=outside)))
    assert masks[0][10, [5, 75]].tolist() == ([2, 1] if outside == "clip" else [1, 0])
