"""Each op's graph against the op of tpufeed.images: the same windows, the same choices, the same pixels."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tpufeed.images import (
    CenterCrop,
    ColorJitter,
    GaussianBlur,
    Grayscale,
    HorizontalFlip,
    RandAugment,
    RandomCrop,
    RandomErasing,
    RandomResizedCrop,
    Resize,
    Rotate,
    VerticalFlip,
)
from tpufeed.images.decoding import decode
from tpufeed.images.draws import uniforms
from tpufeed.images.ops import OPS
from tpufeed.images.pipeline import Pipeline
from tpufeed.loaders.tf.ops import FLIPS, PIXEL_OPS, run_pixel_op
from tpufeed.loaders.tf.pipeline import GraphPipeline
from tpufeed.loaders.tf.windows import WINDOW_OPS, find_window

HEIGHT, WIDTH = 66, 90
SAMPLES = 9
EXACT = (0.0, 0)
# Mean and largest difference in levels. What works in whole numbers, or in tables made in float64, is exact. The rest
# is float32 against the fixed point of OpenCV: 11 bits for bilinear weights, 10 for a colour matrix.
ROUNDING = (0.15, 1)
# A saturation off by one level before contrast (at most 1.4 here) and hue, whose shares of 1/255 then differ.
IN_TURN = (0.5, 8)
CASES = [
    (Resize((33, 50)), ROUNDING),
    (Resize((20, 30)), ROUNDING),  # by areas: more than twice as large
    (Resize((99, 100)), ROUNDING),
    (Resize((HEIGHT, WIDTH)), EXACT),
    (Resize(40), ROUNDING),
    (CenterCrop(50), EXACT),
    (CenterCrop((80, 60)), ROUNDING),
    (RandomCrop(40), EXACT),
    (RandomCrop((60, 30), padding=9, fill=200), EXACT),
    (RandomCrop(100, padding=4, fill=(1, 2, 250)), EXACT),
    (RandomResizedCrop(32), ROUNDING),
    (RandomResizedCrop((24, 40), (0.5, 1.0), (0.2, 5.0)), ROUNDING),
    (HorizontalFlip(), EXACT),
    (VerticalFlip(0.3), EXACT),
    (ColorJitter(brightness=0.8), EXACT),
    (ColorJitter(contrast=(0.2, 3.0)), EXACT),
    (ColorJitter(saturation=0.9), ROUNDING),
    (ColorJitter(hue=0.5), EXACT),
    (ColorJitter(0.4, 0.4, 0, 0.2), EXACT),
    (ColorJitter(0.4, 0.4, 0.4, 0.1), IN_TURN),
    (Grayscale(0.5), EXACT),
    (GaussianBlur(p=0.7), EXACT),
    (GaussianBlur((9.0, 30.0), p=0.7), EXACT),  # reaches further than the image
    (RandomErasing(0.7), EXACT),
    (RandomErasing(1.0, ratio=(0.9, 1.1), value=(9, 200, 40)), EXACT),
    (RandomErasing(0.7, value="random"), EXACT),
    (Rotate(30, fill=(9, 8, 200), p=0.8), EXACT),
    (Rotate((-360, 360)), EXACT),
]
REACH = (np.nextafter(0, 1), 1 - 2**-53)


@pytest.fixture(scope="module")
def images(photos):
    """Pieces of photographs, uint8 (SAMPLES, HEIGHT, WIDTH, 3)."""
    names = ["chelsea.png", "china.jpg", "coffee.png"]
    whole = [decode(photos[name])[::2, ::2] for name in names]
    return np.stack([whole[n % 3][5 * n : 5 * n + HEIGHT, 7 * n : 7 * n + WIDTH] for n in range(SAMPLES)])


def run_graph(op, images, draws):
    pipeline = GraphPipeline([op], 0, stored_size=(HEIGHT, WIDTH))
    dataset = tf.data.Dataset.from_tensor_slices((images, (draws,) if op.draws else ()))
    run = tf.autograph.experimental.do_not_convert(pipeline.run)
    mapped = dataset.map(run)
    assert mapped.element_spec.shape == pipeline.output_shape
    return np.stack([found.numpy() for found in mapped])


def run_op(op, images, draws):
    pipeline = Pipeline([op], 0)
    return np.stack([pipeline.run(image, [drawn]) for image, drawn in zip(images, draws, strict=True)])


def is_close(found, expected, tolerance):
    difference = np.abs(found.astype(int) - expected).reshape(len(found), -1)
    mean, largest = tolerance
    return bool((difference.mean(1) <= mean).all() and difference.max() <= largest)


def test_all_ops_but_custom_have_a_graph():
    assert {*FLIPS, *WINDOW_OPS, *PIXEL_OPS} == {op for name, op in OPS.items() if name != "Custom"}
    assert {type(op) for op, _ in CASES} | {RandAugment} == {*FLIPS, *WINDOW_OPS, *PIXEL_OPS}


@pytest.mark.parametrize(("op", "tolerance"), CASES, ids=lambda value: str(value).replace(" ", "") if value else "")
def test_pixels_are_the_op_s(op, tolerance, images):
    draws = uniforms(3, 1, np.arange(SAMPLES), 0, op.draws)
    found = run_graph(op, images, draws)
    assert is_close(found, run_op(op, images, draws.tolist()), tolerance)
    if op.draws:  # the comparison would notice another sample's draws
        assert not is_close(found, run_op(op, images, np.roll(draws, 1, 0).tolist()), tolerance)


@pytest.mark.parametrize("signed", [9, -30])
def test_randaugment_s_transforms(signed, images):
    """All are exact but those that mix colours in float32: Color, and Sharpness, whose rounding is OpenCV's."""
    op = RandAugment(1, abs(signed), fill=(1, 200, 30))
    draws = np.array([[(number + 0.5) / 14, 0.2 if signed > 0 else 0.7] for number in range(14)])
    same = np.repeat(images[:1], 14, 0)
    found, expected = run_graph(op, same, draws), run_op(op, same, draws.tolist())
    for number in range(14):
        tolerance = ROUNDING if number in (7, 9) else EXACT
        assert is_close(found[number : number + 1], expected[number : number + 1], tolerance), number
    assert sum(np.array_equal(one, images[0]) for one in found) == 1  # Identity


