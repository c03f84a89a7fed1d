"""Brightness and colour: the ops `ColorJitter`, `Grayscale` and `GaussianBlur`, and the functions they are made of.

All functions take uint8 RGB of any strides and write to `out` (C-contiguous, maybe the image itself) if given, else to
new memory: the result may be written to. Factors are those of Pillow's ImageEnhance: 1 leaves the image unchanged, 0
removes the quality, above 1 increases it. But results are rounded, not truncated as in Pillow. Levels are mapped by
tables: these are exact on every machine, and OpenCV looks them up without the GIL.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import permutations
from typing import Annotated, Any, ClassVar, TypeAlias

import cv2
import numpy as np
import numpy.typing as npt

from tpufeed.images.decoding import Pixels
from tpufeed.images.protocols import (
    Draws,
    Probability,
    RandomlyApplied,
    SameSizeOp,
    apart,
    copied,
    keep,
    positive_range,
    spread,
)
from tpufeed.images.rng import draw_between

_LEVELS = np.arange(256, dtype=np.float64)
_LUMA = (0.299, 0.587, 0.114)  # ITU-R BT.601, as Pillow and torchvision have it
_SMOOTH = np.array([[1, 1, 1], [1, 5, 1], [1, 1, 1]], np.float32) / np.float32(13)  # Pillow's ImageFilter.SMOOTH
ORDERS = tuple(permutations(range(4)))
_HUE_STEPS = 256
_Factor: TypeAlias = Annotated[float | tuple[float, float], spread(1.0, 0.0, 100.0)]


def brighten(image: Pixels, factor: float, out: Pixels | None) -> Pixels:
    """Blend with black."""
    return _look_up(image, _LEVELS * factor, out)


def contrast(image: Pixels, factor: float, out: Pixels | None) -> Pixels:
    """Blend with the mean level of the grey image, rounded."""
    mean = int(cv2.mean(_grey(image))[0] + 0.5)
    return _look_up(image, mean + (_LEVELS - mean) * factor, out)


def saturate(image: Pixels, factor: float, out: Pixels | None) -> Pixels:
    """Blend with the grey image."""
    matrix = factor * np.eye(3) + (1 - factor) * np.array(_LUMA)
    return _written(cv2.transform(image, matrix, dst=out), out)


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
    return _written(cv2.merge(turned, dst=out), out)


def desaturate(image: Pixels, out: Pixels | None) -> Pixels:
    """Return the grey image in all three channels."""
    return _written(cv2.cvtColor(_grey(image), cv2.COLOR_GRAY2RGB, dst=out), out)


def sharpen(image: Pixels, factor: float, out: Pixels | None) -> Pixels:
    """Blend with the smoothed image. The outermost pixels stay."""
    if min(image.shape[:2]) < 3:
        return copied(image, out)
    image = apart(image, out)
    smooth = cv2.filter2D(image, -1, _SMOOTH)
    blended = _written(cv2.addWeighted(image, factor, smooth, 1 - factor, 0, dst=out), out)
    for edge in (np.s_[0], np.s_[-1], np.s_[:, 0], np.s_[:, -1]):
        blended[edge] = image[edge]
    return blended


def posterize(image: Pixels, bits: int, out: Pixels | None) -> Pixels:
    """Keep only the upper `bits` of each level."""
    return _look_up(image, np.arange(256) & (0xFF << (8 - bits)), out)


def solarize(image: Pixels, threshold: float, out: Pixels | None) -> Pixels:
    """Invert levels of `threshold` and above."""
    return _look_up(image, np.where(threshold > _LEVELS, _LEVELS, 255 - _LEVELS), out)


def autocontrast(image: Pixels, out: Pixels | None) -> Pixels:
    """Stretch each channel to 0 to 255, as Pillow's ImageOps.autocontrast. A channel of a single level stays."""
    table = np.empty((256, 3))
    for channel, counts in enumerate(_histograms(image)):
        found = np.flatnonzero(counts)
        low, high = int(found[0]), int(found[-1])
        scale = 255 / (high - low) if high > low else 1.0
        table[:, channel] = np.trunc(_LEVELS * scale - low * scale) if high > low else _LEVELS
    return _look_up(image, table, out)


