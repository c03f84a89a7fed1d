"""Coefficients of images: their bytes, their layout in a batch, and that nothing of a JPEG is lost."""

import io

import numpy as np
import pytest
import simplejpeg
from PIL import Image

from tests.images.dct_reference import (
    decode_planes,
    encode_planes,
    pack_planes,
    quantize,
    read_bytes,
    unpack_planes,
)
from tpufeed.errors import ImageError
from tpufeed.images import CenterCrop, HorizontalFlip, RandomCrop, Resize
from tpufeed.images._restart import encode, pack
from tpufeed.images.coefficients import (
    BEST_QUALITY,
    Coefficients,
    decode_part,
    encode_coefficients,
    of_quality,
    quality_tables,
    to_jpeg,
    unpack_into,
)
from tpufeed.images.decoding import decode, image_size
from tpufeed.images.header import read_header
from tpufeed.images.pipeline import Pipeline

SIZE = (48, 32)
MOST_PX = 1 << 20


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


def jpeg(image, **options):
    file = io.BytesIO()
    Image.fromarray(image.squeeze()).save(file, "JPEG", **options)
    return file.getvalue()


def pixels_of(data):
    return np.asarray(Image.open(io.BytesIO(data)))


def unpacked(data, coefficients):
    out = np.full(coefficients.shape, 99, np.int8)
    unpack_into(memoryview(data), coefficients.head, out)
    return out


@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("quality", [5, 90, 100])
@pytest.mark.parametrize("sampling", ["420", "444", "grey"])
def test_the_bytes_are_as_the_page_says_and_hold_all_of_a_jpeg(sampling, quality, progressive):
    image = photo(SIZE, 1 if sampling == "grey" else 3)
    subsampling = {} if sampling == "grey" else {"subsampling": "4:2:0" if sampling == "420" else "4:4:4"}
    file = jpeg(image, quality=quality, progressive=progressive, **subsampling)
    data = pack(file, MOST_PX)
    read, tables, values = read_bytes(data)
    assert read == sampling
    luma, chroma = quality_tables(quality)
    expected = (luma, luma) if sampling == "grey" else (luma, chroma)
    assert tables.tolist() == list(map(list, expected))
    coefficients = Coefficients(SIZE, sampling, expected)
    assert data.startswith(coefficients.head)
    assert np.array_equal(unpacked(data, coefficients), pack_planes(values, coefficients))
    back = to_jpeg(data)
    assert np.array_equal(pixels_of(back), pixels_of(file))
    assert pack(back, MOST_PX) == data
    off = np.abs(decode_planes(pack_planes(values, coefficients), coefficients).astype(int).squeeze() - pixels_of(file))
    assert off.mean() < (1 if quality < 100 else 3), "the same values, by an inverse transform in floats"
    assert (image_size(data), read_header(data).format) == (SIZE, "dct")


@pytest.mark.parametrize("quality", [1, 50, 90, BEST_QUALITY])
def test_pixels_are_those_of_a_jpeg_of_the_same_quality(quality):
    image, coefficients = photo((64, 96), seed=quality), of_quality((64, 96), quality)
    data = encode_coefficients(image, quality)
    file = jpeg(image, quality=quality, subsampling="4:2:0")
    assert data == pack(file, MOST_PX)
    expected = pixels_of(file)
    assert np.array_equal(decode(data), expected)
    assert np.array_equal(Pipeline([], 0).run_stored(memoryview(data), None, ()), expected)
    sent = decode_planes(unpacked(data, coefficients), coefficients)
    errors = [np.mean((each.astype(float) - image) ** 2) for each in (sent, expected)]
    assert 10 * np.log10(errors[0] / errors[1]) < 0.2, "dB of PSNR"


