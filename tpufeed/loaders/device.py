"""The base of loaders that put batches on a device ahead of need.

A framework adds a folder with a loader that derives from `DeviceLoader` and opens `Transfer`s. State, epochs, ranks,
statistics, prefetching and closing stand here.
"""

import logging
import threading
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for_futures
from copy import copy
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any, Self

from tpufeed.errors import LoaderError, OptionError
from tpufeed.loaders.loader import Adapter, NumpyLoader
from tpufeed.loaders.rank_check import EpochSpec, begin_together
from tpufeed.options import Count, checked

_LOGGER = logging.getLogger(__name__)
_CLOSE_SECONDS = 10.0  # that closing waits for a source; one that is not ours may never return

Exchange = Callable[[EpochSpec], Sequence[EpochSpec]]


@dataclass(slots=True)
class Crossing:
    """Counts of a loader's way to its device; one thread adds to each field."""

    batches: int = 0
    wait_seconds: float = 0.0
    transfer_seconds: float = 0.0
    transfer_bytes: int = 0


@dataclass(frozen=True, slots=True)
class DeviceStats:
    """Counts of a loader since it was made; take the difference of two for a part of a run.

    Attributes:
        batches: batches handed out.
        wait_seconds: seconds that the training loop waited for batches, without torch_xla's tracing and compiling
            within `next`.
        transfer_seconds: seconds of a host thread that sending batches took.
        transfer_bytes: bytes sent by this process.
        host: the host loader's `stats()`, whose waits are those of that thread; None where it has none.
    """

    batches: int
    wait_seconds: float
    transfer_seconds: float
    transfer_bytes: int
    host: Any


class Transfer(ABC):
    """The batches of one iteration and how they get to the device.

    Attributes:
        batches: of the source.
        close: gives up a batch that another thread waits for; None where the source cannot.
        spec: what ranks compare before they begin; None where they do not.
    """

    batches: Iterator[Any]
    close: Callable[[], None] | None = None
    spec: EpochSpec | None = None
    thread = 0  # that prefetches
    _ended = False

    def next_batch(self) -> Any:
        """Return the next batch of the source; raises StopIteration at the end."""
        return next(self.batches)

    @abstractmethod
    def send(self, batch: Any) -> tuple[Any, int]:
        """Send a batch: what `receive` takes, and the bytes sent. Called in one thread at a time."""

    def receive(self, sent: Any) -> Any:
        """Return the batch for the training loop, in its thread."""
        return sent

    def before_step(self) -> None:  # noqa: B027  # most frameworks need nothing
        """Do what the framework does between two steps, before the next batch is waited for."""

    def fetch(self, loader: "DeviceLoader") -> tuple[Any, Any] | None:
        """Return the next batch, sent, and the source's state behind it; None at the end, and after an exception."""
        if self._ended:
            return None
        # Until the batch is sent: fetches that were queued before an exception then find the end, not a broken source.
        self._ended = True
        try:
            batch = self.next_batch()
        except StopIteration:
            return None
        state = getattr(loader.source, "state_dict", lambda: None)()
        begin = perf_counter()
        sent, size = self.send(batch)
        loader.crossing.transfer_seconds += perf_counter() - begin
        loader.crossing.transfer_bytes += size
        self._ended = False
        return sent, state

    def fetch_ahead(self, loader: "DeviceLoader") -> tuple[Any, Any] | None:
        """Return the same in the thread that prefetches."""
        self.thread = threading.get_ident()
        return self.fetch(loader)


