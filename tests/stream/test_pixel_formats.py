"""Datasets of other pixel formats: from files to batches, caches, growth and mixtures."""

import cv2
import numpy as np
import pytest
import tifffile
from typer.testing import CliRunner

import tpufeed
from tests.sharding.outputs import rejects_of
from tpufeed.cli.app import app
from tpufeed.errors import OptionError
from tpufeed.images import (
    CenterCrop,
    ColorJitter,
    CutMix,
    GaussianBlur,
    Grayscale,
    HorizontalFlip,
    MixUp,
    RandAugment,
    RandomCrop,
    RandomErasing,
    RandomResizedCrop,
    Resize,
    Rotate,
    VerticalFlip,
)
from tpufeed.images.pipeline import Pipeline
from tpufeed.images.pixel_format import PixelFormat

KEEP = tpufeed.Images(pixels="keep")
FORMATS = [("uint16", 1), ("uint16", 13), ("float32", 4), ("uint8", 6)]
GEOMETRY = [RandomResizedCrop(24), HorizontalFlip(1.0), VerticalFlip(1.0), Rotate(30.0), RandomCrop(20, padding=3)]


def array_of(number, dtype, channels):
    top = 200 if dtype == "uint8" else 4095
    return np.random.default_rng(number).integers(0, top + 1, (40 + number % 5, 36, channels)).astype(dtype)


def write(folder, dtype="uint16", channels=13, count=20, start=0):
    for number in range(start, start + count):
        place = folder / f"class{number % 2}"
        place.mkdir(parents=True, exist_ok=True)
        np.save(place / f"{number:02d}.npy", array_of(number, dtype, channels))
    return folder


def make(folder, dtype, channels):
    tpufeed.shard(write(folder / "raw", dtype, channels), folder / "set", images=KEEP, workers=1, progress=False)


@pytest.fixture(params=FORMATS, ids=str)
def made(request, once):
    return once(make, *request.param) / "set", *request.param


@pytest.fixture
def bands(once):
    return once(make, "uint16", 13) / "set"


def read(url, **options):
    options = {"batch_size": 4, "processes": 0, "columns": None, "remainder": "drop"} | options
    return tpufeed.Loader(url, "train", **options)


def test_batches_have_the_values_of_the_files(made):
    url, dtype, channels = made
    manifest = tpufeed.open_dataset(url).manifest
    assert manifest.pixels == PixelFormat(dtype, channels)
    arrays = [array_of(number, dtype, channels) for number in range(20)]
    assert manifest.levels == (min(each.min() for each in arrays), max(each.max() for each in arrays))
    seen = 0
    for batch in read(url, ops=[CenterCrop(32)], columns=["image", "filename"]):
        images, names = batch
        assert (images.dtype, images.shape) == (dtype, (4, 32, 32, channels))
        for image, name in zip(images, names, strict=True):
            stored = array_of(int(str(name)[-6:-4]), dtype, channels)
            top = (len(stored) - 32) // 2
            assert np.array_equal(image, stored[top : top + 32, 2:34])
            seen += 1
    assert seen == 20


@pytest.mark.parametrize("op", [*GEOMETRY, ColorJitter(0.5, 0.5), RandomErasing(1.0), GaussianBlur(1.0, 1.0)], ids=repr)
def test_ops_do_to_each_channel_what_they_do_to_one(op, made):
    _, dtype, channels = made
    pixels = array_of(3, dtype, channels)
    alone = Pipeline([op], 0, pixels=PixelFormat(dtype, 1))
    together = Pipeline([op], 0, pixels=PixelFormat(dtype, channels))
    draws = [drawn[0] for drawn in together.draw(0, np.arange(1))]
    found = together.run(pixels, draws)
    out = np.zeros_like(found)
    assert together.run(pixels, draws, out) is out
    assert found.dtype == dtype
    assert np.array_equal(found, out)
    for channel in range(channels if dtype != "uint8" else 1):
        single = alone.run(np.ascontiguousarray(pixels[..., channel : channel + 1]), draws)
        # OpenCV takes other instructions for other numbers of channels.
        assert np.allclose(found[..., channel], single[..., 0], rtol=1e-5, atol=1 if dtype != "float32" else 1e-2)


@pytest.mark.parametrize(
    "op", [Grayscale(), RandAugment(), ColorJitter(hue=0.1), RandomCrop(8, 1, (1, 2, 3)), RandomErasing(value="random")]
)
def test_ops_of_colours_are_refused_by_name(op, bands):
    with pytest.raises(OptionError, match=type(op).__name__):
        iter(read(bands, ops=[Resize(32), CenterCrop(32), op]))


