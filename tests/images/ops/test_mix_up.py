"""The shares of MixUp."""

import numpy as np
import pytest

from tpufeed.errors import OptionError
from tpufeed.images import MixUp
from tpufeed.images.mixing import beta_of

DRAWS = (np.arange(20_000) + 0.5) / 20_000


@pytest.mark.parametrize(
    ("alpha", "distribution"),
    [
        (0.5, lambda x: 2 / np.pi * np.arcsin(np.sqrt(x))),
        (1.0, lambda x: x),
        (2.0, lambda x: x**2 * (3 - 2 * x)),
        (3.0, lambda x: x**3 * (10 - 15 * x + 6 * x**2)),
    ],
)
def test_shares_are_of_the_beta_distribution(alpha, distribution):
    np.testing.assert_allclose(distribution(beta_of(DRAWS, alpha)), DRAWS, atol=2e-6)


@pytest.mark.parametrize("alpha", [0.01, 0.2, 0.4, 8.0, 100.0])
def test_mean_and_variance_are_those_of_any_alpha(alpha):
    shares = beta_of(DRAWS, alpha)
    assert (np.diff(shares) >= 0).all()
    assert shares.mean() == pytest.approx(0.5)
    assert shares.var() == pytest.approx(1 / (4 * (2 * alpha + 1)), rel=2e-3)


def test_an_image_is_mixed_with_probability_p():
    draws = np.random.default_rng(1).random((4000, 4))
    kept = MixUp(0.4, p=0.25).numbers((20, 30), draws[:, :2])
    assert np.mean(kept < 1) == pytest.approx(0.25, abs=0.02)


@pytest.mark.parametrize("alpha", [0, -1, 101, "1", None])
def test_alpha_is_a_number_above_0(alpha):
    with pytest.raises(OptionError, match=f"MixUp: alpha.*{alpha}"):
        MixUp(alpha)
