"""What a file says of itself, against Pillow."""

import io
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageOps

from tpufeed.errors import ImageError
from tpufeed.images.header import ImageHeader, read_header, sniff

JPEG = {"jpeg", "jpeg, 4:4:4", "jpeg, progressive", "jpeg, grey", "jpeg, turned"}
PLAIN = {*JPEG, "png", "png, grey", "png, palette", "png, turned", "webp", "webp, lossless"}
ODD = {
    "jpeg, grey": ("greyscale",),
    "jpeg, cmyk": ("cmyk",),
    "jpeg, turned": ("exif",),
    "png, grey": ("greyscale",),
    "png, palette with transparency": ("alpha",),
    "png, rgba": ("alpha",),
    "png, grey and alpha": ("alpha", "greyscale"),
    "png, 16 bit": ("deep", "greyscale"),
    "png, 1 bit": ("greyscale",),
    "png, turned": ("exif",),
    "gif, animated": ("animated",),
    "tiff, turned": ("exif",),
}


def reason_of(data):
    with pytest.raises(ImageError) as caught:
        read_header(data)
    return caught.value.reason


def test_the_format_is_that_of_the_bytes(kinds):
    for kind, data in kinds.items():
        assert sniff(data) == sniff(memoryview(data)) == kind.split(",")[0]
    for data in (b"", b"\xff\xd8", b"\x89PNG\r\n", b"RIFF1234WAVE", b"%!PS-Adobe", b"<svg", b"hello, world"):
        assert sniff(data) is None


def test_headers_of_photographs_are_pillow_s(photo_files):
    for path in photo_files:
        image = Image.open(path)
        header = read_header(path.read_bytes())
        assert (header.width, header.height) == image.size
        assert header.channels == (1 if image.mode == "L" else 3)
        assert header.format == image.format.lower()
        assert header.plain


def test_every_kind_has_its_size_and_is_plain_or_not(kinds):
    for kind, data in kinds.items():
        header = read_header(data)
        assert header.format == kind.split(",")[0]
        assert (header.width, header.height) == (150, 99), kind
        assert header.plain == (kind in PLAIN), kind
        assert header.odd == ODD.get(kind, ()), kind
        assert header.channels == (1 if "greyscale" in header.odd else 3)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize(("kind", "form"), [(3, "H"), (4, "I"), (6, "b"), (8, "h"), (9, "i"), (13, "I")], ids=str)
def test_orientation_is_read_in_both_byte_orders_and_all_types(cat, encoded, orientation, order, kind, form):
    value = struct.pack(order + form, orientation).ljust(4, b"\0")
    other = struct.pack(order + "HHI4s", 0x0100, 4, 1, bytes(4))
    entry = struct.pack(order + "HHI4s", 0x0112, kind, 1, value)
    magic = b"II*\0" if order == "<" else b"MM\0*"
    tiff = magic + struct.pack(order + "IH", 8, 2) + other + entry + bytes(4)
    data = encoded(cat, "JPEG", exif=b"Exif\0\0" + tiff)
    turned = ImageOps.exif_transpose(Image.open(io.BytesIO(data))).size
    header = read_header(data)
    assert header.orientation == orientation
    assert header.odd == (() if orientation == 1 else ("exif",))
    assert data[header.orientation_at] == orientation
    assert (header.width, header.height) == (150, 99)
    assert turned == ((99, 150) if orientation >= 5 else (150, 99))  # Pillow reads the same


def test_an_orientation_out_of_range_is_none(cat, encoded):
    for orientation in (0, 9, 65535):
        exif = Image.Exif()
        exif[0x0112] = orientation
        assert read_header(encoded(cat, "JPEG", exif=exif)).orientation == 1


@given(st.binary(max_size=80))
def test_exif_that_cannot_be_parsed_costs_nothing(photos, block):
    jpeg = photos["flower.jpg"]
    exif = b"Exif\0\0" + block
    data = jpeg[:2] + b"\xff\xe1" + struct.pack(">H", len(exif) + 2) + exif + jpeg[2:]
    header = read_header(data)
    assert (header.format, header.width, header.height) == ("jpeg", 640, 427)


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def test_exif_behind_the_pixels_of_a_png_is_seen(cat, encoded):
    exif = Image.Exif()
    exif[0x0112] = 6
    png = encoded(cat, "PNG")
    end = png.rindex(b"IEND") - 4
    late = png[:end] + chunk(b"eXIf", exif.tobytes().removeprefix(b"Exif\0\0")) + png[end:]
    assert ImageOps.exif_transpose(Image.open(io.BytesIO(late))).size == (99, 150)
    assert read_header(png).orientation == 1
    assert read_header(late).orientation == 6


