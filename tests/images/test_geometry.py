"""Masks, boxes and points go where the pixels of their image go."""

import math

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.images.ops.every import gather
from tpufeed.images import HorizontalFlip, RandAugment, Resize, Rotate
from tpufeed.images.decoding import turn
from tpufeed.images.geometry import Geometry, _clip, _signed_area
from tpufeed.images.ops import VerticalFlip
from tpufeed.images.pipeline import Pipeline
from tpufeed.images.protocols import Window

FINER = 8
OBJECT, GROUND, BEYOND = 255, 128, 0  # levels in the image, which the mask calls 1, 0 and 9
ops = st.lists(st.one_of(gather("MOVING")), min_size=1, max_size=4)


@st.composite
def scenes(draw):
    """The size of an image, and a box in it."""
    height, width = draw(st.integers(40, 90)), draw(st.integers(40, 90))
    left, top = draw(st.integers(0, width - 12)), draw(st.integers(0, height - 12))
    right, bottom = draw(st.integers(left + 10, width)), draw(st.integers(top + 10, height))
    return (height, width), (left, top, right, bottom)


def drawn(pipeline, seed):
    return [op[0] for op in pipeline.draw(0, np.array([seed]))]


def check_levels(pixels, mask, blur):
    """The image is of the mask's colours, but for the edges."""
    kernel = np.ones((2 * blur + 1, 2 * blur + 1), np.uint8)
    for value, level in ((1, OBJECT), (0, GROUND), (9, BEYOND)):
        inner = cv2.erode((mask == value).astype(np.uint8), kernel, borderValue=0).astype(bool)
        assert (np.abs(pixels[inner].astype(int) - level) <= 3).all()


def place_lengths(geometry):
    """The number of pixels of the result that a pixel of the image takes, at the most."""
    a, b, _, d, e, _ = geometry.to_source
    return 1 / np.linalg.svd(np.array([[a, b], [d, e]]), compute_uv=False).min()


@settings(max_examples=100)
@given(scene=scenes(), chain=ops, seed=st.integers(0, 10**6))
def test_pixels_masks_and_boxes_agree(scene, chain, seed):
    (height, width), (left, top, right, bottom) = scene
    image, mask = np.full((height, width, 3), GROUND, np.uint8), np.zeros((height, width), np.uint8)
    image[top:bottom, left:right], mask[top:bottom, left:right] = OBJECT, 1
    pipeline = Pipeline(chain, seed)
    draws = drawn(pipeline, seed)
    pixels = pipeline.run(image, draws)[..., 0]
    geometry = pipeline.geometry(height, width, draws)
    warped = geometry.warp(mask, 9)
    assert warped.shape == pixels.shape == geometry.size

    # An interpolated edge is as wide as a pixel of the image, or of what an op before made of it.
    befores = [Pipeline(chain[:count], seed).geometry(height, width, draws[:count]).size for count in range(len(chain))]
    coarse = max(after / before for size in befores for after, before in zip(geometry.size, size, strict=True))
    blur = int(np.ceil(1 + 2.5 * max(1.0, coarse, place_lengths(geometry))))
    check_levels(pixels, warped, blur)

    # Finer than the result: the sharp corner of a turned box may hold the middle of no pixel.
    box, (out_height, out_width) = (left, top, right, bottom), geometry.size
    fine = geometry.window(Window(0, 0, out_height, out_width, FINER * out_height, FINER * out_width)).warp(mask, 9)
    rows, columns = np.nonzero(fine == 1)
    moved, kept = geometry.move_boxes(np.array([box], np.float32))
    area = visible_area(geometry, box)
    assert abs(len(rows) / FINER**2 - area) <= 2 + 0.05 * area
    if not kept[0]:
        assert area <= 1e-3
    elif len(rows):
        found = np.array([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]) / FINER
        assert (moved[0, :2] <= found[:2] + 0.2).all()
        assert (moved[0, 2:] >= found[2:] - 0.2).all()
        # Beyond a pixel around what the mask shows lies no more of the box than the tip of a wedge.
        x, y = (math.floor(edge) - 1 for edge in found[:2])
        width, height = math.ceil(found[2]) + 1 - x, math.ceil(found[3]) + 1 - y
        assert area - visible_area(geometry.window(Window(y, x, height, width, height, width)), box) <= 1
        if not any(isinstance(op, Rotate) for op in chain):
            np.testing.assert_allclose(moved[0], found, atol=1)


def visible_area(geometry, box):
    """Square pixels of the result that show some of a box."""
    a, b, _, d, e, _ = geometry.to_source
    return abs(_signed_area(_clip(geometry.visible, *box))) / abs(a * e - b * d) if geometry.visible else 0.0


@given(scene=scenes(), chain=ops, seed=st.integers(0, 10**6))
def test_points_go_with_the_corners_of_boxes(scene, chain, seed):
    (height, width), (left, top, right, bottom) = scene
    pipeline = Pipeline(chain, seed)
    geometry = pipeline.geometry(height, width, drawn(pipeline, seed))
    corners = np.array([(x, y, 2) for x in (left, right) for y in (top, bottom)], np.float32)
    moved, visible = geometry.move_points(corners)
    boxes, kept = geometry.move_boxes(np.array([[left, top, right, bottom]]))
    assert ((moved[:, 2] > 0) == visible).all()
    for (x, y, _), seen in zip(moved, visible, strict=True):
        if seen:
            assert -1e-3 <= x <= geometry.size[1] + 1e-3
            assert -1e-3 <= y <= geometry.size[0] + 1e-3
    if visible.all() and kept[0]:
        expected = [*moved[:, :2].min(0), *moved[:, :2].max(0)]
        np.testing.assert_allclose(boxes[0], expected, atol=1e-3)


