"""`tpufeed.shard` from one end to the other."""

import io
import json
import os
import re
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

import tpufeed
from tests.frameworks import lazy
from tpufeed.builds.run import BuildProgress
from tpufeed.dataset.reader import open_dataset
from tpufeed.errors import (
    BuildError,
    DatasetExistsError,
    DatasetNotFoundError,
    DuplicateWriterError,
    OptionError,
    TooManyRejectsError,
)
from tpufeed.storage.memory import MemoryStore

tf = lazy("tensorflow")

FEATURES = {  # types by their names
    "image/encoded": "string",
    "image/format": "string",
    "image/height": "int64",
    "image/width": "int64",
    "image/channels": "int64",
    "image/filename": "string",
    "image/class/label": "int64",
    "image/class/text": "string",
}


def by_tensorflow(folder):
    """What TensorFlow finds in the shards, in their order: features by file name."""
    shards = sorted(map(str, Path(folder).glob("*.tfrecord")))
    found = {}
    for record in tf.data.TFRecordDataset(shards):
        sample = {key.removeprefix("image/"): value.numpy() for key, value in parse(record).items()}
        name = sample["filename"].decode()
        assert name not in found
        found[name] = sample
    return found


def parse(record):
    features = {name: tf.io.FixedLenFeature([], kind) for name, kind in FEATURES.items()}
    return tf.io.parse_single_example(record, features)


