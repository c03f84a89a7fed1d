"""Decoding against Pillow, and what strict decoding refuses."""

import io
import random

import numpy as np
import pytest
from PIL import Image, ImageOps

from tests.images.reading import decode_upright
from tpufeed.errors import ImageError
from tpufeed.images.decoding import decode, image_size


def by_pillow(data):
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB")).astype(int)


def difference(one, other):
    return float(np.abs(one.astype(int) - other.astype(int)).mean())


def damage_scan(jpeg, seed, change):
    """`change(bytearray, place)` at a place well within the last scan."""
    data, start = bytearray(jpeg), jpeg.rindex(b"\xff\xda") + 40
    change(data, random.Random(seed).randrange(start, len(jpeg) - 200))
    return bytes(data)


def cut_out(data, place):
    del data[place : place + 100]


def overwrite(data, place):
    data[place : place + 2] = b"\xff\xc5"  # no marker may stand there


def test_photographs_decode_as_pillow_decodes_them(photo_files):
    for path in photo_files:
        data = path.read_bytes()
        pixels = decode(data)
        assert pixels.dtype == np.uint8
        assert pixels.shape == (*image_size(data), 3)
        assert difference(pixels, by_pillow(data)) < (0.6 if path.suffix == ".jpg" else 1e-9)


@pytest.mark.all
def test_every_kind_decodes_to_rgb(kinds):
    for kind, data in kinds.items():
        pixels = decode(data)
        stored = Image.open(io.BytesIO(data)).size[::-1]
        assert pixels.shape == (*stored, 3), kind
        assert image_size(data) == stored, kind
        assert decode(memoryview(data)).tolist() == pixels.tolist()


@pytest.mark.parametrize("reduce", [1, 2, 4, 8])
def test_a_jpeg_comes_out_smaller_by_reduce_rounded_up(photos, kinds, reduce):
    for data in (photos["flower.jpg"], kinds["jpeg"], kinds["jpeg, progressive"], kinds["jpeg, grey"]):
        height, width = image_size(data)
        pixels = decode(data, reduce)
        assert pixels.shape == (-(-height // reduce), -(-width // reduce), 3)
        averaged = Image.fromarray(decode(data)).reduce(reduce)
        assert difference(pixels, np.asarray(averaged)) < 4


@pytest.mark.all
@pytest.mark.parametrize("reduce", [1, 2, 8])
def test_a_buffer_is_what_pixels_lie_in(photos, reduce):
    memory = []

    def buffer(size):
        memory.append(np.full(size + 100, 7, np.uint8))
        return memory[-1]

    pixels = decode(photos["china.jpg"], reduce, buffer)
    assert np.shares_memory(pixels, memory[0])
    assert (memory[0][pixels.size :] == 7).all()
    assert pixels.tolist() == decode(photos["china.jpg"], reduce).tolist()


@pytest.mark.first_cases(8)
@pytest.mark.parametrize(
    ("image_format", "orientation"),
    [*(("JPEG", number) for number in range(1, 9)), ("PNG", 3), ("TIFF", 5), ("WEBP", 6)],
)
def test_upright_is_what_pillow_makes_upright(cat, encoded, orientation, image_format):
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"lossless": True} if image_format == "WEBP" else {}
    data = encoded(cat, image_format, exif=exif, **options)
    expected = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))))
    pixels = decode_upright(data)
    assert pixels.tolist() == expected.tolist()
    assert pixels.shape == ((150, 99, 3) if orientation >= 5 else (99, 150, 3))


