"""Many spans at once by threads, and what is read again because it looks damaged."""

import threading
from collections import deque
from collections.abc import Callable, Generator, Hashable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from tpufeed.errors import StoreError, UnavailableError
from tpufeed.storage.store import Span, Store

READS = 3  # of what looks damaged, before it is given up
_AT_ONCE = 32
T = TypeVar("T")


class DamagedReadError(UnavailableError):
    """A read gave other bytes than are stored. Nothing is known of the object."""


def settle(
    where: str, read: Callable[[], T], identity: Callable[[T], Hashable], is_sure: Callable[[T], bool] = lambda _: False
) -> T:
    """Call `read` until its result is sure or came twice: damage on the way does not come again.

    Args:
        where: what is read, for messages.
        read: called up to three times.
        identity: equal for the same bytes.
        is_sure: whether one reading is enough, as its own CRC is right.

    Raises:
        DamagedReadError: each read gave other bytes.
    """
    seen = list[Hashable]()
    for _ in range(READS):
        found = read()
        if is_sure(found) or identity(found) in seen:
            return found
        seen.append(identity(found))
    raise DamagedReadError(
        f"{where}: {READS} reads gave {READS} times other bytes, so that nobody can say what is stored; look for a "
        "fault of the network or of the store, then run it again"
    )


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
