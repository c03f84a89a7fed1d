"""Labels that a dataset does not declare: every loader names the record before a framework trains on it."""

import json
import logging
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import tpufeed
from tests.frameworks import lazy
from tpufeed.errors import OptionError, RecordError
from tpufeed.images import CenterCrop

torch = lazy("torch")

NAMES = ("ant", "bee", "cow")
SAID = r"train-.*tfrecord, record \d+: its label is 2, and the dataset declares 2 classes, 0 to 1\."


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """Datasets of three classes: JPEGs, the raw pixels of a cache, and samples with lists of labels."""
    folder, random = tmp_path_factory.mktemp("labels"), np.random.default_rng(0)
    rows = []
    for number in range(24):
        path = folder / "photos" / NAMES[number % 3] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 255, (16, 16, 3), np.uint8)).save(path)
        rows.append({"path": str(path), "labels": [NAMES[number % 3], "ant"] if number % 3 else ["ant"]})
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    tpufeed.shard(folder / "photos", folder / "jpegs", workers=1)
    tpufeed.cache.warmup(folder / "jpegs", folder / "raw", ops=[CenterCrop(16)], workers=1)
    tpufeed.shard(folder / "rows.jsonl", folder / "lists", image="path", label="labels", workers=1)
    return folder


@pytest.fixture(scope="module")
def wrong(sound):
    """The same, and their manifests declare two classes."""
    for name in ("jpegs", "raw", "lists"):
        shutil.copytree(sound / name, sound / "wrong" / name)
        path = sound / "wrong" / name / "manifest.json"
        manifest = json.loads(path.read_text())
        manifest["class_names"] = manifest["class_names"][:2]
        for split in manifest["splits"].values():
            split["class_counts"] = split["class_counts"][:2]
        path.write_text(json.dumps(manifest))
    return sound / "wrong"


def make(folder, name, **options):
    ops = {} if name == "raw" else {"ops": [CenterCrop(16)]}
    return tpufeed.Loader(folder / name, batch_size=8, **({"processes": 0} | ops | options))


FEEDS = {
    "numpy": lambda loader: loader,
    "torch": lambda loader: loader.to_torch(),
    "device": lambda loader: loader.to_device("cpu"),
    "jax": lambda loader: loader.to_jax(),
    "tf": lambda loader: loader.to_tf(),
    "tf, direct": lambda loader: loader.to_tf(direct=True),
    "keras": lambda loader: loader.to_keras(),
}


@pytest.mark.first_cases(5)
@pytest.mark.xdist_group("frameworks")
@pytest.mark.parametrize("feed", FEEDS)
@pytest.mark.parametrize("name", ["jpegs", "raw"])
def test_every_feed_names_the_record(wrong, sound, name, feed):
    with pytest.raises(Exception, match=r"train-.*tfrecord, record \d+: .*(its label is 2|2 classes)") as caught:
        for _ in FEEDS[feed](make(wrong, name)):
            pass
    if feed in ("numpy", "torch", "device", "jax"):
        assert isinstance(caught.value, RecordError)
    given = FEEDS[feed](make(sound, name))
    assert tuple(given.class_names) == NAMES
    assert sum(1 for _ in given) == 3


@pytest.mark.all
@pytest.mark.parametrize("name", ["jpegs", "raw", "lists"])
def test_worker_processes_too(wrong, name):
    with make(wrong, name, processes=1) as loader, pytest.raises(RecordError, match=SAID):
        list(loader)


@pytest.mark.parametrize("form", ["ids", "multi_hot"])
def test_lists_of_labels(wrong, sound, form):
    with pytest.raises(RecordError, match=SAID):
        list(make(wrong, "lists", label_format=form))
    assert len(list(make(sound, "lists", label_format=form))) == 3


@pytest.mark.all
@pytest.mark.uses("torch")
def test_samples_by_number(wrong, sound):
    for open_samples in (tpufeed.TFRecordImages, tpufeed.grain_source):
        samples = open_samples(wrong / "raw")
        assert samples.class_names == NAMES[:2]
        with pytest.raises(RecordError, match=SAID):
            [samples[number] for number in range(24)]
    images = tpufeed.TFRecordImages(sound / "raw")
    assert {type(images[number][1]) for number in range(24)} == {int}
    own = tpufeed.device_loader(torch.utils.data.DataLoader(images, batch_size=8), "cpu")
    assert own.class_names == NAMES


def test_a_mixture_and_a_view(wrong, sound):
    mixture = tpufeed.Mixture({sound / "raw": 0.5, wrong / "raw": 0.5})
    with pytest.raises(RecordError, match=SAID):
        list(tpufeed.Loader(mixture, batch_size=8, processes=0))
    view = tpufeed.open_dataset(wrong / "raw").select(fold=(0, 2))
    with pytest.raises(RecordError, match=SAID):
        list(tpufeed.Loader(view, batch_size=1, processes=0))


def test_they_are_bad_records_which_may_be_skipped(wrong, caplog):
    with caplog.at_level(logging.WARNING):
        batches = list(make(wrong, "jpegs", max_bad_records=8))
    assert sum(int((~mask).sum()) for _, _, mask in batches) == 8
    assert max(int(label.max()) for _, label, _ in batches) == 1
    assert "its label is 2" in caplog.text
    assert len(list(make(wrong, "jpegs", columns=["image"]))) == 3  # nobody asks for labels


@pytest.mark.parametrize("name", ["jpegs", "lists"])
def test_a_cache_is_not_made_of_them(wrong, tmp_path, name):
    with pytest.raises(RecordError, match=r"sample \d+ of split 'train': its label is 2"):
        tpufeed.cache.warmup(wrong / name, tmp_path / "cache", size=8, workers=1)
    assert not Path(tmp_path / "cache/manifest.json").exists()


def test_labels_without_names_may_be_any(sound, tmp_path):
    shutil.copytree(sound / "lists", tmp_path / "unnamed")
    path = tmp_path / "unnamed/manifest.json"
    manifest = json.loads(path.read_text())
    for split in manifest["splits"].values():
        split["class_counts"] = []
    path.write_text(json.dumps(manifest | {"class_names": []}))
    loader = make(tmp_path, "unnamed")
    assert loader.class_names == ()
    assert max(int(label.max()) for _, label, _ in loader) == 2
    with pytest.raises(OptionError, match="multi_hot"):
        make(tmp_path, "unnamed", label_format="multi_hot")
