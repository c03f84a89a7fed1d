"""Memory of batches, used again when its last user is gone."""

import ctypes
import mmap
import os
import weakref
from collections import deque
from contextlib import suppress
from typing import NamedTuple

import numpy as np

from tpufeed.images.decoding import Pixels

_KEPT = 8


class Buffer(NamedTuple):
    """The memory of a batch's images, and its place in the pool's file, in buffers."""

    number: int
    array: Pixels


class BufferPool:
    """Page-aligned uint8 arrays of one shape. Fresh memory costs a page fault for every 4 kB, more than the copy.

    An array's memory comes back when nothing refers to it any more: no view, no tensor that shares it. A finalizer on
    the root owner says so exactly (a weak reference to the array would not: frameworks keep only the root). Whoever
    keeps batches makes the pool allocate; nobody ever waits.

    Args:
        shape: of each array.
        kept: unused ones whose memory is kept.
        shared: in memory that other processes can map: `file` is then its descriptor.
    """

    def __init__(self, shape: tuple[int, ...], kept: int = _KEPT, shared: bool = False) -> None:
        self._shape = shape
        self._type = ctypes.c_ubyte * int(np.prod(shape))
        self._free = _Free(kept)
        self._made = 0
        self.file = os.memfd_create("tpufeed-batches") if shared else None

    def take(self) -> Buffer:
        """An array with arbitrary contents. One thread at a time."""
        memory = self._free.take()
        if memory is None:
            memory = _Memory(self._made, self._map())
            self._made += 1
        owner = self._type.from_buffer(memory.map)
        weakref.finalize(owner, self._free.give, memory, self.file is not None).atexit = False
        return Buffer(memory.number, np.ndarray(self._shape, np.uint8, owner))  # type: ignore[arg-type]  # a buffer

    def close(self) -> None:
        """Close the file; arrays that are in use stay."""
        if self.file is not None:
            os.close(self.file)
            self.file = None
            self._free.clear()

    def _map(self) -> mmap.mmap:
        size = ctypes.sizeof(self._type)
        if self.file is not None:
            stride = buffer_stride(self._shape)
            os.ftruncate(self.file, (self._made + 1) * stride)
            return mmap.mmap(self.file, size, mmap.MAP_SHARED, offset=self._made * stride)
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            memory.madvise(mmap.MADV_HUGEPAGE)
        return memory


def buffer_stride(shape: tuple[int, ...]) -> int:
    """Bytes from one buffer of a pool's file to the next."""
    return -(-int(np.prod(shape)) // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY


class MappedBuffers:
    """The buffers of another process' shared pool."""

    def __init__(self, file: int, shape: tuple[int, ...]) -> None:
        self._file = file
        self._shape = shape
        self._arrays: dict[int, Pixels] = {}

    def array(self, number: int) -> Pixels:
        """The buffer at this place."""
        if number not in self._arrays:
            offset, size = number * buffer_stride(self._shape), int(np.prod(self._shape))
            memory = mmap.mmap(self._file, size, mmap.MAP_SHARED, offset=offset)
            self._arrays[number] = np.frombuffer(memory, np.uint8).reshape(self._shape)
        return self._arrays[number]


class _Memory(NamedTuple):
    number: int
    map: mmap.mmap


class _Free:
    """Memory that nobody uses. `give` is called by finalizers: in any thread, at any moment."""

    def __init__(self, kept: int) -> None:
        self._kept = kept
        self._whole: deque[_Memory] = deque()
        self._empty: deque[_Memory] = deque()

    def take(self) -> _Memory | None:
        for memories in (self._whole, self._empty):
            with suppress(IndexError):
                return memories.pop()
        return None

    def give(self, memory: _Memory, shared: bool) -> None:
        if len(self._whole) < self._kept:
            self._whole.append(memory)
        elif shared:  # its place in the file stays, without pages
            memory.map.madvise(mmap.MADV_REMOVE)
            self._empty.append(memory)

    def clear(self) -> None:
        self._kept = 0
        self._whole.clear()
        self._empty.clear()
