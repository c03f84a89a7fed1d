"""A random window that is not resized."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import numpy.typing as npt

from tpufeed.images.device import Size, Step, window_step
from tpufeed.images.ops.center_crop import CenterCrop
from tpufeed.images.protocols import CheckedOp, Draws, Fill, Op, SizePx, Window
from tpufeed.images.windows import pair
from tpufeed.options import between


@dataclass(frozen=True, slots=True)
class RandomCrop(CheckedOp):
    """A random window of `size` pixels after `padding` pixels of `fill` on each side. Nothing is resized.

    torchvision's rule with `pad_if_needed`: a side that is still too short lies at a random place within the window.

    Attributes:
        size: in pixels: an int for `size` x `size`, or (height, width).
        padding: pixels on each side.
        fill: a level from 0 to 255, or (red, green, blue).
    """

    size: SizePx
    padding: Annotated[int, between(0, 16384)] = 0
    fill: Fill = 0
    version: ClassVar[int] = 1
    draws: ClassVar[int] = 2

    @property
    def any_pixels(self) -> bool:  # type: ignore[override]  # a colour is RGB
        return isinstance(self.fill, int)

    def output_size(self, size: tuple[int, int] | None) -> tuple[int, int]:
        return pair(self.size)

    def window(self, height: int, width: int, draws: Draws) -> Window:
        cut_height, cut_width = pair(self.size)
        top = self._start(height, cut_height, draws[0])
        return Window(top, self._start(width, cut_width, draws[1]), cut_height, cut_width, cut_height, cut_width)

    def _start(self, side: int, cut: int, draw: float) -> int:
        """Draw the window's start within the padding. A side that is too short lies anywhere within the window."""
        low, high = sorted((-self.padding, side + self.padding - cut))
        return low + int(draw * (high - low + 1))

    def windows(self, height: int, width: int, draws: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
        """Return `(top, left, height, width)` of the windows for draws (n, 2), as int64 (n, 4): those of `window`."""
        cuts = np.array(pair(self.size))
        padding = np.array([self.padding, self.padding])
        ends = np.stack((-padding, np.array([height, width]) + padding - cuts))
        low, high = ends.min(0), ends.max(0)
        found = np.empty((len(draws), 4), np.int64)
        found[:, :2] = low + (draws * (high - low + 1)).astype(np.int64)
        found[:, 2:] = cuts
        return found

    def evaluation(self) -> tuple[Op, ...]:
        return (CenterCrop(self.size),)

    def on_device(self, size: Size) -> Step:
        out = pair(self.size)
        beyond = self.padding > 0 or out[0] > size[0] or out[1] > size[1]
        return window_step(self, size, self.windows, resizes=False, reaches_beyond=beyond)
