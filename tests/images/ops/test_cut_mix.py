"""The boxes of CutMix."""

import numpy as np

from tpufeed.images import CutMix
from tpufeed.images.mixing import beta_of


def test_an_image_is_mixed_with_probability_p():
    draws = np.random.default_rng(1).random((4000, 4))
    boxes = CutMix(p=0.25).numbers((20, 30), draws)[:, 1:]
    assert np.mean(boxes.any(1)) <= np.mean(draws[:, 0] < 0.25)
    assert not boxes[draws[:, 0] >= 0.25].any()


def test_boxes_have_the_area_of_their_share_unless_they_are_cut_off():
    draws = np.random.default_rng(2).random((4000, 4))
    top, left, bottom, right = CutMix(1.0).numbers((400, 600), draws)[:, 1:].T
    assert min(top.min(), left.min()) == 0
    assert (bottom.max(), right.max()) == (400, 600)
    area = (bottom - top) * (right - left) / (400 * 600)
    share = 1 - beta_of(draws[:, 1], 1.0)
    assert (area <= share).all()
    whole = (top > 0) & (left > 0) & (bottom < 400) & (right < 600)
    np.testing.assert_allclose(area[whole], share[whole], atol=0.01)
