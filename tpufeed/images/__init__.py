"""Pixels: decoding, resizing, encoding and the augmentation ops. No I/O.

Ops are in `images/ops/`, which is imported when the first op is asked for: a worker that only stores images never
imports it.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tpufeed.images.ops import *  # noqa: F403  # so that there is only one list


def __getattr__(name: str) -> Any:
    ops = importlib.import_module("tpufeed.images.ops")
    if name == "__all__":
        return [*ops.EVERY]
    if name in ops.EVERY:
        return ops.EVERY[name]
    raise AttributeError(f"module 'tpufeed.images' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*importlib.import_module("tpufeed.images.ops").EVERY]
