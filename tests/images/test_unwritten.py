"""Files that end before their last row are refused, even if decoders accept them."""

import io
import os
import random
import struct
import subprocess
import sys
import zlib

import numpy as np
import pytest
from PIL import Image

from tpufeed.errors import ImageError
from tpufeed.images.decoding import decode
from tpufeed.images.geometry import Geometry
from tpufeed.images.masks import decode_mask, store_mask
from tpufeed.images.policy import Images, store_image

POLICIES = [Images(), Images(presize=16), Images(encode="jpeg"), Images(greyscale="rgb")]
# Stores files in a process whose fresh memory is filled, and prints what came.
STORE = """
import hashlib, sys
from tpufeed.errors import ImageError
from tpufeed.images.policy import Images, store_image
for path in sys.argv[1:]:
    try:
        print(hashlib.md5(store_image(open(path, "rb").read(), Images()).data).hexdigest())
    except ImageError as error:
        print(error.reason, error)
"""


def chunk(kind, body):
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png(width, height, raw, colour=0, depth=8, before=(), *, interlace=0, after=(), packed=None):
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, interlace)
    pixels = chunk(b"IDAT", zlib.compress(raw) if packed is None else packed)
    return b"\x89PNG\r\n\x1a\n" + b"".join((chunk(b"IHDR", header), *before, pixels, *after, chunk(b"IEND", b"")))


def refused(data, policy=Images()):  # noqa: B008  # is immutable
    with pytest.raises(ImageError) as caught:
        store_image(data, policy)
    return caught.value.reason


def encoded(image, image_format, **options):
    buffer = io.BytesIO()
    image.save(buffer, image_format, **options)
    return buffer.getvalue()


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("colour", "channels"), [(0, 1), (2, 3), (6, 4)])
def test_a_png_without_its_last_rows(policy, colour, channels):
    rows = [b"\0" + random.Random(number).randbytes(64 * channels) for number in range(64)]
    assert store_image(png(64, 64, b"".join(rows), colour), policy)
    for left in (63, 32, 1):
        data = png(64, 64, b"".join(rows[:left]), colour)
        assert refused(data, policy) == "truncated"
        with pytest.raises(ImageError):
            decode(data)


def test_rows_that_are_black_are_rows():
    for colour, channels in ((0, 1), (2, 3)):
        data = png(64, 64, (b"\0" + bytes(64 * channels)) * 64, colour)
        assert store_image(data, Images()).data == data
        assert not decode(data).any()


def test_an_interlaced_png_without_its_last_pass():
    with io.BytesIO() as buffer:  # 8 x 8: passes of 1, 1, 2, 4, 8, 16 and 32 pixels
        raw = b"".join(b"\0" + bytes([9] * size) for size in (1, 1, 2, 2, 2, 4, 4, 4, 4, 4, 4, 8, 8, 8, 8))
        buffer.write(raw)
    assert store_image(png(8, 8, raw, interlace=1), Images()).kept
    assert refused(png(8, 8, raw[:-9], interlace=1)) == "truncated"


def test_a_png_whose_pixels_have_no_checksum():
    raw = (b"\0" + bytes(range(32))) * 32
    assert refused(png(32, 32, raw, packed=zlib.compress(raw)[:-4])) == "truncated"


def test_a_row_with_a_filter_that_there_is_not():
    raw = (b"\0" + bytes(range(32))) * 31 + b"\7" + bytes(range(32))
    assert refused(png(32, 32, raw)) == "unreadable"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([], []),
        ([], [chunk(b"PLTE", bytes(range(96)))]),
        ([chunk(b"PLTE", bytes(range(96)))] * 2, []),
        ([chunk(b"PLTE", b"")], []),
        ([chunk(b"PLTE", bytes(95))], []),
    ],
)
def test_a_palette_png_without_a_palette_before_its_pixels(before, after):
    raw = (b"\0" + bytes(range(32))) * 32
    assert refused(png(32, 32, raw, 3, before=before, after=after)) == "unreadable"
    assert store_image(png(32, 32, raw, 3, before=[chunk(b"PLTE", bytes(range(96)))]), Images()).kept


