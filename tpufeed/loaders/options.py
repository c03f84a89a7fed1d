"""Options of every loader, checked once."""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, TypedDict

import numpy as np

from tpufeed.dataset.partition import Remainder, World
from tpufeed.errors import OptionError
from tpufeed.images.protocols import Op
from tpufeed.loaders.world import WorldLike
from tpufeed.storage.store import parse_size

_LEAST = {"batch_size": 1, "processes": 0, "threads": 1, "prefetch": 1, "lanes": 1, "max_bad_records": 0}


class LoaderKeywords(TypedDict, total=False):
    """The keywords of every loader; `LoaderOptions` explains them."""

    batch_size: int
    ops: Sequence[Op] | None
    columns: Sequence[str] | None
    shuffle: bool
    seed: int
    remainder: Remainder
    world: WorldLike | None
    lanes: int | None
    processes: int | None
    threads: int | None
    prefetch: int | None
    repeat: bool
    max_bad_records: int
    timeout_seconds: float
    stage_dir: str | Path | None
    stage_bytes: str | int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderOptions:
    """Options that say how a split becomes batches.

    Attributes:
        batch_size: samples in a batch of one rank.
        ops: applied to each image, with other random numbers in every epoch; all must come out equal in size. None: the
            `final` ops of a cache, or none at all.
        columns: what a batch holds, by short names: image, label, sample (the id within the split), height, width,
            filename, text, or a feature's own name. By default ("image", "label"), or images alone where there are no
            labels. None: a dict of image, label and sample. Without image none is decoded, and no op is needed
            (but with `direct`).
        shuffle: False reads in the dataset's own order.
        seed: of order and ops.
        remainder: of a last batch that is not full on every rank: "drop" it, "pad" it (a bool mask comes last), or
            "repeat" samples.
        world: (rank, size); by default what the frameworks that are loaded say.
        lanes: see `dataset.order`; a multiple of the world's size.
        processes: worker processes that decode, so that neither they nor the training loop wait for the other's GIL; 0
            decodes in threads of this process. By default what the environment's TPUFEED_PROCESSES says, else one a
            core up to 4 cores, and then one for 4 cores. A `memory://` dataset, and ops whose class or function
            `__main__` defines, cannot leave this process.
        threads: that decode, in each process; by default all together one a core, of those that are this rank's.
        prefetch: batches that are prepared ahead, also of the next epoch; by default 2 a process and at least 4, of at
            most 4 GB.
        repeat: one iteration never ends: the next epoch follows the last one. `len` stays that of an epoch.
        max_bad_records: different records that may be damaged or undecodable and are skipped, each with a warning: its
            slot repeats a good sample of the batch, and a bool mask, that comes last, is False there. One more raises
            RecordError; with 0 the first one does.
        timeout_seconds: how long to wait for a batch before LoaderError says that a drive or an op hangs. Workers that
            hang are killed; a thread of `processes=0` cannot be, and keeps the program from ending.
        stage_dir: where verified copies of remote shards are kept for all processes of this host; by default what the
            environment's TPUFEED_STAGE_DIR says, else /dev/shm where that has room, else the user's cache folder.
        stage_bytes: what all copies there may take, as "64GB" or a number; by default half of what is free. 0 reads
            remote records by ranges only. A dataset that fits is remote for its first epoch only.
    """

    batch_size: int = 128
    ops: Sequence[Op] | None = None
    columns: Sequence[str] | Literal["default"] | None = "default"
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
            value = getattr(self, name)
            optional = name in ("processes", "threads", "prefetch", "lanes")
            if (value is None and optional) or (isinstance(value, int | np.integer) and value >= least):
                continue
            raise OptionError(f"{name} is a whole number, at least {least}, not {value!r}")
        for name in ("shuffle", "repeat"):
            check_bool(name, getattr(self, name))
        if not isinstance(self.timeout_seconds, int | float) or not self.timeout_seconds > 0:
            raise OptionError(f"timeout_seconds is a number above 0, not {self.timeout_seconds!r}")
        if not isinstance(self.seed, int | np.integer):
            raise OptionError(f"seed is a whole number, not {self.seed!r}")
        object.__setattr__(self, "seed", int(self.seed))  # numpy's overflow in the hash, and are no JSON
        if self.stage_bytes is not None and self.stage_bytes != 0:
            object.__setattr__(self, "stage_bytes", parse_size(self.stage_bytes))
        if self.remainder not in ("drop", "pad", "repeat"):
            raise OptionError(f"remainder is 'drop', 'pad' or 'repeat', not {self.remainder!r}")
        if isinstance(self.columns, str) and self.columns != "default":
            raise OptionError(f"columns is a list of names like ('image', 'label'), not {self.columns!r}")
        if self.columns is not None and not len(self.columns):
            raise OptionError("columns is empty; give names like ('image', 'label'), or None for a dict")


def check_bool(name: str, value: object) -> None:
    """Raises OptionError for what is neither True nor False: "no" would be taken for yes."""
    if not isinstance(value, bool | np.bool_):
        raise OptionError(f"{name} is True or False, not {value!r}")


# What torch's DataLoader and others call an option.
_NAMES_ELSEWHERE = {
    "num_workers": "processes",
    "workers": "processes",
    "num_threads": "threads",
    "prefetch_factor": "prefetch",
    "drop_last": "remainder",
    "transform": "ops",
    "timeout": "timeout_seconds",
}
OPTION_NAMES = tuple(field.name for field in fields(LoaderOptions))


def make_options(given: Mapping[str, Any], known: Sequence[str] = OPTION_NAMES) -> LoaderOptions:
    """The options that a user gave by keyword. Raises OptionError for one that is none of the `known`."""
    for name in given:
        if name not in known:
            alike = [_NAMES_ELSEWHERE[name]] if _NAMES_ELSEWHERE.get(name) in known else []
            alike = alike or difflib.get_close_matches(name, known, 1)
            hint = f"; did you mean {alike[0]}?" if alike else "."
            raise OptionError(f"there is no option {name!r}{hint} The options are {', '.join(known)}")
    return LoaderOptions(**given)
