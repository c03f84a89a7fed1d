"""What ops share that mix the pairs of images of a batch, and their labels."""

from abc import abstractmethod
from functools import lru_cache
from typing import Annotated, Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt

from tpufeed.images.device import Arrays, BatchDraws, Size
from tpufeed.images.protocols import SameSizeOp
from tpufeed.options import above

_POINTS = 4097

Alpha: TypeAlias = Annotated[float, above(0, 100)]


class MixingOp(SameSizeOp):
    """Base of ops that mix each image of a batch with its neighbour. They come last among the device ops of a loader.

    Attributes:
        width: float32 numbers per image. The first is the share that the image keeps, by which labels are mixed.
        blends: True if a pixel is made of both images: then masks cannot be mixed, as two classes would make a third.
    """

    __slots__ = ()
    width: ClassVar[int]
    blends: ClassVar[bool]

    @abstractmethod
    def numbers(self, size: Size, draws: BatchDraws) -> npt.NDArray[np.float64]:
        """Return the numbers for images of `size`, (batch, width)."""

    @abstractmethod
    def mix(self, x: Any, others: Any, p: Any, arrays: Arrays) -> Any:
        """Return `x` mixed with its neighbours `others` by `numbers`: images, clips, or masks if nothing blends."""


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
