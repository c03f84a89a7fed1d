"""Batches on a plain torch device, ahead of need: CUDA, torch_tpu and what else torch.accelerator knows."""

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from tpufeed.errors import MissingExtraError, OptionError
from tpufeed.loaders.device import DeviceLoader, StatefulDeviceLoader
from tpufeed.loaders.loader import EpochIterator
from tpufeed.loaders.prefetch import PrefetchIterator, Producer
from tpufeed.loaders.torch.loader import EpochSampler, TorchIterator
from tpufeed.loaders.transfer import map_leaves

try:
    import torch
except ImportError as error:
    raise MissingExtraError("torch", "torch") from error

# Whose streams and events are known to work, and whose pinned memory outlives the copies that read it.
_STREAMED = ("cuda", "xpu")
_NEVER_PINNED = ("mps",)


def device_prefetch(loader: Iterable[Any], device: Any = None, size: int = 2) -> "DevicePrefetch":
    """The batches of `loader` on `device`, the next few already there while a step runs.

    Iterates `loader` anew for each `for`, and in order. What it raises is raised in the loop, after the batches before
    it. The first batch is fetched in the caller's thread, where frameworks may be started and processes forked; the
    others in a thread that ends with the loop, however that is left. Beginning another loop ends an earlier one.
    `len`, `dataset`, `sampler` and all else that `loader` has is there as well; a state counts what the training loop
    was handed. Wants torch 2.7 or later.

    Args:
        loader: of tensors, also within tuples, lists and dicts; `torch_loader`, a DataLoader, a list. What is no
            tensor stays as it is.
        device: as torch names it; by default the accelerator that there is, else the CPU.
        size: batches on the device ahead of the one that is in use; each takes device memory.

    Raises:
        MissingExtraError: torch is not installed.
        OptionError: size is not at least 1.
    """
    kind = StatefulDevicePrefetch if hasattr(loader, "state_dict") else DevicePrefetch
    return kind(loader, device, size)


class DevicePrefetch(DeviceLoader):
    """Loader of batches on a device, see `device_prefetch`. Pickles and copies are loaders at the same place."""

    _is_accelerate_prepared = True  # is on its device, and deals its batches to ranks itself or was prepared inside

    def __init__(self, source: Any, device: Any, size: int) -> None:
        if not isinstance(size, int) or size < 1:
            raise OptionError(f"size is a whole number of batches, at least 1, not {size!r}")
        super().__init__(source)
        self._size = size
        self._device = None if device is None else torch.device(device)

    @property
    def device(self) -> torch.device:
        """Device that batches go to. By default the accelerator, by the number that is current in this thread."""
        if self._device is not None:
            return self._device
        accelerator = torch.accelerator.current_accelerator()
        if accelerator is None or not torch.accelerator.is_available():
            return torch.device("cpu")
        return torch.device(accelerator.type, torch.accelerator.current_device_index())

    @property
    def sampler(self) -> Any:
        """Takes `set_epoch`; so does `batch_sampler.sampler`."""
        return EpochSampler(self) if hasattr(self.source, "set_epoch") else self.source.sampler

    @property
    def batch_sampler(self) -> Any:
        """Batch sampler, see `sampler`."""
        return EpochSampler(self) if hasattr(self.source, "set_epoch") else self.source.batch_sampler

    def __len__(self) -> int:
        """Batches of an epoch."""
        return len(self.source)

    def __iter__(self) -> "DeviceIterator":
        """The source's next epoch; nothing is asked of it before the first batch."""
        return DeviceIterator(self)

    def __getattr__(self, name: str) -> Any:
        """Whatever else the source has."""
        if name == "source":  # a copy that is being made has none yet
            raise AttributeError(name)
        return getattr(self.source, name)


class StatefulDevicePrefetch(StatefulDeviceLoader, DevicePrefetch):
    """A `DevicePrefetch` of a source that has states: frameworks ask whether the methods are there."""


class DeviceIterator(PrefetchIterator["_DeviceBatch"]):
    """An epoch of a `DevicePrefetch`."""

    def __init__(self, loader: DevicePrefetch) -> None:
        super().__init__(loader._size, "tpufeed-device")
        self._loader = loader

    def _begin(self) -> "_DeviceBatch | None":
        loader = self._loader
        loader.begin(self)
        self._producer = _Producer(loader.source, loader.device)
        return self._producer.pull()

    def _receive(self, device_batch: "_DeviceBatch") -> Any:
        batch = device_batch.receive()
        self._loader.handed(device_batch.state)
        return batch


@dataclass(frozen=True, slots=True)
class _DeviceBatch:
    """A batch on its device, or on its way there until `copied`."""

    batch: Any
    state: Any
    copied: Any

    def receive(self) -> Any:
        """The batch, for use in the current stream of this thread."""
        if self.copied is not None:
            current = torch.accelerator.current_stream(self.copied.device)
            current.wait_event(self.copied)
            # Its memory belongs to the stream of the copies, which would take it back while this one still reads.
            _map_tensors(self.batch, lambda tensor: tensor.record_stream(current))
        return self.batch


class _Producer(Producer[_DeviceBatch]):
    """Takes batches from the source and starts their copies."""

    def __init__(self, source: Any, device: torch.device) -> None:
        super().__init__()
        self._state = getattr(source, "state_dict", lambda: None)
        self._batches = iter(source)
        self._device = device
        present = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        self._asynchronous = present is not None and present.type == device.type
        self._pinned = self._asynchronous and device.type not in _NEVER_PINNED
        self._stream = torch.Stream(device) if self._asynchronous and device.type in _STREAMED else None

    def close(self) -> None:
        if isinstance(self._batches, TorchIterator | EpochIterator):  # no other can be closed while it runs
            self._batches.close()

    def _pull_next(self) -> _DeviceBatch | None:
        try:
            batch = next(self._batches)
        except StopIteration:
            return None
        return self._copy(batch, self._state())

    def _copy(self, batch: Any, state: Any) -> _DeviceBatch:
        # The stream also makes its device the current one, which each thread has of its own and pinning asks for.
        with self._stream or nullcontext():
            if self._pinned:
                batch = _map_tensors(batch, torch.Tensor.pin_memory)
            batch = _map_tensors(batch, lambda tensor: tensor.to(self._device, non_blocking=True))
            copied = None if self._stream is None else self._stream.record_event()
        if self._asynchronous and self._stream is None:
            torch.accelerator.synchronize(self._device)
        return _DeviceBatch(batch, state, copied)


def _map_tensors(batch: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    """The batch with its tensors changed, at any depth."""
    return map_leaves(batch, lambda leaf: change(leaf) if isinstance(leaf, torch.Tensor) else leaf)
