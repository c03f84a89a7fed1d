"""Columns of all samples, as the functions of views see them: from datasets of every kind."""

import io
import json

import numpy as np
import pytest
from PIL import Image

import tpufeed
from tpufeed.cache import warmup
from tpufeed.dataset.scan import iter_columns
from tpufeed.errors import OptionError
from tpufeed.images import CenterCrop


def columns_of(url, names, split="train"):
    chunks = list(iter_columns(tpufeed.open_dataset(url), split, names))
    return {name: np.concatenate([chunk[name] for chunk in chunks]) for name in names}


@pytest.fixture(scope="module")
def table_url(tmp_path_factory):
    """Eight samples with columns of every kind."""
    folder = tmp_path_factory.mktemp("scan")
    rows = []
    for number in range(8):
        Image.fromarray(np.full((10, 12 + number, 3), number, np.uint8)).save(folder / f"{number}.png")
        rows.append(
            {
                "image": f"{number}.png",
                "class": f"c{number % 3}",
                "speed": number / 8,
                "pair": [number, -number],
                "list": list(range(number)),
                "words": ["é"] * (number % 3),
                "boxes": [[0, 1, number + 1, 9]] * (number % 2),
            }
        )
    (folder / "table.jsonl").write_text("\n".join(map(json.dumps, rows)))
    options = {"label": "class", "boxes": tpufeed.Boxes(column="boxes")}
    tpufeed.shard(folder / "table.jsonl", folder / "data", shards=3, workers=1, **options)
    return str(folder / "data")


def test_columns_of_every_kind(table_url):
    found = columns_of(table_url, ["filename", "label", "width", "speed", "pair", "list", "words", "boxes"])
    numbers = [int(name.split(".")[0]) for name in found["filename"]]
    assert sorted(numbers) == list(range(8))
    assert found["width"].tolist() == [12 + number for number in numbers]
    assert found["speed"].dtype == np.float32
    assert found["speed"].tolist() == [number / 8 for number in numbers]
    assert [each.tolist() for each in found["pair"]] == [[number, -number] for number in numbers]
    assert [each.tolist() for each in found["list"]] == [list(range(number)) for number in numbers]
    assert [list(each) for each in found["words"]] == [["é"] * (number % 3) for number in numbers]
    assert [each.tolist() for each in found["boxes"]] == [[[0, 1, number + 1, 9]] * (number % 2) for number in numbers]


def test_what_is_no_column_is_named(table_url):
    for name in ("image", "depth", "image/encoded"):
        with pytest.raises(OptionError, match=f"no column '{name}'. It has .*filename.*speed"):
            list(iter_columns(tpufeed.open_dataset(table_url), "train", [name]))


@pytest.mark.parametrize("image_format", ["raw", "jpeg"])
def test_caches_have_the_columns_of_their_dataset(table_url, tmp_path, image_format):
    warmup(table_url, tmp_path / "cache", ops=[CenterCrop(8)], variants=2, encode=image_format, workers=1)
    names = ["filename", "label", "speed"]
    expected, found = columns_of(table_url, names), columns_of(tmp_path / "cache", names)
    assert {name: found[name].tolist() for name in names} == {name: expected[name].tolist() for name in names}
    view = tpufeed.open_dataset(tmp_path / "cache").select(where=lambda each: each["speed"] > 0.5, columns=["speed"])
    with tpufeed.Loader(view, columns=["speed"], remainder="pad") as loader:
        assert len(loader) == 1
    assert view.split("train").records == 3


def test_keys_of_kaggle(tmp_path):
    folder = tmp_path / "raw"
    for number in range(6):
        path = folder / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((8, 8, 3), number, np.uint8)).save(path)
    tpufeed.shard(folder, tmp_path / "data", names="kaggle", workers=1)
    found = columns_of(tmp_path / "data", ["filename", "label", "text"])
    assert [name[0] for name in found["filename"]] == found["text"].tolist() == ["ab"[each] for each in found["label"]]
    view = tpufeed.open_dataset(tmp_path / "data").select(samples=["a/0.png", "b/3.png"])
    assert view.class_counts("train") == (1, 1)


def encoded(size, orientation=None):
    data = io.BytesIO()
    image = Image.fromarray(np.zeros((*size, 3), np.uint8))
    exif = image.getexif()
    if orientation:
        exif[0x0112] = orientation
    image.save(data, "JPEG", exif=exif)
    return data.getvalue()


def test_records_of_other_tools(tmp_path, write_tfrecords):
    """Boxes of the Object Detection API are in four lists; features may be missing."""
    sides = {"xmin": [0.0, 0.5], "ymin": [0.25, 0.0], "xmax": [1.0, 1.0], "ymax": [0.5, 1.0]}
    records = []
    for number in range(3):
        boxes = {f"image/object/bbox/{name}": values[: number % 3] for name, values in sides.items()}
        labels = {"image/object/class/label": [4, 5][: number % 3]}
        records.append({"image/encoded": encoded((20, 40)), **boxes, **labels})
    write_tfrecords(tmp_path / "train.tfrecord", records)
    tpufeed.adopt(tmp_path)
    dataset = tpufeed.open_dataset(tmp_path)
    assert [each.tolist() for each in dataset.labels("train").values.reshape(-1, 1)] == [[4], [4], [5]]
    (name,) = (spec.name for spec in dataset.manifest.features if spec.kind == "boxes")
    found = columns_of(tmp_path, [name])
    assert [each.tolist() for each in found[name]] == [[], [[0, 5, 40, 10]], [[0, 5, 40, 10], [20, 0, 40, 20]]]
    view = dataset.select(classes=[5])
    assert view.samples("train").tolist() == [2]
    full = dataset.select(where=lambda each: np.array([len(boxes) > 0 for boxes in each[name]]), columns=[name])
    assert full.samples("train").tolist() == [1, 2]


@pytest.mark.parametrize(
    ("label_key", "classes", "others"),
    [("coarse_label", [0, 1, 1], [4, 5, 6]), ("class", [0, 1, 1], [b"rose", b"rose", b"tulip"])],
)
def test_a_feature_that_is_called_label_is_not_the_class(label_key, classes, others, tmp_path, write_tfrecords):
    """As in records of CIFAR-100, and of Kaggle's guides."""
    records = [{label_key: number, "label": other} for number, other in zip(classes, others, strict=True)]
    write_tfrecords(tmp_path / "train.tfrecord", [{"image": encoded((8, 8))} | record for record in records])
    tpufeed.adopt(tmp_path, label_key=label_key)
    dataset = tpufeed.open_dataset(tmp_path)
    assert columns_of(tmp_path, ["label"])["label"].tolist() == dataset.labels("train").values.tolist() == classes
    view = dataset.select(classes=["1"])
    assert (view.samples("train").tolist(), view.class_counts("train")) == ([1, 2], (2,))


def test_datasets_without_labels_have_no_classes(tmp_path, write_tfrecords):
    write_tfrecords(tmp_path / "train.tfrecord", [{"image/encoded": encoded((8, 8))}] * 3)
    tpufeed.adopt(tmp_path)
    dataset = tpufeed.open_dataset(tmp_path)
    with pytest.raises(OptionError, match="no labels"):
        dataset.select(classes=[0])
    with pytest.raises(OptionError, match="does not name its classes"):
        tpufeed.Mixture.by_class(dataset)
    assert dataset.select(fold=(0, 2)).split("train").records + dataset.select(fold=(1, 2)).split("train").records == 3
