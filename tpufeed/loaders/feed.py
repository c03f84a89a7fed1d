"""The base of all feeds: a loader's place, epochs, classes, statistics and end, whatever the framework."""

import weakref
from collections.abc import Mapping
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeAlias

from tpufeed.dataset.reader import Dataset
from tpufeed.loaders.mixture import Mixture

if TYPE_CHECKING:
    from tpufeed.loaders.loader import Loader

DatasetLike: TypeAlias = str | Path | Dataset | Mixture

ENDLESS = 1 << 62  # batches, for frameworks that take no iteration without an end
REPLACED = "another iteration was begun, and a loader has one at a time; make a loader for each"
SUPERSEDED = (
    "set_epoch or load_state_dict was called in the middle of this epoch, which cannot go on; call them between two "
    "iterations"
)


class StatelessFeed:
    """Epochs of batches from a loader, without states: a user's own loader may keep none.

    Pickles and copies are feeds of a loader of their own, at the same place and without what is prefetched.

    Attributes:
        loader: has the place, the workers and the counts. All feeds of one loader share them.
    """

    loader: Any

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes; those of a mixture are joined. A label is a place among them."""
        names: tuple[str, ...] = self.loader.class_names
        return names

    @property
    def batch_size(self) -> Any:
        """Samples in a batch of one rank; None if a user's own loader does not say."""
        return self.loader.batch_size

    def __len__(self) -> int:
        """Return the batches of an epoch, the same number on every rank."""
        return len(self.loader)

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration epoch number `epoch`, from its start. One that is under way cannot continue.

        If that epoch is next anyway, a loaded state's place in it stays: training loops name each epoch before they
        iterate it, also one that they continue.
        """
        self.loader.set_epoch(epoch)

    def stats(self) -> Any:
        """Return what the loader has done so far, and what its consumer waited for."""
        return self.loader.stats()

    def close(self) -> None:
        """Stop the workers, from any thread. A feed that is iterated again starts new ones."""
        self.loader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.loader!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "loader": copy(self.loader)}


class Feed(StatelessFeed):
    """Epochs of batches from a loader, in the form of one framework, or of numpy."""

    def state_dict(self) -> Any:
        """Return the place of the training loop: what it has been handed, not what is prefetched. Plain data.

        Any feed of any loader made alike continues from it. It is empty if a user's own loader keeps no state.
        """
        return self.loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state` says, also with another world size, if its lanes can be dealt to that.

        Raises:
            OptionError: the state is of another dataset, split, seed, order or version, its lanes cannot be dealt, or
                one of its numbers cannot be. The loader is as it was before.
        """
        self.loader.load_state_dict(state)


class Iteration(Protocol):
    """An iteration that takes batches ahead of its loop."""

    def close(self, why: str = "") -> None:
        """End it; its loop is told why."""


class Iterated:
    """A loader that feeds take batches from, one iteration at a time: the newest leads."""

    _ahead_of_loop: "weakref.ref[Iteration] | None" = None  # weak, so that a dropped iteration ends itself
    _handed: Any = None  # place of its loop; None if nothing is taken ahead of it

    def end_iteration(self, why: str) -> None:
        """End the iteration that takes batches ahead of its loop, if there is one; its loop is told why."""
        ahead, self._ahead_of_loop = self._ahead_of_loop, None
        iteration = None if ahead is None else ahead()
        if iteration is not None:
            iteration.close(why)

    @property
    def is_led(self) -> bool:
        """True while an iteration takes batches ahead of its loop, whose thread may be at work."""
        return self._ahead_of_loop is not None and self._ahead_of_loop() is not None

    def hand_out(self, place: Any) -> None:
        """Move the place of the training loop behind a batch that was taken: `place` is what `taken` returned then."""
        self._handed = place


def loader_of(feed: Any) -> "Loader | None":
    """Return the tpufeed loader behind a feed, or a loader itself; None for a user's own loader."""
    loader = feed.loader if isinstance(feed, StatelessFeed) and not isinstance(feed, Iterated) else feed
    return loader if isinstance(loader, Feed) else None  # type: ignore[return-value]  # the one feed without another
