"""The ops that change colours, and those that blur them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import permutations
from typing import ClassVar

import cv2

from tpufeed.images.decoding import Pixels
from tpufeed.images.parameters import as_range, between, check_positive_range, check_probability, check_spread
from tpufeed.images.protocols import Draws, keep
from tpufeed.images.tones import brighten, contrast, desaturate, saturate, shift_hue

_ORDERS = tuple(permutations(range(4)))
_HUE_STEPS = 256
_STEPS: tuple[Callable[[Pixels, float, Pixels | None], Pixels], ...] = (
    brighten,
    contrast,
    saturate,
    lambda image, turn, out: shift_hue(image, round(turn * _HUE_STEPS), out),
)
_LARGEST_FACTOR = 100.0
_LARGEST_SIGMA_PX = 100.0


@dataclass(frozen=True, slots=True)
class ColorJitter:
    """Brightness, contrast, saturation and hue changed in a random order (torchvision's rule).

    Attributes:
        brightness: the factor is uniform in [max(0, 1 - b), 1 + b], or in (low, high); 1 changes nothing.
        contrast: see `brightness`.
        saturation: see `brightness`.
        hue: of the colour wheel's turn, uniform in [-h, h] with h of at most 0.5, or in (low, high); 0 changes nothing.

    All four are held as (low, high).
    """

    brightness: float | tuple[float, float] = 0.0
    contrast: float | tuple[float, float] = 0.0
    saturation: float | tuple[float, float] = 0.0
    hue: float | tuple[float, float] = 0.0
    version: ClassVar[int] = 1
    draws: ClassVar[int] = 5

    def __post_init__(self) -> None:
        for name in ("brightness", "contrast", "saturation"):
            spread = check_spread("ColorJitter", name, getattr(self, name), 1.0, 0.0, _LARGEST_FACTOR)
            object.__setattr__(self, name, spread)
        object.__setattr__(self, "hue", check_spread("ColorJitter", "hue", self.hue, 0.0, -0.5, 0.5))

    def output_size(self, size: tuple[int, int] | None) -> tuple[int, int] | None:
        return size

    def skips(self, draws: Draws) -> bool:
        return next(self._changes(draws), None) is None

    def apply(self, image: Pixels, draws: Draws, out: Pixels | None) -> Pixels:
        changed = False
        for number, amount in self._changes(draws):
            image = out = _STEPS[number](image, amount, out)
            changed = True
        return image if changed else keep(image, out)

    def _changes(self, draws: Draws) -> Iterator[tuple[int, float]]:
        """Return the changes of the four in their order, and how much; without those that change nothing."""
        spreads = (self.brightness, self.contrast, self.saturation, self.hue)
        for number in _ORDERS[int(draws[4] * len(_ORDERS))]:
            amount = between(as_range(spreads[number]), draws[number])
            if round(amount * _HUE_STEPS) % _HUE_STEPS if number == 3 else amount != 1:
                yield number, amount


@dataclass(frozen=True, slots=True)
class Grayscale:
    """Grey in all three channels with probability `p` (torchvision's RandomGrayscale).

    Attributes:
        p: the probability, 0 to 1.
    """

    p: float = 0.1
    version: ClassVar[int] = 1
    draws: ClassVar[int] = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "p", check_probability("Grayscale", self.p))

    def output_size(self, size: tuple[int, int] | None) -> tuple[int, int] | None:
        return size

    def skips(self, draws: Draws) -> bool:
        return draws[0] >= self.p

    def apply(self, image: Pixels, draws: Draws, out: Pixels | None) -> Pixels:
        return desaturate(image, out)


@dataclass(frozen=True, slots=True)
class GaussianBlur:
    """A Gaussian blur with probability `p`; the kernel reaches three `sigma`.

    Beyond its edges the image is mirrored, the outermost pixels not repeated. OpenCV computes it in integers.

    Attributes:
        sigma: in pixels, uniform in (low, high).
        p: the probability, 0 to 1.
    """

    sigma: tuple[float, float] = (0.1, 2.0)
    p: float = 0.5
    version: ClassVar[int] = 1
    draws: ClassVar[int] = 2

    def __post_init__(self) -> None:
        sigma = (self.sigma, self.sigma) if isinstance(self.sigma, int | float) else self.sigma
        object.__setattr__(self, "sigma", check_positive_range("GaussianBlur", "sigma", sigma, _LARGEST_SIGMA_PX))
        object.__setattr__(self, "p", check_probability("GaussianBlur", self.p))

    def output_size(self, size: tuple[int, int] | None) -> tuple[int, int] | None:
        return size

    def skips(self, draws: Draws) -> bool:
        return draws[0] >= self.p

    def apply(self, image: Pixels, draws: Draws, out: Pixels | None) -> Pixels:
        sigma = between(self.sigma, draws[1])
        blurred: Pixels = cv2.GaussianBlur(image, (0, 0), sigma, dst=out)  # type: ignore[assignment]
        return blurred if out is None else out
