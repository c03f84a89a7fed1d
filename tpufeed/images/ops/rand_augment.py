"""RandAugment: a few transforms drawn from a list, all with the same magnitude."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, ClassVar, TypeAlias

import cv2
import numpy as np
import numpy.typing as npt

from tpufeed.images.affine import Row, as_affine, rotation, shear_x, shear_y, warp
from tpufeed.images.color import BRIGHTNESS, CONTRAST, LEVELS, SATURATION, Change, look_up
from tpufeed.images.decoding import Pixels
from tpufeed.images.device import (
    Arrays,
    BatchDraws,
    Columns,
    Planes,
    Size,
    Step,
    branch,
    linear,
    refused,
    repeat,
    weighted,
    whole,
    within_boxes,
)
from tpufeed.images.protocols import LATER, Affine, Draws, Fill, SameSizeOp, apart, copied, keep, written
from tpufeed.images.windows import cut_padded
from tpufeed.options import Rule, between

_SMOOTH = np.array([[1, 1, 1], [1, 5, 1], [1, 1, 1]], np.float32) / np.float32(13)  # Pillow's ImageFilter.SMOOTH


def _sharpen(image: Pixels, factor: float, out: Pixels | None) -> Pixels:
    """Blend with the smoothed image. The outermost pixels stay."""
    if min(image.shape[:2]) < 3:
        return copied(image, out)
    image = apart(image, out)
    smooth = cv2.filter2D(image, -1, _SMOOTH)
    blended = written(cv2.addWeighted(image, factor, smooth, 1 - factor, 0, dst=out), out)
    for edge in (np.s_[0], np.s_[-1], np.s_[:, 0], np.s_[:, -1]):
        blended[edge] = image[edge]
    return blended


def autocontrast(image: Pixels, out: Pixels | None) -> Pixels:
    """Stretch each channel to 0 to 255, as Pillow's ImageOps.autocontrast. A channel of a single level stays."""
    table = np.empty((256, 3))
    for channel, counts in enumerate(_histograms(image)):
        found = np.flatnonzero(counts)
        low, high = int(found[0]), int(found[-1])
        scale = 255 / (high - low) if high > low else 1.0
        table[:, channel] = np.trunc(LEVELS * scale - low * scale) if high > low else LEVELS
    return look_up(image, table, out)


