"""Objects of zonal (Rapid) buckets, read and written over gRPC by Google's own client.

Listings, metadata, moves and deletions use the JSON interface. An object in such a bucket can be read while it is being
written. So a put writes it under another name, finalizes it, and then moves it to its place in one step, under the
put's precondition.
"""

import asyncio
import logging
import os
import secrets
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar
from urllib.parse import quote

from tpufeed.errors import AccessError, MissingExtraError, ObjectNotFoundError, StoreError
from tpufeed.storage.gcs_requests import (
    ANONYMOUS,
    FIELDS,
    GRPC_EMULATOR_VARIABLE,
    LOGIN,
    ChecksumError,
    GcsFolder,
    GcsSession,
    PreconditionError,
    Request,
    Resource,
    Target,
    TransientError,
    Tries,
    UnexpectedError,
    error_of,
)
from tpufeed.storage.gcs_transfers import Content, Download
from tpufeed.storage.store import check_name

_logger = logging.getLogger(__name__)
PARTS = ".tpufeed-parts/"  # below the folder. Objects that a killed writer leaves there may be deleted
_CLOSING_SECONDS = 1.0
_connections: dict[tuple[int, str], "_Connection"] = {}  # by process, as threads and channels do not survive a fork
_locks: dict[int, threading.Lock] = {}  # by process, as in `gcs_requests`
T = TypeVar("T")


class RapidDownload(Download):
    """One read. After a broken stream it continues where it stopped, in the same generation."""

    def __init__(self, folder: GcsFolder, name: str, version: str) -> None:
        super().__init__(folder, name, version)
        self._key, self._connection = folder.key(name), _connect(folder)

    def write(self, data: bytes) -> None:
        """Take the next bytes. The client writes to this object as to a file."""
        assert self.buffer is not None
        if len(data) > len(self.buffer) - self.done:
            raise TransientError(f"the answer has more than the requested {len(self.buffer)} bytes")
        self.buffer[self.done : self.done + len(data)] = data
        self.done += len(data)

    def _transfer(self) -> None:
        _persist(self._folder, self._where, "storage.objects.get", self._connection, self._stream, lambda: self.done)

    async def _stream(self, retries: Any) -> None:
        from google.cloud.storage.asyncio.async_multi_range_downloader import AsyncMultiRangeDownloader
        from google.cloud.storage.exceptions import DataCorruption

        stream = await AsyncMultiRangeDownloader.create_mrd(
            self._connection.client,
            self._folder.bucket,
            self._key,
            generation=int(self.generation) if self.generation else None,
            retry_policy=retries,
        )
        try:
            size, found = stream.persisted_size, stream.object_metadata
            if size is None or found is None:
                raise TransientError("the answer does not say how long the object is")
            self.generation = str(found.generation)  # a retry must not join the halves of two objects
            if self.buffer is None:
                self.buffer = memoryview(bytearray(size))
            wanted = min(len(self.buffer), max(0, size - self._start))
            if self.done < wanted:
                rest = self._start + self.done, wanted - self.done, self
                try:
                    await stream.download_ranges([rest], retry_policy=retries)
                except DataCorruption:
                    # The client also checks the whole. Bytes that fail then are no progress: tries would never end.
                    if self.done == wanted:
                        self.done = 0
                    raise
            if self.done < wanted:
                raise TransientError(f"{self.done} bytes came instead of {wanted}")
            # Each piece was checked as it came. An object that is still being written has no CRC of the whole yet.
            if wanted == size and found.finalize_time and "crc32c" in found.checksums:
                self._compare(self.buffer[:size], found.checksums.crc32c)
        finally:
            if stream.is_stream_open:
                await self._connection.end(stream.close())


