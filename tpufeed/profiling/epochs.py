"""What a loader says of its epochs, held against what it gave: batches, and bytes that it sent to a device."""

import weakref
from contextlib import suppress
from typing import Any


class Epochs:
    """All that were begun."""

    def __init__(self) -> None:
        self.begun = 0
        self.short: list[tuple[int, int, int]] = []
        self._seen: dict[int, weakref.ref[Any]] = {}  # by address, which another loader may have later
        self._sent_bytes = 0
        self._sent_steps = 0

    def begin(self, loader: Any) -> "Epoch":
        """The next one, of `loader`."""
        self.begun += 1
        seen = self._seen.get(id(loader))
        first = seen is None or seen() is not loader
        if first:
            with suppress(TypeError):  # of a few kinds, such as lists, there are no weak references
                self._seen[id(loader)] = weakref.ref(loader)
        return Epoch(self, loader, first)

    @property
    def bytes_a_step(self) -> float | None:
        """That loaders sent, in the mean over whole epochs: in mid-epoch they have sent some ahead. None if unknown."""
        return self._sent_bytes / self._sent_steps if self._sent_steps else None

    def sent(self, nbytes: int, steps: int) -> None:
        """A whole epoch's."""
        self._sent_bytes += nbytes
        self._sent_steps += steps

    def notes(self) -> tuple[str, ...]:
        """A sentence on short epochs, if there are any."""
        if not self.short:
            return ()
        epoch, batches, expected = self.short[0]
        more = f", and {len(self.short) - 1} more epochs were short" if len(self.short) > 1 else ""
        return (
            f"the loader ended early: epoch {epoch} gave {batches} batches, len() says {expected}{more}. Look for "
            "errors in its threads or workers; torch_xla's ParallelLoader takes an exception of its source for the end",
        )


class Epoch:
    """One iteration over a loader. What a loader cannot say, or fails to, is not known; nothing is raised."""

    def __init__(self, epochs: Epochs, loader: Any, first: bool) -> None:
        self.batches = 0
        self._first = first
        self._epochs = epochs
        self._number = epochs.begun
        self._loader = loader
        self._sent = _sent_bytes(loader)
        self._left: int | None = None

    def opened(self, iterator: Any) -> None:
        """The iterator is there; it may know better than the loader, as in an epoch that is gone on with."""
        self._left = None if iterator is self._loader else length_of(iterator)

    def ended(self) -> None:
        """By itself, not by a `break` or an exception."""
        expected = self._left
        if expected is None and not (self._first and _resumes(self._loader)):
            expected = length_of(self._loader)
        if expected is not None and self.batches < expected:
            self._epochs.short.append((self._number, self.batches, expected))
        sent = _sent_bytes(self._loader)
        if sent is not None and self._sent is not None and self.batches:
            self._epochs.sent(sent - self._sent, self.batches)


def length_of(sized: Any) -> int | None:
    """Batches that a loader promises; None where it does not."""
    try:
        return len(sized)
    except Exception:  # noqa: BLE001  # TypeError where there is none, but loaders raise what they like
        return None


def _resumes(loader: Any) -> bool:
    """Whether its first epoch may be the rest of one, of which `len` knows nothing."""
    return hasattr(getattr(loader, "source", loader), "load_state_dict")


def _sent_bytes(loader: Any) -> int | None:
    """Of tpufeed's own loaders for torch_xla and JAX."""
    try:
        return int(loader.stats().transfer_bytes)
    except Exception:  # noqa: BLE001  # others have no `stats`, or another one
        return None