@pytest.mark.parametrize("op", [Grayscale(), GaussianBlur(), ColorJitter(saturation=0.1)], ids=repr)
def test_a_device_runs_what_it_can_on_every_format_and_refuses_others_by_name(op, bands):
    with pytest.raises(OptionError, match=type(op).__name__):
        iter(read(bands, ops=[CenterCrop(32)], device_ops=[op], columns="default"))


def test_images_are_mixed_in_their_format(made):
    url, dtype, _ = made
    plain = next(iter(read(url, ops=[CenterCrop(32)], columns="default")))[0]
    pasted, _ = next(iter(read(url, ops=[CenterCrop(32)], device_ops=[CutMix()], columns="default")))
    blended, labels = next(iter(read(url, ops=[CenterCrop(32)], device_ops=[MixUp()], columns="default")))
    assert pasted.dtype == blended.dtype == dtype
    swapped = plain[[1, 0, 3, 2]]
    assert ((pasted == plain) | (pasted == swapped)).all()
    assert (pasted != plain).any()
    assert (labels.dtype, labels.shape) == ("float32", (4, 2))
    low, high = np.minimum(plain, swapped), np.maximum(plain, swapped)
    assert ((blended >= low) & (blended <= high)).all()
    shares = (blended.astype(float) - swapped) / np.where(plain == swapped, np.nan, plain.astype(float) - swapped)
    middle = np.nanmedian(shares, (1, 2, 3))
    middle = middle[:, None, None, None]
    assert np.allclose(plain * middle + swapped * (1 - middle), blended, atol=9)


def test_views_masks_and_samples(bands):
    views = read(bands, views=[[RandomResizedCrop(24)], [RandomResizedCrop(16)]], columns=["image"])
    assert {name.shape for name in next(iter(views))} == {(4, 1, 24, 24, 13), (4, 1, 16, 16, 13)}
    sample = tpufeed.TFRecordImages(bands, "train", ops=[CenterCrop(8)])[0]
    assert np.asarray(sample[0]).shape == (8, 8, 13)


def test_cache_is_raw_and_keeps_the_format(tmp_path, made):
    url, dtype, channels = made
    tpufeed.cache.warmup(url, tmp_path, ops=[CenterCrop(24)], workers=1, progress=False)
    cache = tpufeed.open_dataset(tmp_path).manifest
    assert (cache.features[0].dtype, cache.features[0].shape) == (dtype, (24, 24, channels))
    for ops in ([], [CenterCrop(16)]):
        here = next(iter(read(url, ops=[CenterCrop(24), *ops], columns="default")))[0]
        assert np.array_equal(next(iter(read(tmp_path, ops=ops or None, columns="default")))[0], here)
    tpufeed.verify(tmp_path, decode="all")
    tpufeed.verify(url, decode="all")
    if (dtype, channels) == FORMATS[0]:
        with pytest.raises(OptionError, match="jpeg"):
            tpufeed.cache.warmup(url, tmp_path / "jpeg", ops=[CenterCrop(24)], encode="jpeg", workers=1)


def test_grows_by_its_format_alone(tmp_path):
    write(tmp_path / "raw")
    tpufeed.shard(tmp_path / "raw", tmp_path / "set", images=KEEP, workers=1, progress=False)
    with pytest.raises(OptionError, match="uint16 of 4 channels"):
        tpufeed.append(write(tmp_path / "four", channels=4), tmp_path / "set", workers=1, progress=False)
    tpufeed.append(write(tmp_path / "more", start=20), tmp_path / "set", workers=1, progress=False)
    manifest = tpufeed.open_dataset(tmp_path / "set").manifest
    assert (manifest.records, manifest.pixels) == ({"train": 40}, PixelFormat("uint16", 13))


def test_mixture_of_two_formats_is_refused(bands, once):
    other = once(make, "uint16", 1) / "set"
    with pytest.raises(OptionError, match="uint16"):
        iter(read(tpufeed.Mixture({str(bands): 1, str(other): 1}), ops=[Resize(32), CenterCrop(32)], columns="default"))


def write_lacking(folder, count=6, start=0):
    folder.mkdir(exist_ok=True)
    for number in range(start, start + count):
        array = np.maximum(array_of(number, "uint16", 4), 1)
        array[: number + 9, 3:20, number % 4] = 65535
        options = {"planarconfig": "contig", "extratags": [(42113, "s", 0, "65535", True)]}
        tifffile.imwrite(folder / f"{number}.tif", array, photometric="minisblack", **options)
    return folder


