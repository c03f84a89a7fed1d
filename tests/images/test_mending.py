"""JPEGs with all their pixels and damage beside them: mended, without a change of a pixel; damaged scans never."""

import io
import random

import cv2
import numpy as np
import pytest
import simplejpeg
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageFile

from tests.frameworks import lazy
from tpufeed.errors import ImageError
from tpufeed.images import RandomResizedCrop
from tpufeed.images.decoding import check_pixels, decode
from tpufeed.images.header import read_header
from tpufeed.images.mending import mend
from tpufeed.images.pipeline import Pipeline
from tpufeed.images.policy import Images, store_image

tf = lazy("tensorflow")

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # Pillow's of EXIF
KINDS = {
    "baseline": {},
    "4:4:4": {"subsampling": 0},
    "optimized": {"optimize": True},
    "progressive": {"progressive": True},
    "restarts": {"restart_marker_blocks": 7},
    "progressive, restarts": {"progressive": True, "restart_marker_rows": 1},
}
JUNK = bytes(range(1, 17))
BEHIND_ADOBE = ("in two places", "an EXIF block without its marker")  # of CMYK, in a segment that tells the colours
REASONS = ("unreadable", "truncated")


def exif():
    tags = Image.Exif()
    tags[0x010F], tags[0x0112] = "Camera of a maker", 1
    return tags


@pytest.fixture(scope="module")
def jpegs(cat, encoded):
    files = {name: encoded(cat, "JPEG", quality=90, exif=exif(), **options) for name, options in KINDS.items()}
    for mode in ("L", "CMYK"):
        files[mode] = encoded(cat.convert(mode), "JPEG", quality=90, exif=exif())
    return files


def put(data, at, new, over=0):
    return data[:at] + new + data[at + over :]


def shorten_exif(data):
    """The length of the EXIF block says less than it has: what is left of it lies between segments."""
    at = data.index(b"\xff\xe1") + 2
    return put(data, at, (int.from_bytes(data[at : at + 2], "big") - 10).to_bytes(2, "big"), 2)


BEHIND_A_TABLE = {
    "before the scan": lambda data: put(data, data.index(b"\xff\xda"), JUNK),
    "inserted into a table of quantization": lambda data: put(data, data.index(b"\xff\xdb") + 5, b"\x10\x11\x12\x13"),
    "inserted into a table of codes": lambda data: put(data, data.index(b"\xff\xc4") + 25, b"\1\2"),
}


DAMAGE = {
    "behind the EXIF block": lambda data: put(data, data.index(b"\xff\xdb"), JUNK),
    "one byte": lambda data: put(data, data.index(b"\xff\xdb"), b"\0"),
    "in two places": lambda data: put(put(data, data.index(b"\xff\xdb"), JUNK), data.index(b"\xff\xe1"), b"\n\n"),
    "a short EXIF block": shorten_exif,
    "an EXIF block of no length": lambda data: put(data, data.index(b"\xff\xe1") + 2, b"\0\0", 2),
    "an EXIF block without its marker": lambda data: put(data, data.index(b"\xff\xe1"), b"\0", 1),
    "zeros before the end": lambda data: put(data, len(data) - 2, bytes(40)),
    "spaces before the end, more behind": lambda data: put(data, len(data) - 2, b" " * 40) + JUNK,
    "no end marker": lambda data: data[:-2],
    "half an end marker": lambda data: data[:-1],
    "zeros for an end marker": lambda data: data[:-2] + bytes(600),
    "between segments and no end marker": lambda data: put(data, data.index(b"\xff\xdb"), JUNK)[:-2],
}


def refusal(data):
    try:
        check_pixels(data, read_header(data))
    except ImageError as error:
        return error
    return None


def mended(data):
    """Return the mended file, or None if nothing was mended."""
    error = refusal(data)
    assert error is not None
    try:
        return mend(data, error)
    except ImageError:
        return None


def strict_readers(data):
    """What libraries that know nothing of each other make of a file, each of which must take it without a word."""
    pillow = Image.open(io.BytesIO(data))
    assert not ImageFile.LOAD_TRUNCATED_IMAGES
    yield np.asarray(pillow.convert("RGB"))
    if pillow.mode != "CMYK":
        yield simplejpeg.decode_jpeg(data, "RGB", strict=True)
        yield tf.io.decode_jpeg(data, 3, dct_method="INTEGER_ACCURATE").numpy()
        yield cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)[..., ::-1]