def test_a_thumbnail_s_end_is_not_the_image_s(cat, encoded):
    thumbnail = encoded(cat.resize((16, 10)), "JPEG")
    data = encoded(cat, "JPEG", exif=b"Exif\0\0" + b"II*\0" + bytes(8) + thumbnail)
    assert read_header(data).width == 150
    assert reason_of(data[: len(data) // 2]) == "truncated"


def test_reasons(kinds):
    assert reason_of(b"") == "zero_bytes"
    assert reason_of(b"this is a text that is named photo.jpg") == "not_an_image"
    assert reason_of(b"\x00" * 100) == "not_an_image"
    assert reason_of(kinds["jpeg"][:-2]) == "truncated"
    assert reason_of(kinds["png"][:-1]) == "truncated"
    assert reason_of(b"\xff\xd8\xff" + b"garbage") == "unreadable" or reason_of(b"\xff\xd8\xffgarbage") == "truncated"
    assert reason_of(b"\xff\xd8\xff\xda" + bytes(10) + b"\xff\xd9") == "unreadable"  # a scan without a frame


def test_sizes_of_zero_are_unreadable(kinds):
    jpeg = bytearray(kinds["jpeg"])
    frame = jpeg.index(b"\xff\xc0")
    jpeg[frame + 5 : frame + 9] = bytes(4)
    assert reason_of(bytes(jpeg)) == "unreadable"
    png = bytearray(kinds["png"])
    png[16:20] = bytes(4)
    assert reason_of(bytes(png)) == "unreadable"
    assert reason_of(b"GIF89a" + bytes(7) + b"\x2c" + bytes(9) + b"\0\x3b") == "unreadable"


def bmp(header, pixels):
    """A BMP of a header and the pixels that follow it."""
    start = 14 + len(header)
    return struct.pack("<2sIII", b"BM", start + len(pixels), 0, start) + header + pixels


def test_headers_of_bmp_that_nothing_writes_any_more_are_pillow_s():
    os2 = bmp(struct.pack("<IHHHH", 12, 5, 3, 1, 24), bytes(16 * 3))
    masks = struct.pack("<4I", 0xFF0000, 0xFF00, 0xFF, 0xFF000000)
    windows = bmp(struct.pack("<IiiHHIIiiII", 56, 5, -3, 1, 32, 3, 0, 0, 0, 0, 0) + masks, bytes(20 * 3))
    for data, odd in ((os2, ()), (windows, ("alpha",))):
        image, header = Image.open(io.BytesIO(data)), read_header(data)
        assert (header.width, header.height) == image.size == (5, 3)
        assert header.odd == odd
        assert image.has_transparency_data == bool(odd)
    assert reason_of(bmp(struct.pack("<IHHHH", 12, 0, 3, 1, 24), b"")) == "unreadable"


@pytest.mark.parametrize("kind", ["jpeg", "jpeg, progressive", "jpeg, cmyk", "png", "png, palette", "png, 16 bit"])
def test_truncation_anywhere_is_seen_without_decoding(kinds, kind):
    data = kinds[kind]
    for stop in range(0, len(data), max(1, len(data) // 150)):
        assert reason_of(data[:stop]) in ("zero_bytes", "not_an_image", "truncated", "unreadable")


def test_every_flip_in_a_png_is_seen(cat, encoded):
    png = encoded(cat.resize((9, 7)), "PNG")
    for bit in range(8 * len(png)):
        damaged = bytearray(png)
        damaged[bit // 8] ^= 1 << bit % 8
        assert reason_of(bytes(damaged)) in ("not_an_image", "unreadable", "truncated")


STARTS = [b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"RIFF\x40\0\0\0WEBPVP8X", b"GIF89a", b"BM", b"II*\0", b"MM\0*", b""]


@given(st.sampled_from(STARTS), st.binary(max_size=100))
def test_any_bytes_have_a_header_or_an_image_error(start, rest):
    try:
        header = read_header(start + rest)
    except ImageError:
        return
    assert isinstance(header, ImageHeader)
