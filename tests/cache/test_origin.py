"""The dataset that a cache is made of."""

import json
from pathlib import Path

import numpy as np
import pytest

import tpufeed
from tests.sharding.previews import preview_warmup
from tpufeed.cache import warmup
from tpufeed.dataset.reader import open_dataset
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
