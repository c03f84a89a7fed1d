"""Memory of batches, reused when its last user is gone."""

import ctypes
import math
import mmap
import os
import weakref
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np

from tpufeed.processes.child import fill_streams
from tpufeed.stream.columns import Array

_KEPT = 8
_FIRST_SEGMENT = 8  # buffers
_MADV_POPULATE_READ = 22  # linux/mman.h, from Linux 5.14 on. Python's mmap has no name for it
_PAGE_BYTES = mmap.ALLOCATIONGRANULARITY
_AT_ONCE_BYTES = 4 << 20  # 2 ms, for which Python's `madvise` holds the GIL
_PROT = mmap.PROT_READ | mmap.PROT_WRITE
_MAP_FIXED, _MREMAP_MAYMOVE_FIXED = 0x10, 3  # sys/mman.h, the same on x86-64 and Arm


class BufferLayout:
    """Layout of the pixel arrays in a buffer. Each begins at a memory page: frameworks cannot share other memory.

    Args:
        arrays: (name, dtype, shape with the rows) of each.

    Attributes:
        stride: bytes from one buffer of a pool to the next. At least one page, even for a batch without pixels.
    """

    def __init__(self, arrays: Iterable[tuple[str, str, tuple[int, ...]]]) -> None:
        self._places, end = list[tuple[str, str, tuple[int, ...], int]](), 0
        for name, dtype, shape in arrays:
            self._places.append((name, dtype, shape, end))
            end += -(-math.prod(shape) * np.dtype(dtype).itemsize // _PAGE_BYTES) * _PAGE_BYTES
        self.stride = end or _PAGE_BYTES

    def views(self, owner: Any, start: int = 0) -> dict[str, Array]:
        """Return the arrays of the buffer that begins at byte `start` of `owner`."""
        return {name: np.ndarray(shape, dtype, owner, start + at) for name, dtype, shape, at in self._places}


class Memory(NamedTuple):
    """Memory of a batch in a mapping.

    Attributes:
        number: its place in the pool's file, counted in buffers. 0 without a file.
        map: the mapping.
        start: its first byte in the mapping.
        stop: the byte after its last one.
    """

    number: int
    map: mmap.mmap
    start: int
    stop: int

    def make_pages(self, part: int = 0, parts: int = 1) -> Iterator[None]:
        """Make and map the pages of part `part` of `parts` equal parts, 4 MB per step. Contents are kept.

        A write faults at every page, even if another process has made the page already. A read maps 16 such pages per
        fault: a batch of 154 MB takes 12 ms instead of 60. Pages that do not exist yet take 60 ms either way. (Written
        through the file they take 45 ms, but the kernel lets only one process at a time write to a file.)
        """
        pages = (self.stop - self.start) // mmap.PAGESIZE
        start, stop = (self.start + pages * edge // parts * mmap.PAGESIZE for edge in (part, part + 1))
        with suppress(OSError):  # an older kernel: then writes fault
            for at in range(start, stop, _AT_ONCE_BYTES):
                self.map.madvise(_MADV_POPULATE_READ, at, min(_AT_ONCE_BYTES, stop - at))
                yield


class Buffer(NamedTuple):
    """Memory of a batch's pixels, and the arrays in it by column."""

    memory: Memory
    arrays: dict[str, Array]


class BufferPool:
    """Buffers for the pixels of batches. Fresh memory costs a page fault for every 4 kB, more than the copy.

    A buffer comes back when nothing refers to it any more: no view, no tensor that shares it. A finalizer on the root
    owner tells exactly when (a weak reference to the array would not: frameworks keep only the root). If a consumer
    keeps batches, the pool allocates more. `take` never waits.

    Before the process forks, lent buffers of a shared pool become private memory at the same place, until they come
    back. Else a child would see later batches in the batch that it was forked with, and write into its parent's.

    Args:
        layout: the arrays of a batch.
        kept: number of unused buffers whose memory is kept.
        shared: True for memory that other processes can map. `file` is its descriptor.
    """

    def __init__(self, layout: BufferLayout, kept: int = _KEPT, shared: bool = False) -> None:
        self._layout, self._stride, self._kept = layout, layout.stride, kept
        self._type = ctypes.c_ubyte * layout.stride
        self._made, self._owner = 0, os.getpid()  # buffers in the file
        # Unused buffers: those with pages by the NUMA node of these, and those in the file without pages.
        self._free: defaultdict[int, deque[Memory]] = defaultdict(deque)
        self._empty: deque[Memory] = deque()
        self._shared = shared
        self.file: int | None = None
        if shared:
            fill_streams()
            self.file = os.memfd_create("tpufeed-batches")
            # By number: owners of buffers that were taken, buffers that no worker writes to, those of private memory.
            self._owners: dict[int, weakref.ref[Any]] = {}
            self._lent, self._private = set[int](), set[int]()
            os.register_at_fork(before=partial(_before_fork, weakref.ref(self)))

    def take(self, node: int = 0) -> Buffer:
        """Return a buffer with arbitrary contents, for a worker on this NUMA node. One thread at a time."""
        # Not `if self._free`: a finalizer or `close` may run between the check and the pop.
        for take_unused in (self._free[node].pop, self._empty.popleft):
            with suppress(IndexError):
                memory = take_unused()
                break
        else:
            if self.file is None:
                mapping = mmap.mmap(-1, self._stride, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
                if hasattr(mmap, "MADV_HUGEPAGE"):
                    mapping.madvise(mmap.MADV_HUGEPAGE)
                memory = Memory(0, mapping, 0, self._stride)
            else:  # several buffers at once. The others are free
                segment = segment_of(self._made)
                os.ftruncate(self.file, segment.stop * self._stride)
                memory, *others = map_segment(self.file, segment, self._stride)
                self._made = segment.stop
                self._empty.extend(others)
        owner = self._type.from_buffer(memory.map, memory.start)
        weakref.finalize(owner, self._give, memory, node).atexit = False
        if self._shared:
            self._owners[memory.number] = weakref.ref(owner)
        return Buffer(memory, self._layout.views(owner))

    def lend(self, number: int) -> None:
        """Note that buffer `number` of a shared pool goes to the training loop: no worker writes to it any more."""
        self._lent.add(number)

    def part_from_children(self) -> None:
        """Make lent buffers private memory, with the same contents at the same place."""
        for number in tuple(self._lent):
            owner = self._owners[number]()  # while it is held, the buffer cannot come back
            if owner is not None and number in self._lent and number not in self._private:
                here, libc = ctypes.addressof(owner), _libc()
                copy = libc.mmap(None, self._stride, _PROT, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
                ctypes.memmove(copy, here, self._stride)
                # At once: other threads may be reading.
                libc.mremap(copy, self._stride, self._stride, _MREMAP_MAYMOVE_FIXED, here)
                self._private.add(number)

    def close(self) -> None:
        """Close the file. Arrays that are in use stay valid."""
        if self.file is not None:
            os.close(self.file)
            self.file, self._kept = None, 0
            self._free.clear()
            self._empty.clear()

    def _give(self, memory: Memory, node: int) -> None:
        """Take memory back. Finalizers call this, in any thread and at any moment."""
        if self._shared and os.getpid() != self._owner:  # a fork has let go of it. Its parent may still use it
            return
        if self._shared:
            self._lent.discard(memory.number)
            if memory.number in self._private:
                self._private.discard(memory.number)
                if self.file is None:
                    return
                here = ctypes.addressof(ctypes.c_char.from_buffer(memory.map, memory.start))
                flags, place = mmap.MAP_SHARED | _MAP_FIXED, memory.number * self._stride
                _libc().mmap(here, self._stride, _PROT, flags, self.file, place)
        if sum(map(len, tuple(self._free.values()))) < self._kept:
            self._free[node].append(memory)
        elif self._shared:  # its place in the file stays, without pages
            memory.map.madvise(mmap.MADV_REMOVE, memory.start, self._stride)
            self._empty.append(memory)


def _before_fork(reference: "weakref.ref[BufferPool]") -> None:
    pool = reference()
    if pool is not None:
        pool.part_from_children()


@cache
def _libc() -> ctypes.CDLL:
    """Return the functions of libc that map memory at a given place, which Python's mmap cannot do."""
    libc = ctypes.CDLL(None, use_errno=True)
    size, address, number = ctypes.c_size_t, ctypes.c_void_p, ctypes.c_int

    def check(found: int | None, *_: object) -> int:
        if found is None or found == ctypes.c_void_p(-1).value:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return found

    libc.mmap.argtypes = address, size, number, number, number, ctypes.c_long
    libc.mremap.argtypes = address, size, size, number, address
    for function in (libc.mmap, libc.mremap):
        function.restype, function.errcheck = address, check  # type: ignore[assignment]  # not typed
    return libc


class MappedBuffers:
    """The buffers of another process' shared pool."""

    def __init__(self, file: int, layout: BufferLayout) -> None:
        self._file, self._layout = file, layout
        self._segments: dict[int, list[Memory]] = {}
        self._met: set[int] = set()  # buffers whose pages this process has mapped

    def take(self, number: int) -> tuple[Buffer, bool]:
        """Return buffer `number`, and whether this process has mapped its pages."""
        segment, stride = segment_of(number), self._layout.stride
        if segment.start not in self._segments:
            self._segments[segment.start] = map_segment(self._file, segment, stride)
        memory, mapped = self._segments[segment.start][number - segment.start], False
        if number in self._met:
            with suppress(OSError):  # there are no pages from this buffer to the file's end: the pool has dropped them
                mapped = os.lseek(self._file, number * stride, os.SEEK_DATA) < (number + 1) * stride
        self._met.add(number)
        return Buffer(memory, self._layout.views(memory.map, memory.start)), mapped


def segment_of(number: int) -> range:
    """Return the buffers that are mapped together with this one: the first 8, later as many as there are so far.

    Each mapping holds a descriptor, and the limit of descriptors may be lower than the number of batches kept.
    """
    if number < _FIRST_SEGMENT:
        return range(_FIRST_SEGMENT)
    start = 1 << (number.bit_length() - 1)
    return range(start, 2 * start)


def map_segment(file: int, segment: range, stride: int) -> list[Memory]:
    """Map these buffers of a pool's file."""
    shared = mmap.mmap(file, len(segment) * stride, mmap.MAP_SHARED, offset=segment.start * stride)
    return [Memory(number, shared, at * stride, (at + 1) * stride) for at, number in enumerate(segment)]
