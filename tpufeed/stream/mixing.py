"""Ops that mix rows over the columns of a batch, on the device or on the host, in any framework."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from tpufeed.images.device import Arrays, BatchDraws, DeviceOps
from tpufeed.images.mixing import MixingOp
from tpufeed.images.pixel_format import RGB8, PixelFormat
from tpufeed.stream.columns import DEVICE_NUMBERS, IMAGE, LABEL, Array, Column, image_column


class Mixing:
    """Ops that mix pairs of rows of a batch: images, label, and masks, into which CutMix pastes as well. Immutable.

    Args:
        ops: run in this order.
        size: (height, width) of the images.
        classes: number of classes.
        others: names of the columns of further images.
        masks: names of the columns of masks and depth, if no op blends.
        pixel_format: that of the images, or of the frames of clips. Further images are 8-bit RGB.

    Attributes:
        ops: `ops`.
        classes: `classes`.
        pixels: names of the columns of images and masks.
        names: names of all columns that change.
        width: float32 numbers per image.
    """

    def __init__(
        self,
        ops: Sequence[MixingOp],
        size: tuple[int, int],
        classes: int,
        others: Sequence[str] = (),
        masks: Sequence[str] = (),
        pixel_format: PixelFormat = RGB8,
    ) -> None:
        self.ops, self._size, self.classes, self._format = tuple(ops), size, classes, pixel_format
        self._images = (IMAGE, *others)
        self.pixels = (*self._images, *masks)
        self.names = (*self.pixels, LABEL)
        self.width = sum(op.width for op in ops)

    def parameters(self, draws: Sequence[BatchDraws]) -> npt.NDArray[np.float32]:
        """Return the numbers that `apply` needs, of shape (batch, width). `draws` is as in `DeviceOps.parameters`."""
        columns = [op.numbers(self._size, drawn) for op, drawn in zip(self.ops, draws, strict=True)]
        return np.concatenate(columns, 1).astype(np.float32)

    def apply(self, columns: Mapping[str, Any], parameters: Any, arrays: Arrays) -> dict[str, Any]:
        """Return the columns that change, mixed: pixels in their type and shape, labels as float32 (batch, classes).

        Args:
            columns: the columns of a batch, maybe traced, with an even number of rows: images (batch, *size, channels),
                clips (batch, frames, *size, channels), masks (batch, *size). Labels as ids (batch,), or float32
                (batch, classes). An id that is not a class becomes a row of zeros.
            parameters: from `parameters`, float32 (batch, width).
            arrays: functions of their framework.
        """
        pixels, start = {name: columns[name] for name in self.pixels}, 0
        own = dict.fromkeys(self.pixels, arrays) | {IMAGE: arrays.of(self._format)}
        pixels |= {name: arrays.floats(pixels[name]) for name in self._images}
        y = arrays.floats(columns[LABEL])
        if len(y.shape) == 1:
            y = arrays.floats(y[:, None] == arrays.count(self.classes, -1, y))
        for op in self.ops:
            p = parameters[:, start : start + op.width]
            start += op.width
            pixels = {name: op.mix(x, _neighbours(x, arrays), p, own[name]) for name, x in pixels.items()}
            share = p[:, 0:1]
            y = y * share + _neighbours(y, arrays) * (1 - share)
        pixels |= {name: arrays.levels(pixels[name], own[name].pixels.dtype) for name in self._images}
        return pixels | {LABEL: y}


@dataclass(frozen=True, slots=True)
class BatchOps:
    """All ops that run on a device over the columns of a batch: those of single images, then those that mix rows.

    Attributes:
        ops: the ops of single images. All frames of a clip get its numbers.
        mixing: the ops that mix rows, if any.
        pixels: pixel format of the images.
    """

    ops: DeviceOps
    mixing: Mixing | None
    pixels: PixelFormat = RGB8

    @property
    def width(self) -> int:
        """Numbers per image."""
        return self.ops.width + (0 if self.mixing is None else self.mixing.width)

    def parameters(self, draws: Sequence[BatchDraws]) -> npt.NDArray[np.float32]:
        """Return the numbers of all ops, of shape (batch, width). `draws` is as in `DeviceOps.parameters`."""
        if self.mixing is None:
            return self.ops.parameters(draws)
        first = len(draws) - len(self.mixing.ops)
        parts = [self.mixing.parameters(draws[first:])]
        if self.ops.width:
            parts.insert(0, self.ops.parameters(draws[:first]))
        return np.concatenate(parts, 1)

    @property
    def sent(self) -> Column:
        """The column of images that a device gets: pixels, or coefficients."""
        coefficients = self.ops.coefficients
        if coefficients is None:
            return image_column(IMAGE, self.pixels, self.ops.size)
        return Column(IMAGE, "int8", coefficients.shape)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns that change."""
        return (IMAGE,) if self.mixing is None else self.mixing.names

    def run(self, columns: Mapping[str, Any], arrays: Arrays) -> dict[str, Any]:
        """Return the columns that change, as the ops make them.

        Args:
            columns: those of `names` and `DEVICE_NUMBERS` on a device, maybe traced. Others are ignored.
            arrays: functions of their framework.
        """
        numbers, images = columns[DEVICE_NUMBERS], columns[IMAGE]
        own, frames = numbers[:, : self.ops.width], self.pixels.frames
        if frames:  # become rows, each with the numbers of its clip
            rows = numbers.shape[0] * frames
            images = arrays.reshape(images, (rows, *self.ops.size, self.pixels.channels))
            own = arrays.reshape(own[:, None] * arrays.row([1.0] * frames, own)[:, None], (rows, self.ops.width))
        images = self.ops.apply(images, own, arrays)
        if frames:
            images = arrays.reshape(images, (numbers.shape[0], frames, *self.ops.out_size, self.pixels.channels))
        if self.mixing is None:
            return {IMAGE: images}
        return self.mixing.apply({**columns, IMAGE: images}, numbers[:, self.ops.width :], arrays)


