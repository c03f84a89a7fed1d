"""How many images a batch holds and how many bytes it is, of any framework, from its shapes."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_NO_SHAPE = object()


@dataclass(frozen=True, slots=True)
class Load:
    """Of one batch: rows of its first member, and bytes of all its arrays; None where it has no arrays."""

    images: int | None
    nbytes: int | None


class Loads:
    """What the batches of many steps hold; those of one shape are looked into once."""

    def __init__(self) -> None:
        self.shape: Any = _NO_SHAPE
        self._known: dict[Any, Load] = {}
        self._from: list[tuple[int, Load]] = []

    def note(self, batch: Any, step: int) -> None:
        """From this step on batches have this one's shape. Never raises: a step is worth more than a count."""
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
        """Of the steps [start, stop)."""
        ends = [*(step for step, _ in self._from[1:]), stop]
        spans = [(min(end, stop) - max(step, start), load) for (step, load), end in zip(self._from, ends, strict=False)]
        inside = [(steps, load) for steps, load in spans if steps > 0]
        return Load(
            _sum([(steps, load.images) for steps, load in inside]),
            _sum([(steps, load.nbytes) for steps, load in inside]),
        )


def _sum(parts: list[tuple[int, int | None]]) -> int | None:
    known = [steps * value for steps, value in parts if value is not None]
    return sum(known) if known and len(known) == len(parts) else None


def first_shape(batch: Any) -> Any:
    """The shape of the first array of a batch, as its framework gives it; None where there is none."""
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
    """Images are the first axis of the first array. Strings stay on the host and are no bytes."""
    shape = first_shape(batch)
    images = int(shape[0]) if shape is not None and len(shape) else None
    sizes = [_nbytes(leaf) for leaf in _leaves(batch)]
    return Load(images, sum(sizes) if sizes else None)


def _leaves(batch: Any) -> Iterator[Any]:
    if isinstance(batch, tuple | list):
        for member in batch:
            yield from _leaves(member)
    elif isinstance(batch, Mapping):
        for member in batch.values():
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