class DeviceLoader(Adapter, ABC):
    """A loader of a source's batches, on a device ahead of need. One thread at a time iterates.

    The source is ahead of the training loop by what is prefetched, with `repeat` maybe by an epoch or more. So the
    place of the training loop is the state that the source had when it gave the batch that was handed out last: states,
    copies and the next iteration start there.

    Args:
        source: the host loader.
        device_prefetch: batches on the device ahead of the one in use.
    """

    thread_name = "tpufeed-device"

    @checked()
    def __init__(self, source: Any, device_prefetch: Count) -> None:
        self.source = source
        self.device_prefetch = device_prefetch
        self.crossing = Crossing()
        self._handed: Any = None
        self._open: weakref.ref[DeviceIterator] | None = None  # weakly, so that one that is dropped ends itself
        self._resuming = False

    @abstractmethod
    def open_transfer(self) -> Transfer:
        """Open the source's next epoch, in the thread of the training loop: processes may be forked here."""

    def find_exchange(self) -> tuple[Exchange, int] | None:
        """Return what ranks exchange specs by, and the number of this one; None where they do not compare."""
        return None

    @property
    def host(self) -> NumpyLoader | None:
        """The loader of numpy batches behind the source; None where the source is not of tpufeed."""
        host = getattr(self.source, "source", self.source)
        return host if isinstance(host, NumpyLoader) else None

    def __len__(self) -> int:
        """Batches of an epoch, the same on every rank."""
        return len(self.source)

    def __iter__(self) -> "DeviceIterator":
        """The next epoch, and with `repeat` all that follow.

        The epoch begins with its first batch, and an earlier iteration ends then: frameworks call `iter` only to see
        whether they can.
        """
        return DeviceIterator(self)

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration epoch number `epoch`, from its start; an iteration that is open ends.

        Straight after `load_state_dict` the rest of that state's epoch stays the rest: training loops name each epoch
        before they iterate it, also the one that they go on with. Where the source does not number its epochs, its
        dataset and sampler are told.
        """
        if self._resuming and self.source.state_dict().get("epoch") == epoch:
            return
        self._end("set_epoch was called in the midst of an epoch; call it before `for`, or leave the loop first")
        self._resuming, self._handed = False, None
        if hasattr(self.source, "set_epoch"):
            parts = [self.source]
        else:
            batch_sampler = getattr(self.source, "batch_sampler", None)
            parts = [getattr(self.source, "dataset", None), getattr(self.source, "sampler", None), batch_sampler]
            parts.append(getattr(batch_sampler, "sampler", None))
        for part in {id(part): part for part in parts}.values():
            getattr(part, "set_epoch", lambda _: None)(epoch)

    def stats(self) -> DeviceStats:
        """Return what the way to the device has taken so far, and what the training loop waited for."""
        host = getattr(self.source, "stats", None)
        return DeviceStats(**asdict(self.crossing), host=host() if callable(host) else None)

    def close(self) -> None:
        """End the open iteration, and close the source where it can be. Iterating again opens it again."""
        self._end("the loader was closed; iterate it again to go on")
        getattr(self.source, "close", lambda: None)()

    @property
    def is_iterated(self) -> bool:
        """True while an iteration is open, whose thread may be at work in the source."""
        return self._open is not None and self._open() is not None

    def __repr__(self) -> str:
        """Return the source, which may be ahead, and the training loop's place once it was handed a batch."""
        place = self._handed if isinstance(self._handed, Mapping) else {}
        said = [f"{name}={place[name]}" for name in ("epoch", "samples") if name in place]
        return f"{type(self).__name__}({', '.join([repr(self.source), *said])})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        """Return what a pickle or a copy has: a source of its own at the training loop's place, and no iteration."""
        source = self.source
        if hasattr(source, "load_state_dict"):
            source = copy(source)
            if self._handed is not None:
                source.load_state_dict(self._handed)
        return {**self.__dict__, "source": source, "crossing": Crossing(), "_handed": None, "_open": None}

    def _end(self, why: str) -> None:
        """End the open iteration, if any; its loop is told why."""
        iteration = None if self._open is None else self._open()
        if iteration is not None:
            iteration.close(why)
        self._open = None


