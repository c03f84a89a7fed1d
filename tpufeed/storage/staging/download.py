"""One shard on its way: its ranges are read by many threads, the last of which checks the whole."""

import os
import threading

from tpufeed.errors import ShardError
from tpufeed.storage.staging.folder import Part, read_crc32c
from tpufeed.storage.staging.shard import RemoteShard
from tpufeed.storage.store import Store


class Download:
    """A shard and the part that it goes into.

    Attributes:
        shard: what is fetched.
        part: where it goes.
        error: why it failed, or None; set at most once.
    """

    def __init__(self, store: Store, shard: RemoteShard, part: Part) -> None:
        self.shard = shard
        self.part = part
        self.error: Exception | None = None
        self._store = store
        self._version = ""
        self._left = 0
        self._lock = threading.Lock()

    def cut(self, range_bytes: int) -> list[tuple[int, int]]:
        """The ranges to `read`, each once; all of the version that is there now.

        Raises:
            ShardError: it is missing, or another than the manifest's.
        """
        size = self.shard.size_bytes
        if self._store.generations:
            info = self._store.stat(self.shard.name)
            if info is None or info.size_bytes != size or info.crc32c not in (None, self.shard.crc32c):
                found = "missing" if info is None else f"of {info.size_bytes} bytes, CRC-32C {info.crc32c or 0:#010x}"
                raise ShardError(f"it is {found}; the manifest says {size} bytes of {self.shard.crc32c:#010x}")
            self._version = info.version
        ranges = [(start, min(start + range_bytes, size)) for start in range(0, size, range_bytes)]
        self._left = len(ranges)
        return ranges

    def read(self, start: int, stop: int, buffer: memoryview) -> bool:
        """Fetch a range by way of `buffer`; True for the one that ends last, whatever became of it.

        Writing to the file from a buffer is quicker than faulting in pages of a mapping of it, and a disk that is full
        is an error there and a SIGBUS here.
        """
        if self.error is None:
            try:
                self._read(start, buffer[: stop - start])
            except Exception as error:  # noqa: BLE001  # the thread goes on, and the last one raises it
                self.error = error
        with self._lock:
            self._left -= 1
            return not self._left

    def cancel(self, error: Exception) -> None:
        """Let the ranges that are not begun fail with `error`."""
        self.error = self.error or error

    def verify(self) -> None:
        """Raises ShardError where the bytes are not the manifest's."""
        found = read_crc32c(self.part.descriptor, self.shard.size_bytes)
        if found != self.shard.crc32c:
            raise ShardError(f"its CRC-32C is {found:#010x}; the manifest says {self.shard.crc32c:#010x}")

    def _read(self, start: int, buffer: memoryview) -> None:
        found = self._store.read_into(self.shard.name, start, buffer, self._version)
        if found < len(buffer):
            raise ShardError(f"it ends at byte {start + found}; the manifest says {self.shard.size_bytes} bytes")
        written = 0
        while written < found:
            written += os.pwrite(self.part.descriptor, buffer[written:], start + written)