@pytest.mark.parametrize("size", [(16, 16), (32, 144), (80, 48)])
def test_coefficients_of_any_pixels_are_libjpegs(size):
    rng = np.random.default_rng(size)
    for levels in (2, 9, 256):  # black and white have the largest coefficients
        image = (rng.integers(0, levels, (*size, 3)) * (255 // (levels - 1))).astype(np.uint8)
        for pixels in (image, np.repeat(np.repeat(image, 4, 0), 4, 1)[: size[0], : size[1]]):
            for quality in (1, 60, BEST_QUALITY, 100):
                file = jpeg(pixels, quality=quality, subsampling="4:2:0")
                assert encode_coefficients(pixels, quality) == pack(file, MOST_PX)
    with pytest.raises(ValueError, match="an array of another size"):
        encode(image, of_quality((16, 32), 90).head)
    for other in (of_quality((24, 16), 90), Coefficients((16, 16), "444", quality_tables(90))):
        with pytest.raises(ValueError, match="sides"):
            encode(image, other.head)


def test_coefficients_of_a_jpeg_are_taken_over_where_they_fit():
    image, file = photo(SIZE), jpeg(photo(SIZE), quality=90, subsampling="4:2:0")
    pixels, anew = decode(file), encode_coefficients(decode(file), 90)
    assert encode_coefficients(pixels, 90, file) == pack(file, MOST_PX) != anew
    adobe = b"\xff\xee\0\x0eAdobe\0d" + bytes(5)  # colours are not transformed: RGB
    for other in (
        jpeg(image, quality=89, subsampling="4:2:0"),
        jpeg(image, quality=90, subsampling="4:4:4"),
        jpeg(photo(SIZE, 1), quality=90),
        jpeg(photo((32, 48)), quality=90, subsampling="4:2:0"),
        file[:2] + adobe + file[20:],
        file[:-40],
    ):
        assert encode_coefficients(pixels, 90, other) == anew


def test_ops_keep_an_image_that_they_neither_cut_nor_turn():
    exif = Image.Exif()
    exif[0x0112] = 6
    file, turned = jpeg(photo(SIZE)), jpeg(photo(SIZE), exif=exif)
    for ops, keeps in (
        ([], True),
        ([Resize(32), CenterCrop(SIZE)], True),
        ([CenterCrop(32)], False),
        ([RandomCrop(SIZE)], False),
        ([Resize((96, 64)), Resize(SIZE)], False),
        ([HorizontalFlip()], False),
    ):
        assert Pipeline(ops, 0).keeps(file) == Pipeline(ops, 0, upright=True).keeps(file) == keeps
        assert Pipeline(ops, 0).keeps(turned) == keeps
        assert not Pipeline(ops, 0, upright=True).keeps(turned)


def test_what_cannot_be_packed_says_why():
    image = photo((48, 40))
    for file, reason in {
        simplejpeg.encode_jpeg(image, colorsubsampling="440"): "4:2:0, 4:2:2",
        jpeg(photo(SIZE, 4)[..., :3]).replace(b"\xff\xdb\0C\1", b"\xff\xdb\0C\3"): "tables",
        jpeg(photo(SIZE))[:-40]: "truncated",
        b"GIF89a": "not a JPEG",
    }.items():
        with pytest.raises(ValueError, match=reason):
            pack(file, MOST_PX)
    file = io.BytesIO()
    Image.fromarray(photo(SIZE, 4), "CMYK").save(file, "JPEG")
    with pytest.raises(ValueError, match="4:2:0, 4:2:2"):
        pack(file.getvalue(), MOST_PX)


def test_damaged_and_foreign_images_are_refused():
    coefficients, data = of_quality(SIZE, 90), encode_coefficients(photo(SIZE), 90)
    for length in (0, 3, 4, 139, 140, 500, len(data) - 1):
        for read in (lambda part: unpacked(part, coefficients), to_jpeg, decode):
            with pytest.raises(ImageError) as found:
                read(data[:length])
            assert length < 4 or found.value.reason == "truncated"
    for place in (4, 5, 6, 7):  # what a later version may say there
        with pytest.raises(ImageError, match="broken header"):
            decode(data[:place] + b"\4" + data[place + 1 :])
    for other in (of_quality(SIZE, 89), of_quality((32, 48), 90), Coefficients(SIZE, "444", quality_tables(90))):
        with pytest.raises(ImageError, match="another size, sampling or tables"):
            unpacked(data, other)
    with pytest.raises(ImageError, match="an array of another size"):
        unpack_into(memoryview(data), coefficients.head, np.empty(of_quality((64, 64), 90).shape, np.int8))
    first = 140 + 2 * (6 + 3 + 3)  # the first group
    for at in (4, 5, 9):  # large values, masks that follow, a mask
        broken = bytearray(data)
        broken[first + at] ^= 1
        for read in (lambda data: unpacked(data, coefficients), to_jpeg, decode):
            with pytest.raises(ImageError, match="broken group"):
                read(bytes(broken))
    with pytest.raises(ImageError, match="broken group"):
        unpacked(data + b"\0", coefficients)
    huge = bytearray(data)
    huge[8:12] = b"\xff" * 4
    with pytest.raises(ImageError, match="fewer bytes than 65535x65535"):
        decode(bytes(huge))


@pytest.mark.parametrize("sampling", ["444", "422", "420", "grey"])
@pytest.mark.parametrize("size", [(1, 1), (3, 4), (9, 5), (47, 83), (64, 144)])
def test_windows_have_the_levels_of_libjpeg_turbo(sampling, size):
    image, rng = photo(size if min(size) > 20 else (24, 24))[: size[0], : size[1]], np.random.default_rng(size)
    for quality in (30, 90, 100):
        pixels = image[..., :1] if sampling == "grey" else image
        colours, name = ("GRAY", "Gray") if sampling == "grey" else ("RGB", sampling)
        file = simplejpeg.encode_jpeg(np.ascontiguousarray(pixels), quality, colours, name)
        data = pack(file, MOST_PX)
        assert np.array_equal(simplejpeg.decode_jpeg(to_jpeg(data)), simplejpeg.decode_jpeg(file))
        assert read_bytes(data)[0] == sampling
        for fast in (False, True):
            expected = simplejpeg.decode_jpeg(file, fastupsample=fast)
            assert np.array_equal(decode(data, fast=fast), expected)
            for _ in range(20):
                (top, bottom), (left, right) = (np.sort(rng.integers(-5, side + 6, 2)).tolist() for side in size)
                part, (first_row, first_column) = decode_part(data, (top, left, bottom, right), fast)
                rows, columns, _ = part.shape
                assert first_row <= max(top, 0)
                assert first_row + rows >= min(bottom, size[0])
                assert first_column <= max(left, 0)
                assert first_column + columns >= min(right, size[1])
                found = expected[first_row : first_row + rows, first_column : first_column + columns]
                assert np.array_equal(part, found)
