"""The full check against full decoding, and store_image on damaged bytes."""

import io
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from tpufeed.errors import ImageError
from tpufeed.images.decoding import check_pixels, decode
from tpufeed.images.header import read_header
from tpufeed.images.policy import Images, store_image

REASONS = {"unreadable", "truncated", "not_an_image", "zero_bytes", "unsupported", "too_large", "too_small"}
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::RuntimeWarning")  # Pillow's of metadata


@pytest.fixture(scope="module")
def jpegs(cat, encoded, photos):
    rocket = Image.open(io.BytesIO(photos["rocket.jpg"])).crop((100, 100, 331, 290))
    options = {
        "baseline": {},
        "4:4:4": {"subsampling": 0},
        "4:2:2": {"subsampling": 1},
        "optimized": {"optimize": True},
        "progressive": {"progressive": True},
        "restarts": {"restart_marker_blocks": 7},
        "progressive, restarts": {"progressive": True, "restart_marker_rows": 1},
        "rgb": {"keep_rgb": True},
    }
    files = [encoded(photo, "JPEG", quality=90, **more) for photo in (cat, rocket) for more in options.values()]
    return [*files, *(encoded(cat.convert(mode), "JPEG", quality=90) for mode in ("L", "CMYK"))]


def damage(data, rng):
    damaged, start = bytearray(data), data.index(b"\xff\xda")
    place = rng.randrange(start, len(data))
    match rng.choice(["flip", "flip", "flips", "run", "cut", "remove"]):
        case "flip":
            damaged[place] ^= 1 << rng.randrange(8)
        case "flips":
            for _ in range(5):
                damaged[rng.randrange(start, len(data))] ^= 1 << rng.randrange(8)
        case "run":
            length = min(rng.choice([4, 40, 300]), len(data) - place)
            damaged[place : place + length] = rng.choice([bytes(length), b"\xff" * length, rng.randbytes(length)])
        case "cut":
            del damaged[place:]
        case "remove":
            del damaged[place : place + rng.choice([1, 5, 200])]
    return bytes(damaged)


def refusal(read):
    try:
        read()
    except ImageError as error:
        return error.reason
    return None


@pytest.mark.all
def test_the_check_refuses_what_full_decoding_refuses_and_nothing_else(jpegs):
    rng = random.Random(5)
    refused = taken = 0
    for turn in range(2000):
        data = damage(jpegs[turn % len(jpegs)], rng)
        try:
            header = read_header(data)
        except ImageError:
            continue
        full = refusal(lambda data=data: decode(data))
        assert refusal(lambda data=data, header=header: check_pixels(data, header)) == full
        refused, taken = refused + (full is not None), taken + (full is None)
    assert refused > 500
    assert taken > 300


policies = st.builds(
    Images,
    check=st.just("full"),
    encode=st.sampled_from(["keep", "jpeg", "png", "webp"]),
    presize=st.sampled_from([None, 8, 50, 99]),
    presize_mode=st.sampled_from(["short", "long", "fit"]),
    exif=st.sampled_from(["apply", "ignore"]),
    alpha=st.sampled_from(["white", "black"]),
    greyscale=st.sampled_from(["keep", "rgb"]),
    max_pixels=st.just(4_000_000),
)


@pytest.mark.all
@settings(max_examples=150)
@given(st.data())
def test_damaged_files_are_images_that_decode_or_image_errors(kinds, data):
    kind = data.draw(st.sampled_from(sorted(kinds)))
    damaged = bytearray(kinds[kind])
    for _ in range(data.draw(st.integers(0, 4))):
        reach = data.draw(st.sampled_from([40, 300, len(damaged)]))
        damaged[data.draw(st.integers(0, min(reach, len(damaged)) - 1))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        del damaged[data.draw(st.integers(0, len(damaged))) :]
    policy = data.draw(policies)
    try:
        image = store_image(bytes(damaged), policy, "x.jpg")
    except ImageError as error:
        assert error.reason in REASONS  # noqa: PT017 - it may also succeed
        return
    assert decode(image.data).shape == (image.height, image.width, 3)
    assert image.format in ("jpeg", "png", "webp")


def rare(h, v, progressive=False, share=1.0, side=240, wide=1):
    """A JPEG of a luma of h x v blocks, at level 255 throughout, cut off after a share of its last scan.

    Of 4:2:0 and the like simplejpeg sees every fault; of others Pillow alone can say what they look like.
    """

    def segment(marker, body):
        return bytes((0xFF, marker)) + (len(body) + 2).to_bytes(2, "big") + body

    def bits(text, share=1.0):
        text = text[: int(len(text) * share)]
        text += "1" * (-len(text) % 8)
        return int(text, 2).to_bytes(len(text) // 8, "big").replace(b"\xff", b"\xff\0")

    kind = 0xC2 if progressive else 0xC0
    factors = bytes((1, h << 4 | v, 0, 2, wide << 4 | 1, 0, 3, 0x11, 0))
    size = side.to_bytes(2, "big")
    data = b"\xff\xd8" + segment(0xDB, b"\0" + bytes([8] * 64)) + segment(kind, b"\x08" + size * 2 + b"\3" + factors)
    data += segment(0xC4, b"\0" + bytes([0, 3] + [0] * 14) + b"\0\6\7")  # '00' is no difference, '01' one of 6 bits
    data += segment(0xC4, b"\x10" + bytes([0, 1] + [0] * 14) + b"\0")  # '00' ends a block
    mcus = -(-side // (8 * h)) * -(-side // (8 * v))
    named = b"\3" + bytes((1, 0, 2, 0, 3, 0))
    blocks = mcus * (h * v + wide + 1) - 1
    if not progressive:
        text = "01" + "111111" + "00" + "0000" * blocks
        return data + segment(0xDA, named + b"\0\x3f\0") + bits(text, share) + b"\xff\xd9"
    data += segment(0xDA, named + b"\0\0\0") + bits("01" + "111111" + "00" * blocks)
    for number, (across, down) in enumerate(((h, v), (1, 1), (1, 1)), 1):
        wide, high = -(-side * across // (8 * h)), -(-side * down // (8 * v))
        data += segment(0xDA, bytes((1, number, 0)) + b"\1\x3f\0") + bits("00" * wide * high, share)
    return data + b"\xff\xd9"


@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("sampling", [(2, 2), (1, 3), (3, 1), (3, 2), (2, 3), (4, 2), (1, 4), (2, 4)])
def test_half_a_scan_of_a_rare_subsampling_is_refused(sampling, progressive):
    """Pillow fills in grey and says nothing."""
    whole = rare(*sampling, progressive)
    for policy in (Images(), Images(encode="exact"), Images(encode="png"), Images(presize=100)):
        stored = store_image(whole, policy)
        assert stored.kept == (policy.presize is None and policy.encode != "png")
        assert decode(stored.data).min() > 180
    for share in (0.5, 0.9):
        cut = rare(*sampling, progressive, share)
        assert refusal(lambda cut=cut: store_image(cut, Images())) in ("truncated", "unreadable")
        assert refusal(lambda cut=cut: decode(cut)) in ("truncated", "unreadable")
    broken = bytearray(whole)
    broken[-100:-90] = b"\xfe" * 10
    assert refusal(lambda: store_image(bytes(broken), Images())) == "unreadable"


def test_a_subsampling_that_no_decoder_interpolates_is_refused():
    """Its codes are all right: of three samples of luma there are two of one colour."""
    data = rare(3, 1, wide=2)
    for check in (lambda: store_image(data, Images()), lambda: decode(data)):
        assert refusal(check) == "unreadable"
