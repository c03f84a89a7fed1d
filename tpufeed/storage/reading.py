"""Many spans at once by threads."""

import threading
from collections import deque
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

from tpufeed.errors import StoreError
from tpufeed.storage.store import Span, Store

_AT_ONCE = 32


def read_span(store: Store, span: Span) -> bytes | StoreError:
    """The bytes of a span, or why they cannot be read."""
    try:
        if span.stop is None and not span.start:
            return store.read(span.name, span.version)
        stop = span.stop
        if stop is None:
            info = store.stat(span.name)
            stop = span.start if info is None else max(span.start, info.size_bytes)
        return store.read_range(span.name, span.start, stop, span.version)
    except StoreError as error:
        return error


def read_by_threads(
    store: Store, spans: Iterable[Span], at_once: int = _AT_ONCE
) -> Generator[bytes | StoreError, None, None]:
    """`Store.read_many` by `at_once` threads."""
    with ThreadPoolExecutor(at_once, "tpufeed-read") as executor:
        waiting = deque[Future[bytes | StoreError]]()
        try:
            for span in spans:
                waiting.append(executor.submit(read_span, store, span))
                if len(waiting) >= 2 * at_once:  # a slow one at the head does not stop the others at once
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


class SpanReader:
    """Reads a few spans at once, again and again: its threads and their connections are kept until `close`.

    `Store.read_many` is for thousands at a time, and may set up more than a loader's batch is worth. Thread-safe.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._executor: ThreadPoolExecutor | None = None

    def read(self, spans: Sequence[Span]) -> list[bytes | StoreError]:
        """The bytes of each span, or why they cannot be read."""
        if len(spans) < 2:
            return [read_span(self._store, span) for span in spans]
        with self._lock:
            if self._executor is None:
                self._executor = ThreadPoolExecutor(_AT_ONCE, "tpufeed-read")
            results = self._executor.map(partial(read_span, self._store), spans)
        return list(results)

    def close(self) -> None:
        """Let the threads end when they are through; reading again starts new ones."""
        with self._lock:
            executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown(wait=True)
