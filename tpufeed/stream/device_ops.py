"""Ops that run on the device, in any framework: drawn on the host, applied to a whole batch by one function.

The host sends a few numbers per image beside the uint8 batch. Shapes are static, so one compiled program serves every
batch. Nothing gathers pixels, which is slow on a TPU: a window with its resizing is two matrix products.

In all formulas `x` is float32 (batch, height, width, 3) and holds whole levels from 0 to 255, as the host stores them
between ops; `p` is float32 (batch, numbers of the op).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from tpufeed.errors import OptionError
from tpufeed.images.affine import HorizontalFlip, VerticalFlip
from tpufeed.images.color import ORDERS, ColorJitter, GaussianBlur, Grayscale
from tpufeed.images.erasing import RandomErasing
from tpufeed.images.protocols import Fill, Op, WindowOp
from tpufeed.images.randaugment import RandAugment
from tpufeed.images.windows import RandomCrop, RandomResizedCrop

_Size: TypeAlias = tuple[int, int]  # (height, width)
_Draws: TypeAlias = npt.NDArray[np.float64]  # (batch, draws of the op)
_Columns: TypeAlias = Sequence[npt.NDArray[Any]]  # a number of each image: (batch,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrays:
    """Functions of a framework that the formulas need beside operators and slices. They may be traced."""

    floats: Callable[[Any], Any]  # to float32
    levels: Callable[[Any], Any]  # whole numbers from 0 to 255 to uint8
    cast: Callable[[Any, Any], Any]  # to a dtype of the framework, or for None to its bfloat16
    count: Callable[[int, Any], Any]  # float32 0, 1 ... below a number, on the device of an array
    row: Callable[[Sequence[float], Any], Any]  # numbers as float32 (n,), on the device of an array
    where: Callable[[Any, Any, Any], Any]  # of a condition, and two arrays or an array and a number
    minimum: Callable[[Any, Any], Any]  # of an array, and an array or a number
    maximum: Callable[[Any, Any], Any]
    floor: Callable[[Any], Any]
    round: Callable[[Any], Any]  # halves to even, as OpenCV and numpy
    exp: Callable[[Any], Any]
    einsum: Callable[[str, Any, Any], Any]
    flip: Callable[[Any, int], Any]  # along an axis
    reshape: Callable[[Any, tuple[int, ...]], Any]
    transpose: Callable[[Any, tuple[int, ...]], Any]  # axes in this order
    stack: Callable[[Sequence[Any]], Any]  # along a new last axis
    sum: Callable[[Any, int], Any]  # over an axis, which goes
    least: Callable[[Any, tuple[int, ...]], Any]  # the minimum over axes, which go
    most: Callable[[Any, tuple[int, ...]], Any]
    layout: Literal["NCHW", "NHWC"]  # that models of the framework expect


class DeviceOps:
    """A sequence of ops that run on the device. Immutable.

    Results are those of the ops on the host but for one level if a window is resized (two if the device multiplies
    bfloat16), two after a blur (three in noise of 0 and 255: OpenCV rounds its kernel to 1/256), and one after a change
    of colours, most often none. A level before a hue is shifted, or RandAugment solarizes, may be many levels after it.

    Args:
        ops: run in this order.
        size: (height, width) of all images that reach the device.

    Attributes:
        size: `size`.
        out_size: (height, width) of the results.
        width: float32 numbers per image.

    Raises:
        OptionError: an op cannot run on the device; the message names it.
    """

    def __init__(self, ops: Sequence[Op], size: _Size) -> None:
        self._steps: list[_Step] = []
        self.size = size
        for op in ops:
            make = _STEPS.get(type(op)) or (_Window if isinstance(op, WindowOp) else None)
            if make is None or isinstance(op, type):
                there = ", ".join(
                    ["Resize", "CenterCrop", "RandomCrop", "RandomResizedCrop", *(op.__name__ for op in _STEPS)]
                )
                raise _refused(op, f", which has {there}")
            self._steps.append(make(op, size))
            size = self._steps[-1].out_size
        self.out_size = size
        self.width = sum(step.width for step in self._steps)

    def parameters(self, draws: Sequence[_Draws]) -> npt.NDArray[np.float32]:
        """Return the numbers that `apply` needs, of shape (batch, width).

        Args:
            draws: for each op its uniform numbers, (batch, op.draws), from `rng.uniforms`.
        """
        result = np.empty((len(draws[0]) if draws else 0, self.width), np.float32)
        start = 0
        for step, drawn in zip(self._steps, draws, strict=True):
            if step.width:
                for number, column in enumerate(step.parameters(drawn), start):
                    result[:, number] = column
                start += step.width
        return result

    def apply(self, images: Any, parameters: Any, arrays: Arrays) -> Any:
        """Return the new images, uint8 (batch, *out_size, 3).

        Args:
            images: uint8 (batch, *size, 3) of a framework, maybe traced.
            parameters: from `parameters`, as the framework's float32, where the images are and sharded as they are.
            arrays: the framework's functions.
        """
        x, start = arrays.floats(images), 0
        for step in self._steps:
            x = step.apply(x, parameters[:, start : start + step.width], arrays)
            start += step.width
        return arrays.levels(x)


class _Step(Protocol):
    """An op for images of one size."""

    out_size: _Size
    width: int

    def parameters(self, draws: _Draws) -> _Columns:
        """Return `width` columns."""

    def apply(self, x: Any, p: Any, arrays: Arrays) -> Any:
        """Return the new `x`."""


def _refused(op: Any, why: str, instead: str = "") -> OptionError:
    name = op.__name__ if isinstance(op, type) else type(op).__name__
    return OptionError(f"device_ops: {name} cannot run on the device{why}: {instead}put it in ops")


# Windows


class _Window:
    """A window, cut out and resized by weights of the image's rows and columns."""

    def __init__(self, op: Any, size: _Size) -> None:
        out_size = op.output_size(size)
        if out_size is None:
            raise _refused(op, ", since its results differ in size")
        self._op, self._size = op, size
        self.out_size: _Size = out_size
        self._fixed: tuple[int, int, int, int] | None = None
        self._resizes = self._reaches_beyond = self._may_shrink_by_two = True
        if op.draws == 0:
            top, left, height, width = self._fixed = op.window(*size, ())[:4]
            self._resizes = (height, width) != out_size
            self._reaches_beyond = min(top, left) < 0 or top + height > size[0] or left + width > size[1]
            self._may_shrink_by_two = height >= 2 * out_size[0] and width >= 2 * out_size[1]
        elif type(op) is RandomCrop:
            self._resizes = False
            self._reaches_beyond = op.padding > 0 or out_size[0] > size[0] or out_size[1] > size[1]
        elif type(op) is RandomResizedCrop:
            self._reaches_beyond = False
            self._may_shrink_by_two = size[0] >= 2 * out_size[0] and size[1] >= 2 * out_size[1]
        self.width = 0 if self._fixed else 4

    def parameters(self, draws: _Draws) -> _Columns:
        if type(self._op) in (RandomCrop, RandomResizedCrop):
            windows = self._op.windows(*self._size, draws)
        else:  # an op of the user's
            windows = np.array([self._op.window(*self._size, drawn)[:4] for drawn in draws.tolist()])
        return list(windows.reshape(-1, 4).T)

    def apply(self, x: Any, p: Any, arrays: Arrays) -> Any:
        if self._fixed and not self._resizes and not self._reaches_beyond:
            top, left, height, width = self._fixed
            return x[:, top : top + height, left : left + width]
        # Either numbers, or arrays (batch, 1): weights are equal for all images, or not.
        box: Any = self._fixed or (p[:, 0:1], p[:, 1:2], p[:, 2:3], p[:, 3:4])
        top, left, height, width = box
        shrinks: Any = self._may_shrink_by_two
        if shrinks and not self._fixed:
            shrinks = (height >= 2 * self.out_size[0]) & (width >= 2 * self.out_size[1])
        rows, columns = (
            self._weights(0, top, height, shrinks, x, arrays),
            self._weights(1, left, width, shrinks, x, arrays),
        )
        return _weighted(x, rows, columns, self._op.fill if self._reaches_beyond else 0, arrays)

    def _weights(self, axis: int, start: Any, length: Any, shrinks: Any, x: Any, arrays: Arrays) -> Any:
        """Return the weights of old pixels in new ones: float32 (batch, new, old), or (new, old)."""
        old, new = arrays.count(self._size[axis], x), arrays.count(self.out_size[axis], x)
        if not self._resizes:
            return _linear(new + start, old, arrays)
        step = length / self.out_size[axis]
        linear = _linear(arrays.minimum(arrays.maximum((new + 0.5) * step - 0.5, 0.0), length - 1) + start, old, arrays)
        if shrinks is False:
            return linear
        # The host averages areas: a new pixel covers an interval of old ones.
        first, stop = (start + new * step)[..., None], (start + (new + 1) * step)[..., None]
        covered = arrays.maximum(arrays.minimum(stop, old + 1) - arrays.maximum(first, old), 0.0)
        area = covered / (stop - first)
        return area if shrinks is True else arrays.where(shrinks[..., None], area, linear)