def rejects_of(folder):
    return [json.loads(line) for line in Path(folder, "rejects.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def odd_build(odd_folder, tmp_path_factory):
    url = tmp_path_factory.mktemp("odd") / "dataset"
    return tpufeed.shard(odd_folder, url, shard_bytes="60KB", splits="train=0.6,val=0.4", workers=1)


@pytest.mark.uses("tensorflow")
def test_tensorflow_reads_every_sound_image_once(odd_build, odd_files):
    assert by_tensorflow(odd_build.url).keys() == odd_files["kept"].keys() | odd_files["changed"].keys()


@pytest.mark.uses("tensorflow")
def test_plain_images_keep_their_own_bytes(odd_build, odd_files):
    found = by_tensorflow(odd_build.url)
    for name, data in odd_files["kept"].items():
        image = Image.open(io.BytesIO(data))
        sample = found[name]
        assert sample["encoded"] == data
        assert sample["format"].decode() == image.format.lower()
        assert (sample["width"], sample["height"]) == image.size
        assert sample["channels"] == len(image.getbands())


@pytest.mark.uses("tensorflow")
def test_pixels_by_tensorflow_are_those_of_the_files(odd_build, odd_files):
    """Equal if the bytes were kept, nearly equal if they were encoded again; upright, and without alpha."""
    for name, sample in by_tensorflow(odd_build.url).items():
        data = {**odd_files["kept"], **odd_files["changed"]}[name]
        expected = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB"), np.int16)
        if sample["format"] == b"jpeg":
            found = tf.io.decode_jpeg(sample["encoded"], 3, dct_method="INTEGER_ACCURATE").numpy()
        elif sample["format"] == b"webp":
            found = np.asarray(Image.open(io.BytesIO(sample["encoded"])).convert("RGB"))  # TensorFlow has no decoder
        else:
            found = tf.io.decode_png(sample["encoded"], 3).numpy()
        assert found.shape == (sample["height"], sample["width"], 3) == expected.shape
        exact = name in odd_files["kept"] or name == "coffee/alpha.png"
        difference = np.abs(found - expected)
        assert difference.max() == 0 if exact else difference.mean() < 4, name


@pytest.mark.uses("tensorflow")
def test_labels_are_those_of_the_folders(odd_build):
    assert open_dataset(odd_build.url).manifest.class_names == ("cat", "coffee")
    for name, sample in by_tensorflow(odd_build.url).items():
        assert sample["class/text"].decode() == name.split("/")[0]
        assert sample["class/label"] == ["cat", "coffee"].index(name.split("/")[0])


def test_rejects_are_listed_with_path_reason_and_message(odd_build, odd_files):
    lines = rejects_of(odd_build.url)
    assert {line["path"]: line["reason"] for line in lines} == {
        "cat/broken scan.jpg": "unreadable",
        "cat/truncated.jpg": "truncated",
        "cat/empty.jpg": "zero_bytes",
        "coffee/text.jpg": "not_an_image",
        "coffee/broken.png": "unreadable",
        "coffee/half.png": "truncated",
    }
    assert len(lines) == len(odd_files["refused"])
    assert all(line["message"] for line in lines)


@pytest.mark.uses("tensorflow")
def test_the_manifest_counts_what_is_there(odd_build, odd_files):
    manifest = open_dataset(odd_build.url).manifest
    found = by_tensorflow(odd_build.url)
    assert sum(split.records for split in manifest.splits.values()) == len(found) == odd_build.images
    for name, split in manifest.splits.items():
        shards = sorted(map(str, Path(odd_build.url).glob(f"{name}-*.tfrecord")))
        records = [parse(record)["image/class/label"].numpy() for record in tf.data.TFRecordDataset(shards)]
        assert split.records == len(records)
        assert split.class_counts == tuple(np.bincount(records, minlength=2))
        assert [shard.name for shard in split.variants[0].shards] == [Path(shard).name for shard in shards]
    assert manifest.rejects == {"not_an_image": 1, "truncated": 2, "unreadable": 2, "zero_bytes": 1}
    assert odd_build.rejects == len(odd_files["refused"])
    assert manifest.images == {"jpeg": 3, "jpeg, encoded anew": 2, "png": 2, "png, encoded anew": 1, "webp": 1}
    assert manifest.odd == {"alpha": 1, "cmyk": 1, "exif": 1, "greyscale": 2}
    assert sum(odd_build.listed.ignored_files.values()) == 1
    assert tpufeed.verify(odd_build.url).records == len(found)


def test_header_check_takes_what_only_a_decoder_would_refuse(odd_folder, tmp_path):
    result = tpufeed.shard(odd_folder, tmp_path / "d", images=tpufeed.Images(check="header"), workers=1)
    refused = {line["path"] for line in rejects_of(result.url)}
    assert "cat/broken scan.jpg" not in refused
    assert {"cat/truncated.jpg", "cat/empty.jpg", "coffee/text.jpg"} <= refused


@pytest.mark.all
def test_any_number_of_workers_makes_the_same_bytes(photo_folder, odd_folder, bytes_of, tmp_path):
    shutil.copytree(photo_folder, tmp_path / "photos")
    shutil.copytree(odd_folder, tmp_path / "photos", dirs_exist_ok=True)

    def build(workers):
        return tpufeed.shard(
            *(tmp_path / "photos", tmp_path / f"{workers}"),
            **{
                "shard_bytes": "60KB",
                "splits": "train=0.8,val=0.2",
                "workers": workers,
                "images": tpufeed.Images(presize=64),
            },
        )

    one, three = build(1), build(3)
    assert len(bytes_of(one.url)) > 5
    assert bytes_of(one.url) == bytes_of(three.url)
    assert one.manifest.content_digest == three.manifest.content_digest
    assert one.manifest.run_id != three.manifest.run_id
    assert one.rejects == three.rejects > 0


@pytest.mark.all
def test_a_build_into_memory_and_through_fsspec_is_the_same(photo_folder, bytes_of, tmp_path):
    local = tpufeed.shard(photo_folder, tmp_path / "local", shard_bytes="200KB", workers=1)
    through = tpufeed.shard(photo_folder, f"local://{tmp_path}/fsspec", shard_bytes="200KB", workers=2)
    memory = tpufeed.shard(photo_folder, f"memory://{tmp_path}", shard_bytes="200KB")
    assert through.url.startswith("local://")
    assert bytes_of(tmp_path / "fsspec") == bytes_of(local.url)
    store = MemoryStore(memory.url)
    assert {name: store.read(name) for name in bytes_of(local.url)} == bytes_of(local.url)
    for result in (through, memory):
        assert tpufeed.verify(result.url).records == 90
        assert open_dataset(result.url).content_digest == local.manifest.content_digest


def test_all_rejected_is_an_error_and_no_dataset(odd_files, tmp_path):
    for name, data in odd_files["refused"].items():
        path = tmp_path / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    with pytest.raises(BuildError, match="6 images"):
        tpufeed.shard(tmp_path / "photos", tmp_path / "d", workers=1)
    assert len(rejects_of(tmp_path / "d")) == 6
    assert not (tmp_path / "d/manifest.json").exists()
    with pytest.raises(DatasetNotFoundError):
        open_dataset(tmp_path / "d")


def state_of(folder):
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()}


def test_a_finished_dataset_is_recognised_and_not_touched(photo_folder, tmp_path):
    first = tpufeed.shard(photo_folder, tmp_path / "d", workers=1)
    before = state_of(tmp_path / "d")
    again = tpufeed.shard(photo_folder, tmp_path / "d", workers=2)
    assert (again.manifest, again.images, again.earlier_images, again.seconds) == (first.manifest, 90, 90, 0)
    assert state_of(tmp_path / "d") == before


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"seed": 1}, DuplicateWriterError, "seed"),
        ({"images": tpufeed.Images(check="header")}, DuplicateWriterError, "check"),
        ({}, DatasetExistsError, "90 inputs"),
    ],
    ids=["seed", "check", "source"],
)
def test_another_finished_dataset_is_not_touched(options, error, message, photo_folder, tmp_path):
    shutil.copytree(photo_folder, tmp_path / "photos")
    tpufeed.shard(tmp_path / "photos", tmp_path / "d", workers=1)
    before = state_of(tmp_path / "d")
    first, second, *_, last = sorted(
        str(path.relative_to(tmp_path / "photos")) for path in (tmp_path / "photos").glob("*/*.jpg")
    )
    if not options:
        os.utime(tmp_path / "photos" / second, ns=(0, 0))
        os.utime(tmp_path / "photos" / last, ns=(0, 0))
        (tmp_path / "photos" / first).rename(tmp_path / "photos" / f"{first}.png")
    with pytest.raises(error, match=message):
        tpufeed.shard(tmp_path / "photos", tmp_path / "d", workers=1, **options)
    assert state_of(tmp_path / "d") == before


