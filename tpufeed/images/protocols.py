"""Protocols of ops, of which there are two kinds, and their contract of the memory `out`."""

from collections.abc import Sequence
from typing import Annotated, NamedTuple, Protocol, TypeAlias, TypeGuard, runtime_checkable

import numpy as np

from tpufeed.images.decoding import Pixels
from tpufeed.images.parameters import CheckedOp, Fill
from tpufeed.options import a_list

Draws = Sequence[float]
# From the place (x, y) in a result to the place (a x + b y + c, d x + e y + f) in the image, both in pixels; the middle
# of the first pixel is (0.5, 0.5).
Affine: TypeAlias = tuple[float, float, float, float, float, float]


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
        """Version of the op, which changes whenever its pixels do."""

    @property
    def draws(self) -> int:
        """Number of uniform random numbers that a sample needs."""

    def output_size(self, size: tuple[int, int] | None) -> tuple[int, int] | None:
        """Return `(height, width)` of the results for images of `size`; None where it differs from image to image."""


Ops: TypeAlias = Annotated[Sequence[Op], a_list("ops, like [RandomResizedCrop(size=224), HorizontalFlip()]")]


@runtime_checkable
class WindowOp(Op, Protocol):
    """An op that is a window and a size."""

    @property
    def fill(self) -> Fill:
        """The pixels beyond the image, for windows that reach there."""

    def window(self, height: int, width: int, draws: Draws) -> Window:
        """Return the window for an image of this size."""


@runtime_checkable
class PixelOp(Op, Protocol):
    """An op that maps pixels at an unchanged size."""

    def skips(self, draws: Draws) -> bool:
        """Return true where these draws leave the image as it is."""

    def apply(self, image: Pixels, draws: Draws, out: Pixels | None) -> Pixels:
        """Return the new pixels: in `out` (C-contiguous, of the image's shape, maybe the image itself) where given.

        `image` may be read-only and of any strides; it changes only where it is `out`.
        """


@runtime_checkable
class MovingOp(PixelOp, Protocol):
    """A pixel op that moves pixels: masks, boxes and points go with them."""

    def maps(self, height: int, width: int, draws: Draws) -> Sequence[Affine]:
        """Return the steps for an image of this size: from places after a step to those before it; none if skipped."""


def is_op(value: object) -> TypeGuard[Op]:
    """Return true where `value` is an op that tpufeed can run."""
    return isinstance(value, WindowOp | PixelOp) and not isinstance(value, type)


class SameSizeOp(CheckedOp):
    """Base of pixel ops: the size of an image does not change."""

    __slots__ = ()

    def output_size(self, size: tuple[int, int] | None) -> tuple[int, int] | None:
        return size


class RandomlyApplied(SameSizeOp):
    """Base of pixel ops that are applied with probability `p`: the first draw decides."""

    __slots__ = ()
    p: float

    def skips(self, draws: Draws) -> bool:
        return draws[0] >= self.p


def keep(image: Pixels, out: Pixels | None) -> Pixels:
    """Return the image unchanged: copied to `out`, or itself where there is none."""
    if out is None or out is image:
        return image
    np.copyto(out, image)
    return out


def copied(image: Pixels, out: Pixels | None) -> Pixels:
    """Return the image unchanged in memory that may be written to: `out`, or a copy where there is none."""
    return image.copy(order="C") if out is None else keep(image, out)


def apart(image: Pixels, out: Pixels | None) -> Pixels:
    """Return the image, or a copy where writing to `out` could change it: for ops that read after they write."""
    return image.copy() if out is not None and np.may_share_memory(image, out) else image
