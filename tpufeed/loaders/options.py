"""What every loader can be told, checked once."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypedDict

import numpy as np

from tpufeed.dataset.partition import Remainder
from tpufeed.errors import OptionError
from tpufeed.images.ops import Op
from tpufeed.loaders.world import WorldLike
from tpufeed.storage.sizes import parse_size


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
    threads: int | None
    prefetch: int
    stage_dir: str | Path | None
    stage_bytes: str | int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderOptions:
    """How a split becomes batches.

    Attributes:
        batch_size: samples in a batch of one rank.
        ops: applied to each image, with other random numbers in every epoch; all must come out equal in size. None: the
            `final` ops of a cache, or none at all.
        columns: what a batch holds, by short names: image, label, sample (the id within the split), height, width,
            filename, text, or a feature's own name. By default ("image", "label"), or images alone where there are no
            labels. None: a dict of image, label and sample.
        shuffle: False reads in the dataset's own order.
        seed: of order and ops.
        remainder: of a last batch that is not full on every rank: "drop" it, "pad" it (a bool mask comes last), or
            "repeat" samples.
        world: (rank, size); by default what the framework says.
        lanes: see `dataset.order`; a multiple of the world's size.
        threads: that decode; by default one a core.
        prefetch: batches that are prepared ahead.
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
    threads: int | None = None
    prefetch: int = 4
    stage_dir: str | Path | None = None
    stage_bytes: str | int | None = None

    def __post_init__(self) -> None:
        optional = {"threads": self.threads, "lanes": self.lanes}
        counts = {"batch_size": self.batch_size, "prefetch": self.prefetch}
        counts |= {name: value for name, value in optional.items() if value is not None}
        for name, value in counts.items():
            if not isinstance(value, int | np.integer) or value < 1:
                raise OptionError(f"{name} is a whole number, at least 1, not {value!r}")
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