def test_a_finished_dataset_without_its_plan_is_not_touched(photo_folder, tmp_path):
    tpufeed.shard(photo_folder, tmp_path / "d", workers=1)
    (tmp_path / "d/_tpufeed/plan.jsonl").unlink()
    before = state_of(tmp_path / "d")
    with pytest.raises(DatasetExistsError, match=r"plan\.jsonl"):
        tpufeed.shard(photo_folder, tmp_path / "d", workers=1)
    assert state_of(tmp_path / "d") == before


def test_too_many_rejects_are_an_error_and_no_dataset_until_they_are_allowed(odd_folder, odd_files, bytes_of, tmp_path):
    with pytest.raises(TooManyRejectsError, match="15 inputs"):
        tpufeed.shard(odd_folder, tmp_path / "d", workers=1, shard_bytes="60KB", max_rejects=2)
    assert not (tmp_path / "d/manifest.json").exists()
    assert len(rejects_of(tmp_path / "d")) > 2
    seen = list[BuildProgress]()
    options = {"workers": 1, "shard_bytes": "60KB", "max_rejects": "40%", "listener": seen.append}
    result = tpufeed.shard(odd_folder, tmp_path / "d", **options)
    assert result.rejects == len(odd_files["refused"]) == 6
    assert seen[0].rejects == seen[0].earlier_rejects > 2
    assert seen[-1].images + seen[-1].rejects == seen[-1].total_images
    assert result.earlier_images > 0
    fresh = tpufeed.shard(odd_folder, tmp_path / "fresh", workers=1, shard_bytes="60KB")
    assert bytes_of(result.url) == bytes_of(fresh.url)


@pytest.mark.parametrize(
    ("options", "warning"),
    [
        ({"hosts": 100}, r"train .*\(90\).*\(100\)"),
        ({"shard_bytes": "100KB"}, "train .*11 shards"),
    ],
)
def test_what_would_serve_training_better_is_said(options, warning, photo_folder, tmp_path):
    warnings = tpufeed.shard(photo_folder, tmp_path / "d", workers=1, **options).warnings
    assert any(re.search(warning, found) for found in warnings), warnings


