"""Flips are Pillow's."""

from fractions import Fraction

import numpy as np
from hypothesis import strategies as st
from PIL import Image, ImageOps

from tests.images.ops.every import Case, chances
from tpufeed.images import HorizontalFlip, VerticalFlip

CASES = [
    Case(HorizontalFlip(1), 0xA0ABF60B),
    Case(VerticalFlip(1), 0x53264D6E),
    Case(HorizontalFlip(), device=0),
    Case(VerticalFlip(0.3), device=0),
]
CHAINED = {HorizontalFlip(): 0, VerticalFlip(0.4): 0}
MADE = [st.builds(HorizontalFlip, chances), st.builds(VerticalFlip, chances)]
MOVING = [st.builds(HorizontalFlip, st.just(1.0)), st.builds(VerticalFlip, st.just(1.0))]
SAME = [
    (HorizontalFlip(1), HorizontalFlip(1.0)),
    (HorizontalFlip(0), HorizontalFlip(-0.0)),
    (HorizontalFlip(0.5), HorizontalFlip(Fraction(1, 2))),
]


def reference(op, image, u):
    return image[:, ::-1] if isinstance(op, HorizontalFlip) else image[::-1]


def test_they_are_pillow_s(photo):
    assert np.array_equal(VerticalFlip(1).apply(photo, [0.0], None), ImageOps.flip(Image.fromarray(photo)))
    assert np.array_equal(HorizontalFlip(1).apply(photo, [0.0], None), ImageOps.mirror(Image.fromarray(photo)))
