"""Ops that mix the pairs of images of a batch, and their labels. They come last among the device ops of a loader."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt

from tpufeed.images.protocols import Probability, SameSizeOp
from tpufeed.options import above

_POINTS = 4097

Alpha: TypeAlias = Annotated[float, above(0, 100)]


@dataclass(frozen=True, slots=True)
class MixUp(SameSizeOp):
    """Blend each image with its neighbour, and their labels by the same share (Zhang et al. 2018, arXiv:1710.09412).

    Rows 0 and 1 of a batch are neighbours, 2 and 3, and so on. Each image keeps another share, drawn from
    Beta(alpha, alpha) by its sample and epoch. Further images of a sample are blended likewise. Masks cannot be.

    Attributes:
        alpha: above 0. 0.2 is usual for ImageNet, and 1 is uniform.
        p: the probability that an image is mixed.
    """

    alpha: Alpha = 1.0
    p: Probability = 1.0
    version: ClassVar[int] = 1
    draws: ClassVar[int] = 2

    def shares(self, draws: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return the share that each image keeps, for draws (n, 2)."""
        return np.where(draws[:, 0] < self.p, beta_of(draws[:, 1], self.alpha), 1.0)


@dataclass(frozen=True, slots=True)
class CutMix(SameSizeOp):
    """Paste a box of its neighbour into each image, and mix labels by the area (Yun et al. 2019, arXiv:1905.04899).

    Neighbours are those of `MixUp`. The box has one minus a share from Beta(alpha, alpha) of the area, around a uniform
    centre. The part of it beyond the image is cut off, and labels are mixed by what remains. Further images, masks and
    depth get the same box. Boxes and keypoints are refused.

    Attributes:
        alpha: above 0. 1 is uniform.
        p: the probability that an image is mixed.
    """

    alpha: Alpha = 1.0
    p: Probability = 1.0
    version: ClassVar[int] = 1
    draws: ClassVar[int] = 4

    def boxes(self, height: int, width: int, draws: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return (top, left, bottom, right) of the boxes for draws (n, 4), in whole pixels. Zeros: no box is pasted."""
        sides = np.array([height, width])
        reach = np.floor(0.5 * np.sqrt(1 - beta_of(draws[:, 1], self.alpha))[:, None] * sides)
        centre = np.floor(draws[:, 2:] * sides)
        box = np.concatenate((np.maximum(centre - reach, 0), np.minimum(centre + reach, sides)), 1)
        return np.where(draws[:, :1] < self.p, box, 0.0)


MixingOp: TypeAlias = MixUp | CutMix


def beta_of(draws: npt.NDArray[np.float64], alpha: float) -> npt.NDArray[np.float64]:
    """Map uniform numbers in [0, 1) to numbers of Beta(alpha, alpha), by its inverse distribution function."""
    places, shares = _lower_half(alpha)
    lower = np.interp(np.minimum(draws, 1 - draws), shares, places) ** (1 / min(alpha, 1.0))
    return np.where(draws < 0.5, lower, 1 - lower)


@lru_cache(16)
def _lower_half(alpha: float) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return a grid of v = x^min(alpha, 1) for x up to 0.5, and the shares of Beta(alpha, alpha) below: 0 to 0.5.

    In v the density x^(alpha - min(alpha, 1)) (1 - x)^(alpha - 1) is bounded. In x it has a pole at 0 if alpha < 1.
    """
    power = min(alpha, 1.0)
    places = np.linspace(0.0, 0.5**power, _POINTS)
    x = places ** (1 / power)
    density = x ** (alpha - power) * (1 - x) ** (alpha - 1)
    shares = np.concatenate(([0.0], np.cumsum(density[1:] + density[:-1])))
    return places, shares * (0.5 / shares[-1])
