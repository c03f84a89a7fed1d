"""A user's own loader, such as a torch DataLoader or a list, as a stream that feeds take."""

import weakref
from collections.abc import Mapping
from copy import copy
from typing import Any

from tpufeed.errors import OptionError
from tpufeed.stream.executor import CLOSED
from tpufeed.stream.host import REPLACED, SUPERSEDED, Iteration, LedStream


class ForeignStream(LedStream):
    """A user's own loader in place of tpufeed's stream. It may keep states and epochs, or not.

    Args:
        wrapped: the user's loader, which gives batches on the host, anew for each `for`.
    """

    def __init__(self, wrapped: Any) -> None:
        self.wrapped = wrapped
        self._resuming = False

    @property
    def class_names(self) -> Any:
        # A DataLoader has none, but its dataset may.
        return (self.wrapped if hasattr(self.wrapped, "class_names") else self.wrapped.dataset).class_names

    @property
    def batch_size(self) -> int | None:
        size = getattr(self.wrapped, "batch_size", None)
        return size if isinstance(size, int) else None

    def __len__(self) -> int:
        return len(self.wrapped)

    def lead(self, iteration: Iteration) -> None:
        """Make an iteration the newest, and end earlier ones."""
        self.end_iteration(REPLACED)
        self._ahead_of_loop, self._resuming = weakref.ref(iteration), False

    def taken(self) -> Any:
        """Return the state of the user's loader. None if it keeps none."""
        return self.wrapped.state_dict() if hasattr(self.wrapped, "state_dict") else None

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the user's loader, or of its dataset and samplers, if it has no `set_epoch`.

        Right after `load_state_dict`, the rest of that state's epoch stays next.
        """
        if self._resuming and self.wrapped.state_dict().get("epoch") == epoch:
            return
        self.end_iteration(SUPERSEDED)
        self._resuming, self._handed = False, None
        if hasattr(self.wrapped, "set_epoch"):
            parts = [self.wrapped]
        else:
            batch_sampler = getattr(self.wrapped, "batch_sampler", None)
            parts = [getattr(self.wrapped, "dataset", None), getattr(self.wrapped, "sampler", None), batch_sampler]
            parts.append(getattr(batch_sampler, "sampler", None))
        for part in {id(part): part for part in parts}.values():
            getattr(part, "set_epoch", lambda _: None)(epoch)

    def state_dict(self) -> Any:
        """Return the state of the user's loader after the batch that was handed out last, or else its state now."""
        state = self.taken() if self._handed is None else self._handed
        return dict(state) if isinstance(state, Mapping) else {} if state is None else state

    def load_state_dict(self, state: Any) -> None:
        """Load a state into the user's loader. Raises OptionError if that keeps no state."""
        if not hasattr(self.wrapped, "load_state_dict"):
            if state:
                raise OptionError(f"a {type(self.wrapped).__name__} keeps no state; this one is of another loader")
            return
        self.end_iteration(SUPERSEDED)
        self.wrapped.load_state_dict(state)
        self._handed = None
        self._resuming = isinstance(state, Mapping) and "epoch" in state

    def stats(self) -> Any:
        """Return the `stats()` of the user's loader, or None."""
        stats = getattr(self.wrapped, "stats", None)
        return stats() if callable(stats) else None

    def close(self) -> None:
        """End the open iteration, and close the user's loader if it has `close`."""
        self.end_iteration(CLOSED)
        getattr(self.wrapped, "close", lambda: None)()

    def _facts(self) -> dict[str, Any]:
        return {"loader": repr(self)}

    def __repr__(self) -> str:
        """Show the user's loader, which may be ahead, and the training loop's place once it has a batch."""
        place = self._handed if isinstance(self._handed, Mapping) else {}
        said = [f"{name}={place[name]}" for name in ("epoch", "samples") if name in place]
        return ", ".join([repr(self.wrapped), *said])

    def __getstate__(self) -> dict[str, Any]:
        wrapped = self.wrapped
        if hasattr(wrapped, "load_state_dict"):
            wrapped = copy(wrapped)
            if self._handed is not None:
                wrapped.load_state_dict(self._handed)
        return {"wrapped": wrapped, "_resuming": self._resuming}
