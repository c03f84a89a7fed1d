"""Memory of batches, used again when its last user is gone."""

import ctypes
import mmap
import weakref
from collections import deque

import numpy as np

from tpufeed.images.decoding import Pixels

_KEPT = 8


class BufferPool:
    """Page-aligned uint8 arrays of one shape. Fresh memory costs a page fault for every 4 kB, more than the copy.

    An array's memory comes back when nothing refers to it any more: no view, no tensor that shares it. A finalizer on
    the root owner says so exactly (a weak reference to the array would not: frameworks keep only the root). Whoever
    keeps batches makes the pool allocate; nobody ever waits.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._shape = shape
        self._type = ctypes.c_ubyte * int(np.prod(shape))
        self._free: deque[mmap.mmap] = deque(maxlen=_KEPT)

    def take(self) -> Pixels:
        """An array with arbitrary contents."""
        try:
            memory = self._free.pop()
        except IndexError:
            memory = mmap.mmap(-1, ctypes.sizeof(self._type), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            if hasattr(mmap, "MADV_HUGEPAGE"):
                memory.madvise(mmap.MADV_HUGEPAGE)
        owner = self._type.from_buffer(memory)
        weakref.finalize(owner, self._free.append, memory).atexit = False
        return np.ndarray(self._shape, np.uint8, owner)  # type: ignore[arg-type]  # ctypes arrays are buffers
