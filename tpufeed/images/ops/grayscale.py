"""Grey in all three channels."""

from dataclasses import dataclass
from typing import ClassVar

import cv2

from tpufeed.images.color import grey, grey_on_device
from tpufeed.images.decoding import Pixels
from tpufeed.images.device import Size, Step, applied_step
from tpufeed.images.protocols import Draws, Probability, RandomlyApplied, written


@dataclass(frozen=True, slots=True)
class Grayscale(RandomlyApplied):
    """Grey in all three channels, as torchvision's Grayscale(3), or with `p` below 1 as its RandomGrayscale.

    Attributes:
        p: the probability, 0 to 1.
    """

    p: Probability = 1.0
    version: ClassVar[int] = 1
    draws: ClassVar[int] = 1

    def apply(self, image: Pixels, draws: Draws, out: Pixels | None) -> Pixels:
        return written(cv2.cvtColor(grey(image), cv2.COLOR_GRAY2RGB, dst=out), out)

    def on_device(self, size: Size) -> Step:
        return applied_step(self, size, lambda x, arrays: [grey_on_device(x, arrays)] * 3)
