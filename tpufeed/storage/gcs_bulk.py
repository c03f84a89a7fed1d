"""Many small objects at once: some dozens of requests in flight in one thread, through gcsfs's session."""

import asyncio
import os
import re
import threading
from collections import deque
from collections.abc import Coroutine, Generator, Iterable, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar
from urllib.parse import urlencode

from crc32c import crc32c

from tpufeed.errors import MissingExtraError, ObjectNotFoundError, StoreError
from tpufeed.storage.gcs_crc32c import crc32c_of
from tpufeed.storage.gcs_errors import Target, broken, denied, error_of
from tpufeed.storage.gcs_folder import GcsFolder, generation_of
from tpufeed.storage.gcs_retrying import ChecksumError, TransientError, Tries, UnauthorizedError
from tpufeed.storage.naming import check_name
from tpufeed.storage.store import Span

_AT_ONCE = 64  # requests
_WINDOW = 2 * _AT_ONCE  # spans: a slow one at the head does not stop the others at once
_HELD_BYTES = 256 << 20
_PRIOR_BYTES, _PRIOR_COUNT = 256 << 20, 16  # objects are taken to be of 16 MB until some were seen

T = TypeVar("T")


def read_many(folder: GcsFolder, spans: Iterable[Span]) -> Generator[bytes | StoreError, None, None]:
    """`Store.read_many`. Closing the iterator early cancels what is under way."""
    waiting = deque[Future[bytes | StoreError]]()
    reader = _Reader(folder)
    try:
        for span in spans:
            waiting.append(reader.submit(span))
            while len(waiting) >= reader.window:
                yield reader.take(waiting.popleft())
        while waiting:
            yield reader.take(waiting.popleft())
    finally:
        reader.close()


