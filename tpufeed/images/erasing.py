"""The op that erases a rectangle."""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from tpufeed.errors import OptionError
from tpufeed.images.decoding import Pixels
from tpufeed.images.protocols import Draws, Fill, RandomlyApplied, copied
from tpufeed.images.rng import noise
from tpufeed.images.validation import between, check_fill, check_positive_range, check_probability, shown

_TRIES = range(1, 21, 2)
_TOP, _LEFT, _NOISE = 21, 22, 23


@dataclass(frozen=True, slots=True)
class RandomErasing(RandomlyApplied):
    """A random rectangle erased with probability `p` (torchvision's rule).

    Ten tries for one that is smaller than the image in both directions; then none is erased.

    Attributes:
        p: the probability.
        scale: (low, high) of the rectangle's share of the area.
        ratio: (low, high) of its height to its width.
        value: a level, (red, green, blue), or "random" for independent uniform levels.
    """

    p: float = 0.5
    scale: tuple[float, float] = (0.02, 0.33)
    ratio: tuple[float, float] = (0.3, 3.3)
    value: Fill | Literal["random"] = 0
    version: ClassVar[int] = 1
    draws: ClassVar[int] = 24

    def __post_init__(self) -> None:
        object.__setattr__(self, "p", check_probability("RandomErasing", self.p))
        object.__setattr__(self, "scale", check_positive_range("RandomErasing", "scale", self.scale, 1.0))
        object.__setattr__(self, "ratio", check_positive_range("RandomErasing", "ratio", self.ratio, 1000.0))
        if self.value != "random":
            if isinstance(self.value, str):
                raise OptionError(
                    f"RandomErasing: value is a level, (red, green, blue) or 'random', not {shown(self.value)}"
                )
            object.__setattr__(self, "value", check_fill("RandomErasing", "value", self.value))

    def apply(self, image: Pixels, draws: Draws, out: Pixels | None) -> Pixels:
        top, left, height, width = self._rectangle(image.shape[0], image.shape[1], draws)
        pixels = copied(image, out)
        rectangle = pixels[top : top + height, left : left + width]
        if self.value == "random":
            rectangle[...] = noise(draws[_NOISE], rectangle.size).reshape(rectangle.shape)
        else:
            rectangle[...] = self.value
        return pixels

    def _rectangle(self, height: int, width: int, draws: Draws) -> tuple[int, int, int, int]:
        """Draw `(top, left, height, width)` of what is erased."""
        log_ratio = math.log(self.ratio[0]), math.log(self.ratio[1])
        for attempt in _TRIES:
            area = height * width * between(self.scale, draws[attempt])
            ratio = math.exp(between(log_ratio, draws[attempt + 1]))
            cut_height, cut_width = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if cut_height < height and cut_width < width:
                top = int(draws[_TOP] * (height - cut_height + 1))
                return top, int(draws[_LEFT] * (width - cut_width + 1)), cut_height, cut_width
        return 0, 0, 0, 0
