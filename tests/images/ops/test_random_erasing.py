"""RandomErasing: the rectangle's rule by hand, and its spread."""

import math

import numpy as np
import pytest
from hypothesis import strategies as st

from tests.images.ops.every import LARGEST, Case, chances, fills, ranges
from tpufeed.images import RandomErasing
from tpufeed.images.rng import uniforms

CASES = [
    Case(RandomErasing(1), 0x157A1148),
    Case(RandomErasing(1, value="random"), 0x1D0A3DF2),
    Case(RandomErasing(0.8, value=(9, 8, 7)), device=0),
    Case(RandomErasing(0.8), device=0),
]
CHAINED = {RandomErasing(0.7, value=(5, 250, 100)): 0}
MADE = [st.builds(RandomErasing, chances, ranges(1e-6, 1), ranges(0.01, 100), fills | st.just("random"))]
SAME = [(RandomErasing(value=[0, 1, 2]), RandomErasing(value=(0, 1, 2)))]
REFUSED = [
    *((RandomErasing, {"scale": value}, "scale is") for value in ((0, 1), (0.5, 1.1), 0.5, None)),
    *((RandomErasing, {"ratio": value}, "ratio is") for value in ((0, 1), (2, 1), 1)),
    *((RandomErasing, {"value": value}, "value is") for value in (-1, 256, "noise", (1, 2), None, 0.5)),
]


def reference(op, image, u):
    height, width = image.shape[:2]
    for t in range(10):
        area = height * width * (op.scale[0] + u[1 + 2 * t] * (op.scale[1] - op.scale[0]))
        low, high = map(math.log, op.ratio)
        ratio = math.exp(low + u[2 + 2 * t] * (high - low))
        tall, wide = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if tall < height and wide < width:
            top, left = int(u[21] * (height - tall + 1)), int(u[22] * (width - wide + 1))
            image = image.copy()
            image[top : top + tall, left : left + wide] = op.value
            return image
    return image


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
