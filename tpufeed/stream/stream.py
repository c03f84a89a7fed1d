"""What a feed takes batches from: tpufeed's own stream, or a user's loader. It has one iteration at a time."""

import weakref
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Protocol

from tpufeed.display.summary import Summary

REPLACED = "another iteration was begun, and a loader has one at a time; make a loader for each"
SUPERSEDED = (
    "set_epoch or load_state_dict was called in the middle of this epoch, which cannot continue; call them between two "
    "iterations"
)


class Iteration(Protocol):
    """An iteration that takes batches ahead of its loop."""

    def close(self, why: str = "") -> None:
        """End it, and tell its loop why."""


class Stream(Summary, ABC):
    """Epochs of batches on the host, with their place, classes and counts. All feeds of a stream share them.

    The newest iteration leads. `Feed` explains what each method returns.
    """

    _ahead_of_loop: "weakref.ref[Iteration] | None" = None  # weak, so that a dropped iteration ends itself
    _handed: Any = None  # place of its loop; None if no batch is taken ahead of it

    @property
    @abstractmethod
    def class_names(self) -> tuple[str, ...]: ...

    @property
    @abstractmethod
    def batch_size(self) -> int | None: ...

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def set_epoch(self, epoch: int) -> None: ...

    @abstractmethod
    def state_dict(self) -> Any: ...

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...

    @abstractmethod
    def stats(self) -> Any: ...

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    def lead(self, iteration: Iteration) -> None:
        """Make an iteration that takes batches ahead of its loop the newest, and end earlier ones."""

    @abstractmethod
    def taken(self) -> Any:
        """Return the place after the batch that was taken last, for a later `hand_out`."""

    def hand_out(self, place: Any) -> None:
        """Move the training loop's place past a batch: `place` is what `taken` returned for that batch."""
        self._handed = place

    @property
    def is_led(self) -> bool:
        """True while an iteration takes batches ahead of its loop, perhaps in a thread."""
        return self._ahead_of_loop is not None and self._ahead_of_loop() is not None

    def end_iteration(self, why: str) -> None:
        """End the iteration that takes batches ahead of its loop, if there is one, and tell its loop why."""
        ahead, self._ahead_of_loop = self._ahead_of_loop, None
        iteration = None if ahead is None else ahead()
        if iteration is not None:
            iteration.close(why)