def _linear(places: Any, old: Any, arrays: Arrays) -> Any:
    """Return the weights (..., new, old) of linear interpolation at `places` (..., new) among pixels `old`."""
    return arrays.maximum(1 - abs(places[..., None] - old), 0.0)


def _weighted(x: Any, rows: Any, columns: Any, fill: Fill, arrays: Arrays) -> Any:
    """Return the sums of pixels by weights of rows and columns, (batch, new, old) or (new, old).

    If the weights of a new pixel have a sum below 1, the rest is `fill`: the host pads an image before it resizes.
    """
    b = "b" if len(rows.shape) == 3 else ""
    result = arrays.einsum(f"{b}jw,biwc->bijc", columns, arrays.einsum(f"{b}ik,bkwc->biwc", rows, x))
    if fill not in (0, (0, 0, 0)):
        within = arrays.sum(rows, -1)[..., None, None] * arrays.sum(columns, -1)[..., None, :, None]
        result = result + (1 - within) * _color(fill, x, arrays)
    return _whole(result, arrays)


def _color(fill: Fill, x: Any, arrays: Arrays) -> Any:
    return float(fill) if isinstance(fill, int) else arrays.row(fill, x)


def _whole(x: Any, arrays: Arrays) -> Any:
    """Return the nearest levels."""
    return arrays.minimum(arrays.maximum(arrays.round(x), 0.0), 255.0)