def equalize(image: Pixels, out: Pixels | None) -> Pixels:
    """Spread the levels of each channel evenly, as Pillow's ImageOps.equalize."""
    table = np.empty((256, 3))
    for channel, counts in enumerate(_histograms(image)):
        present = counts[counts > 0]
        step = int(present.sum() - present[-1]) // 255
        before = np.cumsum(counts) - counts
        table[:, channel] = (step // 2 + before) // step if step else LEVELS
    return look_up(image, table, out)


def _histograms(image: Pixels) -> list[npt.NDArray[np.int64]]:
    """Count the pixels of each of the 256 levels, for each channel."""
    return [
        cv2.calcHist([image], [channel], None, [256], [0, 256]).reshape(-1).astype(np.int64) for channel in range(3)
    ]


def _sharpen_on_device(x: Planes, factor: Any, arrays: Arrays) -> Planes:
    height, width = size = x[0].shape[-2:]
    if min(size) < 3:
        return x
    # Sums over 3 x 3 pixels, by products with matrices that are 1 on three diagonals.
    rows, columns = (
        arrays.minimum(arrays.maximum(2 - abs(arrays.count(side, -2, x[0]) - arrays.count(side, -1, x[0])), 0.0), 1.0)
        for side in size
    )
    inside, sharpened = within_boxes(size, (1, 1, height - 1, width - 1), x[0], arrays), list[Any]()
    for plane in x:
        smooth = arrays.round((arrays.product(arrays.product(rows, plane), columns) + 4 * plane) / 13)
        sharpened.append(arrays.where(inside, whole(plane * factor + smooth * (1 - factor), arrays), plane))
    return sharpened


def _autocontrast_on_device(plane: Any, arrays: Arrays) -> Any:
    low, high = arrays.least(plane), arrays.most(plane)
    stretched = arrays.floor((plane - low) * 255 / arrays.maximum(high - low, 1.0))
    return arrays.where(high > low, stretched, plane)


def _posterize_on_device(plane: Any, magnitude: int, arrays: Arrays) -> Any:
    step = 2.0 ** _bits_off(magnitude)
    return arrays.floor(plane / step) * step


# Each takes the signed magnitude, -30 to 30. Some ignore the sign. For an image of (height, width), transforms that
# move pixels give the rows for `warp`, or a shift by whole pixels (down, right).
_Recolour: TypeAlias = Callable[[Pixels, int, Pixels | None], Pixels]
_Warp: TypeAlias = Callable[[int, int, int], tuple[Row, Row]]
_Shift: TypeAlias = Callable[[int, int, int], tuple[int, int]]
# On the device it takes `x`, the factor 1 + 0.9 * (signed magnitude) / 30 as in `p`, and the magnitude.
_OnDevice: TypeAlias = Callable[[Planes, Any, int, Arrays], Planes]


@dataclass(frozen=True, slots=True)
class _Transform:
    """One that neither shifts pixels nor has `on_device` needs a gather or a histogram there."""

    recolour: _Recolour | None = None
    on_device: _OnDevice | None = None
    warp: _Warp | None = None
    shift: _Shift | None = None

    def map(self, height: int, width: int, signed: int) -> Affine | None:
        """Return where pixels come from, or None if no pixel moves."""
        if self.warp is not None:
            return as_affine(self.warp(height, width, signed))
        if self.shift is None:
            return None
        down, right = self.shift(height, width, signed)
        return 1.0, 0.0, float(-right), 0.0, 1.0, float(-down)

    def apply(self, image: Pixels, signed: int, fill: Fill, out: Pixels | None) -> Pixels:
        """Return the new pixels, as a pixel op does."""
        height, width = image.shape[:2]
        if self.warp is not None:
            return warp(image, self.warp(height, width, signed), fill, out)
        if self.shift is not None:
            down, right = self.shift(height, width, signed)
            return cut_padded(image, (-down, -right, height, width), fill, out)
        assert self.recolour is not None, "one of the three is given"
        return self.recolour(image, signed, out)


def _shift_px(side_px: int, signed: int) -> int:
    """Return 150 / 331 of the side at full magnitude, truncated to whole pixels."""
    pixels = 150 * side_px * abs(signed) // (331 * 30)
    return pixels if signed > 0 else -pixels


def _bits_off(magnitude: int) -> int:
    return round(abs(magnitude) / 7.5)


def _by_factor(change: Change) -> _Transform:
    return _Transform(
        lambda image, signed, out: change.on_host(image, 1 + 0.9 * signed / 30, out),
        lambda x, factor, _magnitude, arrays: change.on_device(x, factor, arrays),
    )


_TRANSFORMS: Mapping[str, _Transform | None] = {
    "identity": None,
    "shear_x": _Transform(warp=lambda _h, _w, signed: shear_x(0.3 * signed / 30)),
    "shear_y": _Transform(warp=lambda _h, _w, signed: shear_y(0.3 * signed / 30)),
    "translate_x": _Transform(shift=lambda _h, width, signed: (0, _shift_px(width, signed))),
    "translate_y": _Transform(shift=lambda height, _w, signed: (_shift_px(height, signed), 0)),
    "rotate": _Transform(warp=lambda height, width, signed: rotation(height, width, float(signed))),
    "brightness": _by_factor(BRIGHTNESS),
    "color": _by_factor(SATURATION),
    "contrast": _by_factor(CONTRAST),
    "sharpness": _by_factor(Change(_sharpen, _sharpen_on_device)),
    "posterize": _Transform(
        lambda image, signed, out: look_up(image, np.arange(256) & (0xFF << _bits_off(signed)), out),
        lambda x, _factor, magnitude, arrays: [_posterize_on_device(plane, magnitude, arrays) for plane in x],
    ),
    "solarize": _Transform(
        lambda image, signed, out: look_up(
            image, np.where(255 - 8.5 * abs(signed) > LEVELS, LEVELS, 255 - LEVELS), out
        ),
        lambda x, _factor, magnitude, arrays: [
            arrays.where(plane < 255 - 8.5 * magnitude, plane, 255 - plane) for plane in x
        ],
    ),
    "autocontrast": _Transform(
        lambda image, _signed, out: autocontrast(image, out),
        lambda x, _factor, _magnitude, arrays: [_autocontrast_on_device(plane, arrays) for plane in x],
    ),
    "equalize": _Transform(lambda image, _signed, out: equalize(image, out)),
}
_ALL = tuple(_TRANSFORMS)


def _are_names(value: Any) -> bool:
    """Return True for a list or tuple of at least one name, all of them different names of transforms."""
    if not isinstance(value, list | tuple) or not all(isinstance(name, str) and name in _TRANSFORMS for name in value):
        return False
    return 0 < len(value) == len(set(value))


_NAMES = Rule(f"one or more of {', '.join(_ALL)}, each once", _are_names, lambda value: tuple(map(str, value)))


@dataclass(frozen=True, slots=True)
class RandAugment(SameSizeOp):
    """`num_ops` transforms one after another, drawn from a list (Cubuk et al. 2019, https://arxiv.org/abs/1909.13719).

    Transforms and magnitudes are those of torchvision's RandAugment (torchvision/transforms/autoaugment.py) with
    num_magnitude_bins=31. Interpolation is bilinear, and `fill` grey instead of black.

    Attributes:
        num_ops: number of transforms.
        magnitude: magnitude of all of them, 0 to 30.
        fill: the colour beyond the image after a shear, a translation or a rotation.
        transforms: names of the transforms to draw from, all equally likely. A new order gives other pixels. None for
            all 14: identity, shear_x, shear_y, translate_x, translate_y, rotate, brightness, color, contrast,
            sharpness, posterize, solarize, autocontrast and equalize.
    """

    num_ops: Annotated[int, between(0, 100)] = 2
    magnitude: Annotated[int, between(0, 30)] = 9
    # By name: torchvision's third value is num_magnitude_bins.
    fill: Fill = field(default=128, kw_only=True)
    transforms: Annotated[tuple[str, ...], _NAMES] | None = field(default=None, kw_only=True, metadata=LATER)
    version: ClassVar[int] = 1

    @property
    def draws(self) -> int:
        """Number of draws per image: for each transform its index, and its sign."""
        return 2 * self.num_ops

    def skips(self, draws: Draws) -> bool:
        return not any(True for _ in self._drawn(draws))

    def apply(self, image: Pixels, draws: Draws, out: Pixels | None) -> Pixels:
        changed = False
        for transform, signed in self._drawn(draws):
            image = out = transform.apply(image, signed, self.fill, out)
            changed = True
        return image if changed else keep(image, out)

    def maps(self, height: int, width: int, draws: Draws) -> Sequence[Affine]:
        found = [transform.map(height, width, signed) for transform, signed in self._drawn(draws)]
        return [each for each in found if each is not None]

    def _drawn(self, draws: Draws) -> Iterator[tuple[_Transform, int]]:
        names = self.transforms or _ALL
        for number in range(0, self.draws, 2):
            transform = _TRANSFORMS[names[int(draws[number] * len(names))]]
            if transform is not None:
                yield transform, self.magnitude if draws[number + 1] < 0.5 else -self.magnitude

    def on_device(self, size: Size) -> Step:
        """Run the transforms one after another.

        Numbers: for each the index of its name, or -1 for a shift, pixels down and to the right, and the factor of
        colours.
        """
        names, width = self.transforms or _ALL, 4 * self.num_ops
        found = {name: _TRANSFORMS[name] for name in names}
        if lacking := [name for name, each in found.items() if each and not each.shift and not each.on_device]:
            why = f" with {', '.join(lacking)}, which need a gather or a histogram"
            raise refused(self, why, "leave them out by transforms=(...), or ")

        def parameters(draws: BatchDraws) -> Columns:
            index = (draws[:, ::2] * len(names)).astype(np.int64)
            sign = np.where(draws[:, 1::2] < 0.5, 1, -1)
            down, right = (
                sign * _shift_px(side, self.magnitude) * (np.array(names) == name)[index]
                for side, name in zip(size, ("translate_y", "translate_x"), strict=True)
            )
            index = np.where((down != 0) | (right != 0), -1, index)
            numbers = np.stack((index, down, right, 1 + 0.9 * sign * self.magnitude / 30), 2)
            return list(numbers.reshape(-1, width).T)

        def shifted(x: Planes, shift: Sequence[Any], arrays: Arrays) -> Planes:
            rows, columns = (
                linear(arrays.count(side, axis, x[0]) - pixels, arrays.count(side, -3 - axis, x[0]), arrays)
                for axis, side, pixels in zip((-2, -1), size, shift, strict=True)
            )
            return weighted(x, rows, columns, self.fill, arrays)

        def apply(x: Planes, p: Sequence[Any], arrays: Arrays) -> Planes:
            def change(turn: Any, x: Planes) -> Planes:
                index, down, right, factor = (p[4 * turn + number] for number in range(4))
                changes = {
                    number: partial(each.on_device, x, factor, self.magnitude, arrays)
                    for number, each in enumerate(found.values())
                    if each and each.on_device
                }
                if any(each and each.shift for each in found.values()):
                    changes[-1] = partial(shifted, x, (down, right), arrays)
                return branch(index, changes, x, arrays)

            return repeat(self.num_ops, change, x, arrays)

        return Step(size, width, parameters, apply)
