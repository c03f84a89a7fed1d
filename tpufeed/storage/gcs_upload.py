"""An object put under a precondition: small ones in one request, large ones in chunks of a resumable upload."""

import json
import os
import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from crc32c import crc32c

from tpufeed.errors import StoreError
from tpufeed.storage.gcs_answers import Resource
from tpufeed.storage.gcs_crc32c import from_crc32c
from tpufeed.storage.gcs_folder import FIELDS, GcsFolder, Send
from tpufeed.storage.gcs_retrying import ChecksumError, TransientError, Tries
from tpufeed.storage.gcs_session import Request

SMALL_BYTES = 8 << 20
CHUNK_BYTES = 32 << 20  # a multiple of 256 KiB; each waits for an answer
_PIECE_BYTES = 256 << 10  # the time limit of a socket is for one send as a whole: pieces let a slow line be slow


class ReadError(Exception):
    """What is to be put cannot be read. No OSError, as urllib3 takes those for the network's."""


@dataclass(frozen=True, slots=True)
class Content:
    """What is to be put.

    Attributes:
        data: the bytes, or the file that holds them.
        size_bytes: how many.
        crc32c: of all of them.
    """

    data: bytes | Path
    size_bytes: int
    crc32c: int

    def pieces(self, start: int, stop: int) -> Iterator[bytes | memoryview]:
        """The bytes `[start, stop)`. Raises ReadError."""
        if isinstance(self.data, Path):
            yield from _pieces_of_file(self.data, start, stop)
        else:
            for at in range(start, stop, _PIECE_BYTES):
                yield memoryview(self.data)[at : min(at + _PIECE_BYTES, stop)]


def content_of_bytes(data: bytes) -> Content:
    """`data` itself, summed up."""
    return Content(data, len(data), crc32c(data))


def content_of_file(path: Path) -> Content:
    """The file, read once for its sum. Raises ReadError."""
    total = 0
    try:
        size = path.stat().st_size
    except OSError as error:
        raise ReadError(f"{path}: {error.strerror}") from error
    for piece in _pieces_of_file(path, 0, size):
        total = crc32c(piece, total)
    return Content(path, size, total)


class Upload:
    """One put.

    Attributes:
        tries_failed: how many tries did; any of them may have been applied, its answer lost.
    """

    def __init__(self, folder: GcsFolder, name: str, content: Content, generation: str) -> None:
        self._folder, self._key, self._where, self._content = folder, folder.key(name), folder.where(name), content
        self._params = {"ifGenerationMatch": generation, "fields": FIELDS}
        self._path = folder.path(kind="/upload")
        self._url = ""  # of the resumable upload
        self._stored = self._furthest = 0
        self.tries_failed = 0

    def run(self) -> Resource:
        """What the service says of the new object. Raises PreconditionError, ReadError, StoreError."""
        attempt = self._put_at_once if self._content.size_bytes <= SMALL_BYTES else self._put_on
        found = self._folder.persist(self._where, "storage.objects.create", attempt)
        if found.size != self._content.size_bytes or found.crc32c != from_crc32c(self._content.crc32c):
            raise StoreError(
                f"{self._where}: {found.size} bytes with crc32c {found.crc32c or '(none)'} are there although "
                f"{self._content.size_bytes} with {from_crc32c(self._content.crc32c)} were put; delete the object"
            )
        return found

    @property
    def _metadata(self) -> bytes:
        """With the sum, so that the service refuses what was damaged on its way."""
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
            _ = response.content  # what is not read to its end, be it empty, is closed with the response
        if not self._url:
            raise TransientError("the upload was begun, but where to send it was not said")
        self._stored = 0

    def _send_range(self, send: Send, content_range: str, body: "bytes | _Body") -> Resource | None:
        """The new object where that was the end of it, or else None, and `_stored` is what has arrived so far."""
        request = Request("PUT", self._url, {}, {"Content-Range": content_range}, body, accept=(308, 404, 410))
        try:
            with send(request) as response:
                _ = response.content
                if response.status_code == 308:
                    found = re.fullmatch(r"bytes=0-(\d+)", response.headers.get("Range", ""))
                    self._stored = int(found[1]) + 1 if found else 0
                    if self._stored > self._content.size_bytes:
                        raise StoreError(
                            f"{self._where}: the service says that it has {self._stored} bytes of "
                            f"{self._content.size_bytes}"
                        )
                    return None
                if response.status_code in (404, 410):
                    self._url = ""
                    raise TransientError(f"HTTP {response.status_code}: the upload is gone and begins again")
                return self._folder.decode(self._where, response.content, Resource)
        except ChecksumError:
            self._url = ""
            raise


class _Body:
    """Part of the content between other bytes: sized for its header, iterated for its pieces."""

    def __init__(self, content: Content, start: int, stop: int, head: bytes = b"", tail: bytes = b"") -> None:
        self._content, self._start, self._stop = content, start, stop
        self._head, self._tail = head, tail

    def __len__(self) -> int:
        return len(self._head) + self._stop - self._start + len(self._tail)

    def __iter__(self) -> Iterator[bytes | memoryview]:
        yield self._head
        yield from self._content.pieces(self._start, self._stop)
        yield self._tail


def _pieces_of_file(path: Path, start: int, stop: int) -> Iterator[bytes]:
    try:
        with path.open("rb", buffering=0) as file:
            while start < stop:
                piece = os.pread(file.fileno(), min(_PIECE_BYTES, stop - start), start)
                if not piece:
                    raise ReadError(f"{path}: it became shorter while it was put: {start} instead of {stop} bytes")
                start += len(piece)
                yield piece
    except OSError as error:
        raise ReadError(f"{path}: {error.strerror}") from error
