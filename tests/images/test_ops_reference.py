"""What the ops' pixels are: Pillow's, torchvision's rules by hand, and the spread of what is drawn."""

import math
from itertools import permutations

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageEnhance, ImageOps

from tpufeed.images import (
    ColorJitter,
    GaussianBlur,
    Grayscale,
    RandAugment,
    RandomCrop,
    RandomErasing,
    Rotate,
    VerticalFlip,
)
from tpufeed.images.decoding import decode
from tpufeed.images.ops.rand_augment import autocontrast, equalize
from tpufeed.images.pipeline import Pipeline
from tpufeed.images.rng import uniforms

LARGEST = 1 - 2**-53
ENHANCERS = {
    "brightness": ImageEnhance.Brightness,
    "contrast": ImageEnhance.Contrast,
    "saturation": ImageEnhance.Color,
}
BLACK = (0, 0, 0)
# torchvision/transforms/autoaugment.py, RandAugment._augmentation_space with num_bins=31, in its order: our names
TRANSFORMS = {
    "Identity": "identity",
    "ShearX": "shear_x",
    "ShearY": "shear_y",
    "TranslateX": "translate_x",
    "TranslateY": "translate_y",
    "Rotate": "rotate",
    "Brightness": "brightness",
    "Color": "color",
    "Contrast": "contrast",
    "Sharpness": "sharpness",
    "Posterize": "posterize",
    "Solarize": "solarize",
    "AutoContrast": "autocontrast",
    "Equalize": "equalize",
}


@pytest.fixture(scope="module")
def photo(photos):
    return np.ascontiguousarray(decode(photos["chelsea.png"])[:200:2, :300:2])


def difference(one, other):
    return np.abs(np.asarray(one).astype(int) - np.asarray(other))


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


def test_grayscale_and_flip_are_pillow_s(photo):
    image = Image.fromarray(photo)
    assert difference(Grayscale(1).apply(photo, [0.0], None), image.convert("L").convert("RGB")).max() <= 1
    assert np.array_equal(VerticalFlip(1).apply(photo, [0.0], None), ImageOps.flip(image))


@pytest.mark.parametrize("sigma", [0.3, 1.0, 2.0])
def test_blur_is_a_gaussian_s(photo, sigma):
    reach = (round(sigma * 6 + 1) | 1) // 2
    weights = np.exp(-(np.arange(-reach, reach + 1) ** 2) / (2 * sigma**2))
    weights /= weights.sum()
    expected = np.pad(photo.astype(float), ((reach, reach), (reach, reach), (0, 0)), "reflect")
    for axis in (0, 1):
        expected = np.apply_along_axis(np.convolve, axis, expected, weights, "valid")
    assert difference(GaussianBlur(sigma=(sigma, sigma)).apply(photo, [0.0, 0.0], None), expected.round()).max() <= 1


@pytest.mark.parametrize("degrees", [-170.0, -33.3, 0.5, 10.0, 90.0, 180.0])
def test_rotation_is_pillow_s(photo, degrees):
    found = Rotate((degrees, degrees), fill=(1, 2, 3)).apply(photo, [0.0, 0.0], None)
    inside = np.asarray(Image.new("L", photo.shape[1::-1], 255).rotate(degrees, Image.Resampling.BILINEAR)) == 255
    beyond = np.asarray(Image.new("L", photo.shape[1::-1], 255).rotate(degrees)) == 0
    outside = cv2.erode(beyond.astype(np.uint8), np.ones((3, 3))) == 1
    expected = Image.fromarray(photo).rotate(degrees, Image.Resampling.BILINEAR)
    edge = difference(found, expected).max(axis=2) > 8  # Pillow repeats the last pixel where we blend with the fill
    assert (edge & inside).sum() <= 2 * sum(photo.shape[:2])
    assert difference(found, expected)[inside & ~edge].mean() < 0.7
    assert (found[outside] == (1, 2, 3)).all()


def erased(op, draws, shape=(100, 150, 3)):
    """(top, left, height, width) of the rectangle."""
    changed = op.apply(np.full(shape, 200, np.uint8), draws, None) != 200
    rows, columns = np.flatnonzero(changed.any(axis=(1, 2))), np.flatnonzero(changed.any(axis=(0, 2)))
    if not len(rows):
        return 0, 0, 0, 0
    top, left, height, width = rows[0], columns[0], rows[-1] - rows[0] + 1, columns[-1] - columns[0] + 1
    assert changed[top : top + height, left : left + width].all()
    return top, left, height, width


