"""Presizing: sizes in every mode, and pixels against Pillow's Lanczos and ImageOps.fit."""

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageOps

from tpufeed.images.decoding import decode
from tpufeed.images.header import ImageHeader
from tpufeed.images.kept import Kept
from tpufeed.images.pixel_format import PixelFormat
from tpufeed.images.policy import Images, scaled_size, shrink, store_image, stored_geometry
from tpufeed.images.tensors import npy_view

sides = st.integers(1, 5000)


def psnr(one, other):
    error = np.mean((one.astype(float) - other) ** 2)
    return 99.0 if error == 0 else 10 * np.log10(255**2 / error)


def lanczos(pixels, height, width):
    return np.asarray(Image.fromarray(pixels).resize((width, height), Image.Resampling.LANCZOS))


@given(sides, sides, st.integers(8, 600))
def test_sizes(height, width, side):
    for mode, pick in (("short", min), ("long", max), ("fit", min)):
        size = scaled_size(height, width, side, mode)
        if pick(height, width) <= side:
            assert size == (height, width)
            continue
        assert pick(size) == side
        assert size[0] <= height
        assert size[1] <= width
        scale = side / pick(height, width)
        assert abs(size[0] - height * scale) <= 1
        assert abs(size[1] - width * scale) <= 1


@pytest.mark.parametrize("name", ["china.jpg", "flower.jpg", "astronaut.png", "coffee.png", "rocket.jpg"])
@pytest.mark.parametrize("share", [0.05, 0.1, 0.13, 0.2, 0.3, 0.33, 0.5, 0.66, 0.8])
def test_the_filter_is_close_to_pillow_s_lanczos(photos, name, share):
    pixels = decode(photos[name])
    height, width = round(pixels.shape[0] * share), round(pixels.shape[1] * share)
    small = shrink(pixels, height, width)
    assert small.shape == (height, width, 3)
    assert psnr(small, lanczos(pixels, height, width)) > 38


@pytest.mark.parametrize("name", ["china.jpg", "flower.jpg", "rocket.jpg"])
@pytest.mark.parametrize("side", [40, 64, 100, 140])
def test_presized_photographs_are_close_to_full_decoding(photos, name, side):
    """These small photographs are sharper to the pixel than large ones."""
    image = store_image(photos[name], Images(presize=side, encode="png"))
    expected = lanczos(decode(photos[name]), image.height, image.width)
    assert psnr(decode(image.data), expected) > 35


@pytest.mark.parametrize("side", [31, 64, 100])
def test_fit_is_what_pillow_fits(photos, kinds, side):
    for data in (photos["china.jpg"], photos["astronaut.png"], kinds["jpeg, turned"], kinds["webp"]):
        image = store_image(data, Images(presize=side, presize_mode="fit", encode="png"))
        upright = ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB")
        expected = np.asarray(ImageOps.fit(upright, (min(side, *upright.size),) * 2, Image.Resampling.LANCZOS))
        found = decode(image.data)
        assert found.shape == expected.shape
        assert np.abs(found.astype(int) - expected).mean() < 6  # up to half a pixel of the source beside it


def test_fit_cuts_what_is_smaller_and_keeps_what_is_square(kinds, encoded, cat):
    policy = Images(presize=400, presize_mode="fit")
    for kind, data in kinds.items():
        image = store_image(data, policy)
        assert (image.height, image.width, image.kept) == (99, 99, False), kind
    left = (150 - 99) // 2
    cut = store_image(kinds["png"], policy)
    assert (decode(cut.data) == np.asarray(cat)[:, left : left + 99]).all()
    square = encoded(cat.crop((0, 0, 80, 80)), "JPEG")
    assert store_image(square, policy).data is square


@pytest.mark.first_cases(5)
@pytest.mark.parametrize(
    ("mode", "size"),
    [
        *(("short", size) for size in ((1, 1), (1, 3000), (3000, 1), (65_500, 20))),
        *((mode, size) for mode in ("long", "fit") for size in ((1, 1), (9, 40_000), (40_000, 9))),
    ],
)
def test_extreme_shapes(encoded, mode, size):
    for image_format in ("PNG", "JPEG"):
        policy = Images(presize=8, presize_mode=mode)
        image = store_image(encoded(Image.new("RGB", size, (9, 200, 30)), image_format), policy)
        assert np.abs(decode(image.data).astype(int) - (9, 200, 30)).max() < 8
        assert max(size) > 1 or (image.width, image.height) == size


@pytest.mark.parametrize(("dtype", "nan"), [("uint16", "keep"), ("float32", "zero"), ("float32", "keep")])
@pytest.mark.parametrize("nodata", ["keep", "mask"])
@pytest.mark.parametrize(("mode", "side"), [("short", 20), ("fit", 13), ("fit", 99)])
def test_pixels_without_data_stay_and_do_not_mix(mode, side, nodata, nan, dtype):
    height, width, lack = 41, 63, 65535 if dtype == "uint16" else np.finfo("float32").min
    array, empty = np.full((height, width, 2), (700, 300), dtype), np.zeros((height, width), bool)
    array[9:14, 20:, 0] = array[20:, 30:33, 1] = lack
    empty[9:14, 20:] = empty[20:, 30:33] = True
    if dtype == "float32":
        array[2:7, 11:40, 0], array[30, :30, 1] = np.nan, np.inf
    policy = Images(pixels="keep", nodata=nodata, nan=nan, presize=side, presize_mode=mode)
    header = ImageHeader("npy", width, height, 2, False)
    image = store_image(
        b"", policy, "", PixelFormat(dtype, 2), Kept(header, PixelFormat(dtype, 2), lambda: array, (lack, lack))
    )
    # The nearest pixels of the image that is not presized: those with data have one value in each channel.
    top, left, tall, wide = (0, (width - height) // 2, height, height) if mode == "fit" else (0, 0, height, width)
    rows = top + ((np.arange(image.height) + 0.5) * tall / image.height).astype(int)
    columns = left + ((np.arange(image.width) + 0.5) * wide / image.width).astype(int)
    near, is_empty = array[rows][:, columns], empty[rows][:, columns]
    if nodata == "mask":
        near[is_empty] = 0
        assert np.array_equal(stored_geometry(image, policy).warp(image.nodata, 0), is_empty)
    if nan == "zero":
        near[~np.isfinite(near)] = 0
    found = npy_view(image.data)
    assert np.allclose(found, near, rtol=1e-6, atol=0, equal_nan=True)
    assert min(image.height, image.width) == min(side, height)
    known = found[~is_empty] if nodata == "mask" else found
    assert image.levels == (known[np.isfinite(known)].min(), known[np.isfinite(known)].max())
