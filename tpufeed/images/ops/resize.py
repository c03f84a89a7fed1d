"""The whole image, resized."""

from dataclasses import dataclass
from typing import ClassVar

from tpufeed.images.protocols import CheckedOp, Draws, SizePx, Window
from tpufeed.images.windows import pair, short_side_size


@dataclass(frozen=True, slots=True)
class Resize(CheckedOp):
    """The whole image, resized.

    Attributes:
        size: in pixels: an int is the shorter side (aspect kept), a pair is (height, width).
    """

    size: SizePx
    version: ClassVar[int] = 1
    any_pixels: ClassVar[bool] = True
    draws: ClassVar[int] = 0
    fill: ClassVar[int] = 0

    def output_size(self, size: tuple[int, int] | None) -> tuple[int, int] | None:
        if not isinstance(self.size, int):
            return pair(self.size)
        return None if size is None else short_side_size(*size, self.size)

    def window(self, height: int, width: int, draws: Draws) -> Window:
        out = short_side_size(height, width, self.size) if isinstance(self.size, int) else pair(self.size)
        return Window(0, 0, height, width, *out)
