"""The op that turns the image."""

from dataclasses import dataclass
from typing import ClassVar

from tpufeed.images.decoding import Pixels
from tpufeed.images.parameters import as_range, between, check_fill, check_probability, check_spread
from tpufeed.images.protocols import Draws, Fill
from tpufeed.images.warping import rotate


@dataclass(frozen=True, slots=True)
class Rotate:
    """A rotation about the middle with probability `p`: bilinear, at the same size.

    Attributes:
        degrees: counter-clockwise; d is uniform in [-d, d], or in (low, high). Held as (low, high).
        fill: the corners that the image leaves.
        p: the probability.
    """

    degrees: float | tuple[float, float]
    fill: Fill = 0
    p: float = 1.0
    version: ClassVar[int] = 1
    draws: ClassVar[int] = 2

    def __post_init__(self) -> None:
        object.__setattr__(self, "degrees", check_spread("Rotate", "degrees", self.degrees, 0.0, -360.0, 360.0))
        object.__setattr__(self, "fill", check_fill("Rotate", "fill", self.fill))
        object.__setattr__(self, "p", check_probability("Rotate", self.p))

    def output_size(self, size: tuple[int, int] | None) -> tuple[int, int] | None:
        return size

    def skips(self, draws: Draws) -> bool:
        return draws[0] >= self.p or self._angle(draws) == 0

    def apply(self, image: Pixels, draws: Draws, out: Pixels | None) -> Pixels:
        return rotate(image, self._angle(draws), self.fill, out)

    def _angle(self, draws: Draws) -> float:
        return between(as_range(self.degrees), draws[1])