def test_a_png_with_values_that_only_some_decoders_pass_over():
    raw = (b"\0" + bytes(range(32))) * 32
    for place, value in (
        (26, 128),
        (27, 1),
        (28, 2),
        (24, 3),
        (25, 5),
    ):  # compression, filter, interlace, depth, colour
        data = bytearray(png(32, 32, raw))
        data[place] = value
        data[29:33] = struct.pack(">I", zlib.crc32(data[12:29]))
        assert refused(bytes(data)) == "unreadable"
    assert refused(png(32, 32, raw, before=[chunk(b"ABCD", b"x")])) == "unreadable"
    assert refused(png(32, 32, raw, before=[png(32, 32, raw)[8:33]])) == "unreadable"  # IHDR again
    text = chunk(b"tEXt", b"a\0the word IDAT in a comment")
    assert store_image(png(32, 32, raw, before=[text], after=[text]), Images()).kept


def test_a_mask_without_its_last_rows():
    rows = (b"\0" + bytes([7] * 64)) * 32
    with pytest.raises(ImageError) as caught:
        store_mask(png(64, 64, rows), "mask", Geometry.identity(64, 64))
    assert caught.value.reason == "bad_mask"


@pytest.mark.parametrize("depth", [1, 2, 4, 8])
def test_the_values_of_a_mask_are_the_samples_of_its_file(depth):
    values = np.random.default_rng(depth).integers(0, 1 << depth, (24, 40), np.uint8)
    bits = (values[..., None] >> np.arange(depth - 1, -1, -1, dtype=np.uint8)) & 1
    packed = np.packbits(bits.reshape(24, -1), axis=1)
    data = png(40, 24, b"".join(b"\0" + row.tobytes() for row in packed), depth=depth)
    for kind in ("mask", "depth"):
        stored = store_mask(data, kind, Geometry.identity(24, 40))
        assert np.array_equal(decode_mask(stored, kind), values)
        assert np.array_equal(decode_mask(data, kind), values)  # as others store it
        assert np.array_equal(np.asarray(Image.open(io.BytesIO(stored))), values)  # as others read it


@pytest.mark.parametrize("interlace", [False, True])
@pytest.mark.parametrize("transparent", [False, True])
def test_a_gif_whose_codes_end_before_its_last_row(interlace, transparent):
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 8, (64, 64), np.uint8) * 30)
    options = {"transparency": 3} if transparent else {}
    data = encoded(picture, "GIF", interlace=interlace, **options)
    assert store_image(data, Images())
    start = data.index(b"\x2c") + 11  # of the first block of codes
    assert data[start] == 255
    # A block's end in the middle, and an end code in it: of 9 bits, as the codes are by then.
    found = {refused(data[:start] + bytes((size,)) + data[start + 1 : start + size] + b"\xff\0;") for size in (60, 200)}
    assert found <= {"truncated", "unreadable"}


