"""Many spans at once by threads, for stores without a quicker way."""

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

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


def read_by_threads(store: Store, spans: Iterable[Span], at_once: int = _AT_ONCE) -> Iterator[bytes | StoreError]:
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
