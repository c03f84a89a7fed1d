"""Protocols of ops, of which there are two kinds.

An op says how many uniform numbers it needs for a sample (`draws`); it gets them as a sequence, never draws itself.
A `WindowOp` cuts a window out of the image and brings it to a size, so a decoder may come to meet it by decoding
smaller; a `PixelOp` maps pixels at an unchanged size. Ops run on uint8 RGB of shape (height, width, 3).
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeAlias, runtime_checkable

from tpufeed.images.decoding import Pixels

Draws = Sequence[float]
Fill: TypeAlias = int | tuple[int, int, int]  # 0 to 255: one level for all channels, or (red, green, blue)


class Window(NamedTuple):
    """Rows `[top, top + height)` and columns `[left, left + width)`, to be resized to `out_height` x `out_width`.

    It may reach beyond the image, or lie beside it.
    """

    top: int
    left: int
    height: int
    width: int
    out_height: int
    out_width: int


class Op(Protocol):
    """Protocol of all ops: they are frozen, and the same draws give the same pixels in any thread and process."""

    @property
    def version(self) -> int | str:
        """Changes whenever the pixels do."""

    @property
    def draws(self) -> int:
        """Uniform numbers that a sample needs."""

    def output_size(self, size: tuple[int, int] | None) -> tuple[int, int] | None:
        """`(height, width)` of what comes out for images of `size`; None where it differs from image to image."""


@runtime_checkable
class WindowOp(Op, Protocol):
    """An op that is a window and a size."""

    @property
    def fill(self) -> Fill:
        """The pixels beyond the image, for windows that reach there."""

    def window(self, height: int, width: int, draws: Draws) -> Window:
        """The window for an image of this size."""


@runtime_checkable
class PixelOp(Op, Protocol):
    """An op that maps pixels at an unchanged size."""

    def skips(self, draws: Draws) -> bool:
        """These draws leave the image as it is."""

    def apply(self, image: Pixels, draws: Draws, out: Pixels | None) -> Pixels:
        """The new pixels: in `out` (C-contiguous, of the image's shape, maybe the image itself) where it is given.

        `image` may be read-only and of any strides; it changes only where it is `out`.
        """
