"""A user's own loader, such as a torch DataLoader or a list, on a device ahead of need."""

import weakref
from collections.abc import Iterable, Mapping
from copy import copy
from pathlib import Path
from typing import Any

from tpufeed.errors import OptionError
from tpufeed.loaders.device import DeviceFeed
from tpufeed.loaders.executor import CLOSED
from tpufeed.loaders.feed import REPLACED, SUPERSEDED, Iterated, Iteration, loader_of
from tpufeed.options import Count, checked


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

    Each `for` iterates `loader` again, in order. The loop raises what `loader` raises, after the batches before it. The
    first batch is fetched in the caller's thread, where frameworks may be started and processes forked; the others in a
    thread that ends with the loop, however that is left. A new loop ends an earlier one. A state counts what the
    training loop was handed, and `stats()` is a `DeviceStats`. For a `tpufeed.Loader` this is `to_device` or `to_xla`.

    On a torch device, with torch 2.7 or later, the result also has `dataset`, `sampler` and all else that `loader` has.
    On an XLA device it is an `MpDeviceLoader`, and arrays of numbers are sent, too. Inside `torch_xla.launch` all ranks
    compare before the first batch of an epoch what they are about to iterate: if they differ, or one cannot begin, all
    raise the same LoaderError. The loader itself deals samples to ranks.

    Args:
        loader: a loader of tensors, also within tuples, lists and dicts: a DataLoader, a list, a `tpufeed.Loader`.
            Whatever is not a tensor stays as it is.
        device: torch's name of the device, "tpu" with TorchTPU; by default the accelerator, if there is one, else the
            CPU. "xla" is torch_xla's device of the thread that iterates.
        device_prefetch: batches on the device ahead of the one in use; each takes device memory.
        sharding: for XLA devices under SPMD, a `ShardingSpec` for each column by name, None for a column that every
            device holds whole; or one spec for all, fitted to the rank of each tensor. If batches are tuples, the names
            are those of their columns in order.
        check_ranks: False for a loader on an XLA device that only some of the ranks iterate.

    Raises:
        MissingExtraError: torch is not installed, torch_tpu for "tpu", or torch_xla for "xla".
        UsageError: tensorflow was imported before torch_xla.
        OptionError: options that do not fit; or for "tpu" torch_tpu finds no TPU, or is not Google's package.
    """
    from tpufeed.loaders.torch.device import ForeignDeviceFeed, StatefulTorchDeviceFeed, TorchDeviceFeed

    ours = loader_of(loader)
    if ours is None and isinstance(loader, str | Path):
        raise OptionError(f"device_loader takes a loader; for a dataset give tpufeed.Loader({str(loader)!r})")
    if isinstance(loader, DeviceFeed):
        raise OptionError(f"the batches of a {type(loader).__name__} are on a device already; give what it was made of")
    if str(device).partition(":")[0] == "xla":
        from tpufeed.loaders.xla.loader import XlaFeed

        kept = None if device == "xla" else device
        return XlaFeed(ours or ForeignLoader(loader), kept, sharding, device_prefetch, check_ranks)
    if sharding is not None or not check_ranks:
        raise OptionError('sharding and check_ranks are for XLA devices; give the device "xla", or leave them out')
    if ours is not None:
        return TorchDeviceFeed(ours, device, device_prefetch)
    kind = StatefulTorchDeviceFeed if hasattr(loader, "state_dict") else ForeignDeviceFeed
    return kind(ForeignLoader(loader), device, device_prefetch)


class ForeignLoader(Iterated):
    """A user's own loader instead of tpufeed's. It may keep states and epochs, or not.

    Args:
        source: gives batches on the host, again for each `for`.
    """

    def __init__(self, source: Any) -> None:
        self.source = source
        self._resuming = False

    @property
    def class_names(self) -> Any:
        return self.source.class_names

    @property
    def batch_size(self) -> int | None:
        size = getattr(self.source, "batch_size", None)
        return size if isinstance(size, int) else None

    def __len__(self) -> int:
        return len(self.source)

    def lead(self, iteration: Iteration) -> None:
        """Let an iteration be the newest, and end the one before it."""
        self.end_iteration(REPLACED)
        self._ahead_of_loop, self._resuming = weakref.ref(iteration), False

    def taken(self) -> Any:
        """Return the state of the source; None if it keeps none."""
        return self.source.state_dict() if hasattr(self.source, "state_dict") else None

    def set_epoch(self, epoch: int) -> None:
        """Tell the source; if that does not number its epochs, its dataset and sampler.

        Straight after `load_state_dict` the rest of that state's epoch stays next.
        """
        if self._resuming and self.source.state_dict().get("epoch") == epoch:
            return
        self.end_iteration(SUPERSEDED)
        self._resuming, self._handed = False, None
        if hasattr(self.source, "set_epoch"):
            parts = [self.source]
        else:
            batch_sampler = getattr(self.source, "batch_sampler", None)
            parts = [getattr(self.source, "dataset", None), getattr(self.source, "sampler", None), batch_sampler]
            parts.append(getattr(batch_sampler, "sampler", None))
        for part in {id(part): part for part in parts}.values():
            getattr(part, "set_epoch", lambda _: None)(epoch)

    def state_dict(self) -> Any:
        """Return the source's state behind the batch that was handed out last, or its state now."""
        state = self.taken() if self._handed is None else self._handed
        return dict(state) if isinstance(state, Mapping) else {} if state is None else state

    def load_state_dict(self, state: Any) -> None:
        """Have the source continue there. Raises OptionError if it keeps no state."""
        if not hasattr(self.source, "load_state_dict"):
            if state:
                raise OptionError(f"a {type(self.source).__name__} keeps no state; this one is of another loader")
            return
        self.end_iteration(SUPERSEDED)
        self.source.load_state_dict(state)
        self._handed = None
        self._resuming = isinstance(state, Mapping) and "epoch" in state

    def stats(self) -> Any:
        """Return what the source counts, or None."""
        stats = getattr(self.source, "stats", None)
        return stats() if callable(stats) else None

    def close(self) -> None:
        """End the open iteration, and close the source if it has `close`."""
        self.end_iteration(CLOSED)
        getattr(self.source, "close", lambda: None)()

    def __repr__(self) -> str:
        """Return the source, which may be ahead, and the training loop's place once it has a batch."""
        place = self._handed if isinstance(self._handed, Mapping) else {}
        said = [f"{name}={place[name]}" for name in ("epoch", "samples") if name in place]
        return ", ".join([repr(self.source), *said])

    def __getstate__(self) -> dict[str, Any]:
        source = self.source
        if hasattr(source, "load_state_dict"):
            source = copy(source)
            if self._handed is not None:
                source.load_state_dict(self._handed)
        return {"source": source, "_resuming": self._resuming}
