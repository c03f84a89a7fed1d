"""random_flip and random_shift on torch's CPU; xla/test_loader.py has them on XLA."""

from functools import partial

import numpy as np
import pytest
import torch

import tpufeed
from tpufeed.errors import OptionError


@pytest.fixture(scope="module")
def images():
    """No two of them, and no two parts of one, are alike."""
    return np.random.default_rng(0).integers(1, 256, (200, 7, 9, 3), np.uint8)


def moves_of(images, moved, pixels, fill):
    """How far each image was moved: (down, right) of its window in the padded image."""
    pad = ((0, 0), (pixels, pixels), (pixels, pixels), (0, 0))
    padded = np.pad(images, pad, constant_values=fill)
    _, height, width, _ = images.shape
    found = []
    for source, result in zip(padded, moved, strict=True):
        windows = [
            (down, right)
            for down in range(2 * pixels + 1)
            for right in range(2 * pixels + 1)
            if np.array_equal(source[down : down + height, right : right + width], result)
        ]
        assert len(windows) == 1
        found += windows
    return found


@pytest.mark.parametrize(("pixels", "fill"), [(0, 0), (3, 0), (5, 255)])
def test_a_shift_is_a_crop_of_the_padded_image(images, pixels, fill):
    moved = tpufeed.random_shift(torch.from_numpy(images), pixels=pixels, seed=(1, pixels), fill=fill)
    assert (moved.shape, moved.dtype) == (images.shape, torch.uint8)
    moves = moves_of(images, moved.numpy(), pixels, fill)
    for axis in zip(*moves, strict=True):
        assert set(axis) == set(range(2 * pixels + 1))  # 200 draws of at most 11
    assert len(set(moves)) > 2 * pixels + bool(pixels)


def test_a_flip_mirrors_some_images(images):
    flipped = tpufeed.random_flip(torch.from_numpy(images), seed=5).numpy()
    mirrored = np.array([np.array_equal(a, b[:, ::-1]) for a, b in zip(flipped, images, strict=True)])
    kept = np.array([np.array_equal(a, b) for a, b in zip(flipped, images, strict=True)])
    assert (mirrored ^ kept).all()
    assert 70 < mirrored.sum() < 130
    for probability, count in ((0, 0), (1, 200)):
        found = tpufeed.random_flip(torch.from_numpy(images), seed=5, probability=probability).numpy()
        assert sum(np.array_equal(a, b[:, ::-1]) for a, b in zip(found, images, strict=True)) == count


def test_draws_follow_from_the_seed_alone(images):
    tensor = torch.from_numpy(images)
    for move in (tpufeed.random_flip, partial(tpufeed.random_shift, pixels=3)):
        one = move(tensor, seed=(7, 0, 1))
        torch.manual_seed(3)
        assert torch.equal(one, move(tensor, seed=(7, 0, 1)))
        assert torch.equal(move(tensor, seed=7), move(tensor, seed=(7,)))
        for other in ((7, 0, 2), (7, 1, 1), (8, 0, 1)):
            assert not torch.equal(one, move(tensor, seed=other))


def test_flips_and_shifts_of_one_seed_are_unrelated(images):
    flipped = tpufeed.random_flip(torch.from_numpy(images), seed=11).numpy()
    mirrored = np.array([np.array_equal(a, b[:, ::-1]) for a, b in zip(flipped, images, strict=True)])
    down, right = np.array(
        moves_of(images, tpufeed.random_shift(torch.from_numpy(images), pixels=4, seed=11).numpy(), 4, 0)
    ).T
    for moves in (down, right):
        assert abs(np.corrcoef(mirrored, moves)[0, 1]) < 0.25  # 3.5 standard errors
    assert abs(np.corrcoef(down, right)[0, 1]) < 0.25


def test_what_cannot_be_meant_is_refused(images):
    with pytest.raises(OptionError, match=r"\(7, 9, 3\)"):
        tpufeed.random_flip(torch.from_numpy(images[0]), seed=1)
    with pytest.raises(OptionError, match="pixels"):
        tpufeed.random_shift(torch.from_numpy(images), pixels=-1, seed=1)
