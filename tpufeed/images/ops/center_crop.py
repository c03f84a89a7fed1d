"""The middle of an image."""

from dataclasses import dataclass
from typing import ClassVar

from tpufeed.images.protocols import CheckedOp, Draws, SizePx, Window
from tpufeed.images.windows import pair


@dataclass(frozen=True, slots=True)
class CenterCrop(CheckedOp):
    """The middle of an image. A smaller image is enlarged first.

    Attributes:
        size: in pixels: an int for `size` x `size`, or (height, width).
    """

    size: SizePx
    version: ClassVar[int] = 1
    any_pixels: ClassVar[bool] = True
    draws: ClassVar[int] = 0
    fill: ClassVar[int] = 0

    def output_size(self, size: tuple[int, int] | None) -> tuple[int, int]:
        return pair(self.size)

    def window(self, height: int, width: int, draws: Draws) -> Window:
        out_height, out_width = pair(self.size)
        scale = min(1.0, height / out_height, width / out_width)
        cut_height, cut_width = max(1, round(out_height * scale)), max(1, round(out_width * scale))
        return Window(
            (height - cut_height) // 2, (width - cut_width) // 2, cut_height, cut_width, out_height, out_width
        )
