"""Brightness, contrast, saturation and hue in a random order."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import permutations
from typing import Annotated, Any, ClassVar, TypeAlias

import cv2
import numpy as np

from tpufeed.images.color import BRIGHTNESS, CONTRAST, SATURATION, Change
from tpufeed.images.decoding import Pixels
from tpufeed.images.device import Arrays, BatchDraws, Columns, Planes, Size, Step, branch, repeat
from tpufeed.images.protocols import Draws, SameSizeOp, keep, spread, written
from tpufeed.images.rng import draw_between

_ORDERS = tuple(permutations(range(4)))
_HUE_STEPS = 256
_Factor: TypeAlias = Annotated[float | tuple[float, float], spread(1.0, 0.0, 100.0)]


def shift_hue(image: Pixels, steps: int, out: Pixels | None) -> Pixels:
    """Turn the colour wheel by steps of 360 / 256 degrees. A pixel's largest and smallest level stay.

    The hue is that of OpenCV's HSV in 8 bits, and R, G, B = V - (V - min) * clip(min(k, 4 - k), 0, 1) with
    k = (n + hue / 60 degrees) mod 6 for n = 5, 3, 1, the usual way back. OpenCV's own rounds differently from version
    to version. Here no value is ever halfway between two levels.
    """
    hue = cv2.extractChannel(cv2.cvtColor(image, cv2.COLOR_RGB2HSV_FULL), 0)
    start = steps % 256
    channels = cv2.split(image)
    largest = cv2.max(cv2.max(channels[0], channels[1]), channels[2])
    spread = cv2.subtract(largest, cv2.min(cv2.min(channels[0], channels[1]), channels[2]))
    turned = []
    for shares in _hue_shares():
        share = cv2.LUT(hue, shares[start : start + 256])
        turned.append(cv2.subtract(largest, _share_of(spread, share)))
    return written(cv2.merge(turned, dst=out), out)


@cache
def _hue_shares() -> list[Pixels]:
    """Return for red, green and blue the share of the spread that each hue subtracts, in 1/255, for two turns."""
    places = [(offset + np.arange(512) * (6 / 256)) % 6 for offset in (5, 3, 1)]
    return [np.rint(255 * np.minimum(place, 4 - place).clip(0, 1)).astype(np.uint8) for place in places]


def _share_of(levels: Any, share: Any) -> Any:
    """Return `levels` * `share` / 255, rounded."""
    if _scaling_rounds():
        return cv2.multiply(levels, share, scale=1 / 255)
    return cv2.convertScaleAbs(cv2.multiply(levels, share, dtype=cv2.CV_16U), alpha=1 / 255)


@cache
def _scaling_rounds() -> bool:
    """Return whether `cv2.multiply` with a scale rounds. On Arm it cuts off. The other way takes five times as long."""
    ones = np.ones((1, 64), np.uint8)
    return bool(cv2.multiply(ones, 254 * ones, scale=1 / 255).all())


def shift_hue_on_device(x: Planes, steps: Any, arrays: Arrays) -> Planes:
    """Do what `shift_hue` does: each intermediate is a whole number below 2^24, or far from halfway between two."""
    red, green, blue = x
    most = arrays.maximum(arrays.maximum(red, green), blue)
    spread = most - arrays.minimum(arrays.minimum(red, green), blue)
    # The hue of OpenCV's HSV: RGB2HSV_b in imgproc/src/color_hsv.simd.hpp, in 1/4096 of 256 steps.
    sector = arrays.where(
        most == red, green - blue, arrays.where(most == green, blue - red + 2 * spread, red - green + 4 * spread)
    )
    per_level = arrays.round(256 * 4096 / 6 / arrays.maximum(spread, 1.0))
    hue = arrays.floor((sector * per_level + 2048) / 4096)
    hue = arrays.where(hue < 0, hue + 256, hue) + steps
    hue = arrays.where(hue >= 256, hue - 256, hue)
    turned = []
    for offset in (5, 3, 1):
        place = hue * (6 / 256) + offset
        place = arrays.where(place >= 6, place - 6, place)
        share = arrays.round(255 * arrays.minimum(arrays.maximum(arrays.minimum(place, 4 - place), 0.0), 1.0))
        turned.append(most - arrays.round(spread * share / 255))
    return turned


_CHANGES = (
    BRIGHTNESS,
    CONTRAST,
    SATURATION,
    Change(lambda image, turn, out: shift_hue(image, round(turn * _HUE_STEPS), out), shift_hue_on_device),
)


@dataclass(frozen=True, slots=True)
class ColorJitter(SameSizeOp):
    """Brightness, contrast, saturation and hue changed in a random order (torchvision's rule).

    Attributes:
        brightness: the factor is uniform in [max(0, 1 - b), 1 + b], or in (low, high). 1 changes nothing.
        contrast: see `brightness`.
        saturation: see `brightness`.
        hue: turn of the colour wheel, uniform in [-h, h] with h up to 0.5, or in (low, high). 1 is a full turn.

    All four are stored as (low, high).
    """

    brightness: _Factor = 0.0
    contrast: _Factor = 0.0
    saturation: _Factor = 0.0
    hue: Annotated[float | tuple[float, float], spread(0.0, -0.5, 0.5)] = 0.0
    version: ClassVar[int] = 1
    draws: ClassVar[int] = 5

    @property
    def any_pixels(self) -> bool:  # type: ignore[override]  # only colours have saturation and hue
        return (self.saturation, self.hue) == ((1.0, 1.0), (0.0, 0.0))

    def skips(self, draws: Draws) -> bool:
        return next(self._changes(draws), None) is None

    def apply(self, image: Pixels, draws: Draws, out: Pixels | None) -> Pixels:
        changed = False
        for number, amount in self._changes(draws):
            image = out = _CHANGES[number].on_host(image, amount, out)
            changed = True
        return image if changed else keep(image, out)

    def _changes(self, draws: Draws) -> Iterator[tuple[int, float]]:
        """Yield number and amount of each change in the drawn order, without changes that do nothing."""
        spreads = (self.brightness, self.contrast, self.saturation, self.hue)
        for number in _ORDERS[int(draws[4] * len(_ORDERS))]:
            amount = draw_between(spreads[number], draws[number])
            if round(amount * _HUE_STEPS) % _HUE_STEPS if number == 3 else amount != 1:
                yield number, amount

    def on_device(self, size: Size) -> Step:
        """Run a step for each kind of change that can have an effect, in the order drawn for each image.

        Numbers: for each step the kind (-1: no change), and the factor or steps of hue from 0 to 255.
        """
        spreads = np.array([self.brightness, self.contrast, self.saturation, self.hue])
        low, extent = spreads[:, 0], spreads[:, 1] - spreads[:, 0]
        changes = [any(factor != 1 for factor in bounds) for bounds in spreads[:3]]
        changes.append(bool(np.rint(spreads[3] * _HUE_STEPS).any()))
        active = [kind for kind in range(4) if changes[kind]]
        orders = np.array([[kind for kind in order if kind in active] for order in _ORDERS], np.int64)

        def parameters(draws: BatchDraws) -> Columns:
            amounts = low + draws[:, :4] * extent
            changed = amounts != 1
            amounts[:, 3] = np.rint(amounts[:, 3] * _HUE_STEPS) % _HUE_STEPS
            changed[:, 3] = amounts[:, 3] != 0
            kinds = np.where(changed, np.arange(4), -1)
            order = orders[(draws[:, 4] * len(_ORDERS)).astype(np.int64)]
            rows = np.arange(len(draws))
            return [numbers[rows, order[:, step]] for step in range(len(active)) for numbers in (kinds, amounts)]

        def apply(x: Planes, p: Sequence[Any], arrays: Arrays) -> Planes:
            def change(turn: Any, x: Planes) -> Planes:
                changes = {kind: partial(_CHANGES[kind].on_device, x, p[2 * turn + 1], arrays) for kind in active}
                return branch(p[2 * turn], changes, x, arrays)

            return repeat(len(active), change, x, arrays)

        return Step(size, 2 * len(active), parameters, apply)
