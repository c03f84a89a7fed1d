"""Grayscale is Pillow's."""

import numpy as np
from hypothesis import strategies as st
from PIL import Image

from tests.images.ops.every import Case, chances, difference
from tpufeed.images import Grayscale

CASES = [Case(Grayscale(), 0x02BE32B6), Case(Grayscale(0.5), device=0)]
CHAINED = {Grayscale(0.5): 1}
MADE = [st.builds(Grayscale, chances)]
SAME = [(Grayscale(1), Grayscale(np.float32(1)))]


def reference(op, image, u):
    return np.asarray(Image.fromarray(image.astype(np.uint8)).convert("L").convert("RGB")).astype(float)


def test_it_is_pillow_s(photo):
    assert difference(Grayscale(1).apply(photo, [0.0], None), reference(None, photo, None)).max() <= 1