def _neighbours(values: Any, arrays: Arrays) -> Any:
    """Swap the rows of each pair. A roll would move rows between devices."""
    shape = tuple(values.shape)
    return arrays.reshape(arrays.flip(arrays.reshape(values, (shape[0] // 2, 2, *shape[1:])), 1), shape)


_NUMPY = Arrays(
    floats=lambda x: np.asarray(x, np.float32),
    levels=lambda x, dtype: x.astype(dtype),
    cast=lambda x, dtype: x.astype(dtype or np.float32),
    count=lambda stop, axis, _x: np.expand_dims(np.arange(stop, dtype=np.float32), -3 - axis),
    row=lambda numbers, _x: np.array(numbers, np.float32),
    where=np.where,
    minimum=np.minimum,
    maximum=np.maximum,
    floor=np.floor,
    round=np.rint,
    exp=np.exp,
    product=np.matmul,
    flip=np.flip,
    reshape=np.reshape,
    transpose=np.transpose,
    stack=partial(np.stack, axis=-1),
    sum=partial(np.sum, keepdims=True),
    least=partial(np.min, axis=(-2, -1), keepdims=True),
    most=partial(np.max, axis=(-2, -1), keepdims=True),
    layout="NHWC",
    exact_product=np.matmul,
)
_ROWS_AT_ONCE = 8  # small enough that the floats stay in the CPU cache


def mix_on_host(mixing: Mixing, columns: dict[str, Array], parameters: Array) -> None:
    """Mix the columns of a batch of numpy arrays: pixels in place. See `Mixing.apply`."""
    labels = list[Array]()
    for start in range(0, len(parameters), _ROWS_AT_ONCE):
        rows = slice(start, start + _ROWS_AT_ONCE)
        mixed = mixing.apply({name: columns[name][rows] for name in mixing.names}, parameters[rows], _NUMPY)
        for name in mixing.pixels:
            columns[name][rows] = mixed[name]
        labels.append(mixed[LABEL])
    columns[LABEL] = np.concatenate(labels)
