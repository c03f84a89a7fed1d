"""names="kaggle": shards that say how many records they hold, and the keys of Kaggle's TPU guides."""

import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import tpufeed
from tests.gcs_server import GcsServer
from tests.tfrecords import records_of
from tpufeed.errors import DuplicateWriterError, OptionError
from tpufeed.images import CenterCrop
from tpufeed.storage.store import open_store
from tpufeed.tfrecord.example import decode_example


def draw(folder: Path, names: list[str], seed: int = 0) -> Path:
    random = np.random.default_rng(seed)
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 255, (12, 12, 3), np.uint8)).save(folder / name)
    return folder


@pytest.fixture
def photos(tmp_path):
    """40 images of two classes, and a file that is not an image."""
    folder = draw(tmp_path / "photos", [f"{name}/{number}.png" for name in ("cat", "dog") for number in range(20)])
    (folder / "cat/broken.png").write_bytes(b"no image")
    return folder


@pytest.fixture
def flowers(photos, tmp_path):
    build(photos, tmp_path / "flowers")
    return tmp_path / "flowers"


def build(src, dst, **options):
    options = {"splits": "train=0.8,val=0.2", "shards": 3, "names": "kaggle", "workers": 1} | options
    return tpufeed.shard(src, dst, **options)


def counts_of(folder, split="train"):
    """What the guides' `count_data_items` adds up, by the number of the shard."""
    names = sorted(path.name for path in Path(folder).glob(f"{split}*.tfrec"))
    assert all(re.fullmatch(rf"{split}\d\d-\d+\.tfrec", name) for name in names)
    numbers = {int(name[len(split) :][:2]) for name in names}
    assert numbers == set(range(len(names)))
    return [int(re.search(r"-([0-9]*)\.", name)[1]) for name in names]


def pixels_of(url, split):
    options = {"batch_size": 1, "shuffle": False, "columns": ["image", "label", "filename"], "processes": 0}
    with tpufeed.Loader(url, split, ops=[CenterCrop(8)], **options) as loader:
        return {str(name[0]): (image.tobytes(), int(label[0])) for image, label, name in loader}


def test_the_names_count_what_was_taken_and_the_keys_are_the_guides(flowers):
    dataset = tpufeed.open_dataset(flowers)
    assert dataset.manifest.rejects == {"not_an_image": 1}
    for split in ("train", "val"):
        assert sum(counts_of(flowers, split)) == dataset.split(split).records
    assert sum(counts_of(flowers)) + sum(counts_of(flowers, "val")) == 40
    for record in dataset.iter_examples("train"):
        (path,), (label,) = record["id"].values, record["class"].values
        assert dataset.manifest.class_names[label] == bytes(path).decode().split("/")[0]
        assert bytes(record["image"].values[0]).startswith(b"\x89PNG")
        assert not {"image/encoded", "image/class/label", "image/filename"} & record.keys()


def test_the_usual_names_make_the_guides_count_wrong(photos, tmp_path):
    build(photos, tmp_path / "usual", names="tpufeed", shards=4)
    counts = [int(re.search(r"-([0-9]*)\.", path.name)[1]) for path in (tmp_path / "usual").glob("train-*.tfrecord")]
    assert counts == [4, 4, 4, 4]
    assert tpufeed.open_dataset(tmp_path / "usual").split("train").records > 16


@pytest.mark.all
def test_loaders_caches_and_verify_take_it_as_any_other(flowers, photos, tmp_path):
    build(photos, tmp_path / "usual", names="tpufeed")
    for split in ("train", "val"):
        assert pixels_of(flowers, split) == pixels_of(tmp_path / "usual", split)
    assert tpufeed.verify(flowers).records == 40
    for url in ("flowers", "usual"):
        tpufeed.cache.warmup(tmp_path / url, tmp_path / f"{url}-8", size=8, workers=1)
    assert tpufeed.verify(tmp_path / "flowers-8").records == 40
    assert pixels_of(tmp_path / "flowers-8", "train") == pixels_of(tmp_path / "usual-8", "train")


def test_a_build_that_was_cut_off_leaves_no_shard_of_another_count(flowers, photos):
    """A shard without a report, from a time at which more of its images could be read, is found by a glob as well."""
    before = {path.name: path.read_bytes() for path in flowers.glob("*.tfrec")}
    (flowers / "manifest.json").unlink()
    (flowers / "_tpufeed/reports/000001.json").unlink()
    (shard,) = flowers.glob("train01-*.tfrec")
    shard.rename(flowers / "train01-999.tfrec")
    result = build(photos, flowers)
    assert result.earlier_images == 40 - int(shard.stem.partition("-")[2])
    assert {path.name: path.read_bytes() for path in flowers.glob("*.tfrec")} == before


