"""Images that are kept as they are: what is read, and what is refused."""

import io
import subprocess
import sys
import zipfile
import zlib

import cv2
import numpy as np
import pytest
import tifffile
from PIL import Image

from tests.frameworks import need
from tpufeed.errors import ImageError
from tpufeed.images import tensors
from tpufeed.images.decoding import decode
from tpufeed.images.kept import read_bands, read_kept
from tpufeed.images.pixel_format import RGB8, PixelFormat
from tpufeed.images.policy import Images, shrink, store_image

KEEP = Images(pixels="keep")


def draw(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    numbers = np.random.default_rng(0).integers(0, 4000, shape)
    return (numbers / (1 if dtype == "uint16" else 17)).astype(dtype)


def tiff(array: np.ndarray, **options) -> bytes:
    if options.get("compression") in ("lzw", "zstd", "jpeg"):
        need("imagecodecs")
    file = io.BytesIO()
    tifffile.imwrite(file, array, photometric=options.pop("photometric", "minisblack"), **options)
    return file.getvalue()


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def npz(**arrays) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def npz_with(rest: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("image.npy", npy(draw((9, 8, 4), "uint16")) + rest)
    return file.getvalue()


def png(array: np.ndarray) -> bytes:
    return cv2.imencode(".png", array)[1].tobytes()


def transparent(mode: str, level) -> bytes:
    """A PNG with a transparent level or colour instead of an alpha channel."""
    file = io.BytesIO()
    Image.new(mode, (8, 9)).save(file, "PNG", transparency=level)
    return file.getvalue()


FILES = {
    "planes": lambda a: tiff(a.transpose(2, 0, 1).copy(), planarconfig="separate"),
    "pixels": lambda a: tiff(a, planarconfig="contig"),
    "tiles": lambda a: tiff(a, planarconfig="contig", tile=(16, 16), compression="zlib"),
    "lzw": lambda a: tiff(a, planarconfig="contig", compression="lzw", predictor=True),
    "zstd": lambda a: tiff(a, planarconfig="contig", compression="zstd"),
    "big": lambda a: tiff(a, planarconfig="contig", bigtiff=True, byteorder=">"),
    "npy": npy,
    "big-endian npy": lambda a: npy(a.astype(a.dtype.newbyteorder(">"))),
    "fortran npy": lambda a: npy(np.asfortranarray(a)),
    "npz": lambda a: npz(image=a),
    "bands first npz": lambda a: npz(image=a.transpose(2, 0, 1)),
    "bands first": lambda a: npy(a.transpose(2, 0, 1).copy()),
}


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32"])
@pytest.mark.parametrize("name", FILES)
def test_numbers_are_those_of_the_file(name, dtype):
    array = draw((21, 34, 6), dtype)
    image = store_image(FILES[name](array), KEEP, pixels=PixelFormat(dtype, 6))
    assert np.array_equal(tensors.npy_view(image.data), array)
    assert (image.height, image.width, image.channels, image.source) == (21, 34, 6, (21, 34))
    assert image.levels == (float(array.min()), float(array.max()))
    assert np.array_equal(np.load(io.BytesIO(image.data)), array)  # docs/format.md


@pytest.mark.parametrize(("channels", "order"), [(1, [0]), (3, [2, 1, 0]), (4, [2, 1, 0, 3])])
def test_png_of_16_bits_is_rgb(channels, order):
    array = draw((9, 8, channels), "uint16")
    kept = read_kept(png(array))
    assert kept.pixels == PixelFormat("uint16", channels)
    assert np.array_equal(kept.load(), array[..., order])


@pytest.mark.parametrize(
    "data",
    [
        png(draw((9, 8, 3), "uint8")),
        cv2.imencode(".jpg", np.zeros((9, 8, 3), np.uint8))[1].tobytes(),
        tiff(draw((9, 8), "uint8")),
        transparent("L", 3),
        transparent("1", 1),
        transparent("RGB", (1, 2, 3)),
        transparent("P", 2),
    ],
)
def test_8_bit_colours_take_the_old_way(data):
    assert read_kept(data) is None


def test_orientation_is_applied():
    array = draw((6, 9, 5), "uint16")
    data = tiff(array, planarconfig="contig", extratags=[(274, "H", 1, 6, True)])
    image = store_image(data, KEEP, pixels=PixelFormat("uint16", 5))
    assert np.array_equal(tensors.npy_view(image.data), np.rot90(array, -1))


@pytest.mark.parametrize(("height", "width", "size"), [(40, 60, (20, 30)), (141, 283, (20, 40))])
def test_presized_images_shrink(height, width, size):
    """Also to less than a sixth: OpenCV averages 4 channels at once."""
    array = draw((height, width, 13), "uint16")
    array[..., 12] = 700
    image = store_image(npy(array), Images(pixels="keep", presize=20), "", PixelFormat("uint16", 13))
    assert (image.height, image.width) == size
    shrunk = tensors.npy_view(image.data)
    assert (shrunk[..., 12] == 700).all()
    assert np.array_equal(shrunk[..., 6:7], shrink(array[..., 6:7], *size))


def sparse():
    data = bytearray(tiff(draw((9, 8), "uint16"), rowsperstrip=5))
    tag = tifffile.TiffFile(io.BytesIO(data)).pages[0].tags[279]
    size = {3: 2, 4: 4}[int(tag.dtype)]
    data[tag.valueoffset + size : tag.valueoffset + 2 * size] = bytes(size)
    return bytes(data)


REFUSED = {
    "pickles": (npy(np.array([[{}]], object)), "unsupported", "pickled"),
    "signed": (npy(draw((9, 8), "int16")), "unsupported", "int16"),
    "64 bits": (npy(draw((9, 8, 2), "float64")), "unsupported", "float64"),
    "a vector": (npy(draw((9,), "uint16")), "unsupported", "(9,)"),
    "structured": (npy(np.zeros((3, 3), [("a", "u2")])), "unsupported", "void"),
    "65 channels": (npy(draw((80, 81, 65), "uint16")), "unsupported", "65 channels"),
    "a short npy": (npy(draw((9, 8, 4), "uint16"))[:-1], "truncated", "575"),
    "a short header": (npy(draw((9, 8, 4), "uint16"))[:60], "truncated", "header"),
    "a promise": (npy(np.zeros((1, 1), np.uint16)).replace(b"(1, 1)", b"(9999999, 9999999)"), "truncated", "asks for"),
    **{
        f"sides {sides}": (npy(np.zeros((9, 8), np.uint16)).replace(b"(9, 8)", sides), "unreadable", "shape")
        for sides in (b"(-1, 8)", b"(True, 8)", b"(0, 9223372036854775807, 4)")
    },
    "two arrays": (npz(image=draw((9, 8), "uint16"), label=draw((9, 8), "uint8")), "unsupported", "image, label"),
    "pickles in an npz": (npz(image=np.array([[{}]], object)), "unsupported", "pickled"),
    "an npz with more than its array": (npz_with(bytes(99)), "unsupported", "has 803 bytes, not 704"),
    "a short npz": (npz(image=draw((9, 8, 4), "uint16"))[:-90], "unreadable", "npz"),
    "a damaged npz": (npz(image=draw((99, 98), "uint16")).replace(b"\5", b"\6"), "unreadable", "npz"),
    "an npz that unpacks to gigabytes": (npz(image=np.zeros((15000, 15000), np.uint8)), "too_large", "15000x15000"),
    "a short TIFF": (tiff(draw((90, 80, 4), "uint16"), planarconfig="contig")[:-50], "truncated", "TIFF"),
    "a broken TIFF": (b"II*\0" + bytes(40), "unreadable", "TIFF"),
    "a sparse TIFF": (sparse(), "truncated", "lacks 1 of its 2"),
    "no image": (b"x" * 40, "not_an_image", "no image format"),
    "other format": (npy(draw((9, 8, 4), "uint16")), "other_pixels", "uint16 of 4 channels"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    data, reason, said = REFUSED[name]
    with pytest.raises(ImageError) as caught:
        store_image(data, KEEP, pixels=PixelFormat("uint16", 13))
    assert caught.value.reason == reason
    assert said in str(caught.value)


@pytest.mark.parametrize("nan", ["reject", "zero", "keep"])
def test_policy_for_nan(nan):
    array = np.array([[1, np.nan], [np.inf, 4]], np.float32)
    policy, pixels = Images(pixels="keep", nan=nan), PixelFormat("float32", 1)
    if nan == "reject":
        with pytest.raises(ImageError, match="2 values"):
            store_image(npy(array), policy, "", pixels)
        return
    image = store_image(npy(array), policy, "", pixels)
    assert image.odd == ("nan",)
    assert image.levels == (0 if nan == "zero" else 1, 4)
    found = tensors.npy_view(image.data)[..., 0]
    assert np.array_equal(found, array if nan == "keep" else np.array([[1, 0], [0, 4]]), equal_nan=True)


LACKING = {
    "-9999": ("float32", -9999, "-9999"),
    "nan": ("float32", np.nan, "nan"),
    "the least float": ("float32", np.finfo("float32").min, "-3.4028234663852886e+38"),
    "65535": ("uint16", 65535, "65535.0 "),
    "0": ("uint8", 0, "0"),
}


@pytest.mark.parametrize("name", LACKING)
def test_nodata_values_are_masked_or_kept(name):
    dtype, value, text = LACKING[name]
    array = draw((9, 8, 4), dtype) + np.ones((), dtype)
    array[:3, :2, 1] = array[5, 6] = value
    data = tiff(array, planarconfig="contig", extratags=[(42113, "s", 0, text, True), (274, "H", 1, 3, True)])
    array = array[::-1, ::-1]
    empty = (np.isnan(array) if name == "nan" else array == value).any(2)
    image = store_image(data, Images(pixels="keep", nodata="mask"), pixels=PixelFormat(dtype, 4))
    assert np.array_equal(image.nodata, empty)
    assert np.array_equal(tensors.npy_view(image.data), np.where(empty[..., None], 0, array))
    assert image.odd == ("exif", "nodata, masked")
    assert image.levels == (array[~empty].min(), array[~empty].max())
    image = store_image(data, Images(pixels="keep", nan="keep"), pixels=PixelFormat(dtype, 4))
    assert np.array_equal(tensors.npy_view(image.data), array, equal_nan=dtype == "float32")
    assert image.nodata is None
    assert "nodata" in image.odd


@pytest.mark.parametrize(("text", "dtype"), [("-9999", "uint16"), ("none", "uint16"), (None, "float32")])
def test_no_value_is_a_nodata_value(text, dtype):
    tags = [] if text is None else [(42113, "s", 0, text, True)]
    data = tiff(draw((9, 8), dtype), extratags=tags)
    image = store_image(data, Images(pixels="keep", nodata="mask"), pixels=PixelFormat(dtype, 1))
    assert not image.nodata.any()
    assert not image.odd


def test_nodata_of_8_bit_tiff_and_of_bands():
    array, tag = draw((9, 8, 3), "uint8") + np.uint8(1), (42113, "s", 0, "0", True)
    array[:2] = 0
    mask = Images(pixels="keep", nodata="mask")
    data = tiff(array, photometric="rgb", extratags=[tag])
    for image in (store_image(data, mask), store_image(b"", mask, "", RGB8, read_bands([("x", data)], [3, 1, 2]))):
        assert image.nodata[:2].all()
        assert not image.nodata[2:].any()
        assert image.format == "png"
    bands = [tiff(array[..., 0], extratags=[tag]), tiff(array[..., 1]), tiff(array[::-1, :, 2], extratags=[tag])]
    image = store_image(b"", mask, "", RGB8, read_bands([("x", band) for band in bands]))
    assert image.nodata[[0, 1, 7, 8]].all()
    assert not image.nodata[2:7].any()
    grey = store_image(bands[0], Images(pixels="keep", nodata="mask", greyscale="rgb"))
    assert np.array_equal(decode(grey.data), array[..., :1].repeat(3, 2))
    assert store_image(bands[0], mask).channels == 1


@pytest.mark.parametrize(
    ("kind", "dtype", "options"),
    [
        ("8-bit PALETTE", np.uint8, {"photometric": "palette", "colormap": np.zeros((3, 256), np.uint16)}),
        ("8-bit MINISWHITE", np.uint8, {"photometric": "miniswhite"}),
        ("1-bit MINISBLACK", bool, {}),
    ],
)
def test_nodata_of_values_that_pillow_changes_is_refused(kind, dtype, options):
    mask, array, tag = Images(pixels="keep", nodata="mask"), np.zeros((9, 8), dtype), (42113, "s", 0, "0", True)
    assert not store_image(tiff(array, **options), mask).nodata.any()
    with pytest.raises(ImageError, match=f"nodata value in a TIFF of {kind}") as caught:
        store_image(tiff(array, **options, extratags=[tag]), mask)
    assert caught.value.reason == "unsupported"


def test_nodata_of_ycbcr_is_that_of_rgb():
    """GDAL, too, reads it as RGB."""
    array = np.full((32, 32, 3), (0, 128, 128), np.uint8)
    array[16:, :, 0] = 90
    data = tiff(array, photometric="ycbcr", compression="jpeg", extratags=[(42113, "s", 0, "0", True)])
    empty = store_image(data, Images(pixels="keep", nodata="mask")).nodata
    assert np.array_equal(empty, array[..., 0] == 0)


def test_odd_cases_are_those_of_all_band_files():
    image = read_bands([("x", pages(0)), ("y", pages(0, 0)), ("z", pages(0, 4))])
    assert image.header.odd == ("animated", "mask page, not applied")
    with pytest.raises(ImageError, match="animated"):
        store_image(b"", Images(pixels="keep", animated="reject"), "", image.pixels, image)


def pages(*kinds):
    """A TIFF whose pages have these kinds: 1 is a smaller copy, 4 a mask."""
    file = io.BytesIO()
    with tifffile.TiffWriter(file) as writer:
        for kind in kinds:
            writer.write(draw((9, 8), "uint16"), photometric="minisblack", metadata=None, subfiletype=kind & 3)
    data = bytearray(file.getvalue())
    for page, kind in zip(tifffile.TiffFile(io.BytesIO(data)).pages, kinds, strict=True):
        data[page.tags[254].valueoffset] = kind
    return bytes(data)


SAID = {
    "smaller copies": (pages(0, 1, 1), ()),
    "a mask": (pages(0, 4), ("mask page, not applied",)),
    "a smaller copy and another page": (pages(0, 1, 0), ("animated",)),
    "MINISWHITE": (tiff(draw((9, 8), "uint16"), photometric="miniswhite"), ("MINISWHITE, not inverted",)),
    "CMYK": (tiff(draw((9, 8, 4), "uint8"), photometric="separated"), ("CMYK, as it is",)),
    "a transparent level": (transparent("I;16", 3), ("transparent level, not applied",)),
}


@pytest.mark.parametrize("name", SAID)
def test_what_is_not_applied_is_an_odd_case(name):
    data, odd = SAID[name]
    kept = read_kept(data)
    assert store_image(data, KEEP, pixels=kept.pixels).odd == odd


def test_smaller_copies_of_8_bit_tiff_are_no_pages():
    file = io.BytesIO()
    with tifffile.TiffWriter(file) as writer:
        for kind in (0, 1):
            writer.write(draw((9, 8, 3), "uint8"), photometric="rgb", metadata=None, subfiletype=kind)
    assert not store_image(file.getvalue(), Images()).odd


def test_a_crop_touches_only_its_part():
    array = draw((30, 20, 3), "uint16")
    odd_place = memoryview(b"x" + tensors.encode_npy(array))[1:]
    part, origin = tensors.npy_part(odd_place, (4, -2, 90, 7))
    assert origin == (4, 0)
    assert np.array_equal(part, array[4:, :7])
    assert part.flags.aligned


def test_decoders_print_nothing(tmp_path):
    extra = b"\0\0\0\1pHYs\0" + zlib.crc32(b"pHYs\0").to_bytes(4, "big")
    data = png(draw((9, 8), "uint16"))
    (tmp_path / "odd.png").write_bytes(data[:33] + extra + data[33:])
    tag = (42113, "s", 0, "nan", True)
    (tmp_path / "odd.tif").write_bytes(tiff(draw((9, 8), "uint16"), extratags=[tag]))
    script = """
import pathlib
from tpufeed.images.kept import read_kept
for name in ("odd.png", "odd.tif"):
    print(read_kept(pathlib.Path(name).read_bytes()).load().shape)
"""
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, check=True, cwd=tmp_path, timeout=120, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("(9, 8, 1)\n" * 2, "")


@pytest.mark.parametrize("module", ["tifffile", "imagecodecs"])
def test_without_its_decoder_a_build_names_the_package_and_the_extra(module, tmp_path):
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw/1.tif").write_bytes(FILES["lzw"](draw((21, 34, 6), "uint16")))
    script = f"""
import sys
sys.modules["{module}"] = None
import tpufeed
try:
    tpufeed.shard("raw", "set", label="none", images=tpufeed.Images(pixels="keep"), workers=1, progress=False)
except tpufeed.errors.MissingExtraError as error:
    print(error)
"""
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, check=True, cwd=tmp_path, timeout=120, capture_output=True, text=True)
    expected = {"tifffile": "tifffile is not", "imagecodecs": "imagecodecs, for LZW in a TIFF, is not"}[module]
    assert done.stdout.startswith(expected)
    assert done.stdout.rstrip().endswith("[bands]'")
