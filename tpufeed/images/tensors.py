"""Images as NumPy's .npy files: pixels behind a header, of which a crop reads only its rows."""

import io
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy

from tpufeed.errors import ImageError

NPY_START = b"\x93NUMPY"
MOST_HEADER_BYTES = 4096


class NpyHeader(NamedTuple):
    """The header of a .npy file.

    Attributes:
        dtype: type of the numbers.
        shape: axes as stored.
        order: "C", or "F" if the first axis is the fastest.
        start: byte at which the numbers begin.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    order: Any
    start: int


def encode_npy(pixels: npt.NDArray[Any]) -> bytes:
    """Return an image (height, width, channels) as a file, little-endian."""
    file = io.BytesIO()
    little = pixels.astype(pixels.dtype.newbyteorder("<"), order="C", copy=False)
    npy.write_array(file, little, (1, 0), allow_pickle=False)
    return file.getvalue()


def read_npy_header(data: bytes | memoryview, size: int | None = None) -> NpyHeader:
    """Read the header of a file that has all of its numbers. Raises ImageError.

    `size` is that of the file, if `data` is only its beginning.
    """
    wide = 2 if data[6:7] == b"\1" else 4  # bytes of its length
    start = 8 + wide + int.from_bytes(data[8 : 8 + wide], "little")
    if start > min(len(data), MOST_HEADER_BYTES):
        raise ImageError("truncated", "the file ends within its npy header")
    header = _parse(bytes(data[:start]))
    expected = header.dtype.itemsize * int(np.prod(header.shape, dtype=object))
    found = (len(data) if size is None else size) - start
    if found < expected:
        raise ImageError("truncated", f"the .npy has {found} bytes of numbers, and its header asks for {expected}")
    return header


@lru_cache(maxsize=1024)
def _parse(head: bytes) -> NpyHeader:
    """Parse a header: images of one size have the same. No pickle is read."""
    file = io.BytesIO(head)
    try:
        read = npy.read_array_header_1_0 if npy.read_magic(file) == (1, 0) else npy.read_array_header_2_0
        shape, is_fortran, dtype = read(file, max_header_size=MOST_HEADER_BYTES)
    except Exception as error:  # it is parsed as Python
        raise ImageError("unreadable", f"the header of the .npy does not parse: {error}") from error
    if dtype.hasobject:
        raise ImageError("unsupported", "the .npy holds pickled objects, which could run code. Save plain numbers")
    return NpyHeader(dtype, shape, "F" if is_fortran else "C", len(head))


def npy_view(data: bytes | memoryview) -> npt.NDArray[Any]:
    """Return the array of a file, as stored, without a copy. Raises ImageError."""
    dtype, shape, order, start = read_npy_header(data)
    try:
        return np.ndarray(shape, dtype, data, start, order=order)
    except (TypeError, ValueError) as error:  # a side is negative, not a whole number, or too large
        raise ImageError("unreadable", f"the .npy says that it has the shape {shape}: {error}") from error


def npy_image(data: bytes | memoryview) -> npt.NDArray[Any]:
    """Return a stored image (height, width, channels) without a copy. Raises ImageError."""
    pixels = npy_view(data)
    if pixels.ndim != 3 or not pixels.size:
        raise ImageError("unsupported", f"the .npy has the shape {pixels.shape}, expected (height, width, channels)")
    return pixels


def npy_part(data: bytes | memoryview, box: Any = None) -> tuple[npt.NDArray[Any], tuple[int, int]]:
    """Return the part of a stored image within `box` (top, left, bottom, right), aligned, and where it begins.

    Raises ImageError.
    """
    pixels = npy_image(data)
    if box is None:
        box = (0, 0, *pixels.shape[:2])
    top, left = (min(max(start, 0), side - 1) for start, side in zip(box[:2], pixels.shape[:2], strict=True))
    part = pixels[top : max(top + 1, box[2]), left : max(left + 1, box[3])]
    return np.require(part, part.dtype.newbyteorder("="), "A"), (top, left)
