"""The ops: windows, sizes, draws and their descriptions."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpufeed.errors import OptionError
from tpufeed.images import CenterCrop, HorizontalFlip, RandomCrop, RandomErasing, RandomResizedCrop, Resize
from tpufeed.images.description import from_dict
from tpufeed.images.pipeline import Pipeline
from tpufeed.images.rng import uniforms
from tpufeed.images.windows import reduction, resize, short_side_size

sides = st.integers(1, 5000)
sizes = sides | st.tuples(sides, sides)
unit = st.floats(0, 1, exclude_max=True)
LARGEST = 1 - 2**-53

window_ops = st.one_of(
    st.builds(Resize, sizes),
    st.builds(CenterCrop, sizes),
    st.builds(
        RandomResizedCrop,
        sizes,
        scale=st.tuples(st.floats(1e-6, 1), st.floats(1e-6, 1)).map(lambda pair: tuple(sorted(pair))),
        ratio=st.tuples(st.floats(0.01, 100), st.floats(0.01, 100)).map(lambda pair: tuple(sorted(pair))),
    ),
)


def check_window(op, height, width, draws):
    window = op.window(height, width, draws)
    assert all(isinstance(value, int) for value in window)
    assert window.height >= 1
    assert window.width >= 1
    assert 0 <= window.top <= height - window.height
    assert 0 <= window.left <= width - window.width
    assert op.output_size((height, width)) == (window.out_height, window.out_width)
    return window


@given(window_ops, sides, sides, st.data())
def test_windows_lie_within_the_image(op, height, width, data):
    draws = data.draw(st.lists(unit | st.sampled_from([0.0, LARGEST]), min_size=op.draws, max_size=op.draws))
    check_window(op, height, width, draws)


@pytest.mark.parametrize("draw", [0.0, 0.5, LARGEST])
@pytest.mark.parametrize(("height", "width"), [(1, 1), (1, 5000), (5000, 1), (16384, 16384), (224, 224), (3, 2)])
def test_extreme_images_have_windows(height, width, draw):
    ops = [
        RandomResizedCrop(224),
        RandomResizedCrop(224, scale=(1.0, 1.0), ratio=(1.0, 1.0)),
        RandomResizedCrop(224, ratio=(3, 4)),
        RandomResizedCrop(224, ratio=(0.2, 0.3)),
        RandomResizedCrop(1, scale=(1e-9, 1e-9)),
        CenterCrop((224, 10)),
        CenterCrop(1),
        Resize(1),
        Resize((224, 3)),
    ]
    for op in ops:
        check_window(op, height, width, [draw] * op.draws)


def test_center_crop_is_the_middle():
    assert CenterCrop(100).window(300, 201, ()) == (100, 50, 100, 100, 100, 100)
    assert CenterCrop((100, 50)).window(100, 50, ()) == (0, 0, 100, 50, 100, 50)
    assert CenterCrop(100).window(50, 80, ()) == (0, 15, 50, 50, 100, 100)  # enlarged
    assert CenterCrop((100, 200)).window(50, 400, ()) == (0, 150, 50, 100, 100, 200)


def test_sizes_that_differ_from_image_to_image_are_none():
    assert Resize(224).output_size(None) is None
    assert Resize((1, 2)).output_size(None) == (1, 2)
    assert CenterCrop(5).output_size(None) == RandomResizedCrop(5).output_size(None) == (5, 5)
    assert HorizontalFlip().output_size(None) is None
    assert HorizontalFlip().output_size((3, 4)) == (3, 4)
    assert Pipeline([Resize(256), CenterCrop(224), HorizontalFlip()], 0).output_size(None) == (224, 224)
    assert Pipeline([Resize(256), HorizontalFlip()], 0).output_size((512, 1024)) == (256, 512)
    assert Pipeline([], 0).output_size(None) is None


@pytest.mark.parametrize(
    ("scale", "ratio"), [((0.08, 1.0), (3 / 4, 4 / 3)), ((0.3, 0.5), (1.0, 1.0)), ((0.05, 0.2), (0.5, 2.0))]
)
def test_random_resized_crop_keeps_to_scale_and_ratio(scale, ratio):
    op, height, width = RandomResizedCrop(224, scale, ratio), 1000, 1500
    windows = np.array(
        [op.window(height, width, draws) for draws in uniforms(0, 0, np.arange(4000), 0, op.draws).tolist()]
    )
    top, left, cut_height, cut_width = windows[:, :4].T
    areas, ratios = cut_height * cut_width / (height * width), cut_width / cut_height
    assert scale[0] * 0.99 <= areas.min()
    assert areas.max() <= scale[1] * 1.01
    assert ratio[0] * 0.99 <= ratios.min()
    assert ratios.max() <= ratio[1] * 1.01
    # Areas are uniform and ratios uniform in their logarithm, but for windows that do not fit and are drawn again.
    if scale[1] <= 0.5:
        assert abs(areas.mean() - sum(scale) / 2) < 0.01
        assert abs(np.log(ratios).mean() - math.log(ratio[0] * ratio[1]) / 2) < 0.02
        assert areas.min() < scale[0] * 1.02
        assert areas.max() > scale[1] * 0.98
    for place, free in ((top, height - cut_height), (left, width - cut_width)):
        moved = place[free > 20] / free[free > 20]
        assert abs(moved.mean() - 0.5) < 0.02
        assert moved.min() < 0.01
        assert moved.max() > 0.99


def test_windows_of_given_draws_never_change():
    op, draws = RandomResizedCrop((10, 20), (0.25, 0.5), (1.0, 4.0)), [0.5] * 20
    assert op.window(100, 200, [*draws, 0.0, 0.0]) == (0, 0, 61, 122, 10, 20)
    assert op.window(100, 200, [*draws, 0.5, 0.25]) == (20, 19, 61, 122, 10, 20)
    assert op.window(100, 200, [*draws, LARGEST, LARGEST]) == (39, 78, 61, 122, 10, 20)
    does_not_fit = [LARGEST, LARGEST]
    assert op.window(100, 100, [*does_not_fit, *draws[2:], 0.0, LARGEST]) == (0, 13, 43, 87, 10, 20)


def test_random_resized_crop_falls_back_to_the_middle():
    op = RandomResizedCrop(224, scale=(1.0, 1.0))
    draws = [0.5] * op.draws  # all of the area, square: never fits
    assert op.window(100, 400, draws) == (0, 133, 100, 133, 224, 224)
    assert op.window(400, 100, draws) == (133, 0, 133, 100, 224, 224)
    assert op.window(100, 110, draws) == (0, 0, 100, 110, 224, 224)


@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 2**32))
def test_flip_is_numpy_s(height, width, seed):
    image = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    before, out = image.copy(), np.zeros_like(image)
    op = HorizontalFlip()
    expected = image[:, ::-1].tolist()
    assert op.apply(image, [0.1], None).tolist() == expected
    assert op.apply(image, [0.1], out) is out
    assert out.tolist() == expected
    assert np.array_equal(image, before)


@given(st.integers(1, 60), st.integers(1, 60), st.integers(1, 60), st.integers(1, 60), st.sampled_from([1, 3]))
def test_resize_writes_to_out_what_it_returns_without(height, width, out_height, out_width, channels):
    image = np.random.default_rng(height).integers(0, 256, (2 * height, 2 * width, channels), np.uint8)
    image = image[::2, :width]  # no contiguous memory
    before, out = image.copy(), np.full((out_height, out_width, channels), 77, np.uint8)
    result = resize(image, out_height, out_width)
    assert resize(image, out_height, out_width, out) is out
    assert out.reshape(-1).tolist() == result.reshape(-1).tolist()
    assert np.array_equal(image, before)
    assert image.min() <= out.min()
    assert out.max() <= image.max()


def test_resize_averages_where_it_shrinks():
    stripes = np.zeros((64, 64, 3), np.uint8)
    stripes[::2] = 200
    assert set(resize(stripes, 16, 16).reshape(-1).tolist()) == {100}


@given(sides, sides, sides, sides)
def test_reduction_still_gives_the_wanted_size(height, width, wanted_height, wanted_width):
    reduce = reduction(height, width, wanted_height, wanted_width)
    assert reduce in (1, 2, 4, 8)
    if reduce > 1:
        assert height // reduce >= wanted_height
        assert width // reduce >= wanted_width
    if reduce < 8:
        assert height < 2 * reduce * wanted_height or width < 2 * reduce * wanted_width


@given(sides, sides, sides)
def test_short_side_size_keeps_the_aspect(height, width, side):
    size = short_side_size(height, width, side)
    assert min(size) == side
    assert abs(max(size) - side * max(height, width) / min(height, width)) <= 0.5 + 1e-6
    assert (size[0] < size[1]) <= (height < width)


@pytest.mark.parametrize(
    ("description", "message"),
    [
        ({"op": "Turn", "version": 1}, "'Turn' is not one of the ops.*CenterCrop, Choose, ColorJitter"),
        ({}, "None is not one of the ops"),
        ({"op": "Resize", "version": 2, "size": 3}, "Resize is of version 2, but this tpufeed makes version 1"),
        ({"op": "Resize", "size": 3}, "version None"),
        ({"op": "Resize", "version": 1, "size": 3, "filter": "x"}, "no parameters.*filter"),
        ({"op": "Resize", "version": 1}, "size"),
        ({"op": "Resize", "version": 1, "size": [1, 2, 3]}, "one or two numbers of pixels"),
        ({"op": "RandomResizedCrop", "version": 1, "scale": [2, 3]}, "scale"),
    ],
    ids=str,
)
def test_a_description_that_is_no_op_is_an_option_error(description, message):
    with pytest.raises(OptionError, match=message):
        from_dict(description)


@pytest.mark.parametrize("op", [Resize, CenterCrop, RandomResizedCrop])
@pytest.mark.parametrize(
    "size", [0, -1, 16385, 224.0, "224", None, (), (224,), (224, 0), (1, 2, 3), (1.5, 2), ("a", "b"), {}], ids=repr
)
def test_sizes_that_are_none_are_option_errors(op, size):
    with pytest.raises(OptionError, match=f"{op.__name__}: size is"):
        op(size)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("scale", (0, 1)),
        ("scale", (0.5, 0.4)),
        ("scale", (0.5, 1.1)),
        ("scale", 0.5),
        ("scale", (0.5,)),
        ("scale", (0.1, 0.2, 0.3)),
        ("scale", None),
        ("scale", ("a", "b")),
        ("scale", (math.nan, 1.0)),
        ("scale", (0.5, math.nan)),
        ("ratio", (0, 1)),
        ("ratio", (-1, 1)),
        ("ratio", (2, 1)),
        ("ratio", (1, math.inf)),
        ("ratio", "ab"),
    ],
)
def test_ranges_that_are_none_are_option_errors(name, value):
    with pytest.raises(OptionError, match=f"RandomResizedCrop: {name} is"):
        RandomResizedCrop(224, **{name: value})


@pytest.mark.parametrize("value", [Resize, HorizontalFlip, None, "Resize", np.flip, lambda image: image, object()])
def test_what_is_no_op_is_refused_by_name(value):
    with pytest.raises(OptionError, match="ops are"):
        Pipeline([Resize(3), value], 0)


@pytest.mark.all
@pytest.mark.parametrize(
    ("op", "height", "width"),
    [
        (RandomResizedCrop(224), 256, 256),
        (RandomResizedCrop(224), 100, 333),
        (RandomResizedCrop(10, scale=(0.9, 1.0)), 400, 300),
        (RandomResizedCrop(10, scale=(1e-6, 1e-3), ratio=(0.1, 20.0)), 40, 30),
        (RandomResizedCrop(10, scale=(1.0, 1.0), ratio=(3.0, 4.0)), 99, 98),  # no window fits
        (RandomCrop(224, padding=4), 256, 300),
        (RandomCrop((300, 20)), 256, 40),
    ],
)
def test_windows_of_a_batch_are_those_of_each_image(op, height, width):
    draws = uniforms(1, 2, np.arange(100_000 if width == 256 else 10_000), 3, op.draws)
    expected = [op.window(height, width, drawn)[:4] for drawn in draws.tolist()]
    np.testing.assert_array_equal(op.windows(height, width, draws), expected)


@pytest.mark.all
@pytest.mark.parametrize("op", [RandomErasing(0.8), RandomErasing(1.0, scale=(0.5, 1.0)), RandomErasing(0.0)])
def test_rectangles_of_a_batch_are_those_of_each_image(op):
    draws = uniforms(1, 2, np.arange(10_000), 3, op.draws)
    found = op.rectangles(40, 60, draws)
    for (top, left, height, width), drawn in zip(found.tolist(), draws.tolist(), strict=True):
        expected = np.zeros((40, 60, 3), np.uint8)
        expected[top : top + height, left : left + width] = 255
        image = np.zeros((40, 60, 3), np.uint8)
        found_image = image if op.skips(drawn) else replace(op, value=255).apply(image, drawn, None)
        np.testing.assert_array_equal(found_image, expected)
