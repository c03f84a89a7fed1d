"""Pixels: decoding, resizing, encoding and the augmentation ops. No I/O."""

from tpufeed.images.ops import (
    CenterCrop,
    ColorJitter,
    Custom,
    GaussianBlur,
    Grayscale,
    HorizontalFlip,
    RandAugment,
    RandomCrop,
    RandomErasing,
    RandomResizedCrop,
    Resize,
    Rotate,
    VerticalFlip,
)

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
