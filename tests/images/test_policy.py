"""What becomes of image files, against Pillow and TensorFlow."""

import io
import json
import random
import re

import numpy as np
import pytest
from PIL import Image

from tests.frameworks import lazy
from tests.images.reading import decode_upright, segments_of
from tpufeed.errors import ImageError, OptionError
from tpufeed.images.decoding import decode
from tpufeed.images.header import read_jpeg_header
from tpufeed.images.policy import Images, store_image

tf = lazy("tensorflow")

FULL, HEADER, EXACT = Images(), Images(check="header"), Images(encode="exact")
JPEG = {"jpeg", "jpeg, 4:4:4", "jpeg, progressive", "jpeg, grey"}
KEPT = {*JPEG, "png", "png, grey", "png, palette", "webp", "webp, lossless"}
GREY = {"jpeg, grey", "png, grey", "png, grey and alpha", "png, 16 bit", "png, 1 bit"}


def reason_of(data, policy=FULL):
    with pytest.raises(ImageError) as caught:
        store_image(data, policy)
    return caught.value.reason


def difference(one, other):
    return float(np.abs(one.astype(int) - other.astype(int)).mean())


@pytest.mark.parametrize("policy", [FULL, HEADER, EXACT], ids=["full", "header", "exact"])
def test_photographs_keep_their_own_bytes_but_for_restart_markers(photo_files, policy):
    for path in photo_files:
        data, picture = path.read_bytes(), Image.open(path)
        image = store_image(data, policy)
        assert image.kept
        if policy is EXACT or path.suffix != ".jpg":
            assert image.data is data
            assert (image.added_bytes, image.unmarked) == (None, "")
        elif image.unmarked:
            assert image.data is data
        else:
            assert 0 < image.added_bytes == len(image.data) - len(data) < len(data) / 100
            np.testing.assert_array_equal(decode(image.data), decode(data))
        assert (image.width, image.height) == picture.size
        assert image.format == path.suffix[1:].replace("jpg", "jpeg")
        assert image.channels == (1 if picture.mode == "L" else 3)


@pytest.mark.parametrize("policy", [FULL, HEADER], ids=["full", "header"])
def test_every_kind_is_stored_upright_in_eight_bits(kinds, policy):
    for kind, data in kinds.items():
        image = store_image(data, policy)
        stored = Image.open(io.BytesIO(image.data))
        assert image.kept == (kind in KEPT), kind
        assert (image.data == data) == image.kept
        assert image.format == stored.format.lower()
        assert image.format == (kind.split(",")[0] if kind.startswith(("jpeg", "webp")) else "png")
        assert (image.height, image.width) == stored.size[::-1] == decode_upright(data).shape[:2]
        assert image.channels == (1 if kind in GREY else 3), kind
        assert stored.mode in ("L", "RGB", "P")
        assert stored.getexif().get(0x0112, 1) == 1
        tolerance = 0 if image.format == "png" or image.kept else 4
        upright = np.broadcast_to(decode_upright(data), (image.height, image.width, 3))
        assert difference(decode(image.data), upright) <= tolerance + 0.01, kind


@pytest.mark.uses("tensorflow")
def test_tensorflow_sees_what_we_see(kinds):
    for kind, data in kinds.items():
        image = store_image(data, FULL)
        pixels = tf.io.decode_image(image.data, channels=3, expand_animations=False).numpy()
        assert pixels.shape == (image.height, image.width, 3)
        assert difference(pixels, decode(image.data)) < 1.5, kind  # another DCT


def test_reasons(kinds, encoded):
    assert reason_of(b"") == "zero_bytes"
    assert reason_of(b"This is a text.\nSomeone has named it photo.jpg\n" * 10) == "not_an_image"
    assert reason_of(b"<svg xmlns='http://www.w3.org/2000/svg'/>") == "not_an_image"
    assert reason_of(b"%PDF-1.4 ...") == "not_an_image"
    assert reason_of(kinds["jpeg"][:-5]) == "truncated"
    bomb = bytearray(encoded(Image.new("RGB", (8, 8)), "BMP"))
    bomb[18:26] = (60_000).to_bytes(4, "little") * 2
    assert reason_of(bytes(bomb)) == "too_large"


def damaged_scan(jpeg):
    damaged = bytearray(jpeg)
    middle = len(jpeg) // 2
    damaged[middle : middle + 2] = b"\xff\xc5"
    return bytes(damaged)


def test_a_damaged_scan_passes_the_header_check_and_fails_the_full_one(photos, kinds):
    for data in (photos["china.jpg"], kinds["jpeg"], kinds["jpeg, grey"]):
        damaged = damaged_scan(data)
        assert store_image(damaged, HEADER).data == damaged
        assert reason_of(damaged, FULL) == "unreadable"


def test_what_is_encoded_anew_is_decoded_strictly_under_either_check(kinds):
    for kind in ("jpeg, turned", "jpeg, cmyk"):
        for policy in (FULL, HEADER, Images(presize=32)):
            assert reason_of(damaged_scan(kinds[kind]), policy) == "unreadable"
    assert reason_of(damaged_scan(kinds["jpeg"]), Images(check="header", presize=32)) == "unreadable"


@pytest.mark.uses("tensorflow")
def test_what_passes_the_full_check_stops_no_training_in_tensorflow(kinds):
    """Random damage: whatever is still taken, TensorFlow decodes as well."""
    rng = random.Random(3)
    taken, reasons = 0, set()
    for turn in range(300):
        data = bytearray(kinds["png" if turn % 3 == 0 else "jpeg" if turn % 3 == 1 else "jpeg, progressive"])
        for _ in range(rng.choice([1, 1, 4])):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        try:
            image = store_image(bytes(data), FULL)
        except ImageError as error:
            reasons.add(error.reason)
            continue
        taken += 1
        assert tf.io.decode_image(image.data, channels=3).shape[:2] == (image.height, image.width)
    assert 20 < taken < 280
    assert {"unreadable"} <= reasons <= {"unreadable", "truncated", "not_an_image", "unsupported"}


