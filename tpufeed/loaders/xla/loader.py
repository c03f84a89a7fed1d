"""torch_xla: batches on XLA devices through its ParallelLoader, with the holes closed."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Protocol, Unpack, runtime_checkable

from tpufeed.dataset.reader import open_dataset
from tpufeed.errors import OptionError
from tpufeed.loaders.options import OPTION_NAMES, LoaderKeywords, make_options
from tpufeed.loaders.xla import runtime

# Not before: without torch it is the extra "xla" that is missing.
# isort: split
from tpufeed.loaders.device import DeviceStats, StatefulDeviceLoader
from tpufeed.loaders.stream import NumpyLoader
from tpufeed.loaders.torch.loader import EpochSampler, TorchLoader, Undivided
from tpufeed.loaders.xla.epoch import DeviceIterator
from tpufeed.loaders.xla.sharding import Shardings


class XlaKeywords(LoaderKeywords, total=False):
    """The keywords of `xla_loader`: those of every loader, and what `XlaOptions` explains."""

    device: Any
    sharding: Any
    host_prefetch: int
    device_prefetch: int
    check_ranks: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class XlaOptions:
    """How batches get to a device.

    Attributes:
        device: where they go; by default `torch_xla.device()` of the thread that iterates.
        sharding: under SPMD, a `ShardingSpec` for each column by name, None for one that every device holds whole; or
            one spec for all, fitted to the rank of each tensor. Columns of a loader whose batches are tuples and that
            is not tpufeed's own take the names in their order.
        host_prefetch: batches that wait on the host for their transfer.
        device_prefetch: batches that wait on the device. Twice as many and one more may be there at a time.
        check_ranks: all ranks compare what they are about to iterate. False for a loader that only some of them
            iterate.
    """

    device: Any = None
    sharding: Any = None
    host_prefetch: int = 4
    device_prefetch: int = 2
    check_ranks: bool = True

    def __post_init__(self) -> None:
        for name in ("host_prefetch", "device_prefetch"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise OptionError(f"{name} is a whole number of batches, at least 1, not {value!r}")


def xla_loader(source: Any, split: str = "train", **options: Unpack[XlaKeywords]) -> "XlaLoader":
    """Batches on an XLA device, prefetched by torch_xla's ParallelLoader.

    `for image, label in loader` is one epoch: image uint8 (batch, height, width, 3), label int64 (batch,), on the
    device; see `to_device_float` for what a model wants. Tensors and numbers' arrays cross, also within tuples, lists
    and dicts; strings and all else stay as they are, on the host. What fails in the source or on the way is raised in
    the loop, after the batches before it.

    Inside `torch_xla.launch` each rank reads its own samples. Before the first batch of an epoch all ranks compare what
    they are about to iterate: where they would part ways, or one cannot begin, all raise the same LoaderError. A
    `world` given by hand is taken at its word instead.

    Args:
        source: a dataset, at a path or a URL; or a host loader that is to be wrapped, as a torch DataLoader, which then
            deals samples to ranks itself.
        split: which part of a dataset.
        **options: see `XlaOptions` and, for a dataset, `LoaderOptions`; the world is torch_xla's by default.

    Raises:
        MissingExtraError: torch_xla is not installed.
        UsageError: tensorflow was imported before torch_xla.
        DatasetNotFoundError, ManifestError: there is no dataset that can be read. Where there are several ranks, this
            and any other failure to open it is raised by all when they iterate.
        OptionError: options that do not fit it.
    """
    given: dict[str, Any] = dict(options)
    crossing = XlaOptions(**{field.name: given.pop(field.name) for field in fields(XlaOptions) if field.name in given})
    if not isinstance(source, str | Path):
        if given:
            raise OptionError(f"{', '.join(given)}: options of reading a dataset; the loader given has its own")
        return XlaLoader(source, crossing)
    try:
        reading = make_options(given, (*OPTION_NAMES, *(field.name for field in fields(XlaOptions))))
        return XlaLoader(NumpyLoader(open_dataset(source), split, reading, runtime.xla_world), crossing)
    except Exception as error:
        if runtime.xla_world().size == 1:
            raise
        return XlaLoader(_Unopened(error), crossing)  # the other ranks would wait for this one


class XlaLoader(Undivided, StatefulDeviceLoader, runtime.MpDeviceLoader):
    """See `xla_loader`: an `MpDeviceLoader`, so that Lightning leaves it as it is.

    Pickles and copies are loaders at the same place, without what is prefetched.
    """

    _is_accelerate_prepared = True  # or Accelerate would take it apart

    def __init__(self, source: Any, options: XlaOptions) -> None:
        source = source.source if isinstance(source, TorchLoader) else source
        if isinstance(source, Iterator | runtime.MpDeviceLoader) or not isinstance(source, Iterable):
            raise OptionError(
                f"a loader on the host that can be iterated again and again, as a torch DataLoader, or the URL of a "
                f"dataset is wanted, not {type(source).__name__}"
            )
        StatefulDeviceLoader.__init__(self, source)
        runtime.MpDeviceLoader.__init__(self, source, options.device)
        self.options = options
        self.shardings = None if options.sharding is None else Shardings(options.sharding)

    @property
    def device(self) -> Any:
        """Where batches go."""
        return runtime.default_device() if self.options.device is None else self.options.device

    @property
    def dataset(self) -> Any:
        """The source's, None where it has none; likewise `batch_size`."""
        return getattr(self.source, "dataset", None)

    @property
    def batch_size(self) -> int | None:
        """Samples in a batch."""
        size = getattr(self.source, "batch_size", None)
        return size if isinstance(size, int) else None

    @property
    def sampler(self) -> EpochSampler:
        """Takes `set_epoch`, as a DistributedSampler does; so does `batch_sampler.sampler`."""
        return EpochSampler(self)

    batch_sampler = sampler

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        return {**state, "_loader": state["source"]}  # as torch_xla calls it

    def __len__(self) -> int:
        """Batches of an epoch, the same on every rank."""
        return len(self.source)

    def __iter__(self) -> DeviceIterator:
        """The next epoch; it begins with its first batch: frameworks call `iter` only to see whether they can.

        With that an earlier one that is still open ends.
        """
        return DeviceIterator(self)

    def stats(self) -> DeviceStats:
        """Return what the way to the device has taken so far, and what the training loop waited for."""
        host = self.source.stats() if isinstance(self.source, Counting) else None
        return DeviceStats(**asdict(self.crossing), host=host)

    @property
    def column_names(self) -> tuple[str, ...]:
        """Of what crosses to the device, as far as they are known."""
        if isinstance(self.source, NumpyLoader):
            return self.source.form.names
        return tuple(self.options.sharding) if isinstance(self.options.sharding, Mapping) else ()

    @property
    def compares_ranks(self) -> bool:
        """Whether the ranks have to agree before they begin."""
        by_hand = isinstance(self.source, NumpyLoader) and self.source.options.world is not None
        return self.options.check_ranks and not by_hand


@runtime_checkable
class Counting(Protocol):
    """A host loader that counts what it does."""

    def stats(self) -> Any:
        """See `FeedStats`."""


class _Unopened:
    """In place of a source that could not be made, until the ranks meet."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __iter__(self) -> Iterator[Any]:
        raise self._error

    def __len__(self) -> int:
        raise self._error
