"""Batches on a device ahead of need: a thread pulls the next few while the training loop computes."""

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, TypeVar

from tpufeed.errors import LoaderError

Arrival = TypeVar("Arrival")


class Puller(ABC, Generic[Arrival]):
    """Takes batches from a source and sends them; called in one thread at a time."""

    def __init__(self) -> None:
        self.thread = 0
        self._over = False

    def pull(self) -> Arrival | None:
        """The next batch; None at the end, and ever after an exception."""
        self.thread = threading.get_ident()
        over, self._over = self._over, True
        if over:
            return None
        arrival = self._pull_next()
        self._over = arrival is None
        return arrival

    def close(self) -> None:
        """Give up a batch that another thread waits for, where the source can."""

    @abstractmethod
    def _pull_next(self) -> Arrival | None:
        """As `pull`."""


class AheadIterator(ABC, Iterator[Any], Generic[Arrival]):
    """Hands out what a puller sends, `size` of it ahead. Leaving it early needs no `close`, which any thread may call.

    The first one is pulled in the caller's thread.
    """

    _closed = False

    def __init__(self, size: int, thread_name: str) -> None:
        self._size = size
        self._thread_name = thread_name
        self._why = ""
        self._puller: Puller[Arrival] | None = None
        self._executor: ThreadPoolExecutor | None = None
        self._ahead: deque[Future[Arrival | None]] = deque()

    def __next__(self) -> Any:
        if self._closed:
            raise LoaderError(self._why) if self._why else StopIteration
        try:
            arrival = self._first() if self._executor is None else self._ahead.popleft().result()
            if arrival is None:
                raise StopIteration
            self._pull_ahead()
            return self._receive(arrival)
        except BaseException as error:
            why = self._why  # another thread has closed it meanwhile
            self.close()
            if why and isinstance(error, Exception):
                raise LoaderError(why) from None
            raise

    def __del__(self) -> None:
        self.close()

    def close(self, why: str = "") -> None:
        """End the thread, after the batch that it is at; those ahead are dropped. Whoever goes on is told why."""
        if self._closed:
            return
        self._why, self._closed = why, True
        puller, self._puller = self._puller, None
        if puller is None:
            return
        puller.close()
        if self._executor is not None:
            # The garbage collector may have come by in that very thread, which cannot wait for itself.
            self._executor.shutdown(wait=puller.thread != threading.get_ident(), cancel_futures=True)
        self._ahead.clear()

    @abstractmethod
    def _begin(self) -> Arrival | None:
        """Make `_puller`, and give its first batch."""

    @abstractmethod
    def _receive(self, arrival: Arrival) -> Any:
        """The batch for the training loop, which has it from now on."""

    def _first(self) -> Arrival | None:
        arrival = self._begin()
        self._executor = ThreadPoolExecutor(1, self._thread_name)
        return arrival

    def _pull_ahead(self) -> None:
        executor, puller = self._executor, self._puller
        if executor is not None and puller is not None:
            while len(self._ahead) < self._size:
                self._ahead.append(executor.submit(puller.pull))
