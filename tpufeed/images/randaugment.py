"""RandAugment: a few transforms drawn from a fixed list, all of one magnitude."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from tpufeed.images.decoding import Pixels
from tpufeed.images.parameters import check_fill, check_int
from tpufeed.images.protocols import Draws, Fill, keep
from tpufeed.images.tones import (
    autocontrast,
    brighten,
    contrast,
    equalize,
    posterize,
    saturate,
    sharpen,
    solarize,
)
from tpufeed.images.warping import rotate, shear_x, shear_y, shift

_MOST_OPS = 100
_LARGEST_MAGNITUDE = 30  # of 31 bins

# Each takes the magnitude with its sign, -30 to 30; where the sign means nothing they leave it out of account.
_Transform: TypeAlias = Callable[[Pixels, int, Fill, Pixels | None], Pixels]


@dataclass(frozen=True, slots=True)
class RandAugment:
    """`num_ops` transforms one after another, each drawn from 14 (Cubuk et al. 2019, https://arxiv.org/abs/1909.13719).

    Transforms and magnitudes are those of torchvision's RandAugment (torchvision/transforms/autoaugment.py) with
    num_magnitude_bins=31; pixels between pixels are bilinear.

    Attributes:
        num_ops: how many.
        magnitude: of all of them, 0 to 30.
        fill: what lies beyond the image after a shear, a translation or a rotation.
    """

    num_ops: int = 2
    magnitude: int = 9
    fill: Fill = 128
    version: ClassVar[int] = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_ops", check_int("RandAugment", "num_ops", self.num_ops, 0, _MOST_OPS))
        magnitude = check_int("RandAugment", "magnitude", self.magnitude, 0, _LARGEST_MAGNITUDE)
        object.__setattr__(self, "magnitude", magnitude)
        object.__setattr__(self, "fill", check_fill("RandAugment", "fill", self.fill))

    @property
    def draws(self) -> int:
        """Number of draws of an image: for each transform which it is, and its sign."""
        return 2 * self.num_ops

    def output_size(self, size: tuple[int, int] | None) -> tuple[int, int] | None:
        return size

    def skips(self, draws: Draws) -> bool:
        return all(_drawn(draw) is _identity for draw in draws[::2])

    def apply(self, image: Pixels, draws: Draws, out: Pixels | None) -> Pixels:
        changed = False
        for number in range(0, self.draws, 2):
            transform = _drawn(draws[number])
            if transform is not _identity:
                signed = self.magnitude if draws[number + 1] < 0.5 else -self.magnitude
                image = out = transform(image, signed, self.fill, out)
                changed = True
        return image if changed else keep(image, out)


def _drawn(draw: float) -> _Transform:
    return _TRANSFORMS[int(draw * len(_TRANSFORMS))]


def _identity(image: Pixels, _signed: int, _fill: Fill, out: Pixels | None) -> Pixels:
    return keep(image, out)


def _shear_x(image: Pixels, signed: int, fill: Fill, out: Pixels | None) -> Pixels:
    return shear_x(image, 0.3 * signed / 30, fill, out)


def _shear_y(image: Pixels, signed: int, fill: Fill, out: Pixels | None) -> Pixels:
    return shear_y(image, 0.3 * signed / 30, fill, out)


def _translate_x(image: Pixels, signed: int, fill: Fill, out: Pixels | None) -> Pixels:
    return shift(image, 0, _shift_px(image.shape[1], signed), fill, out)


def _translate_y(image: Pixels, signed: int, fill: Fill, out: Pixels | None) -> Pixels:
    return shift(image, _shift_px(image.shape[0], signed), 0, fill, out)


def _shift_px(side_px: int, signed: int) -> int:
    """150 / 331 of the side at full magnitude, cut off to whole pixels."""
    pixels = 150 * side_px * abs(signed) // (331 * 30)
    return pixels if signed > 0 else -pixels


def _rotate(image: Pixels, signed: int, fill: Fill, out: Pixels | None) -> Pixels:
    return rotate(image, float(signed), fill, out)


def _brightness(image: Pixels, signed: int, _fill: Fill, out: Pixels | None) -> Pixels:
    return brighten(image, _factor(signed), out)


def _color(image: Pixels, signed: int, _fill: Fill, out: Pixels | None) -> Pixels:
    return saturate(image, _factor(signed), out)


def _contrast(image: Pixels, signed: int, _fill: Fill, out: Pixels | None) -> Pixels:
    return contrast(image, _factor(signed), out)


def _sharpness(image: Pixels, signed: int, _fill: Fill, out: Pixels | None) -> Pixels:
    return sharpen(image, _factor(signed), out)


def _factor(signed: int) -> float:
    return 1 + 0.9 * signed / 30


def _posterize(image: Pixels, signed: int, _fill: Fill, out: Pixels | None) -> Pixels:
    return posterize(image, 8 - round(abs(signed) / 7.5), out)


def _solarize(image: Pixels, signed: int, _fill: Fill, out: Pixels | None) -> Pixels:
    return solarize(image, 255 - 8.5 * abs(signed), out)


def _autocontrast(image: Pixels, _signed: int, _fill: Fill, out: Pixels | None) -> Pixels:
    return autocontrast(image, out)


def _equalize(image: Pixels, _signed: int, _fill: Fill, out: Pixels | None) -> Pixels:
    return equalize(image, out)


_TRANSFORMS: tuple[_Transform, ...] = (
    _identity,
    _shear_x,
    _shear_y,
    _translate_x,
    _translate_y,
    _rotate,
    _brightness,
    _color,
    _contrast,
    _sharpness,
    _posterize,
    _solarize,
    _autocontrast,
    _equalize,
)
