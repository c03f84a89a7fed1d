"""torch_xla: batches on XLA devices through its ParallelLoader, with the holes closed."""

import dataclasses
import logging
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Protocol, Unpack, runtime_checkable

from tpufeed.dataset.partition import World
from tpufeed.dataset.reader import open_dataset
from tpufeed.errors import LoaderError, OptionError
from tpufeed.loaders.options import OPTION_NAMES, LoaderKeywords, make_options
from tpufeed.loaders.xla import runtime
from tpufeed.loaders.xla.runtime import Shardings, Transfer, exchange, spmd_devices, xla_world

# Not before: without torch it is the extra "xla" that is missing.
# isort: split
from tpufeed.loaders.device import DeviceStats, StatefulDeviceLoader
from tpufeed.loaders.loader import NumpyLoader
from tpufeed.loaders.rank_check import EpochSpec, check_specs
from tpufeed.loaders.torch.loader import EpochSampler, TorchLoader, Undivided
from tpufeed.loaders.transfer import TransferItem, TransferItems

_LOGGER = logging.getLogger(__name__)
_STOPPING_SECONDS = 10.0


class XlaKeywords(LoaderKeywords, total=False):
    """The keywords of `xla_loader`: those of every loader, and what `XlaOptions` explains."""

    device: Any
    sharding: Any
    host_prefetch: int
    device_prefetch: int
    check_ranks: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class XlaOptions:
    """Options that say how batches get to a device.

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
    """Loader of batches on an XLA device, see `xla_loader`: an `MpDeviceLoader`, so that Lightning leaves it as it is.

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
        """Device that batches go to."""
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

    def __iter__(self) -> "DeviceIterator":
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
        """Names of the columns that cross to the device, as far as they are known."""
        if isinstance(self.source, NumpyLoader):
            return self.source.form.names
        return tuple(self.options.sharding) if isinstance(self.options.sharding, Mapping) else ()

    @property
    def compares_ranks(self) -> bool:
        """True where the ranks have to agree before they begin."""
        by_hand = isinstance(self.source, NumpyLoader) and self.source.options.world is not None
        return self.options.check_ranks and not by_hand


@runtime_checkable
class Counting(Protocol):
    """A host loader that counts what it does."""

    def stats(self) -> Any:
        """Return the host loader's metrics, see `LoaderStats`."""


