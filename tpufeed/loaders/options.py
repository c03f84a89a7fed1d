"""Options that all loaders share, checked once."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from tpufeed.dataset.partition import Remainder, World
from tpufeed.errors import OptionError
from tpufeed.images.protocols import Op
from tpufeed.loaders.world import WorldLike
from tpufeed.storage.store import parse_size

# Names of torch's DataLoader, of others and of version 0.1, and the option to give instead.
RENAMED = {
    "num_workers": "processes",
    "workers": "processes",
    "num_threads": "threads",
    "prefetch_factor": "prefetch",
    "drop_last": "remainder",
    "transform": "ops",
    "timeout": "timeout_seconds",
    "host_prefetch": "prefetch",
}
_LEAST = {"batch_size": 1, "processes": 0, "threads": 1, "prefetch": 1, "lanes": 1, "max_bad_records": 0}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderOptions:
    """Options of every loader, checked; `numpy_loader` explains them."""

    batch_size: int = 128
    ops: Sequence[Op] | None = None
    columns: Sequence[str] | None = "default"
    shuffle: bool = True
    seed: int = 0
    remainder: Remainder = "drop"
    world: WorldLike | None = None
    lanes: int | None = None
    processes: int | None = None
    threads: int | None = None
    prefetch: int | None = None
    repeat: bool = False
    max_bad_records: int = 0
    timeout_seconds: float = 600.0
    stage_dir: str | Path | None = None
    stage_bytes: str | int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.ops, str) or not (self.ops is None or isinstance(self.ops, Iterable)):
            raise OptionError(f"ops is a list, like [RandomResizedCrop(size=224), HorizontalFlip()], not {self.ops!r}")
        if not (self.world is None or isinstance(self.world, World | tuple | list)):
            raise OptionError(f"world is (rank, size), like (0, 8), not {self.world!r}")
        for name, least in _LEAST.items():
            if getattr(self, name) is not None or name in ("batch_size", "max_bad_records"):
                check_count(name, getattr(self, name), least)
        check_bool("shuffle", self.shuffle)
        check_bool("repeat", self.repeat)
        if not isinstance(self.timeout_seconds, int | float) or not self.timeout_seconds > 0:
            raise OptionError(f"timeout_seconds is a number above 0, not {self.timeout_seconds!r}")
        if not isinstance(self.seed, int | np.integer):
            raise OptionError(f"seed is a whole number, not {self.seed!r}")
        object.__setattr__(self, "seed", int(self.seed))  # numpy's integers overflow in the hash and are not JSON
        if self.stage_bytes is not None and self.stage_bytes != 0:
            object.__setattr__(self, "stage_bytes", parse_size(self.stage_bytes))
        if self.remainder not in ("drop", "pad", "repeat"):
            raise OptionError(f"remainder is 'drop', 'pad' or 'repeat', not {self.remainder!r}")
        if isinstance(self.columns, str) and self.columns != "default":
            raise OptionError(f"columns is a list of names like ('image', 'label'), not {self.columns!r}")
        if self.columns is not None and not len(self.columns):
            raise OptionError("columns is empty; give names like ('image', 'label'), or None for a dict")


def take_options(arguments: Mapping[str, Any]) -> LoaderOptions:
    """Return the shared options among the arguments of a loader, given as its `locals()`. Raises OptionError."""
    return LoaderOptions(**{field.name: arguments[field.name] for field in fields(LoaderOptions)})


def check_bool(name: str, value: object) -> None:
    """Raises OptionError for a value that is not True or False: "no" would be taken for yes."""
    if not isinstance(value, bool | np.bool_):
        raise OptionError(f"{name} is True or False, not {value!r}")


def check_count(name: str, value: object, least: int = 1) -> None:
    """Raises OptionError for a value that is not a whole number, at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise OptionError(f"{name} is a whole number, at least {least}, not {value!r}")
