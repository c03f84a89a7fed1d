"""Ops that run on the device, in any framework: drawn on the host, applied to a whole batch by one function.

The host sends a few numbers per image beside the uint8 batch. Shapes are static, so one compiled program serves every
batch. Nothing gathers pixels, which is slow on a TPU: a window with its resizing is two matrix products.

In all formulas `x` is a plane for each channel, red, green and blue: float32 (batch, height, width). They hold whole
levels from 0 to 255, as the host stores them between ops, or those of another pixel format (`Arrays.pixels`). `p[n]` is
number n of the op, float32 (batch, 1, 1). A kernel runs the same formulas for an image at a time: its planes are
(height, width), its numbers scalars. So formulas count axes from the last. An op has its own formulas in its file, and
those of several ops are here.

Images may also arrive as DCT coefficients. The inverse DCT is a product with a matrix on either side, as a window with
its resizing is, so the weights of a window that comes first are multiplied with these matrices: nothing is decoded
outside of the window.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from tpufeed.errors import OptionError
from tpufeed.images.coefficients import EXACT, Coefficients
from tpufeed.images.pixel_format import RGB8, PixelFormat
from tpufeed.images.protocols import Fill, Op, WindowOp

Size: TypeAlias = tuple[int, int]  # (height, width)
BatchDraws: TypeAlias = npt.NDArray[np.float64]  # (batch, draws of the op)
Columns: TypeAlias = Sequence[npt.NDArray[Any]]  # a number of each image: (batch,)
Planes: TypeAlias = Sequence[Any]  # one for each channel


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrays:
    """Functions of a framework that the formulas need beside operators and slices. They may be traced."""

    floats: Callable[[Any], Any]  # to float32
    levels: Callable[[Any, str], Any]  # whole numbers to uint8, or to another type of pixels by its name
    cast: Callable[[Any, Any], Any]  # to a dtype of the framework, or for None to its bfloat16
    count: Callable[[int, int, Any], Any]  # float32 0, 1 ... below a number, on axis -1 or -2 of two, where an array is
    row: Callable[[Any, Any], Any]  # numbers, or a matrix of numpy, as float32 on the device of an array
    where: Callable[[Any, Any, Any], Any]  # of a condition, and two arrays or an array and a number
    minimum: Callable[[Any, Any], Any]  # of an array, and an array or a number
    maximum: Callable[[Any, Any], Any]
    floor: Callable[[Any], Any]
    round: Callable[[Any], Any]  # halves to even, as OpenCV and numpy
    exp: Callable[[Any], Any]
    product: Callable[[Any, Any], Any]  # of matrices, at 16 bits or more of each number
    flip: Callable[[Any, int], Any]  # along an axis
    reshape: Callable[[Any, tuple[int, ...]], Any]
    transpose: Callable[[Any, tuple[int, ...]], Any]  # axes in this order
    stack: Callable[[Sequence[Any]], Any]  # along a new last axis
    sum: Callable[[Any, int], Any]  # over an axis, which stays
    least: Callable[[Any], Any]  # the minimum of each plane, (batch, 1, 1)
    most: Callable[[Any], Any]
    layout: Literal["NCHW", "NHWC"]  # that models of the framework expect
    exact_product: Callable[[Any, Any], Any]  # of matrices, at all bits of each number, for more than 8 bits
    # In a kernel, whose image may take its own way: calls the change of its number, and repeats a change.
    branch: Callable[[Any, Mapping[int, Callable[[], Planes]], Planes], Planes] | None = None
    repeat: Callable[[int, Callable[[Any, Planes], Planes], Planes], Planes] | None = None
    # Runs `DeviceOps` on images and parameters in a kernel of the framework. None: by the functions above.
    kernel: "Callable[[DeviceOps, Any, Any], Any] | None" = None
    pixels: PixelFormat = RGB8  # of the images

    def of(self, pixels: PixelFormat) -> "Arrays":
        """Return the functions for images of a pixel format."""
        if pixels == RGB8:
            return self
        return replace(self, pixels=pixels, product=self.exact_product, kernel=None)


def product_of_parts(product: Callable[[Any, Any], Any], upper: Callable[[Any], Any], x: Any, y: Any) -> Any:
    """Return the product of matrices of float32 at all bits, on a device that multiplies bfloat16 or TF32.

    A number is the sum of three parts with 8 bits, which both types hold. The smallest products are left out.

    Args:
        product: multiplies matrices.
        upper: clears the last 16 bits of each number. A cast to bfloat16 and back does not: XLA leaves that out.
    """

    def parts(values: Any) -> tuple[Any, Any, Any]:
        high = upper(values)
        middle = upper(values - high)
        return high, middle, values - high - middle

    (a, b, c), (d, e, f) = parts(x), parts(y)
    low = product(a, f) + product(b, e) + product(c, d)
    return low + (product(a, e) + product(b, d)) + product(a, d)


@dataclass(frozen=True, slots=True)
class Step:
    """An op for images of one size, as its method `on_device(size)` makes it.

    Attributes:
        out_size: (height, width) of the results.
        width: numbers per image.
        parameters: returns `width` columns for the draws of a batch.
        apply: returns the new `x` for `x`, `p` and the framework's functions. If it `mirrors`, also for the flips that
            come next: axes of planes, and 1 for images that are mirrored along them.
        axis: the axis that the op mirrors, and does nothing else.
        mirrors: True if `apply` takes flips.
        decodes: True if `apply` takes `Coded` images, too.
    """

    out_size: Size
    width: int
    parameters: Callable[[BatchDraws], Columns]
    apply: Callable[..., Planes]
    axis: int | None = None
    mirrors: bool = False
    decodes: bool = False


def plan(ops: Sequence[Op], size: Size, pixels: PixelFormat = RGB8) -> list[Step]:
    """Return the steps of a chain for images of `size`: one for each op. Raises OptionError, which names the op."""
    steps = list[Step]()
    for op in ops:
        # Not an inherited one: a subclass may draw or change in another way.
        make = None if isinstance(op, type) else vars(type(op)).get("on_device")
        if make is None and (isinstance(op, type) or not isinstance(op, WindowOp)):
            raise refused(op, " (docs/device_ops.md has the ops that can)")
        if pixels != RGB8 and not getattr(op, "any_pixels_on_device", True):
            raise refused(op, f", where it takes 8-bit RGB, and the images are {pixels}")
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
        coefficients: what images are coded by. None if they are pixels.
        pixels: the pixel format of images, before and after the ops.

    Attributes:
        size: `size`.
        coefficients: `coefficients`.
        pixels: `pixels`.
        out_size: (height, width) of the results.
        width: float32 numbers per image.
        most_pixels: pixels of the largest image between ops.

    Raises:
        OptionError: an op cannot run on the device. The message names it.
    """

    def __init__(
        self, ops: Sequence[Op], size: Size, coefficients: Coefficients | None = None, pixels: PixelFormat = RGB8
    ) -> None:
        self._steps, self.size, self.coefficients, self.pixels = plan(ops, size, pixels), size, coefficients, pixels
        self.out_size = self._steps[-1].out_size if self._steps else size
        self.width = sum(step.width for step in self._steps)
        self.most_pixels = max(height * width for height, width in (size, *(step.out_size for step in self._steps)))

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
        """Return the new images of the pixel format, in RGB uint8 (batch, *out_size, 3).

        Args:
            images: such images (batch, *size, 3) of a framework, maybe traced. Or int8 (batch, *coefficients.shape).
            parameters: from `parameters`, as the framework's float32, where the images are and sharded as they are.
            arrays: the framework's functions.
        """
        arrays = arrays.of(self.pixels)
        if arrays.kernel is not None and (self.width or self.coefficients is not None):
            return arrays.kernel(self, images, parameters)
        if self.coefficients is None:
            x: Planes = [arrays.floats(images[..., channel]) for channel in range(self.pixels.channels)]
        else:
            x = coded(self.coefficients, images, arrays)
        x = self.change(x, [parameters[:, number, None, None] for number in range(self.width)], arrays)
        return arrays.levels(arrays.stack(x), self.pixels.dtype)

    def change(self, x: Planes, p: Sequence[Any], arrays: Arrays) -> Planes:
        """Return the new planes: see the module. A flip after a window becomes part of its weights."""
        waiting, start = list(self._steps), 0
        if isinstance(x, Coded) and not (waiting and waiting[0].decodes):
            x = weighted(x, None, None, None, arrays)
        while waiting:
            step = waiting.pop(0)
            own, flips = p[start : (start := start + step.width)], list[tuple[int, Any]]()
            while step.mirrors and waiting and (axis := waiting[0].axis) is not None:
                waiting.pop(0)
                flips.append((axis, p[start]))
                start += 1
            x = step.apply(x, own, arrays, flips) if flips else step.apply(x, own, arrays)
        return x