def equalize(image: Pixels, out: Pixels | None) -> Pixels:
    """Spread the levels of each channel evenly, as Pillow's ImageOps.equalize."""
    table = np.empty((256, 3))
    for channel, counts in enumerate(_histograms(image)):
        present = counts[counts > 0]
        step = int(present.sum() - present[-1]) // 255
        before = np.cumsum(counts) - counts
        table[:, channel] = (step // 2 + before) // step if step else _LEVELS
    return _look_up(image, table, out)


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


def _look_up(image: Any, table: npt.NDArray[Any], out: Pixels | None) -> Pixels:
    """Map levels by `table`: 256 numbers, or (256, 3) for one column per channel, rounded and clipped to 0 to 255."""
    levels = np.maximum(np.minimum(np.rint(table), 255), 0).astype(np.uint8)  # np.clip takes five times as long
    return _written(cv2.LUT(image, levels if levels.ndim == 1 else levels[None], dst=out), out)


def _grey(image: Pixels) -> Pixels:
    return _written(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY), None)


def _histograms(image: Pixels) -> list[npt.NDArray[np.int64]]:
    """Count the pixels of each of the 256 levels, for each channel."""
    return [
        cv2.calcHist([image], [channel], None, [256], [0, 256]).reshape(-1).astype(np.int64) for channel in range(3)
    ]


def _written(result: Any, out: Pixels | None) -> Pixels:
    """Return OpenCV's result, in `out` if given. Its stubs do not know that uint8 stays uint8."""
    pixels: Pixels = result if out is None else out
    return pixels


_STEPS: tuple[Callable[[Pixels, float, Pixels | None], Pixels], ...] = (
    brighten,
    contrast,
    saturate,
    lambda image, turn, out: shift_hue(image, round(turn * _HUE_STEPS), out),
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

    def skips(self, draws: Draws) -> bool:
        return next(self._changes(draws), None) is None

    def apply(self, image: Pixels, draws: Draws, out: Pixels | None) -> Pixels:
        changed = False
        for number, amount in self._changes(draws):
            image = out = _STEPS[number](image, amount, out)
            changed = True
        return image if changed else keep(image, out)

    def _changes(self, draws: Draws) -> Iterator[tuple[int, float]]:
        """Yield number and amount of each change in the drawn order, without changes that do nothing."""
        spreads = (self.brightness, self.contrast, self.saturation, self.hue)
        for number in ORDERS[int(draws[4] * len(ORDERS))]:
            amount = draw_between(spreads[number], draws[number])
            if round(amount * _HUE_STEPS) % _HUE_STEPS if number == 3 else amount != 1:
                yield number, amount


@dataclass(frozen=True, slots=True)
class Grayscale(RandomlyApplied):
    """Grey in all three channels, as torchvision's Grayscale(3), with `p` below 1 its RandomGrayscale.

    Attributes:
        p: the probability, 0 to 1.
    """

    p: Probability = 1.0
    version: ClassVar[int] = 1
    draws: ClassVar[int] = 1

    def apply(self, image: Pixels, draws: Draws, out: Pixels | None) -> Pixels:
        return desaturate(image, out)


@dataclass(frozen=True, slots=True)
class GaussianBlur(RandomlyApplied):
    """A Gaussian blur with probability `p`. The kernel reaches three `sigma`.

    torchvision's takes the size of the kernel first. Here it follows from sigma. Beyond its edges the image is
    mirrored, the outermost pixels not repeated. OpenCV computes it in integers.

    Attributes:
        p: the probability, 0 to 1.
        sigma: in pixels, uniform in (low, high). A number is both.
    """

    p: Probability = 1.0  # first: the size of a kernel is refused, not taken for a sigma
    sigma: Annotated[tuple[float, float], positive_range(100.0, or_one=True)] = (0.1, 2.0)
    version: ClassVar[int] = 1
    draws: ClassVar[int] = 2

    def apply(self, image: Pixels, draws: Draws, out: Pixels | None) -> Pixels:
        sigma = draw_between(self.sigma, draws[1])
        blurred: Pixels = cv2.GaussianBlur(image, (0, 0), sigma, dst=out)  # type: ignore[assignment]
        return blurred if out is None else out
