"""COCO files of several splits as one source: named by the user, or in the folders that tools export."""

import json

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import tpufeed
from tests.gcs_server import GcsServer
from tests.sharding.forging import begun
from tests.sharding.outputs import rejects_of, texts_of
from tests.sharding.previews import preview_shard
from tests.sources.test_boxes import spec_of
from tpufeed.cli.app import app
from tpufeed.errors import NoInputsError, OptionError, SourceError

CATEGORIES = [{"id": 1, "name": "car"}, {"id": 2, "name": "bus"}]


@pytest.fixture
def make(tmp_path):
    """`make({json: folder of its images})`: COCO files below `src`, of three images with a box each."""

    def make(files, categories=CATEGORIES, names="{}.png", **changed):
        root = tmp_path / "src"
        for place, (file, folder) in enumerate(files.items()):
            images, boxes = [], []
            (root / folder).mkdir(parents=True, exist_ok=True)
            (root / file).parent.mkdir(parents=True, exist_ok=True)
            for number in range(3):
                grey = 40 * place + 10 * number
                Image.fromarray(np.full((20, 30, 3), grey, np.uint8)).save(root / folder / names.format(number))
                images.append({"id": number, "file_name": names.format(number), "width": 30, "height": 20})
                box = {"image_id": number, "category_id": 1 + number % 2, "bbox": [place, 2, 3, 4], "iscrowd": 0}
                boxes.append(box | changed)
            (root / file).write_text(json.dumps({"images": images, "annotations": boxes, "categories": categories}))
        return root

    return make


def shard(src, folder, **options):
    result = tpufeed.shard(src, folder, **{"workers": 1, "max_rejects": 20, **options})
    tpufeed.verify(result.url, decode="all")
    return result


def splits_of(result):
    return {name: split.records for name, split in result.manifest.splits.items()}


def boxes_of(result, split):
    """The paths of a split, with what places of boxes say of which file they are."""
    examples = tpufeed.open_dataset(result.url).iter_examples(split)
    return {bytes(one["image/filename"].values[0]).decode(): one["boxes"].values[0] for one in examples}


TWO = {"a/first.json": "a/images", "b/second.json": "b/images"}


def test_each_file_is_a_split(make, tmp_path, monkeypatch):
    root = make(TWO)
    src = f"train={root}/a/first.json,val={root}/b/second.json"
    result = shard(src, tmp_path / "d")
    assert splits_of(result) == {"train": 3, "val": 3}
    assert (result.manifest.class_names, result.rejects, result.warnings) == (("car", "bus"), 0, ())
    assert boxes_of(result, "train") == {f"a/images/{number}.png": 0 for number in range(3)}
    assert boxes_of(result, "val") == {f"b/images/{number}.png": 1 for number in range(3)}
    images = tpufeed.TFRecordImages(result.url, split="val", columns=["image", "boxes"])
    for sample in (images[place] for place in range(3)):
        assert np.asarray(sample[0]).max() in (40, 50, 60)
    monkeypatch.chdir(root)
    assert shard("train=a/first.json,val=b/second.json", tmp_path / "d").manifest == result.manifest
    assert preview_shard(src, tmp_path / "e").splits.keys() == {"train", "val"}
    one = shard("val=b/second.json", tmp_path / "f")
    assert (splits_of(one), set(texts_of(one.url))) == ({"val": 3}, {f"{number}.png" for number in range(3)})


def test_splits_are_appended_and_continued(make, tmp_path):
    root = make({**TWO, "c/third.json": "c/images"})
    src = f"train={root}/a/first.json,val={root}/b/second.json"
    first = shard(src, tmp_path / "d", image=f"val={root}/b/images")
    begun(tmp_path / "d")
    again = shard(src, tmp_path / "d", image=f"val={root}/b/images")
    assert again.manifest.content_digest == first.manifest.content_digest
    more = tpufeed.append(f"test={root}/c/third.json,val={root}/c/third.json", tmp_path / "d", workers=1, max_rejects=9)
    assert (more.added, more.rejects) == (3, 3)
    assert set(boxes_of(more, "test")) == {f"{number}.png" for number in range(3)}


def test_several_files_of_a_split(make, tmp_path):
    root = make(TWO)
    assert splits_of(shard(f"all={root}/a/first.json,all={root}/b/*.json", tmp_path / "d")) == {"all": 6}


