"""Writing one shard: framing, CRCs and offsets in a single pass over each record's parts."""

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from crc32c import crc32c

from tpufeed.dataset.index import Offsets
from tpufeed.dataset.naming import PLAN
from tpufeed.errors import OptionError, StoreError
from tpufeed.storage.store import Store
from tpufeed.tfrecord.framing import BytesLike, encode_footer, encode_header
from tpufeed.tfrecord.layout import FixedLayout


@dataclass(frozen=True, slots=True)
class WrittenShard:
    """A shard as it was written: its size, CRC and offsets of records (records + 1 of them, the last is the size)."""

    bytes: int
    crc32c: int
    offsets: Offsets


def check_writable(destination: Store) -> None:
    """Check that a local folder can be made and written to. Changes nothing; other stores say so at the first write.

    Raises:
        OptionError: it is a file, or in one.
        StoreError: it cannot be written to.
    """
    path = destination.local_path(PLAN)
    if path is None:
        return
    folder = next(folder for folder in path.parents if os.path.lexists(folder))
    if not folder.is_dir():
        raise OptionError(
            f"{destination.url} cannot be a dataset's folder: {folder} is a file; take another destination"
        )
    if not os.access(folder, os.W_OK | os.X_OK):
        wrong = errno.EROFS if os.statvfs(folder).f_flag & os.ST_RDONLY else errno.EACCES
        raise StoreError(f"{destination.url}/{PLAN} cannot be written: {folder}: {os.strerror(wrong)}")


class ShardWriter:
    """Writes records to a new local file until `close`."""

    def __init__(self, path: Path, layout: FixedLayout) -> None:
        self._path = path
        self._layout = layout
        self._crc = 0
        self._offsets = [0]
        with _errors(path):
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)  # less the umask

    def add(self, image: BytesLike, ints: Sequence[int], rest: bytes) -> None:
        """Append a record: the image's bytes, the layout's integers, then the other features as encoded entries."""
        prefix, suffix = self._layout.encode(len(image), ints, rest)
        header = encode_header(len(prefix) + len(image) + len(suffix))
        footer = encode_footer(crc32c(suffix, crc32c(image, crc32c(prefix))))
        self._write(header + prefix, image, suffix + footer)

    def add_payload(self, payload: BytesLike) -> None:
        """Append a record as it stands in another shard, given its payload."""
        self._write(encode_header(len(payload)), payload, encode_footer(crc32c(payload)))

    def finish(self) -> WrittenShard:
        """Return what has been written."""
        return WrittenShard(self._offsets[-1], self._crc, np.array(self._offsets, np.uint64))

    def close(self) -> None:
        """Close the file. Raises StoreError."""
        with _errors(self._path):
            os.close(self._file)

    def _write(self, head: bytes, body: BytesLike, tail: bytes) -> None:
        self._crc = crc32c(tail, crc32c(body, crc32c(head, self._crc)))
        size = len(head) + len(body) + len(tail)
        self._offsets.append(self._offsets[-1] + size)
        with _errors(self._path):
            written = os.writev(self._file, (head, body, tail))
            if written < size:  # a signal, or a disk that is nearly full
                rest = memoryview(b"".join((head, body, tail)))[written:]
                while rest:
                    rest = rest[os.write(self._file, rest) :]


@contextmanager
def _errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}") from error
