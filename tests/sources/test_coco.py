"""COCO's JSON as a source, in the layout in which COCO is unpacked."""

import io
import json
import re
import shutil

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import tpufeed
from tests.gcs_server import GcsServer
from tests.sharding.forging import begun
from tests.sharding.outputs import rejects_of, texts_of
from tests.sharding.previews import preview_shard
from tests.sources.test_boxes import encoded, spec_of
from tpufeed.cli.app import app
from tpufeed.dataset.reader import open_dataset
from tpufeed.errors import NoInputsError, OptionError, SourceError

CATEGORIES = [{"id": 90, "name": "zebra"}, {"id": 1, "name": "person"}, {"id": 3, "name": "car"}]


def content(annotations=None, images=4, **others):
    """What a file of COCO says: images of 80x60 and 4 annotations of 3 of them, besides much that is not needed."""
    if annotations is None:
        annotations = [
            {"image_id": 102, "category_id": 3, "bbox": [10, 20, 30, 25.5], "iscrowd": 0},
            {"image_id": 101, "category_id": 1, "bbox": [0, 0, 80, 60], "iscrowd": 0},
            {"image_id": 102, "category_id": 1, "bbox": [1.25, 2, 3, 4], "iscrowd": 1, "segmentation": {"counts": [1]}},
            {"image_id": 100, "category_id": 3, "bbox": [5, 6, 7, 8]},
        ]
    annotations = [
        {"id": 7 + number, "segmentation": [[1, 2, 3]], "area": 3.5, **one} for number, one in enumerate(annotations)
    ]
    return {
        "info": {"year": 2017},
        "licenses": [{"id": 1}],
        "images": [
            {"id": 100 + number, "file_name": f"{number:012d}.png", "height": 60, "width": 80}
            for number in range(images)
        ],
        "annotations": annotations,
        "categories": CATEGORIES,
        **others,
    }


@pytest.fixture
def coco(tmp_path):
    """`coco(content)`: `annotations/instances_val2017.json`, with the images in `val2017`."""

    def make(said=None, folder="val2017", images=4):
        root = tmp_path / "coco"
        (root / "annotations").mkdir(parents=True, exist_ok=True)
        (root / folder).mkdir(parents=True, exist_ok=True)
        for number in range(images):
            (root / folder / f"{number:012d}.png").write_bytes(encoded())
        path = root / "annotations/instances_val2017.json"
        path.write_bytes(said if isinstance(said, bytes) else json.dumps(content() if said is None else said).encode())
        return path

    return make


def shard(url, folder, **options):
    result = tpufeed.shard(url, folder, **{"workers": 1, "max_rejects": 20, **options})
    tpufeed.verify(result.url, decode="all")
    return result


def test_boxes_categories_and_crowds(coco, tmp_path):
    result = shard(coco(), tmp_path / "d")
    assert result.manifest.class_names == ("person", "car", "zebra")  # in the order of their ids
    assert [split.class_counts for split in result.manifest.splits.values()] == [(2, 2, 0)]
    samples = texts_of(result.url)
    assert set(samples) == {f"{number:012d}.png" for number in range(4)}
    sample = samples["000000000002.png"]
    assert np.reshape(sample["boxes"], (-1, 4)).tolist() == [[10, 20, 40, 45.5], [1.25, 2, 4.25, 6]]
    assert (sample["image/class/label"], sample["image/class/text"]) == ([1, 0], ["car", "person"])
    assert (sample["iscrowd"], sample["image_id"]) == ([0, 1], [102])
    empty = samples["000000000003.png"]
    assert [empty[name] for name in ("boxes", "image/class/label", "iscrowd", "image_id")] == [[], [], [], [103]]
    assert {
        name: spec_of(result, name).type_text for name in ("boxes", "iscrowd", "image_id", "image/class/label")
    } == {
        "boxes": "float32[0 to 2, 4] boxes",
        "iscrowd": "int64[0 to 2] of boxes",
        "image_id": "int64",
        "image/class/label": "int64[0 to 2] of boxes",
    }
    assert "keypoints" not in [feature.name for feature in result.manifest.features]


