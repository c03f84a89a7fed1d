"""COCO files as tools write them, which pycocotools reads: their rows are taken or refused one by one."""

import json

import numpy as np
import pytest
from PIL import Image

import tpufeed
from tests.sharding.outputs import rejects_of, texts_of
from tests.sources.test_boxes import spec_of
from tpufeed.errors import SourceError
from tpufeed.sources.coco import read_coco
from tpufeed.storage.store import open_store

BOX = [4, 5, 20, 10]
NAN = float("nan")


@pytest.fixture
def tmp_path(tmp_path):
    """A folder that is not called like one of annotations, as a test's own may be: the images may be above that."""
    (tmp_path / "set").mkdir()
    return tmp_path / "set"


@pytest.fixture
def make(tmp_path):
    """`make(change)`: a COCO file of six images of 64x48 with a box each, after `change(images, annotations, ...)`."""

    def make(change=lambda *_: None, images="images", text=lambda text: text):
        said = [{"id": n, "file_name": f"{n}.png", "width": 64, "height": 48} for n in range(6)]
        boxes = [
            {"id": n, "image_id": n, "category_id": 1 + n % 2, "bbox": BOX, "area": 200.0, "iscrowd": 0}
            for n in range(6)
        ]
        categories = [{"id": 1, "name": "car"}, {"id": 2, "name": "bus"}]
        change(said, boxes, categories)
        (tmp_path / images).mkdir(parents=True, exist_ok=True)
        for number in range(6):
            Image.fromarray(np.full((48, 64, 3), 40 * number, np.uint8)).save(tmp_path / images / f"{number}.png")
        path = tmp_path / "a.json"
        path.write_text(text(json.dumps({"images": said, "annotations": boxes, "categories": categories})))
        return path

    return make


def shard(path, folder, **options):
    result = tpufeed.shard(path, folder, **{"workers": 1, "max_rejects": 20, **options})
    tpufeed.verify(result.url, decode="all")
    return result


def each(*changes):
    """Change the rows of images, annotations and categories by functions of a row and its place."""

    def change(*rows):
        for place, function in enumerate(changes):
            for number, row in enumerate(rows[place] if function else []):
                row.update(function(row, number))

    return change


SAME = {
    "ids are text": each(
        lambda row, _: {"id": str(row["id"])},
        lambda row, n: {"image_id": str(n), "category_id": str(row["category_id"]), "id": f"x{n}"},
        lambda row, _: {"id": str(row["id"])},
    ),
    "ids are text with zeros": each(lambda row, _: {"id": f"{row['id']:012d}"}),
    "ids are floats": each(
        lambda row, _: {"id": float(row["id"])},
        lambda row, n: {"image_id": float(n), "category_id": float(row["category_id"]), "iscrowd": 0.0},
    ),
    "one id is text": each(None, lambda _, n: {"image_id": "3"} if n == 3 else {}),
    "iscrowd is a bool": each(None, lambda *_: {"iscrowd": False}),
    "iscrowd is null": each(None, lambda *_: {"iscrowd": None}),
    "areas are NaN": each(None, lambda *_: {"area": NAN}),
    "NaN for what is missing": each(
        lambda *_: {"width": NAN, "height": -float("inf")}, lambda *_: {"keypoints": NAN, "iscrowd": NAN}
    ),
    "names of Windows": each(lambda row, _: {"file_name": f".\\images\\{row['file_name']}"}),
    "names of Windows and others": each(
        lambda row, n: {"file_name": ("images\\", "images/")[n % 2] + row["file_name"]}
    ),
    "a root category": lambda *rows: rows[2].insert(0, {"id": 0, "name": "bus", "supercategory": "none"}),
}


@pytest.mark.first_cases(4)
@pytest.mark.parametrize("name", SAME)
def test_what_tools_write_is_taken(name, make, tmp_path):
    result = shard(make(SAME[name]), tmp_path / "d")
    assert (result.images, result.rejects, result.warnings) == (6, 0, ())
    assert result.manifest.class_names == ("car", "bus")
    for path, sample in texts_of(result.url).items():
        number = int(path[-5])
        assert path == (f"images/{number}.png" if "Windows" in name else f"{number}.png")
        assert sample["boxes"] == [4, 5, 24, 15]
        assert (sample["image_id"], sample["iscrowd"], sample["image/class/label"]) == ([number], [0], [number % 2])
    assert shard(tmp_path / "a.json", tmp_path / "d").images == 6  # is recognised


def test_names_with_backslashes_that_are_there_stay(make, tmp_path):
    path = make(each(lambda row, _: {"file_name": f"a\\{row['file_name']}"}), images="a")
    for file in (tmp_path / "a").glob("*.png"):
        file.rename(tmp_path / f"a\\{file.name}")
    assert set(texts_of(shard(path, tmp_path / "d").url)) == {f"a\\{number}.png" for number in range(6)}


def test_ids_that_are_no_numbers_make_a_column_of_text(make, tmp_path):
    path = make(each(lambda _, n: {"id": f"img-{n}"}, lambda _, n: {"image_id": f"img-{n}"}))
    result = shard(path, tmp_path / "d")
    assert spec_of(result, "image_id").dtype == "string"
    assert texts_of(result.url)["4.png"]["image_id"] == ["img-4"]


