"""Ops that run on the device, in any framework: drawn on the host, applied to a whole batch by one function.

The host sends a few numbers per image beside the uint8 batch. Shapes are static, so one compiled program serves every
batch. Nothing gathers pixels, which is slow on a TPU: a window with its resizing is two matrix products.

In all formulas `x` is float32 (batch, height, width, 3) and holds whole levels from 0 to 255, as the host stores them
between ops. `p` is float32 (batch, numbers of the op). An op has its own formulas in its file, and those of several ops
are here.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from tpufeed.errors import OptionError
from tpufeed.images.protocols import Fill, Op, WindowOp

Size: TypeAlias = tuple[int, int]  # (height, width)
BatchDraws: TypeAlias = npt.NDArray[np.float64]  # (batch, draws of the op)
Columns: TypeAlias = Sequence[npt.NDArray[Any]]  # a number of each image: (batch,)


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


@dataclass(frozen=True, slots=True)
class Step:
    """An op for images of one size, as its method `on_device(size)` makes it.

    Attributes:
        out_size: (height, width) of the results.
        width: numbers per image.
        parameters: returns `width` columns for the draws of a batch.
        apply: returns the new `x` for `x`, `p` and the framework's functions.
    """

    out_size: Size
    width: int
    parameters: Callable[[BatchDraws], Columns]
    apply: Callable[[Any, Any, Arrays], Any]


def plan(ops: Sequence[Op], size: Size) -> list[Step]:
    """Return the steps of a chain for images of `size`: one for each op. Raises OptionError, which names the op."""
    steps = list[Step]()
    for op in ops:
        # Not an inherited one: a subclass may draw or change in another way.
        make = None if isinstance(op, type) else vars(type(op)).get("on_device")
        if make is None and (isinstance(op, type) or not isinstance(op, WindowOp)):
            raise refused(op, " (docs/device_ops.md has the ops that can)")
        steps.append(window_step(op, size) if make is None else make(op, size))
        size = steps[-1].out_size
    return steps


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
        OptionError: an op cannot run on the device. The message names it.
    """

    def __init__(self, ops: Sequence[Op], size: Size) -> None:
        self._steps, self.size = plan(ops, size), size
        self.out_size = self._steps[-1].out_size if self._steps else size
        self.width = sum(step.width for step in self._steps)

    def parameters(self, draws: Sequence[BatchDraws]) -> npt.NDArray[np.float32]:
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


def refused(op: Any, why: str, instead: str = "") -> OptionError:
    """Return the error for an op that cannot run on the device."""
    name = op.__name__ if isinstance(op, type) else type(op).__name__
    return OptionError(f"device_ops: {name} cannot run on the device{why}: {instead}put it in ops")


def applied_step(op: Any, size: Size, change: Callable[[Any, Arrays], Any]) -> Step:
    """Return the step of a `RandomlyApplied` op without numbers of its own: 1 if the image is changed."""
    return Step(
        size,
        1,
        lambda draws: [draws[:, 0] < op.p],
        lambda x, p, arrays: arrays.where(per_image(p[:, 0]) > 0, change(x, arrays), x),
    )