def test_boxes_of_one_class_keep_their_labels_beside_a_separator(coco, tmp_path):
    boxes = [{"image_id": 100, "category_id": 3, "bbox": [5, 6, 7, side]} for side in (8, 9, 10)]
    result = tpufeed.shard(coco(content(boxes)), tmp_path / "d", workers=1, label_separator="|")
    assert (result.images, result.listed.classes["car"]) == (4, 3)


def test_boxes_are_presized_and_split_with_their_images(coco, tmp_path):
    result = shard(
        coco(), tmp_path / "d", images=tpufeed.Images(presize=30, presize_mode="fit"), splits="train=0.5,val=0.5"
    )
    assert set(result.manifest.splits) == {"train", "val"}
    samples = texts_of(result.url)
    assert np.reshape(samples["000000000002.png"]["boxes"], (-1, 4)).tolist() == [[0, 10, 15, 22.75]]
    assert samples["000000000002.png"]["image/class/text"] == ["car"]
    assert samples["000000000000.png"]["boxes"] == [0, 3, 1, 7]
    assert result.manifest.odd["box outside"] == 1


def test_keypoints_of_people(coco, tmp_path):
    body = [[10 + joint, 20, 2] if joint % 2 else [0, 0, 0] for joint in range(17)]
    annotations = [
        {
            "image_id": 100,
            "category_id": 1,
            "bbox": [5, 6, 7, 8],
            "keypoints": np.ravel(body).tolist(),
            "num_keypoints": 8,
        },
        {"image_id": 100, "category_id": 1, "bbox": [1, 2, 3, 4]},
    ]
    people = [{"id": 1, "name": "person", "keypoints": ["nose"], "skeleton": [[1, 2]]}]
    result = shard(coco(content(annotations, categories=people)), tmp_path / "d", images=tpufeed.Images(presize=30))
    spec = spec_of(result, "keypoints")
    assert (spec.item_shape, spec.kind, spec.of) == ((17, 3), "keypoints", "boxes")
    points = np.reshape(texts_of(result.url)["000000000000.png"]["keypoints"], (2, 17, 3))
    assert points[0].tolist() == [[x / 2, y / 2, v] for x, y, v in body]
    assert not points[1].any()


def test_most_annotations_say_how_many_keypoints_there_are(coco, tmp_path):
    each = {"category_id": 1, "bbox": [1, 2, 3, 4]}
    annotations = [{"image_id": 100 + n, **each, "keypoints": [1, 2, 2] * (1 if n == 0 else 2)} for n in range(3)]
    result = shard(coco(content(annotations)), tmp_path / "d")
    assert spec_of(result, "keypoints").item_shape == (2, 3)
    assert list(rejects_of(result.url)) == ["000000000000.png"]


def test_no_annotation_at_all(coco, tmp_path):
    result = shard(coco(content([])), tmp_path / "d")
    assert result.images == 4
    assert result.manifest.class_names == ("person", "car", "zebra")
    assert spec_of(result, "boxes").lengths == (0, 0)


def test_categories_may_be_left_out_or_be_given_places(coco, tmp_path):
    path = coco()
    result = shard(path, tmp_path / "d", label="none")
    assert result.manifest.class_names == ()
    assert len(texts_of(result.url)["000000000002.png"]["boxes"]) == 8
    result = shard(path, tmp_path / "e", classes=["car", "person"])
    assert texts_of(result.url)["000000000002.png"]["image/class/label"] == [0, 1]
    shard(path, tmp_path / "f", classes=["car"])
    assert {reason for reason, _ in rejects_of(tmp_path / "f").values()} == {"bad_label"}


@pytest.mark.parametrize("folder", ["val2017", "annotations", "images/val2017", ".", "annotations/pictures"])
def test_the_folder_of_the_images_is_found(folder, coco, tmp_path):
    assert shard(coco(folder=folder), tmp_path / "d").images == 4


