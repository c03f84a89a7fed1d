"""Batches on a device ahead of need: a thread pulls the next few while the training loop computes."""

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, TypeVar

from tpufeed.errors import LoaderError

DeviceBatch = TypeVar("DeviceBatch")


class Producer(ABC, Generic[DeviceBatch]):
    """Takes batches from a source and sends them; called in one thread at a time."""

    def __init__(self) -> None:
        self.thread = 0
        self._over = False

    def pull(self) -> DeviceBatch | None:
        """The next batch; None at the end, and ever after an exception."""
        self.thread = threading.get_ident()
        over, self._over = self._over, True
        if over:
            return None
        device_batch = self._pull_next()
        self._over = device_batch is None
        return device_batch

    def close(self) -> None:
        """Give up a batch that another thread waits for, where the source can."""

    @abstractmethod
    def _pull_next(self) -> DeviceBatch | None:
        """Return the next batch, as `pull`."""


class PrefetchIterator(ABC, Iterator[Any], Generic[DeviceBatch]):
    """Hands out what a producer sends, `size` of it ahead.

    Leaving it early needs no `close`, which any thread may call.

    The first one is pulled in the caller's thread.
    """

    _closed = False

    def __init__(self, size: int, thread_name: str) -> None:
        self._size = size
        self._thread_name = thread_name
        self._why = ""
        self._producer: Producer[DeviceBatch] | None = None
        self._executor: ThreadPoolExecutor | None = None
        self._ahead: deque[Future[DeviceBatch | None]] = deque()

    def __next__(self) -> Any:
        if self._closed:
            raise LoaderError(self._why) if self._why else StopIteration
        try:
            device_batch = self._first() if self._executor is None else self._ahead.popleft().result()
            if device_batch is None:
                raise StopIteration
            self._pull_ahead()
            return self._receive(device_batch)
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
        producer, self._producer = self._producer, None
        if producer is None:
            return
        producer.close()
        if self._executor is not None:
            # The garbage collector may have come by in that very thread, which cannot wait for itself.
            self._executor.shutdown(wait=producer.thread != threading.get_ident(), cancel_futures=True)
        self._ahead.clear()

    @abstractmethod
    def _begin(self) -> DeviceBatch | None:
        """Make `_producer`, and give its first batch."""

    @abstractmethod
    def _receive(self, device_batch: DeviceBatch) -> Any:
        """The batch for the training loop, which has it from now on."""

    def _first(self) -> DeviceBatch | None:
        device_batch = self._begin()
        self._executor = ThreadPoolExecutor(1, self._thread_name)
        return device_batch

    def _pull_ahead(self) -> None:
        executor, producer = self._executor, self._producer
        if executor is not None and producer is not None:
            while len(self._ahead) < self._size:
                self._ahead.append(executor.submit(producer.pull))
