"""torch_xla: its ParallelLoader with the holes closed. The one file that knows torch_xla, which ends with 2.9."""

import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Unpack

from tpufeed.dataset.partition import World
from tpufeed.dataset.reader import open_dataset
from tpufeed.errors import MissingExtraError
from tpufeed.loaders.epoch import Batch, EpochIterator
from tpufeed.loaders.options import LoaderKeywords, LoaderOptions
from tpufeed.loaders.stream import NumpyLoader

try:
    import torch
    import torch_xla
    from torch_xla import runtime
    from torch_xla.distributed import parallel_loader
except ImportError as error:
    raise MissingExtraError("torch_xla (with torch 2.9)", "xla") from error

# Small queues: each batch of the device queue takes HBM. One transfer thread: with more the order is lost.
_QUEUES = {"loader_prefetch_size": 4, "device_prefetch_size": 2, "host_to_device_transfer_threads": 1}

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def xla_loader(
    url: str | Path, split: str = "train", *, device: Any = None, **options: Unpack[LoaderKeywords]
) -> "XlaLoader":
    """Batches of a dataset or cache on an XLA device, prefetched by torch_xla's ParallelLoader.

    `for image, label in loader` is one epoch: image uint8 (batch, height, width, 3), label int64 (batch,), on `device`;
    see `to_device_float` for what a model wants. Made inside `torch_xla.launch`, each rank reads its own samples, and
    all have the same number of batches. What fails in the source is raised in the loop.

    Args:
        url: a dataset, at a path or a URL.
        split: which part of it.
        device: where batches go; `torch_xla.device()` by default.
        **options: see `LoaderOptions`; the world is torch_xla's by default.

    Raises:
        MissingExtraError: torch_xla is not installed.
        DatasetNotFoundError, ManifestError: there is no dataset that can be read.
        OptionError: options that do not fit it.
    """
    loader = NumpyLoader(open_dataset(url), split, LoaderOptions(**options), _world)
    return XlaLoader(loader, torch_xla.device() if device is None else device)


class XlaLoader(parallel_loader.MpDeviceLoader):
    """An `MpDeviceLoader` that raises in the training loop what fails in its source, and leaves no thread behind.

    ParallelLoader takes an exception of its source for the end of the epoch, and hangs where `iter()` fails. So the
    epoch is opened here, in the caller's thread, and the source never raises: it ends, and its exception is raised to
    the consumer.
    """

    def __init__(self, source: NumpyLoader, device: Any) -> None:
        super().__init__(source, device, **_QUEUES)  # type: ignore[no-untyped-call]  # torch_xla has no types
        self.dataset = source.dataset
        self.batch_size = source.batch_size
        self._source = source
        self._xla_device = device
        # Weakly, so that an iterator that is dropped after `break` closes itself.
        self._iterator: weakref.ref[_DeviceIterator] | None = None

    def __len__(self) -> int:
        """Batches of an epoch, the same on every rank."""
        return len(self._source)

    def __iter__(self) -> "_DeviceIterator":
        """The next epoch; an earlier one that is still open is closed."""
        self._close_iterator()
        # In the caller's thread: torch_xla knows ranks by thread, and which epoch is next must not depend on how far
        # a thread of an earlier iteration came, or ranks would part ways.
        iterator = _DeviceIterator(_Source(iter(self._source)), self._xla_device)
        self._iterator = weakref.ref(iterator)
        return iterator

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is epoch number `epoch`, from its start."""
        self._source.set_epoch(epoch)

    def close(self) -> None:
        """End the iteration that is open, if any, and the decoding threads."""
        self._close_iterator()
        self._source.close()

    def _close_iterator(self) -> None:
        iterator = None if self._iterator is None else self._iterator()
        if iterator is not None:
            iterator.close()


class _Source(Iterator[Any]):
    """What ParallelLoader iterates, in a thread of its own: it never raises anything but StopIteration."""

    def __init__(self, epoch: EpochIterator) -> None:
        self._epoch = epoch
        self.exception: BaseException | None = None
        self.aborted = False

    def __next__(self) -> Any:
        if self.exception is not None or self.aborted:
            raise StopIteration
        try:
            return to_torch(next(self._epoch))
        except StopIteration:
            raise
        except BaseException as error:  # noqa: BLE001  # KeyboardInterrupt as well: the consumer must see it
            self.exception = error
            raise StopIteration from None

    def abort(self) -> None:
        """End soon, also when a batch is being waited for in another thread."""
        self.aborted = True
        self._epoch.close()


class _DeviceIterator(Iterator[Any]):
    """An epoch on the device."""

    _open = False  # until there is something to close

    def __init__(self, source: _Source, device: Any) -> None:
        self._source = source
        self._parallel = parallel_loader.ParallelLoader(source, [device], **_QUEUES)
        self._batches = iter(self._parallel.per_device_loader(device))
        self._open = True

    def __next__(self) -> Any:
        if not self._open:
            raise StopIteration
        try:
            batch = next(self._batches)
        except StopIteration:
            self.close()
            exception, self._source.exception = self._source.exception, None
            if exception is None:
                raise
            try:
                raise exception from None
            finally:
                del exception  # a cycle: its traceback holds this frame, and that the decoding threads
        except BaseException:
            self.close()
            raise
        return tuple(batch) if isinstance(batch, list) else batch

    def close(self) -> None:
        """Stop and join the threads; what is prefetched is dropped."""
        if self._open:
            self._open = False
            self._source.abort()
            self._parallel.close()

    def __del__(self) -> None:
        self.close()


def to_torch(batch: Batch) -> Any:
    """The batch as torch tensors that share its memory; strings stay as they are, on the host."""
    if isinstance(batch, Mapping):
        return {name: _tensor(array) for name, array in batch.items()}
    return tuple(map(_tensor, batch)) if isinstance(batch, tuple) else _tensor(batch)


def to_device_float(
    images: Any,
    mean: Sequence[float] = IMAGENET_MEAN,
    std: Sequence[float] = IMAGENET_STD,
    *,
    dtype: Any = None,
    layout: Literal["NCHW", "NHWC"] = "NCHW",
) -> Any:
    """uint8 NHWC images, on their device, as normalised floats: a quarter of the bytes of float32 had to cross to it.

    `(image / 255 - mean) / std`, computed in float32.

    Args:
        images: uint8 of shape (batch, height, width, 3).
        mean: of each channel, for values in [0, 1]; likewise std.
        dtype: of the result, `torch.bfloat16` by default.
        layout: of the result.
    """
    scale = torch.tensor([1 / (255 * s) for s in std], dtype=torch.float32, device=images.device)
    shift = torch.tensor([-m / s for m, s in zip(mean, std, strict=True)], dtype=torch.float32, device=images.device)
    result = (images.to(torch.float32) * scale + shift).to(torch.bfloat16 if dtype is None else dtype)
    return result.permute(0, 3, 1, 2) if layout == "NCHW" else result


def _tensor(array: Any) -> Any:
    return array if array.dtype == object else torch.from_numpy(array)


def _world() -> World:
    """Ranks of torch_xla: under SPMD its world_size is 1, and each process feeds all devices of its host."""
    if runtime.is_spmd():
        return World(runtime.process_index(), runtime.process_count())
    return World(runtime.global_ordinal(), runtime.world_size())
