"""Base of all feeds: place, epochs, classes, statistics and end of a loader, whatever the framework."""

from collections.abc import Mapping
from copy import copy
from typing import Any, Self

from tpufeed.adapters.foreign import ForeignStream
from tpufeed.display.summary import Summary
from tpufeed.errors import OptionError
from tpufeed.stream.host import HostStream

ENDLESS = 1 << 62  # batches: for frameworks that need every iteration to end


class StatelessFeed(Summary):
    """Epochs of batches from a loader, without states: a user's own loader may keep none.

    Pickles and copies have their own loader, at the same place and without prefetched batches.

    Attributes:
        stream: has the place, the workers and the counts. All feeds of one loader share them.
    """

    stream: HostStream | ForeignStream

    def __init__(self, stream: HostStream | ForeignStream) -> None:
        self.stream = stream

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes, joined for a mixture: a model needs as many outputs. A label is an index into them.

        Records with another label raise RecordError. () if samples have no labels, or classes no names.
        """
        return self.stream.class_names

    @property
    def batch_size(self) -> int | None:
        """Samples per batch on one rank. None if a user's own loader does not say."""
        return self.stream.batch_size

    def __len__(self) -> int:
        """Return the number of batches of an epoch, which is the same on every rank."""
        return len(self.stream)

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
        self.stream.set_epoch(epoch)

    def stats(self) -> Any:
        """Return what the loader has done so far, and how long its consumer waited."""
        return self.stream.stats()

    def close(self) -> None:
        """Stop the workers. Any thread may call it. A feed that is iterated again starts new ones."""
        self.stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _facts(self) -> Mapping[str, Any]:
        return self.stream._facts()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.stream!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "stream": copy(self.stream)}


class Feed(StatelessFeed):
    """Epochs of batches from a loader, in the form of one framework, or of numpy."""

    def state_dict(self) -> Any:
        """Return the place of the training loop as plain data. It counts batches handed out, not batches prefetched.

        Any feed of a loader with the same arguments can continue from it. It is empty if a user's own loader keeps no
        state.
        """
        return self.stream.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state` says. The number of ranks may be any that divides the state's lanes.

        Raises:
            OptionError: the state is of another dataset, split, seed, order or version, its lanes cannot be dealt to
                the ranks, or one of its numbers is impossible. The loader is unchanged then.
        """
        self.stream.load_state_dict(state)


def stream_of(feed: Any) -> HostStream | None:
    """Return the stream of a loader or feed of tpufeed. None for anything else, and for a feed of a user's loader."""
    stream = feed.stream if isinstance(feed, StatelessFeed) else feed
    return stream if isinstance(stream, HostStream) else None
