"""The base of loaders that put batches on a device: it knows where the training loop is, whatever is prefetched."""

import weakref
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass
from typing import Any, Protocol, Self

from tpufeed.errors import OptionError


class Iteration(Protocol):
    """The batches of one `for` loop."""

    def close(self, why: str = "") -> None:
        """End it. Asking for more raises LoaderError(`why`)."""


@dataclass(slots=True)
class Crossing:
    """Counts what the way to a device took; each field has but one thread that adds to it."""

    batches: int = 0
    wait_seconds: float = 0.0
    transfer_seconds: float = 0.0
    transfer_bytes: int = 0


@dataclass(frozen=True, slots=True)
class DeviceStats:
    """Counts of a loader since it was made; take the difference of two for a part of a run.

    Attributes:
        batches: handed out.
        wait_seconds: of the training loop for batches; torch_xla's tracing and compiling within `next` is left out.
        transfer_seconds: of host time that sending batches took, in a thread of its own.
        transfer_bytes: sent by this process.
        host: the host loader's `stats()`, whose waits are those of that thread; None where it has none.
    """

    batches: int
    wait_seconds: float
    transfer_seconds: float
    transfer_bytes: int
    host: Any


class DeviceLoader:
    """A loader of a source's batches, on a device ahead of need. One thread at a time iterates.

    The source is ahead of the training loop by what is prefetched, with `repeat` maybe by an epoch or more. So the
    place of the training loop is the state that the source had when it gave the batch that was handed out last: states,
    copies and the next iteration start there.

    Args:
        source: the host loader.
    """

    def __init__(self, source: Any) -> None:
        self.source = source
        self.crossing = Crossing()
        self._handed: Mapping[str, Any] | None = None
        self._open: weakref.ref[Iteration] | None = None  # weakly, so that one that is dropped ends itself
        self._resuming = False

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration epoch number `epoch`, from its start; an iteration that is open ends.

        Straight after `load_state_dict` the rest of that state's epoch stays the rest: training loops name each epoch
        before they iterate it, also the one that they go on with. Of a source that does not number its epochs, dataset
        and sampler are told.
        """
        if self._resuming and self.source.state_dict().get("epoch") == epoch:
            return
        self._end("set_epoch was called in the midst of an epoch; call it before `for`, or leave the loop first")
        self._resuming, self._handed = False, None
        batch_sampler = getattr(self.source, "batch_sampler", None)
        parts = [getattr(self.source, "dataset", None), getattr(self.source, "sampler", None), batch_sampler]
        parts.append(getattr(batch_sampler, "sampler", None))
        if hasattr(self.source, "set_epoch"):
            parts = [self.source]
        for part in {id(part): part for part in parts}.values():
            getattr(part, "set_epoch", lambda _: None)(epoch)

    def close(self) -> None:
        """End the iteration that is open, and close the source where it can be. Iterating again starts it anew."""
        self._end("the loader was closed; iterate it again to go on")
        getattr(self.source, "close", lambda: None)()

    def begin(self, iteration: Iteration) -> None:
        """Make `iteration` the open one, with the epoch after that of the batch that was handed out last."""
        self._end("another iteration was begun")
        self._open = weakref.ref(iteration)
        self._resuming = False
        if self._handed is not None and hasattr(self.source, "go_on_after"):
            self.source.go_on_after(self._handed)

    @property
    def is_iterated(self) -> bool:
        """True while an iteration is open, whose thread may be at work in the source."""
        return self._open is not None and self._open() is not None

    def place_at(self, state: Mapping[str, Any] | None) -> None:
        """Note where the training loop is, as a state of the source; None where that has none."""
        self._handed = state

    def handed(self, state: Mapping[str, Any] | None) -> None:
        """Note that the training loop has a batch, and the source's state when it had given it."""
        self.place_at(state)
        self.crossing.batches += 1

    def __repr__(self) -> str:
        """Return the source, which may be ahead, and the training loop's place once it was handed a batch."""
        place = self._handed if isinstance(self._handed, Mapping) else {}
        said = [f"{name}={place[name]}" for name in ("epoch", "samples") if name in place]
        return f"{type(self).__name__}({', '.join([repr(self.source), *said])})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        """Return what a pickle or a copy has: a source of its own at the training loop's place, and no iteration."""
        source = self.source
        if hasattr(source, "load_state_dict"):
            source = copy(source)
            if self._handed is not None:
                source.load_state_dict(self._handed)
        return {**self.__dict__, "source": source, "crossing": Crossing(), "_handed": None, "_open": None}

    def _end(self, why: str) -> None:
        """End the iteration that is open, if any; its loop is told why."""
        iteration = None if self._open is None else self._open()
        if iteration is not None:
            iteration.close(why)
        self._open = None


class StatefulDeviceLoader(DeviceLoader):
    """A `DeviceLoader` whose source may have states."""

    def state_dict(self) -> Any:
        """Return where the training loop is: what it has been handed, not what is prefetched. Plain data.

        Empty where the source keeps none, as a torch DataLoader; torchdata's StatefulDataLoader does.
        """
        if self._handed is not None:
            return dict(self._handed) if isinstance(self._handed, Mapping) else self._handed
        return self.source.state_dict() if hasattr(self.source, "state_dict") else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state` says, also with another world size, if its lanes can be dealt to that.

        Raises:
            OptionError: the state is of another dataset, split, seed, order or version, its lanes cannot be dealt, or
                one of its numbers cannot be. An iteration that is open has ended.
        """
        if not hasattr(self.source, "load_state_dict"):
            if state:
                raise OptionError(f"a {type(self.source).__name__} keeps no state; this one is of another loader")
            return
        self._end("load_state_dict was called in the midst of an epoch; call it before `for`, or leave the loop first")
        self.source.load_state_dict(state)
        self._handed = None
        self._resuming = isinstance(state, Mapping) and "epoch" in state
