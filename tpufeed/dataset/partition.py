"""Partition of an epoch among ranks, in batches of which every rank has the same number."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from tpufeed.dataset.order import Ints
from tpufeed.errors import OptionError

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
    """A rank's batches of an epoch of `records` samples, from global position `start` on.

    Batch t of the world covers the positions `[start + t*W*B, start + (t+1)*W*B)`; a rank has those of them that are
    its own modulo W. What does not fill a last batch on every rank is dropped, padded or repeated.

    Attributes:
        wraps: True fills a last batch with the epoch's first samples, as in a dataset. False fills it with the samples
            that follow, with which the next epoch does not begin again, as in a mixture.
    """

    records: int
    batch_size: int
    world: World
    remainder: Remainder = "drop"
    start: int = 0
    wraps: bool = False

    @property
    def global_batch(self) -> int:
        """Samples in a batch of the whole world."""
        return self.batch_size * self.world.size

    def __len__(self) -> int:
        """Batches of each rank: the same number for all, without asking anyone."""
        left = max(0, self.records - self.start)
        return left // self.global_batch if self.remainder == "drop" else -(-left // self.global_batch)

    @property
    def end(self) -> int:
        """Samples of the epoch up to the end of its last batch."""
        return self.samples_after(len(self))

    def samples_after(self, batches: int) -> int:
        """Return how many samples of the epoch the whole world has had after `batches` batches from `start` on."""
        samples = self.start + batches * self.global_batch
        return min(samples, self.records) if self.wraps or self.remainder == "pad" else samples

    def positions(self, batch: int) -> tuple[Ints, npt.NDArray[np.bool_]]:
        """Return `(global positions, mask)` of batch number `batch`; the mask is False where a slot is padding.

        Without `wraps` positions of the last batch may lie past the end of the epoch, also those of padding.
        """
        first = self.start + batch * self.global_batch + (self.world.rank - self.start) % self.world.size
        positions = first + self.world.size * np.arange(self.batch_size, dtype=np.int64)
        inside = positions < self.records
        mask = inside if self.remainder == "pad" else np.ones_like(inside)
        return positions % self.records if self.wraps else positions, mask


def default_lanes(world: World, hosts: int = 1) -> int:
    """16 lanes a host and at least 2 a rank; the world's size times a power of two, so that a rank's lanes adjoin."""
    lanes_of_rank = max(2, -(-16 * hosts // world.size))
    return world.size << (lanes_of_rank - 1).bit_length()


def check_lanes(lanes: int, world: World, of_state: bool = False) -> None:
    """Raise OptionError, with a proposal, if lanes cannot be dealt to the ranks.

    Args:
        lanes: as they were asked for.
        world: the ranks.
        of_state: the lanes are those of a state that is loaded, which no option changes.
    """
    if lanes and lanes % world.size == 0:
        return
    if of_state:
        whose, proposal = "the state's ", f"go on with a number of ranks that divides {lanes}"
    else:
        whose, proposal = "", f"give lanes={default_lanes(world)}, or another multiple of the ranks"
    raise OptionError(f"{whose}{lanes} lanes cannot be dealt to {world.size} ranks; {proposal}")
