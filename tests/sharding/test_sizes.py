"""Sizes of images in the manifest: what `info` shows, and what presizing warns of."""

import json
import statistics

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import tpufeed
from tpufeed.cli.app import app
from tpufeed.dataset.manifest import Sizes

SIDES = [(20, 30), (40, 24), (50, 50), (26, 26), (48, 22), (60, 90)]


def draw(folder, sides, start=0):
    random = np.random.default_rng(start)
    for number, (height, width) in enumerate(sides, start):
        path = folder / "ab"[number % 2] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 255, (height, width, 3), np.uint8)).save(path)
    return folder


def ask(*words):
    done = CliRunner().invoke(app, [str(word) for word in words], prog_name="tpufeed")
    assert done.exit_code == 0, done.output
    return done


@pytest.mark.parametrize("sides", [SIDES, SIDES[:1], SIDES[:2], [*SIDES, (7, 9)]])
def test_they_are_those_of_the_images(tmp_path, sides):
    dataset = tpufeed.shard(draw(tmp_path / "photos", sides), tmp_path / "dataset", shards=2, workers=1)
    heights, widths = zip(*sides, strict=True)
    assert dataset.manifest.sizes == Sizes(
        (min(heights), min(widths)),
        (statistics.median_low(heights), statistics.median_low(widths)),
        (max(heights), max(widths)),
    )
    assert dataset.manifest.image_size == (sides[0] if len(sides) == 1 else None)
    for shard in (tmp_path / "dataset").glob("*.tfrecord"):
        (tmp_path / "foreign").mkdir(exist_ok=True)
        (tmp_path / "foreign" / shard.name).write_bytes(shard.read_bytes())
    assert tpufeed.adopt(tmp_path / "foreign").manifest.sizes == dataset.manifest.sizes


def test_adopted_sizes_are_those_that_loaders_see(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(4):
        Image.new("RGB", (30, 20)).save(folder / f"{number}.jpg", exif=exif)
    tpufeed.shard(folder, tmp_path / "kept", images=tpufeed.Images(exif="ignore", encode="exact"), workers=1)
    for exif_option, size in (("ignore", (20, 30)), ("apply", (30, 20))):
        to = tmp_path / exif_option
        adopted = tpufeed.adopt(copied(tmp_path / "kept", tmp_path / f"{exif_option}-files"), to, exif=exif_option)
        assert adopted.manifest.image_size == size
        (images,) = tpufeed.Loader(to, batch_size=4, processes=0)
        assert images.shape == (4, *size, 3)


def copied(dataset, to):
    to.mkdir()
    for shard in dataset.glob("*.tfrecord"):
        (to / shard.name).write_bytes(shard.read_bytes())
    return to


def test_a_dataset_that_grows_joins_them(tmp_path):
    url = tmp_path / "dataset"
    tpufeed.shard(draw(tmp_path / "photos", [(20, 30)] * 4), url, workers=1)
    assert tpufeed.open_dataset(url).manifest.image_size == (20, 30)
    tpufeed.append(draw(tmp_path / "same", [(20, 30)] * 2, 4), url, workers=1)
    assert tpufeed.open_dataset(url).manifest.image_size == (20, 30)
    tpufeed.append(draw(tmp_path / "more", [(40, 10)] * 9, 6), url, workers=1)
    manifest = tpufeed.open_dataset(url).manifest
    assert manifest.sizes == Sizes((20, 10), (40, 10), (40, 30))
    assert manifest.image_size is None
    tpufeed.compact(url, workers=1)
    assert tpufeed.open_dataset(url).manifest.sizes == manifest.sizes


def test_presizing_says_which_images_it_leaves_smaller(tmp_path):
    photos = draw(tmp_path / "photos", SIDES)
    fit = ["--presize", 32, "--presize-mode", "fit"]
    said = ask("shard", photos, tmp_path / "fit", *fit, "--dry-run").stderr
    assert "least 20x20" in said
    assert "--min-side 32" in said
    done = ask("shard", photos, tmp_path / "fit", *fit)
    assert "Resize(32)" in done.stderr
    assert "sizes: least 20x20, median 24x24, most 32x32" in ask("info", tmp_path / "fit").stdout
    assert json.loads(ask("info", tmp_path / "fit", "--json").stdout)["sizes"]["most"] == [32, 32]
    # The ways out that it names.
    done = ask("shard", photos, tmp_path / "least", *fit, "--min-side", 32, "--max-rejects", "90%")
    assert "never enlarges" not in done.stderr
    assert "sizes: all 32x32" in ask("info", tmp_path / "least").stdout
    ask("cache", "warmup", tmp_path / "fit", tmp_path / "cache", "--op", "Resize(32)", "--op", "CenterCrop(32)")
    assert tpufeed.open_dataset(tmp_path / "cache").manifest.cache.shape == (32, 32, 3)
    done = ask("shard", photos, tmp_path / "short", "--presize", 32)
    assert "never enlarges" not in done.stderr  # nobody asked for one size
