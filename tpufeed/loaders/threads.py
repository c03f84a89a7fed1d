"""A crew of threads in this process. They take turns with Python code that runs beside them: see `processes`."""

import os
import threading
from collections.abc import Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from threading import TIMEOUT_MAX
from time import monotonic

from tpufeed.errors import LoaderError
from tpufeed.images.decoding import Pixels
from tpufeed.loaders.buffers import BufferPool
from tpufeed.loaders.crew import CLOSED, CLOSED_MEANWHILE, Due, Filled, Overdue, Request
from tpufeed.loaders.rows import Done, Rows, Work
from tpufeed.loaders.sources import Source


class ThreadCrew:
    """Crew of threads, see `Crew`. They start with the first batch. Images lie in `pool` where no memory is given."""

    def __init__(self, rows: Rows, source: Source, threads: int, pool: BufferPool) -> None:
        self._closed = False
        self._owner = os.getpid()
        self._rows = rows
        self._source = source
        self._pool = pool
        self._name = f"tpufeed-decode-{id(self):x}"
        self._executor = ThreadPoolExecutor(threads, self._name)

    @property
    def closed(self) -> bool:
        return self._closed or os.getpid() != self._owner  # a fork has none of the threads

    def submit(self, request: Request, images: Pixels | None = None) -> "ThreadPending":
        images = self._pool.take().array if images is None else images
        work = self._rows.begin(request, self._source.reader(request.epoch), images)
        try:
            futures = [self._executor.submit(self._rows.fill, work, *rows) for rows in self._rows.chunks]
        except RuntimeError as error:
            if not self._closed:  # the system has no room for a thread
                raise
            raise LoaderError(CLOSED) from error
        return ThreadPending(self._rows, self._source, request.epoch, work, futures)

    def fetch(self, due: Due) -> None:
        self._source.fetch(due)

    def close(self, wait: bool = True) -> None:
        self._closed = True
        # The garbage collector may come by in one of the threads themselves.
        wait = wait and not threading.current_thread().name.startswith(self._name)
        self._executor.shutdown(wait=wait, cancel_futures=True)
        self._source.close()


class ThreadPending:
    """Batch that threads fill, see `Pending`."""

    def __init__(self, rows: Rows, source: Source, epoch: int, work: Work, futures: Sequence[Future[Done]]) -> None:
        self._rows = rows
        self._source = source
        self._epoch = epoch
        self._work = work
        self._futures = futures

    def done(self) -> bool:
        return all(future.done() for future in self._futures)

    def wait(self, timeout_seconds: float) -> Filled:
        try:
            failed = self._first_failure(monotonic() + timeout_seconds)
            if failed is not None:
                raise failed
            parts = [*map(Future.result, self._futures)]
        except CancelledError:
            raise LoaderError(CLOSED_MEANWHILE) from None
        finally:
            # Cycles: an exception's traceback holds this frame, and the future the exception. They would keep the
            # loader's threads until the garbage collector comes by.
            self._futures, failed = (), None
        filled = self._rows.finish(self._work, self._source.variant(self._epoch), parts)
        self._source.settle(self._epoch)
        return filled

    def cancel(self) -> None:
        for future in self._futures:
            future.cancel()

    def _first_failure(self, deadline: float) -> BaseException | None:
        """Return the batch's first failure, when all its rows are done: until then its memory is written to.

        Raises Overdue. `futures.wait` would never hear of those that are cancelled.
        """
        first: BaseException | None = None
        for future in self._futures:
            try:
                error = future.exception(min(TIMEOUT_MAX, max(0.0, deadline - monotonic())))
            except CancelledError:
                error = CancelledError()  # that one's traceback holds this frame, which would hold it: a cycle again
            except TimeoutError:
                raise Overdue from None
            if error is not None and first is None:
                first = error
                self.cancel()
        return first
