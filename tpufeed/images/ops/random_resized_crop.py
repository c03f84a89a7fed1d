"""A random window, resized."""

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import numpy.typing as npt

from tpufeed.images.device import Size, Step, window_step
from tpufeed.images.ops.center_crop import CenterCrop
from tpufeed.images.ops.resize import Resize
from tpufeed.images.protocols import CheckedOp, Draws, Op, SizePx, Window, positive_range
from tpufeed.images.rng import exp_each
from tpufeed.images.windows import pair


@dataclass(frozen=True, slots=True)
class RandomResizedCrop(CheckedOp):
    """A random window, with an area in `scale` and a shape in `ratio`, resized to `size` (torchvision's rule).

    It tries ten times to find a window that fits, else takes the largest central window within `ratio`.

    Attributes:
        size: size of the result in pixels: an int for `size` x `size`, or (height, width).
        scale: (low, high) of the window's share of the area.
        ratio: (low, high) of its width divided by its height.
    """

    size: SizePx = 224
    scale: Annotated[tuple[float, float], positive_range(1.0)] = (0.08, 1.0)
    ratio: Annotated[tuple[float, float], positive_range(1000.0)] = (3 / 4, 4 / 3)
    version: ClassVar[int] = 1
    any_pixels: ClassVar[bool] = True
    draws: ClassVar[int] = 22
    fill: ClassVar[int] = 0

    def output_size(self, size: tuple[int, int] | None) -> tuple[int, int]:
        return pair(self.size)

    def window(self, height: int, width: int, draws: Draws) -> Window:
        low, high = self.scale
        log_low, log_high = math.log(self.ratio[0]), math.log(self.ratio[1])
        for attempt in range(0, 20, 2):
            area = height * width * (low + draws[attempt] * (high - low))
            ratio = math.exp(log_low + draws[attempt + 1] * (log_high - log_low))
            cut_height, cut_width = round(math.sqrt(area / ratio)), round(math.sqrt(area * ratio))
            if 0 < cut_height <= height and 0 < cut_width <= width:
                top = int(draws[20] * (height - cut_height + 1))
                left = int(draws[21] * (width - cut_width + 1))
                return Window(top, left, cut_height, cut_width, *pair(self.size))
        cut_height = max(1, min(height, round(width / self.ratio[0])))
        cut_width = max(1, min(width, round(height * self.ratio[1])))
        return Window((height - cut_height) // 2, (width - cut_width) // 2, cut_height, cut_width, *pair(self.size))

    def windows(self, height: int, width: int, draws: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
        """Return `(top, left, height, width)` as `window` does, for each row of draws (n, 22), as int64 (n, 4)."""
        low, high = self.scale
        log_low, log_high = math.log(self.ratio[0]), math.log(self.ratio[1])
        sides = np.array([height, width])
        found = np.empty((len(draws), 4), np.int64)
        rows = np.arange(len(draws))
        for attempt in range(0, 20, 2):
            tries = draws[rows]
            area = height * width * (low + tries[:, attempt] * (high - low))
            ratio = exp_each(log_low + tries[:, attempt + 1] * (log_high - log_low))
            cuts = np.rint(np.sqrt(np.stack((area / ratio, area * ratio), 1))).astype(np.int64)
            fits = ((cuts > 0) & (cuts <= sides)).all(1)
            cuts = cuts[fits]
            found[rows[fits], :2] = tries[fits, 20:] * (sides - cuts + 1)  # truncated, as by int
            found[rows[fits], 2:] = cuts
            rows = rows[~fits]
            if not len(rows):
                return found
        found[rows] = [self.window(height, width, drawn)[:4] for drawn in draws[rows[:1]].tolist()]  # same for all rows
        return found

    def evaluation(self) -> tuple[Op, ...]:
        """Return the middle 7/8 of each side of the largest mean-ratio window: Resize(256), CenterCrop(224) for 224."""
        out = pair(self.size)
        ratio, side = math.sqrt(self.ratio[0] * self.ratio[1]), max(out)
        cut = (side, max(1, round(side * ratio))) if ratio <= 1 else (max(1, round(side / ratio)), side)
        return Resize(round(min(cut) * 8 / 7)), CenterCrop(cut), *([Resize(out)] if cut != out else [])

    def on_device(self, size: Size) -> Step:
        out = pair(self.size)
        halves = size[0] >= 2 * out[0] and size[1] >= 2 * out[1]
        return window_step(self, size, self.windows, reaches_beyond=False, may_halve=halves)
