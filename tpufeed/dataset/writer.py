"""Write shards, in a single pass over the parts of each record, and indexes to local files."""

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
from crc32c import crc32c

from tpufeed.dataset.index import ITEM, NPY_HEADER_BYTES, Offsets
from tpufeed.dataset.naming import PLAN
from tpufeed.errors import OptionError, StoreError
from tpufeed.processes.limits import room_left
from tpufeed.storage.store import Store
from tpufeed.tfrecord.framing import BytesLike, encode_footer, encode_header
from tpufeed.tfrecord.layout import FixedLayout

_BLOCK_BYTES = 4 << 20


def check_writable(destination: Store) -> None:
    """Check, without changes, that a local folder can be made and written to. Other stores tell at the first write.

    Raises:
        OptionError: it is a file, or below a file.
        StoreError: it cannot be written to.
    """
    path = destination.local_path(PLAN)
    for folder in () if path is None else path.parents:
        if not os.path.lexists(folder):
            continue
        if folder.is_dir():
            if os.access(folder, os.W_OK | os.X_OK):
                return
            with suppress(FileNotFoundError):  # another process has just removed it
                wrong = errno.EROFS if os.statvfs(folder).f_flag & os.ST_RDONLY else errno.EACCES
                raise StoreError(f"{destination.url}/{PLAN} cannot be written: {folder}: {os.strerror(wrong)}")
        elif os.path.lexists(folder):
            raise OptionError(
                f"{destination.url} cannot be a dataset's folder: {folder} is a file. Take another destination"
            )


class ShardWriter:
    """Writes records to a new local file until `close`.

    Attributes:
        offsets: where each record starts, and where the last one ends.
        crc32c: of the file.
    """

    def __init__(self, path: Path, layout: FixedLayout) -> None:
        self.crc32c, self.offsets = 0, [0]
        self._path, self._layout = path, layout
        with _errors(path):
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)  # less the umask

    def add(self, image: BytesLike, ints: Sequence[int], rest: bytes) -> None:
        """Append a record: the image's bytes, the layout's integers, then the other features as encoded entries."""
        prefix, suffix = self._layout.encode(len(image), ints, rest)
        self.write(image, prefix, suffix)

    def close(self) -> None:
        """Close the file. Raises StoreError."""
        with _errors(self._path):
            os.close(self._file)

    def write(self, body: BytesLike, prefix: bytes = b"", suffix: bytes = b"") -> None:
        """Append a record, given its payload, which may come in three parts."""
        head = encode_header(len(prefix) + len(body) + len(suffix)) + prefix
        tail = suffix + encode_footer(crc32c(suffix, crc32c(body, crc32c(prefix))))
        self.crc32c = crc32c(tail, crc32c(body, crc32c(head, self.crc32c)))
        size = len(head) + len(body) + len(tail)
        self.offsets.append(self.offsets[-1] + size)
        with _errors(self._path):
            written = os.writev(self._file, (head, body, tail))
            if written < size:  # a signal, or a disk that is nearly full
                rest = memoryview(b"".join((head, body, tail)))[written:]
                while rest:
                    rest = rest[os.write(self._file, rest) :]


class IndexWriter:
    """Writes the bytes of `encode_index` to a new file, shard by shard, in constant memory.

    The file is open only while it is written to: a cache has one for each variant of each split.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._count = path, 0
        with _errors(path), path.open("xb") as file:
            file.write(bytes(NPY_HEADER_BYTES))

    def add(self, offsets: Offsets) -> None:
        """Append the offsets of one or more shards, or a part of them. Raises StoreError."""
        self._count += len(offsets)
        with _errors(self._path), self._path.open("ab") as file:
            file.write(offsets.astype(ITEM, copy=False).tobytes())

    def finish(self) -> tuple[int, int]:
        """Complete the file, and return its size and CRC-32C. Raises StoreError."""
        with _errors(self._path), self._path.open("r+b") as file:
            header = {"shape": (self._count,), "fortran_order": False, "descr": ITEM}
            np.lib.format.write_array_header_1_0(file, header)
            assert file.tell() == NPY_HEADER_BYTES, "there is room for any count"
            file.seek(0)
            crc = 0
            while block := file.read(_BLOCK_BYTES):
                crc = crc32c(block, crc)
            return file.tell(), crc


@contextmanager
def _errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror or error}{room_left(error, path)}") from error
