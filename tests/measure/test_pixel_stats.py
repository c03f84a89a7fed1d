"""Statistics of pixels: those of numpy over all values at once."""

import json

import numpy as np
import pytest
import tifffile
from typer.testing import CliRunner

import tpufeed
from tpufeed.cli.app import app
from tpufeed.images import CenterCrop
from tpufeed.measure.contact_sheet import make_contact_sheet
from tpufeed.measure.pixel_stats import PERCENTILES, measure_pixels

KEEP = tpufeed.Images(pixels="keep", nan="keep")


def arrays_of(dtype, channels):
    rng = np.random.default_rng(5)
    for number in range(7):
        values = rng.normal(1000, 300, (12 + number, 9, channels))
        if dtype == "float32":
            values = (values - 900) * 1e-3
        yield np.clip(values, 0 if dtype != "float32" else -9, 65535).astype(dtype)


@pytest.fixture(params=[("uint16", 3), ("float32", 2)], ids=str)
def made(request, tmp_path):
    arrays = list(arrays_of(*request.param))
    (tmp_path / "raw").mkdir()
    if request.param[0] == "float32":
        arrays[0][0, 0] = np.nan, -np.inf
    for number, array in enumerate(arrays):
        np.save(tmp_path / "raw" / f"{number}.npy", array)
    tpufeed.shard(tmp_path / "raw", tmp_path / "set", images=KEEP, label="none", workers=1, progress=False)
    return tmp_path / "set", np.concatenate([array.reshape(-1, array.shape[2]) for array in arrays])


def test_statistics_are_numpys(made):
    url, values = made
    for channel, found in enumerate(measure_pixels(tpufeed.open_dataset(url), "train")):
        own = values[:, channel]
        own = own[np.isfinite(own)]
        assert found.not_finite == len(values) - len(own)
        assert np.isclose(found.mean, own.mean(dtype=np.float64), rtol=1e-12)
        assert np.isclose(found.deviation, own.std(dtype=np.float64), rtol=1e-12)
        assert found.percentiles == {p: float(np.percentile(own, p, method="lower")) for p in PERCENTILES}


def test_info_prints_them_and_the_call(made):
    url, _ = made
    text = CliRunner().invoke(app, ["info", str(url), "--stats"]).stdout
    assert "to_device_float(images, mean=[" in text
    facts = json.loads(CliRunner().invoke(app, ["info", str(url), "--stats", "--json"]).stdout)
    assert len(facts["channels"]) == made[1].shape[1]


def test_pixels_without_data_are_left_out(tmp_path):
    (tmp_path / "raw").mkdir()
    array = np.random.default_rng(0).normal(50, 9, (20, 30, 2)).astype(np.float32)
    array[:4, :, 0] = array[:, :3, 1] = -9999
    tag = 42113, "s", 0, "-9999", True
    options = {"photometric": "minisblack", "planarconfig": "contig", "extratags": [tag]}
    tifffile.imwrite(tmp_path / "raw/0.tif", array, **options)
    for nodata in ("keep", "mask"):
        policy, url = tpufeed.Images(pixels="keep", nodata=nodata), tmp_path / nodata
        tpufeed.shard(tmp_path / "raw", url, images=policy, label="none", workers=1, progress=False)
        said = CliRunner().invoke(app, ["info", str(url), "--stats"]).stdout
        assert {"keep": "counted: the nodata values of 1 image", "mask": "out: 168 pixels"}[nodata] in said
    found = measure_pixels(tpufeed.open_dataset(tmp_path / "mask"), "train")
    assert np.allclose([each.mean for each in found], array[4:, 3:].mean((0, 1)))
    assert [each.percentiles[0] for each in found] == list(array[4:, 3:].min((0, 1)))
    tpufeed.cache.warmup(tmp_path / "mask", tmp_path / "raw-cache", ops=[CenterCrop(20)], workers=1, progress=False)
    found = measure_pixels(tpufeed.open_dataset(tmp_path / "raw-cache"), "train")  # its masks are raw, too
    assert np.allclose([each.mean for each in found], array[4:, 5:25].mean((0, 1)))
    assert [each.nodata for each in found] == [80, 80]


def test_a_channel_without_values_or_of_one_value(tmp_path):
    (tmp_path / "raw").mkdir()
    array = np.random.default_rng(0).normal(50, 9, (20, 30, 3)).astype(np.float32)
    array[..., 1], array[..., 2] = np.nan, 7
    np.save(tmp_path / "raw/0.npy", array)
    tpufeed.shard(tmp_path / "raw", tmp_path / "d", images=KEEP, label="none", workers=1, progress=False)
    done = CliRunner().invoke(app, ["info", str(tmp_path / "d"), "--stats"])
    assert not done.exit_code
    assert "n/a" in done.stdout
    assert "1.0, 1.0])" in done.stdout  # no number is divided by 0


def test_sheet_is_stretched(made):
    sheet = make_contact_sheet(tpufeed.open_dataset(made[0]), count=4)
    assert not sheet.problems
    assert np.asarray(sheet.image)[30:60].std() > 20
