"""An epoch on an XLA device: from the ranks' check to the last batch."""

import dataclasses
import logging
import sys
import threading
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from tpufeed.dataset.partition import World
from tpufeed.errors import LoaderError, OptionError
from tpufeed.loaders.parcels import Outbox, Parcel
from tpufeed.loaders.rank_check import EpochSpec, check_specs
from tpufeed.loaders.stream import NumpyLoader
from tpufeed.loaders.xla.runtime import Transfer, exchange, spmd_devices, xla_world

if TYPE_CHECKING:
    from tpufeed.loaders.xla.loader import XlaLoader

_LOGGER = logging.getLogger(__name__)

_STOPPING_SECONDS = 10.0


class DeviceIterator(Iterator[Any]):
    """Batches on the device. Begins when the first is asked for, in that thread: torch_xla knows ranks by thread."""

    def __init__(self, loader: "XlaLoader") -> None:
        self._loader = loader
        self._outbox: Outbox | None = None
        self._transfer: Transfer | None = None
        self._parcels: Iterator[Parcel] = iter(())
        self._ended = False
        self._stopped = ""

    def __next__(self) -> Any:
        if self._ended:
            raise StopIteration
        if self._stopped:
            raise LoaderError(self._stopped)
        try:
            parcel = self._begin() if self._transfer is None else self._receive()
            _raise(parcel)
        except BaseException:
            self.close("its last batch failed; iterate the loader again to go on")
            raise
        if parcel.last:
            self._ended = True
            self.close()
            raise StopIteration
        self._loader.handed(parcel.state)
        return parcel.open()

    def close(self, why: str = "") -> None:
        """Stop and join the threads; what is prefetched is dropped. Asking for more raises LoaderError(`why`)."""
        self._stopped = self._stopped or why
        self._ended = self._ended or not self._stopped
        outbox, transfer = self._outbox, self._transfer
        self._outbox, self._transfer, self._parcels = None, None, iter(())
        if outbox is not None and transfer is not None:
            outbox.abort()
            _close(transfer)

    def __del__(self) -> None:
        self.close()

    def _begin(self) -> Parcel:
        """The first batch, once all ranks have theirs."""
        self._loader.begin(self)
        world = xla_world()
        together = world.size > 1 and self._loader.compares_ranks
        spec, first = EpochSpec(world.rank, 0), Parcel()
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
        self._outbox = Outbox(
            batches,
            loader.column_names,
            None if state is None else source.state_dict,
            batches.close if ours else None,
            # Those with states may go on in mid-epoch, and have fewer then.
            count if together and state is None else None,
        )
        queues = loader.options.host_prefetch, loader.options.device_prefetch
        self._transfer = Transfer(self._outbox, device, loader.shardings, loader.crossing, queues)
        self._parcels = iter(self._transfer.per_device_loader(device))  # type: ignore[no-untyped-call]
        return source.epoch_spec() if ours else EpochSpec(world.rank, count or 0, loader.batch_size)

    def _receive(self) -> Parcel:
        try:
            return next(self._parcels)
        except StopIteration:
            raise LoaderError(self._stopped or "torch_xla's threads ended before the source did") from None


def _raise(parcel: Parcel) -> None:
    error, parcel.error = parcel.error, None  # a cycle otherwise: its traceback leads to frames that hold the parcel,
    if error is not None:
        try:
            raise error
        finally:
            del error  # and to this one; and so to the decoding threads


def _agree(spec: EpochSpec, world: World, first: Parcel) -> None:
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


def _check_sharding(loader: "XlaLoader", world: World) -> None:
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
