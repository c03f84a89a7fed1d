"""Rotate is Pillow's rotation."""

import math

import cv2
import numpy as np
import pytest
from hypothesis import strategies as st
from PIL import Image

from tests.images.ops.every import Case, chances, difference, fills, ranges
from tpufeed.images import Rotate

CASES = [Case(Rotate(45, (1, 2, 3)), 0x5205E354)]
MADE = [st.builds(Rotate, st.floats(0, 360) | ranges(-360, 360), fills, chances)]
MOVING = [st.builds(Rotate, st.floats(1, 60).map(lambda degrees: (-degrees, degrees)))]
SAME = [(Rotate(30), Rotate((-30, 30.0)))]
REFUSED = [
    *((Rotate, {"degrees": value}, "degrees is a number") for value in (-1, 361, (3, 2), (-361, 0), "9", math.nan)),
    *((Rotate, {"degrees": 3, "fill": value}, "fill is a level") for value in (300, (0, 0, 256), "black")),
]


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
