"""JPEGs that a decoder must not be given, or not at a reduced size: lossless ones, other kinds, and bombs of scans."""

import base64
import io
import struct

import numpy as np
import pytest
from PIL import Image

from tests.images.reading import decode_upright
from tpufeed.errors import ImageError
from tpufeed.images import CenterCrop, RandomResizedCrop, Resize
from tpufeed.images.decoding import decode, image_size
from tpufeed.images.header import read_jpeg_header
from tpufeed.images.pipeline import Pipeline
from tpufeed.images.policy import Images, store_image

POLICIES = {
    "default": Images(),
    "header": Images(check="header"),
    "exact": Images(encode="exact"),
    "presize": Images(presize=8),
    "png": Images(encode="png"),
}
READERS = {
    "decode": decode,
    "eighth": lambda data: decode(data, 8),
    "upright": decode_upright,
    "resize": lambda data: Pipeline([Resize(32)], 0).run_stored(memoryview(data), None, [()]),
} | {name: lambda data, policy=policy: store_image(data, policy) for name, policy in POLICIES.items()}


def segment(marker, body):
    return bytes((0xFF, marker)) + struct.pack(">H", len(body) + 2) + body


def bits(text):
    text += "1" * (-len(text) % 8)
    return int(text, 2).to_bytes(len(text) // 8, "big").replace(b"\xff", b"\xff\0")


def frame(kind, height, width, components, factors=0x11, precision=8):
    entries = b"".join(bytes((number + 1, factors if not number else 0x11, 0)) for number in range(components))
    return segment(kind, struct.pack(">BHHB", precision, height, width, components) + entries)


def lossless(height, width, components, jfif=False, share=1.0):
    """Levels that rise by one a row from 128 on: predictor 2, of the pixel above; then a share of its scan."""
    head = b"\xff\xd8" + (segment(0xE0, b"JFIF\0\1\1\0\0\1\0\1\0\0") if jfif else b"")
    head += frame(0xC3, height, width, components)
    head += segment(0xC4, b"\0" + bytes([0, 2] + [0] * 14) + b"\0\1")  # differences: '00' is 0, '01' and a sign is +-1
    named = b"".join(bytes((number + 1, 0)) for number in range(components))
    head += segment(0xDA, bytes([components]) + named + b"\2\0\0")
    text = "00" * (width * components) + "011" * (width * components * (height - 1))
    return head + bits(text[: int(len(text) * share)]) + b"\xff\xd9"


def by_pillow(data):
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


@pytest.mark.parametrize("components", [1, 3, 4])
def test_a_lossless_jpeg_is_never_decoded_at_a_reduced_size(components):
    """libjpeg-turbo wrote all of it into memory for an eighth: a crash, with a large one."""
    data = lossless(120, 900, components)
    expected = by_pillow(data)
    assert len(np.unique(expected)) > 100
    for reduce in (1, 2, 4, 8):
        assert np.array_equal(decode(data, reduce), expected)
    for ops in ([Resize(32)], [CenterCrop(64)], [RandomResizedCrop(20)]):
        pipeline = Pipeline(ops, 3)
        draws = [op[0] for op in pipeline.draw(0, np.arange(1))]
        assert np.array_equal(pipeline.run_stored(memoryview(data), None, draws), pipeline.run(expected, draws))
    stored = store_image(data, Images(encode="png"))
    assert np.array_equal(decode(stored.data), expected)
    for name, policy in POLICIES.items():
        stored = store_image(data, policy)
        assert not stored.kept, name
        side = 8 if name == "presize" else 120
        assert decode(stored.data).shape[0] == stored.height == side
    cut = lossless(120, 900, components, share=0.5)
    for name, read in READERS.items():
        with pytest.raises(ImageError) as caught:
            read(cut)
        assert caught.value.reason in ("truncated", "unreadable"), name


def twelve_bits():
    """One block of 12 bits."""
    tables = segment(0xC4, b"\0" + bytes([1] + [0] * 15) + b"\0") + segment(
        0xC4, b"\x10" + bytes([1] + [0] * 15) + b"\0"
    )
    head = b"\xff\xd8" + segment(0xDB, b"\0" + bytes([8] * 64)) + frame(0xC1, 8, 8, 1, precision=12) + tables
    return head + segment(0xDA, b"\1\1\0\0\x3f\0") + bits("00") + b"\xff\xd9"


def sequential(components):
    tables = segment(0xC4, b"\0" + bytes([1] + [0] * 15) + b"\0") + segment(
        0xC4, b"\x10" + bytes([1] + [0] * 15) + b"\0"
    )
    head = b"\xff\xd8" + segment(0xDB, b"\0" + bytes([8] * 64)) + frame(0xC0, 8, 8, components) + tables
    named = b"".join(bytes((number + 1, 0)) for number in range(components))
    return head + segment(0xDA, bytes([components]) + named + b"\0\x3f\0") + bits("00" * components) + b"\xff\xd9"


UNSUPPORTED = {
    "12 bits": twelve_bits(),
    "2 components": sequential(2),
    "5 components": sequential(5),
    "lossless in YCbCr": lossless(16, 16, 3, jfif=True),
    "lossless of 2 components": lossless(16, 16, 2),
    "hierarchical": sequential(3).replace(b"\xff\xc0", b"\xff\xc5"),
    "lossless, arithmetic": lossless(16, 16, 3).replace(b"\xff\xc3", b"\xff\xcb"),
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_what_no_decoder_gives_pixels_of_is_rejected_with_its_cause(name):
    for reader, read in READERS.items():
        if name == "lossless in YCbCr" and reader == "header":
            continue
        with pytest.raises(ImageError) as caught:
            read(UNSUPPORTED[name])
        assert caught.value.reason == "unsupported", reader
    assert by_pillow(sequential(3)).shape == (8, 8, 3)  # but for what its name says, each is a sound file


# Of libjpeg-turbo, `arith_code` and `jpeg_simple_progression`: 24 x 16 pixels.
ARITHMETIC = {
    "sequential": (
        "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAAgGBgcGBQgHBwcJCQgKDBQNDAsLDBkSEw8UHRofHh0aHBwgJC4nICIsIxwcKDcpLDAxNDQ0Hyc5"
        "PTgyPC4zNDL/2wBDAQkJCQwLDBgNDRgyIRwhMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjL/yQAR"
        "CAAQABgDASIAAhEBAxEB/8wACgAQEAUBEBEF/9oADAMBAAIRAxEAPwD/AJqs0fm7S/Ot1obZsM7jJov4txeRuoj4W+7JoKbBvYKNAf8A23Lo"
        "q3nGor3EDi+UHUwekfvSUprSUoI2vkieY2jr6BIlx/TSgioM/9k="
    ),
    "progressive": (
        "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAAgGBgcGBQgHBwcJCQgKDBQNDAsLDBkSEw8UHRofHh0aHBwgJC4nICIsIxwcKDcpLDAxNDQ0Hyc5"
        "PTgyPC4zNDL/2wBDAQkJCQwLDBgNDRgyIRwhMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjL/ygAR"
        "CAAQABgDASIAAhEBAxEB/8wABgAQARD/2gAMAwEAAhADEAAAAf8ANXOdAmf/ANjqPCn/zAAEEAX/2gAIAQEAAQUCHq/CO7msgP/MAAQRBf/a"
        "AAgBAwEBPwHA/8wABBEF/9oACAECAQE/AcD/zAAEEAX/2gAIAQEABj8CwP/MAAQQBf/aAAgBAQABPyG4AkE5/aV/0it6CUD/2gAMAwEAAgAD"
        "AAAAEODg/8wABBEF/9oACAEDAQE/EP2M/8wABBEF/9oACAECAQE/EHyM/8wABBAF/9oACAEBAAE/EKZ76cpbgWdZ/wAlpK4P3i+ytnSLU9+X"
        "CfFTCJHTRqLW46OgJZHE/9k="
    ),
}


@pytest.mark.parametrize("name", ARITHMETIC)
def test_arithmetic_codes_are_decoded_and_never_stored(name):
    data = base64.b64decode(ARITHMETIC[name])
    expected = by_pillow(data)
    assert expected.std() > 20
    assert np.array_equal(decode(data), expected)
    assert decode(data, 8).shape == (2, 3, 3)
    for policy in (Images(), Images(encode="exact"), Images(progressive="baseline")):
        stored = store_image(data, policy)
        assert not stored.kept
        assert Image.open(io.BytesIO(stored.data)).info.get("progressive") is None
        assert np.abs(decode(stored.data).astype(int) - expected).mean() < 6


def bomb(height, width, pairs, between=b""):
    """Each pair of scans brings the last two bits of all AC levels, all 0: in 3 bytes for 32,767 blocks."""
    blocks = -(-height // 8) * -(-width // 8)
    data = b"\xff\xd8" + segment(0xDB, b"\0" + bytes([1] * 64)) + frame(0xC2, height, width, 1)
    data += segment(0xC4, b"\0" + bytes([1] + [0] * 15) + b"\0") + segment(
        0xC4, b"\x10" + bytes([1] + [0] * 15) + b"\xe0"
    )
    data += segment(0xDA, b"\1\1\0\0\0\0") + bits("0" * blocks)
    runs, left = "", blocks
    while left:
        run = left if left <= 32767 else 32767 if left - 32767 >= 16384 else left - 16384
        size = run.bit_length() - 1
        runs += "0" + format(run - (1 << size), f"0{size}b")
        left -= run
    assert blocks >= 16384  # of which the one symbol, 0xE0, codes runs
    first, following = (segment(0xDA, b"\1\1\0\1\x3f" + bytes([bit])) + bits(runs) for bit in (0x01, 0x10))
    return data + between + (first + following) * pairs + b"\xff\xd9"


@pytest.mark.parametrize("between", [b"", segment(0xFE, b"\xff\xd9"), b"\xff\xd0\xff\xff"], ids=["", "comment", "fill"])
def test_scans_that_take_long_to_decode_are_refused_before_a_decoder_sees_them(between):
    """151 KB of 8192 x 8192 pixels took 16 s. A comment with the bytes of an end marker hides nothing."""
    data = bomb(8192, 8192, 25, between=between)
    for read in READERS.values():
        with pytest.raises(ImageError) as caught:
            read(data)
        assert caught.value.reason == "too_large"


def test_a_baseline_file_with_scans_again_and_again_is_a_bomb_as_well():
    data = sequential(3).replace(frame(0xC0, 8, 8, 3), frame(0xC0, 8192, 8192, 3))
    scan = segment(0xDA, b"\1\1\0\0\x3f\0")
    data = data[: data.index(b"\xff\xda")] + scan * 60 + b"\xff\xd9" + bytes(1_000_000)  # bits for all of its blocks
    with pytest.raises(ImageError) as caught:
        decode(data)
    assert caught.value.reason == "too_large"


def test_scans_beyond_any_use_are_refused_whatever_the_size():
    for pairs, refused in ((240, False), (260, True)):
        data = bomb(1024, 1024, pairs)
        if refused:
            with pytest.raises(ImageError, match="500"):
                read_jpeg_header(data)
        else:
            assert read_jpeg_header(data).width == 1024


def test_photographs_in_many_scans_are_decoded(encoded, photos):
    """Those of Pillow have 10. 64 are tried by mozjpeg's search, of which it keeps 15 at most."""
    picture = Image.open(io.BytesIO(photos["china.jpg"]))
    assert store_image(encoded(picture, "JPEG", progressive=True), Images()).kept
    data = bomb(3800, 4000, 32)
    stored = store_image(data, Images(check="header"))
    assert stored.kept
    # Scans of a picture behind the end marker count for nothing.
    many = encoded(picture, "JPEG", progressive=True) + b"\xff\xda" * 5000
    assert store_image(many, Images()).kept


def test_a_header_of_more_pixels_than_the_file_has_bits_for_is_truncated(encoded):
    for options in ({}, {"progressive": True}):
        data = bytearray(encoded(Image.new("RGB", (64, 64)), "JPEG", **options))
        at = data.index(b"\xff\xc2" if options else b"\xff\xc0")
        data[at + 5 : at + 9] = b"\x34\x00\x34\x00"  # 13,312 x 13,312, of which libjpeg would keep 1 GB of coefficients
        for read in (decode, image_size, READERS["default"], READERS["header"]):
            with pytest.raises(ImageError) as caught:
                read(bytes(data))
            assert caught.value.reason == "truncated"
    grey = encoded(Image.new("L", (4096, 4096)), "JPEG", optimize=True)  # as few bits as a sound file can have
    assert len(grey) < 100_000
    assert decode(grey).shape == (4096, 4096, 3)
