"""Pixels: decoding, resizing, encoding and the augmentation ops. No I/O."""

from tpufeed.images.ops import CenterCrop, HorizontalFlip, RandomResizedCrop, Resize

__all__ = ["CenterCrop", "HorizontalFlip", "RandomResizedCrop", "Resize"]
