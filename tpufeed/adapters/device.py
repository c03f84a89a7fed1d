"""Base of feeds that put batches on a device ahead of need: how ranks meet, how batches are prefetched, how it ends.

A framework adds a folder with a feed that derives from `DeviceFeed` and opens `Transfer`s.
"""

import logging
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for_futures
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

from tpufeed.adapters.feed import StatelessFeed
from tpufeed.adapters.foreign import ForeignStream
from tpufeed.display.summary import Summary
from tpufeed.errors import LoaderError
from tpufeed.stream.host import HostStream
from tpufeed.stream.rank_check import EpochSpec, begin_together

_LOGGER = logging.getLogger(__name__)
_CLOSE_SECONDS = 10.0  # to wait for a loader when closing. A user's own loader may never return

Exchange = Callable[[EpochSpec], Sequence[EpochSpec]]


@dataclass(slots=True, repr=False)
class DeviceStats(Summary):
    """Metrics of a feed since it was made. Subtract two of them for a part of a run.

    Attributes:
        batches: batches handed out.
        wait_seconds: seconds that the training loop waited for batches, without torch_xla's tracing and compiling
            within `next`.
        transfer_seconds: seconds that a host thread spent sending batches.
        transfer_bytes: bytes sent by this process.
        host: the host loader's `stats()`, which count that thread's waits. None if it has none.
    """

    batches: int = 0
    wait_seconds: float = 0.0
    transfer_seconds: float = 0.0
    transfer_bytes: int = 0
    host: Any = None


class Transfer(ABC):
    """The batches of one iteration and how they get to the device.

    Attributes:
        batches: the loader's batches.
        close: cancels a batch that another thread waits for. None if the loader cannot do that.
        spec: what ranks compare before they begin. None if they do not.
        thread: the thread that prefetches.
    """

    batches: Iterator[Any]
    close: Callable[[], None] | None = None
    spec: EpochSpec | None = None
    thread = 0
    _ended = False

    @abstractmethod
    def send(self, batch: Any) -> tuple[Any, int]:
        """Send a batch. Return what `receive` takes, and the bytes sent. Called in one thread at a time."""

    def receive(self, sent: Any) -> Any:
        """Return the batch for the training loop, in its thread."""
        return sent

    def before_step(self) -> None:  # noqa: B027  # most frameworks need nothing
        """Do what the framework does between two steps, before the next batch is waited for."""

    def fetch(self, feed: "DeviceFeed") -> tuple[Any, Any] | None:
        """Send the next batch. Return it with the loader's place after it. None at the end, and after an exception."""
        if self._ended:
            return None
        # Until the batch is sent: fetches that were queued before an exception then find the end, not a broken loader.
        self._ended = True
        try:
            batch = next(self.batches)
        except StopIteration:
            return None
        place = feed.stream.taken()
        begin = perf_counter()
        sent, size = self.send(batch)
        feed.counts.transfer_seconds += perf_counter() - begin
        feed.counts.transfer_bytes += size
        self._ended = False
        return sent, place

    def fetch_ahead(self, feed: "DeviceFeed") -> tuple[Any, Any] | None:
        """Do the same in the thread that prefetches."""
        self.thread = threading.get_ident()
        return self.fetch(feed)


