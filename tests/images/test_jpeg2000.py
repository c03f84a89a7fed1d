"""JPEG 2000 that imagecodecs and Pillow wrote: values, depths, and what is refused."""

import io
import struct
import sys

import numpy as np
import pytest
from PIL import Image

import tpufeed
from tests.frameworks import lazy
from tests.sharding.outputs import rejects_of, samples_of
from tpufeed.errors import ImageError, MissingExtraError
from tpufeed.images import tensors
from tpufeed.images.kept import read_kept
from tpufeed.images.pixel_format import PixelFormat
from tpufeed.images.policy import Images, store_image

pytestmark = pytest.mark.uses("imagecodecs")
imagecodecs = lazy("imagecodecs")
KEEP = Images(pixels="keep")


def draw(*shape, bits=15, dtype="uint16"):
    return np.random.default_rng(bits).integers(0, 1 << bits, shape).astype(dtype)


def jp2(array, **options):
    return imagecodecs.jpeg2k_encode(array, **{"level": 0, "codecformat": "jp2"} | options)


def in_a_wide_box(data):
    """The same file, its codestream in a box with a length of 64 bits."""
    at = data.index(b"jp2c") - 4
    stream = data[at + 8 :]
    return data[:at] + struct.pack(">I4sQ", 1, b"jp2c", 16 + len(stream)) + stream


@pytest.mark.parametrize("options", [{}, {"codecformat": "j2k"}], ids=str)
@pytest.mark.parametrize("bits", [9, 12, 15, 16])
def test_values_are_those_of_the_file(bits, options):
    array = draw(41, 53, bits=bits)
    kept = read_kept(jp2(array, bitspersample=bits, **options))
    assert kept.pixels == PixelFormat("uint16", 1)
    assert np.array_equal(kept.load()[..., 0], array)


@pytest.mark.parametrize("tile", [None, (16, 16)])
@pytest.mark.parametrize("mode", ["L", "LA", "RGB", "RGBA", "I;16"])
def test_values_are_those_that_pillow_wrote(mode, tile):
    tile = None if mode == "I;16" else tile  # Pillow writes wrong values into tiles of 16 bits
    array = draw(20, 30, len(mode), bits=8, dtype="uint8") if ";" not in mode else draw(20, 30, bits=16)
    file = io.BytesIO()
    Image.fromarray(array[..., 0] if mode == "L" else array).save(file, "JPEG2000", tile_size=tile)
    kept = read_kept(file.getvalue())
    assert kept.pixels == PixelFormat(array.dtype.name, 1 if ";" in mode else len(mode))
    assert np.array_equal(kept.load(), array.reshape(20, 30, -1))


def test_boxes_bands_and_colours():
    array = draw(20, 30, 5)
    assert np.array_equal(read_kept(in_a_wide_box(jp2(array, planar=False))).load(), array)
    colours = draw(20, 30, 3, bits=8, dtype="uint8")
    image = store_image(jp2(colours), KEEP, "tile.jp2")
    assert (image.format, image.odd) == ("png", ())
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(image.data))), colours)


def refused():
    whole, colours = jp2(draw(40, 50)), jp2(draw(20, 30, 3, bits=8, dtype="uint8"))
    part = whole.index(b"\xff\x4f\xff\x51") + 43
    box = colours.index(b"jp2c") - 4
    return {
        "short": (whole[:-200], "unreadable", "decode"),
        "without a codestream": (whole[:80], "unreadable", "header"),
        "an endless box": (whole[:12] + bytes(30), "unreadable", "boxes end"),
        "signed": (jp2(draw(20, 30).astype(np.int16)), "unsupported", "int16"),
        "32 bits": (whole[: part - 1] + b"\x1f" + whole[part:], "unsupported", "uint32"),
        "subsampled": (whole[:part] + b"\2\2" + whole[part + 2 :], "unsupported", "components"),
        "YCC": (colours.replace(b"\0\0\0\x10", b"\0\0\0\x12", 1), "unsupported", "YCC"),
        "a palette": (colours[:box] + struct.pack(">I4s", 8, b"pclr") + colours[box:], "unsupported", "palette"),
        "huge": (whole[: part - 35] + struct.pack(">2I", 1 << 20, 1 << 20) + whole[part - 27 :], "too_large", "x"),
    }


@pytest.mark.parametrize(
    "name",
    ["short", "without a codestream", "an endless box", "signed", "32 bits", "subsampled", "YCC", "a palette", "huge"],
)
def test_refused(name):
    data, reason, said = refused()[name]
    with pytest.raises(ImageError) as caught:
        store_image(data, KEEP, pixels=PixelFormat("uint16", 1))
    assert caught.value.reason == reason
    assert said in str(caught.value)


def test_a_file_that_ends_anywhere_is_refused():
    data = jp2(draw(16, 16))
    for stop in range(12, len(data) - 2, 7):
        with pytest.raises(ImageError):
            store_image(data[:stop], KEEP, pixels=PixelFormat("uint16", 1))


def test_without_its_decoder(monkeypatch):
    data = jp2(draw(16, 16))
    monkeypatch.setitem(sys.modules, "imagecodecs", None)
    with pytest.raises(ImageError, match="JPEG 2000, which --pixels keep"):
        store_image(data, Images())
    with pytest.raises(MissingExtraError, match=r"imagecodecs, for JPEG 2000.*\[bands\]"):
        read_kept(data)


def test_a_folder_of_sentinel_2(tmp_path):
    place = tmp_path / "S2A.SAFE/GRANULE/L2A/IMG_DATA"
    names, other = ("B02_10m", "B03_10m", "B08_10m"), ("R20m/T32_B02_20m", "R10m/T32_TCI_10m", "R20m/T32_SCL_20m")
    for number, name in enumerate((*(f"R10m/T32_{name}" for name in names), *other)):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        size = 20 if "20m" in name else 40
        (place / f"{name}.jp2").write_bytes(jp2(draw(size, size, bits=9 + number), bitspersample=15))
    options = {"label": "none", "images": KEEP, "workers": 1, "progress": False}
    result = tpufeed.shard(tmp_path / "S2A.SAFE", tmp_path / "d", bands=",".join(names), **options)
    ((name, sample),) = samples_of(tmp_path / "d").items()
    assert name == "GRANULE/L2A/IMG_DATA/R10m/T32.jp2"
    assert np.array_equal(tensors.npy_view(sample["image/encoded"][0])[..., 2], draw(40, 40, bits=11))
    assert not rejects_of(tmp_path / "d")
    assert any("3 images without the name of a band" in said for said in result.manifest.listed.warnings)
