"""RandAugment: a few transforms drawn from a list, all with the same magnitude."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, TypeAlias

from tpufeed.images.affine import Row, as_affine, rotation, shear_x, shear_y, warp
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
from tpufeed.images.protocols import Affine, Draws, Fill, SameSizeOp, keep
from tpufeed.images.windows import cut_padded
from tpufeed.options import Rule, between

# Each takes the signed magnitude, -30 to 30. Some ignore the sign. For an image of (height, width), transforms that
# move pixels give the rows for `warp`, or a shift by whole pixels (down, right).
_Recolour: TypeAlias = Callable[[Pixels, int, Pixels | None], Pixels]
_Warp: TypeAlias = Callable[[int, int, int], tuple[Row, Row]]
_Shift: TypeAlias = Callable[[int, int, int], tuple[int, int]]


@dataclass(frozen=True, slots=True)
class _Transform:
    recolour: _Recolour | None = None
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


def _factor(signed: int) -> float:
    return 1 + 0.9 * signed / 30


_TRANSFORMS: Mapping[str, _Transform | None] = {
    "identity": None,
    "shear_x": _Transform(warp=lambda _h, _w, signed: shear_x(0.3 * signed / 30)),
    "shear_y": _Transform(warp=lambda _h, _w, signed: shear_y(0.3 * signed / 30)),
    "translate_x": _Transform(shift=lambda _h, width, signed: (0, _shift_px(width, signed))),
    "translate_y": _Transform(shift=lambda height, _w, signed: (_shift_px(height, signed), 0)),
    "rotate": _Transform(warp=lambda height, width, signed: rotation(height, width, float(signed))),
    "brightness": _Transform(lambda image, signed, out: brighten(image, _factor(signed), out)),
    "color": _Transform(lambda image, signed, out: saturate(image, _factor(signed), out)),
    "contrast": _Transform(lambda image, signed, out: contrast(image, _factor(signed), out)),
    "sharpness": _Transform(lambda image, signed, out: sharpen(image, _factor(signed), out)),
    "posterize": _Transform(lambda image, signed, out: posterize(image, 8 - round(abs(signed) / 7.5), out)),
    "solarize": _Transform(lambda image, signed, out: solarize(image, 255 - 8.5 * abs(signed), out)),
    "autocontrast": _Transform(lambda image, _signed, out: autocontrast(image, out)),
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
    transforms: Annotated[tuple[str, ...], _NAMES] | None = field(default=None, kw_only=True)
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