def _per_image(column: Any) -> Any:
    """Return numbers of images (batch,) so that they broadcast over pixels."""
    return column[:, None, None, None]


# Ops that are applied or not, by the first draw


class _Applied:
    """A change of some images: the only number is 1 if the image is changed."""

    width = 1

    def __init__(self, op: Any, size: _Size, change: Callable[[Any, Arrays], Any]) -> None:
        self.out_size = size
        self._op, self._change = op, change

    def parameters(self, draws: _Draws) -> _Columns:
        return [draws[:, 0] < self._op.p]

    def apply(self, x: Any, p: Any, arrays: Arrays) -> Any:
        return arrays.where(_per_image(p[:, 0]) > 0, self._change(x, arrays), x)


def _desaturate(x: Any, arrays: Arrays) -> Any:
    grey = _grey(x, arrays)
    return arrays.stack([grey, grey, grey])


def within_boxes(x: Any, boxes: Any, arrays: Arrays) -> Any:
    """Return which pixels of `x` lie in the box of their image, as bools (batch, height, width, 1).

    `boxes` has (top, left, bottom, right) of each image in pixels, (batch, 4).
    """
    top, left, bottom, right = (_per_image(boxes[:, number]) for number in range(4))
    row, column = arrays.count(x.shape[1], x)[:, None, None], arrays.count(x.shape[2], x)[:, None]
    return (row >= top) & (row < bottom) & (column >= left) & (column < right)


class _RandomErasing:
    """Numbers: top, left, bottom, right of the rectangle."""

    width = 4

    def __init__(self, op: RandomErasing, size: _Size) -> None:
        self.out_size = size
        if isinstance(op.value, str):  # the only text that there is
            raise _refused(op, " with value='random', since noise is made on the host")
        self._op, self._value = op, op.value

    def parameters(self, draws: _Draws) -> _Columns:
        top, left, height, width = self._op.rectangles(*self.out_size, draws).T
        return [top, left, top + height, left + width]

    def apply(self, x: Any, p: Any, arrays: Arrays) -> Any:
        return arrays.where(within_boxes(x, p, arrays), _color(self._value, x, arrays), x)