@pytest.mark.parametrize("presize", [8, 33, 64, 99])
def test_presize_brings_the_shorter_side_to_it(kinds, presize):
    policy = Images(presize=presize)
    for kind, data in kinds.items():
        image = store_image(data, policy)
        height, width = decode_upright(data).shape[:2]
        assert min(image.height, image.width) == presize, kind
        assert abs(max(image.height, image.width) - presize * 150 / 99) <= 0.5
        assert (image.height < image.width) == (height < width)
        assert image.channels == (1 if kind in GREY else 3)
        assert image.kept == (kind in KEPT and presize == 99)
        assert decode(image.data).shape[:2] == (image.height, image.width)


def test_quality_is_the_jpeg_s(photos):
    sizes = [len(store_image(photos["china.jpg"], Images(presize=200, quality=q)).data) for q in (1, 50, 90, 100)]
    assert sizes == sorted(set(sizes))


@pytest.mark.parametrize("encode", ["jpeg", "png", "webp"])
def test_everything_is_of_the_format_that_is_asked_for(kinds, encode):
    policy = Images(encode=encode, quality=95)
    for kind, data in kinds.items():
        image = store_image(data, policy)
        assert image.format == encode == Image.open(io.BytesIO(image.data)).format.lower()
        assert image.kept == (kind in KEPT and kind.startswith(encode)), kind
        assert image.channels == (1 if kind in GREY and encode != "webp" else 3)
        tolerance = 0 if image.kept or encode == "png" else 5
        upright = np.broadcast_to(decode_upright(data), (image.height, image.width, 3))
        assert difference(decode(image.data), upright) <= tolerance, kind


def test_sides_that_a_format_cannot_hold_are_refused(encoded):
    wide = encoded(Image.new("L", (70_000, 1)), "PNG")
    assert reason_of(wide, Images(encode="jpeg")) == "too_large"
    assert reason_of(wide, Images(encode="webp")) == "too_large"
    assert store_image(wide, FULL).kept


def test_a_policy_is_plain_data_under_stable_names():
    data = Images(presize=256).to_dict()
    assert json.loads(json.dumps(data)) == data
    assert Images(**{name: value for name, value in data.items() if name != "restart_markers"}) == Images(presize=256)
    assert data == {
        "check": "full",
        "encode": "keep",
        "quality": 90,
        "presize": 256,
        "presize_mode": "short",
        "max_pixels": 178_956_970,
        "min_side": 1,
        "exif": "apply",
        "cmyk": "rgb",
        "alpha": "white",
        "deep": "scale",
        "greyscale": "keep",
        "animated": "first",
        "extension": "sniff",
        "damaged": "mend",
        "progressive": "keep",
        "restart_markers": True,
    }


NUMBERS = {
    "presize": (7, 16385, -1, 64.0, True, "64"),
    "quality": (0, 101, 90.5, None),
    "max_pixels": (0, 178_956_971, None),
    "min_side": (0, 65536, 1.0),
}
CHOICES = [
    "check",
    "encode",
    "presize_mode",
    "exif",
    "cmyk",
    "alpha",
    "deep",
    "greyscale",
    "animated",
    "extension",
    "damaged",
]


@pytest.mark.parametrize(
    ("name", "value"),
    [(name, value) for name, values in NUMBERS.items() for value in values]
    + [(name, value) for name in CHOICES for value in ("none", "", None, 1)],
)
def test_options_out_of_range_are_refused(name, value):
    allowed = "whole number between" if name in NUMBERS else "'"
    with pytest.raises(OptionError, match=rf"^images\.{name} is a? ?{allowed}.*, not {re.escape(repr(value))}"):
        Images(**{name: value})


def test_exact_stores_a_mendable_file_as_it_is_or_rejects_it(photos):
    stray = photos["china.jpg"].replace(b"\xff\xdb", b"stray\xff\xdb", 1)
    mended = store_image(stray, FULL)
    assert (mended.kept, mended.mended, mended.odd) == (False, True, ("damaged",))
    exact = store_image(stray, EXACT)
    assert (exact.data, exact.kept, exact.odd) == (stray, True, ("damaged",))
    with pytest.raises(ImageError) as caught:
        store_image(stray, Images(encode="exact", damaged="reject"))
    assert caught.value.reason == "unreadable"


def test_a_progressive_file_is_kept_or_becomes_baseline_without_loss(photos, encoded):
    picture = Image.open(io.BytesIO(photos["china.jpg"]))
    data = encoded(picture, "JPEG", progressive=True, quality=92)
    kept = store_image(data, FULL)
    assert (kept.data, kept.unmarked) == (data, "progressive")
    baseline = store_image(data, Images(progressive="baseline"))
    assert baseline.kept
    assert segments_of(baseline.data) is not None
    np.testing.assert_array_equal(decode(baseline.data), decode(data))
    small = encoded(picture.resize((60, 40)), "JPEG", progressive=True)
    stored = store_image(small, Images(progressive="baseline"))
    assert stored.added_bytes is not None
    assert read_jpeg_header(stored.data).mcu is not None
    np.testing.assert_array_equal(decode(stored.data), decode(small))
    for encode in ("exact", "png"):
        with pytest.raises(OptionError, match="progressive='baseline'"):
            Images(progressive="baseline", encode=encode)