@pytest.mark.all
def test_erased_rectangles_keep_to_scale_and_ratio():
    op = RandomErasing(1, scale=(0.05, 0.2), ratio=(0.5, 2.0))
    draws = uniforms(0, 0, np.arange(1500), 0, op.draws).tolist()
    top, left, height, width = np.array([erased(op, drawn) for drawn in draws]).T
    areas, ratios = height * width / 15_000, height / width
    assert abs(areas.mean() - 0.125) < 0.005
    assert areas.min() > 0.048
    assert areas.max() < 0.206
    assert abs(np.log(ratios).mean()) < 0.04
    assert ratios.min() > 0.48
    assert ratios.max() < 2.1
    assert abs((top / (100 - height)).mean() - 0.5) < 0.03
    assert abs((left / (150 - width)).mean() - 0.5) < 0.03
    assert (top == 0).any()
    assert (top + height == 100).any()


def test_erasing_by_hand():
    op = RandomErasing(1, scale=(0.25, 0.25), ratio=(1.0, 1.0), value=(1, 2, 3))
    draws = [0.0] * op.draws
    assert erased(op, draws) == (0, 0, 61, 61)
    assert erased(op, [*draws[:21], LARGEST, 0.5, 0.0]) == (39, 45, 61, 61)
    assert op.apply(np.zeros((9, 9, 3), np.uint8), draws, None)[0, 0].tolist() == [1, 2, 3]
    whole = RandomErasing(1, scale=(1.0, 1.0), ratio=(1.0, 1.0))
    assert erased(whole, draws) == (0, 0, 0, 0)  # none of the ten tries fits
    assert erased(op, draws, (10, 40, 3)) == (0, 0, 0, 0)  # as high as the image is no longer smaller than it
    assert erased(op, draws, (11, 36, 3)) == (0, 0, 10, 10)
    second = RandomErasing(1, scale=(0.25, 1.0), ratio=(1.0, 1.0))
    assert erased(second, [0.0, LARGEST, 0.0, *draws[3:]]) == (0, 0, 61, 61)
    random = RandomErasing(1, scale=(0.25, 0.25), value="random").apply(np.zeros((90, 90, 3), np.uint8), draws, None)
    assert len(np.unique(random)) == 256


def by_padding(image, op, draws):
    """torchvision's RandomCrop with padding and pad_if_needed."""
    size = (op.size, op.size) if isinstance(op.size, int) else op.size
    starts = []
    pads = [(op.padding, op.padding)] * 2
    for axis in (0, 1):
        missing = max(0, size[axis] - image.shape[axis] - 2 * op.padding)
        pads[axis] = (op.padding + missing,) * 2
        starts.append(int(draws[axis] * (image.shape[axis] + sum(pads[axis]) - size[axis] + 1)))
    channels = [np.pad(image[..., c], pads, constant_values=np.broadcast_to(op.fill, 3)[c]) for c in range(3)]
    return np.stack(channels, -1)[starts[0] : starts[0] + size[0], starts[1] : starts[1] + size[1]]


side = st.integers(1, 12)


@given(st.tuples(side, side), side | st.tuples(side, side), st.integers(0, 15), st.data())
def test_random_crop_is_torchvision_s(shape, size, padding, data):
    image = np.random.default_rng(0).integers(0, 256, (*shape, 3), np.uint8)
    op = RandomCrop(size, padding, data.draw(st.sampled_from([0, 77, (1, 2, 3)])))
    draws = data.draw(st.tuples(*[st.floats(0, 1, exclude_max=True) | st.sampled_from([0.0, LARGEST])] * 2))
    found = Pipeline([op], 0).run(image, [draws])
    assert np.array_equal(found, by_padding(image, op, draws))
    out = np.empty((*op.output_size(None), 3), np.uint8)
    assert Pipeline([op], 0).run(image, [draws], out) is out
    assert np.array_equal(out, found)


def torchvision_s(name, image, magnitude, sign):
    """torchvision's `_apply_op` on a Pillow image."""
    bilinear, affine = Image.Resampling.BILINEAR, Image.Transform.AFFINE
    level, (width, height) = sign * magnitude / 30, image.size
    factor = 1 + 0.9 * level
    return {
        "Identity": lambda: image,
        "ShearX": lambda: image.transform(image.size, affine, (1, 0.3 * level, 0, 0, 1, 0), bilinear),
        "ShearY": lambda: image.transform(image.size, affine, (1, 0, 0, 0.3 * level, 1, 0), bilinear),
        "TranslateX": lambda: image.transform(image.size, affine, (1, 0, -int(150 / 331 * width * level), 0, 1, 0)),
        "TranslateY": lambda: image.transform(image.size, affine, (1, 0, 0, 0, 1, -int(150 / 331 * height * level))),
        "Rotate": lambda: image.rotate(30 * level, bilinear),
        "Brightness": lambda: ImageEnhance.Brightness(image).enhance(factor),
        "Color": lambda: ImageEnhance.Color(image).enhance(factor),
        "Contrast": lambda: ImageEnhance.Contrast(image).enhance(factor),
        "Sharpness": lambda: ImageEnhance.Sharpness(image).enhance(factor),
        "Posterize": lambda: ImageOps.posterize(image, 8 - round(magnitude / (30 / 4))),
        "Solarize": lambda: ImageOps.solarize(image, 255 - magnitude * 8.5),
        "AutoContrast": lambda: ImageOps.autocontrast(image),
        "Equalize": lambda: ImageOps.equalize(image),
    }[name]()


