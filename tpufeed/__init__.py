"""tpufeed: raw images in, a fed TPU training step out.

A lazy facade: `import tpufeed` loads neither numpy nor a framework; each name is imported when it is first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from tpufeed import cache, errors, images
    from tpufeed.dataset.adopt import adopt
    from tpufeed.dataset.partition import World
    from tpufeed.dataset.reader import open_dataset
    from tpufeed.dataset.verify import verify
    from tpufeed.loaders.batchsize import batch_size
    from tpufeed.loaders.devicefloat import to_device_float
    from tpufeed.loaders.jaxarray import jax_loader
    from tpufeed.loaders.lanesampler import LaneSampler
    from tpufeed.loaders.options import LoaderOptions
    from tpufeed.loaders.stream import numpy_loader
    from tpufeed.loaders.tfdata import tf_dataset
    from tpufeed.loaders.torchdevice import device_prefetch
    from tpufeed.loaders.torchhost import TFRecordImages
    from tpufeed.loaders.torchloader import torch_loader
    from tpufeed.loaders.torchpixels import random_flip, random_shift
    from tpufeed.loaders.torchxla import xla_loader
    from tpufeed.profiling.clock import StepClock
    from tpufeed.sharding.build import shard

__all__ = [
    "LaneSampler",
    "LoaderOptions",
    "StepClock",
    "TFRecordImages",
    "World",
    "__version__",
    "adopt",
    "batch_size",
    "cache",
    "device_prefetch",
    "errors",
    "images",
    "jax_loader",
    "numpy_loader",
    "open_dataset",
    "random_flip",
    "random_shift",
    "shard",
    "tf_dataset",
    "to_device_float",
    "torch_loader",
    "verify",
    "xla_loader",
]

_ROOMS = ("cache", "errors", "images")
_ROOM_OF_NAME = {
    "LaneSampler": "loaders.lanesampler",
    "LoaderOptions": "loaders.options",
    "StepClock": "profiling.clock",
    "TFRecordImages": "loaders.torchhost",
    "World": "dataset.partition",
    "adopt": "dataset.adopt",
    "batch_size": "loaders.batchsize",
    "device_prefetch": "loaders.torchdevice",
    "jax_loader": "loaders.jaxarray",
    "numpy_loader": "loaders.stream",
    "open_dataset": "dataset.reader",
    "random_flip": "loaders.torchpixels",
    "random_shift": "loaders.torchpixels",
    "shard": "sharding.build",
    "tf_dataset": "loaders.tfdata",
    "to_device_float": "loaders.devicefloat",
    "torch_loader": "loaders.torchloader",
    "verify": "dataset.verify",
    "xla_loader": "loaders.torchxla",
}


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return importlib.import_module(f"tpufeed.{name}")
    if name in _ROOM_OF_NAME:
        value = getattr(importlib.import_module(f"tpufeed.{_ROOM_OF_NAME[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'tpufeed' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