def window_step(
    op: Any,
    size: Size,
    windows: Callable[[int, int, BatchDraws], npt.NDArray[np.int64]] | None = None,
    *,
    resizes: bool = True,
    reaches_beyond: bool = True,
    may_halve: bool = True,
) -> Step:
    """Return the step of a window op: a window, cut out and resized by weights of the image's rows and columns.

    Args:
        op: a `WindowOp`.
        size: size of the images.
        windows: returns the windows of a batch, (batch, 4), as `op.window` draws them one by one.
        resizes: False if no window is resized.
        reaches_beyond: False if all windows lie within the image.
        may_halve: False if no window shrinks by two or more.

    Raises:
        OptionError: the results differ in size.
    """
    out_size = op.output_size(size)
    if out_size is None:
        raise refused(op, ", since its results differ in size")
    fixed: tuple[int, int, int, int] | None = None
    if op.draws == 0:
        top, left, height, width = fixed = op.window(*size, ())[:4]
        resizes = (height, width) != out_size
        reaches_beyond = min(top, left) < 0 or top + height > size[0] or left + width > size[1]
        may_halve = height >= 2 * out_size[0] and width >= 2 * out_size[1]

    def parameters(draws: BatchDraws) -> Columns:
        if windows is not None:
            return list(windows(*size, draws).T)
        return list(np.array([op.window(*size, drawn)[:4] for drawn in draws.tolist()]).reshape(-1, 4).T)

    def apply(x: Any, p: Any, arrays: Arrays) -> Any:
        if fixed and not resizes and not reaches_beyond:
            top, left, height, width = fixed
            return x[:, top : top + height, left : left + width]
        # Either numbers, or arrays (batch, 1): weights are equal for all images, or not.
        box: Any = fixed or (p[:, 0:1], p[:, 1:2], p[:, 2:3], p[:, 3:4])
        top, left, height, width = box
        shrinks: Any = may_halve
        if shrinks and not fixed:
            shrinks = (height >= 2 * out_size[0]) & (width >= 2 * out_size[1])
        rows, columns = (
            weights(axis, start, length, shrinks, x, arrays)
            for axis, (start, length) in enumerate(((top, height), (left, width)))
        )
        return weighted(x, rows, columns, op.fill if reaches_beyond else 0, arrays)

    def weights(axis: int, start: Any, length: Any, shrinks: Any, x: Any, arrays: Arrays) -> Any:
        """Return the weights of old pixels in new ones: float32 (batch, new, old), or (new, old)."""
        old, new = arrays.count(size[axis], x), arrays.count(out_size[axis], x)
        if not resizes:
            return linear(new + start, old, arrays)
        step = length / out_size[axis]
        places = arrays.minimum(arrays.maximum((new + 0.5) * step - 0.5, 0.0), length - 1) + start
        if shrinks is False:
            return linear(places, old, arrays)
        # The host averages areas: a new pixel covers an interval of old ones.
        first, stop = (start + new * step)[..., None], (start + (new + 1) * step)[..., None]
        covered = arrays.maximum(arrays.minimum(stop, old + 1) - arrays.maximum(first, old), 0.0)
        area = covered / (stop - first)
        return area if shrinks is True else arrays.where(shrinks[..., None], area, linear(places, old, arrays))

    return Step(out_size, 0 if fixed else 4, parameters, apply)


def linear(places: Any, old: Any, arrays: Arrays) -> Any:
    """Return the weights (..., new, old) of linear interpolation at `places` (..., new) among pixels `old`."""
    return arrays.maximum(1 - abs(places[..., None] - old), 0.0)


def weighted(x: Any, rows: Any, columns: Any, fill: Fill, arrays: Arrays) -> Any:
    """Return the sums of pixels by weights of rows and columns, (batch, new, old) or (new, old).

    If the weights of a new pixel have a sum below 1, the rest is `fill`: the host pads an image before it resizes.
    """
    b = "b" if len(rows.shape) == 3 else ""
    result = arrays.einsum(f"{b}jw,biwc->bijc", columns, arrays.einsum(f"{b}ik,bkwc->biwc", rows, x))
    if fill not in (0, (0, 0, 0)):
        within = arrays.sum(rows, -1)[..., None, None] * arrays.sum(columns, -1)[..., None, :, None]
        result = result + (1 - within) * color(fill, x, arrays)
    return whole(result, arrays)


def color(fill: Fill, x: Any, arrays: Arrays) -> Any:
    """Return a colour so that it broadcasts over pixels."""
    return float(fill) if isinstance(fill, int) else arrays.row(fill, x)


def whole(x: Any, arrays: Arrays) -> Any:
    """Return the nearest levels."""
    return arrays.minimum(arrays.maximum(arrays.round(x), 0.0), 255.0)


def per_image(column: Any) -> Any:
    """Return numbers of images (batch,) so that they broadcast over pixels."""
    return column[:, None, None, None]


def within_boxes(x: Any, boxes: Any, arrays: Arrays) -> Any:
    """Return which pixels of `x` lie in the box of their image, as bools (batch, height, width, 1).

    `boxes` has (top, left, bottom, right) of each image in pixels, (batch, 4).
    """
    top, left, bottom, right = (per_image(boxes[:, number]) for number in range(4))
    row, column = arrays.count(x.shape[1], x)[:, None, None], arrays.count(x.shape[2], x)[:, None]
    return (row >= top) & (row < bottom) & (column >= left) & (column < right)