class StatefulDeviceLoader(DeviceLoader):
    """A `DeviceLoader` whose source may have states: frameworks ask whether the methods are there."""

    def state_dict(self) -> Any:
        """Return where the training loop is: what it has been handed, not what is prefetched. Plain data.

        Empty where the source keeps none, as a torch DataLoader; torchdata's StatefulDataLoader does.
        """
        if self._handed is not None:
            return dict(self._handed) if isinstance(self._handed, Mapping) else self._handed
        return self.source.state_dict() if hasattr(self.source, "state_dict") else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state` says, also with another world size, if its lanes can be dealt to that.

        Raises:
            OptionError: the state is of another dataset, split, seed, order or version, its lanes cannot be dealt, or
                one of its numbers cannot be. An iteration that is open has ended.
        """
        if not hasattr(self.source, "load_state_dict"):
            if state:
                raise OptionError(f"a {type(self.source).__name__} keeps no state; this one is of another loader")
            return
        self._end("load_state_dict was called in the midst of an epoch; call it before `for`, or leave the loop first")
        self.source.load_state_dict(state)
        self._handed = None
        self._resuming = isinstance(state, Mapping) and "epoch" in state


class DeviceIterator(Iterator[Any]):
    """One iteration of a `DeviceLoader`. Leaving it early needs no `close`, which any thread may call.

    The first batch is fetched and sent in the thread of the training loop, where ranks meet, processes are forked and
    frameworks start; the others in a thread of the iteration, `device_prefetch` of them ahead.
    """

    def __init__(self, loader: DeviceLoader) -> None:
        self._loader = loader
        self._restart()

    def _restart(self) -> None:
        self._why, self._closed = "", False
        self._transfer: Transfer | None = None
        self._executor: ThreadPoolExecutor | None = None
        self._ahead: deque[Future[Any]] = deque()

    def __next__(self) -> Any:
        if self._closed:
            raise LoaderError(self._why) if self._why else StopIteration
        loader = self._loader
        try:
            if self._transfer is not None:
                self._transfer.before_step()
            begin = perf_counter()
            fetched = self._fetch_first() if self._executor is None else self._ahead.popleft().result()
            loader.crossing.wait_seconds += perf_counter() - begin
            transfer, executor = self._transfer, self._executor
            if fetched is None or transfer is None or executor is None:  # the end, or another thread has closed it
                raise StopIteration
            while len(self._ahead) < loader.device_prefetch:
                self._ahead.append(executor.submit(transfer.fetch_ahead, loader))  # without a reference to `self`
            sent, loader._handed = fetched
            loader.crossing.batches += 1
            return transfer.receive(sent)
        except BaseException as error:
            why = self._why  # another thread has closed it meanwhile
            self.close()
            if why and isinstance(error, Exception):
                raise LoaderError(why) from None
            raise

    def __del__(self) -> None:
        if threading is not None:  # at the end of the interpreter modules are gone, and threads are over
            self.close()

    def close(self, why: str = "") -> None:
        """End the thread, after the batch that it is at; those ahead are dropped. The next `next` raises `why`."""
        if self._closed:
            return
        # Before the transfer is closed: that wakes a loop in another thread, which looks here for what to raise.
        self._why, self._closed = why, True
        transfer, self._transfer = self._transfer, None
        executor, ahead = self._executor, list(self._ahead)
        self._ahead.clear()
        if transfer is not None and transfer.close is not None:
            transfer.close()
        if executor is None:
            return
        executor.shutdown(wait=False, cancel_futures=True)
        if transfer is not None and transfer.thread == threading.get_ident():
            return  # the garbage collector came by in that very thread, which cannot wait for itself
        running = wait_for_futures([future for future in ahead if not future.cancelled()], _CLOSE_SECONDS).not_done
        if running:
            _LOGGER.warning(
                "the source is still busy with a batch after %g s; its thread is left to it", _CLOSE_SECONDS
            )
        else:
            executor.shutdown()

    def _fetch_first(self) -> tuple[Any, Any] | None:
        """Begin the iteration: the first batch, once all ranks have theirs."""
        loader = self._loader
        loader._end("another iteration was begun")
        loader._open, loader._resuming = weakref.ref(self), False
        if loader._handed is not None and hasattr(loader.source, "go_on_after"):
            loader.source.go_on_after(loader._handed)
        found = loader.find_exchange()

        def begin() -> tuple[EpochSpec, tuple[Any, Any] | None]:
            transfer = self._transfer = loader.open_transfer()
            transfer.before_step()
            # The first batch as well: what keeps a rank from its first batch shows on all ranks before the first step.
            fetched = transfer.fetch(loader)
            return transfer.spec or EpochSpec(0, 0), fetched

        fetched = begin()[1] if found is None else begin_together(*found, begin)
        self._executor = ThreadPoolExecutor(1, loader.thread_name)
        return fetched
