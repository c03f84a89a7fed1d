"""The contract of ops: protocols for the two kinds of ops, their parameters, and the memory `out`.

Parameters are checked by their annotations. Each value gets one form, and equal ops have equal descriptions: lists
become tuples, numpy's numbers Python's, and an int a float if a float is meant.
"""

from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np

from tpufeed.images.decoding import Pixels
from tpufeed.options import Rule, a_list, as_float, between, check_fields, is_number, is_whole

_LONGEST_SIDE_PX = 16384
# Metadata of a parameter that is described only if it differs from its default, so that older descriptions stay equal.
LATER = MappingProxyType({"later": True})
Draws = Sequence[float]
# From the place (x, y) in a result to the place (a x + b y + c, d x + e y + f) in the image, both in pixels. The centre
# of the first pixel is (0.5, 0.5).
Affine: TypeAlias = tuple[float, float, float, float, float, float]


class Window(NamedTuple):
    """Rows `[top, top + height)` and columns `[left, left + width)`, to be resized to `out_height` x `out_width`.

    It may reach beyond the image, or lie outside it.
    """

    top: int
    left: int
    height: int
    width: int
    out_height: int
    out_width: int


def positive_range(limit: float, or_one: bool = False) -> Rule:
    """Allow `(low, high)` with 0 < low <= high <= limit. With `or_one` also a number that is both."""
    return Rule(
        f"(low, high) with 0 < low <= high <= {limit:g}",
        lambda value: (
            or_one and 0 < value <= limit
            if is_number(value)
            else _are(is_number, value, 2) and 0 < value[0] <= value[1] <= limit
        ),
        lambda value: (as_float(value), as_float(value)) if is_number(value) else tuple(map(as_float, value)),
    )


def spread(center: float, low: float, high: float) -> Rule:
    """Allow `(low, high)`, or a number for that much to either side of `center`, cut off at `low`."""
    return Rule(
        f"a number between 0 and {high - center:g}, or (low, high) with {low:g} <= low <= high <= {high:g}",
        lambda value: (
            0 <= value <= high - center
            if is_number(value)
            else _are(is_number, value, 2) and low <= value[0] <= value[1] <= high
        ),
        lambda value: (
            (max(low, as_float(center - value)), as_float(center + value))
            if is_number(value)
            else tuple(map(as_float, value))
        ),
    )


def _whole(said: str, count: int, low: int, high: int) -> Rule:
    """Allow a whole number of `[low, high]`, or `count` of them."""
    return Rule(
        said,
        lambda value: is_whole(value, low, high) or _are(lambda each: is_whole(each, low, high), value, count),
        lambda value: tuple(map(int, value)) if isinstance(value, Sequence) else int(value),
    )


def _are(fits: Callable[[Any], bool], value: Any, count: int) -> bool:
    """Return True if `value` is a sequence of `count` items that fit. Bytes are no sequence of numbers here."""
    is_row = isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray | memoryview)
    return is_row and len(value) == count and all(map(fits, value))


Probability = Annotated[float, between(0.0, 1.0)]
SizePx = Annotated[
    int | tuple[int, int],
    _whole(f"one or two numbers of pixels between 1 and {_LONGEST_SIDE_PX}", 2, 1, _LONGEST_SIDE_PX),
]
Fill: TypeAlias = Annotated[  # one level for all channels, or (red, green, blue)
    int | tuple[int, int, int], _whole("a level of 0 to 255, or (red, green, blue)", 3, 0, 255)
]


class Op(Protocol):
    """Protocol of all ops: they are frozen, and the same draws give the same pixels in any thread and process."""

    @property
    def version(self) -> int | str:
        """Version of the op. It changes whenever its pixels do."""

    @property
    def draws(self) -> int:
        """Number of uniform random numbers that a sample needs."""

    def output_size(self, size: tuple[int, int] | None) -> tuple[int, int] | None:
        """Return `(height, width)` of the results for images of `size`, or None if it differs from image to image."""


def evaluation_of(ops: Sequence[Op]) -> tuple[Op, ...]:
    """Return the ops without draws that stand for these in evaluation, with results of the same size.

    Random crops become the middle, by their method `evaluation`. Other ops that draw are left out, unless every image
    gets the same (p=1).
    """
    found = list[Op]()
    for op in ops:
        form: Callable[[], tuple[Op, ...]] | None = getattr(op, "evaluation", None)
        found += [op] if not op.draws else () if form is None else form()
    return tuple(found)


Ops: TypeAlias = Annotated[Sequence[Op], a_list("ops, like [RandomResizedCrop(size=224), HorizontalFlip()]")]


@runtime_checkable
class WindowOp(Op, Protocol):
    """An op that cuts out a window and resizes it."""

    @property
    def fill(self) -> Fill:
        """The colour beyond the image, for windows that reach there."""

    def window(self, height: int, width: int, draws: Draws) -> Window:
        """Return the window for an image of this size."""


@runtime_checkable
class PixelOp(Op, Protocol):
    """An op that maps pixels at an unchanged size."""

    def skips(self, draws: Draws) -> bool:
        """Return True if these draws leave the image unchanged."""

    def apply(self, image: Pixels, draws: Draws, out: Pixels | None) -> Pixels:
        """Return the new pixels: in `out` (C-contiguous, of the image's shape, maybe the image itself) if given.

        `image` may be read-only and of any strides. It changes only if it is `out`.
        """


@runtime_checkable
class MovingOp(PixelOp, Protocol):
    """A pixel op that moves pixels: masks, boxes and points go with them."""

    def maps(self, height: int, width: int, draws: Draws) -> Sequence[Affine]:
        """Return the maps for an image of this size, from places after a step to places before it, or None if
        skipped."""


class CheckedOp:
    """Base of ops: fields are checked by their annotations when an op is made. OptionErrors name the op.

    Attributes:
        any_pixels: True if it takes images of every `PixelFormat`. Others take 8-bit RGB.
    """

    __slots__ = ()
    any_pixels: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_fields(self, f"{type(self).__name__}: ")


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

    def evaluation(self) -> tuple[Op, ...]:
        return (self,) if self.p == 1 and self.draws == 1 else ()  # type: ignore[return-value,attr-defined]  # ops have draws


def keep(image: Pixels, out: Pixels | None) -> Pixels:
    """Return the image unchanged: copied to `out`, or itself without `out`."""
    if out is None or out is image:
        return image
    np.copyto(out, image)
    return out


def written(result: Any, out: Pixels | None) -> Pixels:
    """Return OpenCV's result, in `out` if given. OpenCV leaves out the axis of a single channel."""
    pixels: Pixels = np.atleast_3d(result) if out is None else out
    return pixels


def copied(image: Pixels, out: Pixels | None) -> Pixels:
    """Return the image unchanged in memory that may be written to: `out`, or a copy."""
    return image.copy(order="C") if out is None else keep(image, out)


def apart(image: Pixels, out: Pixels | None) -> Pixels:
    """Return the image, or a copy if writing to `out` could change it: for ops that read after they write."""
    return image.copy() if out is not None and np.may_share_memory(image, out) else image
