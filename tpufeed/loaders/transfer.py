"""Batches as torch knows them, and on their way to a device: tensors cross, all else waits for them on the host."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from tpufeed.errors import LoaderError, MissingExtraError

try:
    import torch
except ImportError as error:
    raise MissingExtraError("torch", "torch") from error


@dataclass(slots=True)
class TransferItem:
    """A batch, or an error in its place, or the end of the epoch.

    Attributes:
        tensors: of the batch, in the order of `Slot.number`.
        names: the column that each belongs to.
        rest: the batch with a `Slot` in place of each tensor.
        state: of the source, when it had handed out this batch.
        error: to be raised in place of the batch.
        last: there was no further batch.
    """

    tensors: list[Any] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    rest: Any = None
    state: dict[str, Any] | None = None
    error: BaseException | None = None
    last: bool = False

    def open(self) -> Any:
        """Return the batch in the form that the source gave it, with the tensors as they are now."""
        return map_leaves(self.rest, lambda leaf: self.tensors[leaf.number] if isinstance(leaf, Slot) else leaf)


@dataclass(frozen=True, slots=True)
class Slot:
    """The place of a tensor in a batch."""

    number: int


def pack(batch: Any, names: tuple[str, ...] = ()) -> TransferItem:
    """Return the tensors and arrays within tuples, lists and dicts, and what is left without them.

    Args:
        batch: arrays of strings, and what else is no tensor, stay where they are.
        names: of the columns of a batch that is no dict; by default their numbers.
    """
    item = TransferItem()

    def keep(leaf: Any, name: str) -> Any:
        tensor = _tensor(leaf)
        if tensor is None:
            return leaf
        item.tensors.append(tensor)
        item.names.append(name)
        return Slot(len(item.tensors) - 1)

    if isinstance(batch, Mapping):
        item.rest = {key: map_leaves(part, partial(keep, name=str(key))) for key, part in batch.items()}
    elif isinstance(batch, tuple | list):
        numbered = (*names, *map(str, range(len(names), len(batch))))
        parts = zip(numbered, batch, strict=False)
        item.rest = _like(batch, [map_leaves(part, partial(keep, name=name)) for name, part in parts])
    else:
        item.rest = keep(batch, names[0] if names else "0")
    return item


def to_torch(batch: Any) -> Any:
    """Return the batch with tensors in place of arrays; they share their memory; strings stay as they are."""

    def convert(leaf: Any) -> Any:
        tensor = _tensor(leaf)
        return leaf if tensor is None else tensor

    return map_leaves(batch, convert)


def map_leaves(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return `value` with every leaf changed; a mapping of another kind than dict comes out as a dict."""
    if isinstance(value, Mapping):
        return {key: map_leaves(part, change) for key, part in value.items()}
    if isinstance(value, tuple | list):
        return _like(value, [map_leaves(part, change) for part in value])
    return change(value)


class TransferItems(Iterator[TransferItem]):
    """The items of an epoch of some host loader. It never raises: what fails is in an item, after which it ends.

    Args:
        batches: of the epoch.
        names: see `pack`.
        state: called after each batch, in the thread that iterates.
        close: gives up a batch that another thread waits for, where the source knows how to.
        expected: how many batches there have to be; None where that does not matter.
    """

    def __init__(
        self,
        batches: Iterator[Any],
        names: tuple[str, ...] = (),
        state: Callable[[], dict[str, Any]] | None = None,
        close: Callable[[], None] | None = None,
        expected: int | None = None,
    ) -> None:
        self._batches = batches
        self._names = names
        self._state = state
        self._close = close
        self._expected = expected
        self._count = 0
        self._ended = False

    def __next__(self) -> TransferItem:
        if self._ended:
            raise StopIteration
        item = TransferItem()
        try:
            batch = next(self._batches)
            if self._count == self._expected:
                raise LoaderError(f"the source has more batches than the {self._expected} that are its length")
            if batch is None:
                raise LoaderError(f"batch {self._count} of the source is None; does its collate_fn return one?")
            self._count += 1
            item = pack(batch, self._names)
            item.state = None if self._state is None else self._state()
        except StopIteration:
            item.last = True
            if self._expected is not None and self._count < self._expected:
                item.error = LoaderError(
                    f"the source ended after {self._count} batches, but its length is {self._expected}: the other "
                    "ranks would wait for the rest for ever"
                )
        except BaseException as error:  # noqa: BLE001  # KeyboardInterrupt as well: the consumer must see it
            item = TransferItem(error=error)
        self._ended = self._ended or item.last or item.error is not None
        return item

    def abort(self) -> None:
        """End soon: with the batch that another thread is waiting for, unless the source can give that up."""
        ended, self._ended = self._ended, True
        if not ended and self._close is not None:
            self._close()


def _tensor(leaf: Any) -> Any:
    """Return a plain tensor that shares a leaf's memory, or None where there is none: torch_xla moves no subclass."""
    if isinstance(leaf, np.ndarray):
        return None if leaf.dtype.kind in "OUS" else torch.from_numpy(leaf)
    if isinstance(leaf, torch.Tensor):
        return leaf if type(leaf) is torch.Tensor else leaf.detach().as_subclass(torch.Tensor)
    return None


def _like(value: Any, parts: list[Any]) -> Any:
    if hasattr(value, "_fields"):  # a namedtuple
        return type(value)(*parts)
    return parts if isinstance(value, list) else tuple(parts)