@pytest.mark.parametrize("state", ["finished", "cut off"])
def test_overwrite_removes_shards_of_every_count(state, flowers, photos):
    if state == "cut off":
        (flowers / "manifest.json").unlink()
    build(photos, flowers, shards=2, overwrite=True)
    assert len(counts_of(flowers)) == 2
    build(photos, flowers, names="tpufeed", overwrite=True)
    assert not list(flowers.glob("*.tfrec"))


@pytest.mark.all
def test_in_a_bucket_too_no_shard_of_another_count_is_left(photos):
    def shards():
        return {info.name: store.read(info.name) for info in store.iter_objects() if info.name.endswith(".tfrec")}

    with GcsServer(md5=False) as server, pytest.MonkeyPatch.context() as patch:
        for key, value in server.environment().items():
            patch.setenv(key, value)
        store = open_store("gs://bucket/flowers")
        build(photos, store.url)
        before = shards()
        name = next(name for name in before if name.startswith("train01-"))
        store.put("train01-999.tfrec", before[name])
        for gone in (name, "manifest.json", "_tpufeed/reports/000001.json"):
            store.delete(gone)
        build(photos, store.url)
        assert shards() == before
        build(photos, store.url, shards=2, overwrite=True)
        assert sum(name.startswith("train") for name in shards()) == 2


def test_files_of_other_programs_are_not_replaced(photos, tmp_path):
    (tmp_path / "flowers").mkdir()
    (tmp_path / "flowers/train00-7.tfrec").write_bytes(b"another program's")
    with pytest.raises(DuplicateWriterError, match=r"train00-7\.tfrec"):
        build(photos, tmp_path / "flowers")
    assert (tmp_path / "flowers/train00-7.tfrec").read_bytes() == b"another program's"


@pytest.mark.all
def test_it_grows_and_is_compacted_under_the_same_names(flowers, tmp_path):
    before = pixels_of(flowers, "train")
    for number in range(4):
        new = draw(tmp_path / f"new{number}", [f"cat/new{number}-{each}.png" for each in range(6)], number + 1)
        tpufeed.append(new, flowers, workers=1)
    with pytest.raises(OptionError, match="names"):
        build(new, flowers, names="tpufeed", append=True)
    with pytest.raises(OptionError, match="'image/encoded'"):
        build(new, flowers, names="tpufeed", append=True, allow_different=True)
    grown = pixels_of(flowers, "train")
    assert before.items() < grown.items()
    result = tpufeed.compact(flowers, workers=1)
    assert result.shards < result.shards_before
    assert pixels_of(flowers, "train") == grown
    dataset = tpufeed.open_dataset(flowers)
    for split in dataset.manifest.splits.values():
        for shard in split.variants[0].shards:
            assert shard.name.endswith(f"-{shard.records}.tfrec")
    assert tpufeed.verify(flowers).records == 64


def test_what_cannot_be(photos, tmp_path):
    with pytest.raises(OptionError, match="'webdataset'"):
        build(photos, tmp_path / "flowers", names="webdataset")
    with pytest.raises(OptionError, match="'fold1'"):
        build(photos, tmp_path / "flowers", splits="rest=0.5,fold1=0.5")
    rows = [{"path": str(path), "label": path.parent.name, "id": path.stem} for path in photos.glob("dog/*.png")]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(OptionError, match="'id'"):
        build(tmp_path / "rows.jsonl", tmp_path / "flowers", image="path", label="label")
    assert not (tmp_path / "flowers/manifest.json").exists()


GUIDE = {"image": "bytes", "class": "int64", "label": "bytes", "size": "int64", "one_hot_class": "float"}


def read_as_the_guide(folder, pattern="train*.tfrec"):
    """What the guide's reader of five flowers asks for, by the path of each image."""
    found = {}
    for path in Path(folder).glob(pattern):
        payloads = [payload for _, payload in records_of(path.read_bytes())]
        assert path.name.endswith(f"-{len(payloads)}.tfrec")
        for features in map(decode_example, payloads):
            assert {key: features[key].kind for key in GUIDE} == GUIDE
            image, number, text, size, one_hot = (features[key].values for key in GUIDE)
            assert Image.open(io.BytesIO(image[0])).size[::-1] == tuple(size)
            assert list(one_hot) == [float(each == number[0]) for each in range(len(one_hot))]
            found[bytes(features["id"].values[0]).decode()] = int(number[0]), bytes(text[0]).decode(), len(one_hot)
    return found


