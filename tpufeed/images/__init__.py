"""Pixels: decoding, resizing, encoding and the augmentation ops. No I/O.

The ops are imported when they are first used: whoever only stores images does without them.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(importlib.import_module("tpufeed.images.ops"), name)
    raise AttributeError(f"module 'tpufeed.images' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