def test_unlabelled_images(photo_folder, tmp_path):
    (tmp_path / "flat").mkdir()
    for path in sorted(photo_folder.glob("*/*.jpg"))[:8]:
        shutil.copy(path, tmp_path / "flat")
    manifest = tpufeed.shard(tmp_path / "flat", tmp_path / "d", workers=1).manifest
    assert (manifest.class_names, manifest.labelled, manifest.splits["train"].class_counts) == ((), False, ())
    assert tpufeed.verify(tmp_path / "d").records == 8
    for features in open_dataset(tmp_path / "d").iter_examples("train"):
        assert {"image/encoded", "image/filename", "image/height"} <= features.keys()
        assert not any("class" in name for name in features)


def test_a_split_without_images_counts_zero_of_each_class_and_is_said(photo_folder, tmp_path):
    result = tpufeed.shard(photo_folder, tmp_path / "d", splits="train=0.999999,val=0.000001", workers=1)
    manifest = result.manifest
    assert any("split val" in said for said in result.warnings)
    assert manifest.splits["val"].records == 0
    assert manifest.splits["val"].class_counts == (0, 0, 0)
    assert tpufeed.verify(tmp_path / "d").records == 90


@pytest.mark.uses("tensorflow")
def test_presize_shrinks_the_short_side_and_keeps_what_is_small(photo_files, tmp_path):
    (tmp_path / "photos/a").mkdir(parents=True)
    sizes = {}
    for file in photo_files:
        shutil.copy(file, tmp_path / "photos/a")
        sizes[f"a/{file.name}"] = Image.open(file).size
    small = tmp_path / "photos/a/small.jpg"
    Image.open(photo_files[0]).convert("RGB").resize((90, 63)).save(small)
    tpufeed.shard(tmp_path / "photos", tmp_path / "d", images=tpufeed.Images(presize=64), workers=1)
    found = by_tensorflow(tmp_path / "d")
    assert found.pop("a/small.jpg")["encoded"] == small.read_bytes()
    assert found.keys() == sizes.keys()
    for name, sample in found.items():
        width, height = sizes[name]
        stored = Image.open(io.BytesIO(sample["encoded"]))
        assert stored.size == (sample["width"], sample["height"])
        assert min(stored.size) == 64
        assert max(stored.size) == round(max(width, height) * 64 / min(width, height))
        assert stored.format.lower() == Image.open(tmp_path / "photos" / name).format.lower()


def test_a_file_that_may_not_be_read_is_rejected(photo_folder):
    outer = Path(tempfile.mkdtemp())  # pytest's own folders are locked to others as a whole
    root = os.geteuid() == 0
    try:
        shutil.copytree(photo_folder / "cat", outer / "photos/cat")
        outer.chmod(0o755)
        locked = min((outer / "photos/cat").glob("*.jpg"))
        locked.chmod(0)
        if root:
            os.seteuid(65534)  # permission bits do not bite for root
        result = tpufeed.shard(outer / "photos", f"memory://{outer}")
        assert result.manifest.rejects == {"unreadable": 1}
        (line,) = MemoryStore(result.url).read("rejects.jsonl").splitlines()
        assert json.loads(line)["path"] == f"cat/{locked.name}"
        assert "Permission denied" in json.loads(line)["message"]
    finally:
        if root:
            os.seteuid(0)
        shutil.rmtree(outer)


def test_a_source_whose_path_is_not_utf8_is_refused(photo_folder, tmp_path):
    source = tmp_path / "ph\udcfftos"
    shutil.copytree(photo_folder, source)
    with pytest.raises(tpufeed.errors.SourceError, match=r"\\udcfftos"):
        tpufeed.shard(source, tmp_path / "d", workers=1)
    assert not (tmp_path / "d").exists()


def test_a_dataset_never_takes_the_place_of_its_source(photo_folder):
    before = sorted(path.name for path in photo_folder.iterdir())
    with pytest.raises(OptionError, match="itself"):
        tpufeed.shard(photo_folder, f"{photo_folder}/", workers=1)
    assert sorted(path.name for path in photo_folder.iterdir()) == before
