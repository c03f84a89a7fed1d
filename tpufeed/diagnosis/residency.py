"""How much of some files the page cache holds, by mincore(2)."""

import ctypes
import mmap
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

_MOST_BYTES = 64 << 30  # 16 million pages: a quarter of a second


def resident_share(paths: Sequence[Path]) -> float | None:
    """The share of the bytes of `paths` that need no disk; None where that cannot be known.

    Linux tells owners only (and those who may write), so that nobody spies on others: to strangers all seems resident.
    """
    try:
        mincore = ctypes.CDLL(None, use_errno=True).mincore
    except (OSError, AttributeError):
        return None
    mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
    resident = total = 0
    for path in paths:
        if total > _MOST_BYTES:
            break
        try:
            if not _may_know(path):
                return None
            pages = _resident_pages(mincore, path)
        except OSError:
            return None
        resident, total = resident + int(pages.sum()) * mmap.PAGESIZE, total + len(pages) * mmap.PAGESIZE
    return resident / total if total else None


def _may_know(path: Path) -> bool:
    return path.stat().st_uid == os.geteuid() or os.access(path, os.W_OK)


def _resident_pages(mincore: "ctypes._NamedFuncPointer", path: Path) -> "np.ndarray[tuple[int], np.dtype[np.uint8]]":
    """1 for each page of the file that is there."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if not size:
            return np.zeros(0, np.uint8)
        with mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ, flags=mmap.MAP_SHARED) as memory:
            view = np.frombuffer(memory, np.uint8)
            pages = np.zeros(-(-size // mmap.PAGESIZE), np.uint8)
            failed = mincore(view.ctypes.data, size, pages.ctypes.data)
            del view  # or the mapping cannot be closed
    if failed:
        raise OSError(ctypes.get_errno(), "mincore")
    return pages & np.uint8(1)