@given(scene=scenes(), chain=ops, seed=st.integers(0, 10**6))
def test_an_odd_number_of_flips_is_a_mirror(scene, chain, seed):
    pipeline = Pipeline(chain, seed)
    geometry = pipeline.geometry(*scene[0], drawn(pipeline, seed))
    assert geometry.is_mirrored == sum(isinstance(op, HorizontalFlip | VerticalFlip) for op in chain) % 2


MOVING = st.lists(st.tuples(st.integers(1, 5), st.booleans()), min_size=1, max_size=3)  # of RandAugment's transforms


@given(scene=scenes(), transforms=MOVING, magnitude=st.integers(1, 30))
def test_randaugment_moves_masks_as_it_moves_pixels(scene, transforms, magnitude):
    (height, width), (left, top, right, bottom) = scene
    image, mask = np.full((height, width, 3), GROUND, np.uint8), np.zeros((height, width), np.uint8)
    image[top:bottom, left:right], mask[top:bottom, left:right] = OBJECT, 1
    pipeline = Pipeline([RandAugment(len(transforms), magnitude, fill=BEYOND)], 0)
    draws = [[draw for number, plus in transforms for draw in ((number + 0.5) / 14, 0.1 if plus else 0.9)]]
    pixels = pipeline.run(image, draws)[..., 0]
    warped = pipeline.geometry(height, width, draws).warp(mask, 9)
    check_levels(pixels, warped, 5)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_turned_image_has_its_mask_and_boxes_turned(orientation):
    mask = np.arange(35, dtype=np.uint8).reshape(5, 7)
    geometry = Geometry.identity(5, 7).turned(orientation)
    np.testing.assert_array_equal(geometry.warp(mask, 99), turn(mask[..., None], orientation)[..., 0])
    (box,), kept = geometry.move_boxes(np.array([[1, 2, 4, 3]]))
    inside = np.zeros((5, 7, 1), np.uint8)
    inside[2:3, 1:4] = 1
    rows, columns, _ = np.nonzero(turn(inside, orientation))
    assert box.tolist() == [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
    assert kept.all()


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int32])
@pytest.mark.parametrize("chain", [[Resize((20, 31)), HorizontalFlip(1.0)], [Rotate((30, 30))]])
def test_masks_keep_their_type_and_their_values(dtype, chain):
    values = np.random.default_rng(3).integers(0, np.iinfo(dtype).max, (40, 50)).astype(dtype)
    pipeline = Pipeline(chain, 0)
    geometry = pipeline.geometry(40, 50, drawn(pipeline, 1))
    out = np.empty(geometry.size, dtype)
    assert geometry.warp(values, 7, out) is out
    assert set(out.ravel()) <= {*values.ravel(), 7}
    np.testing.assert_array_equal(out, geometry.warp(values, 7))


def test_boxes_are_dropped_by_what_is_left_of_them():
    geometry = Geometry.identity(100, 100).window(Window(0, 50, 100, 50, 100, 100))
    boxes = np.array([[0, 0, 40, 40], [40, 0, 60, 10], [49, 0, 59, 10], [45, 10, 55, 10], [60, 20, 70, 30]], float)
    moved, kept = geometry.move_boxes(boxes, 0.6)
    assert kept.tolist() == [False, False, True, False, True]
    np.testing.assert_allclose(moved[kept], [[0, 0, 18, 10], [20, 20, 40, 30]])
    assert geometry.move_boxes(boxes, 0.0)[1].tolist() == [False, True, True, False, True]
    assert geometry.bounds() == (0, 50, 100, 50)
    assert geometry.move_boxes(np.zeros((0, 4)))[0].shape == (0, 4)


def test_a_window_beyond_the_image_shows_nothing():
    geometry = Geometry.identity(10, 10).window(Window(20, 0, 5, 5, 5, 5))
    assert (geometry.warp(np.ones((10, 10), np.uint8), 3) == 3).all()
    assert not geometry.move_boxes(np.array([[0, 0, 10, 10]]))[1].any()
    assert not geometry.move_points(np.array([[5, 5]]))[1].any()
    assert geometry.bounds() == (0, 0, 0, 0)


def test_what_an_earlier_crop_has_cut_off_does_not_come_back():
    cut = Geometry.identity(20, 20).window(Window(5, 5, 10, 10, 10, 10)).window(Window(-5, -5, 20, 20, 20, 20))
    warped = cut.warp(np.ones((20, 20), np.uint8), 0)
    expected = np.zeros((20, 20), np.uint8)
    expected[5:15, 5:15] = 1
    np.testing.assert_array_equal(warped, expected)
    assert cut.move_boxes(np.array([[0, 0, 20, 20]]))[0].tolist() == [[5, 5, 15, 15]]