def test_the_mask_of_nodata_moves_with_its_image(tmp_path):
    policy = tpufeed.Images(pixels="keep", nodata="mask")
    options = {"label": "none", "images": policy, "workers": 1, "progress": False}
    tpufeed.shard(write_lacking(tmp_path / "raw"), tmp_path / "set", **options)
    tpufeed.append(write_lacking(tmp_path / "raw", 2, start=6), tmp_path / "set", workers=1, progress=False)
    tpufeed.cache.warmup(tmp_path / "set", tmp_path / "cache", ops=[CenterCrop(30)], workers=1, progress=False)
    ops = [RandomCrop(24), HorizontalFlip(), VerticalFlip()]
    seen = 0
    for url in (tmp_path / "set", tmp_path / "cache"):
        for images, masks in read(url, ops=ops, columns=["image", "nodata"]):
            assert (masks.dtype, masks.shape) == (np.uint8, (4, 24, 24))
            assert np.array_equal(masks, (images == 0).all(3))
            assert 0 < masks.mean() < 1
            seen += len(images)
    assert seen == 16
    tpufeed.verify(tmp_path / "set", decode="all")


def test_a_mask_of_nodata_that_cannot_be_is_refused_or_told(tmp_path, caplog):
    write_lacking(tmp_path / "raw", 2)
    (tmp_path / "t.csv").write_text("path,nodata\nraw/0.tif,3\n")
    options = {"label": "none", "images": tpufeed.Images(pixels="keep", nodata="mask"), "workers": 1, "progress": False}
    with pytest.raises(OptionError, match="--rename nodata"):
        tpufeed.shard(tmp_path / "t.csv", tmp_path / "set", **options)
    for wrong in ({}, {"pixels": "keep", "frames": 4}):
        with pytest.raises(OptionError, match="nodata"):
            tpufeed.Images(nodata="mask", **wrong)
    write(tmp_path / "others")
    result = tpufeed.shard(tmp_path / "others", tmp_path / "set", **options)
    assert any("-a_nodata" in said for said in result.warnings)


def test_others_are_rejected_or_the_build_refused(tmp_path):
    raw = write(tmp_path / "raw")
    np.save(raw / "class0" / "odd.npy", np.zeros((9, 9), np.float32))
    tpufeed.shard(raw, tmp_path / "set", images=KEEP, workers=1, progress=False)
    reason, message = rejects_of(tmp_path / "set")["class0/odd.npy"]
    assert reason == "other_pixels"
    assert "float32 of 1 channel" in message
    write(raw, "float32", 1, 10, start=30)
    with pytest.raises(OptionError, match=r"20 uint16 of 13 channels.*11 float32 of 1 channel"):
        tpufeed.shard(raw, tmp_path / "other", images=KEEP, workers=1, progress=False)
    cv2.imwrite(str(raw / "class1/grey.png"), np.zeros((9, 9), np.uint8))
    with pytest.raises(OptionError, match=r"1 8-bit grey or RGB, like class1/grey\.png"):
        tpufeed.shard(raw, tmp_path / "other", images=KEEP, workers=1, progress=False)


def test_a_dry_run_says_the_format(tmp_path):
    command = ["shard", str(write(tmp_path / "raw", count=4)), str(tmp_path / "set"), "--pixels", "keep", "--dry-run"]
    assert "pixels: uint16 of 13 channels\n" in CliRunner().invoke(app, command).stdout


def test_8_bit_files_are_stored_as_ever(tmp_path):
    for number in range(4):
        (tmp_path / "raw").mkdir(exist_ok=True)
        cv2.imwrite(str(tmp_path / "raw" / f"{number}.jpg"), array_of(number, "uint8", 3))
    for name, images in (("keep", KEEP), ("rgb8", None)):
        tpufeed.shard(tmp_path / "raw", tmp_path / name, images=images, workers=1, progress=False)
    one, other = (tpufeed.open_dataset(tmp_path / name) for name in ("keep", "rgb8"))
    assert one.content_digest == other.content_digest
    assert b'"pixels"' not in (tmp_path / "rgb8" / "manifest.json").read_bytes()


def test_what_is_lost_is_said(tmp_path):
    (tmp_path / "raw").mkdir()
    cv2.imwrite(str(tmp_path / "raw" / "a.png"), array_of(0, "uint16", 1))
    tpufeed.shard(tmp_path / "raw", tmp_path / "set", label="none", workers=1, progress=False)
    manifest = tpufeed.open_dataset(tmp_path / "set").manifest
    assert any("--pixels keep" in line for line in manifest.listed.iter_lines(manifest.sizes, manifest.odd))