@pytest.mark.parametrize("damage", BEHIND_A_TABLE)
def test_bytes_behind_a_table_may_be_its_end_and_cost_the_image(jpegs, damage):
    """Left out they would leave a table of other values, which decodes without a word."""
    for sound in jpegs.values():
        assert mended(BEHIND_A_TABLE[damage](sound)) is None


@pytest.mark.uses("tensorflow")
@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_beside_the_pixels_is_mended_and_strict_readers_take_it(jpegs, damage, capfd):
    for name, sound in jpegs.items():
        if name == "CMYK" and damage in BEHIND_ADOBE:
            continue
        damaged = DAMAGE[damage](sound)
        with pytest.raises(ImageError):
            store_image(damaged, Images(damaged="reject"))
        found, expected = store_image(damaged, Images()), store_image(sound, Images())
        assert found.odd == (*expected.odd, "damaged"), name
        assert (found.kept, found.mended) == (False, expected.kept)
        assert np.array_equal(decode(found.data), decode(expected.data)), name
        copy = mended(damaged)
        assert refusal(copy) is None
        for one, other in zip(strict_readers(copy), strict_readers(sound), strict=True):
            assert np.array_equal(one, other), name
    assert "Corrupt" not in capfd.readouterr().err  # OpenCV says it there


EXIF_BLOCKS = {
    "no TIFF header": lambda tiff: b"XXXX" + tiff[4:],
    "an IFD beyond the block": lambda tiff: tiff[:4] + b"\xff\xff\xff\x7f" + tiff[8:],
    "an IFD that is its own next": lambda tiff: b"MM\0*\0\0\0\x08\0\0\0\0\0\x08" + tiff[14:],
    "an IFD of more entries than there are": lambda tiff: tiff[:8] + b"\xff\xff" + tiff[10:],
    "cut short": lambda tiff: tiff[:9],
    "empty": lambda tiff: tiff[:0],
}


@pytest.mark.parametrize("block", EXIF_BLOCKS)
def test_exif_that_cannot_be_parsed_costs_no_image(cat, encoded, block):
    payload = b"Exif\0\0" + EXIF_BLOCKS[block](exif().tobytes()[6:])
    data = encoded(cat, "JPEG", quality=90)
    data = put(data, 2, b"\xff\xe1" + (2 + len(payload)).to_bytes(2, "big") + payload)
    for damaged in (data, put(data, data.index(b"\xff\xdb"), JUNK)):
        image = store_image(damaged, Images())
        assert image.kept == (damaged is data)
        assert image.odd == (() if damaged is data else ("damaged",))
        assert np.array_equal(decode(image.data), decode(data))


def test_what_decoders_are_silent_of_is_kept_as_it_is(jpegs):
    sound = jpegs["baseline"]
    for data in (
        sound + JUNK * 50,
        put(sound, len(sound) - 2, b"\xff" * 9),
        put(sound, sound.index(b"\xff\xdb"), b"\xff"),
    ):
        image = store_image(data, Images())
        assert image.kept
        assert image.data == data


def test_garbage_before_the_start_is_no_image_to_any_reader(jpegs):
    for junk in (JUNK, b"\n"):
        with pytest.raises(ImageError) as raised:
            store_image(junk + jpegs["baseline"], Images())
        assert raised.value.reason == "not_an_image"