def test_names_with_folders_and_absolute_ones(coco, tmp_path):
    said = content()
    for image in said["images"]:
        image["file_name"] = f"val2017/{image['file_name']}"
    path = coco(said)
    assert set(texts_of(shard(path, tmp_path / "d").url)) == {f"val2017/{number:012d}.png" for number in range(4)}
    shutil.copytree(path.parent.parent / "val2017", path.parent.parent / "copy/val2017")
    for image in said["images"]:
        image["file_name"] = f"../{image['file_name']}"
    assert shard(coco(said), tmp_path / "f").images == 4
    for image in said["images"]:
        image["file_name"] = str(path.parent / image["file_name"])
    assert shard(coco(said), tmp_path / "e").images == 4


def test_a_folder_that_cannot_be_told_is_to_be_given(coco, tmp_path):
    path = coco()
    coco(folder="copy")
    with pytest.raises(OptionError, match="--image DIR"):
        shard(path, tmp_path / "d")
    assert shard(path, tmp_path / "d", image=str(path.parent.parent / "copy")).images == 4
    (path.parent.parent / "copy/000000000001.png").unlink()
    assert shard(path, tmp_path / "e").images == 4  # not all of them are in the other
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    path.rename(elsewhere / "x.json")
    with pytest.raises(OptionError, match="--image DIR"):
        shard(elsewhere / "x.json", tmp_path / "f")


# Bad input.


def test_images_that_are_missing_or_damaged_are_rejects(coco, tmp_path):
    path = coco()
    images = path.parent.parent / "val2017"
    (images / "000000000000.png").unlink()
    (images / "000000000002.png").write_bytes(b"no image")
    assert shard(path, tmp_path / "d").images == 2
    rejects = rejects_of(tmp_path / "d")
    assert rejects["000000000000.png"] == (
        "unreadable",
        f"there is no such file; the image 100 of {path} names it",
    )
    assert rejects["000000000002.png"][0] == "not_an_image"


BAD = [
    ({"bbox": [1, 2, 0, 4]}, r"\[1.0, 2.0, 1.0, 6.0\]"),  # its corners
    ({"bbox": [1, 2, 100, 4]}, "80x60"),
    ({"bbox": [1, 2, 3]}, r"\[1.0, 2.0, 3.0\]"),
    ({"bbox": []}, r"'bbox' \[\]"),
    ({"bbox": [1, 2, 3, 4], "category_id": 99}, "'category_id' 99"),
    ({"bbox": [1, 2, 3, 4], "keypoints": [1, 2, 2, 3, 4, 2]}, "'keypoints' of 6"),
]


def test_bad_annotations_are_rejects(coco, tmp_path):
    annotations = [{"image_id": 100, "category_id": 1, "bbox": [1, 2, 3, 4], "keypoints": [1, 2, 2]}]
    annotations += [{"image_id": 101 + n, "category_id": 1, **annotation} for n, (annotation, _) in enumerate(BAD)]
    count = len(annotations)
    shard(coco(content(annotations, images=count), images=count), tmp_path / "d")
    rejects = rejects_of(tmp_path / "d")
    assert len(rejects) == len(BAD)
    for number, (_, said) in enumerate(BAD, 1):
        reason, message = rejects[f"{number:012d}.png"]
        assert reason == "bad_box"
        assert re.search(said, message), message