def refused(op: Any, why: str, instead: str = "") -> OptionError:
    """Return the error for an op that cannot run on the device."""
    name = op.__name__ if isinstance(op, type) else type(op).__name__
    return OptionError(f"device_ops: {name} cannot run on the device{why}: {instead}put it in ops")


def applied_step(op: Any, size: Size, change: Callable[[Planes, Arrays], Planes], axis: int | None = None) -> Step:
    """Return the step of a `RandomlyApplied` op without numbers of its own: 1 if the image is changed."""
    return Step(
        size,
        1,
        lambda draws: [draws[:, 0] < op.p],
        lambda x, p, arrays: branch(p[0], {1: lambda: change(x, arrays)}, x, arrays),
        axis,
    )


def branch(number: Any, changes: Mapping[int, Callable[[], Planes]], x: Planes, arrays: Arrays) -> Planes:
    """Return what the change of an image's number makes of it, else `x`."""
    if arrays.branch is not None:
        return arrays.branch(number, changes, x)
    changed = x
    for each, change in changes.items():
        changed = either(number == each, change(), changed, arrays)
    return changed


def repeat(times: int, change: Callable[[Any, Planes], Planes], x: Planes, arrays: Arrays) -> Planes:
    """Return what a change makes of `x`, over and over. It also takes how often it has run."""
    if arrays.repeat is not None:
        return arrays.repeat(times, change, x)
    for turn in range(times):
        # XLA writes planes between turns. Levels are exact in uint8, and take a quarter of the bytes.
        x = change(turn, [arrays.floats(arrays.levels(plane, arrays.pixels.dtype)) for plane in x])
    return x