class RapidUpload:
    """One put, whole or not at all, with the methods of `Upload`."""

    def __init__(self, folder: GcsFolder, name: str, content: Content, generation: str) -> None:
        self._folder, self._content, self._generation = folder, content, generation
        self._name, self._where = check_name(name), folder.where(name)
        self._connection = _connect(folder)
        self._writer: Any = None
        self._parts: list[str] = []
        self.tries_failed = 0

    def run(self) -> Resource:
        """Put it. Raises PreconditionError, StoreError."""

        def written() -> int:  # the service confirms bytes every 16 MiB
            return 0 if self._writer is None else int(self._writer.persisted_size or 0)

        try:
            _persist(self._folder, self._where, "storage.objects.create", self._connection, self._append, written)
            return self._move()
        finally:
            for part in self._parts:  # those of broken tries, and the last one if it could not be moved
                request = Request("DELETE", self._folder.path(part), accept=(404,))
                with suppress(StoreError, PreconditionError):
                    self._folder.call(self._folder.where(part), "storage.objects.delete", request, bytes)

    async def _append(self, retries: Any) -> None:
        from google.api_core.exceptions import FailedPrecondition
        from google.api_core.retry_async import AsyncRetry
        from google.cloud.storage.asyncio.async_appendable_object_writer import AsyncAppendableObjectWriter

        self._parts.append(f"{PARTS}{secrets.token_hex(16)}")
        key, data = self._folder.key(self._parts[-1]), self._content.data
        writer = AsyncAppendableObjectWriter(self._connection.client, self._folder.bucket, key, generation=0)
        self._writer = writer
        if not isinstance(data, bytes):
            data = await asyncio.to_thread(b"".join, self._content.pieces(0, self._content.size_bytes))
        try:
            await writer.open(retry_policy=retries)
        except FailedPrecondition as error:  # the name is random: an earlier open, whose answer was lost, has made it
            raise TransientError(error.message) from error
        try:
            # One call, as the client resumes a broken stream by the position within the call's data.
            await writer.append(data, retry_policy=retries)
            # Shows bytes that a broken stream has lost. `finalize` would look for them until patience ends.
            await writer.flush()
            found = await writer.finalize(full_object_checksum=self._content.crc32c, retry_policy=retries)
        finally:
            if writer.is_stream_open:
                await self._connection.end(writer.close(retry_policy=AsyncRetry(timeout=0)))
        if (found.size, found.checksums.crc32c) != (self._content.size_bytes, self._content.crc32c):
            raise ChecksumError(f"{found.size} bytes with crc32c {found.checksums.crc32c:08x} are there")

    def _move(self) -> Resource:
        """Rename the last part to the object's name."""
        part = self._parts[-1]
        path = f"{self._folder.path(part)}/moveTo/o/{quote(self._folder.key(self._name), safe='')}"
        request = Request("POST", path, {"ifGenerationMatch": self._generation, "fields": FIELDS})

        def attempt(send: Any, tries: Tries) -> Resource:
            self.tries_failed = tries.failed
            with send(request) as response:
                return self._folder.decode(self._where, response.content, Resource)

        try:
            moved = self._folder.persist(self._where, "storage.objects.move", attempt)
        except ObjectNotFoundError as error:
            if not self.tries_failed:
                raise
            # An earlier try, whose answer was lost, has moved it: the store compares the object there with the content.
            raise PreconditionError(str(error)) from error
        self._parts.pop()
        return moved


