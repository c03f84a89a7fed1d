"""A crew of threads in this process. They take turns with Python code that runs beside them: see `processes`."""

from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, CancelledError, Future, ThreadPoolExecutor, wait

from tpufeed.errors import LoaderError
from tpufeed.images.decoding import Pixels
from tpufeed.loaders.buffers import BufferPool
from tpufeed.loaders.crew import CLOSED, CLOSED_MEANWHILE, Due, Filled, Overdue, Request
from tpufeed.loaders.rows import Done, Rows, Work
from tpufeed.loaders.sources import Source


class ThreadCrew:
    """See `Crew`. Threads start with the first batch, whose images lie in memory of `pool` where none is given."""

    def __init__(self, rows: Rows, source: Source, threads: int, pool: BufferPool) -> None:
        self.closed = False
        self._rows = rows
        self._source = source
        self._pool = pool
        self._executor = ThreadPoolExecutor(threads, "tpufeed-decode")

    def submit(self, request: Request, images: Pixels | None = None) -> "ThreadPending":
        images = self._pool.take().array if images is None else images
        work = self._rows.begin(request, self._source.reader(request.epoch), images)
        try:
            futures = [self._executor.submit(self._rows.fill, work, *rows) for rows in self._rows.chunks]
        except RuntimeError as error:  # the executor's word for having been shut down
            raise LoaderError(CLOSED) from error
        return ThreadPending(self._rows, self._source, request.epoch, work, futures)

    def fetch(self, due: Due) -> None:
        self._source.fetch(due)

    def close(self, wait: bool = True) -> None:
        self.closed = True
        self._executor.shutdown(wait=wait, cancel_futures=True)
        self._source.close()


class ThreadPending:
    """See `Pending`."""

    def __init__(self, rows: Rows, source: Source, epoch: int, work: Work, futures: Sequence[Future[Done]]) -> None:
        self._rows = rows
        self._source = source
        self._epoch = epoch
        self._work = work
        self._futures = futures

    def done(self) -> bool:
        return all(future.done() for future in self._futures)

    def wait(self, timeout_seconds: float) -> Filled:
        futures = self._futures
        try:
            if wait(futures, timeout_seconds, FIRST_EXCEPTION).not_done and not any(map(_has_failed, futures)):
                raise Overdue
            parts = [*map(Future.result, futures)]
        except CancelledError:
            raise LoaderError(CLOSED_MEANWHILE) from None
        except BaseException:
            self.cancel()
            raise
        finally:
            # A cycle: an exception's traceback holds this frame, and the future the exception. It would keep the
            # loader's threads until the garbage collector comes by.
            self._futures = ()
            del futures
        filled = self._rows.finish(self._work, self._source.variant(self._epoch), parts)
        self._source.settle(self._epoch)
        return filled

    def cancel(self) -> None:
        for future in self._futures:
            future.cancel()


def _has_failed(future: Future[Done]) -> bool:
    return future.done() and (future.cancelled() or future.exception() is not None)
