"""Pixels: decoding, resizing, encoding and the augmentation ops. No I/O.

Ops are in `images/ops.py`. It is imported when the first op is asked for: a worker that only stores images never
imports it.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tpufeed.images.mixing import CutMix as CutMix
    from tpufeed.images.mixing import MixUp as MixUp
    from tpufeed.images.ops import *  # noqa: F403  # its `__all__`: there is only one list

_OF_BATCHES = ("CutMix", "MixUp")  # of several images


def __getattr__(name: str) -> Any:
    if name in _OF_BATCHES:
        return getattr(importlib.import_module("tpufeed.images.mixing"), name)
    ops = importlib.import_module("tpufeed.images.ops")
    if name == "__all__" or name in ops.__all__:
        return getattr(ops, name)
    raise AttributeError(f"module 'tpufeed.images' has no attribute {name!r}")


def __dir__() -> list[str]:
    names: list[str] = importlib.import_module("tpufeed.images.ops").__all__
    return [*names, *_OF_BATCHES]
