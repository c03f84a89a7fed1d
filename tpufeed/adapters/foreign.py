"""Put the batches of a user's own loader, such as a torch DataLoader or a list, on a device ahead of need."""

import weakref
from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from pathlib import Path
from typing import Any

from tpufeed.adapters.device import DeviceFeed
from tpufeed.adapters.feed import REPLACED, SUPERSEDED, Iterated, Iteration, loader_of
from tpufeed.errors import OptionError
from tpufeed.options import Count, checked
from tpufeed.stream.executor import CLOSED


@checked()
def device_loader(
    loader: Iterable[Any],
    device: Any = None,
    *,
    device_prefetch: Count = 2,
    sharding: Any = None,
    check_ranks: bool = True,
) -> Any:
    """Return the batches of `loader` on `device`, the next few already there while a step runs.

    Each `for` iterates `loader` again, in order. If `loader` raises an error, the loop raises it after the batches
    before it. The first batch is fetched in the caller's thread, where frameworks may start and processes may be
    forked; the others in a thread that ends when the loop is left, in any way. A new loop ends an earlier one. A state
    counts batches handed to the training loop, and `stats()` returns a `DeviceStats`. For a `tpufeed.Loader` this is
    `to_device` or `to_xla`.

    On a torch device, with torch 2.7 or later, the result also has `dataset`, `sampler` and all other attributes of
    `loader`. On an XLA device it is an `MpDeviceLoader`, and sends numeric arrays as well as tensors. Inside
    `torch_xla.launch` all ranks compare what they are about to iterate before the first batch of an epoch: if they
    differ, or one cannot begin, all raise the same LoaderError. Dealing samples to ranks is left to `loader`.

    Args:
        loader: a loader of tensors, alone or in tuples, lists and dicts: a DataLoader, a list, a `tpufeed.Loader`.
            Anything else in a batch is passed on unchanged.
        device: torch's name of the device, "tpu" with TorchTPU; by default the accelerator, if there is one, else the
            CPU. "xla" is torch_xla's device of the thread that iterates.
        device_prefetch: batches on the device ahead of the one in use; each takes device memory.
        sharding: for XLA devices under SPMD, a `ShardingSpec` for each column by name, None for a column that every
            device holds whole; or one spec for all columns, fitted to the axes of each tensor. If batches are tuples,
            the names are those of their columns in order.
        check_ranks: False if only some of the ranks iterate this loader on XLA devices.

    Raises:
        MissingExtraError: torch is not installed, torch_tpu for "tpu", or torch_xla for "xla".
        UsageError: tensorflow was imported before torch_xla.
        OptionError: an option does not fit; or for "tpu", torch_tpu finds no TPU or is not Google's package.
    """
    from tpufeed.adapters.torch.device import ForeignDeviceFeed, StatefulTorchDeviceFeed, TorchDeviceFeed

    ours = loader_of(loader)
    if ours is None and isinstance(loader, str | Path):
        raise OptionError(f"device_loader takes a loader; for a dataset give tpufeed.Loader({str(loader)!r})")
    if isinstance(loader, Iterator) or not any(hasattr(loader, name) for name in ("__iter__", "__getitem__")):
        raise OptionError(
            "device_loader takes a loader that can be iterated again and again, such as a torch DataLoader, not "
            f"{type(loader).__name__}"
        )
    if isinstance(loader, DeviceFeed):
        raise OptionError(
            f"the batches of a {type(loader).__name__} are on a device already; give the loader it came from"
        )
    if str(device).partition(":")[0] == "xla":
        from tpufeed.adapters.xla.loader import XlaFeed

        kept = None if device == "xla" else device
        return XlaFeed(ours or ForeignLoader(loader), kept, sharding, device_prefetch, check_ranks)
    if sharding is not None or not check_ranks:
        raise OptionError('sharding and check_ranks are for XLA devices; give the device "xla", or leave them out')
    if ours is not None:
        return TorchDeviceFeed(ours, device, device_prefetch)
    kind = StatefulTorchDeviceFeed if hasattr(loader, "state_dict") else ForeignDeviceFeed
    return kind(ForeignLoader(loader), device, device_prefetch)


class ForeignLoader(Iterated):
    """A user's own loader in place of tpufeed's. It may keep states and epochs, or not.

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
        """Make an iteration the newest, and end the one before it."""
        self.end_iteration(REPLACED)
        self._ahead_of_loop, self._resuming = weakref.ref(iteration), False

    def taken(self) -> Any:
        """Return the state of the user's loader; None if it keeps none."""
        return self.wrapped.state_dict() if hasattr(self.wrapped, "state_dict") else None

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the user's loader; or of its dataset and samplers, if it has no `set_epoch`.

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