class _GaussianBlur:
    """The mirrored image times the kernel, as weights of rows and columns.

    Numbers: 1 / (2 sigma^2), the kernel's reach in pixels, and 1 / its sum; of an image that is skipped 0, 0, 1.
    """

    width = 3

    def __init__(self, op: GaussianBlur, size: _Size) -> None:
        self.out_size = size
        self._op = op
        most = int(self._reach(np.array(op.sigma)).max())
        if most >= min(size):
            raise _refused(
                op, f" with sigma={op.sigma[1]:g}, whose kernel reaches {most} pixels, over images of {size}"
            )
        self._offsets = np.arange(1.0, most + 1)

    def parameters(self, draws: _Draws) -> _Columns:
        low, high = self._op.sigma
        sigma = low + draws[:, 1] * (high - low)
        blurred = draws[:, 0] < self._op.p
        narrowness, reach = blurred / (2 * sigma**2), blurred * self._reach(sigma)
        kernel = np.exp(-(self._offsets**2) * narrowness[:, None]) * (self._offsets <= reach[:, None])
        return [narrowness, reach, 1 / (1 + 2 * kernel.sum(1))]

    def apply(self, x: Any, p: Any, arrays: Arrays) -> Any:
        rows = self._weights(x.shape[1], x, p, arrays)
        columns = rows if x.shape[1] == x.shape[2] else self._weights(x.shape[2], x, p, arrays)
        return _weighted(x, rows, columns, 0, arrays)

    def _weights(self, side: int, x: Any, p: Any, arrays: Arrays) -> Any:
        narrowness, reach, share = (p[:, number : number + 1, None] for number in range(3))
        old = arrays.count(side, x)
        new = old[:, None]

        def kernel(places: Any) -> Any:
            distance = abs(places - new)
            return arrays.where(distance <= reach, arrays.exp(-distance * distance * narrowness) * share, 0.0)

        # Each pixel lies at its own place and, but for the outermost, mirrored beyond either edge.
        mirrored = arrays.where(old > 0, kernel(-old), 0.0)
        mirrored = mirrored + arrays.where(old < side - 1, kernel(2.0 * (side - 1) - old), 0.0)
        return kernel(old) + mirrored

    @staticmethod
    def _reach(sigma: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
        """Return OpenCV's half width for uint8: createGaussianKernels in imgproc/src/smooth.dispatch.cpp."""
        return (np.rint(sigma * 6 + 1).astype(np.int64) | 1) // 2


# Colours: the functions of images/color.py


def _grey(x: Any, arrays: Arrays) -> Any:
    """Return OpenCV's grey levels (batch, height, width), in its integers: float32 holds them all."""
    return arrays.floor((9798 * x[..., 0] + 19235 * x[..., 1] + 3735 * x[..., 2] + 16384) / 32768)


def _brighten(x: Any, factor: Any, arrays: Arrays) -> Any:
    return _whole(x * factor, arrays)


def _contrast(x: Any, factor: Any, arrays: Arrays) -> Any:
    # Rows first: their sums are exact in float32.
    total = arrays.sum(arrays.sum(_grey(x, arrays), 2), 1)
    mean = _per_image(arrays.floor(total / float(x.shape[1] * x.shape[2]) + 0.5))
    return _whole(mean + (x - mean) * factor, arrays)


def _saturate(x: Any, factor: Any, arrays: Arrays) -> Any:
    """Do what cv2.transform does, with weights of 1/1024: transform_8u in core/src/matmul.simd.hpp.

    A hue that is shifted afterwards could else be a step off, and levels by 6.
    """
    shares = [(1 - factor[..., 0]) * share for share in (0.299, 0.587, 0.114)]
    from_others = [arrays.round(1024 * share) for share in shares]
    grey = sum(weight * x[..., channel] for channel, weight in enumerate(from_others))
    mixed = []
    for channel in range(3):
        from_itself = arrays.round(1024 * (factor[..., 0] + shares[channel])) - from_others[channel]
        mixed.append(arrays.floor((grey + from_itself * x[..., channel] + 512) / 1024))
    return _whole(arrays.stack(mixed), arrays)


def _shift_hue(x: Any, steps: Any, arrays: Arrays) -> Any:
    """Do what `shift_hue` does: each intermediate is a whole number below 2^24, or far from halfway between two."""
    red, green, blue = x[..., 0], x[..., 1], x[..., 2]
    most = arrays.maximum(arrays.maximum(red, green), blue)
    spread = most - arrays.minimum(arrays.minimum(red, green), blue)
    # The hue of OpenCV's HSV: RGB2HSV_b in imgproc/src/color_hsv.simd.hpp, in 1/4096 of 256 steps.
    sector = arrays.where(
        most == red, green - blue, arrays.where(most == green, blue - red + 2 * spread, red - green + 4 * spread)
    )
    per_level = arrays.round(256 * 4096 / 6 / arrays.maximum(spread, 1.0))
    hue = arrays.floor((sector * per_level + 2048) / 4096)
    hue = arrays.where(hue < 0, hue + 256, hue) + steps[..., 0]
    hue = arrays.where(hue >= 256, hue - 256, hue)
    turned = []
    for offset in (5, 3, 1):
        place = hue * (6 / 256) + offset
        place = arrays.where(place >= 6, place - 6, place)
        share = arrays.round(255 * arrays.minimum(arrays.maximum(arrays.minimum(place, 4 - place), 0.0), 1.0))
        turned.append(most - arrays.round(spread * share / 255))
    return arrays.stack(turned)


class _ColorJitter:
    """Run a step for each kind of change that can have an effect, in the order drawn for each image.

    Numbers: for each step the kind (-1: no change), and the factor or steps of hue from 0 to 255.
    """

    _KINDS = (_brighten, _contrast, _saturate, _shift_hue)

    def __init__(self, op: ColorJitter, size: _Size) -> None:
        self.out_size = size
        spreads = np.array([op.brightness, op.contrast, op.saturation, op.hue])
        self._low, self._range = spreads[:, 0], spreads[:, 1] - spreads[:, 0]
        changes = [any(factor != 1 for factor in bounds) for bounds in spreads[:3]] + [np.rint(spreads[3] * 256).any()]
        self._active = [kind for kind in range(4) if changes[kind]]
        self._orders = np.array([[kind for kind in order if kind in self._active] for order in ORDERS], np.int64)
        self.width = 2 * len(self._active)

    def parameters(self, draws: _Draws) -> _Columns:
        amounts = self._low + draws[:, :4] * self._range
        changes = amounts != 1
        amounts[:, 3] = np.rint(amounts[:, 3] * 256) % 256
        changes[:, 3] = amounts[:, 3] != 0
        kinds = np.where(changes, np.arange(4), -1)
        order = self._orders[(draws[:, 4] * len(ORDERS)).astype(np.int64)]
        rows = np.arange(len(draws))
        return [numbers[rows, order[:, step]] for step in range(len(self._active)) for numbers in (kinds, amounts)]

    def apply(self, x: Any, p: Any, arrays: Arrays) -> Any:
        for step in range(0, self.width, 2):
            drawn, amount = _per_image(p[:, step]), _per_image(p[:, step + 1])
            changed = x
            for kind in self._active:
                changed = arrays.where(drawn == kind, self._KINDS[kind](x, amount, arrays), changed)
            x = changed
        return x


def _sharpen(x: Any, factor: Any, arrays: Arrays) -> Any:
    height, width = x.shape[1], x.shape[2]
    if min(height, width) < 3:
        return x
    row, column = arrays.count(height, x), arrays.count(width, x)
    # Sums over 3 x 3 pixels, by products with matrices that are 1 on three diagonals.
    rows, columns = (arrays.minimum(arrays.maximum(2 - abs(side[:, None] - side), 0.0), 1.0) for side in (row, column))
    sums = arrays.einsum("jw,biwc->bijc", columns, arrays.einsum("ik,bkwc->biwc", rows, x))
    smooth = arrays.round((sums + 4 * x) / 13)
    inside_rows = ((row > 0) & (row < height - 1))[:, None, None]
    inside = inside_rows & ((column > 0) & (column < width - 1))[:, None]
    return arrays.where(inside, _whole(x * factor + smooth * (1 - factor), arrays), x)


def _autocontrast(x: Any, arrays: Arrays) -> Any:
    low, high = (end(x, (1, 2))[:, None, None, :] for end in (arrays.least, arrays.most))
    stretched = arrays.floor((x - low) * 255 / arrays.maximum(high - low, 1.0))
    return arrays.where(high > low, stretched, x)


_Transform: TypeAlias = Callable[[Any, Any, int, Arrays], Any]

# Each takes x, the factor 1 + 0.9 * (signed magnitude) / 30 as (batch, 1, 1, 1), and the magnitude.
_TRANSFORMS: dict[str, _Transform] = {
    "brightness": lambda x, factor, _magnitude, arrays: _brighten(x, factor, arrays),
    "color": lambda x, factor, _magnitude, arrays: _saturate(x, factor, arrays),
    "contrast": lambda x, factor, _magnitude, arrays: _contrast(x, factor, arrays),
    "sharpness": lambda x, factor, _magnitude, arrays: _sharpen(x, factor, arrays),
    "posterize": lambda x, _factor, magnitude, arrays: (
        arrays.floor(x / 2 ** round(magnitude / 7.5)) * 2 ** round(magnitude / 7.5)
    ),
    "solarize": lambda x, _factor, magnitude, arrays: arrays.where(x < 255 - 8.5 * magnitude, x, 255 - x),
    "autocontrast": lambda x, _factor, _magnitude, arrays: _autocontrast(x, arrays),
}
_NOT_THERE = ("shear_x", "shear_y", "rotate", "equalize")


class _RandAugment:
    """Transforms one after another.

    Numbers: for each the index of its name, pixels down and to the right, and the factor of colours.
    """

    def __init__(self, op: RandAugment, size: _Size) -> None:
        refused = [name for name in _NOT_THERE if op.transforms is None or name in op.transforms]
        if refused:
            raise _refused(
                op,
                f" with {', '.join(refused)}, which need a gather or a histogram",
                "leave them out by transforms=(...), or ",
            )
        self._op, self._names = op, op.transforms or ()
        self.out_size = size
        self.width = 4 * op.num_ops

    def parameters(self, draws: _Draws) -> _Columns:
        index = (draws[:, ::2] * len(self._names)).astype(np.int64)
        sign = np.where(draws[:, 1::2] < 0.5, 1, -1)
        down, right = (
            sign * (150 * side * self._op.magnitude // (331 * 30)) * (np.array(self._names) == name)[index]
            for side, name in zip(self.out_size, ("translate_y", "translate_x"), strict=True)
        )
        numbers = np.stack((index, down, right, 1 + 0.9 * sign * self._op.magnitude / 30), 2)
        return list(numbers.reshape(-1, self.width).T)

    def apply(self, x: Any, p: Any, arrays: Arrays) -> Any:
        for start in range(0, self.width, 4):
            index, factor = _per_image(p[:, start]), _per_image(p[:, start + 3])
            changed = x
            if {"translate_x", "translate_y"} & set(self._names):
                rows, columns = (
                    _linear(pixels - p[:, start + number : start + number + 1], pixels, arrays)
                    for number, pixels in enumerate((arrays.count(x.shape[1], x), arrays.count(x.shape[2], x)), 1)
                )
                changed = _weighted(x, rows, columns, self._op.fill, arrays)
            for number, name in enumerate(self._names):
                if name in _TRANSFORMS:
                    transformed = _TRANSFORMS[name](x, factor, self._op.magnitude, arrays)
                    changed = arrays.where(index == number, transformed, changed)
            x = changed
        return x


_STEPS: dict[type, Callable[[Any, _Size], _Step]] = {
    HorizontalFlip: partial(_Applied, change=lambda x, arrays: arrays.flip(x, 2)),
    VerticalFlip: partial(_Applied, change=lambda x, arrays: arrays.flip(x, 1)),
    ColorJitter: _ColorJitter,
    Grayscale: partial(_Applied, change=_desaturate),
    GaussianBlur: _GaussianBlur,
    RandomErasing: _RandomErasing,
    RandAugment: _RandAugment,
}
