"""Transfers from and to Google Cloud Storage: downloads, uploads, and many small reads at once."""

import asyncio
import json
import os
import re
import secrets
import threading
from collections import deque
from collections.abc import Coroutine, Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlencode

from crc32c import crc32c

from tpufeed.errors import MissingExtraError, ObjectNotFoundError, StoreError
from tpufeed.storage.gcs_requests import (
    FIELDS,
    ChecksumError,
    GcsFolder,
    Request,
    Resource,
    Send,
    Target,
    TransientError,
    Tries,
    UnauthorizedError,
    broken,
    crc32c_of,
    error_of,
    from_crc32c,
    generation_of,
)
from tpufeed.storage.store import Span, check_name

if TYPE_CHECKING:
    import aiohttp

# Lost if a body breaks off. A socket's time limit is for one whole send: small pieces allow a slow line.
_PIECE_BYTES = 256 << 10
SMALL_BYTES = 8 << 20
CHUNK_BYTES = 32 << 20  # a multiple of 256 KiB. Each chunk waits for an answer
_AT_ONCE = 64  # requests
_WINDOW = 2 * _AT_ONCE  # spans: a slow one at the head then does not stop the others at once
_HELD_BYTES = 256 << 20
_PRIOR_BYTES, _PRIOR_COUNT = 256 << 20, 16  # objects are assumed to have 16 MB until some were read
T = TypeVar("T")


def object_size(where: str, status: int, headers: Mapping[str, str], first: int, generation: str) -> int | None:
    """Return the object's length from an answer with its bytes from `first` on, or None if it has the whole object.

    Raises:
        TransientError: the answer has other bytes, or another generation, than requested.
        StoreError: the server has no ranges.
    """
    came = headers.get("X-Goog-Generation", "")
    if generation and came and came != generation:
        raise TransientError(f"generation {came} came instead of {generation}")
    if status == 206 or "Content-Range" in headers:  # some say 200 with it
        found = re.fullmatch(r"bytes (\d+)-\d+/(\d+)", headers.get("Content-Range", ""))
        if found is None or int(found[1]) != first:
            raise TransientError(f"{headers.get('Content-Range')} came instead of bytes from {first} on")
        return int(found[2])
    if first:
        raise StoreError(f"{where}: the server sends the whole object instead of a range of it")
    return None