def test_sixteen_bits_are_scaled_to_eight(encoded):
    values = np.arange(0, 65536, 257, dtype=np.uint16).reshape(16, 16)  # what eight bits hold exactly
    data = encoded(Image.fromarray(values), "PNG")
    assert decode_upright(data)[..., 0].tolist() == (values // 257).tolist()
    assert decode(data)[..., 1].tolist() == (values // 257).tolist()


def test_a_bug_of_ours_is_no_image_error(encoded, kinds, monkeypatch):
    def fail(*_):
        raise ValueError("a bug")

    with pytest.raises(ValueError, match=r"^a bug$") as caught:
        decode(kinds["jpeg"], buffer=fail)
    assert caught.type is ValueError
    monkeypatch.setattr("tpufeed.images.decoding.to_8_bits", fail)
    for read in (decode, decode_upright):
        with pytest.raises(ValueError, match=r"^a bug$") as caught:
            read(encoded(Image.fromarray(np.zeros((8, 8), np.uint16)), "PNG"))
        assert caught.type is ValueError


def odd_sampling(encoded, luma, red):
    """A grey JPEG of 64 x 64 pixels with these sampling factors: every block is a zero of the first Huffman tables."""
    data = bytearray(encoded(Image.new("RGB", (64, 64)), "JPEG", subsampling=0))
    frame, scan = data.index(b"\xff\xc0"), data.index(b"\xff\xda")
    data[frame + 11], data[frame + 17] = luma, red
    data[scan + 6] = data[scan + 8] = data[scan + 10] = 0  # which tables the components use
    across, down = max(luma >> 4, red >> 4), max(luma & 15, red & 15)
    blocks = (luma >> 4) * (luma & 15) + 1 + (red >> 4) * (red & 15)
    bits = "001010" * (blocks * -(-8 // across) * -(-8 // down))
    bits += "1" * (-len(bits) % 8)
    return bytes(data[: scan + 14]) + int(bits, 2).to_bytes(len(bits) // 8, "big") + b"\xff\xd9"


@pytest.mark.parametrize(
    ("luma", "red"), [(0x14, 0x11), (0x31, 0x11), (0x41, 0x11), (0x42, 0x11), (0x12, 0x12), (0x11, 0x22)]
)
def test_subsamplings_that_simplejpeg_does_not_know_decode_all_the_same(encoded, luma, red):
    data = odd_sampling(encoded, luma, red)
    assert image_size(data) == (64, 64)
    assert by_pillow(data).min() == by_pillow(data).max() == 128
    for pixels in (decode(data), decode_upright(data), decode(data, 2)):
        assert pixels.min() == pixels.max() == 128


READERS = {"full": decode, "eighth": lambda data: decode(data, 8), "upright": decode_upright}


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
@pytest.mark.parametrize("kind", ["jpeg", "jpeg, progressive", "jpeg, cmyk", "jpeg, turned", "jpeg, grey"])
def test_a_marker_within_a_scan_is_refused(kinds, read, kind):
    for seed in range(10):
        with pytest.raises(ImageError) as caught:
            read(damage_scan(kinds[kind], seed, overwrite))
        assert caught.value.reason == "unreadable"


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
@pytest.mark.parametrize("kind", ["jpeg", "jpeg, progressive", "jpeg, cmyk", "jpeg, turned", "jpeg, grey"])
def test_a_scan_that_lacks_bytes_is_mostly_refused(kinds, read, kind):
    """Where as many blocks come out of the rest by chance, it is another valid scan: no decoder can tell."""
    refused = 0
    for seed in range(20):
        try:
            read(damage_scan(kinds[kind], seed, cut_out))
        except ImageError:
            refused += 1
    assert refused >= 10


@pytest.mark.parametrize(
    "data", [b"", b"text", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"BM", b"II*\0" + bytes(9)]
)
@pytest.mark.parametrize("read", [decode, decode_upright, image_size])
def test_what_is_no_image_is_an_image_error(read, data):
    with pytest.raises(ImageError) as caught:
        read(data)
    assert caught.value.reason in ("not_an_image", "unreadable", "truncated", "zero_bytes")


@pytest.mark.parametrize("kind", ["jpeg", "jpeg, cmyk", "jpeg, turned"])
@pytest.mark.parametrize("read", [decode, decode_upright, image_size, lambda data: decode(data, 8)])
def test_a_header_of_too_many_pixels_is_refused_before_memory_is_asked_for(kinds, kind, read):
    data = bytearray(kinds[kind])
    frame = data.index(b"\xff\xc0")
    data[frame + 5 : frame + 9] = b"\xff\xdc\xff\xdc"  # 65,500 x 65,500
    with pytest.raises(ImageError, match="too many pixels") as caught:
        read(bytes(data))
    assert caught.value.reason == "too_large"


def test_a_bomb_of_another_format_is_refused(encoded):
    data = bytearray(encoded(Image.new("RGB", (8, 8)), "BMP"))
    data[18:26] = (60_000).to_bytes(4, "little") * 2
    with pytest.raises(ImageError) as caught:
        decode(bytes(data))
    assert caught.value.reason == "too_large"


@pytest.mark.all
@pytest.mark.filterwarnings("ignore::UserWarning")  # Pillow warns of EXIF that it cannot parse
def test_damaged_files_of_every_kind_are_images_or_image_errors(kinds):
    rng = random.Random(0)
    outcomes = set()
    for _ in range(1500):
        kind = rng.choice([*kinds])
        data = bytearray(kinds[kind])
        for _ in range(rng.choice([1, 1, 3])):
            data[rng.randrange(min(len(data), rng.choice([60, 300, len(data)])))] = rng.choice(
                [0, 255, rng.randrange(256)]
            )
        if kind.startswith("tiff"):  # a size that fits and no pixels: seconds each
            data = data[: rng.randrange(1, len(data))]
        for read in (decode, decode_upright, image_size):
            try:
                read(bytes(data))
                outcomes.add("image")
            except ImageError as error:
                outcomes.add(error.reason)
    allowed = {"image", "unreadable", "truncated", "not_an_image", "unsupported", "too_large", "zero_bytes"}
    assert {"image", "unreadable"} <= outcomes <= allowed
