"""Pixels: decoding, resizing, encoding and the augmentation ops. No I/O. An op is listed here and nowhere else."""

from tpufeed.images.affine import HorizontalFlip, Rotate, VerticalFlip
from tpufeed.images.color import ColorJitter, GaussianBlur, Grayscale
from tpufeed.images.custom import Custom
from tpufeed.images.erasing import RandomErasing
from tpufeed.images.randaugment import RandAugment
from tpufeed.images.windows import CenterCrop, RandomCrop, RandomResizedCrop, Resize

__all__ = [
    "CenterCrop",
    "ColorJitter",
    "Custom",
    "GaussianBlur",
    "Grayscale",
    "HorizontalFlip",
    "RandAugment",
    "RandomCrop",
    "RandomErasing",
    "RandomResizedCrop",
    "Resize",
    "Rotate",
    "VerticalFlip",
]
