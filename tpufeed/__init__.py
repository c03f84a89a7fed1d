"""tpufeed: raw images in, a fed TPU training step out.

`import tpufeed` loads neither numpy nor a framework: each name is imported when it is first used.
"""

import importlib
import sys
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

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
    from tpufeed.build.compact import compact
    from tpufeed.build.prune import prune
    from tpufeed.dataset.adopt import adopt
    from tpufeed.dataset.order import World
    from tpufeed.dataset.reader import open_dataset
    from tpufeed.dataset.verify import verify
    from tpufeed.loaders.foreign import device_loader
    from tpufeed.loaders.grain.source import grain_source
    from tpufeed.loaders.keras.dataset import keras_state
    from tpufeed.loaders.loader import Loader
    from tpufeed.loaders.metrics_logger import MetricsLogger
    from tpufeed.loaders.mixture import Mixture
    from tpufeed.loaders.pixels import to_device_float
    from tpufeed.loaders.torch.host import TFRecordImages
    from tpufeed.loaders.torch.lanesampler import LaneSampler
    from tpufeed.loaders.world import count_cores
    from tpufeed.measure.clock import StepClock
    from tpufeed.sharding.append import append
    from tpufeed.sharding.build import shard

__all__ = [
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
    "count_cores",
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
    "LaneSampler": "loaders.torch.lanesampler",
    "Loader": "loaders.loader",
    "MetricsLogger": "loaders.metrics_logger",
    "Mixture": "loaders.mixture",
    "StepClock": "measure.clock",
    "TFRecordImages": "loaders.torch.host",
    "World": "dataset.order",
    "adopt": "dataset.adopt",
    "append": "sharding.append",
    "compact": "build.compact",
    "count_cores": "loaders.world",
    "device_loader": "loaders.foreign",
    "grain_source": "loaders.grain.source",
    "keras_state": "loaders.keras.dataset",
    "open_dataset": "dataset.reader",
    "prune": "build.prune",
    "shard": "sharding.build",
    "to_device_float": "loaders.pixels",
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