class Download:
    """One read. After a broken connection it continues where it stopped, in the same generation.

    The client library's own downloads copy each byte several times in Python: 8 KB at a time from urllib3 to a file
    object. This requests the object with the library's session and lets the socket write into the caller's buffer. The
    GIL is still taken once per receive (over TLS at most 16 KB): beside a thread that computes in Python, reading
    belongs in a separate process.
    """

    def __init__(self, folder: GcsFolder, name: str, version: str) -> None:
        self._folder, self._name, self._version = folder, name, version
        self._where, self._path = folder.where(name), folder.path(check_name(name), "/download")
        self._pinned = generation_of(version) if version else ""
        self.generation = self._pinned  # "" until an answer names it
        self.buffer: memoryview | None = None  # for a whole object, made after the first answer
        self.done = self._start = self._furthest = 0  # bytes in the buffer, its first byte, the maximum of `done`
        self._whole = False

    def read(self) -> bytes:
        """Read all bytes and compare the service's CRC-32C. Raises ObjectNotFoundError, ObjectChangedError."""
        self._whole = True
        self._persist()
        assert self.buffer is not None
        return bytes(self.buffer)

    def read_into(self, start: int, buffer: memoryview) -> int:
        """Read into `buffer` from byte `start` on, and return the number of bytes. Raises as `read` does."""
        self._start, self.buffer = start, buffer.cast("B")
        self._persist()
        return self.done

    def _persist(self) -> None:
        while True:
            try:
                self._transfer()
                return
            except ObjectNotFoundError as error:
                if self.generation == self._pinned:
                    raise self._folder.absence(self._name, self._version, error) from error
                # It was replaced while it was read, and no version was requested: begin again with the new one.
                self.generation, self.done = self._pinned, 0
                self.buffer = None if self._whole else self.buffer

    def _transfer(self) -> None:
        self._folder.persist(self._where, "storage.objects.get", self._attempt)

    def _attempt(self, send: Send, tries: Tries) -> None:
        first = self._start + self.done
        params = {"alt": "media", **({"generation": self.generation} if self.generation else {})}
        headers = {"Accept-Encoding": "gzip"}  # gzip objects come as they are stored, with their true length
        if self.buffer is not None:
            headers["Range"] = f"bytes={first}-{self._start + len(self.buffer) - 1}"
        elif first:
            headers["Range"] = f"bytes={first}-"
        with send(Request("GET", self._path, params, headers, accept=(416,))) as response:
            if response.status_code == 416:  # it ends before
                _ = response.content  # reading to the end keeps the connection open
                if self.done:
                    raise StoreError(f"{self._where}: it became shorter than {first + 1} bytes while it was read")
                return
            size = object_size(self._where, response.status_code, response.headers, first, self.generation)
            # From the first answer on the read has this generation: a retry must not join the halves of two objects.
            self.generation = self.generation or response.headers.get("X-Goog-Generation", "")
            if size is None:
                try:
                    size = int(response.headers["Content-Length"])
                except (KeyError, ValueError):
                    raise TransientError("the answer does not say how long the object is") from None
            if self.buffer is None:
                self.buffer = memoryview(bytearray(size))
            wanted = min(len(self.buffer), max(0, size - self._start))
            self._receive(response, wanted, tries)
            if self._start == 0 and wanted == size:
                self._compare(self.buffer[:size], crc32c_of(response.headers, self._where))

    def _compare(self, whole: memoryview, expected: int | None) -> None:
        """Compare the bytes of the whole object with the service's CRC-32C, if it has one. Raises ChecksumError."""
        if expected is not None and (found := crc32c(whole)) != expected:
            self.done = 0
            raise ChecksumError(f"crc32c is {found:08x}, but the service says {expected:08x}")

    def _receive(self, response: Any, wanted: int, tries: Tries) -> None:
        assert self.buffer is not None
        # urllib3's own readinto makes bytes and copies them. The http.client response that it wraps does not.
        source = getattr(response.raw, "_fp", response.raw)
        while self.done < wanted:
            count = source.readinto(self.buffer[self.done : min(wanted, self.done + _PIECE_BYTES)])
            if not count:
                raise TransientError(f"the body ended {wanted - self.done} of {wanted} bytes early")
            self.done += count
            if self.done > self._furthest:
                self._furthest = self.done
                tries.progress()
        if wanted == 0:
            _ = response.content
        elif getattr(source, "fp", None) is None:  # it was read to the end, unseen by urllib3
            response.raw.release_conn()


class ReadError(Exception):
    """The content of an upload cannot be read. Not an OSError: urllib3 would take it for the network's."""


@dataclass(frozen=True, slots=True)
class Content:
    """Content of an upload: bytes or a file, with size and CRC-32C."""

    data: bytes | Path
    size_bytes: int
    crc32c: int

    def pieces(self, start: int, stop: int) -> Iterator[bytes | memoryview]:
        """Yield the bytes `[start, stop)`. Raises ReadError."""
        if not isinstance(self.data, Path):
            for at in range(start, stop, _PIECE_BYTES):
                yield memoryview(self.data)[at : min(at + _PIECE_BYTES, stop)]
            return
        try:
            with self.data.open("rb", buffering=0) as file:
                while start < stop:
                    piece = os.pread(file.fileno(), min(_PIECE_BYTES, stop - start), start)
                    if not piece:
                        raise ReadError(
                            f"{self.data}: it became shorter while it was put: {start} instead of {stop} bytes"
                        )
                    start += len(piece)
                    yield piece
        except OSError as error:
            raise ReadError(f"{self.data}: {error.strerror}") from error


def content_of_file(path: Path) -> Content:
    """Return a file as content, after reading it for its CRC-32C. Raises ReadError."""
    try:
        content = Content(path, path.stat().st_size, 0)
    except OSError as error:
        raise ReadError(f"{path}: {error.strerror}") from error
    total = 0
    for piece in content.pieces(0, content.size_bytes):
        total = crc32c(piece, total)
    return replace(content, crc32c=total)


