"""Put batches on a torch device ahead of need: CUDA, torch_tpu and whatever else torch.accelerator knows."""

from contextlib import nullcontext
from importlib import metadata
from importlib.util import find_spec
from typing import Any

import torch

from tpufeed.adapters.device import DeviceFeed, Transfer
from tpufeed.adapters.feed import Feed
from tpufeed.adapters.foreign import ForeignStream
from tpufeed.adapters.torch.arrays import ARRAYS
from tpufeed.adapters.torch.loader import EpochSampler, TorchFeed, map_tensors, to_torch
from tpufeed.errors import MissingExtraError, OptionError, install_command
from tpufeed.stream.host import HostStream

# Devices whose streams and events are known to work, and whose pinned memory outlives the copies that read it.
_STREAMED = ("cuda", "xpu")
_NEVER_PINNED = ("mps",)
_GOOGLES = "github.com/google-pytorch/"  # home page of Google's torch_tpu. Sophgo has a package of the same name


class OnTorchDevice(DeviceFeed):
    """A feed on a device of torch."""

    _is_accelerate_prepared = True  # its batches are on the device and dealt to ranks already

    def __init__(self, stream: HostStream | ForeignStream, device: Any, device_prefetch: int) -> None:
        super().__init__(stream, device_prefetch)
        self._device = None if device is None else _parse_device(device)

    @property
    def device(self) -> torch.device:
        """Device that batches go to: by default this thread's current accelerator, or the CPU."""
        if self._device is not None:
            return self._device
        accelerator = torch.accelerator.current_accelerator()
        if accelerator is None or not torch.accelerator.is_available():
            return torch.device("cpu")
        return torch.device(accelerator.type, torch.accelerator.current_device_index())

    def open_transfer(self) -> Transfer:
        return _TorchTransfer(self, self.device)


class TorchDeviceFeed(OnTorchDevice, TorchFeed):
    """Feed of tensors on a device, see `Loader.to_device`."""

    find_exchange = TorchFeed.find_exchange


class ForeignDeviceFeed(OnTorchDevice):
    """Feed of a user's own loader on a device, with the loader's other attributes, see `device_loader`."""

    stream: ForeignStream

    def __getattr__(self, name: str) -> Any:
        """Return the attribute of the loader. But `sampler` and `batch_sampler` pass on `set_epoch` if it has one."""
        if name == "stream":  # a copy that is being made has none yet
            raise AttributeError(name)
        wrapped = self.stream.wrapped
        told = name in ("sampler", "batch_sampler") and hasattr(wrapped, "set_epoch")
        return EpochSampler(self) if told else getattr(wrapped, name)


class StatefulTorchDeviceFeed(ForeignDeviceFeed, Feed):
    """Feed of a user's loader that keeps states: frameworks check whether the methods are there."""


class _TorchTransfer(Transfer):
    """Copies through pinned memory, in a stream of its own if the device has streams."""

    def __init__(self, feed: OnTorchDevice, device: torch.device) -> None:
        ours = feed.host
        if ours is None:
            assert isinstance(feed.stream, ForeignStream), "there are two kinds"
            self.batches = iter(feed.stream.wrapped)
        else:  # only our own iterators can be closed while another thread uses them
            batches = ours.iterate(ahead=True, as_dict=True, on_device=True)
            self.batches, self.close, self.spec = map(to_torch, batches), batches.close, ours.epoch_spec()
        self._ours = ours
        self._device = device
        present = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        self._asynchronous = present is not None and present.type == device.type
        self._pinned = self._asynchronous and device.type not in _NEVER_PINNED
        self._stream = torch.Stream(device) if self._asynchronous and device.type in _STREAMED else None

    def send(self, batch: Any) -> tuple[Any, int]:
        size = 0
        # Without an event for the step to wait for, this thread waits for the copies instead. Each copy blocks, because
        # torch_tpu's synchronize promises to wait for copies to the host, not for copies from it.
        waits = self._asynchronous and self._stream is None

        def move(tensor: torch.Tensor) -> torch.Tensor:
            nonlocal size
            size += tensor.nbytes
            return tensor.to(self._device, non_blocking=not waits)

        # The stream also makes its device the current one of this thread, which pinning needs.
        with self._stream or nullcontext():
            # From pageable memory the driver copies at once, in this thread, whatever `non_blocking` says.
            held = map_tensors(batch, torch.Tensor.pin_memory) if self._pinned else batch
            batch = map_tensors(held, move)
            if self._ours is not None:
                batch = self._ours.form.package(self._ours.run_device_ops(batch, ARRAYS))
            copied = None if self._stream is None else self._stream.record_event()
        if waits:
            torch.accelerator.synchronize(self._device)
        del held  # not earlier: torch_tpu frees pinned memory at once, even if a copy still reads it
        return (batch, copied), size

    def receive(self, sent: Any) -> Any:
        batch, copied = sent
        if copied is not None:
            current = torch.accelerator.current_stream(copied.device)
            current.wait_event(copied)
            # Its memory belongs to the copies' stream, which would reuse it while the current stream still reads it.
            map_tensors(batch, lambda tensor: tensor.record_stream(current))
        return batch


def _parse_device(device: Any) -> torch.device:
    """Return torch's device. If torch cannot reach a TPU, raises an error that says what to do next."""
    if str(device).partition(":")[0] == "xla":
        raise OptionError(f"{device} is a device of torch_xla, whose steps to_xla() ends; use to_xla()")
    if str(device).partition(":")[0] != "tpu":
        try:
            return torch.device(device)
        except (RuntimeError, TypeError, ValueError) as error:
            said = str(error).partition("\n")[0]
            raise OptionError(f"device is torch's name of a device, like 'cuda:0', not {device!r}: {said}") from error
    try:
        package = metadata.distribution("torch_tpu")
    except metadata.PackageNotFoundError:
        if find_spec("torch_xla") is None:
            raise MissingExtraError("torch_tpu", "torchtpu") from None
        raise OptionError(
            'the device "tpu" is TorchTPU\'s, and torch_xla is installed: use to_xla() or the device "xla", or install '
            "the extra torchtpu into an environment of its own"
        ) from None
    pages = (package.metadata.get_all(key) or [] for key in ("Home-page", "Project-URL"))
    if _GOOGLES not in str([*pages]):
        raise OptionError(
            f"torch_tpu {package.version} is not Google's TorchTPU but another package of the same name: run pip "
            f"uninstall torch_tpu, then {install_command('torchtpu')}"
        )
    try:
        return torch.device(device)
    except RuntimeError as error:  # torch_tpu adds the device to torch only if there is a TPU
        raise OptionError(
            f"torch_tpu {package.version} finds no TPU here: it looks on PCI for a v4, v5e, v5p, v6e or TPU7x that "
            "/dev/vfio opens. Run on such a TPU VM (a container needs --privileged), without "
            'TORCH_DEVICE_BACKEND_AUTOLOAD=0, or give the device "cpu"'
        ) from error
