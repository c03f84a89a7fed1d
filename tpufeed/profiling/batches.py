"""Count what a loader gave: images and bytes of its batches, and epochs that ended early, whatever the framework."""

import math
import weakref
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

_NO_SHAPE = object()


@dataclass(frozen=True, slots=True)
class Load:
    """One batch's number of images (rows of its first array) and bytes of all arrays; None where it has no arrays."""

    images: int | None
    nbytes: int | None


class Loads:
    """What the batches of many steps hold; those of one shape are looked into once."""

    def __init__(self) -> None:
        self.shape: Any = _NO_SHAPE
        self._known: dict[Any, Load] = {}
        self._from: list[tuple[int, Load]] = []

    def note(self, batch: Any, step: int) -> None:
        """Take this batch's shape for those from this step on. Never raises: a step is worth more than a count."""
        self.shape = first_shape(batch)
        try:
            key = None if self.shape is None else tuple(self.shape)
            if key not in self._known:
                self._known[key] = load_of(batch)
            load = self._known[key]
        except Exception:  # noqa: BLE001  # batches can be anything
            load = Load(None, None)
        self._from.append((step, load))

    def total(self, start: int, stop: int) -> Load:
        """Return the sums of the steps [start, stop)."""
        ends = [*(step for step, _ in self._from[1:]), stop]
        spans = [(min(end, stop) - max(step, start), load) for (step, load), end in zip(self._from, ends, strict=False)]
        inside = [(steps, load) for steps, load in spans if steps > 0]

        def total_of(parts: list[tuple[int, int | None]]) -> int | None:
            known = [steps * value for steps, value in parts if value is not None]
            return sum(known) if known and len(known) == len(parts) else None

        return Load(
            total_of([(steps, load.images) for steps, load in inside]),
            total_of([(steps, load.nbytes) for steps, load in inside]),
        )


class Epochs:
    """The epochs that a loop began: what each loader promised of them, and what it gave."""

    def __init__(self) -> None:
        self.begun = 0
        self.short: list[tuple[int, int, int]] = []  # (number from 1, batches it gave, batches that len() says)
        self.sent_bytes = self.sent_steps = 0  # of whole epochs: in mid-epoch loaders have sent some ahead
        self._seen: dict[int, weakref.ref[Any]] = {}  # by address, which another loader may have later

    def begin(self, loader: Any) -> "Epoch":
        """Begin the next one, of `loader`."""
        self.begun += 1
        seen = self._seen.get(id(loader))
        first = seen is None or seen() is not loader
        if first:
            with suppress(TypeError):  # of a few kinds, such as lists, there are no weak references
                self._seen[id(loader)] = weakref.ref(loader)
        return Epoch(self, loader, first)

    @property
    def bytes_a_step(self) -> float | None:
        """Bytes that loaders sent to a device, the mean of whole epochs; None if unknown."""
        return self.sent_bytes / self.sent_steps if self.sent_steps else None

    def notes(self) -> tuple[str, ...]:
        """Return a sentence on short epochs, if there are any."""
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
        """Ask the iterator for its length: of an epoch that is gone on with it knows better than the loader."""
        self._left = None if iterator is self._loader else length_of(iterator)

    def ended(self) -> None:
        """Note that the epoch ended by itself, not by a `break` or an exception."""
        expected = self._left
        # The first epoch of a loader with a state may be the rest of one, of which `len` knows nothing.
        resumes = hasattr(getattr(self._loader, "source", self._loader), "load_state_dict")
        if expected is None and not (self._first and resumes):
            expected = length_of(self._loader)
        if expected is not None and self.batches < expected:
            self._epochs.short.append((self._number, self.batches, expected))
        sent = _sent_bytes(self._loader)
        if sent is not None and self._sent is not None and self.batches:
            self._epochs.sent_bytes += sent - self._sent
            self._epochs.sent_steps += self.batches


def length_of(sized: Any) -> int | None:
    """Return the batches that a loader promises; None where it does not."""
    try:
        return len(sized)
    except Exception:  # noqa: BLE001  # TypeError where there is none, but loaders raise what they like
        return None


def first_shape(batch: Any) -> Any:
    """Return the shape of the first array of a batch, as its framework gives it; None where there is none."""
    while True:
        if isinstance(batch, tuple | list):
            if not batch:
                return None
            batch = batch[0]
            continue
        shape = getattr(batch, "shape", None)
        if shape is not None or not isinstance(batch, Mapping):
            return shape
        batch = next(iter(batch.values()), None)


def load_of(batch: Any) -> Load:
    """Count one batch. Strings stay on the host and are no bytes."""
    shape = first_shape(batch)
    images = int(shape[0]) if shape is not None and len(shape) else None
    sizes = [_nbytes(leaf) for leaf in _leaves(batch)]
    return Load(images, sum(sizes) if sizes else None)


def _leaves(batch: Any) -> Iterator[Any]:
    if isinstance(batch, tuple | list | Mapping):
        for member in batch.values() if isinstance(batch, Mapping) else batch:
            yield from _leaves(member)
    elif hasattr(batch, "shape") and hasattr(batch, "dtype"):
        yield batch


def _nbytes(array: Any) -> int:
    dtype = array.dtype
    if getattr(dtype, "kind", "") in ("O", "S", "U") or getattr(dtype, "name", "") == "string":
        return 0
    shards = getattr(array, "addressable_shards", None)  # of JAX: what lies on this process' devices
    if shards is not None:
        return sum(int(shard.data.nbytes) for shard in shards)
    nbytes = getattr(array, "nbytes", None)
    if nbytes is not None:
        return int(nbytes)
    return math.prod(int(axis) for axis in array.shape) * int(dtype.size)  # of TensorFlow


def _sent_bytes(loader: Any) -> int | None:
    """Return what one of tpufeed's own loaders for torch_xla and JAX has sent."""
    try:
        return int(loader.stats().transfer_bytes)
    except Exception:  # noqa: BLE001  # others have no `stats`, or another one
        return None
