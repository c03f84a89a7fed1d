"""tpufeed: raw images in, a fed TPU training step out.

`import tpufeed` loads neither numpy nor a framework: each name is imported when it is first used.
"""

import importlib
import sys
from typing import TYPE_CHECKING, Any

from tpufeed._version import __version__

# pip refuses an older Python, but nothing else keeps one from importing a checkout.
if sys.version_info < (3, 11):  # noqa: UP036
    raise ImportError(
        f"tpufeed needs Python 3.11 or later; this is {sys.version.split()[0]}. "
        "Get another beside it, by `uv venv --seed --python 3.12 ~/env` or as docs/install.md says"
    )

# Records and batches are read from memory without swapping bytes.
if sys.byteorder != "little":
    raise ImportError(f"tpufeed reads numbers as little-endian machines store them; this one is {sys.byteorder}-endian")

if TYPE_CHECKING:
    from tpufeed import cache, errors, images
    from tpufeed.adapters.grain.source import grain_source
    from tpufeed.adapters.keras.dataset import keras_state
    from tpufeed.adapters.loader import Loader, device_loader
    from tpufeed.adapters.metrics_logger import MetricsLogger
    from tpufeed.adapters.pixels import to_device_float
    from tpufeed.adapters.torch.host import TFRecordImages
    from tpufeed.adapters.torch.lanesampler import LaneSampler
    from tpufeed.adoption.adopt import adopt
    from tpufeed.builds.compact import compact
    from tpufeed.builds.prune import prune
    from tpufeed.dataset.order import World
    from tpufeed.dataset.reader import open_dataset
    from tpufeed.dataset.verify import verify
    from tpufeed.images.policy import Images
    from tpufeed.measure.clock import StepClock
    from tpufeed.sharding.append import append
    from tpufeed.sharding.build import shard
    from tpufeed.sources.options import Boxes
    from tpufeed.stream.mixture import Mixture

__all__ = [
    "Boxes",
    "Images",
    "LaneSampler",
    "Loader",
    "MetricsLogger",
    "Mixture",
    "StepClock",
    "TFRecordImages",
    "World",
    "__version__",
    "adopt",
    "append",
    "cache",
    "compact",
    "device_loader",
    "errors",
    "grain_source",
    "images",
    "keras_state",
    "open_dataset",
    "prune",
    "shard",
    "to_device_float",
    "verify",
]

_ROOMS = ("cache", "errors", "images")
_ROOM_OF_NAME = {
    "Boxes": "sources.options",
    "Images": "images.policy",
    "LaneSampler": "adapters.torch.lanesampler",
    "Loader": "adapters.loader",
    "MetricsLogger": "adapters.metrics_logger",
    "Mixture": "stream.mixture",
    "StepClock": "measure.clock",
    "TFRecordImages": "adapters.torch.host",
    "World": "dataset.order",
    "adopt": "adoption.adopt",
    "append": "sharding.append",
    "compact": "builds.compact",
    "device_loader": "adapters.loader",
    "grain_source": "adapters.grain.source",
    "keras_state": "adapters.keras.dataset",
    "open_dataset": "dataset.reader",
    "prune": "builds.prune",
    "shard": "sharding.build",
    "to_device_float": "adapters.pixels",
    "verify": "dataset.verify",
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
