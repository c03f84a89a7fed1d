"""A Gaussian blur."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import cv2
import numpy as np
import numpy.typing as npt

from tpufeed.images.decoding import Pixels
from tpufeed.images.device import Arrays, BatchDraws, Columns, Planes, Size, Step, refused, weighted
from tpufeed.images.protocols import Draws, Op, Probability, RandomlyApplied, positive_range, written
from tpufeed.images.rng import draw_between


@dataclass(frozen=True, slots=True)
class GaussianBlur(RandomlyApplied):
    """A Gaussian blur with probability `p`. The kernel reaches three `sigma`.

    In torchvision the kernel size is an argument. Here it follows from sigma. Beyond its edges the image is mirrored,
    without repeating the outermost pixels. OpenCV computes it in integers.

    Attributes:
        p: the probability, 0 to 1.
        sigma: in pixels, uniform in (low, high). A number is both.
    """

    p: Probability = 1.0  # first: the size of a kernel is refused, not taken for a sigma
    sigma: Annotated[tuple[float, float], positive_range(100.0, or_one=True)] = (0.1, 2.0)
    version: ClassVar[int] = 1
    any_pixels: ClassVar[bool] = True
    any_pixels_on_device: ClassVar[bool] = False  # OpenCV's kernels reach farther in other types
    draws: ClassVar[int] = 2

    def apply(self, image: Pixels, draws: Draws, out: Pixels | None) -> Pixels:
        sigma = draw_between(self.sigma, draws[1])
        return written(cv2.GaussianBlur(image, (0, 0), sigma, dst=out), out)

    def evaluation(self) -> tuple[Op, ...]:
        return (self,) if self.p == 1 and len({*self.sigma}) == 1 else ()

    def on_device(self, size: Size) -> Step:
        """Multiply the mirrored image by the kernel, as weights of rows and columns.

        Numbers: 1 / (2 sigma^2), the kernel's reach in pixels, and 1 / its sum. Those of a skipped image are 0, 0, 1.
        """
        low, high = self.sigma
        most = int(_reach(np.array(self.sigma)).max())
        if most >= min(size):
            raise refused(self, f" with sigma={high:g}, whose kernel reaches {most} pixels, over images of {size}")
        offsets = np.arange(1.0, most + 1)

        def parameters(draws: BatchDraws) -> Columns:
            sigma = low + draws[:, 1] * (high - low)
            blurred = draws[:, 0] < self.p
            narrowness, reach = blurred / (2 * sigma**2), blurred * _reach(sigma)
            kernel = np.exp(-(offsets**2) * narrowness[:, None]) * (offsets <= reach[:, None])
            return [narrowness, reach, 1 / (1 + 2 * kernel.sum(1))]

        def apply(x: Planes, p: Sequence[Any], arrays: Arrays) -> Planes:
            rows, columns = (_weights(size[axis], axis, x, p, arrays) for axis in (-2, -1))
            return weighted(x, rows, columns, 0, arrays)

        return Step(size, 3, parameters, apply)


def _weights(side: int, axis: int, x: Planes, p: Sequence[Any], arrays: Arrays) -> Any:
    """Return the weights of old pixels in new ones along a side, for `weighted`."""
    narrowness, reach, share = p[0], p[1], p[2]
    old, new = arrays.count(side, -3 - axis, x[0]), arrays.count(side, axis, x[0])

    def kernel(places: Any) -> Any:
        distance = abs(places - new)
        return arrays.where(distance <= reach, arrays.exp(-distance * distance * narrowness) * share, 0.0)

    # Each pixel lies at its own place and, but for the outermost, mirrored beyond either edge.
    mirrored = arrays.where(old > 0, kernel(-old), 0.0)
    mirrored = mirrored + arrays.where(old < side - 1, kernel(2.0 * (side - 1) - old), 0.0)
    return kernel(old) + mirrored


def _reach(sigma: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Return OpenCV's half width for uint8: createGaussianKernels in imgproc/src/smooth.dispatch.cpp."""
    return (np.rint(sigma * 6 + 1).astype(np.int64) | 1) // 2
