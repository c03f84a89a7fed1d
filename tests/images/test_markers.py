"""Restart markers in stored JPEGs: as many as their share of the bytes allows, at the ends of rows of MCUs."""

import cv2
import numpy as np
import pytest
import simplejpeg
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from tests.images.reading import decode_upright, segments_of
from tpufeed.images.decoding import decode
from tpufeed.images.header import read_jpeg_header
from tpufeed.images.markers import choose_interval, encode_jpeg, mark_jpeg
from tpufeed.images.restart import CAN_REWRITE, CannotRewrite


def marked_copy(data):
    return mark_jpeg(data, read_jpeg_header(data))


rewriting = pytest.mark.skipif(not CAN_REWRITE, reason="tpufeed is installed without its C extension")


@given(st.integers(1, 400), st.integers(1, 400), st.integers(0, 10**7), st.sampled_from([0.01, 0.03]))
def test_an_interval_divides_a_row_and_fits_into_the_share(rows, columns, size_bytes, growth):
    interval = choose_interval((rows, columns), size_bytes, growth)
    if interval:
        assert columns % interval == 0
        assert rows * columns // interval * 4 <= size_bytes * growth
        finer = [length for length in range(1, interval) if columns % length == 0]
        assert all(rows * columns // length * 4 > size_bytes * growth for length in finer)
    else:
        assert rows * 4 > size_bytes * growth


@pytest.mark.parametrize("quality", [30, 75, 90, 95])
@pytest.mark.parametrize("name", ["china.jpg", "flower.jpg"])
def test_an_image_that_is_encoded_has_segments_within_3_percent(photos, name, quality):
    pixels = decode_upright(photos[name])[:256, :341]
    data = encode_jpeg(np.ascontiguousarray(pixels), quality)
    assert segments_of(data).mcu == ((16, 16) if quality < 95 else (8, 8))
    bare = cv2.imencode(".jpg", cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR), [cv2.IMWRITE_JPEG_QUALITY, quality])[1]
    if quality < 95:
        assert len(bare) < len(data) < len(bare) * 1.03
    # As good as the encoder that decodes them: within a tenth of a level.
    other = simplejpeg.encode_jpeg(np.ascontiguousarray(pixels), quality, "RGB", "420" if quality < 95 else "444")
    errors = [np.abs(decode(jpeg).astype(int) - pixels).mean() for jpeg in (data, other)]
    assert errors[0] < errors[1] + 0.1


def test_grey_images_stay_grey(photos):
    grey = np.asarray(Image.fromarray(decode_upright(photos["china.jpg"])).convert("L"))[:200, :300, None]
    data = encode_jpeg(np.ascontiguousarray(grey), 90)
    assert read_jpeg_header(data).mcu == (8, 8)
    assert simplejpeg.decode_jpeg_header(data)[2] == "Gray"
    assert np.abs(simplejpeg.decode_jpeg(data, "GRAY").astype(int) - grey).mean() < 2


@pytest.mark.parametrize(("height", "width"), [(1, 1), (20, 3000), (127, 127)])
def test_images_that_no_window_is_cut_out_of_have_no_markers(height, width):
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)
    data = encode_jpeg(pixels, 90)
    assert (segments_of(data) is None) == (height * width < 128 * 128)
    np.testing.assert_allclose(decode(data).shape, pixels.shape)


@pytest.mark.parametrize("level", [0, 128])
def test_an_image_of_one_colour_grows_by_no_more(level):
    data = encode_jpeg(np.full((512, 512, 3), level, np.uint8), 90)
    bare = cv2.imencode(".jpg", np.full((512, 512, 3), level, np.uint8), [cv2.IMWRITE_JPEG_QUALITY, 90])[1]
    assert len(data) < len(bare) * 1.03


@rewriting
def test_a_file_that_is_kept_grows_by_less_than_1_percent(photos):
    for name in ("china.jpg", "flower.jpg"):
        marked = marked_copy(photos[name])
        assert segments_of(marked) is not None
        assert len(photos[name]) < len(marked) < len(photos[name]) * 1.01
        np.testing.assert_array_equal(decode(marked), decode(photos[name]))
        assert marked_copy(marked) is marked


@rewriting
def test_what_cannot_have_markers_says_why(photos, encoded, cat):
    image = Image.fromarray(decode_upright(photos["china.jpg"])).resize((400, 300))
    for options, reason in (
        ({"progressive": True}, "progressive"),
        ({"quality": 1}, "too small to gain by it"),
    ):
        with pytest.raises(CannotRewrite) as caught:
            marked_copy(encoded(image, "JPEG", **options))
        assert str(caught.value) == reason
    with pytest.raises(CannotRewrite, match="too small"):
        marked_copy(encoded(cat.resize((100, 100)), "JPEG"))