def test_the_reader_of_five_flowers_finds_all_its_keys(flowers):
    found = read_as_the_guide(flowers)
    assert {path.split("/")[0] for path in found} == {"cat", "dog"}
    assert all(
        (number, text, classes) == (text == "dog", path[:3], 2) for path, (number, text, classes) in found.items()
    )
    loader = tpufeed.Loader(flowers, batch_size=4, ops=[CenterCrop(8)], columns=["label", "image/class/one_hot"])
    for labels, one_hot in loader:
        np.testing.assert_array_equal(one_hot, np.eye(2)[labels])


@pytest.mark.all
@pytest.mark.parametrize("source", ["kaggle", "usual", "view"])
def test_a_cache_takes_the_names_whatever_its_source_has(source, flowers, photos, tmp_path):
    build(photos, tmp_path / "usual", names="tpufeed")
    src = {"kaggle": flowers, "usual": tmp_path / "usual"}.get(source)
    if source == "view":
        src = tpufeed.open_dataset(flowers).select(classes=["dog"])
    options = {"size": 8, "variants": 2, "encode": "jpeg", "names": "kaggle", "workers": 1}
    result = tpufeed.cache.warmup(src, tmp_path / "cache", **options)
    sides = [read_as_the_guide(tmp_path / "cache", f"{split}-v1-*.tfrec") for split in ("train", "val")]
    found = sides[0] | sides[1]
    assert len(found) == (20 if source == "view" else 40)
    if source == "view":
        assert set(found.values()) == {(0, "dog", 1)}
    else:
        assert all(value == (int(path[0] == "d"), path[:3], 2) for path, value in found.items())
    assert tpufeed.verify(tmp_path / "cache").records == 2 * len(found)
    assert tpufeed.cache.warmup(src, tmp_path / "cache", **options).manifest == result.manifest
    with tpufeed.Loader(tmp_path / "cache", batch_size=2, processes=0) as loader:
        assert next(iter(loader))[0].shape == (2, 8, 8, 3)
    (tmp_path / "cache/manifest.json").unlink()
    (tmp_path / "cache/_tpufeed/reports/000000.json").unlink()
    assert tpufeed.cache.warmup(src, tmp_path / "cache", **options).manifest.content_digest == (
        result.manifest.content_digest
    )
    usual = tpufeed.cache.warmup(tmp_path / "cache", tmp_path / "back", size=4, workers=1, allow_augmented=True)
    assert not {"image/size", "image/class/one_hot"} & {spec.name for spec in usual.manifest.features}


def test_a_cache_grows_under_the_names_of_the_guides(flowers, tmp_path):
    options = {"size": 8, "encode": "jpeg", "names": "kaggle", "workers": 1}
    tpufeed.cache.warmup(flowers, tmp_path / "cache", **options)
    tpufeed.append(draw(tmp_path / "new", [f"cow/{number}.png" for number in range(20)], 1), flowers, workers=1)
    assert tpufeed.cache.warmup(flowers, tmp_path / "cache", **options).manifest.number == 2
    found = read_as_the_guide(tmp_path / "cache/part-00002")
    assert set(found.values()) == {(2, "cow", 3)}
    assert tpufeed.verify(tmp_path / "cache").records == 60
    with tpufeed.Loader(tmp_path / "cache", batch_size=4, processes=0) as loader:
        assert len(loader.class_names) == 3
        assert {int(label) for _, labels in loader for label in labels} == {0, 1, 2}


def test_samples_without_labels_have_a_size_alone(tmp_path):
    build(draw(tmp_path / "flat", [f"{number}.png" for number in range(8)]), tmp_path / "dataset")
    tpufeed.cache.warmup(tmp_path / "dataset", tmp_path / "cache", size=8, encode="png", names="kaggle", workers=1)
    for url, side in (("dataset", 12), ("cache", 8)):
        for features in tpufeed.open_dataset(tmp_path / url).iter_examples("train"):
            assert list(features["size"].values) == [side, side]
            assert not {"class", "label", "one_hot_class"} & features.keys()
