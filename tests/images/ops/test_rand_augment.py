"""RandAugment's transforms are torchvision's, and are drawn equally often."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageEnhance, ImageOps

from tests.images.ops.every import LARGEST, Case, difference, fills
from tests.images.ops.test_color_jitter import brightened, contrasted, saturated
from tpufeed.images import RandAugment
from tpufeed.images.ops.rand_augment import autocontrast, equalize
from tpufeed.images.rng import uniforms

ON_DEVICE = ("identity", "translate_x", "translate_y", "brightness", "color", "contrast", "sharpness", "posterize")
ON_DEVICE += ("autocontrast", "solarize")
CASES = [
    Case(RandAugment(), 0x6B959B00),
    Case(RandAugment(4, 25), 0x65197661),
    Case(RandAugment(2, 9, transforms=("identity", "shear_y", "posterize", "equalize")), 0x046BA4D8),
    *(
        Case(RandAugment(1, magnitude, fill=9, transforms=(name, "identity")), device=levels)
        for names, levels, magnitudes in (
            (("translate_x", "translate_y", "posterize", "solarize"), 0, (0, 7, 30)),
            (("brightness", "color", "contrast", "sharpness"), 1, (0, 10, 30)),
            (("autocontrast",), 1, (0,)),
        )
        for name in names
        for magnitude in magnitudes
    ),
]
CHAINED = {
    RandAugment(2, 9, fill=44, transforms=ON_DEVICE[:-2]): 4,
    RandAugment(1, 9, fill=44, transforms=ON_DEVICE): 2,
    RandAugment(1, 30, fill=(1, 2, 3), transforms=ON_DEVICE): 2,
}
transforms = st.lists(st.sampled_from(["identity", "shear_x", "rotate", "color"]), min_size=1, unique=True)
MADE = [st.builds(RandAugment, st.integers(0, 100), st.integers(0, 30), fill=fills, transforms=st.none() | transforms)]
SAME = [
    (RandAugment(np.int64(2)), RandAugment(2)),
    (RandAugment(transforms=["rotate", np.str_("color")]), RandAugment(transforms=("rotate", "color"))),
]
REFUSED = [
    *((RandAugment, {"num_ops": value}, "num_ops is a whole number") for value in (-1, 101, 1.0, None)),
    *((RandAugment, {"magnitude": value}, "magnitude is a whole number") for value in (-1, 31, 9.5, "9")),
    (RandAugment, {"fill": 999}, "fill is a level"),
    *(
        (RandAugment, {"transforms": value}, "transforms is one or more of identity, .*equalize, each once, not")
        for value in ((), [], "rotate", ("Rotate",), ("rotate", "rotate"), ("rotate", 3), ([],), {"rotate"}, b"x")
    ),
]
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


OURS = {"Brightness": brightened, "Color": saturated, "Contrast": contrasted}  # Pillow cuts off what we round


def reference(op, image, u):
    names = {ours: theirs for theirs, ours in TRANSFORMS.items()}
    for number in range(op.num_ops):
        name = names[op.transforms[int(u[2 * number] * len(op.transforms))]]
        sign, shown = 1 if u[2 * number + 1] < 0.5 else -1, Image.fromarray(image.astype(np.uint8))
        if name in OURS:
            image = OURS[name](image, 1 + 0.9 * sign * op.magnitude / 30)
        elif name in ("TranslateX", "TranslateY"):
            side = shown.size[name == "TranslateY"]
            step = sign * (150 * side * op.magnitude // (331 * 30))
            image = moved(shown, *((step, 0) if name == "TranslateX" else (0, step)), op.fill)
        else:
            image = torchvision_s(name, shown, op.magnitude, sign)
        image = np.asarray(image).astype(float)
    return image


def moved(image, right, down, fill=0):
    color = (fill,) * 3 if isinstance(fill, int) else fill
    return image.transform(image.size, Image.Transform.AFFINE, (1, 0, -right, 0, 1, -down), fillcolor=color)


def torchvision_s(name, image, magnitude, sign):
    """torchvision's `_apply_op` on a Pillow image."""
    bilinear, affine = Image.Resampling.BILINEAR, Image.Transform.AFFINE
    level, (width, height) = sign * magnitude / 30, image.size
    factor = 1 + 0.9 * level
    return {
        "Identity": lambda: image,
        "ShearX": lambda: image.transform(image.size, affine, (1, 0.3 * level, 0, 0, 1, 0), bilinear),
        "ShearY": lambda: image.transform(image.size, affine, (1, 0, 0, 0.3 * level, 1, 0), bilinear),
        "TranslateX": lambda: moved(image, int(150 / 331 * width * level), 0),
        "TranslateY": lambda: moved(image, 0, int(150 / 331 * height * level)),
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


@pytest.mark.parametrize("side", [2, 5])
def test_no_pair_of_transforms_writes_to_the_image(side):
    image = np.random.default_rng(3).integers(0, 256, (2 * side, side + 5, 3), np.uint8)[::2, 2:-3]
    image.flags.writeable = False
    for first in range(14):
        for second in range(14):
            draws = [(first + 0.5) / 14, 0.0, (second + 0.5) / 14, 0.9]
            found = RandAugment(2).apply(image, draws, None)  # the image is read-only
            assert np.array_equal(RandAugment(2).apply(image, draws, np.empty_like(found)), found)