DAMAGED = {
    "cut short": (lambda data: data[:-30], "JSON"),
    "empty": (lambda _: b"", "JSON"),
    "no UTF-8": (lambda data: data.replace(b"zebra", b"z\xffbra"), "JSON|UTF-8|utf-8"),
    "a list": (lambda _: b"[]", "COCO"),
    "no categories": (lambda _: b'{"images": [], "annotations": []}', "`categories`"),
    "captions": (
        lambda _: json.dumps({**content([]), "annotations": [{"image_id": 100, "caption": "a"}]}).encode(),
        "annotations",
    ),
    "no image has an id": (lambda data: data.replace(b'"id": 10', b'"no": 10'), "`id`"),
    "not JSON after NaN": (lambda data: data.replace(b"3.5", b"NaN")[:-30], "JSON"),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_file_is_an_error(damage, coco, tmp_path):
    change, said = DAMAGED[damage]
    path = coco(change(json.dumps(content()).encode()))
    with pytest.raises(SourceError, match=said) as caught:
        shard(path, tmp_path / "d")
    assert str(path) in str(caught.value)
    with pytest.raises(SourceError, match=said):
        preview_shard(path, tmp_path / "d")


@pytest.mark.parametrize(
    ("said", "match"),
    [
        (
            content([{"image_id": 999, "category_id": 1, "bbox": [1, 2, 3, 4]}]),
            "image 999",
        ),
        (content(images=0, annotations=[]), "no images"),
        (content(categories=[*CATEGORIES, {"id": 3, "name": "truck"}]), "id 3"),
        ({**content([]), "images": content()["images"] * 2}, r"id 100: 0, 4 \(from 0\)"),
    ],
)
def test_a_file_that_contradicts_itself_is_an_error(said, match, coco, tmp_path):
    with pytest.raises((SourceError, NoInputsError), match=match):
        shard(coco(said), tmp_path / "d")


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"label": "area"}, "'area'"),
        ({"split_by": "folder"}, "shares"),
        ({"boxes": tpufeed.Boxes(column="boxes")}, "boxes"),
        ({"columns": {"area": "float32"}}, "columns"),
        ({"masks": "masks"}, "folder of images, which .* is not$"),  # a file of COCO takes no image columns either
    ],
)
def test_options_that_a_file_of_coco_does_not_have(options, match, coco, tmp_path):
    with pytest.raises(OptionError, match=match):
        shard(coco(), tmp_path / "d", **options)


def test_several_files_have_to_be_sharded_apart(coco, tmp_path):
    path = coco()
    (path.parent / "instances_train2017.json").write_bytes(path.read_bytes())
    with pytest.raises(OptionError, match="2 COCO files"):
        shard(path.parent / "instances_*.json", tmp_path / "d")


# Going on, stores.


def test_the_same_command_goes_on_and_finds_what_has_changed(coco, bytes_of, tmp_path):
    path = coco()
    first = shard(path, tmp_path / "d")
    expected = bytes_of(tmp_path / "d")
    begun(tmp_path / "d")
    assert shard(path, tmp_path / "d").manifest.content_digest == first.manifest.content_digest
    assert bytes_of(tmp_path / "d") == expected
    assert shard(path, tmp_path / "d").earlier_images == 4
    coco(content([{"image_id": 101, "category_id": 1, "bbox": [1, 2, 3, 4]}]))
    with pytest.raises(tpufeed.errors.DatasetExistsError, match="changed"):
        shard(path, tmp_path / "d")


@pytest.mark.all
def test_coco_in_a_bucket(coco, monkeypatch, tmp_path):
    path = coco()
    root = path.parent.parent
    with GcsServer(process=True) as server:
        for key, value in server.environment().items():
            monkeypatch.setenv(key, value)
        for file in (path, *root.glob("val2017/*")):
            server.put("bucket", f"coco/{file.relative_to(root)}", file.read_bytes())
        result = shard("gs://bucket/coco/annotations/instances_val2017.json", "gs://bucket/d")
        local = shard(path, tmp_path / "d")
        assert result.manifest.content_digest == local.manifest.content_digest
        server.put("bucket", "x.json", path.read_bytes())
        with pytest.raises(OptionError, match="--image DIR"):
            shard("gs://bucket/x.json", "gs://bucket/e")
        assert shard("gs://bucket/x.json", "gs://bucket/e", image="gs://bucket/coco/val2017").images == 4


def test_the_command(coco, tmp_path):
    done = CliRunner().invoke(app, ["shard", str(coco()), str(tmp_path / "d"), "--presize", "30"])
    assert done.exit_code == 0, done.stderr
    assert open_dataset(tmp_path / "d").manifest.options["presize"] == 30
    sample = texts_of(tmp_path / "d")["000000000001.png"]
    assert np.asarray(Image.open(io.BytesIO(sample["image/encoded"][0].encode("latin-1")))).shape == (30, 40, 3)
    assert sample["boxes"] == [0, 0, 40, 30]


