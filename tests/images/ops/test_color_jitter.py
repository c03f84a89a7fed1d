"""ColorJitter: Pillow's enhancers, its hue, and every order."""

import math
from itertools import permutations

import cv2
import numpy as np
import pytest
from hypothesis import strategies as st
from PIL import Image, ImageEnhance

from tests.images.ops.every import LARGEST, Case, difference, ranges
from tpufeed.images import ColorJitter
from tpufeed.images.ops import color_jitter
from tpufeed.images.ops.color_jitter import shift_hue

CASES = [
    Case(ColorJitter(brightness=0.4), 0xC5C52AC1),
    Case(ColorJitter(contrast=0.4), 0xF861B34C),
    Case(ColorJitter(saturation=0.4), 0x10C98022),
    Case(ColorJitter(hue=0.3), 0xDBFF55C8),
    Case(ColorJitter(0.4, 0.4, 0.4, 0.1), 0x0FFD0AD6, device=2),
    Case(ColorJitter(brightness=(0.2, 3.0)), device=1),
    Case(ColorJitter(contrast=(0.2, 3.0)), device=1),
    Case(ColorJitter(saturation=(0.2, 3.0)), device=1),
    Case(ColorJitter(hue=0.5), device=0),
]
# Several changes add up, and a hue has 256 steps: one step is up to 6 levels.
CHAINED = {
    ColorJitter(0.5): 1,
    ColorJitter(contrast=(0.1, 2.0)): 1,
    ColorJitter(saturation=(0.0, 1.9)): 1,
    ColorJitter(hue=0.5): 4,
    ColorJitter(0.5, 0.6, 0.7, 0.5): 16,
    ColorJitter(contrast=(0.1, 2.0), hue=(0.1, 0.3)): 16,
}
factors = st.floats(0, 99) | ranges(0, 100)
MADE = [st.builds(ColorJitter, factors, factors, factors, st.floats(0, 0.5) | ranges(-0.5, 0.5))]
SAME = [(ColorJitter(0.5, hue=0.25), ColorJitter((0.5, 1.5), 0, [1, 1], (-0.25, 0.25)))]
REFUSED = [
    *(
        (ColorJitter, {kind: value}, f"{kind} is a number")
        for kind in ("brightness", "contrast", "saturation")
        for value in (-0.1, 100, (0.5,), (2, 1), (-1, 1), math.inf, "x", None, True)
    ),
    *((ColorJitter, {"hue": value}, "hue is a number") for value in (-0.1, 0.51, (-0.6, 0), (0.3, 0.2), None)),
]
ENHANCERS = {
    "brightness": ImageEnhance.Brightness,
    "contrast": ImageEnhance.Contrast,
    "saturation": ImageEnhance.Color,
}


def levels(image):
    return np.clip(np.rint(image), 0, 255)


def brightened(image, factor):
    return levels(image * factor)


def contrasted(image, factor):
    grey = np.asarray(Image.fromarray(image.astype(np.uint8)).convert("L")).astype(float)
    mean = math.floor(grey.mean() + 0.5)
    return levels(mean + (image - mean) * factor)


def saturated(image, factor):
    grey = (image @ (0.299, 0.587, 0.114))[..., None]
    return levels(grey + (image - grey) * factor)


def turned(image, turns):
    """The hue turned; a pixel's largest and smallest level stay."""
    most, least = image.max(-1), image.min(-1)
    spread = np.maximum(most - least, 1)
    red, green, blue = (image[..., channel] for channel in range(3))
    sixths = np.where(
        most == red,
        (green - blue) / spread,
        np.where(most == green, 2 + (blue - red) / spread, 4 + (red - green) / spread),
    )
    places = [(offset + sixths + 6 * turns) % 6 for offset in (5, 3, 1)]
    shares = [np.clip(np.minimum(place, 4 - place), 0, 1) for place in places]
    return np.stack([most - (most - least) * share for share in shares], -1)


