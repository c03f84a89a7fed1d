"""The sizes that COCO's JSON says are compared with those of its files: boxes lie on their objects, or are refused."""

import json

import numpy as np
import pytest
from PIL import Image

import tpufeed
from tests.sharding.outputs import rejects_of, texts_of
from tests.sharding.previews import preview_shard
from tpufeed.errors import SourceError, TooManyRejectsError
from tpufeed.sharding.inventory import take_inventory
from tpufeed.sources.options import ShardOptions

BOX = (8, 4, 24, 10)  # left, top, width, height of a white object in black images of 64x40
POINTS = [11, 9, 2, 29, 9, 2]
CATEGORY = {"id": 1, "name": "car", "keypoints": ["left_end", "right_end"]}

BACK = {
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}


@pytest.fixture
def source(tmp_path):
    """`source(images)`: COCO's JSON beside PNGs, of (file's size, orientation, JSON's size), with one object each."""

    def make(*images, box=BOX, points=POINTS, name="a"):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        said, annotations = [], []
        for number, (size, orientation, json_size) in enumerate(images):
            # The object lies as in an image of the size that the JSON says.
            is_turned = json_size == size[::-1] != size
            width, height = json_size if is_turned else size
            pixels = np.zeros((height, width, 3), np.uint8)
            left, top, across, down = BOX
            pixels[top : top + down, left : left + across] = 255
            pixels[top : top + down, left : left + across // 3] = (255, 0, 0)
            pixels[-1, -1] = number
            picture = Image.fromarray(pixels)
            if is_turned:  # it is stored so that EXIF makes it this one
                picture = picture.transpose(BACK[orientation])
            exif = Image.Exif()
            exif[0x0112] = orientation
            picture.save(folder / f"{number}.png", exif=exif)
            sides = {} if json_size is None else dict(zip(("width", "height"), json_size, strict=True))
            said.append({"id": number, "file_name": f"{number}.png", **sides})
            annotations.append(
                {"id": number, "image_id": number, "category_id": 1, "bbox": list(box), "keypoints": points}
            )
        path = folder / "x.json"
        path.write_text(json.dumps({"images": said, "annotations": annotations, "categories": [CATEGORY]}))
        return path

    return make


def shard(path, folder, **options):
    result = tpufeed.shard(path, folder, workers=1, **options)
    tpufeed.verify(result.url, decode="all")
    return result


def inside(url):
    """For each image, by its number: the share of its box that is the object, that of the object that is in its box,
    and the colours at its points, of [red, white]."""
    found = {}
    images = tpufeed.TFRecordImages(str(url), columns=["image", "boxes", "keypoints", "filename"])
    for sample in (images[place] for place in range(len(images))):
        image, boxes, points = (np.asarray(sample[place]) for place in (0, 1, 3))
        left, top, right, bottom = np.round(boxes[0]).astype(int)
        bright = image.max(2) > 128
        held = bright[top:bottom, left:right]
        colours = [image[int(y), int(x)].tolist() for x, y, _ in points[0]]
        found[str(sample[-1])] = (held.mean(), held.sum() / bright.sum(), colours)
    return found


SIZES = {"stored": (64, 40), "upright": (40, 64)}


@pytest.mark.parametrize("presize", [None, 20])
@pytest.mark.parametrize("exif", ["apply", "ignore"])
def test_boxes_of_the_image_before_or_after_its_turn_lie_on_their_objects(presize, exif, source, tmp_path):
    cases = [(said, orientation) for said in SIZES for orientation in BACK]
    path = source(*((SIZES[said], orientation, (64, 40)) for said, orientation in cases))
    result = shard(path, tmp_path / "d", images=tpufeed.Images(exif=exif, presize=presize))
    assert result.images == len(cases)
    found = inside(result.url)
    for number, (said, orientation) in enumerate(cases):
        share, held, (first, second) = found[f"{number}.png"]
        assert share > 0.9, cases[number]
        assert held > 0.9, cases[number]
        was_mirrored = orientation in (5, 7) and (said == "stored") == (exif == "apply")
        red, white = (second, first) if was_mirrored else (first, second)  # a mirror swaps left and right
        assert red[1] < 128 < red[0], cases[number]
        assert min(white) > 128, cases[number]
    assert result.manifest.odd["boxes turned by exif"] == len(BACK)


WRONG = [(128, 80), (64, 41), (41, 64), (40, 64), (1, 1)]


def test_a_file_of_another_size_is_a_reject(source, tmp_path):
    path = source(*[((64, 40), 1, (64, 40))] * (2 + len(WRONG)))
    content = json.loads(path.read_text())
    wrong = [(1, WRONG[0]), *enumerate(WRONG, 2)]
    for number, (width, height) in wrong:
        content["images"][number] |= {"width": width, "height": height}
    content["annotations"] = [one for one in content["annotations"] if one["image_id"] != 1]  # nor one without boxes
    path.write_text(json.dumps(content))
    result = shard(path, tmp_path / "d")
    assert result.images == 1
    rejects = rejects_of(tmp_path / "d")
    assert rejects.keys() == {f"{number}.png" for number, _ in wrong}
    for number, (width, height) in wrong:
        reason, message = rejects[f"{number}.png"]
        assert reason == "bad_box"
        assert f"{width}x{height}" in message
        assert "64x40" in message
    with pytest.raises(TooManyRejectsError, match="64x40"):
        preview_shard(path, tmp_path / "e", max_rejects=0)


def test_images_that_were_added_are_compared_as_well(source, tmp_path):
    url = shard(source(((64, 40), 1, (64, 40))), tmp_path / "d").url
    more = source(((64, 40), 6, (64, 40)), ((32, 20), 1, (64, 40)), name="b")
    result = tpufeed.append(more, url, image=str(more.parent), workers=1)
    assert (result.added, result.rejects) == (1, 1)
    assert all(share > 0.9 for share, _, _ in inside(url).values())


@pytest.mark.parametrize("orientation", [2, 3, 4])
def test_sizes_that_do_not_tell_are_said(orientation, source, tmp_path):
    result = shard(source(((64, 40), orientation, (64, 40))), tmp_path / "d")
    assert any("1 images with boxes have an EXIF orientation" in said for said in result.warnings)
    assert texts_of(result.url)["0.png"]["boxes"] == [8, 4, 32, 14]  # of the upright image, as the page says
    result = shard(tmp_path / "a/x.json", tmp_path / "e", images=tpufeed.Images(exif="ignore"))
    ((share, held, _),) = inside(result.url).values()  # and if they are of the stored one, there is a way
    assert (share, held) == (1, 1)


def test_sizes_that_are_not_said_or_said_otherwise(source, tmp_path):
    sides = [(64, 40), None, (0, 0), (None, None), (64.0, 40.0), ("64", "40")]
    result = shard(source(*(((64, 40), 1, each) for each in sides)), tmp_path / "d")
    assert (result.images, result.warnings) == (len(sides), ())


def test_sizes_that_are_none_are_rejects(source, tmp_path):
    sides = [64, -1, 1.5, "wide", [1], {}, 1 << 70, True]
    shard(source(*(((64, 40), 1, (side, 40)) for side in sides)), tmp_path / "d")
    rejects = {name: reason for name, (reason, _) in rejects_of(tmp_path / "d").items()}
    assert rejects == {f"{number}.png": "bad_box" for number in range(1, len(sides))}


def test_a_size_that_was_corrected_is_a_change(source, tmp_path):
    path = source(((64, 40), 1, (64, 40)), ((64, 40), 1, (32, 20)))
    assert shard(path, tmp_path / "d").images == 1
    path.write_text(path.read_text().replace('"width": 32, "height": 20', '"width": 64, "height": 40'))
    with pytest.raises(tpufeed.errors.DatasetExistsError):
        tpufeed.shard(path, tmp_path / "d", workers=1)
    assert tpufeed.shard(path, tmp_path / "d", workers=1, overwrite=True).images == 2


# Small files that would take much memory.


def coco_of(folder, images, annotations, points):
    for number in range(images):
        Image.new("RGB", (8, 8), (number, 0, 0)).save(folder / f"{number}.png")
    each = [{"image_id": number % images, "category_id": 1, "bbox": [1, 1, 2, 2]} for number in range(annotations)]
    each[0]["keypoints"] = [0] * points * 3
    path = folder / "x.json"
    said = [{"id": number, "file_name": f"{number}.png"} for number in range(images)]
    path.write_text(json.dumps({"images": said, "annotations": each, "categories": [{"id": 1, "name": "c"}]}))
    return path


def test_more_keypoints_than_anything_has_are_refused(tmp_path):
    with pytest.raises(SourceError, match="3,300 keypoints"):
        tpufeed.shard(coco_of(tmp_path, 1, 300, 3300), tmp_path / "d", workers=1)


@pytest.mark.all
def test_annotations_without_keypoints_take_no_memory(tmp_path):
    import tracemalloc

    path = coco_of(tmp_path, 1, 1500, 500)
    with take_inventory(str(path), ShardOptions()) as inventory:
        assert dict(inventory.rejects) == {"bad_box": 1}
    path = coco_of(tmp_path, 40, 40, 500)
    tracemalloc.start()
    with take_inventory(str(path), ShardOptions()) as inventory:
        assert not inventory.rejects
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5e6  # 1.6 MB; a list for each annotation takes 11 MB


@pytest.mark.parametrize("field", ["iscrowd", "image_id", "category_id"])
def test_numbers_of_more_than_64_bits(field, tmp_path):
    path = coco_of(tmp_path, 2, 2, 1)
    content = json.loads(path.read_text())
    content["annotations"][0][field] = 1 << 70
    if field == "image_id":
        content["images"][0]["id"] = 1 << 70
    path.write_text(json.dumps(content))
    assert tpufeed.shard(path, tmp_path / "d", workers=1).rejects == 1
