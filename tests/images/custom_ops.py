"""Functions for `Custom`, good and bad, in a module that a worker can import."""

import itertools

import numpy as np

CALLS = itertools.count()
KEPT = np.zeros((6, 5, 3), np.uint8)
NUMBER = 7


def noisy(image, rng):
    return np.clip(image.astype(np.int16) + rng.integers(-20, 21, image.shape), 0, 255).astype(np.uint8)


def same(image, rng):
    return image


def view(image, rng):
    return image[:]


def in_place(image, rng):
    image += np.uint8(1)
    return image


def kept(image, rng):
    """Its own array, filled again at each call."""
    KEPT[...] = rng.integers(0, 256)
    return KEPT


def counts(image, rng):
    return np.full_like(image, next(CALLS) % 256)


def unseeded(image, rng):
    return np.random.default_rng().integers(0, 256, image.shape, np.uint8)


def raises(image, rng):
    raise KeyError("no such colour")


def nothing(image, rng):
    return None


def nested_list(image, rng):
    return image.tolist()


def floats(image, rng):
    return image / 255


def smaller(image, rng):
    return image[1:].copy()


def grey(image, rng):
    return image[..., 0].copy()


def mirrored(image, rng):
    return image[:, ::-1]


def fortran(image, rng):
    return np.asfortranarray(image)


class Augmentations:
    @staticmethod
    def inverted(image, _rng):
        return 255 - image

    @classmethod
    def darker(cls, image, _rng):
        return image // 2

    def method(self, image, rng):
        return image

    def __call__(self, image, rng):
        return image


def made(level):
    def augmentation(image, rng):
        return np.full_like(image, level)

    return augmentation


local = made(3)
anonymous = lambda image, _rng: image  # noqa: E731
instance = Augmentations()


def renamed(image, rng):
    return image


original, renamed = renamed, same
