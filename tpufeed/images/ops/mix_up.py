"""Blends of two images of a batch."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from tpufeed.images.device import Arrays, BatchDraws, Size
from tpufeed.images.mixing import Alpha, MixingOp, beta_of
from tpufeed.images.protocols import Probability


@dataclass(frozen=True, slots=True)
class MixUp(MixingOp):
    """Blend each image with its neighbour, and their labels by the same share (Zhang et al. 2018, arXiv:1710.09412).

    Rows 0 and 1 of a batch are neighbours, 2 and 3, and so on. Each image keeps another share, drawn from
    Beta(alpha, alpha) by its sample and epoch. Further images and frames of a clip are blended likewise. Masks are
    refused.

    Attributes:
        alpha: above 0. 0.2 is usual for ImageNet, and 1 is uniform.
        p: the probability that an image is mixed.
    """

    alpha: Alpha = 1.0
    p: Probability = 1.0
    version: ClassVar[int] = 1
    draws: ClassVar[int] = 2

    width: ClassVar[int] = 1
    blends: ClassVar[bool] = True

    def numbers(self, size: Size, draws: BatchDraws) -> npt.NDArray[np.float64]:
        return np.where(draws[:, :1] < self.p, beta_of(draws[:, 1:], self.alpha), 1.0)

    def mix(self, x: Any, others: Any, p: Any, arrays: Arrays) -> Any:
        share = arrays.reshape(p[:, 0], (-1, *[1] * (len(x.shape) - 1)))  # one for all frames of a clip
        blend = x * share + others * (1 - share)
        return blend if arrays.pixels.most is None else arrays.round(blend)