@pytest.mark.parametrize("magnitude", [0, 1, 9, 30])
@pytest.mark.parametrize(("number", "name"), list(enumerate(TRANSFORMS)))
def test_rand_augment_s_transforms_are_torchvision_s(photo, number, name, magnitude):
    dull = photo // 2 + 30
    for sign, draw in ((1, 0.0), (-1, LARGEST)):
        found = RandAugment(1, magnitude, fill=BLACK).apply(dull, [(number + 0.5) / 14, draw], None)
        alone = RandAugment(1, magnitude, fill=BLACK, transforms=[TRANSFORMS[name]])
        assert np.array_equal(alone.apply(dull, [LARGEST, draw], None), found)
        unlike = difference(found, torchvision_s(name, Image.fromarray(dull), magnitude, sign))
        if name in ("ShearX", "ShearY", "Rotate"):  # places of 1/32 pixel, and edges blended with the fill
            assert (unlike > 8).mean() < 0.015
            assert unlike.mean() < 1.5
        else:
            assert unlike.max() <= 1


def test_rand_augment_draws_each_transform_equally_often(photo):
    small = photo[:16, :16]
    op = RandAugment(1, 20)
    known = {op.apply(small, [(number + 0.5) / 14, sign], None).tobytes() for number in range(14) for sign in (0, 0.9)}
    assert len(known) >= 20  # those that have a sign come twice
    draws = np.array(uniforms(0, 0, np.arange(7000), 0, op.draws))
    skipped = sum(op.skips(drawn) for drawn in draws.tolist())
    assert abs(skipped - 500) < 100
    two = RandAugment(2, 20)
    first = op.apply(small, [0.2, 0.1], None)
    assert np.array_equal(two.apply(small, [0.2, 0.1, 0.9, 0.7], None), op.apply(first, [0.9, 0.7], None))
    assert two.draws == 4
    assert two.skips([0.0, 0.9, 0.05, 0.9])
    assert math.isclose(draws[:, 0].mean(), 0.5, abs_tol=0.02)


def test_rand_augment_draws_from_the_transforms_given(photo):
    op = RandAugment(2, 20, transforms=("posterize", "identity", "rotate"))
    posterized = op.apply(photo, [0.0, 0.0, 0.5, 0.0], None)
    assert np.array_equal(posterized, RandAugment(1, 20, transforms=("posterize",)).apply(photo, [0.0, 0.0], None))
    rotated = op.apply(photo, [0.5, 0.0, LARGEST, 0.9], None)
    assert np.array_equal(rotated, RandAugment(1, 20, transforms=("rotate",)).apply(photo, [0.0, 0.9], None))
    assert op.skips([0.34, 0.0, 0.66, 0.9])
    assert not op.skips([0.33, 0.0, 0.5, 0.0])
    assert (len(op.maps(9, 9, [0.0, 0.0, 0.5, 0.0])), len(op.maps(9, 9, [0.9, 0.0, 0.7, 0.0]))) == (0, 2)
    draws = uniforms(0, 0, np.arange(50), 0, op.draws).tolist()
    everything = RandAugment(2, 20, transforms=tuple(TRANSFORMS.values()))
    for drawn in draws:
        assert np.array_equal(everything.apply(photo, drawn, None), RandAugment(2, 20).apply(photo, drawn, None))


@pytest.mark.parametrize("magnitude", range(31))
def test_every_level_is_solarized_and_posterized_as_by_torchvision(magnitude):
    levels = np.repeat(np.arange(256, dtype=np.uint8).reshape(16, 16, 1), 3, axis=2)
    for name in ("Solarize", "Posterize"):
        found = RandAugment(1, magnitude, transforms=[TRANSFORMS[name]]).apply(levels, [0.5, 0.0], None)
        assert np.array_equal(found, torchvision_s(name, Image.fromarray(levels), magnitude, 1))


@given(st.lists(st.integers(0, 255), min_size=1, max_size=4), st.integers(1, 20), st.integers(1, 20))
def test_histogram_ops_are_pillow_s_on_few_levels(levels, height, width):
    image = np.random.default_rng(1).choice(np.array(levels, np.uint8), (height, width, 3))
    assert np.array_equal(autocontrast(image, None), ImageOps.autocontrast(Image.fromarray(image)))
    assert np.array_equal(equalize(image, None), ImageOps.equalize(Image.fromarray(image)))