class _Reader:
    """A thread with an event loop.

    gcsfs's own `_cat_file` will not do: it drops the headers that hold the sum and the generation, takes what follows
    a '#' in a name for a generation, and tries six times with no word on why.
    """

    def __init__(self, folder: GcsFolder) -> None:
        # It would ask by gRPC for the kind of the bucket first: 60 s where nobody answers.
        os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
        try:
            import aiohttp
            import gcsfs
        except ImportError as error:
            raise MissingExtraError("gcsfs", "gcs") from error
        self._folder, self._service = folder, folder.session
        # aiohttp goes by other certificates than requests, and would look for proxies in a thread for each request.
        self._trust, self._proxy = self._service.surroundings()
        self._process = os.getpid()
        self._bytes = self._count = 0
        self._gate, self._renewing = asyncio.Semaphore(_AT_ONCE), asyncio.Lock()
        self._loop = asyncio.new_event_loop()
        self._timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=folder.patience.connect_seconds, sock_read=folder.patience.read_seconds
        )
        self._files = gcsfs.GCSFileSystem(
            token="anon",  # requests carry the token of the store's own session
            asynchronous=True,
            loop=self._loop,
            skip_instance_cache=True,
            use_listings_cache=False,
            session_kwargs={"auto_decompress": False},
        )
        self._thread = threading.Thread(target=self._loop.run_forever, name="tpufeed-bulk", daemon=True)
        self._thread.start()
        self._session = self._run(self._files._set_session())

    @property
    def window(self) -> int:
        """How many spans may be under way or done and not taken: fewer, the larger they are."""
        average = (self._bytes + _PRIOR_BYTES) // (self._count + _PRIOR_COUNT)
        return max(2, min(_WINDOW, _HELD_BYTES // max(1, average)))

    def submit(self, span: Span) -> Future[bytes | StoreError]:
        """Begin to read."""
        return asyncio.run_coroutine_threadsafe(self._read(span), self._loop)

    def take(self, future: Future[bytes | StoreError]) -> bytes | StoreError:
        """Wait for a result."""
        found = future.result()
        self._count += 1
        self._bytes += len(found) if isinstance(found, bytes) else 0
        return found

    def close(self) -> None:
        """Cancel what is under way and end the thread."""
        if os.getpid() != self._process:  # a forked child has the iterator, but not the thread
            return
        self._run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _end(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._session.close()
        await self._loop.shutdown_default_executor()

    async def _read(self, span: Span) -> bytes | StoreError:
        try:
            async with self._gate:
                return await self._read_or_raise(span)
        except StoreError as error:
            return error

    async def _read_or_raise(self, span: Span) -> bytes:
        try:
            if span.stop is None or span.stop > span.start:
                return await self._persist(span)
            await asyncio.to_thread(self._folder.find, span.name, span.version)  # there is no range of no bytes
        except ObjectNotFoundError as error:
            raise await asyncio.to_thread(self._folder.absence, span.name, span.version, error) from error
        return b""

    async def _persist(self, span: Span) -> bytes:
        where = self._folder.where(span.name)
        target = Target(where, self._folder.bucket, "storage.objects.get")
        tries = Tries(where, self._folder.patience)
        while True:
            try:
                return await self._attempt(span, target)
            except UnauthorizedError as error:
                if tries.refreshed:
                    raise denied(target, self._service.identity, f"HTTP 401: {error}") from error
                tries.refreshed = True
                pause = await self._renew(target, tries)
            except TransientError as error:
                pause = tries.pause_after(error)
            self._folder.count_retry()
            await asyncio.sleep(pause)

    async def _renew(self, target: Target, tries: Tries) -> float:
        """Get a new token; returns how long to wait."""
        try:
            async with self._renewing:
                await asyncio.to_thread(self._service.refresh, target)
        except TransientError as error:
            tries.refreshed = False
            return tries.pause_after(error)
        return 0

    async def _attempt(self, span: Span, target: Target) -> bytes:
        import aiohttp

        url, headers = self._url(span), await self._headers(span, target)
        try:
            async with self._session.get(
                url, headers=headers, timeout=self._timeout, allow_redirects=False, ssl=self._trust, proxy=self._proxy
            ) as response:
                if response.status == 416:  # it ends before
                    return b""
                if response.status >= 300:
                    text = await response.text()
                    raise error_of(response.status, response.headers, text, target, self._service.identity)
                return _check(span, target, response.status, response.headers, await response.read())
        except StoreError:  # these are OSErrors, too
            raise
        except (aiohttp.ClientError, OSError) as error:
            raise broken(error, target) from error

    def _url(self, span: Span) -> Any:
        from yarl import URL

        query = {"alt": "media"}
        if span.version:
            query["generation"] = generation_of(span.version)
        if self._service.user_project:
            query["userProject"] = self._service.user_project
        path = self._folder.path(check_name(span.name), "/download")
        return URL(f"{self._service.endpoint}{path}?{urlencode(query)}", encoded=True)

    async def _headers(self, span: Span, target: Target) -> dict[str, str]:
        headers = {"Accept-Encoding": "gzip"}  # what is stored as gzip comes as it is stored, with its true length
        if span.start or span.stop is not None:
            headers["Range"] = f"bytes={span.start}-{'' if span.stop is None else span.stop - 1}"
        credentials = self._service.credentials
        if credentials is not None:
            async with self._renewing:
                if not credentials.valid:
                    await asyncio.to_thread(self._service.refresh, target)
            credentials.apply(headers)
        return headers


def _check(span: Span, target: Target, status: int, headers: Mapping[str, str], data: bytes) -> bytes:
    """The bytes of the span out of an answer. Raises TransientError where they are not."""
    generation = headers.get("X-Goog-Generation", "")
    if span.version and generation and generation != generation_of(span.version):
        raise TransientError(f"generation {generation} came where {span.version} was asked for")
    size = len(data)
    if status == 206 or "Content-Range" in headers:  # some say 200 with it
        found = re.fullmatch(r"bytes (\d+)-\d+/(\d+)", headers.get("Content-Range", ""))
        if found is None or int(found[1]) != span.start:
            raise TransientError(f"bytes from {span.start} were asked for: {headers.get('Content-Range')} came")
        size = int(found[2])
    elif span.start:
        raise StoreError(f"{target.where}: the server sends the whole object when asked for a range of it")
    stop = size if span.stop is None else min(size, span.stop)
    data = data[: stop - span.start]
    if len(data) < stop - span.start:
        raise TransientError(f"{len(data)} bytes came instead of {stop - span.start}")
    expected = crc32c_of(headers, target.where) if len(data) == size else None
    if expected is not None and expected != crc32c(data):
        raise ChecksumError(f"crc32c is {crc32c(data):08x} where the service says {expected:08x}")
    return data
