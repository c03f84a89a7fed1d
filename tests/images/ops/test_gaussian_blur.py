"""GaussianBlur is a product with a Gaussian."""

import numpy as np
import pytest
from hypothesis import strategies as st

from tests.images.ops.every import Case, chances, difference, ranges
from tpufeed.images import GaussianBlur

CASES = [
    Case(GaussianBlur(), 0xCC9EB4EC),
    Case(GaussianBlur(p=0.8), device=2),
    Case(GaussianBlur(sigma=(4.0, 10.0), p=0.8), device=2),
]
CHAINED = {GaussianBlur(0.5, (0.3, 1.1)): 1}
MADE = [st.builds(GaussianBlur, chances, ranges(0.01, 100))]
SAME = [(GaussianBlur(sigma=2), GaussianBlur(1, (2, 2.0)))]
REFUSED = [(GaussianBlur, {"sigma": value}, "sigma is") for value in (0, -1, (0, 1), (2, 1), 101, "x", None, True)]


def reference(op, image, u):
    sigma = op.sigma[0] + u[1] * (op.sigma[1] - op.sigma[0])
    reach = (round(sigma * 6 + 1) | 1) // 2
    weights = np.exp(-(np.arange(-reach, reach + 1) ** 2) / (2 * sigma**2))
    weights /= weights.sum()
    padded = np.pad(image.astype(float), ((reach, reach), (reach, reach), (0, 0)), "reflect")
    height, width = image.shape[:2]
    rows = sum(weight * padded[k : k + height] for k, weight in enumerate(weights))
    return np.rint(sum(weight * rows[:, k : k + width] for k, weight in enumerate(weights)))


@pytest.mark.parametrize("sigma", [0.3, 1.0, 2.0])
def test_blur_is_a_gaussian_s(photo, sigma):
    op = GaussianBlur(sigma=(sigma, sigma))
    assert difference(op.apply(photo, [0.0, 0.0], None), reference(op, photo, [0.0, 0.0])).max() <= 1


def test_flat_images_stay_flat():
    flat = np.full((9, 9, 3), (3, 99, 255), np.uint8)
    assert np.array_equal(GaussianBlur(sigma=2.0).apply(flat, [0.0, 0.0], None), flat)
