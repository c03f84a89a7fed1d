"""A rotation about the middle."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from tpufeed.images.affine import as_affine, rotation, warp
from tpufeed.images.decoding import Pixels
from tpufeed.images.protocols import Affine, Draws, Fill, Op, Probability, SameSizeOp, spread
from tpufeed.images.rng import draw_between


@dataclass(frozen=True, slots=True)
class Rotate(SameSizeOp):
    """A rotation about the middle with probability `p`: bilinear, at the same size.

    Attributes:
        degrees: counter-clockwise angle, uniform in [-d, d] for a number d, or in (low, high). Stored as (low, high).
        fill: the colour of the corners that the image no longer covers.
        p: the probability.
    """

    degrees: Annotated[float | tuple[float, float], spread(0.0, -360.0, 360.0)]
    fill: Fill = 0
    p: Probability = 1.0
    version: ClassVar[int] = 1
    draws: ClassVar[int] = 2

    @property
    def any_pixels(self) -> bool:  # type: ignore[override]  # a colour is RGB
        return isinstance(self.fill, int)

    def skips(self, draws: Draws) -> bool:
        return draws[0] >= self.p or self._angle(draws) == 0

    def maps(self, height: int, width: int, draws: Draws) -> Sequence[Affine]:
        return () if self.skips(draws) else (as_affine(rotation(height, width, self._angle(draws))),)

    def apply(self, image: Pixels, draws: Draws, out: Pixels | None) -> Pixels:
        return warp(image, rotation(image.shape[0], image.shape[1], self._angle(draws)), self.fill, out)

    def evaluation(self) -> tuple[Op, ...]:
        return (self,) if self.p == 1 and self._angle((0, 0)) == self._angle((0, 1)) else ()

    def _angle(self, draws: Draws) -> float:
        return draw_between(self.degrees, draws[1])