# Names of keypoints.

PERSON = ["nose", *(f"{side}_{part}" for part in ("eye", "ear", "knee") for side in ("left", "right"))]
POINTS = [number for joint in range(7) for number in (10 + joint, 20 + joint, 2)]


def people(*names, used=None):
    """A category for each list of names, and one annotation of each, with seven keypoints."""
    categories = [{"id": 1 + place, "name": f"kind {place}", "keypoints": each} for place, each in enumerate(names)]
    used = range(len(names)) if used is None else used
    each = {"image_id": 100, "bbox": [5, 6, 7, 8], "keypoints": POINTS}
    return content([each | {"category_id": 1 + place} for place in used], categories=categories)


def pairs_of(result):
    return spec_of(result, "keypoints").flip_pairs


@pytest.mark.parametrize(
    ("names", "pairs"),
    [
        (PERSON, ((1, 2), (3, 4), (5, 6))),
        (["Left Eye", "Right Eye", "tail", "paw_right", "paw_left", "midleft", "x"], ((0, 1), (4, 3))),
        (["l_eye", "r_eye", "head", "R-ear", "L-ear", "level", "rever"], ((0, 1), (4, 3))),
        (["left_eye", "nose", "a", "b", "c", "d", "e"], None),  # nothing opposite
        (PERSON[:6], None),  # not the names of seven points
        ("nose", None),
        ([1, 2, 3, 4, 5, 6, 7], None),
    ],
)
def test_names_of_keypoints_say_which_are_left_and_right(names, pairs, coco, tmp_path):
    found = pairs_of(shard(coco(people(names)), tmp_path / "d"))
    assert (found or None) == pairs


def test_categories_with_other_keypoints_say_no_pairs(coco, tmp_path):
    other = ["tail", *reversed(PERSON[1:])]
    assert not pairs_of(shard(coco(people(PERSON, other[::-1])), tmp_path / "a"))
    assert not pairs_of(shard(coco(people(PERSON, None)), tmp_path / "b"))
    assert pairs_of(shard(coco(people(PERSON, other[::-1], used=[0])), tmp_path / "c"))
    said = pairs_of(shard(coco(people(PERSON, None)), tmp_path / "d", boxes=tpufeed.Boxes(flip_pairs=[(1, 2)])))
    assert said == ((1, 2),)
    said = pairs_of(shard(coco(people(PERSON)), tmp_path / "e", boxes=tpufeed.Boxes(flip_pairs="none")))
    assert said == ()
    with pytest.raises(OptionError, match="--keypoints"):
        shard(coco(), tmp_path / "f", boxes=tpufeed.Boxes(flip_pairs=[(1, 2)]))


def test_a_file_with_other_pairs_cannot_be_appended(coco, tmp_path):
    url = shard(coco(people(PERSON)), tmp_path / "d").url
    more = people(PERSON, used=[])
    more["images"] = [{"id": 200, "file_name": "new.png"}]
    more["annotations"] = [{"id": 1, "image_id": 200, "category_id": 1, "bbox": [5, 6, 7, 8], "keypoints": POINTS}]
    path = coco(more)
    (path.parent.parent / "val2017/new.png").write_bytes(encoded((40, 50)))
    more["categories"][0]["keypoints"] = [*PERSON[1:], "nose"]
    (path.parent / "other.json").write_text(json.dumps(more))
    with pytest.raises(OptionError, match="0:1 2:3 4:5"):
        tpufeed.append(path.parent / "other.json", url, workers=1)
    del more["categories"][0]["keypoints"]
    (path.parent / "without.json").write_text(json.dumps(more))  # says nothing against it
    result = tpufeed.append(path.parent / "without.json", url, workers=1)
    assert (result.added, pairs_of(result)) == (1, ((1, 2), (3, 4), (5, 6)))