def reference(op, image, u):
    changes = (brightened, contrasted, saturated, lambda each, turns: turned(each, round(turns * 256) / 256))
    for number in list(permutations(range(4)))[int(u[4] * 24)]:
        low, high = (op.brightness, op.contrast, op.saturation, op.hue)[number]
        image = levels(changes[number](image, low + u[number] * (high - low)))
    return image


def of_kind(kind, value):
    """A jitter of one kind, and the draws that make its factor the lowest of its range."""
    return ColorJitter(**{kind: value}), [0.0] * 5


@pytest.mark.parametrize("factor", [0.0, 0.3, 0.9, 1.1, 1.9, 4.0])
@pytest.mark.parametrize("kind", ENHANCERS)
def test_jitter_is_pillow_s_enhancer(photo, kind, factor):
    op, draws = of_kind(kind, (factor, factor))
    found = difference(op.apply(photo, draws, None), ENHANCERS[kind](Image.fromarray(photo)).enhance(factor))
    assert found.max() <= 2  # Pillow cuts off what we round
    assert found.mean() <= 0.6


@pytest.mark.parametrize("hue", [-0.5, -0.3, -0.05, 0.1, 0.25, 0.5])
def test_hue_is_pillow_s(photo, hue):
    hues, saturation, value = Image.fromarray(photo).convert("HSV").split()
    turned = ((np.asarray(hues).astype(int) + round(hue * 256)) % 256).astype(np.uint8)
    expected = Image.merge("HSV", (Image.fromarray(turned), saturation, value)).convert("RGB")
    op, draws = of_kind("hue", (hue, hue))
    found = op.apply(photo, draws, None)
    assert difference(found, expected).max() <= 8  # both have hues of 8 bits, each rounded in its way
    assert difference(found, expected).mean() < 1
    assert np.array_equal(found.max(axis=2), photo.max(axis=2))
    assert np.array_equal(found.min(axis=2), photo.min(axis=2))


def test_jitter_s_four_changes_come_in_every_order(photo):
    op, draws = ColorJitter(0.5, 0.5, 0.5, 0.2), [0.9, 0.8, 0.1, 0.7]
    factors = {"brightness": 1.4, "contrast": 1.3, "saturation": 0.6, "hue": 0.08}
    seen = set()
    for number, order in enumerate(permutations(factors)):
        image = photo
        for kind in order:
            image = ColorJitter(**{kind: (factors[kind], factors[kind])}).apply(image, [0.0] * 5, None)
        assert np.array_equal(op.apply(photo, [*draws, (number + 0.5) / 24], None), image)
        seen.add(image.tobytes())
    assert len(seen) == 24


def test_grey_images_stay_grey(photo):
    grey = np.repeat(photo[..., :1], 3, axis=2)
    for op in (ColorJitter(saturation=(0.3, 3)), ColorJitter(hue=0.5)):
        for draw in (0.0, 0.3, LARGEST):
            assert np.array_equal(op.apply(grey, [draw] * op.draws, None), grey)


def test_hues_are_the_same_where_a_scaled_product_is_cut_off(photo, monkeypatch):
    """As OpenCV's is on Arm."""
    multiply = cv2.multiply

    def cut_off(first, second, scale=1.0, **options):
        if scale == 1:
            return multiply(first, second, **options)
        return np.trunc(first * np.float64(scale) * second).astype(np.uint8)

    expected = [shift_hue(photo, steps, None) for steps in range(0, 256, 17)]
    monkeypatch.setattr(cv2, "multiply", cut_off)
    color_jitter._scaling_rounds.cache_clear()
    try:
        assert not color_jitter._scaling_rounds()
        found = [shift_hue(photo, steps, None) for steps in range(0, 256, 17)]
    finally:
        color_jitter._scaling_rounds.cache_clear()
    assert all(np.array_equal(one, other) for one, other in zip(found, expected, strict=True))
