"""JPEGs that are rewritten by the C extension: equal in every decoder, whatever the file; and hostile ones."""

import io
import random
import shutil
import subprocess
import threading
import time
from pathlib import Path

import cv2
import numpy as np
import pytest
import simplejpeg
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from tests.images.reading import decode_upright
from tpufeed.errors import ImageError
from tpufeed.images import _restart
from tpufeed.images._restart import pack
from tpufeed.images.decoding import check_pixels, decode
from tpufeed.images.header import read_header, read_jpeg_header
from tpufeed.images.markers import is_sound, mark_jpeg
from tpufeed.images.mending import mend
from tpufeed.images.policy import Images, store_image
from tpufeed.images.restart import CAN_REWRITE, CannotRewrite, add_markers, to_baseline

assert CAN_REWRITE, "the C extension is not built: scripts/setup-venv builds it where a C compiler is"

SUBSAMPLINGS = {"4:4:4": (0, 1), "4:2:2": (1, 2), "4:2:0": (2, 2), "grey": (None, 1), "CMYK": (0, 1)}
PILLOW_ONLY = "CMYK"


def picture(height, width, seed=0):
    rng = np.random.default_rng(seed)
    low = rng.integers(0, 256, (height // 24 + 2, width // 24 + 2, 3), np.uint8)
    pixels = cv2.resize(low, (width, height), interpolation=cv2.INTER_CUBIC)
    return Image.fromarray(cv2.add(pixels, rng.integers(0, 40, pixels.shape, np.uint8)))


def jpeg(image, sampling="4:2:0", **options):
    buffer = io.BytesIO()
    mode = {"grey": "L", "CMYK": "CMYK"}.get(sampling, "RGB")
    if mode == "RGB":
        options["subsampling"] = SUBSAMPLINGS[sampling][0]
    image.convert(mode).save(buffer, "JPEG", **options)
    return buffer.getvalue()


def planes(data):
    """Decode a JPEG by several decoders and two inverse transforms: the pixels differ if any coefficient does."""
    image = Image.open(io.BytesIO(data))
    found = [np.asarray(image)]
    if image.mode != "CMYK":
        found += [simplejpeg.decode_jpeg(data, space, fastdct=fast) for space in ("RGB", "GRAY") for fast in (0, 1)]
        found.append(cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR))
    return found


def check_same_picture(data, other):
    for expected, found in zip(planes(data), planes(other), strict=True):
        np.testing.assert_array_equal(found, expected)
    assert Image.open(io.BytesIO(data)).quantization == Image.open(io.BytesIO(other)).quantization


def markers_of(data):
    scan = data.index(b"\xff\xda")
    return [data[at + 1] for at in range(scan, len(data) - 1) if data[at] == 255 and 0xD0 <= data[at + 1] <= 0xD7]


@given(
    st.sampled_from(sorted(SUBSAMPLINGS)),
    st.integers(1, 90),
    st.integers(1, 90),
    st.sampled_from([20, 75, 97]),
    st.data(),
)
def test_markers_change_no_coefficient(sampling, height, width, quality, data):
    columns = -(-width // (8 * SUBSAMPLINGS[sampling][1]))
    rows = -(-height // (16 if sampling == "4:2:0" else 8))
    before = data.draw(st.sampled_from([{}, {"restart_marker_rows": 1}, {"restart_marker_blocks": 3}]))
    original = jpeg(picture(height, width), sampling, quality=quality, optimize=data.draw(st.booleans()), **before)
    fitting = [number for number in range(1, columns + 1) if columns % number == 0] + [2 * columns]
    mcus = data.draw(st.sampled_from(fitting))
    marked = add_markers(original, mcus)
    check_same_picture(original, marked)
    count = -(-rows * columns // mcus) - 1
    assert markers_of(marked) == [0xD0 + number % 8 for number in range(count)]
    assert add_markers(marked, mcus) == marked


@given(st.sampled_from(sorted(SUBSAMPLINGS)), st.integers(1, 90), st.integers(1, 90), st.sampled_from([20, 75, 97]))
def test_a_progressive_file_becomes_baseline_with_the_same_coefficients(sampling, height, width, quality):
    original = jpeg(picture(height, width), sampling, quality=quality, progressive=True)
    baseline = to_baseline(original)
    assert b"\xff\xc2" in original
    assert b"\xff\xc2" not in baseline[: baseline.index(b"\xff\xda")]
    check_same_picture(original, baseline)


@pytest.mark.uses("tensorflow")
def test_tensorflow_sees_the_same_pixels():
    import tensorflow as tf

    image = picture(120, 200)
    for original, rewritten in (
        (plain := jpeg(image), add_markers(plain, 13)),
        (progressive := jpeg(image, progressive=True), to_baseline(progressive)),
    ):
        np.testing.assert_array_equal(tf.io.decode_jpeg(rewritten).numpy(), tf.io.decode_jpeg(original).numpy())


def test_metadata_and_what_follows_the_end_marker_stay():
    exif = Image.Exif()
    exif[0x010E] = "a photograph"
    options = {"exif": exif.tobytes(), "icc_profile": b"profile" * 20_000, "comment": b"a comment"}
    for extra in ({}, {"progressive": True}):
        original = jpeg(picture(64, 64), **options, **extra) + b"trailer"
        rewritten = to_baseline(original) if extra else add_markers(original, 4)
        before, after = (Image.open(io.BytesIO(data)) for data in (original, rewritten))
        assert dict(after.getexif()) == {0x010E: "a photograph"}
        assert after.info["icc_profile"] == before.info["icc_profile"]
        assert after.info["comment"] == b"a comment"
        assert rewritten.endswith(b"\xff\xd9trailer")


def test_categories_that_a_table_lacks_are_appended():
    """Optimal tables often have no code for the levels that a marker asks for: here all differences but one are 0."""
    pixels = np.full((64, 64), 200, np.uint8)
    original = jpeg(Image.fromarray(pixels), "grey", optimize=True)
    marked = add_markers(original, 1)
    check_same_picture(original, marked)
    assert len(markers_of(marked)) == 63


def with_full_tables(data, spare):
    """A JPEG whose tables of codes are one segment of 65,535 bytes less `spare`, with tables that nothing uses."""
    tables, rest = b"", data[:2]
    at = 2
    while data[at + 1] != 0xDA:
        stop = at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        if data[at + 1] == 0xC4:
            tables += data[at + 4 : stop]
        else:
            rest += data[at:stop]
        at = stop
    count, left = divmod(65_533 - spare - len(tables), 17)
    codes = bytes([0] * 15 + [left]) + bytes(range(left))
    filled = (b"\x13" + bytes(16)) * (count - 1) + b"\x12" + codes + tables
    return rest + b"\xff\xc4" + (2 + len(filled)).to_bytes(2, "big") + filled + data[at:]


@pytest.mark.parametrize("spare", [0, 40])
def test_a_segment_of_tables_that_is_full_takes_no_further_category(spare):
    """Its length went over 65,535 to 0, and nothing decoded what was stored."""
    slope = np.add.outer(np.linspace(150, 240, 320), np.linspace(0, 10, 320)).astype(np.uint8)
    full = with_full_tables(jpeg(Image.fromarray(slope), "grey", optimize=True), spare)
    if not spare:
        with pytest.raises(CannotRewrite) as caught:
            add_markers(full, 1)
        assert str(caught.value) == "no room in a Huffman table"
    else:
        check_same_picture(full, add_markers(full, 1))
    for check in ("full", "header"):
        np.testing.assert_array_equal(decode(store_image(full, Images(check=check)).data), decode(full))


@pytest.mark.parametrize("progressive", [False, True])
def test_what_is_stored_is_checked_and_not_what_was_read(monkeypatch, progressive):
    """A rewriter that spoils a file costs its markers, and no image."""
    data = jpeg(picture(300, 400), progressive=progressive)

    def spoil(data, header, baseline):
        rewritten = to_baseline(data) if progressive else add_markers(data, 5)
        return rewritten[: rewritten.index(b"\xff\xda") + 40] + b"\xff\xd9"

    monkeypatch.setattr("tpufeed.images.policy.mark_jpeg", spoil)
    stored = store_image(data, Images(progressive="baseline"))
    assert stored.data == data
    assert stored.unmarked
    damaged = data[: len(data) // 2] + b"\xff\xd9"
    with pytest.raises(ImageError):
        store_image(damaged, Images(progressive="baseline"))


def patched(data, at, *values):
    return data[:at] + bytes(values) + data[at + len(values) :]


PLAIN, PROGRESSIVE = jpeg(picture(64, 64)), jpeg(picture(64, 64), progressive=True)
FRAME = PLAIN.index(b"\xff\xc0")
SCAN = PLAIN.index(b"\xff\xda")
REFUSED = {
    "not a JPEG": b"\x89PNG\r\n\x1a\n",
    "truncated": PLAIN[: len(PLAIN) // 2],
    "progressive": PROGRESSIVE,
    "arithmetic, lossless or hierarchical": patched(PLAIN, FRAME + 1, 0xC9),
    "not 8 bits a sample": patched(PLAIN, FRAME + 4, 12),
    "broken header": patched(PLAIN, FRAME + 9, 9),
    "bytes between segments": PLAIN[:FRAME] + b"stray" + PLAIN[FRAME:],
    "broken entropy code": patched(PLAIN, SCAN + 40, *b"\xfe\xfe\xfe\xfe\xfe\xfe\xfe\xfe\xfe\xfe\xfe\xfe"),
    "several scans": patched(PLAIN, SCAN + 2, 0, 8, 1, 1, 0, 0, 63, 0),
    "an interval that divides no row": PLAIN,
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_cannot_be_rewritten_says_why(reason):
    with pytest.raises(CannotRewrite) as caught:
        add_markers(REFUSED[reason], 3 if reason.startswith("an interval") else 4)
    assert str(caught.value) == reason


def test_a_progressive_file_that_lacks_a_scan_stays():
    """Decoders smooth the blocks of a file whose scans are incomplete: a baseline file would look other."""
    last = PROGRESSIVE.rindex(b"\xff\xda")
    with pytest.raises(CannotRewrite, match="coefficients"):
        to_baseline(PROGRESSIVE[:last] + b"\xff\xd9")


@pytest.mark.parametrize("mcus", [0, -1, 65536])
def test_an_interval_that_no_header_can_name_is_our_error(mcus):
    with pytest.raises(ValueError, match="1 to 65,535"):
        add_markers(PLAIN, mcus)
    if mcus >= 0:  # the C code does not trust its caller
        assert _restart.add_markers(jpeg(picture(45, 60)), mcus)


def test_a_header_that_claims_too_much_takes_no_memory():
    """65,500 x 65,500 pixels in 300 bytes: 13 GB of coefficients."""
    for data in (PLAIN, PROGRESSIVE):
        at = data.index(b"\xff\xc2") if data is PROGRESSIVE else FRAME
        bomb = patched(data, at + 5, 0xFF, 0xDC, 0xFF, 0xDC)
        for rewrite in (lambda bomb: add_markers(bomb, 4094), to_baseline):
            with pytest.raises(CannotRewrite):
                rewrite(bomb)


def mutants(originals, count, seed):
    rng = random.Random(seed)
    for number in range(count):
        data = bytearray(originals[number % len(originals)])
        at = rng.randrange(2, data.index(b"\xff\xda") + 14 if rng.random() < 0.4 else len(data))
        match rng.randrange(6):
            case 0 | 1:
                data[at] ^= 1 << rng.randrange(8)
            case 2:
                for _ in range(rng.randint(1, 3)):
                    data[rng.randrange(2, len(data))] = rng.randrange(256)
            case 3:
                del data[at : at + rng.randint(1, 20)]
            case 4:
                data[at:at] = rng.randbytes(rng.randint(1, 6))
            case 5:
                data[at:] = b"\xff\xd9"
        yield bytes(data)


def sound_by(data, decide):
    try:
        return decide(data)
    except (ImageError, CannotRewrite):
        return None


@pytest.mark.all
def test_what_is_sound_by_its_first_row_decodes_strictly():
    originals = [
        jpeg(picture(150, 200, seed), sampling, quality=quality, optimize=bool(seed % 2))
        for seed, (sampling, quality) in enumerate((s, q) for s in ("4:4:4", "4:2:0", "grey") for q in (60, 95))
    ]
    counts = {"both": 0, "strict alone": 0, "neither": 0}
    for mutant in mutants(originals, 1500, 3):
        marked = sound_by(mutant, lambda data: mark_jpeg(data, read_jpeg_header(data)))
        header = sound_by(mutant, read_header)  # refuses some that can be rewritten
        fast = marked not in (None, mutant) and header is not None and is_sound(marked, header)
        strict = sound_by(mutant, lambda data: check_pixels(data, read_header(data)) or True) is True
        assert strict or not fast
        if fast:
            np.testing.assert_array_equal(decode(marked), decode(mutant))
        counts["both" if fast else "strict alone" if strict else "neither"] += 1
    assert counts["both"] > 300
    assert counts["neither"] > 300


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("progressive", [False, True])
def test_damage_is_found_as_without_rewriting(progressive):
    """store_image refuses the same mutants, for the same reason, whether it rewrites or not."""
    originals = [jpeg(picture(150, 200, seed), quality=90, progressive=progressive) for seed in range(2)]
    exact, rewritten = Images(encode="exact"), Images(progressive="baseline")

    def outcome(data, policy):
        try:
            return decode_upright(mended(store_image(data, policy).data))
        except ImageError as error:
            return str(error)

    def mended(data):
        try:
            check_pixels(data, read_header(data))
        except ImageError as error:
            return mend(data, error)
        return data

    for mutant in mutants(originals, 300, 4):
        expected, found = outcome(mutant, exact), outcome(mutant, rewritten)
        assert type(expected) is type(found)
        np.testing.assert_array_equal(found, expected)


def test_the_gil_is_released():
    data = jpeg(picture(2000, 2000), quality=95)
    columns = 125
    ticks = []
    done = threading.Event()

    def tick():
        while not done.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0.001)

    thread = threading.Thread(target=tick)
    thread.start()
    start = time.perf_counter()
    for _ in range(5):
        add_markers(data, columns)
    stop = time.perf_counter()
    done.set()
    thread.join()
    assert sum(start < at < stop for at in ticks) >= 5


FUZZER = Path(__file__).with_name("restart_fuzz.c")


@pytest.mark.all
@pytest.mark.parametrize("count", [1_500, pytest.param(600_000, marks=[pytest.mark.long, pytest.mark.timeout(3600)])])
def test_no_mutant_reaches_beyond_its_memory(count, tmp_path):
    """All rewriters, and unpacking, under AddressSanitizer and UndefinedBehaviorSanitizer."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    sanitizers = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    level = "-O1" if count > 10_000 else "-O0"  # to optimise takes twenty seconds, and so few mutants need one
    programs = [tmp_path / "vectors", tmp_path / "loops"]
    for program, options in zip(programs, (sanitizers, ["-U__SSE2__"]), strict=True):
        built = subprocess.run(
            [compiler, "-std=c11", level, "-g1", *options, FUZZER, "-o", program],
            capture_output=True,
            text=True,
            check=False,
        )
        if built.returncode and "cannot find" in built.stderr:
            pytest.skip("the compiler has no sanitizers")  # many systems have them in a package of their own
        assert not built.returncode, built.stderr
    files = []
    for sampling in SUBSAMPLINGS:
        for number, options in enumerate(({}, {"optimize": True, "restart_marker_blocks": 2}, {"progressive": True})):
            files.append(tmp_path / f"{sampling.replace(':', '')}-{number}.jpg")
            files[-1].write_bytes(jpeg(picture(45, 60, number), sampling, **options))
    for sampling in ("4:4:4", "4:2:2", "4:2:0", "grey"):
        for size in ((48, 64), (75, 83)):
            fitting = tmp_path / f"{sampling.replace(':', '')}-{size[0]}.jpg"
            fitting.write_bytes(jpeg(picture(*size), sampling, quality=100))
            packed = fitting.with_suffix(".dct")
            packed.write_bytes(pack(fitting.read_bytes(), 1 << 24))
            files += [fitting, packed]
    printed = []
    for program in programs:
        done = subprocess.run([program, str(count), "1", *files], capture_output=True, text=True, check=False)
        assert not done.returncode, done.stderr[-3000:]
        assert int(done.stdout.split()[2]) > count // 20
        printed.append(done.stdout)
    assert printed[0] == printed[1], "vectors and loops decode to the same"
