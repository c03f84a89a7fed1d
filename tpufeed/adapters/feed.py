"""Base of all feeds: place, epochs, classes, statistics and end of a loader, whatever the framework."""

import weakref
from collections.abc import Mapping
from copy import copy
from typing import TYPE_CHECKING, Any, Protocol, Self

from tpufeed.display.summary import Summary
from tpufeed.errors import OptionError

if TYPE_CHECKING:
    from tpufeed.adapters.loader import Loader

ENDLESS = 1 << 62  # batches: for frameworks that need every iteration to end
REPLACED = "another iteration was begun, and a loader has one at a time; make a loader for each"
SUPERSEDED = (
    "set_epoch or load_state_dict was called in the middle of this epoch, which cannot continue; call them between two "
    "iterations"
)


class StatelessFeed(Summary):
    """Epochs of batches from a loader, without states: a user's own loader may keep none.

    Pickles and copies have their own loader, at the same place and without prefetched batches.

    Attributes:
        loader: has the place, the workers and the counts. All feeds of one loader share them.
    """

    loader: Any

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes, joined for a mixture: a model needs as many outputs. A label is an index into them.

        Records with another label raise RecordError. () if samples have no labels, or classes no names.
        """
        names: tuple[str, ...] = self.loader.class_names
        return names

    @property
    def batch_size(self) -> Any:
        """Samples per batch on one rank; None if a user's own loader does not say."""
        return self.loader.batch_size

    def __len__(self) -> int:
        """Return the number of batches of an epoch, which is the same on every rank."""
        return len(self.loader)

    def __getitem__(self, index: Any) -> Any:
        """Raise OptionError: a DataLoader, maybe a trainer's, asks for samples as if a loader were a dataset."""
        raise OptionError(
            f"a {type(self).__name__} gives batches and has no samples by number, so no DataLoader can be made of it: "
            "iterate it as it is. If a dataset is needed, give tpufeed.TFRecordImages; the Hugging Face Trainer takes "
            "this loader from its get_train_dataloader()"
        )

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration read `epoch` from its start. An iteration that is under way cannot continue.

        If that epoch comes next anyway, the place in it that a state has set is kept: training loops set each epoch
        before they iterate it, even one that they resume.
        """
        self.loader.set_epoch(epoch)

    def stats(self) -> Any:
        """Return what the loader has done so far, and how long its consumer waited."""
        return self.loader.stats()

    def close(self) -> None:
        """Stop the workers; any thread may call it. A feed that is iterated again starts new ones."""
        self.loader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _facts(self) -> Mapping[str, Any]:
        return self.loader._facts() if isinstance(self.loader, Summary) else {"loader": repr(self.loader)}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.loader!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "loader": copy(self.loader)}


class Feed(StatelessFeed):
    """Epochs of batches from a loader, in the form of one framework, or of numpy."""

    def state_dict(self) -> Any:
        """Return the place of the training loop as plain data. It counts batches handed out, not batches prefetched.

        Any feed of a loader with the same arguments can continue from it. It is empty if a user's own loader keeps no
        state.
        """
        return self.loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state` says. The number of ranks may be any that divides the state's lanes.

        Raises:
            OptionError: the state is of another dataset, split, seed, order or version, its lanes cannot be dealt to
                the ranks, or one of its numbers is impossible. The loader is unchanged then.
        """
        self.loader.load_state_dict(state)


class Iteration(Protocol):
    """An iteration that takes batches ahead of its loop."""

    def close(self, why: str = "") -> None:
        """End it, and tell its loop why."""


class Iterated:
    """A loader that feeds take batches from, one iteration at a time: the newest one leads."""

    _ahead_of_loop: "weakref.ref[Iteration] | None" = None  # weak, so that a dropped iteration ends itself
    _handed: Any = None  # place of its loop; None if no batch is taken ahead of it

    def end_iteration(self, why: str) -> None:
        """End the iteration that takes batches ahead of its loop, if there is one, and tell its loop why."""
        ahead, self._ahead_of_loop = self._ahead_of_loop, None
        iteration = None if ahead is None else ahead()
        if iteration is not None:
            iteration.close(why)

    @property
    def is_led(self) -> bool:
        """True while an iteration takes batches ahead of its loop, perhaps in a thread."""
        return self._ahead_of_loop is not None and self._ahead_of_loop() is not None

    def hand_out(self, place: Any) -> None:
        """Move the training loop's place past a batch: `place` is what `taken` returned for that batch."""
        self._handed = place


def loader_of(feed: Any) -> "Loader | None":
    """Return the tpufeed loader of a feed, or a loader itself; None for a user's own loader."""
    loader = feed.loader if isinstance(feed, StatelessFeed) and not isinstance(feed, Iterated) else feed
    return loader if isinstance(loader, Feed) else None  # type: ignore[return-value]  # the one feed without another
