"""Partition of an epoch among ranks, in batches of which every rank has the same number."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from tpufeed.dataset.order import Ints
from tpufeed.errors import OptionError
from tpufeed.options import Count, check_fields

Remainder = Literal["drop", "pad", "repeat"]


@dataclass(frozen=True, slots=True)
class World:
    """Rank `rank` of `size` processes that share an epoch.

    Attributes:
        rank: which of them, from 0.
        size: how many they are.

    Raises:
        OptionError: the rank is not in [0, size).
    """

    rank: int = 0
    size: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.size:
            raise OptionError(f"a rank is in [0, {self.size}) for a world of {self.size}, not {self.rank}")


@dataclass(frozen=True, slots=True)
class Share:
    """A rank's batches of an epoch of `records` samples that starts at global position `start`.

    Batch t of the world covers the positions `[start + t*W*B, start + (t+1)*W*B)`; a rank has those of them that are
    its own modulo W. What does not fill a last batch on every rank is dropped, padded or repeated.
    """

    records: int
    batch_size: Count
    world: World
    remainder: Remainder = "drop"
    start: int = 0

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def global_batch(self) -> int:
        """Samples in a batch of the whole world."""
        return self.batch_size * self.world.size

    def __len__(self) -> int:
        """Batches of each rank: the same number for all, without asking anyone."""
        left = max(0, self.records - self.start)
        return left // self.global_batch if self.remainder == "drop" else -(-left // self.global_batch)

    def positions(self, batch: int) -> tuple[Ints, npt.NDArray[np.bool_]]:
        """`(global positions, mask)` of batch number `batch`; the mask is False where a slot is padding.

        Positions of the last batch may lie past the end of the epoch. What comes there, padding under "pad", is the
        caller's to say: in an epoch of one dataset its samples from the start, in a mixture those of the next epoch.
        """
        first = self.start + batch * self.global_batch + (self.world.rank - self.start) % self.world.size
        positions = first + self.world.size * np.arange(self.batch_size, dtype=np.int64)
        inside = positions < self.records
        return positions, inside if self.remainder == "pad" else np.ones_like(inside)


def default_lanes(world: World, hosts: int = 1) -> int:
    """16 lanes a host and at least 2 a rank; the world's size times a power of two, so that a rank's lanes adjoin."""
    lanes_of_rank = max(2, -(-16 * hosts // world.size))
    return world.size << (lanes_of_rank - 1).bit_length()
