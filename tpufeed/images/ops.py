"""The augmentation ops: frozen dataclasses, each with a version that changes whenever its pixels do.

An op says how many uniform numbers it needs for a sample (`draws`); it gets them as a sequence, never draws itself.
Ops are of two kinds. A `WindowOp` cuts a window out of the image and brings it to a size, so a decoder may come to
meet it by decoding smaller; a `PixelOp` maps pixels at an unchanged size.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, NamedTuple, Protocol, TypeGuard, runtime_checkable

import cv2

from tpufeed.errors import OptionError
from tpufeed.images.decoding import Pixels
from tpufeed.images.resizing import short_side_size

Draws = Sequence[float]


class Window(NamedTuple):
    """Rows `[top, top + height)` and columns `[left, left + width)`, to be resized to `out_height` x `out_width`."""

    top: int
    left: int
    height: int
    width: int
    out_height: int
    out_width: int


class Op(Protocol):
    """What all ops share."""

    version: ClassVar[int]
    draws: ClassVar[int]

    def output_size(self, size: tuple[int, int] | None) -> tuple[int, int] | None:
        """`(height, width)` of what comes out for images of `size`; None where it differs from image to image."""


@runtime_checkable
class WindowOp(Op, Protocol):
    """An op that is a window and a size."""

    def window(self, height: int, width: int, draws: Draws) -> Window:
        """The window for an image of this size."""


@runtime_checkable
class PixelOp(Op, Protocol):
    """An op that maps pixels at an unchanged size."""

    def skips(self, draws: Draws) -> bool:
        """These draws leave the image as it is."""

    def apply(self, image: Pixels, draws: Draws, out: Pixels | None) -> Pixels:
        """The new pixels: in `out` (C-contiguous, of the image's shape, maybe the image itself) where it is given."""


@dataclass(frozen=True, slots=True)
class Resize:
    """The whole image at a size: an int is the shorter side (aspect kept), a pair is (height, width)."""

    size: int | tuple[int, int]
    version: ClassVar[int] = 1
    draws: ClassVar[int] = 0

    def __post_init__(self) -> None:
        _check_size("Resize", self.size)

    def output_size(self, size: tuple[int, int] | None) -> tuple[int, int] | None:
        if not isinstance(self.size, int):
            return _pair(self.size)
        return None if size is None else short_side_size(*size, self.size)

    def window(self, height: int, width: int, draws: Draws) -> Window:
        out = short_side_size(height, width, self.size) if isinstance(self.size, int) else _pair(self.size)
        return Window(0, 0, height, width, *out)


@dataclass(frozen=True, slots=True)
class CenterCrop:
    """The middle `size` x `size` pixels (or (height, width)); an image too small for that is enlarged first."""

    size: int | tuple[int, int]
    version: ClassVar[int] = 1
    draws: ClassVar[int] = 0

    def __post_init__(self) -> None:
        _check_size("CenterCrop", self.size)

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
class RandomResizedCrop:
    """A random window of `scale` of the area and `ratio` of width to height, resized to `size` (torchvision's rule).

    Ten tries for a window that fits; then the largest central one within `ratio`.
    """

    size: int | tuple[int, int] = 224
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    version: ClassVar[int] = 1
    draws: ClassVar[int] = 22

    def __post_init__(self) -> None:
        _check_size("RandomResizedCrop", self.size)
        _check_range("scale", self.scale, 1.0)
        _check_range("ratio", self.ratio, 1000.0)

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
class HorizontalFlip:
    """Mirror left and right with probability `p`."""

    p: float = 0.5
    version: ClassVar[int] = 1
    draws: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if not isinstance(self.p, int | float) or not 0 <= self.p <= 1:
            raise OptionError(f"HorizontalFlip: p is a probability, not {self.p!r}")

    def output_size(self, size: tuple[int, int] | None) -> tuple[int, int] | None:
        return size

    def skips(self, draws: Draws) -> bool:
        return draws[0] >= self.p

    def apply(self, image: Pixels, draws: Draws, out: Pixels | None) -> Pixels:
        flipped: Pixels = cv2.flip(image, 1, dst=out)  # type: ignore[assignment]  # uint8 in, uint8 out
        return flipped if out is None else out


_OPS: dict[str, type] = {op.__name__: op for op in (CenterCrop, HorizontalFlip, RandomResizedCrop, Resize)}


def is_op(value: object) -> TypeGuard[Op]:
    """Whether `value` is an op that tpufeed can run."""
    return isinstance(value, WindowOp | PixelOp) and not isinstance(value, type)


def to_dict(op: Op) -> dict[str, Any]:
    """The op as plain data for a manifest: name, version and parameters."""
    parameters = asdict(op)  # type: ignore[call-overload]  # every op is a dataclass
    return {"op": type(op).__name__, "version": op.version, **parameters}


def from_dict(data: dict[str, Any]) -> Op:
    """The op of `to_dict`. Raises OptionError where this tpufeed does not have it, or has another version."""
    data = dict(data)
    name, version = data.pop("op", None), data.pop("version", None)
    found = _OPS.get(str(name))
    if found is None:
        raise OptionError(f"{name!r} is none of the ops that this tpufeed has: {', '.join(sorted(_OPS))}")
    if found.version != version:  # type: ignore[attr-defined]  # every op has one
        raise OptionError(f"{name} is of version {version}; this tpufeed makes version {found.version}")  # type: ignore[attr-defined]
    names = {field.name for field in fields(found)}
    if set(data) - names:
        raise OptionError(f"{name} has no parameters {sorted(set(data) - names)}")
    try:
        op: Op = found(**{key: tuple(value) if isinstance(value, list) else value for key, value in data.items()})
    except TypeError as error:
        raise OptionError(f"{name}: {error}") from error
    return op


def _pair(size: int | tuple[int, int]) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def _check_size(op: str, size: object) -> None:
    sides = size if isinstance(size, tuple | list) else (size, size)
    if len(sides) != 2 or not all(isinstance(side, int) and 1 <= side <= 16384 for side in sides):
        raise OptionError(f"{op}: a size is one or two numbers of pixels between 1 and 16384, not {size!r}")


def _check_range(name: str, value: object, limit: float) -> None:
    match value:
        case (int() | float() as low, int() | float() as high) if 0 < low <= high <= limit:
            return
    raise OptionError(f"RandomResizedCrop: {name} is (low, high) with 0 < low <= high <= {limit:g}, not {value!r}")
