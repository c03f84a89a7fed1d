"""All ops, a file for each. This is the only list of them: commands, manifests, tests and pages walk it."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from tpufeed.images.mixing import MixingOp
from tpufeed.images.ops.center_crop import CenterCrop as CenterCrop
from tpufeed.images.ops.choose import Choose as Choose
from tpufeed.images.ops.color_jitter import ColorJitter as ColorJitter
from tpufeed.images.ops.custom import Custom as Custom
from tpufeed.images.ops.cut_mix import CutMix as CutMix
from tpufeed.images.ops.flips import HorizontalFlip as HorizontalFlip
from tpufeed.images.ops.flips import VerticalFlip as VerticalFlip
from tpufeed.images.ops.gaussian_blur import GaussianBlur as GaussianBlur
from tpufeed.images.ops.grayscale import Grayscale as Grayscale
from tpufeed.images.ops.mix_up import MixUp as MixUp
from tpufeed.images.ops.rand_augment import RandAugment as RandAugment
from tpufeed.images.ops.random_crop import RandomCrop as RandomCrop
from tpufeed.images.ops.random_erasing import RandomErasing as RandomErasing
from tpufeed.images.ops.random_resized_crop import RandomResizedCrop as RandomResizedCrop
from tpufeed.images.ops.resize import Resize as Resize
from tpufeed.images.ops.rotate import Rotate as Rotate
from tpufeed.images.protocols import CheckedOp

EVERY: Mapping[str, type[Any]] = MappingProxyType(
    {
        name: each
        for name, each in sorted(globals().items())
        if isinstance(each, type) and issubclass(each, CheckedOp) and each.__module__.startswith(f"{__name__}.")
    }
)
OPS = MappingProxyType({name: each for name, each in EVERY.items() if not issubclass(each, MixingOp)})  # of one image