class _Connection:
    """A thread with an event loop, and the client that lives in it."""

    def __init__(self, session: GcsSession) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="rapid", daemon=True).start()
        self.client = self.run(self._open(session))

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` in the loop and return its result. Ctrl-C ends it too, as it may write to a caller's buffer."""
        ended = threading.Event()

        async def run() -> T:
            try:
                return await work
            finally:
                ended.set()

        future = asyncio.run_coroutine_threadsafe(run(), self._loop)
        try:
            return future.result()
        except BaseException:
            if future.cancel():  # False: it has raised this error
                ended.wait(2 * _CLOSING_SECONDS)
            raise

    async def end(self, closing: Coroutine[Any, Any, Any]) -> None:
        """Close a stream without waiting long: its server may be silent, and the last answer is useless."""
        with suppress(Exception):
            await asyncio.wait_for(closing, _CLOSING_SECONDS)

    async def _open(self, session: GcsSession) -> Any:
        from google.api_core.client_options import ClientOptions
        from google.auth.credentials import AnonymousCredentials
        from google.cloud.storage.asyncio.async_grpc_client import AsyncGrpcClient

        # It logs a warning with a traceback for each broken stream, although the stream continues.
        logging.getLogger("google.cloud.storage.asyncio").setLevel(logging.ERROR)
        emulator = os.environ.get(GRPC_EMULATOR_VARIABLE)
        credentials = AnonymousCredentials() if emulator else session.credentials  # type: ignore[no-untyped-call]
        options = ClientOptions(api_endpoint=emulator, quota_project_id=session.user_project or None)
        return AsyncGrpcClient(credentials=credentials, client_options=options)


def _connect(folder: GcsFolder) -> _Connection:
    """Return this process's connection. Raises MissingExtraError, AccessError, StoreError."""
    session = folder.session
    place = os.getpid(), os.environ.get(GRPC_EMULATOR_VARIABLE, "")
    if any(process != place[0] for process, _ in _connections):
        raise StoreError(
            f"{folder.url}: this process was forked from one that has used gRPC, which zonal (Rapid) buckets need, and "
            "gRPC hangs in such a fork. Start the process without forking: torch's DataLoader takes "
            'multiprocessing_context="forkserver" or "spawn"'
        )
    with _locks.setdefault(place[0], threading.Lock()):
        if place not in _connections:
            if not place[1] and session.credentials is None:
                raise AccessError(f"zonal buckets refuse anonymous callers: {LOGIN}")
            try:
                _connections[place] = _Connection(session)
            except ImportError as error:  # the package is older than its gRPC client
                raise MissingExtraError("google-cloud-storage with gRPC", "rapid") from error
        return _connections[place]


def _persist(
    folder: GcsFolder,
    where: str,
    permission: str,
    connection: _Connection,
    attempt: Callable[[Any], Coroutine[Any, Any, None]],
    count: Callable[[], int],
) -> None:
    """Repeat `attempt` as `GcsFolder.persist` does. A try fails if `count` returns no new byte for too long.

    `attempt` gets the policy for the client's own retries: the client follows redirects, and resumes streams.
    """
    from google.api_core import exceptions
    from google.api_core.retry_async import AsyncRetry

    target = Target(where, folder.bucket, permission)
    patience = folder.patience
    last = ""

    def note(error: Exception) -> None:
        nonlocal last
        last = f", after {error}"
        folder.count_retry()
        _logger.info("%s: the client tries again%s", where, last)

    passing = (
        exceptions.Aborted,
        exceptions.DeadlineExceeded,
        exceptions.InternalServerError,
        exceptions.ServiceUnavailable,
        exceptions.TooManyRequests,
    )
    retries = AsyncRetry(
        predicate=lambda error: isinstance(error, passing),
        initial=patience.first_pause_seconds,
        maximum=patience.longest_pause_seconds,
        timeout=patience.deadline_seconds,
        on_error=note,
    )

    async def watch() -> None:
        work = asyncio.ensure_future(attempt(retries))
        await asyncio.sleep(0)  # let it begin: `count` must not return the last try's bytes
        before = -1
        try:
            while not work.done():
                if count() == before:
                    raise TransientError(f"no byte came through for {patience.read_seconds:g} s{last}")
                before = count()
                await asyncio.wait({work}, timeout=patience.read_seconds)
        finally:
            if not work.done():
                work.cancel()
                await asyncio.gather(work, return_exceptions=True)
        await work

    def try_once(_: Any, tries: Tries) -> None:
        before = count()
        try:
            with _faults(target, folder.session):
                connection.run(watch())
        finally:
            if count() > before:
                tries.progress()

    folder.persist(where, permission, try_once)


@contextmanager
def _faults(target: Target, session: GcsSession) -> Iterator[None]:
    """Turn errors of gRPC and of Google's client into ours."""
    import grpc
    from google.api_core import exceptions
    from google.cloud.storage.exceptions import DataCorruption

    try:
        yield
    except DataCorruption as error:
        raise ChecksumError(str(error)) from error
    except (exceptions.Aborted, exceptions.Cancelled, exceptions.RetryError, grpc.RpcError) as error:
        raise TransientError(f"{type(error).__name__}: {getattr(error, 'cause', None) or error}") from error
    except exceptions.GoogleAPICallError as error:
        identity = session.identity if session.credentials is not None else ANONYMOUS
        made = error_of(int(error.code or 500), {}, f"{type(error).__name__}: {error.message}", target, identity)
        # The extra is installed: there is no need to look up whether the bucket needs it.
        raise (StoreError(str(made)) if isinstance(made, UnexpectedError) else made) from error
