"""Coefficients of images: their layout in a batch, and tables as libjpeg's."""

import io

import numpy as np
import pytest
from PIL import Image

from tests.images.dct_reference import decode_planes, encode_planes, quantize, unpack_planes
from tpufeed.images.coefficients import Coefficients, quality_tables


def photo(size, bands=3, seed=0):
    """Smooth colours, some noise, and black and white edges."""
    rng = np.random.default_rng(seed)
    small = rng.integers(0, 256, (5, 7, bands), np.uint8)
    layers = [Image.fromarray(small[..., i]).resize(size[::-1], Image.Resampling.BICUBIC) for i in range(bands)]
    pixels = np.stack(layers, -1) + rng.normal(0, 4, (*size, bands))
    pixels[5:20, 3:9] = 255
    pixels[5:20, 9:14] = 0
    return np.clip(pixels, 0, 255).astype(np.uint8)


@pytest.mark.parametrize("quality", [1, 30, 50, 75, 90, 93, 95, 100])
def test_tables_are_libjpegs(quality):
    file = io.BytesIO()
    Image.new("RGB", (16, 16)).save(file, "JPEG", quality=quality)
    tables = Image.open(file).quantization
    assert quality_tables(quality) == (tuple(tables[0]), tuple(tables[1]))


@pytest.mark.parametrize("sampling", ["420", "444", "grey"])
def test_the_layout_holds_an_image(sampling):
    coefficients = Coefficients((48, 32), sampling, quality_tables(90))
    rgb = photo((48, 32), 1 if sampling == "grey" else 3)
    array = encode_planes(rgb, coefficients)
    assert array.shape == coefficients.shape
    for values, expected in zip(unpack_planes(array, coefficients), quantize(rgb, coefficients), strict=True):
        small = np.abs(expected) <= 96
        small[..., 0, 0] = True
        assert np.array_equal(values[small], expected[small])
        assert np.abs(values - expected).max() <= coefficients.step // 2
    difference = np.abs(decode_planes(array, coefficients).astype(int) - rgb)
    assert difference.mean() < 6


def test_steps_are_as_small_as_the_tables_allow():
    steps = {quality: Coefficients((16, 16), "420", quality_tables(quality)).step for quality in (50, 75, 90, 95)}
    assert steps == {50: 1, 75: 4, 90: 14, 95: 30}