def test_missing_parts_of_a_scan_and_whole_scans_are_no_end_marker_alone(jpegs):
    for name, data in jpegs.items():
        starts = [at for at in range(len(data)) if data[at : at + 2] == b"\xff\xda"]
        assert (len(starts) > 1) == name.startswith("progressive")
        for cut in (*range(len(data) - 40, len(data) - 3, 4), len(data) // 2, *starts[1:]):
            assert mended(data[:cut]) is None, (name, cut)
            assert mended(data[:cut] + bytes(500)) is None, (name, cut)  # a download that was cut off, at its full size
            assert mended(data[:cut] + bytes(500) + b"\xff\xd9") is None


def test_subsamplings_that_only_tolerant_decoders_know_are_not_mended(jpegs):
    """4:4:1, by its sampling factors alone: Pillow would fill in what is missing, and say nothing."""
    sound = jpegs["4:4:4"]
    at = sound.index(b"\xff\xc0") + 11
    rare = put(sound, at, b"\x14", 1)
    with pytest.raises(KeyError):
        simplejpeg.decode_jpeg_header(rare)
    for cut in (len(rare) // 2, len(rare) - 2):
        with pytest.raises(ImageError):
            mend(rare[:cut], ImageError("truncated", "no end marker"))


def test_a_second_start_is_another_image_and_not_left_out(jpegs):
    """The file of a thumbnail lies between segments, for example."""
    for name, data in jpegs.items():
        assert mended(put(data, data.index(b"\xff\xdb"), b"\xff\xd8")) is None, name


def test_segments_that_lost_their_marker_are_missed(jpegs):
    for name, data in jpegs.items():
        for code in (0xDB, 0xC4, 0xEE):
            at = data.find(bytes((0xFF, code)))
            if at >= 0:
                for wrong in (b"\x7f", b"\0"):
                    damaged = put(data, at, wrong, 1)
                    assert mended(damaged) is None, (name, hex(code))


@given(st.data())
def test_mending_a_sound_file_changes_no_pixel(jpegs, data):
    sound = jpegs[data.draw(st.sampled_from(sorted(jpegs)))]
    places = [0xDB, 0xC4, 0xDA]
    damaged = sound
    for marker in data.draw(st.lists(st.sampled_from(places), min_size=1, unique=True)):
        junk = data.draw(st.binary(min_size=1, max_size=50)).replace(b"\xff", b"\xfe")
        damaged = put(damaged, damaged.index(bytes((0xFF, marker))), junk)
    copy = mended(damaged)
    if copy is not None:  # bytes that look like a segment are left alone
        assert np.array_equal(decode(copy), decode(sound))
        assert refusal(copy) is None


@pytest.mark.all
def test_a_damaged_scan_is_never_mended(jpegs):
    """Half of what strict decoding refuses ends early: its last bytes are left over, as if they were stray."""
    rng, refused, left_over = random.Random(7), 0, 0
    for turn in range(1000):
        name = list(jpegs)[turn % len(jpegs)]
        damaged = bytearray(jpegs[name])
        start = damaged.index(b"\xff\xda") + 14
        for _ in range(rng.choice([1, 1, 3])):
            damaged[rng.randrange(start, len(damaged) - 2)] ^= 1 << rng.randrange(8)
        error = refusal(bytes(damaged))
        if error is None:
            continue
        refused += 1
        left_over += "extraneous" in str(error)
        whole = bytes(damaged)
        more_between_segments = put(whole, whole.index(b"\xff\xdb"), JUNK)
        for data in (whole, more_between_segments, whole[:-2]):
            assert mended(data) is None, (name, str(error))
            with pytest.raises(ImageError) as raised:
                store_image(data, Images())
            assert raised.value.reason in REASONS
    assert refused > 60
    assert left_over > 20


def test_the_header_check_sees_what_is_before_the_scan_and_the_end_marker(jpegs):
    sound = jpegs["baseline"]
    policy = Images(check="header")
    for damage in ("behind the EXIF block", "a short EXIF block", "no end marker"):
        assert store_image(DAMAGE[damage](sound), policy).mended, damage
    damaged = DAMAGE["zeros before the end"](sound)
    assert store_image(damaged, policy).data == damaged


@pytest.mark.parametrize(
    "damage", ["behind the EXIF block", "zeros before the end", "between segments and no end marker"]
)
def test_presizing_encoding_and_ops_take_what_is_mended(jpegs, damage):
    sound, damaged = jpegs["baseline"], DAMAGE[damage](jpegs["baseline"])
    for policy in (Images(presize=40), Images(encode="jpeg"), Images(encode="png")):
        found, expected = store_image(damaged, policy), store_image(sound, policy)
        assert decode(found.data).tolist() == decode(expected.data).tolist()
        assert found.odd == ("damaged",)
        assert not found.mended or policy.encode == "jpeg"
    pipeline = Pipeline([RandomResizedCrop(32)], 3)
    draws = [op[0] for op in pipeline.draw(0, np.arange(1))]
    assert np.array_equal(
        pipeline.run_stored(memoryview(damaged), None, draws), pipeline.run_stored(memoryview(sound), None, draws)
    )


@pytest.mark.all
@pytest.mark.parametrize("behind", [b"", b"\0", b"\xff\xd9"], ids=["to the end", "then a zero", "then an end marker"])
def test_a_run_of_0xff_takes_as_long_as_its_bytes(jpegs, behind):
    """A photograph whose rest is erased flash: 32 KB took 4 s, 1 MB hours."""
    run = b"\xff" * 1_000_000 + behind
    for name in ("baseline", "progressive"):
        sound = jpegs[name]
        with pytest.raises(ImageError) as raised:
            store_image(sound[: len(sound) // 2] + run, Images())
        assert raised.value.reason in REASONS
        stray = put(sound, sound.index(b"\xff\xdb"), b"\0" + run)  # with an end marker in it, all is behind the end
        assert (mended(stray) is None) == behind.startswith(b"\xff")
    sound = put(jpegs["baseline"], jpegs["baseline"].index(b"\xff\xdb"), b"\xff" * 1_000_000)
    assert store_image(sound, Images()).kept


def icc(number, count, size=200):
    body = b"ICC_PROFILE\0" + bytes((number, count)) + b"x" * size
    return b"\xff\xe2" + (2 + len(body)).to_bytes(2, "big") + body


def adobe(transform):
    return b"\xff\xee\0\x0eAdobe\0\x64\0\0\0\0" + bytes((transform,))


def set_transform(data, transform):
    at = data.find(b"Adobe")
    return put(data, at + 11, bytes((transform,)), 1) if at >= 0 else put(without_jfif(data), 2, adobe(transform))


def without_jfif(data):
    return data[:2] + data[20:] if data[6:11] == b"JFIF\0" else data


def set_scans(data, parameters):
    """What the headers of all scans say of the coefficients in them."""
    at = data.index(b"\xff\xda")
    return put(data, at + 5 + 2 * data[at + 4], parameters, 3)


WARNINGS = {
    "an ICC profile of 2 parts, one missing": lambda data: put(data, 2, icc(1, 2)),
    "one part twice": lambda data: put(data, 2, icc(1, 1) * 2),
    "parts from 0": lambda data: put(data, 2, icc(0, 1)),
    "parts that count differently": lambda data: put(data, 2, icc(1, 2) + icc(2, 3)),
    "an empty profile": lambda data: put(data, 2, icc(1, 1, 0)),
    "JFIF 2.1": lambda data: put(data, 11, b"\2\1", 2) if data[6:11] == b"JFIF\0" else put(data, 2, icc(0, 1)),
    "an unknown Adobe transform": lambda data: set_transform(data, 76),
    "a scan of coefficients 0 to 0": lambda data: set_scans(data, b"\0\0\0"),
    "a scan of two bits": lambda data: set_scans(data, b"\0\x3f\x21"),
    "all of them": lambda data: set_scans(put(set_transform(data, 9), 2, icc(0, 1) + icc(3, 1)), b"\0\0\0"),
}


@pytest.mark.first_cases(6)
@pytest.mark.uses("tensorflow")
@pytest.mark.parametrize("warning", WARNINGS)
def test_what_decoders_only_warn_of_in_a_header_is_repaired(jpegs, warning):
    """All pixels are there, and every tolerant decoder shows them."""
    for name, sound in jpegs.items():
        if name.startswith("progressive") and "scan" in warning + "scan" * (warning == "all of them"):
            continue  # there these numbers say which coefficients a scan has
        if name == "L" and warning == "an unknown Adobe transform":
            continue  # grey has none
        damaged = WARNINGS[warning](sound)
        colours = WARNINGS[warning](without_jfif(sound)) if "Adobe" in warning or warning == "all of them" else sound
        expected = np.asarray(Image.open(io.BytesIO(colours)).convert("RGB"))
        pipeline = Pipeline([RandomResizedCrop(32)], 3)
        draws = [op[0] for op in pipeline.draw(0, np.arange(1))]
        for policy in (Images(), Images(check="header"), Images(encode="png")):
            stored = store_image(damaged, policy)
            assert "damaged" in stored.odd, (name, policy)
            assert stored.mended == (policy.encode == "keep" and name != "CMYK")
            difference = np.abs(decode(stored.data).astype(int) - expected)
            assert difference.mean() < 8 if name == "CMYK" and policy.encode == "keep" else not difference.any()
        with pytest.raises(ImageError):
            store_image(damaged, Images(damaged="reject"))
        if name == "CMYK":
            continue
        copy = store_image(damaged, Images()).data
        for pixels in strict_readers(copy):
            assert pixels.shape == expected.shape
        assert np.array_equal(
            pipeline.run_stored(memoryview(damaged), None, draws), pipeline.run_stored(memoryview(copy), None, draws)
        )
        exact = store_image(damaged, Images(encode="exact"))
        assert (exact.data, exact.kept) == (damaged, True)


def test_what_decoders_do_not_warn_of_in_a_header_stays(jpegs):
    """JFIF says the colours whatever Adobe's segment says; a profile in order, and a short segment of another maker."""
    sound = jpegs["baseline"]
    for more in (adobe(2), icc(1, 2) + icc(2, 2), icc(2, 2) + icc(1, 2), b"\xff\xe2\0\x0eICC_PROFILE\0"):
        data = put(sound, 20, more)
        stored = store_image(data, Images())
        assert (stored.kept, stored.odd) == (True, ())
        assert stored.data == data