class Upload:
    """One upload of an object. Each of the `tries_failed` may have been applied, with its answer lost."""

    def __init__(self, folder: GcsFolder, name: str, content: Content, generation: str) -> None:
        self._folder, self._key, self._where, self._content = folder, folder.key(name), folder.where(name), content
        self._params = {"ifGenerationMatch": generation, "fields": FIELDS}
        self._path = folder.path(kind="/upload")
        self._url = ""  # of the resumable upload
        self._stored = self._furthest = 0
        self.tries_failed = 0

    def run(self) -> Resource:
        """Upload, and return the new object's description. Raises PreconditionError, ReadError, StoreError."""
        attempt = self._put_at_once if self._content.size_bytes <= SMALL_BYTES else self._put_on
        found = self._folder.persist(self._where, "storage.objects.create", attempt)
        if found.size != self._content.size_bytes or found.crc32c != from_crc32c(self._content.crc32c):
            raise StoreError(
                f"{self._where} has {found.size} bytes with crc32c {found.crc32c or '(none)'} although "
                f"{self._content.size_bytes} with {from_crc32c(self._content.crc32c)} were put. Delete the object"
            )
        return found

    @property
    def _metadata(self) -> bytes:
        """Metadata with the CRC-32C. By it the service refuses bytes that were damaged on their way."""
        return json.dumps({"name": self._key, "crc32c": from_crc32c(self._content.crc32c)}).encode()

    def _put_at_once(self, send: Send, tries: Tries) -> Resource:
        self.tries_failed = tries.failed
        boundary = secrets.token_hex(16)
        head = (
            b"--%(b)s\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n%(m)s\r\n"
            b"--%(b)s\r\nContent-Type: application/octet-stream\r\n\r\n"
        ) % {b"b": boundary.encode(), b"m": self._metadata}
        body = _Body(self._content, 0, self._content.size_bytes, head, f"\r\n--{boundary}--\r\n".encode())
        headers = {"Content-Type": f"multipart/related; boundary={boundary}"}
        with send(Request("POST", self._path, {**self._params, "uploadType": "multipart"}, headers, body)) as response:
            return self._folder.decode(self._where, response.content, Resource)

    def _put_on(self, send: Send, tries: Tries) -> Resource:
        self.tries_failed = tries.failed
        if not self._url:
            self._begin(send)
            found = None
        else:  # the last try broke off
            found = self._send_range(send, f"bytes */{self._content.size_bytes}", b"")
        while found is None:
            if self._stored > self._furthest:
                self._furthest = self._stored
                tries.progress()
            start, stop = self._stored, min(self._stored + CHUNK_BYTES, self._content.size_bytes)
            body = _Body(self._content, start, stop)
            found = self._send_range(send, f"bytes {start}-{stop - 1}/{self._content.size_bytes}", body)
            # An error is counted, and ends with patience. Otherwise this loop would send the same bytes forever.
            if found is None and self._stored <= start:
                raise TransientError(f"the service has kept nothing of the bytes from {start} to {stop}")
        return found

    def _begin(self, send: Send) -> None:
        headers = {
            "Content-Type": "application/json; charset=UTF-8",
            "X-Upload-Content-Type": "application/octet-stream",
            "X-Upload-Content-Length": str(self._content.size_bytes),
        }
        params = {**self._params, "uploadType": "resumable"}
        with send(Request("POST", self._path, params, headers, self._metadata)) as response:
            self._url = response.headers.get("Location", "")
            _ = response.content  # reading to the end, even if empty, keeps the connection open
        if not self._url:
            raise TransientError("the upload was begun, but the answer has no URL to send it to")
        self._stored = 0

    def _send_range(self, send: Send, content_range: str, body: "bytes | _Body") -> Resource | None:
        """Send a range and set `_stored` to the bytes that arrived. Return the new object after the last range."""
        request = Request("PUT", self._url, {}, {"Content-Range": content_range}, body, accept=(308, 404, 410))
        try:
            with send(request) as response:
                _ = response.content
                if response.status_code == 308:
                    found = re.fullmatch(r"bytes=0-(\d+)", response.headers.get("Range", ""))
                    self._stored = int(found[1]) + 1 if found else 0
                    if self._stored > self._content.size_bytes:
                        raise StoreError(
                            f"{self._where}: the service claims to have {self._stored} bytes of "
                            f"{self._content.size_bytes}"
                        )
                    return None
                if response.status_code in (404, 410):
                    self._url = ""
                    raise TransientError(f"HTTP {response.status_code}: the upload is gone and begins again")
                return self._folder.decode(self._where, response.content, Resource)
        except ChecksumError:  # the service's part of this upload is damaged: a new one sends all again
            self._url = ""
            raise


class _Body:
    """Body of a request, with a length: a part of the content between other bytes."""

    def __init__(self, content: Content, start: int, stop: int, head: bytes = b"", tail: bytes = b"") -> None:
        self._content, self._start, self._stop = content, start, stop
        self._head, self._tail = head, tail

    def __len__(self) -> int:
        return len(self._head) + self._stop - self._start + len(self._tail)

    def __iter__(self) -> Iterator[bytes | memoryview]:
        yield self._head
        yield from self._content.pieces(self._start, self._stop)
        yield self._tail


