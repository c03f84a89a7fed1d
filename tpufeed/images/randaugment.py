"""RandAugment: a few transforms drawn from a fixed list, all of one magnitude."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from tpufeed.images.affine import rotate, shear_x, shear_y, shift
from tpufeed.images.color import (
    autocontrast,
    brighten,
    contrast,
    equalize,
    posterize,
    saturate,
    sharpen,
    solarize,
)
from tpufeed.images.decoding import Pixels
from tpufeed.images.protocols import Draws, Fill, SameSizeOp, keep
from tpufeed.images.validation import check_fill, check_int

_MOST_OPS = 100
_LARGEST_MAGNITUDE = 30  # of 31 bins

# Each takes the magnitude with its sign, -30 to 30; where the sign means nothing they leave it out of account.
_Transform: TypeAlias = Callable[[Pixels, int, Fill, Pixels | None], Pixels]


@dataclass(frozen=True, slots=True)
class RandAugment(SameSizeOp):
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

    def skips(self, draws: Draws) -> bool:
        return all(_TRANSFORMS[int(draw * len(_TRANSFORMS))] is None for draw in draws[::2])

    def apply(self, image: Pixels, draws: Draws, out: Pixels | None) -> Pixels:
        changed = False
        for number in range(0, self.draws, 2):
            transform = _TRANSFORMS[int(draws[number] * len(_TRANSFORMS))]
            if transform is not None:
                signed = self.magnitude if draws[number + 1] < 0.5 else -self.magnitude
                image = out = transform(image, signed, self.fill, out)
                changed = True
        return image if changed else keep(image, out)


def _shift_px(side_px: int, signed: int) -> int:
    """Return 150 / 331 of the side at full magnitude, cut off to whole pixels."""
    pixels = 150 * side_px * abs(signed) // (331 * 30)
    return pixels if signed > 0 else -pixels


def _factor(signed: int) -> float:
    return 1 + 0.9 * signed / 30


_TRANSFORMS: tuple[_Transform | None, ...] = (
    None,  # the identity
    lambda image, signed, fill, out: shear_x(image, 0.3 * signed / 30, fill, out),
    lambda image, signed, fill, out: shear_y(image, 0.3 * signed / 30, fill, out),
    lambda image, signed, fill, out: shift(image, 0, _shift_px(image.shape[1], signed), fill, out),
    lambda image, signed, fill, out: shift(image, _shift_px(image.shape[0], signed), 0, fill, out),
    lambda image, signed, fill, out: rotate(image, float(signed), fill, out),
    lambda image, signed, _, out: brighten(image, _factor(signed), out),
    lambda image, signed, _, out: saturate(image, _factor(signed), out),
    lambda image, signed, _, out: contrast(image, _factor(signed), out),
    lambda image, signed, _, out: sharpen(image, _factor(signed), out),
    lambda image, signed, _, out: posterize(image, 8 - round(abs(signed) / 7.5), out),
    lambda image, signed, _, out: solarize(image, 255 - 8.5 * abs(signed), out),
    lambda image, _signed, _, out: autocontrast(image, out),
    lambda image, _signed, _, out: equalize(image, out),
)