class _Unopened:
    """Placeholder of a source that could not be made, until the ranks meet."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __iter__(self) -> Iterator[Any]:
        raise self._error

    def __len__(self) -> int:
        raise self._error


class DeviceIterator(Iterator[Any]):
    """Batches on the device. Begins when the first is asked for, in that thread: torch_xla knows ranks by thread."""

    def __init__(self, loader: XlaLoader) -> None:
        self._loader = loader
        self._items: TransferItems | None = None
        self._transfer: Transfer | None = None
        self._on_device: Iterator[TransferItem] = iter(())
        self._ended = False
        self._stopped = ""

    def __next__(self) -> Any:
        if self._ended:
            raise StopIteration
        if self._stopped:
            raise LoaderError(self._stopped)
        try:
            item = self._begin() if self._transfer is None else self._receive()
            _raise(item)
        except BaseException:
            self.close("its last batch failed; iterate the loader again to go on")
            raise
        if item.last:
            self._ended = True
            self.close()
            raise StopIteration
        self._loader.handed(item.state)
        return item.open()

    def close(self, why: str = "") -> None:
        """Stop and join the threads; what is prefetched is dropped. Asking for more raises LoaderError(`why`)."""
        self._stopped = self._stopped or why
        self._ended = self._ended or not self._stopped
        items, transfer = self._items, self._transfer
        self._items, self._transfer, self._on_device = None, None, iter(())
        if items is not None and transfer is not None:
            items.abort()
            _close(transfer)

    def __del__(self) -> None:
        self.close()

    def _begin(self) -> TransferItem:
        """The first batch, once all ranks have theirs."""
        self._loader.begin(self)
        world = xla_world()
        together = world.size > 1 and self._loader.compares_ranks
        spec, first = EpochSpec(world.rank, 0), TransferItem()
        try:
            spec = self._open(world, together)
            # As well: what keeps a rank from its first batch shows on all ranks before the first step.
            first = self._receive()
        except Exception as error:  # noqa: BLE001  # is raised below, when the other ranks know
            first.error = error
        if together:
            if first.error is not None:
                spec = dataclasses.replace(spec, error=f"{type(first.error).__name__}: {first.error}")
            _agree(spec, world, first)
        return first

    def _open(self, world: World, together: bool) -> EpochSpec:
        """Begin to fetch batches. The source is opened in the caller's thread, and an epoch's workers forked there."""
        loader, source = self._loader, self._loader.source
        _check_world(source, world)
        _check_sharding(loader, world)
        device = loader.device
        batches: Any = iter(source)
        count = _length(batches, source)
        if together and count is None:
            raise OptionError(
                f"the ranks cannot know whether they take the same steps: a {type(source).__name__} has no length; "
                "give it a __len__, or check_ranks=False"
            )
        state = source.state_dict() if hasattr(source, "load_state_dict") else None
        loader.place_at(state)  # before its threads take batches
        ours = isinstance(source, NumpyLoader)
        self._items = TransferItems(
            batches,
            loader.column_names,
            None if state is None else source.state_dict,
            batches.close if ours else None,
            # Those with states may go on in mid-epoch, and have fewer then.
            count if together and state is None else None,
        )
        queues = loader.options.host_prefetch, loader.options.device_prefetch
        self._transfer = Transfer(self._items, device, loader.shardings, loader.crossing, queues)
        self._on_device = iter(self._transfer.per_device_loader(device))  # type: ignore[no-untyped-call]
        return source.epoch_spec() if ours else EpochSpec(world.rank, count or 0, loader.batch_size)

    def _receive(self) -> TransferItem:
        try:
            return next(self._on_device)
        except StopIteration:
            raise LoaderError(self._stopped or "torch_xla's threads ended before the source did") from None


def _raise(item: TransferItem) -> None:
    error, item.error = item.error, None  # a cycle otherwise: its traceback leads to frames that hold the item,
    if error is not None:
        try:
            raise error
        finally:
            del error  # and to this one; and so to the decoding threads


def _agree(spec: EpochSpec, world: World, first: TransferItem) -> None:
    try:
        check_specs(exchange(spec, world))
    except LoaderError as error:
        cause, first.error = first.error, None
        try:
            raise error from cause
        finally:
            del cause


def _close(transfer: Transfer) -> None:
    """Join its threads. Not for ever, as torch_xla does: one may be inside a source that never returns."""
    if sys.is_finalizing():
        return
    closing = threading.Thread(target=transfer.close, name="tpufeed-xla-closing", daemon=True)
    closing.start()
    closing.join(_STOPPING_SECONDS)
    if closing.is_alive():
        _LOGGER.warning("the source is still busy with a batch after %g s; its thread is left to it", _STOPPING_SECONDS)


def _length(batches: Iterator[Any], source: Iterable[Any]) -> int | None:
    """Batches that are to come; None where nobody knows."""
    for sized in (batches, source):
        try:
            return len(sized)  # type: ignore[arg-type]  # may have none
        except (TypeError, NotImplementedError):  # as torch's samplers without a length raise
            continue
    return None


def _check_world(source: Any, world: World) -> None:
    if isinstance(source, NumpyLoader) and source.options.world is None and source.world != world:
        raise OptionError(
            f"the loader given is rank {source.world.rank} of {source.world.size}, torch_xla's is {world.rank} of "
            f"{world.size}; give xla_loader the URL, or the loader world=({world.rank}, {world.size})"
        )


def _check_sharding(loader: XlaLoader, world: World) -> None:
    devices, source = spmd_devices(), loader.source
    ours = isinstance(source, NumpyLoader)
    if loader.shardings is None:
        if devices is not None and ours and world.size > 1:
            raise OptionError(
                f"under SPMD, {world.size} processes read samples of their own; give sharding with minibatch=True, "
                "or XLA takes their batches for copies of one"
            )
    elif devices is None:
        raise OptionError("sharding is for SPMD; call torch_xla.runtime.use_spmd() before anything is on a device")
    else:
        names = [name for name in source.form.names if source.column_dtype(name).kind != "O"] if ours else ()
        loader.shardings.check(names, loader.batch_size, devices, world.size if ours else 1)
