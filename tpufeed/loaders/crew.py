"""A crew fills batches: threads, or worker processes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from tpufeed.dataset.order import Places

Array: TypeAlias = npt.NDArray[Any]
Mask: TypeAlias = npt.NDArray[np.bool_]

CLOSED = "the loader was closed, or its last batch failed; iterate it again for the next epoch, or load a state"
CLOSED_MEANWHILE = "the loader was closed while a batch was waited for"

# For `Stage.fetch`: shards of variants, the first ones due first.
Due: TypeAlias = Sequence[tuple[int, Sequence[int]]]


class Overdue(Exception):  # between a crew and its iterator
    """A batch is not there after the time that it has."""


class Request(NamedTuple):
    """A batch to be filled: where its samples lie in an epoch; the mask is False where a slot is padding."""

    epoch: int
    places: Places
    mask: Mask


@dataclass(frozen=True, slots=True)
class BadRecord:
    """A record that was skipped: `where` names it for good, `message` says what is wrong."""

    where: tuple[int, int, int]  # variant, shard, record
    message: str


@dataclass(frozen=True, slots=True)
class Filled:
    """A batch, and what it took.

    Attributes:
        arrays: its columns by name, those that nobody asked for among them.
        bad: records that were skipped.
        read_seconds: of all threads together, reading and verifying records; of raw images copying them, too.
        decode_seconds: likewise, decoding and ops.
        read_bytes: of records.
    """

    arrays: dict[str, Array]
    bad: tuple[BadRecord, ...]
    read_seconds: float
    decode_seconds: float
    read_bytes: int


class Pending(Protocol):
    """A batch that is being filled."""

    def done(self) -> bool:
        """Return true where the batch is there, or has failed."""

    def wait(self, timeout_seconds: float) -> Filled:
        """The batch.

        Raises:
            Overdue: it is not there after so long.
            LoaderError: the crew was closed, or a worker process died.
            TpufeedError: what the batch failed with.
        """

    def cancel(self) -> None:
        """It is not wanted any more."""


class Crew(Protocol):
    """Fills batches, several at a time. One thread submits and waits; closing is safe from any."""

    @property
    def closed(self) -> bool:
        """True where it fills nothing any more: also in a fork of its process."""

    def submit(self, request: Request) -> Pending:
        """Begin a batch. Raises LoaderError where the crew was closed."""

    def fetch(self, due: Due) -> None:
        """Say which shards are due, so that they are staged. Returns at once."""

    def close(self, wait: bool = True) -> None:
        """Stop. What is pending fails. Processes that hang are killed; threads are not waited for with `wait=False`."""
