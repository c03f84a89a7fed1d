"""Memory of batches, used again when its last user is gone."""

import ctypes
import mmap
import os
import weakref
from collections import deque
from contextlib import suppress
from typing import NamedTuple

import numpy as np

from tpufeed.engines.child import fill_streams
from tpufeed.images.decoding import Pixels

_KEPT = 8
_FIRST_SEGMENT = 8  # buffers


class Buffer(NamedTuple):
    """The memory of a batch's images, and its place in the pool's file, in buffers."""

    number: int
    array: Pixels


class _Memory(NamedTuple):
    number: int
    map: mmap.mmap
    offset: int


class BufferPool:
    """Page-aligned uint8 arrays of one shape. Fresh memory costs a page fault for every 4 kB, more than the copy.

    An array's memory comes back when nothing refers to it any more: no view, no tensor that shares it. A finalizer on
    the root owner says so exactly (a weak reference to the array would not: frameworks keep only the root). A consumer
    that keeps batches makes the pool allocate; `take` never waits.

    Args:
        shape: of each array.
        kept: unused ones whose memory is kept.
        shared: in memory that other processes can map: `file` is then its descriptor.
    """

    def __init__(self, shape: tuple[int, ...], kept: int = _KEPT, shared: bool = False) -> None:
        self._shape = shape
        self._kept = kept
        self._type = ctypes.c_ubyte * int(np.prod(shape))
        self._made = 0
        self._owner = os.getpid()
        self._free: deque[_Memory] = deque()  # unused, with their pages
        self._empty: deque[_Memory] = deque()  # unused, in the file, without pages
        self._shared = shared
        self.file: int | None = None
        if shared:
            fill_streams()
            self.file = os.memfd_create("tpufeed-batches")

    def take(self) -> Buffer:
        """Return an array with arbitrary contents. One thread at a time."""
        # Not `if self._free`: a finalizer or `close` may come by between the look and the taking.
        for take_unused in (self._free.pop, self._empty.popleft):
            with suppress(IndexError):
                memory = take_unused()
                break
        else:
            memory = self._make()
        owner = self._type.from_buffer(memory.map, memory.offset)
        weakref.finalize(owner, self._give, memory).atexit = False
        return Buffer(memory.number, np.ndarray(self._shape, np.uint8, owner))  # type: ignore[arg-type]  # a buffer

    def close(self) -> None:
        """Close the file; arrays that are in use stay."""
        if self.file is not None:
            os.close(self.file)
            self.file, self._kept = None, 0
            self._free.clear()
            self._empty.clear()

    def _make(self) -> _Memory:
        """Map new memory; of a shared pool several buffers at once, of which the others are free."""
        number, size = self._made, ctypes.sizeof(self._type)
        if self.file is None:
            memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            if hasattr(mmap, "MADV_HUGEPAGE"):
                memory.madvise(mmap.MADV_HUGEPAGE)
            self._made += 1
            return _Memory(number, memory, 0)
        segment, stride = segment_of(number), buffer_stride(self._shape)
        os.ftruncate(self.file, segment.stop * stride)
        shared = map_segment(self.file, segment, stride)
        self._made = segment.stop
        first, *others = (_Memory(each, shared, (each - segment.start) * stride) for each in segment)
        self._empty.extend(others)
        return first

    def _give(self, memory: _Memory) -> None:
        """Take memory back. Finalizers call this, in any thread and at any moment."""
        if self._shared and os.getpid() != self._owner:  # a fork has let go of it; its parent may still use it
            return
        if len(self._free) < self._kept:
            self._free.append(memory)
        elif self._shared:  # its place in the file stays, without pages
            memory.map.madvise(mmap.MADV_REMOVE, memory.offset, buffer_stride(self._shape))
            self._empty.append(memory)


class MappedBuffers:
    """The buffers of another process' shared pool."""

    def __init__(self, file: int, shape: tuple[int, ...]) -> None:
        self._file = file
        self._shape = shape
        self._segments: dict[int, mmap.mmap] = {}

    def array(self, number: int) -> Pixels:
        """Return the buffer at this place."""
        segment, stride = segment_of(number), buffer_stride(self._shape)
        if segment.start not in self._segments:
            self._segments[segment.start] = map_segment(self._file, segment, stride)
        offset = (number - segment.start) * stride
        return np.ndarray(self._shape, np.uint8, self._segments[segment.start], offset)


def buffer_stride(shape: tuple[int, ...]) -> int:
    """Return the bytes from one buffer of a pool's file to the next."""
    return -(-int(np.prod(shape)) // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY


def segment_of(number: int) -> range:
    """Return the buffers that are mapped together with this one: 8, and then as many again as there are.

    Each mapping holds a descriptor, and a process that keeps a thousand batches may have no more than that.
    """
    if number < _FIRST_SEGMENT:
        return range(_FIRST_SEGMENT)
    start = 1 << (number.bit_length() - 1)
    return range(start, 2 * start)


def map_segment(file: int, segment: range, stride: int) -> mmap.mmap:
    """Map these buffers of a pool's file."""
    return mmap.mmap(file, len(segment) * stride, mmap.MAP_SHARED, offset=segment.start * stride)
