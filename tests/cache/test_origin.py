"""The dataset that a cache is made of."""

import json
from pathlib import Path

import numpy as np
import pytest

import tpufeed
from tests.sharding.previews import preview_warmup
from tests.tfrecords import encode_example, write_file
from tpufeed.cache import warmup
from tpufeed.dataset.reader import open_dataset
from tpufeed.dataset.scan import iter_columns
from tpufeed.errors import DatasetNotFoundError, OptionError, TooManyRejectsError
from tpufeed.images import HorizontalFlip, RandomResizedCrop

SIDE = 32
OPS = [RandomResizedCrop(SIDE), HorizontalFlip()]


def pixels_by_name(url, split="train"):
    dataset = open_dataset(url)
    shape = dataset.manifest.tensor_shape
    return {
        bytes(found["image/filename"].values[0]).decode(): np.frombuffer(
            found["image/tensor"].values[0], np.uint8
        ).reshape(shape)
        for found in dataset.iter_examples(split)
    }


def test_a_reject_moves_no_draws(damaged_source, photo_folder, tmp_path):
    """A sample's numbers follow from its place in the global order, whether those before it are taken or not."""
    name, dataset = damaged_source
    options = {"ops": OPS, "workers": 1}
    tpufeed.shard(photo_folder, tmp_path / "dataset", workers=1)
    damaged = warmup(dataset, tmp_path / "damaged", **options)
    sound = warmup(tmp_path / "dataset", tmp_path / "sound", **options)
    found, expected = pixels_by_name(damaged.url), pixels_by_name(sound.url)
    assert expected.keys() - found.keys() == {name}
    assert all(np.array_equal(pixels, expected[path]) for path, pixels in found.items())
    assert list(found) == [path for path in expected if path != name]


def test_rejects_beyond_the_budget(damaged_source, tmp_path):
    with pytest.raises(TooManyRejectsError, match="0 are allowed"):
        warmup(damaged_source[1], tmp_path / "c", ops=OPS, workers=1, max_rejects=0)
    assert not (tmp_path / "c/manifest.json").exists()


@pytest.mark.parametrize("do", [warmup, preview_warmup])
def test_raw_images_become_a_dataset_first(do, photo_folder, tmp_path):
    (tmp_path / "table.csv").write_text("path,label\n1.jpg,cat\n")
    for images in (photo_folder, tmp_path / "table.csv", tmp_path / "nowhere"):
        with pytest.raises(DatasetNotFoundError) as caught:
            do(images, tmp_path / "c", size=SIDE, workers=1)
        assert f"tpufeed shard {images} DATASET, then tpufeed cache warmup DATASET CACHE" in str(caught.value)
    with pytest.raises(OptionError, match="'image_columns'; make a dataset of the images with"):
        warmup(photo_folder, tmp_path / "c", size=SIDE, image_columns={"mask": "mask:mask"})
    assert [path.name for path in tmp_path.iterdir()] == ["table.csv"]


@pytest.mark.parametrize("encode", ["raw", "jpeg"])
@pytest.mark.parametrize(
    ("text", "more"),
    [
        ([b"\xff", b"rose"], {}),
        ([b"1", b"0"], {"text": b"1"}),
        ([b"rose"], {"filename": [b"b.jpg", b"c.jpg"], "text": [b"x", b"y"]}),
    ],
    ids=["not UTF-8", "another number", "lists"],
)
def test_names_and_texts_of_other_tools_stay_as_they_are(text, more, encode, photo_files, tmp_path):
    """Records may lack them, hold several, or hold bytes that are not UTF-8."""
    photo = photo_files[0].read_bytes()
    features = [{"filename": b"a.jpg", "text": text[0]}, {"text": text[-1]}, more, {"text": b"rose"}]
    records = [encode_example({"image": photo, "label": n % 2} | each) for n, each in enumerate(features)]
    write_file(tmp_path / "d/train.tfrecord", records)
    tpufeed.adopt(tmp_path / "d")
    warmup(tmp_path / "d", tmp_path / "c", size=SIDE, encode=encode, workers=1)
    columns, found = ["filename", "text"], []
    for url in (tmp_path / "d", tmp_path / "c"):
        assert tpufeed.verify(url, decode="all").records == 4
        (chunk,) = iter_columns(open_dataset(url), "train", columns)
        found.append([chunk[name].tolist() for name in columns])
        if "filename" not in more:
            fill = {"filename": "?"} | ({} if more else {"text": "?"})
            with tpufeed.Loader(url, shuffle=False, batch_size=4, columns=columns, fill=fill) as loader:
                ((names, texts),) = loader
            found[-1] += [list(names), list(texts)]
            assert list(names) == ["a.jpg", "?", "?", "?"]
    assert found[0] == found[1]


def test_the_plan_is_json_and_nothing_is_pickled(source, tmp_path):
    done = warmup(source, tmp_path / "c", size=SIDE, workers=1)
    plan = (tmp_path / "c/_tpufeed/plan.jsonl").read_bytes()
    assert [type(json.loads(line)) for line in plan.splitlines()]
    for path in Path(done.url).rglob("*"):
        if path.is_file() and path.suffix not in (".tfrecord", ".npy"):
            assert all(
                isinstance(json.loads(text), dict)
                for text in ([path.read_text()] if path.suffix == ".json" else path.read_text().splitlines())
            )