@pytest.mark.parametrize("image", ["train=a/images,val=b/images", "val=b/images", "a/images"])
def test_folders_of_images_may_be_given(image, make, tmp_path, monkeypatch):
    root = make(TWO)
    monkeypatch.chdir(root)
    if image == "a/images":  # one for all
        for number in range(3):
            (root / f"b/images/{number}.png").rename(root / f"a/images/v{number}.png")
        path = root / "b/second.json"
        path.write_text(path.read_text().replace('"file_name": "', '"file_name": "v'))
    result = shard("train=a/first.json,val=b/second.json", tmp_path / "d", image=image)
    assert (splits_of(result), result.rejects) == ({"train": 3, "val": 3}, 0)


def test_categories_are_joined_by_name(make, tmp_path):
    root = make(TWO)
    other = [{"id": 1, "name": "bus"}, {"id": 2, "name": "tram"}, {"id": 7, "name": "car"}]
    (root / "b/second.json").write_text(
        json.dumps({**json.loads((root / "b/second.json").read_text()), "categories": other})
    )
    result = shard(f"train={root}/a/first.json,val={root}/b/second.json", tmp_path / "d")
    assert result.manifest.class_names == ("car", "bus", "tram")
    labels = {path: sample["image/class/label"] for path, sample in texts_of(result.url).items() if path[0] == "b"}
    assert labels == {"b/images/0.png": [1], "b/images/1.png": [2], "b/images/2.png": [1]}
    (said,) = result.warnings
    assert "second.json" in said
    assert "'bus'" in said


def test_keypoints_of_one_split(make, tmp_path):
    root = make(TWO, keypoints=[1, 2, 2, 3, 4, 2])
    path = root / "b/second.json"
    path.write_text(path.read_text().replace('"keypoints": [1, 2, 2, 3, 4, 2]', '"keypoints": null'))
    result = shard(f"train={root}/a/first.json,val={root}/b/second.json", tmp_path / "d")
    assert spec_of(result, "keypoints").item_shape == (2, 3)
    path.write_text(path.read_text().replace('"keypoints": null', '"keypoints": [1, 2, 2]'))
    with pytest.raises(SourceError, match=r"second\.json.* 1 keypoints"):
        shard(f"train={root}/a/first.json,val={root}/b/second.json", tmp_path / "e")


LAYOUTS = {
    "Roboflow": ({f"{name}/_annotations.coco.json": name for name in ("train", "valid", "test")}, "test/0.png"),
    "CVAT": ({"annotations/instances_default.json": "images"}, "0.png"),
    "CVAT's splits": (
        {f"annotations/instances_{name}.json": f"images/{name}" for name in ("train", "val")},
        "val/0.png",
    ),
    "COCO": ({f"annotations/instances_{name}2017.json": f"{name}2017" for name in ("train", "val")}, "val2017/0.png"),
    "Ultralytics": (
        {f"annotations/instances_{name}2017.json": f"images/{name}2017" for name in ("train", "val")},
        "val2017/0.png",
    ),
}


@pytest.mark.first_cases(2)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_folders_of_tools_are_found_and_named(layout, make, tmp_path):
    files, sample = LAYOUTS[layout]
    root = make(files)
    if layout == "COCO":
        (root / "annotations/captions_val2017.json").write_text("{}")
        (root / "unlabeled2017").mkdir()
    if layout == "Ultralytics":
        (root / "labels/val2017").mkdir(parents=True)
    result = shard(root, tmp_path / "d")
    wanted = {"Roboflow": ["test", "train", "val"], "CVAT": ["train"]}.get(layout, ["train", "val"])
    assert splits_of(result) == dict.fromkeys(wanted, 3)
    assert sample in texts_of(result.url)
    (said,) = result.warnings
    assert all(f"{root}/{file} with the images in {root}/{folder}" in said for file, folder in files.items())
    places = [{*boxes_of(result, split).values()} for split in wanted]
    assert sorted(map(len, places)) == [1] * len(wanted)
    done = CliRunner().invoke(app, ["shard", str(root), str(tmp_path / "e"), "--dry-run"])
    assert "COCO" in done.stdout + done.stderr
    begun(tmp_path / "d")
    assert splits_of(shard(root, tmp_path / "d")) == splits_of(result)


def test_a_split_without_annotations_is_said(make, tmp_path):
    root = make(LAYOUTS["Roboflow"][0])
    (root / "test/_annotations.coco.json").unlink()
    result = shard(root, tmp_path / "d")
    assert splits_of(result) == {"train": 3, "val": 3}
    assert any(said.startswith("test in") for said in result.warnings)


