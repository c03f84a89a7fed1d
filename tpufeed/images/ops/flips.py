"""Mirror images: left and right, or top and bottom."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import cv2

from tpufeed.images.decoding import Pixels
from tpufeed.images.device import Size, Step, applied_step
from tpufeed.images.protocols import Affine, Draws, Probability, RandomlyApplied, written


@dataclass(frozen=True, slots=True)
class HorizontalFlip(RandomlyApplied):
    """Mirror left and right with probability `p`.

    Attributes:
        p: the probability, 0 to 1.
    """

    p: Probability = 0.5
    version: ClassVar[int] = 1
    any_pixels: ClassVar[bool] = True
    draws: ClassVar[int] = 1

    @property
    def mirrors(self) -> bool:
        """True if images may become mirror images."""
        return self.p > 0

    def maps(self, height: int, width: int, draws: Draws) -> Sequence[Affine]:
        return () if self.skips(draws) else ((-1.0, 0.0, float(width), 0.0, 1.0, 0.0),)

    def apply(self, image: Pixels, draws: Draws, out: Pixels | None) -> Pixels:
        return written(cv2.flip(image, 1, dst=out), out)

    def on_device(self, size: Size) -> Step:
        return applied_step(self, size, lambda x, arrays: [arrays.flip(plane, -1) for plane in x], -1)


@dataclass(frozen=True, slots=True)
class VerticalFlip(RandomlyApplied):
    """Mirror top and bottom with probability `p`.

    Attributes:
        p: the probability, 0 to 1.
    """

    p: Probability = 0.5
    version: ClassVar[int] = 1
    any_pixels: ClassVar[bool] = True
    draws: ClassVar[int] = 1

    @property
    def mirrors(self) -> bool:
        """True if images may become mirror images."""
        return self.p > 0

    def maps(self, height: int, width: int, draws: Draws) -> Sequence[Affine]:
        return () if self.skips(draws) else ((1.0, 0.0, 0.0, 0.0, -1.0, float(height)),)

    def apply(self, image: Pixels, draws: Draws, out: Pixels | None) -> Pixels:
        return written(cv2.flip(image, 0, dst=out), out)

    def on_device(self, size: Size) -> Step:
        return applied_step(self, size, lambda x, arrays: [arrays.flip(plane, -2) for plane in x], -2)