def read_many(folder: GcsFolder, spans: Iterable[Span]) -> Generator[bytes | StoreError, None, None]:
    """Read spans as `Store.read_many` does. Closing the iterator early cancels running requests."""
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
    """A thread with an event loop: aiohttp takes a third of the CPU time of threads with requests."""

    def __init__(self, folder: GcsFolder) -> None:
        try:
            import aiohttp
        except ImportError as error:
            raise MissingExtraError("aiohttp", "gcs") from error
        self._folder, self._service = folder, folder.session
        # aiohttp uses other certificates than requests, and would look up proxies in a thread for each request.
        self._trust, self._proxy = self._service.surroundings()
        self._process = os.getpid()
        self._bytes = self._count = 0
        self._gate, self._renewing = asyncio.Semaphore(_AT_ONCE), asyncio.Lock()
        self._loop = asyncio.new_event_loop()
        self._timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=folder.patience.connect_seconds, sock_read=folder.patience.read_seconds
        )
        self._thread = threading.Thread(target=self._loop.run_forever, name="tpufeed-bulk", daemon=True)
        self._thread.start()
        self._session = self._run(self._open())

    @property
    def window(self) -> int:
        """Number of spans that may be running, or done and not taken: the larger they are, the fewer."""
        average = (self._bytes + _PRIOR_BYTES) // (self._count + _PRIOR_COUNT)
        return max(2, min(_WINDOW, _HELD_BYTES // max(1, average)))

    def submit(self, span: Span) -> Future[bytes | StoreError]:
        """Begin to read a span."""
        return asyncio.run_coroutine_threadsafe(self._read(span), self._loop)

    def take(self, future: Future[bytes | StoreError]) -> bytes | StoreError:
        """Wait for a result."""
        found = future.result()
        self._count += 1
        self._bytes += len(found) if isinstance(found, bytes) else 0
        return found

    def close(self) -> None:
        """Cancel running requests and end the thread."""
        if os.getpid() != self._process:  # a forked child has the iterator, but not the thread
            return
        self._run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _open(self) -> "aiohttp.ClientSession":
        import aiohttp

        return aiohttp.ClientSession(auto_decompress=False)

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
                try:
                    if span.stop is None or span.stop > span.start:
                        return await self._persist(span)
                    await asyncio.to_thread(self._folder.find, span.name, span.version)  # HTTP has no range of no bytes
                    return b""
                except ObjectNotFoundError as error:
                    raise await asyncio.to_thread(self._folder.absence, span.name, span.version, error) from error
        except StoreError as error:
            return error

    async def _persist(self, span: Span) -> bytes:
        target = Target(self._folder.where(span.name), self._folder.bucket, "storage.objects.get")
        tries = Tries(target, self._folder.patience, self._folder.was_online)
        while True:
            try:
                if tries.renew:
                    async with self._renewing:
                        await asyncio.to_thread(self._service.refresh, target)
                    tries.renew = False
                found = await self._attempt(span, target)
                self._folder.was_online = True
                return found
            except (TransientError, UnauthorizedError) as error:
                await asyncio.sleep(tries.pause_after(error, self._service.identity))
            self._folder.count_retry()

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
        except StoreError:  # these are OSErrors as well
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
        headers = {"Accept-Encoding": "gzip"}  # gzip objects come as they are stored, with their true length
        if span.start or span.stop is not None:
            headers["Range"] = f"bytes={span.start}-{'' if span.stop is None else span.stop - 1}"
        credentials = self._service.credentials
        if credentials is not None:
            # google.auth blocks, hence a thread. The lock lets 64 requests with an expired token request one new token.
            async with self._renewing:
                if not credentials.valid:
                    await asyncio.to_thread(self._service.refresh, target)
            credentials.apply(headers)
        return headers


def _check(span: Span, target: Target, status: int, headers: Mapping[str, str], data: bytes) -> bytes:
    """Return the bytes of a span from an answer. Raises TransientError if it has other bytes."""
    generation = generation_of(span.version) if span.version else ""
    size = object_size(target.where, status, headers, span.start, generation)
    size = len(data) if size is None else size
    stop = size if span.stop is None else min(size, span.stop)
    data = data[: stop - span.start]
    if len(data) < stop - span.start:
        raise TransientError(f"{len(data)} bytes came instead of {stop - span.start}")
    expected = crc32c_of(headers, target.where) if len(data) == size else None
    if expected is not None and expected != crc32c(data):
        raise ChecksumError(f"crc32c is {crc32c(data):08x}, but the service says {expected:08x}")
    return data