def test_randaugment_s_choices(images):
    op = RandAugment(3, 15)
    draws = uniforms(5, 0, np.arange(SAMPLES), 0, op.draws)
    found = run_graph(op, images, draws)
    tolerance = (1.0, 255)  # a level that Color leaves otherwise, Equalize may move far, if few have it
    assert is_close(found, run_op(op, images, draws.tolist()), tolerance)
    assert not is_close(found, run_op(op, images, np.roll(draws, 1, 0).tolist()), tolerance)


def test_jitter_s_orders(images):
    op = ColorJitter((0.6, 0.6), (1.7, 1.7), 0.0, (0.2, 0.2))
    draws = np.array([[0.5] * 4 + [(number + 0.5) / 24] for number in range(24)])
    same = np.repeat(images[:1], 24, 0)
    found = run_graph(op, same, draws)
    assert np.array_equal(found, run_op(op, same, draws.tolist()))
    assert len({one.tobytes() for one in found}) > 2


@pytest.mark.parametrize("size", [(1, 1), (1, 40), (3, 2)])
@pytest.mark.parametrize(
    "op", [ColorJitter(0.4, 0.4, 0, 0.2), GaussianBlur(p=1), Rotate(30), RandomErasing(1), RandAugment(1, 30)]
)
def test_the_smallest_images(op, size):
    image = np.random.default_rng(0).integers(0, 256, (*size, 3), np.uint8)
    for draws in uniforms(2, 0, np.arange(3), 0, op.draws):
        found = run_pixel_op(op, tf.constant(image), tf.constant(draws)).numpy()
        assert is_close(found[None], op.apply(image, draws.tolist(), None)[None], (1.0, 1))


window_ops = st.sampled_from(
    [
        RandomResizedCrop(224),
        RandomResizedCrop(8, (0.9, 1.0), (0.1, 0.2)),  # most tries fail
        RandomResizedCrop(8, (0.5, 1.0), (5.0, 9.0)),
        RandomCrop((30, 200)),
        RandomCrop(70, padding=13),
        CenterCrop((224, 100)),
        CenterCrop(31),
        Resize(256),
        Resize(7),
        Resize((30, 40)),
    ]
)


@given(window_ops, st.integers(1, 700), st.integers(1, 700), st.integers(0, 2**32), st.data())
@settings(max_examples=60)
def test_windows_are_the_op_s(op, height, width, seed, data):
    draws = uniforms(seed, 0, np.array([1]), 0, op.draws)[0]
    if op.draws and data.draw(st.booleans()):
        draws[data.draw(st.integers(0, op.draws - 1))] = data.draw(st.sampled_from(REACH))
    window, out = find_window(op, tf.constant([height, width]), tf.constant(draws))
    assert (*window.numpy(), *out.numpy()) == op.window(height, width, draws.tolist())
