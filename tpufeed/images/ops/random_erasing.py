"""A random rectangle is erased."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from tpufeed.images.decoding import Pixels
from tpufeed.images.device import Arrays, BatchDraws, Columns, Planes, Size, Step, color, refused, within_boxes
from tpufeed.images.protocols import Draws, Fill, Probability, RandomlyApplied, copied, positive_range
from tpufeed.images.rng import draw_between, exp_each, noise

_TRIES = range(1, 21, 2)
_TOP, _LEFT, _NOISE = 21, 22, 23


@dataclass(frozen=True, slots=True)
class RandomErasing(RandomlyApplied):
    """A random rectangle erased with probability `p` (torchvision's rule).

    It tries ten times to find a rectangle that is smaller than the image on both sides, else erases nothing.

    Attributes:
        p: the probability.
        scale: (low, high) of the rectangle's share of the area.
        ratio: (low, high) of its height divided by its width.
        value: a level, (red, green, blue), or "random" for independent uniform levels.
    """

    p: Probability = 0.5
    scale: Annotated[tuple[float, float], positive_range(1.0)] = (0.02, 0.33)
    ratio: Annotated[tuple[float, float], positive_range(1000.0)] = (0.3, 3.3)
    value: Fill | Literal["random"] = 0
    version: ClassVar[int] = 1
    draws: ClassVar[int] = 24

    @property
    def any_pixels(self) -> bool:  # type: ignore[override]  # colours and noise are 8-bit RGB
        return isinstance(self.value, int)

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
        """Draw `(top, left, height, width)` of the rectangle."""
        log_ratio = math.log(self.ratio[0]), math.log(self.ratio[1])
        for attempt in _TRIES:
            area = height * width * draw_between(self.scale, draws[attempt])
            ratio = math.exp(draw_between(log_ratio, draws[attempt + 1]))
            cut_height, cut_width = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if cut_height < height and cut_width < width:
                top = int(draws[_TOP] * (height - cut_height + 1))
                return top, int(draws[_LEFT] * (width - cut_width + 1)), cut_height, cut_width
        return 0, 0, 0, 0

    def rectangles(self, height: int, width: int, draws: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
        """Return `(top, left, height, width)` of the rectangles for draws (n, 24), as int64 (n, 4).

        They are those of `apply`, or zeros if nothing is erased.
        """
        log_ratio = math.log(self.ratio[0]), math.log(self.ratio[1])
        sides = np.array([height, width])
        found = np.zeros((len(draws), 4), np.int64)
        rows = np.flatnonzero(draws[:, 0] < self.p)
        for attempt in _TRIES:
            tries = draws[rows]
            area = height * width * (self.scale[0] + tries[:, attempt] * (self.scale[1] - self.scale[0]))
            ratio = exp_each(log_ratio[0] + tries[:, attempt + 1] * (log_ratio[1] - log_ratio[0]))
            cuts = np.rint(np.sqrt(np.stack((area * ratio, area / ratio), 1))).astype(np.int64)
            fits = (cuts < sides).all(1)
            cuts = cuts[fits]
            found[rows[fits], :2] = tries[fits, _TOP : _LEFT + 1] * (sides - cuts + 1)  # truncated, as by int
            found[rows[fits], 2:] = cuts
            rows = rows[~fits]
            if not len(rows):
                break
        return found

    def on_device(self, size: Size) -> Step:
        """Numbers: top, left, bottom, right of the rectangle."""
        value = self.value
        if isinstance(value, str):  # the only text that there is
            raise refused(self, " with value='random', since noise is made on the host")

        def parameters(draws: BatchDraws) -> Columns:
            top, left, height, width = self.rectangles(*size, draws).T
            return [top, left, top + height, left + width]

        def apply(x: Planes, p: Sequence[Any], arrays: Arrays) -> Planes:
            erased = within_boxes(size, p, x[0], arrays)
            return [arrays.where(erased, level, plane) for level, plane in zip(color(value, len(x)), x, strict=True)]

        return Step(size, 4, parameters, apply)