def either(condition: Any, x: Planes, other: Planes, arrays: Arrays) -> Planes:
    """Return planes of `x` where the condition holds, else those of `other`."""
    return [arrays.where(condition, *planes) for planes in zip(x, other, strict=True)]


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

    cuts = fixed is not None and not resizes and not reaches_beyond

    def apply(x: Planes, p: Sequence[Any], arrays: Arrays, flips: Sequence[tuple[int, Any]] = ()) -> Planes:
        # Either numbers, or arrays (batch, 1, 1): weights are equal for all images, or not.
        box: Any = fixed or p
        top, left, height, width = box
        if cuts and not isinstance(x, Coded):
            return [plane[..., top : top + height, left : left + width] for plane in x]
        shrinks: Any = may_halve
        if shrinks and not fixed:
            shrinks = (height >= 2 * out_size[0]) & (width >= 2 * out_size[1])
        new = {axis: arrays.count(out_size[axis], axis, x[0]) for axis in (-2, -1)}
        for axis, flip in flips:
            new[axis] = new[axis] + flip * (out_size[axis] - 1 - 2 * new[axis])
        rows = weights(-2, new[-2], top, height, shrinks, arrays)
        columns = weights(-1, new[-1], left, width, shrinks, arrays)
        return weighted(x, rows, columns, op.fill if reaches_beyond else None, arrays)

    def weights(axis: int, new: Any, start: Any, length: Any, shrinks: Any, arrays: Arrays) -> Any:
        """Return the weights of old pixels in new ones, for `weighted`: with a first axis if images differ."""
        old = arrays.count(size[axis], -3 - axis, new)
        if not resizes:
            return linear(new + start, old, arrays)
        step = length / out_size[axis]
        places = arrays.minimum(arrays.maximum((new + 0.5) * step - 0.5, 0.0), length - 1) + start
        if shrinks is False:
            return linear(places, old, arrays)
        # The host averages areas: a new pixel covers an interval of old ones.
        first, stop = start + new * step, start + (new + 1) * step
        covered = arrays.maximum(arrays.minimum(stop, old + 1) - arrays.maximum(first, old), 0.0)
        area = covered / (stop - first)
        return area if shrinks is True else arrays.where(shrinks, area, linear(places, old, arrays))

    return Step(out_size, 0 if fixed else 4, parameters, apply, mirrors=not cuts, decodes=True)


