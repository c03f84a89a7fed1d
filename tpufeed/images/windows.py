"""The ops that cut a window and bring it to a size."""

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

from tpufeed.images.parameters import CheckedOp, Fill, SizePx, positive_range
from tpufeed.images.protocols import Draws, Window
from tpufeed.images.resizing import short_side_size
from tpufeed.options import between


@dataclass(frozen=True, slots=True)
class Resize(CheckedOp):
    """The whole image, resized.

    Attributes:
        size: in pixels: an int is the shorter side (aspect kept), a pair is (height, width).
    """

    size: SizePx
    version: ClassVar[int] = 1
    draws: ClassVar[int] = 0
    fill: ClassVar[int] = 0

    def output_size(self, size: tuple[int, int] | None) -> tuple[int, int] | None:
        if not isinstance(self.size, int):
            return _pair(self.size)
        return None if size is None else short_side_size(*size, self.size)

    def window(self, height: int, width: int, draws: Draws) -> Window:
        out = short_side_size(height, width, self.size) if isinstance(self.size, int) else _pair(self.size)
        return Window(0, 0, height, width, *out)


@dataclass(frozen=True, slots=True)
class CenterCrop(CheckedOp):
    """The middle of an image; one that is too small for that is enlarged first.

    Attributes:
        size: in pixels: an int for `size` x `size`, or (height, width).
    """

    size: SizePx
    version: ClassVar[int] = 1
    draws: ClassVar[int] = 0
    fill: ClassVar[int] = 0

    def output_size(self, size: tuple[int, int] | None) -> tuple[int, int]:
        return _pair(self.size)

    def window(self, height: int, width: int, draws: Draws) -> Window:
        out_height, out_width = _pair(self.size)
        scale = min(1.0, height / out_height, width / out_width)
        cut_height, cut_width = max(1, round(out_height * scale)), max(1, round(out_width * scale))
        return Window(
            (height - cut_height) // 2, (width - cut_width) // 2, cut_height, cut_width, out_height, out_width
        )


@dataclass(frozen=True, slots=True)
class RandomResizedCrop(CheckedOp):
    """A random window of `scale` of the area and `ratio` of width to height, resized to `size` (torchvision's rule).

    Ten tries for a window that fits; then the largest central one within `ratio`.

    Attributes:
        size: of the result in pixels: an int for `size` x `size`, or (height, width).
        scale: (low, high) of the window's share of the area.
        ratio: (low, high) of its width to its height.
    """

    size: SizePx = 224
    scale: Annotated[tuple[float, float], positive_range(1.0)] = (0.08, 1.0)
    ratio: Annotated[tuple[float, float], positive_range(1000.0)] = (3 / 4, 4 / 3)
    version: ClassVar[int] = 1
    draws: ClassVar[int] = 22
    fill: ClassVar[int] = 0

    def output_size(self, size: tuple[int, int] | None) -> tuple[int, int]:
        return _pair(self.size)

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
                return Window(top, left, cut_height, cut_width, *_pair(self.size))
        cut_height = max(1, min(height, round(width / self.ratio[0])))
        cut_width = max(1, min(width, round(height * self.ratio[1])))
        return Window((height - cut_height) // 2, (width - cut_width) // 2, cut_height, cut_width, *_pair(self.size))


@dataclass(frozen=True, slots=True)
class RandomCrop(CheckedOp):
    """A random window of `size` pixels after `padding` pixels of `fill` on each side; nothing is resized.

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

    def output_size(self, size: tuple[int, int] | None) -> tuple[int, int]:
        return _pair(self.size)

    def window(self, height: int, width: int, draws: Draws) -> Window:
        cut_height, cut_width = _pair(self.size)
        top = self._start(height, cut_height, draws[0])
        return Window(top, self._start(width, cut_width, draws[1]), cut_height, cut_width, cut_height, cut_width)

    def _start(self, side: int, cut: int, draw: float) -> int:
        """Draw the window's start between the edges of the padding; a short side lies anywhere within the window."""
        low, high = sorted((-self.padding, side + self.padding - cut))
        return low + int(draw * (high - low + 1))


def _pair(size: int | tuple[int, int]) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else (size[0], size[1])