class DeviceFeed(StatelessFeed, ABC):
    """A feed whose batches are on a device ahead of need. One thread at a time iterates.

    Prefetching keeps the loader ahead of the training loop, with `repeat` maybe by an epoch or more. So the feed tells
    it the place of each batch that is handed out.

    Args:
        stream: gives batches on the host: a `HostStream`, or a `ForeignStream`.
        device_prefetch: batches on the device ahead of the one in use.

    Attributes:
        counts: `stats()` without those of the host.
    """

    thread_name = "tpufeed-device"

    def __init__(self, stream: HostStream | ForeignStream, device_prefetch: int) -> None:
        super().__init__(stream)
        self.device_prefetch = device_prefetch
        self.counts = DeviceStats()  # one thread adds to each field

    @abstractmethod
    def open_transfer(self) -> Transfer:
        """Open the loader's next epoch, in the thread of the training loop: processes may be forked here."""

    def find_exchange(self) -> tuple[Exchange, int] | None:
        """Return how ranks exchange specs, and this rank's number. None if they do not compare."""
        return None

    @property
    def host(self) -> HostStream | None:
        """The stream of numpy batches. None for a loader that is not tpufeed's."""
        return self.stream if isinstance(self.stream, HostStream) else None

    def __iter__(self) -> "DeviceIterator":
        """Return the next epoch, and with `repeat` all later ones.

        The epoch begins with its first batch, which ends an earlier iteration: some frameworks call `iter` only to see
        whether they can.
        """
        return DeviceIterator(self)

    def stats(self) -> DeviceStats:
        """Return what sending batches has taken so far, and how long the training loop waited."""
        return replace(self.counts, host=self.stream.stats())

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "counts": DeviceStats()}


class DeviceIterator(Iterator[Any]):
    """One iteration of a `DeviceFeed`. Leaving it early needs no `close`, which any thread may call.

    The first batch is fetched and sent in the thread of the training loop: there ranks meet, processes are forked and
    frameworks start. A thread of the iteration fetches the others, `device_prefetch` batches ahead.
    """

    def __init__(self, feed: DeviceFeed) -> None:
        self._feed = feed
        self._restart()

    def _restart(self) -> None:
        self._why, self._closed = "", False
        self._transfer: Transfer | None = None
        self._executor: ThreadPoolExecutor | None = None
        self._ahead: deque[Future[Any]] = deque()

    def __next__(self) -> Any:
        if self._closed:
            raise LoaderError(self._why) if self._why else StopIteration
        feed = self._feed
        try:
            if self._transfer is not None:
                self._transfer.before_step()
            begin = perf_counter()
            fetched = self._fetch_first() if self._executor is None else self._ahead.popleft().result()
            feed.counts.wait_seconds += perf_counter() - begin
            transfer, executor = self._transfer, self._executor
            if fetched is None or transfer is None or executor is None:  # at the end, or closed by another thread
                raise StopIteration
            while len(self._ahead) < feed.device_prefetch:
                self._ahead.append(executor.submit(transfer.fetch_ahead, feed))  # without a reference to `self`
            sent, place = fetched
            feed.stream.hand_out(place)
            feed.counts.batches += 1
            return transfer.receive(sent)
        except BaseException as error:
            why = self._why  # another thread has closed it meanwhile
            self.close()
            if why and isinstance(error, Exception):
                raise LoaderError(why) from None
            raise

    def __del__(self) -> None:
        if threading is not None:  # when the interpreter exits, modules are gone, and so are threads
            self.close()

    def close(self, why: str = "") -> None:
        """End the thread after its current batch, and drop batches taken ahead. The next `next` raises `why`."""
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
            return  # the garbage collector runs in that very thread, which cannot wait for itself
        running = wait_for_futures([future for future in ahead if not future.cancelled()], _CLOSE_SECONDS).not_done
        if running:
            _LOGGER.warning(
                "the loader is still busy with a batch after %g s; its thread is left running", _CLOSE_SECONDS
            )
        else:
            executor.shutdown()

    def _fetch_first(self) -> tuple[Any, Any] | None:
        """Begin the iteration, and return its first batch once all ranks have theirs."""
        feed = self._feed
        feed.stream.lead(self)
        found = feed.find_exchange()

        def begin() -> tuple[EpochSpec, tuple[Any, Any] | None]:
            transfer = self._transfer = feed.open_transfer()
            transfer.before_step()
            # With the first batch: if a rank fails to make it, all ranks learn of that before their first step.
            fetched = transfer.fetch(feed)
            assert found is None or transfer.spec is not None, "without a spec, ranks would compare nothing"
            return transfer.spec or EpochSpec(0, 0), fetched

        fetched = begin()[1] if found is None else begin_together(*found, begin)
        self._executor = ThreadPoolExecutor(1, feed.thread_name)
        return fetched
