"""Caches of DCT coefficients: whole images as of JPEGs, and damage, growth and quality as in any cache."""

import io
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import tpufeed
from tests.conftest import make_photos
from tests.tfrecords import encode_record, records_of
from tpufeed import Loader
from tpufeed.cache import warmup
from tpufeed.cli.app import app
from tpufeed.dataset.reader import open_dataset
from tpufeed.errors import DatasetExistsError, OptionError, RecordError
from tpufeed.images import CenterCrop, HorizontalFlip, Resize
from tpufeed.images._restart import pack

WHOLE = {"ops": [Resize((32, 48))], "workers": 1}


@pytest.fixture(scope="module")
def cached(source, tmp_path_factory):
    return warmup(source, tmp_path_factory.mktemp("dct") / "cache", encode="dct", **WHOLE)


def images_of(url, **options):
    options = {"split": "train", "shuffle": False, "columns": ["image"], "batch_size": 8, "processes": 0} | options
    with Loader(url, **options) as loader:
        return np.concatenate(list(loader))


def test_pixels_are_those_of_a_cache_of_jpegs(cached, source, tmp_path):
    jpegs = warmup(source, tmp_path / "jpeg", encode="jpeg", **WHOLE)
    images, files = images_of(cached.url), open_dataset(jpegs.url).iter_examples("train", 0)
    for pixels, features in zip(images, files, strict=False):  # the last batch is not full
        (file,) = features["image/encoded"].values
        np.testing.assert_array_equal(pixels, Image.open(io.BytesIO(file)))
    flipped = images_of(cached.url, ops=[HorizontalFlip(1.0)])
    np.testing.assert_array_equal(flipped, images[:, :, ::-1])
    single = tpufeed.TFRecordImages(cached.url, split="train", columns=["image"])
    np.testing.assert_array_equal(np.asarray(single[0]), images[0])
    assert tpufeed.verify(cached.url, decode="all").records == cached.images
    (info,) = [open_dataset(cached.url).manifest.cache]
    assert (info.encode, info.shape) == ("dct", (32, 48, 3))


def test_info_and_show_know_it(cached, tmp_path):
    for arguments in (["info", cached.url], ["show", cached.url, "--split", "train", "--out", str(tmp_path / "a.png")]):
        done = CliRunner().invoke(app, arguments)
        assert done.exit_code == 0, done.output
    assert "dct, quality 90" in CliRunner().invoke(app, ["info", cached.url]).output


def test_a_record_that_does_not_decode_is_named_and_counted(cached, tmp_path):
    url = tmp_path / "damaged"
    shutil.copytree(cached.url, url)
    name = open_dataset(url).manifest.splits["train"].variants[0].shards[0].name
    records = [bytearray(payload) for _, payload in records_of((url / name).read_bytes())]
    at = records[3].index(b"\x89DCT")
    records[3][at + 8] ^= 16  # its height
    (url / name).write_bytes(b"".join(map(encode_record, records)))
    with pytest.raises(RecordError, match=f"{name}.*DCT image"):
        images_of(url)
    with Loader(url, split="train", columns=["image"], batch_size=8, processes=0, max_bad_records=1) as loader:
        masks = [mask for _, mask in loader]
    assert sum(int((~mask).sum()) for mask in masks) == 1


def test_images_of_any_kind_become_colours_of_8_bits(tmp_path):
    folder, rng = tmp_path / "photos" / "a", np.random.default_rng(0)
    folder.mkdir(parents=True)
    colours = Image.fromarray(rng.integers(0, 256, (6, 9, 3), np.uint8)).resize((90, 60))
    colours.convert("RGBA").save(folder / "bands.png")
    colours.convert("CMYK").save(folder / "cmyk.jpg")
    colours.convert("L").save(folder / "grey.jpg")
    Image.fromarray(np.asarray(colours.convert("L")).astype(np.uint16) * 257).save(folder / "deep.png")
    colours.save(folder / "picture.webp", lossless=True)
    tpufeed.shard(folder.parent, tmp_path / "data", workers=1)
    made = [
        images_of(warmup(tmp_path / "data", tmp_path / encode, encode=encode, **WHOLE).url, batch_size=5)
        for encode in ("raw", "dct")
    ]
    assert np.abs(np.subtract(*made, dtype=int)).mean() < 5


def test_without_the_extension_it_is_refused(cached, source, tmp_path, monkeypatch):
    monkeypatch.setattr("tpufeed.cache.options.CAN_REWRITE", False)
    with pytest.raises(OptionError, match="C extension"):
        warmup(source, tmp_path / "cache", encode="dct", **WHOLE)
    monkeypatch.setattr("tpufeed.images.coefficients.CAN_REWRITE", False)
    with pytest.raises(RecordError, match="C extension"):
        images_of(cached.url)


def coded_of(url):
    for features in open_dataset(url).iter_examples("train", 0):
        yield bytes(features["image/encoded"].values[0])


def test_a_jpeg_that_no_op_changes_keeps_its_coefficients(tmp_path):
    make_photos(tmp_path / "photos", 6)
    images = tpufeed.Images(presize=32, presize_mode="fit", quality=90)
    url = tpufeed.shard(tmp_path / "photos", tmp_path / "data", images=images, workers=1).url
    jpegs = [pack(file, 1 << 20) for file in coded_of(url)]
    assert len(jpegs) == 6
    for name, options in {
        "kept": {"ops": [Resize((32, 32)), CenterCrop(32)]},
        "quality": {"ops": [Resize((32, 32))], "quality": 80},
        "flipped": {"ops": [HorizontalFlip(1.0), Resize((32, 32))]},
        "between": {"ops": [Resize(48), Resize((32, 32))]},
    }.items():
        warmup(url, tmp_path / name, encode="dct", workers=1, **options)
        found = list(coded_of(tmp_path / name))
        assert [one == other for one, other in zip(found, jpegs, strict=True)] == [name == "kept"] * 6


def test_it_grows_with_its_own_quality_alone(tmp_path):
    make_photos(tmp_path / "a", 12)
    make_photos(tmp_path / "b", 15)
    url, cache = tmp_path / "data", tmp_path / "cache"
    tpufeed.shard(tmp_path / "a", url, workers=1)
    warmup(url, cache, encode="dct", **WHOLE)
    tpufeed.append(tmp_path / "b", url, workers=1)
    with pytest.raises(DatasetExistsError, match="quality"):
        warmup(url, cache, encode="dct", quality=80, **WHOLE)
    grown = warmup(url, cache, encode="dct", **WHOLE)
    assert grown.manifest.number == 2
    at_once = warmup(url, tmp_path / "at-once", encode="dct", **WHOLE)
    one, other = (np.sort(images_of(each.url).reshape(-1, 32 * 48 * 3), axis=0) for each in (grown, at_once))
    np.testing.assert_array_equal(one, other)
    assert Path(cache, "manifest.json").exists()
