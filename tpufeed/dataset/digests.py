"""Digests of source images: by content a build can tell which images are the same.

`_tpufeed/digests.bin` holds the BLAKE2b of each image's file as it was read, 16 bytes each, in the order of the plan's
inputs; zeros stand for an input that was not read. Records do not hold them.
"""

import hashlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tpufeed.dataset.commit import put_made
from tpufeed.dataset.naming import DIGESTS
from tpufeed.dataset.plan import Owner
from tpufeed.errors import ManifestError, ObjectNotFoundError
from tpufeed.storage.store import Store
from tpufeed.tfrecord.crc32c import crc32c

DIGEST_BYTES = 16
UNREAD = bytes(DIGEST_BYTES)


def image_digest(data: bytes) -> bytes:
    """Return the digest of a file's bytes."""
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()


class DigestWriter:
    """Collects the digests of all tasks in turn. One task without them, of an older tpufeed, and none are put."""

    def __init__(self, path: Path) -> None:
        self._path, self._crc, self._size, self._complete = path, 0, 0, True
        self._file = path.open("wb")

    def add(self, digests: object) -> None:
        """Append those of a task."""
        if not isinstance(digests, bytes):
            self._complete = False
            return
        self._file.write(digests)
        self._crc, self._size = crc32c(digests, self._crc), self._size + len(digests)

    def put(self, store: Store, owner: Owner) -> None:
        """Put the file, where all tasks have told theirs."""
        self._file.close()
        if self._complete and self._size:
            put_made(store, DIGESTS, self._path, self._size, self._crc, owner)


def read_digests(store: Store, inputs: int) -> npt.NDArray[np.uint8] | None:
    """Return the digests of a build, uint8 (inputs, 16); None where it has stored none.

    Raises:
        ManifestError: they are not those of so many inputs.
    """
    try:
        data = store.read(DIGESTS)
    except ObjectNotFoundError:
        return None
    if len(data) != inputs * DIGEST_BYTES:
        raise ManifestError(
            f"{store.url}/{DIGESTS} has {len(data)} bytes; {inputs:,} inputs take {inputs * DIGEST_BYTES}. The file "
            "was damaged: remove it, and images are compared by path and size"
        )
    return np.frombuffer(data, np.uint8).reshape(inputs, DIGEST_BYTES)
