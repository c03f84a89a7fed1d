"""Functions of users for `Custom`, good and bad. Tests copy this file to a folder in which workers find it."""

import itertools

import numpy as np

CALLS = itertools.count()


def heavy(image, rng):
    return np.clip(image.astype(np.int16) + rng.integers(-20, 21, image.shape), 0, 255).astype(np.uint8)


def raises(image, rng):
    raise KeyError("no such colour")


def smaller(image, rng):
    return image[1:].copy()


def floats(image, rng):
    return image / 255


def mirrored(image, rng):
    return image[:, ::-1]


def unseeded(image, rng):
    return np.random.default_rng().integers(0, 256, image.shape, np.uint8)


def counting(image, rng):
    return np.full_like(image, next(CALLS) % 256)


def late(image, rng):
    """Fails at a few images only."""
    if image.mean() > LIMIT:
        raise ValueError("too bright")
    return image


LIMIT = 1000
