"""Mirror images."""

from dataclasses import dataclass
from typing import ClassVar

import cv2

from tpufeed.images.decoding import Pixels
from tpufeed.images.parameters import check_probability
from tpufeed.images.protocols import Draws

_UPSIDE_DOWN, _LEFT_TO_RIGHT = 0, 1


@dataclass(frozen=True, slots=True)
class HorizontalFlip:
    """Mirror left and right with probability `p`.

    Attributes:
        p: the probability, 0 to 1.
    """

    p: float = 0.5
    version: ClassVar[int] = 1
    draws: ClassVar[int] = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "p", check_probability("HorizontalFlip", self.p))

    def output_size(self, size: tuple[int, int] | None) -> tuple[int, int] | None:
        return size

    def skips(self, draws: Draws) -> bool:
        return draws[0] >= self.p

    def apply(self, image: Pixels, draws: Draws, out: Pixels | None) -> Pixels:
        return _flip(image, _LEFT_TO_RIGHT, out)


@dataclass(frozen=True, slots=True)
class VerticalFlip:
    """Mirror top and bottom with probability `p`.

    Attributes:
        p: the probability, 0 to 1.
    """

    p: float = 0.5
    version: ClassVar[int] = 1
    draws: ClassVar[int] = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "p", check_probability("VerticalFlip", self.p))

    def output_size(self, size: tuple[int, int] | None) -> tuple[int, int] | None:
        return size

    def skips(self, draws: Draws) -> bool:
        return draws[0] >= self.p

    def apply(self, image: Pixels, draws: Draws, out: Pixels | None) -> Pixels:
        return _flip(image, _UPSIDE_DOWN, out)


def _flip(image: Pixels, axis: int, out: Pixels | None) -> Pixels:
    flipped: Pixels = cv2.flip(image, axis, dst=out)  # type: ignore[assignment]  # uint8 in, uint8 out
    return flipped if out is None else out