def linear(places: Any, old: Any, arrays: Arrays) -> Any:
    """Return the weights of linear interpolation at `places` among pixels `old`, one on each of the last two axes."""
    return arrays.maximum(1 - abs(places - old), 0.0)


def weighted(x: Planes, rows: Any, columns: Any, fill: Fill | None, arrays: Arrays) -> Planes:
    """Return the sums of pixels by weights of rows (..., new, old) and of columns (..., old, new). None: all pixels.

    If the weights of a new pixel have a sum below 1, the rest is `fill`: the host pads an image before it resizes. If
    no sum is below 1, `fill` is None.
    """
    middle = 128.0 if isinstance(x, Coded) else 0.0
    if isinstance(x, Coded):
        sums = x.weighted(rows, columns, arrays)
    else:
        sums = [arrays.product(arrays.product(rows, plane), columns) for plane in x]
    if fill is not None and (levels := color(fill, len(sums))) != (middle,) * len(sums):
        beyond = 1 - arrays.sum(rows, -1) * arrays.sum(columns, -2)
        sums = [plane + beyond * (level - middle) for plane, level in zip(sums, levels, strict=True)]
    return [whole(plane + middle if middle else plane, arrays) for plane in sums]


class Coded(NamedTuple):
    """Images as coefficients, instead of `x`. The first op that changes them decodes them.

    Attributes:
        values: as a batch holds them, int8 (batch, rows, width).
        highs: high parts of each component's DC values, (batch, rows of blocks, columns of blocks).
        matrices: those of `inverse`.
        coefficients: what they are coded by.
    """

    values: Any
    highs: Sequence[Any]
    matrices: Sequence[Any]
    coefficients: Coefficients

    def weighted(self, rows: Any, columns: Any, arrays: Arrays) -> Planes:
        """Return the sums of levels less 128 by weights: see the function of this name."""
        product, step, sums = arrays.product, self.coefficients.step, list[Any]()
        luma, chroma = self.matrices[:5], self.matrices[5:]
        bases = [
            (left, right) if rows is None else (product(rows, left), product(right, columns))
            for _, left, right, *_ in (luma, chroma)
        ]
        for number, (place, high) in enumerate(zip(component_places(self.coefficients), self.highs, strict=True)):
            steps, _, _, down, across = chroma if number else luma
            left, right = bases[number > 0]
            coded = arrays.floats(self.values[(..., *place)])  # not before: XLA would write all of them as floats
            values = coded * step - (step - 1) * arrays.minimum(arrays.maximum(coded, -EXACT), EXACT)
            values = (values + product(product(down, arrays.floats(high)), across)) * steps
            sums.append(product(product(left, values), right))
        if len(sums) == 1:
            return sums * 3
        y, cb, cr = sums
        return [y + 1.402 * cr, y - 0.344136 * cb - 0.714136 * cr, y + 1.772 * cb]


