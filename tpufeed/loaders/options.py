"""Options that all loaders share, checked once."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from tpufeed.dataset.partition import Remainder
from tpufeed.errors import OptionError
from tpufeed.images.protocols import Op
from tpufeed.loaders.world import WorldLike, to_world
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
LabelFormat = Literal["ids", "multi_hot"]
Numa = Literal["auto", "off"]
_VIEWS_FORM = "lists of ops, each for a crop of its own, like [[RandomResizedCrop(224)], ([RandomResizedCrop(96)], 8)]"
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
    numa: Numa = "auto"
    stage_dir: str | Path | None = None
    stage_bytes: str | int | None = None
    pad: Mapping[str, int] | None = None
    truncate: bool | Sequence[str] = False
    fill: Mapping[str, float | str] | None = None
    label_format: LabelFormat = "ids"
    min_visibility: float = 0.0
    views: Sequence[Any] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.ops, str) or not (self.ops is None or isinstance(self.ops, Iterable)):
            raise OptionError(f"ops is a list, like [RandomResizedCrop(size=224), HorizontalFlip()], not {self.ops!r}")
        if self.world is not None:
            to_world(self.world)
        for name, least in _LEAST.items():
            if getattr(self, name) is not None or name in ("batch_size", "max_bad_records"):
                check_count(name, getattr(self, name), least)
                object.__setattr__(self, name, int(getattr(self, name)))  # numpy's integers in a state are not JSON
        check_bool("shuffle", self.shuffle)
        object.__setattr__(self, "shuffle", bool(self.shuffle))
        check_bool("repeat", self.repeat)
        seconds: object = self.timeout_seconds
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds > 0:
            raise OptionError(f"timeout_seconds is a number above 0, not {self.timeout_seconds!r}")
        if not isinstance(self.seed, int | np.integer):
            raise OptionError(f"seed is a whole number, not {self.seed!r}")
        object.__setattr__(self, "seed", int(self.seed))  # numpy's overflow in the hash, too
        if self.stage_bytes is not None and self.stage_bytes != 0:
            object.__setattr__(self, "stage_bytes", parse_size(self.stage_bytes))
        if self.numa not in get_args(Numa):
            raise OptionError(f"numa is 'auto' or 'off', not {self.numa!r}")
        if self.remainder not in ("drop", "pad", "repeat"):
            raise OptionError(f"remainder is 'drop', 'pad' or 'repeat', not {self.remainder!r}")
        if isinstance(self.columns, str) and self.columns != "default":
            raise OptionError(f"columns is a list of names like ('image', 'label'), not {self.columns!r}")
        if self.columns is not None and not len(self.columns):
            raise OptionError("columns is empty; give names like ('image', 'label'), or None for a dict")
        self._check_form()

    def _check_form(self) -> None:
        """Check the options that say how columns are batched."""
        for name, value in (self.pad or {}).items():
            check_count(f"pad[{name!r}]", value)
        if isinstance(self.truncate, str):
            raise OptionError(f"truncate is True, or names of columns like ['boxes'], not {self.truncate!r}")
        if self.label_format not in get_args(LabelFormat):
            raise OptionError(f"label_format is 'ids' or 'multi_hot', not {self.label_format!r}")
        if isinstance(self.min_visibility, bool) or not 0 <= self.min_visibility <= 1:
            raise OptionError(f"min_visibility is a share from 0 to 1, not {self.min_visibility!r}")
        if self.views is not None and self.ops is not None:
            raise OptionError("give either ops, for one crop of an image, or views, which are lists of ops")
        views: Sequence[Any] = self.view_ops
        for view in views:
            if isinstance(view, str) or not isinstance(view, Sequence):
                raise OptionError(f"views are {_VIEWS_FORM}, not {self.views!r}")

    @property
    def view_ops(self) -> tuple[Sequence[Op], ...]:
        """The ops of each view: `(ops, 2)` are two; none where `views` was not given."""
        found: list[Sequence[Op]] = []
        for view in () if self.views is None else self.views:
            if isinstance(view, tuple) and len(view) == 2 and isinstance(view[1], int):
                check_count("the number of views", view[1])
                found += [view[0]] * view[1]
            else:
                found.append(view)
        if self.views is not None and not found:
            raise OptionError(f"views is empty; give {_VIEWS_FORM}")
        return tuple(found)


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
