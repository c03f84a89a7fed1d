"""A box of one image of a batch in another one."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from tpufeed.images.device import Arrays, BatchDraws, Size, within_boxes
from tpufeed.images.mixing import Alpha, MixingOp, beta_of
from tpufeed.images.protocols import Probability


@dataclass(frozen=True, slots=True)
class CutMix(MixingOp):
    """Paste a box of its neighbour into each image, and mix labels by the area (Yun et al. 2019, arXiv:1905.04899).

    Neighbours are the same as in `MixUp`. The box covers 1 - share of the area, with a share from Beta(alpha, alpha),
    around a uniform centre. The part beyond the image is cut off, and labels are mixed by what remains. Further images,
    frames of a clip, masks and depth get the same box. Boxes and keypoints are refused.

    Attributes:
        alpha: above 0. 1 is uniform.
        p: the probability that an image is mixed.
    """

    alpha: Alpha = 1.0
    p: Probability = 1.0
    version: ClassVar[int] = 1
    draws: ClassVar[int] = 4

    width: ClassVar[int] = 5
    blends: ClassVar[bool] = False

    def numbers(self, size: Size, draws: BatchDraws) -> npt.NDArray[np.float64]:
        """Return the share, and (top, left, bottom, right) of the box in whole pixels. Zeros: none is pasted."""
        sides = np.array(size)
        reach = np.floor(0.5 * np.sqrt(1 - beta_of(draws[:, 1], self.alpha))[:, None] * sides)
        centre = np.floor(draws[:, 2:] * sides)
        box = np.concatenate((np.maximum(centre - reach, 0), np.minimum(centre + reach, sides)), 1)
        box = np.where(draws[:, :1] < self.p, box, 0.0)
        area = (box[:, 2] - box[:, 0]) * (box[:, 3] - box[:, 1])
        return np.concatenate(((1 - area / (size[0] * size[1]))[:, None], box), 1)

    def mix(self, x: Any, others: Any, p: Any, arrays: Arrays) -> Any:
        axes, box = len(x.shape), [p[:, number, None, None] for number in range(1, 5)]
        inside = within_boxes(x.shape[2:4] if axes == 5 else x.shape[1:3], box, x, arrays)
        inside = inside[:, None] if axes == 5 else inside  # one box for all frames
        return arrays.where(inside if axes == 3 else inside[..., None], others, x)