def coded(coefficients: Coefficients, images: Any, arrays: Arrays) -> Coded:
    """Return images of coefficients, int8 (batch, *coefficients.shape) of a framework, as the first op takes them."""
    (height, width), start, highs = coefficients.shape, 0, list[Any]()
    first = coefficients.blocks * 64 // width
    flat = arrays.reshape(images[:, first:], (-1, (height - first) * width))
    for down, across in component_places(coefficients):
        rows, columns = (down.stop - down.start) // 8, (across.stop - across.start) // 8
        highs.append(arrays.reshape(flat[:, start : start + rows * columns], (-1, rows, columns)))
        start += rows * columns
    matrices = [arrays.row(matrix, images) for matrix in inverse(coefficients)]
    return Coded(images, highs, matrices, coefficients)


def component_places(coefficients: Coefficients) -> Sequence[tuple[slice, slice]]:
    """Return which rows and columns of a batch's array each component has."""
    height, width = coefficients.size
    every, half = slice(0, width), width // 2
    return {
        "grey": [(slice(0, height), every)],
        "444": [(slice(start, start + height), every) for start in (0, height, 2 * height)],
        "420": [
            (slice(0, height), every),
            (slice(height, height * 3 // 2), slice(0, half)),
            (slice(height, height * 3 // 2), slice(half, width)),
        ],
    }[coefficients.sampling]


@cache
def inverse(coefficients: Coefficients) -> Sequence[npt.NDArray[np.float32]]:
    """Return the matrices that decode a component: five for luma, and five for chroma.

    They are the quantization steps, the bases of rows and of columns, in chroma of "420" also upsampled as libjpeg does
    ("fancy"), and what takes high parts of DC values to their places, on the left and on the right.
    """
    matrices = list[npt.NDArray[np.float64]]()
    frequencies = np.arange(8)[:, None]
    basis = np.cos(np.pi * frequencies * (2 * np.arange(8) + 1) / 16) * np.where(frequencies == 0, 0.125**0.5, 0.5)
    for table, times in zip(coefficients.tables, (1, 2 if coefficients.sampling == "420" else 1), strict=True):
        rows, columns = (side // times // 8 for side in coefficients.size)
        left, right = (np.kron(np.eye(blocks), basis.T) for blocks in (rows, columns))
        if times == 2:
            left, right = (doubled(len(each)) @ each for each in (left, right))
        down, across = (np.kron(np.eye(blocks), 128.0 * (frequencies == 0)) for blocks in (rows, columns))
        matrices += [np.tile(np.reshape(table, (8, 8)), (rows, columns)), left, right.T, down, across.T / 128]
    return [matrix.astype(np.float32) for matrix in matrices]


def doubled(count: int) -> npt.NDArray[np.float64]:
    """Return the weights of samples in twice as many, interpolated between."""
    old = np.arange(count)
    places = np.clip((np.arange(2 * count) + 0.5) / 2 - 0.5, 0, count - 1)[:, None]
    return np.maximum(1 - abs(places - old), 0)


def color(fill: Fill, channels: int) -> tuple[float, ...]:
    """Return the levels of a colour."""
    return (float(fill),) * channels if isinstance(fill, int) else tuple(map(float, fill))


def whole(x: Any, arrays: Arrays) -> Any:
    """Return the nearest levels of the pixel format. Of floats each number is one."""
    most = arrays.pixels.most
    return x if most is None else arrays.minimum(arrays.maximum(arrays.round(x), 0.0), most)


def within_boxes(size: Size, boxes: Sequence[Any], x: Any, arrays: Arrays) -> Any:
    """Return which pixels lie in the box of their image, as bools (batch, height, width).

    `boxes` has top, left, bottom, right in pixels, each as `p`.
    """
    top, left, bottom, right = boxes
    row, column = arrays.count(size[0], -2, x), arrays.count(size[1], -1, x)
    return (row >= top) & (row < bottom) & (column >= left) & (column < right)
