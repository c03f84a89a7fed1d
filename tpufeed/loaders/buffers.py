"""Memory of batches, used again when its last user is gone."""

import ctypes
import math
import mmap
import os
import weakref
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from tpufeed.processes.child import fill_streams

Array: TypeAlias = npt.NDArray[Any]

_KEPT = 8
_FIRST_SEGMENT = 8  # buffers
_MADV_POPULATE_READ = 22  # linux/mman.h, from Linux 5.14 on; Python's mmap has no name for it
_AT_ONCE_BYTES = 4 << 20  # 2 ms, for which Python's `madvise` holds the GIL


class ArraySpec(NamedTuple):
    """One array of a batch: its name, its dtype and its shape with the rows."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Memory of the array, in whole pages: frameworks share only what begins at one."""
        size = math.prod(self.shape) * np.dtype(self.dtype).itemsize
        return -(-size // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY


def stride_of(specs: Sequence[ArraySpec]) -> int:
    """Return the bytes from one buffer of a pool to the next; a batch without pixels has one page, too."""
    return sum(spec.bytes for spec in specs) or mmap.ALLOCATIONGRANULARITY


def views(owner: Any, specs: Sequence[ArraySpec], start: int = 0) -> dict[str, Array]:
    """Return arrays that lie one behind the other in a buffer."""
    arrays = {}
    for spec in specs:
        arrays[spec.name] = np.ndarray(spec.shape, spec.dtype, owner, start)
        start += spec.bytes
    return arrays


class Memory(NamedTuple):
    """Memory of a batch in a mapping.

    Attributes:
        number: its place in the pool's file, in buffers.
        map: the mapping.
        start: its first byte there.
        stop: behind its last one.
    """

    number: int
    map: mmap.mmap
    start: int
    stop: int

    def make_pages(self, part: int = 0, parts: int = 1) -> Iterator[None]:
        """Make and map the pages of one of so many equal parts, 4 MB at each step; contents stay.

        Storing faults at each page, also where another process has made it. Reading maps 16 of those a fault: a batch
        of 154 MB in 12 ms in place of 60. Pages that nobody has made take 60 ms either way. (Written through the file
        instead they take 45, but the kernel lets one process at a time write to a file.)
        """
        pages = (self.stop - self.start) // mmap.PAGESIZE
        start, stop = (self.start + pages * edge // parts * mmap.PAGESIZE for edge in (part, part + 1))
        with suppress(OSError):  # an older kernel: stores fault
            for at in range(start, stop, _AT_ONCE_BYTES):
                self.map.madvise(_MADV_POPULATE_READ, at, min(_AT_ONCE_BYTES, stop - at))
                yield


class Buffer(NamedTuple):
    """The memory of a batch's pixels, and these by column."""

    memory: Memory
    arrays: dict[str, Array]


class BufferPool:
    """Page-aligned arrays of a batch. Fresh memory costs a page fault for every 4 kB, more than the copy.

    A batch's memory comes back when nothing refers to it any more: no view, no tensor that shares it. A finalizer on
    the root owner says so exactly (a weak reference to the array would not: frameworks keep only the root). A consumer
    that keeps batches makes the pool allocate; `take` never waits.

    Args:
        specs: the arrays of a batch.
        kept: unused ones whose memory is kept.
        shared: in memory that other processes can map: `file` is then its descriptor.
    """

    def __init__(self, specs: Sequence[ArraySpec], kept: int = _KEPT, shared: bool = False) -> None:
        self._specs = specs
        self._kept = kept
        self._stride = stride_of(specs)
        self._type = ctypes.c_ubyte * self._stride
        self._made = 0
        self._owner = os.getpid()
        # Unused, with their pages, by the NUMA node on which these are.
        self._free: defaultdict[int, deque[Memory]] = defaultdict(deque)
        self._empty: deque[Memory] = deque()  # unused, in the file, without pages
        self._shared = shared
        self.file: int | None = None
        if shared:
            fill_streams()
            self.file = os.memfd_create("tpufeed-batches")

    def take(self, node: int = 0) -> Buffer:
        """Return arrays with arbitrary contents, for a worker on this NUMA node. One thread at a time."""
        # Not `if self._free`: a finalizer or `close` may come by between the look and the taking.
        for take_unused in (self._free[node].pop, self._empty.popleft):
            with suppress(IndexError):
                memory = take_unused()
                break
        else:
            memory = self._make()
        owner = self._type.from_buffer(memory.map, memory.start)
        weakref.finalize(owner, self._give, memory, node).atexit = False
        return Buffer(memory, views(owner, self._specs))

    def close(self) -> None:
        """Close the file; arrays that are in use stay."""
        if self.file is not None:
            os.close(self.file)
            self.file, self._kept = None, 0
            self._free.clear()
            self._empty.clear()

    def _make(self) -> Memory:
        """Map new memory; of a shared pool several buffers at once, of which the others are free."""
        number = self._made
        if self.file is None:
            memory = mmap.mmap(-1, self._stride, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            if hasattr(mmap, "MADV_HUGEPAGE"):
                memory.madvise(mmap.MADV_HUGEPAGE)
            self._made += 1
            return Memory(number, memory, 0, self._stride)
        segment, stride = segment_of(number), self._stride
        os.ftruncate(self.file, segment.stop * stride)
        shared = map_segment(self.file, segment, stride)
        self._made = segment.stop
        first, *others = (place_in(shared, each, stride) for each in segment)
        self._empty.extend(others)
        return first

    def _give(self, memory: Memory, node: int) -> None:
        """Take memory back. Finalizers call this, in any thread and at any moment."""
        if self._shared and os.getpid() != self._owner:  # a fork has let go of it; its parent may still use it
            return
        if sum(map(len, tuple(self._free.values()))) < self._kept:
            self._free[node].append(memory)
        elif self._shared:  # its place in the file stays, without pages
            memory.map.madvise(mmap.MADV_REMOVE, memory.start, self._stride)
            self._empty.append(memory)


class MappedBuffers:
    """The buffers of another process' shared pool."""

    def __init__(self, file: int, specs: Sequence[ArraySpec]) -> None:
        self._file = file
        self._specs = specs
        self._stride = stride_of(specs)
        self._segments: dict[int, mmap.mmap] = {}
        self._met: set[int] = set()  # buffers whose pages this process has mapped

    def take(self, number: int) -> tuple[Buffer, bool]:
        """Return the buffer at this place, and whether this process has mapped its pages."""
        segment, stride = segment_of(number), self._stride
        if segment.start not in self._segments:
            self._segments[segment.start] = map_segment(self._file, segment, stride)
        memory = place_in(self._segments[segment.start], number, stride)
        mapped = number in self._met and not self._is_empty(number * stride)
        self._met.add(number)
        return Buffer(memory, views(memory.map, self._specs, memory.start)), mapped

    def _is_empty(self, start: int) -> bool:
        """Return whether the buffer at this byte of the file has no pages any more."""
        try:
            return os.lseek(self._file, start, os.SEEK_DATA) >= start + self._stride
        except OSError:  # no pages from there to the file's end
            return True


def segment_of(number: int) -> range:
    """Return the buffers that are mapped together with this one: 8, and then as many again as there are.

    Each mapping holds a descriptor, and a process that keeps a thousand batches may have no more than that.
    """
    if number < _FIRST_SEGMENT:
        return range(_FIRST_SEGMENT)
    start = 1 << (number.bit_length() - 1)
    return range(start, 2 * start)


def place_in(segment: mmap.mmap, number: int, stride: int) -> Memory:
    """Return where a buffer lies in the mapping of its segment."""
    start = (number - segment_of(number).start) * stride
    return Memory(number, segment, start, start + stride)


def map_segment(file: int, segment: range, stride: int) -> mmap.mmap:
    """Map these buffers of a pool's file."""
    return mmap.mmap(file, len(segment) * stride, mmap.MAP_SHARED, offset=segment.start * stride)