def test_a_file_without_annotations(make, tmp_path):
    path = make()
    said = json.loads(path.read_text())
    del said["annotations"]
    path.write_text(json.dumps(said))
    result = shard(path, tmp_path / "d")
    assert (result.images, result.manifest.class_names) == (6, ("car", "bus"))
    assert texts_of(result.url)["0.png"]["boxes"] == []


@pytest.mark.parametrize("missing", [{"bbox": None}, {"bbox": NAN}, "remove"])
def test_annotations_without_a_box_are_left_out_and_counted(missing, make, tmp_path):
    def change(_, annotations, __):
        for one in annotations[1:3]:
            one.update({} if missing == "remove" else missing)
            if missing == "remove":
                del one["bbox"]

    result = shard(make(change), tmp_path / "d")
    assert (result.images, result.rejects) == (6, 0)
    assert [texts_of(result.url)[f"{n}.png"]["boxes"] for n in (0, 1, 2)] == [[4, 5, 24, 15], [], []]
    (said,) = result.warnings
    assert "a.json: 2 of its 6 annotations" in said


def test_annotations_of_other_images_are_left_out_and_counted(make, tmp_path):
    change = each(None, lambda _, n: {"image_id": 70 + n if n < 2 else n, "bbox": BOX if n else ["x"]})
    result = shard(make(change), tmp_path / "d")
    assert (result.images, result.rejects) == (6, 0)
    (said,) = result.warnings
    assert "a.json: 2 of its 6 annotations" in said
    assert "70" in said


@pytest.mark.parametrize("used", [1, 2])
def test_categories_of_one_name_are_one_class(used, make, tmp_path):
    def change(_, annotations, categories):
        categories.append({"id": 3, "name": "car"})
        for number, one in enumerate(annotations):
            one["category_id"] = (3, 2, 1)[number % (used + 1)]

    result = shard(make(change), tmp_path / "d")
    assert result.manifest.class_names == (("bus", "car") if used == 1 else ("car", "bus"))
    assert texts_of(result.url)["0.png"]["image/class/text"] == ["car"]
    assert ["1, 3" in said for said in result.warnings] == [True] * (used == 2)


# Bad input.

WRONG = {
    "bbox": ["x", [1, 2, 3, NAN], [1, 2, None, 4], [1, 2, "3", 4], {"x": 1}, 5],
    "category_id": [None, NAN, True, [1], 1.5],
    "iscrowd": ["maybe", [0], 0.5],
    "keypoints": ["x", [1, None, 2], {}],
}


@pytest.mark.first_cases(9)
@pytest.mark.parametrize(("field", "value"), [(field, value) for field, values in WRONG.items() for value in values])
def test_a_field_of_another_type_is_a_reject_with_its_place(field, value, make, tmp_path):
    shard(make(each(None, lambda _, n: {field: value} if n == 4 else {})), tmp_path / "d")
    ((path, (reason, message)),) = rejects_of(tmp_path / "d").items()
    assert (path, reason) == ("4.png", "bad_box")
    assert f"{tmp_path}/a.json has the '{field}'" in message
    assert "annotation 4" in message


@pytest.mark.parametrize("change", [{"id": None}, {"id": NAN}, {"id": [1]}, {"file_name": None}, {"file_name": 7}])
def test_an_image_without_id_or_name_is_a_reject(change, make, tmp_path):
    result = shard(make(each(lambda _, n: change if n == 2 else {})), tmp_path / "d")
    ((path, (reason, message)),) = rejects_of(tmp_path / "d").items()
    assert (result.images, reason) == (5, "bad_box")
    assert path == ("2.png" if "id" in change else "a.json/000000002")
    assert f"the image 2 (from 0) of {tmp_path}/a.json" in message


@pytest.mark.parametrize("row", [None, 7, "x", [1], {}])
def test_rows_that_are_no_objects_of_coco(row, make, tmp_path):
    def change(*rows):
        for each in rows:
            each.append(row)

    result = shard(make(change), tmp_path / "d")
    assert (result.images, list(rejects_of(tmp_path / "d"))) == (6, ["a.json/000000006"])
    assert len(result.warnings) == 2


def test_an_image_twice_in_a_file_is_a_reject(make, tmp_path):
    result = shard(make(each(lambda _, n: {"file_name": "./2.png"} if n == 4 else {})), tmp_path / "d")
    ((path, (reason, message)),) = rejects_of(tmp_path / "d").items()
    assert (result.images, path, reason) == (5, "./2.png", "bad_box")
    assert f"the image 4 of {tmp_path}/a.json is also the image 2 of" in message


def test_boxes_of_no_annotation_at_all(make, tmp_path):
    with pytest.raises(SourceError, match=r"a\.json"):
        shard(make(each(None, lambda *_: {"bbox": None})), tmp_path / "d")


NO_NUMBERS = ["NaN", "-Infinity", "say \\", '"NaN', "a\\\\", 'a"b', "x, NaN ,", "Infinity\\", "\\\\NaN\\"]


@pytest.mark.parametrize("text", NO_NUMBERS)
def test_texts_that_name_no_numbers_stay(text, make, tmp_path):
    """Only NaN outside of texts is null; a parser of Python's tells where that is."""
    path = make(lambda *rows: [rows[1][0].update(area=NAN, note=text), rows[2][0].update(name=text)])
    coco = read_coco(open_store(tmp_path), path.name)
    assert coco.class_names == (json.loads(path.read_text())["categories"][0]["name"], "bus")
    assert len(coco.annotations[0]) == 1
