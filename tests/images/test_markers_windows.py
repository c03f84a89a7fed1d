"""Windows cut out of the bytes of JPEGs with restart markers: the pixels of the whole image, whatever the window."""

import random
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.images.reading import segments_of
from tpufeed.errors import ImageError
from tpufeed.images import CenterCrop, HorizontalFlip, RandomCrop, RandomResizedCrop, markers, pipeline
from tpufeed.images.decoding import decode
from tpufeed.images.markers import Box
from tpufeed.images.pipeline import Pipeline, run_views

SAMPLINGS = {
    "4:4:4": (cv2.IMWRITE_JPEG_SAMPLING_FACTOR_444, 8, 8),
    "4:2:2": (cv2.IMWRITE_JPEG_SAMPLING_FACTOR_422, 8, 16),
    "4:4:0": (cv2.IMWRITE_JPEG_SAMPLING_FACTOR_440, 16, 8),
    "4:2:0": (cv2.IMWRITE_JPEG_SAMPLING_FACTOR_420, 16, 16),
    "4:1:1": (cv2.IMWRITE_JPEG_SAMPLING_FACTOR_411, 8, 32),
    "grey": (None, 8, 8),
}


def photograph(height, width, sampling="4:2:0", interval=1, quality=85, seed=0):
    """A JPEG of smooth colours and noise, with a restart marker behind each `interval` MCUs."""
    rng = np.random.default_rng(seed)
    low = rng.integers(0, 256, (height // 24 + 2, width // 24 + 2, 3), np.uint8)
    pixels = cv2.resize(low, (width, height), interpolation=cv2.INTER_CUBIC)
    pixels = cv2.add(pixels, rng.integers(0, 40, pixels.shape, np.uint8))
    options = [cv2.IMWRITE_JPEG_QUALITY, quality, cv2.IMWRITE_JPEG_RST_INTERVAL, interval]
    if sampling == "grey":
        pixels = pixels[..., 0]
    else:
        options += [cv2.IMWRITE_JPEG_SAMPLING_FACTOR, SAMPLINGS[sampling][0]]
    return cv2.imencode(".jpg", pixels, options)[1].tobytes()


def whole(monkeypatch, data, ops, draws, fast):
    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "find_segments", lambda *_: None)
        return Pipeline(ops, 0, fast=fast).run_stored(memoryview(data), None, draws)


def check_equal(jpeg, ops, draws, fast):
    with pytest.MonkeyPatch.context() as patch:
        expected = whole(patch, jpeg, ops, draws, fast)
        patch.setattr(markers, "_LEAST_SPARED_PX", 0)
        np.testing.assert_array_equal(Pipeline(ops, 0, fast=fast).run_stored(memoryview(jpeg), None, draws), expected)


def draws_of(count):
    return st.tuples(*[st.floats(0, 1, exclude_max=True)] * count)


@given(st.sampled_from(sorted(SAMPLINGS)), st.integers(1, 150), st.integers(1, 150), st.booleans(), st.data())
def test_a_random_resized_crop_has_the_pixels_of_the_whole_image(sampling, height, width, fast, data):
    columns = -(-width // SAMPLINGS[sampling][2])
    interval = data.draw(st.sampled_from([number for number in range(1, columns + 1) if columns % number == 0]))
    scale = data.draw(st.sampled_from([(0.05, 0.3), (0.08, 1.0), (1.0, 1.0)]))
    ops = [RandomResizedCrop(data.draw(st.sampled_from([8, 24, 64])), scale=scale), HorizontalFlip()]
    check_equal(photograph(height, width, sampling, interval), ops, [data.draw(draws_of(22)), (0.1,)], fast)


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_a_window_between_mcus_has_the_pixels_of_the_whole_image(sampling, fast):
    """Its outermost pixels are those of colour samples beyond it."""
    height, width = SAMPLINGS[sampling][1:]
    size = (height * 2, width * 2)
    check_equal(photograph(height * 6, width * 6, sampling), [CenterCrop(size)], [()], fast)


@given(st.sampled_from(sorted(SAMPLINGS)), st.integers(1, 100), st.integers(1, 100), st.booleans(), st.data())
def test_a_padded_crop_has_the_pixels_of_the_whole_image(sampling, height, width, fast, data):
    ops = [RandomCrop(data.draw(st.integers(1, 80)), padding=data.draw(st.integers(0, 30)), fill=7)]
    check_equal(photograph(height, width, sampling), ops, [data.draw(draws_of(2))], fast)


@given(st.sampled_from(sorted(SAMPLINGS)), st.integers(1, 130), st.integers(1, 130), st.data())
def test_every_box_is_cut_with_the_pixels_of_the_whole_image(sampling, height, width, data):
    top, left = data.draw(st.integers(0, height - 1)), data.draw(st.integers(0, width - 1))
    bottom, right = data.draw(st.integers(top + 1, height)), data.draw(st.integers(left + 1, width))
    jpeg = photograph(height, width, sampling)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(markers, "_LEAST_SPARED_PX", 0)
        found = segments_of(jpeg)
        cut = found and found.cut(Box(top, left, bottom, right))
    if found is None:  # one segment is the image
        assert height <= SAMPLINGS[sampling][1]
        assert width <= SAMPLINGS[sampling][2]
        return
    part = decode(cut.data, fast=True)
    assert part.shape[:2] == (cut.height, cut.width)
    rows, columns = slice(top - cut.top, bottom - cut.top), slice(left - cut.left, right - cut.left)
    np.testing.assert_array_equal(part[rows, columns], decode(jpeg, fast=True)[top:bottom, left:right])
    tall, wide = SAMPLINGS[sampling][1:]
    assert cut.height < bottom - top + 2 * tall
    assert cut.width < right - left + 2 * wide


def test_what_lies_outside_the_window_is_not_read():
    data = photograph(300, 400, interval=5)
    cut = segments_of(data).cut(Box(100, 100, 180, 180))
    assert (cut.top, cut.left, cut.height, cut.width) == (96, 80, 96, 160)
    assert len(cut.data) < len(data) / 4
    # The first row of segments is damaged: the window has the pixels that it had, the whole image does not decode.
    start = data.index(b"\xff\xd0") - 40
    damaged = data[:start] + bytes(30) + data[start + 30 :]
    draws = [tuple([0.1, 0.5] * 10 + [0.9, 0.9])]
    ops = [RandomResizedCrop(64, scale=(0.05, 0.06))]
    run = Pipeline(ops, 0, fast=True).run_stored
    np.testing.assert_array_equal(run(memoryview(damaged), None, draws), run(memoryview(data), None, draws))
    with pytest.raises(ImageError):
        decode(damaged)


def test_bytes_behind_the_end_marker_are_not_read():
    data = photograph(300, 400, interval=5)
    box = Box(100, 100, 180, 180)
    trailer = b"\xff\xd0trailer\xff\xd8\xff\xd9"
    assert segments_of(data + trailer).cut(box) == segments_of(data).cut(box)


def test_damage_within_the_window_is_an_error():
    data = photograph(300, 400, interval=5)
    middle = data.index(b"\xff\xd5", len(data) // 2) - 60
    damaged = data[:middle] + bytes(range(1, 51)) + data[middle + 50 :]
    with pytest.raises(ImageError, match="does not decode"):
        Pipeline([CenterCrop(200)], 0, fast=True).run_stored(memoryview(damaged), None, [()])


def test_variants_share_one_cut_that_holds_all_their_windows(monkeypatch):
    data = photograph(240, 320, interval=4)
    ops = [RandomResizedCrop(40, scale=(0.05, 0.3))]
    draws = [[tuple(random.Random(variant).random() for _ in range(22))] for variant in range(3)]
    for fast in (True, False):
        expected = [whole(monkeypatch, data, ops, drawn, fast) for drawn in draws]
        got = run_views([Pipeline(ops, 0, fast=fast)] * 3, memoryview(data), draws, [None] * 3)
        # Reduced decoding is by what all variants allow, so that one window of them may be of another reduction.
        for window, other in zip(got, expected, strict=True):
            assert np.abs(window.astype(int) - other).mean() < 4
    shared = []
    monkeypatch.setattr(pipeline, "find_segments", lambda *_: shared.append(1))
    again = run_views([Pipeline(ops, 0)] * 3, memoryview(data), draws, [None] * 3)
    for window, other in zip(got, again, strict=True):
        np.testing.assert_array_equal(window, other)
    assert len(shared) == 1


def with_exif(data, orientation):
    tag = b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0" + bytes((orientation, 0, 0, 0)) + bytes(4)
    return data[:2] + b"\xff\xe1" + (len(tag) + 2).to_bytes(2, "big") + tag + data[2:]


@pytest.mark.parametrize("orientation", range(1, 9))
def test_images_that_are_turned_have_the_pixels_of_the_whole_image(orientation, monkeypatch):
    data = with_exif(photograph(200, 280, interval=3), orientation)
    ops, draws = [CenterCrop((60, 90))], [()]
    pipe = Pipeline(ops, 0, fast=True, upright=True)
    got = pipe.run_stored(memoryview(data), None, draws)
    monkeypatch.setattr(pipeline, "find_segments", lambda *_: None)
    np.testing.assert_array_equal(got, pipe.run_stored(memoryview(data), None, draws))


def marker_places(data):
    return [
        at for at in range(data.index(b"\xff\xda"), len(data) - 1) if data[at] == 255 and 0xD0 <= data[at + 1] <= 0xD7
    ]


def patched(data, at, value):
    return data[:at] + bytes([value]) + data[at + 1 :]


LIES = {
    "a marker is missing": lambda jpeg: jpeg.data[: jpeg.markers[3]] + jpeg.data[jpeg.markers[3] + 2 :],
    "a marker too many": lambda jpeg: jpeg.data[: jpeg.markers[3]] + b"\xff\xd3" + jpeg.data[jpeg.markers[3] :],
    "a marker has another number": lambda jpeg: patched(jpeg.data, jpeg.markers[5] + 1, 0xD0),
    "two markers are swapped": lambda jpeg: patched(
        patched(jpeg.data, jpeg.markers[1] + 1, 0xD2), jpeg.markers[2] + 1, 0xD1
    ),
    "no end marker": lambda jpeg: jpeg.data[:-2],
    "another interval": lambda jpeg: patched(jpeg.data, jpeg.data.index(b"\xff\xdd") + 5, 2),
    "an interval that wraps around rows": lambda jpeg: patched(jpeg.data, jpeg.data.index(b"\xff\xdd") + 5, 7),
    "no interval": lambda jpeg: patched(jpeg.data, jpeg.data.index(b"\xff\xdd") + 5, 0),
    "another height": lambda jpeg: patched(jpeg.data, jpeg.frame + 6, 10),
    "another width": lambda jpeg: patched(jpeg.data, jpeg.frame + 8, 10),
    "no height": lambda jpeg: patched(patched(jpeg.data, jpeg.frame + 5, 0), jpeg.frame + 6, 0),
    "other factors": lambda jpeg: patched(jpeg.data, jpeg.frame + 11, 0x11),
    "factors that no decoder knows": lambda jpeg: patched(jpeg.data, jpeg.frame + 11, 0x33),
    "two components": lambda jpeg: patched(jpeg.data, jpeg.frame + 9, 2),
    "progressive": lambda jpeg: patched(jpeg.data, jpeg.frame + 1, 0xC2),
    "cut within the header": lambda jpeg: jpeg.data[: jpeg.frame + 8],
}


@pytest.mark.parametrize("lie", LIES)
def test_a_file_that_lies_about_its_segments_is_decoded_whole(lie):
    data = photograph(160, 160, interval=5)
    jpeg = SimpleNamespace(data=data, markers=marker_places(data), frame=data.index(b"\xff\xc0"))
    assert len(jpeg.markers) == 19
    hostile = LIES[lie](jpeg)
    found = segments_of(hostile)
    assert found is None or found.cut(Box(40, 40, 60, 60)) is None


@pytest.mark.all
@pytest.mark.parametrize("count", [3_000, pytest.param(60_000, marks=pytest.mark.long)])
def test_the_window_of_a_mutant_is_that_of_the_whole_image_or_an_error(count, monkeypatch):
    """Where the whole mutant decodes, so does its window, to the same pixels."""
    monkeypatch.setattr(markers, "_LEAST_SPARED_PX", 0)
    rng, compared = random.Random(7), 0
    for number in range(count):
        if number % 100 == 0:
            height, width = rng.randint(20, 90), rng.randint(20, 90)
            data = photograph(height, width, rng.choice(sorted(SAMPLINGS)), seed=number)
        mutant = bytearray(data)
        at = rng.randrange(2, len(mutant))
        match rng.randrange(4):
            case 0:
                mutant[at] ^= 1 << rng.randrange(8)
            case 1:
                for _ in range(rng.randint(1, 4)):
                    mutant[rng.randrange(len(mutant))] = rng.randrange(256)
            case 2:
                del mutant[at : at + rng.randint(1, 8)]
            case 3:
                mutant[rng.choice(marker_places(data) or [at]) + 1] = rng.randrange(256)
        top, left = rng.randrange(height), rng.randrange(width)
        box = Box(top, left, rng.randint(top + 1, height), rng.randint(left + 1, width))
        found = segments_of(mutant)
        cut = found and found.cut(box)
        if not cut:
            continue
        try:
            expected = decode(bytes(mutant), fast=True)[box.top : box.bottom, box.left : box.right]
        except ImageError:
            continue
        part = decode(cut.data, fast=True)[box.top - cut.top :, box.left - cut.left :]
        np.testing.assert_array_equal(part[: expected.shape[0], : expected.shape[1]], expected)
        compared += 1
    assert compared > count // 4
