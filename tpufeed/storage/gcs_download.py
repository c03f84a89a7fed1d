"""An object's bytes, read over as many requests as it takes."""

import re
from typing import Any

from crc32c import crc32c

from tpufeed.errors import ObjectNotFoundError, StoreError
from tpufeed.storage.gcs_crc32c import crc32c_of
from tpufeed.storage.gcs_folder import GcsFolder, Send, generation_of
from tpufeed.storage.gcs_retrying import ChecksumError, TransientError, Tries
from tpufeed.storage.gcs_session import Request
from tpufeed.storage.naming import check_name

_PIECE_BYTES = 256 << 10  # what is lost of a body that breaks off


class Download:
    """One read: a broken one goes on where it stopped, in the same generation.

    The client library's own downloads copy each byte several times in Python: 8 KB at a time from urllib3 to a file
    object. This asks for the object with the library's session and lets the socket write into the caller's buffer.
    The GIL is still taken once for what each receive brings, which by TLS is 16 KB at the most: beside a thread that
    computes in Python, reading belongs in a process of its own.

    Attributes:
        buffer: what is to be filled; where None was given, the whole object, once there was an answer.
        done: how many bytes of it are.
        generation: which one is read, "" until it is known.
    """

    def __init__(self, folder: GcsFolder, name: str, version: str) -> None:
        self._folder, self._where, self._path = folder, folder.where(name), folder.path(check_name(name), "/download")
        self._pinned = generation_of(version) if version else ""
        self.generation = self._pinned
        self.buffer: memoryview | None = None
        self.done = self._start = self._furthest = 0
        self._whole = False

    def read(self) -> bytes:
        """All bytes, checked against the service's CRC-32C. Raises ObjectNotFoundError, also where pinned."""
        self._whole = True
        self._persist()
        assert self.buffer is not None
        return bytes(self.buffer)

    def read_into(self, start: int, buffer: memoryview) -> int:
        """Fill `buffer` from byte `start` on; returns how many bytes there were. Raises as `read` does."""
        self._start, self.buffer = start, buffer.cast("B")
        self._persist()
        return self.done

    def _persist(self) -> None:
        while True:
            try:
                self._folder.persist(self._where, "storage.objects.get", self._attempt)
                return
            except ObjectNotFoundError:
                if self.generation == self._pinned:
                    raise
                self._begin_again()  # replaced while it was read by whoever asked for no version

    def _begin_again(self) -> None:
        self.generation, self.done = self._pinned, 0
        self.buffer = None if self._whole else self.buffer

    def _attempt(self, send: Send, tries: Tries) -> None:
        first = self._start + self.done
        params = {"alt": "media", **({"generation": self.generation} if self.generation else {})}
        headers = {"Accept-Encoding": "gzip"}  # what is stored as gzip comes as it is stored, with its true length
        if self.buffer is not None:
            headers["Range"] = f"bytes={first}-{self._start + len(self.buffer) - 1}"
        elif first:
            headers["Range"] = f"bytes={first}-"
        with send(Request("GET", self._path, params, headers, accept=(416,))) as response:
            if response.status_code == 416:  # it ends before
                _ = response.content  # what is not read to its end is closed with the response
                if self.done:
                    raise StoreError(f"{self._where}: it became shorter than {first + 1} bytes while it was read")
                return
            size = self._check_answer(response, first, "Range" in headers)
            if self.buffer is None:
                self.buffer = memoryview(bytearray(size))
            wanted = min(len(self.buffer), max(0, size - self._start))
            self._receive(response, wanted, tries)
            if self._start == 0 and wanted == size:
                self._check_sum(response, wanted)

    def _check_answer(self, response: Any, first: int, ranged: bool) -> int:
        """How long the object is. Raises where the answer is about other bytes than were asked for."""
        generation = response.headers.get("X-Goog-Generation", "")
        if self.generation and generation and generation != self.generation:
            raise TransientError(f"generation {generation} came where {self.generation} was asked for")
        self.generation = self.generation or generation
        if response.status_code == 206 or "Content-Range" in response.headers:  # some say 200 with it
            found = re.fullmatch(r"bytes (\d+)-\d+/(\d+)", response.headers.get("Content-Range", ""))
            if not ranged or found is None or int(found[1]) != first:
                raise TransientError(f"bytes from {first} were asked for: {response.headers.get('Content-Range')} came")
            return int(found[2])
        if first:
            raise StoreError(f"{self._where}: the server sends the whole object when asked for a range of it")
        try:
            return int(response.headers["Content-Length"])
        except (KeyError, ValueError):
            raise TransientError("the answer does not say how long the object is") from None

    def _receive(self, response: Any, wanted: int, tries: Tries) -> None:
        assert self.buffer is not None
        # urllib3's own readinto makes bytes and copies them; the response of http.client that it wraps does not.
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
        elif getattr(source, "fp", None) is None:  # read to its end, of which urllib3 has seen nothing
            response.raw.release_conn()

    def _check_sum(self, response: Any, size: int) -> None:
        expected = crc32c_of(response.headers, self._where)
        assert self.buffer is not None
        if expected is not None:
            found = crc32c(self.buffer[:size])
            if found != expected:
                self.done = 0
                raise ChecksumError(f"crc32c is {found:08x} where the service says {expected:08x}")