def gif(codes, control=b""):
    """A GIF of 16 x 16 pixels, all of whose codes have 9 bits: fewer than 254 follow a clear code."""
    bits = sum(code << (9 * number) for number, code in enumerate(codes))
    packed = bits.to_bytes((9 * len(codes) + 7) // 8, "little")
    blocks = b"".join(bytes((len(part),)) + part for part in (packed[i : i + 255] for i in range(0, len(packed), 255)))
    palette = bytes(level for level in range(256) for _ in range(3))
    head = b"GIF89a" + struct.pack("<HHBBB", 16, 16, 0xF7, 0, 0) + palette
    return head + control + b"\x2c" + struct.pack("<HHHHB", 0, 0, 16, 16, 0) + b"\x08" + blocks + b"\0;"


@pytest.mark.parametrize("control", [b"", b"\x21\xf9\x04\x01\0\0\x05\0"])
def test_a_gif_with_an_end_code_in_its_middle(control):
    clear, end = 256, 257
    rows = [clear, *range(1, 129), clear, *range(1, 129), end]
    assert store_image(gif(rows, control), Images()).height == 16
    assert store_image(gif([clear, *[0] * 128, clear, *[5] * 128, end], control), Images()).height == 16
    assert refused(gif([clear, *range(1, 129), end], control)) == "truncated"


@pytest.mark.first_cases(23)
@pytest.mark.parametrize("compression", ["group4", "group3", "tiff_ccitt"])
@pytest.mark.parametrize("rows", [7, 64, 1000])
@pytest.mark.parametrize("width", [1, 63, 64, 200, 2600])
def test_sound_fax_tiffs_are_taken(compression, rows, width):
    picture = Image.fromarray(np.random.default_rng(0).random((70, width)) < 0.3)
    for order in (1, 2):
        data = encoded(picture, "TIFF", compression=compression, tiffinfo={278: rows, 266: order})
        assert np.array_equal(decode(store_image(data, Images()).data)[..., 0] > 0, np.asarray(picture))


def damaged_tiffs(folder):
    rng = np.random.default_rng(0)
    blocks = np.repeat(np.repeat(rng.integers(0, 2, (75, 75), np.uint8) * 255, 8, 0), 8, 1)
    for compression in ("group4", "group3", "tiff_ccitt", "jpeg"):
        image = Image.fromarray(blocks)
        for rows in (64, 1000):
            image = image if compression == "jpeg" else image.convert("1")
            good = encoded(image, "TIFF", compression=compression, tiffinfo={278: rows})
            with Image.open(io.BytesIO(good)) as opened:
                start, length = opened.tag_v2[273][-1], opened.tag_v2[279][-1]
            for number in range(4):
                data = bytearray(good)
                at = start + length // 4 + number * length // 8
                data[at : at + 40] = bytes(40) if number % 2 else rng.integers(0, 256, 40, np.uint8).tobytes()
                path = folder / f"{compression}_{rows}_{number}.tif"
                path.write_bytes(data[: len(good)])
                yield path
    # A JPEG of 300 rows; the tags say 600.
    data = bytearray(encoded(Image.fromarray(blocks[:304]), "TIFF", compression="jpeg", tiffinfo={278: 304}))
    (first,) = struct.unpack_from("<I", data, 4)
    for at in range(first + 2, first + 2 + 12 * struct.unpack_from("<H", data, first)[0], 12):
        tag, kind = struct.unpack_from("<HH", data, at)
        if tag in (257, 278):
            struct.pack_into("<H" if kind == 3 else "<I", data, at + 8, 600)
    path = folder / "short.tif"
    path.write_bytes(data)
    yield path


@pytest.mark.all
def test_damaged_tiffs_are_stored_alike_in_all_processes_or_refused(tmp_path):
    paths = list(damaged_tiffs(tmp_path))
    found = []
    for fill in ("17", "170"):
        # Blocks beyond the threshold come from the kernel, which clears them.
        memory = {"MALLOC_PERTURB_": fill, "MALLOC_MMAP_THRESHOLD_": str(32 << 20)}
        command = [sys.executable, "-c", STORE, *map(str, paths)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ | memory)
        found.append(done.stdout.splitlines())
    assert found[0] == found[1]
    by_name = dict(zip((path.name for path in paths), found[0], strict=True))
    assert by_name["short.tif"].startswith("truncated")
    assert sum(" " in said for name, said in by_name.items() if name.startswith("group4")) >= 6
    assert all(" " in said for name, said in by_name.items() if name.startswith("jpeg"))


def tiff(fields, pixels):
    start, directory, behind = 8 + len(pixels), struct.pack("<H", len(fields)), b""
    for tag, values in sorted(fields.items()):
        packed = struct.pack(f"<{len(values)}I", *values)
        if len(values) > 1:
            packed, behind = struct.pack("<I", start + 6 + 12 * len(fields) + len(behind)), behind + packed
        directory += struct.pack("<HHI", tag, 4, len(values)) + packed
    return b"II*\0" + struct.pack("<I", start) + pixels + directory + bytes(4) + behind


def test_a_small_tiff_does_not_unpack_a_tile_of_a_gigabyte():
    pixels = zlib.compress(bytes(1000))
    fields = {256: [16], 257: [16], 258: [8], 259: [8], 262: [1], 277: [1], 324: [8], 325: [len(pixels)]}
    assert refused(tiff(fields | {322: [32768], 323: [32768]}, pixels)) == "too_large"
    assert refused(tiff(fields | {322: [16], 323: [16], 257: [64]}, pixels)) == "truncated"  # four tiles are needed


def test_files_that_say_that_they_are_larger_are_refused_before_memory_is_taken():
    data = bytearray(encoded(Image.new("RGB", (9, 9)), "BMP"))
    struct.pack_into("<ii", data, 18, 10_000, 9_000)
    assert refused(bytes(data)) == "truncated"
    fields = {256: [10_000], 257: [9_000], 258: [8], 259: [1], 262: [1], 277: [1], 273: [8], 279: [9], 278: [9_000]}
    assert refused(tiff(fields, bytes(9))) == "truncated"


@pytest.mark.parametrize(
    ("bands", "extra", "odd"),
    [(3, [], ()), (4, [], ("bands",)), (4, [0], ("bands",)), (4, [2], ("alpha",)), (5, [2, 0], ("alpha", "bands"))],
)
def test_bands_of_a_tiff_that_are_no_alpha_are_left_out_and_counted(bands, extra, odd):
    pixels = np.random.default_rng(0).integers(0, 256, (20, 30, bands), np.uint8)
    fields = {256: [30], 257: [20], 258: [8] * bands, 259: [1], 262: [2], 273: [8], 277: [bands], 278: [20]}
    fields |= {279: [pixels.size]} | ({338: extra} if extra else {})
    data = tiff(fields, pixels.tobytes())
    image = store_image(data, Images())
    assert image.odd == odd
    if "alpha" not in odd:
        assert np.array_equal(decode(image.data), pixels[..., :3])
    if "bands" in odd:
        assert refused(data, Images(bands="reject")) == "unsupported"
        assert "bands" not in Images().to_dict()  # older datasets grow


@pytest.mark.parametrize("depth", [1, 2, 4, 8, 16])
def test_a_transparent_grey_is_a_sample_of_the_file(depth):
    values = (np.arange(64).reshape(8, 8) % (1 << depth)).astype(np.uint16)
    bits = (values[..., None] >> np.arange(depth - 1, -1, -1, dtype=np.uint16)) & 1
    rows = np.packbits(bits.astype(np.uint8).reshape(8, -1), axis=1)
    level = 1
    data = png(8, 8, b"".join(b"\0" + row.tobytes() for row in rows), 0, depth, [chunk(b"tRNS", b"\0\1")])
    pixels = decode(store_image(data, Images()).data)[..., 0]
    assert (pixels[values == level] == 255).all()
    others = values != level
    assert np.abs(pixels[others] - values[others] * (255 / ((1 << depth) - 1))).max() <= 1


def test_a_transparent_colour_of_16_bits_is_compared_in_16_bits():
    row = struct.pack(">6H", 1000, 2000, 3000, 1001, 2000, 3000)
    data = png(2, 1, b"\0" + row, 2, 16, [chunk(b"tRNS", struct.pack(">3H", 1000, 2000, 3000))])
    assert decode(store_image(data, Images()).data).tolist() == [[[255] * 3, [3, 7, 11]]]
    assert decode(store_image(data, Images(alpha="black")).data).tolist() == [[[0] * 3, [3, 7, 11]]]