def test_images_of_a_split_without_a_file_are_said(make, tmp_path):
    root = make(LAYOUTS["Ultralytics"][0])
    (root / "annotations/instances_train2017.json").unlink()
    (root / "test2017").mkdir()
    result = shard(root, tmp_path / "d")
    assert splits_of(result) == {"val": 3}
    assert any(said.startswith("test2017, images/train2017 in") for said in result.warnings)


@pytest.mark.parametrize("layout", ["Roboflow", "CVAT's splits", "COCO"])
def test_a_split_that_comes_later_adds_only_its_images(layout, make, tmp_path):
    files, _ = LAYOUTS[layout]
    first = shard(make(dict(list(files.items())[:1])), tmp_path / "d")
    root = make(files)
    assert tpufeed.append(root, tmp_path / "d", workers=1).added == 3 * (len(files) - 1)
    assert splits_of(first) == {"train": 3}


def test_folders_of_classes_stay_folders_of_classes(make, tmp_path):
    root = make({"annotations/instances_default.json": "cat"})
    result = shard(root, tmp_path / "d")
    assert result.manifest.class_names == ("cat",)
    assert any("instances_default.json are not read" in said for said in result.warnings)
    (root / "cat").rename(root / "images")
    assert shard(root, tmp_path / "e", split_by="folder").manifest.splits.keys() == {"images"}
    for name in ("minival", "nominival"):
        (root / f"annotations/instances_{name}.json").write_text("{}")
    assert shard(root, tmp_path / "f").manifest.class_names == ("images",)  # of which split would they be?


@pytest.mark.all
def test_splits_in_a_bucket(make, monkeypatch, tmp_path):
    root = make(LAYOUTS["COCO"][0])
    with GcsServer(process=True) as server:
        for key, value in server.environment().items():
            monkeypatch.setenv(key, value)
        for file in root.rglob("*.*"):
            server.put("bucket", f"src/{file.relative_to(root)}", file.read_bytes())
        local = shard(root, tmp_path / "d")
        assert shard("gs://bucket/src", "gs://bucket/d").manifest.content_digest == local.manifest.content_digest
        names = [f"annotations/instances_{name}2017.json" for name in ("train", "val")]
        mixed = shard(f"train={root}/{names[0]},val=gs://bucket/src/{names[1]}", tmp_path / "e")
        assert set(boxes_of(mixed, "val")) == {f"gs://bucket/src/val2017/{number}.png" for number in range(3)}
        assert set(boxes_of(mixed, "train")) == {f"{number}.png" for number in range(3)}


# Bad input.


def test_an_image_of_two_splits_is_a_reject_of_the_second(make, tmp_path):
    root = make({"train.json": "images", "val.json": "images"})
    path = root / "val.json"
    path.write_text(path.read_text().replace('"0.png"', '"v0.png"'))
    (root / "images/v0.png").write_bytes((root / "images/0.png").read_bytes())
    result = shard(f"train={root}/train.json,val={root}/val.json", tmp_path / "d")
    assert splits_of(result) == {"train": 3, "val": 1}
    rejects = rejects_of(tmp_path / "d")
    assert set(rejects) == {"1.png", "2.png"}
    reason, message = rejects["2.png"]
    assert reason == "bad_box"
    assert f"the image 2 of {root}/val.json" in message
    assert f"image 2 of {root}/train.json" in message


@pytest.mark.parametrize(
    ("src", "options", "said"),
    [
        ("train={}/a/first.json,val={}/none.json", {}, r"none\.json"),
        ("train={}/a/first.json,val={}/c/*.json", {}, r"\*\.json"),
        ("train={}/a/first.json,my-val={}/b/second.json", {}, "my_val"),
        ("train={}/a/first.json,val={}/b/second.json", {"splits": "train=0.5,val=0.5"}, "split"),
        ("train={}/a/first.json,val={}/b/second.json", {"image": "train=a,test=b"}, "'test'"),
        ("train={}/a/first.json,val={}/b/second.json", {"masks": "m"}, "masks"),
        ("{}/?/*.json", {}, r"\?|2 COCO|no"),
    ],
)
def test_splits_that_cannot_be(src, options, said, make, tmp_path):
    root = make(TWO)
    with pytest.raises((OptionError, SourceError, NoInputsError), match=said):
        shard(src.replace("{}", str(root)), tmp_path / "d", **options)


def test_a_file_that_is_called_like_splits_is_a_file(make, tmp_path):
    root = make({"lr=0.1.json": "images"})
    assert splits_of(shard(root / "lr=0.1.json", tmp_path / "d")) == {"train": 3}
