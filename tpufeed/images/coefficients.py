"""Quantized DCT coefficients instead of pixels: encode an image as such, decode it, or unpack it into a batch.

docs/decisions/2026-11-29-packed-photographs.md describes the bytes. The C extension `_restart` reads and writes them.
"""

import math
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import simplejpeg

from tpufeed.errors import ImageError
from tpufeed.images.header import DCT_START, MAX_PIXELS, read_dct_size
from tpufeed.images.restart import CAN_REWRITE, CannotRewrite

if CAN_REWRITE:
    from tpufeed.images._restart import decode as _decode
    from tpufeed.images._restart import encode as _encode
    from tpufeed.images._restart import pack, unpack
    from tpufeed.images._restart import to_jpeg as _to_jpeg

Sampling: TypeAlias = Literal["420", "444", "grey"]
Table: TypeAlias = tuple[int, ...]
"""64 steps of quantization in row-major order: the vertical frequency is the row."""

EXACT = 96
"""The largest AC value that an int8 holds exactly; larger ones are held in steps, `Coefficients.step`."""
BEST_QUALITY = 92
"""Tables of a higher one have steps of 1: then int8 holds too many values in steps, and 95 loses 2 dB of PSNR by it."""
SIDE_PX = 16  # of an MCU of 4:2:0
_HEAD = struct.Struct("<4sB3xHH64s64s")
_SAMPLINGS: tuple[Sampling, ...] = ("grey", "420", "444")
_LARGEST = 1023  # an AC value of 8-bit samples before quantization
_MOST_PX_A_BYTE = 128  # four blocks have two bytes at least

# ITU-T T.81, tables K.1 and K.2.
_LUMA = (
    *(16, 11, 10, 16, 24, 40, 51, 61),
    *(12, 12, 14, 19, 26, 58, 60, 55),
    *(14, 13, 16, 24, 40, 57, 69, 56),
    *(14, 17, 22, 29, 51, 87, 80, 62),
    *(18, 22, 37, 56, 68, 109, 103, 77),
    *(24, 35, 55, 64, 81, 104, 113, 92),
    *(49, 64, 78, 87, 103, 121, 120, 101),
    *(72, 92, 95, 98, 112, 100, 103, 99),
)
_CHROMA = (
    *(17, 18, 24, 47, 99, 99, 99, 99),
    *(18, 21, 26, 66, 99, 99, 99, 99),
    *(24, 26, 56, 99, 99, 99, 99, 99),
    *(47, 66, 99, 99, 99, 99, 99, 99),
    *(99,) * 32,
)


@dataclass(frozen=True, slots=True)
class Coefficients:
    """Size, sampling and quantization that the coefficients of all images of a cache share.

    A batch holds those of an image as int8 of `shape`. Rows 0 to H have luma: block (i, j) at rows 8i and columns 8j, a
    coefficient's row being its vertical frequency. Then chroma: H / 2 rows with Cb left and Cr right (4:2:0), H rows of
    Cb and H of Cr (4:4:4), or none (grey). Then a high part of each DC value, in order of luma's blocks, Cb's and Cr's.
    Zeros make the rows a multiple of 8: other numbers would be transposed on the way to a TPU.

    - DC: 128 times the high part, plus what is in its place in the plane, -64 to 63.
    - AC: `v` up to 96 in size; beyond, its size is 96 + step * (abs(v) - 96).

    Args:
        size: height and width.
        sampling: "420" (chroma at half of the height and width), "444", or "grey".
        tables: quantization of luma and of chroma.
    """

    size: tuple[int, int]
    sampling: Sampling
    tables: tuple[Table, Table]

    @property
    def blocks(self) -> int:
        """Blocks of 8x8 of an image, of all components."""
        height, width = self.size
        return height * width * {"420": 3, "444": 6, "grey": 2}[self.sampling] // 128

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and width of an image's int8 array."""
        width = self.size[1]
        return math.ceil((self.blocks * 65) / width / 8) * 8, width

    @property
    def head(self) -> bytes:
        """The first bytes of each image. To make them takes as long as a tenth of unpacking: keep them."""
        luma, chroma = map(bytes, self.tables)
        return _HEAD.pack(DCT_START, _SAMPLINGS.index(self.sampling), *self.size, luma, chroma)

    @property
    def step(self) -> int:
        """The size of steps in which int8 holds AC values beyond `EXACT`: the smallest with which the largest fits."""
        least = min(*self.tables[0][1:], *self.tables[1][1:])
        return max(1, -(-(_LARGEST - EXACT * least) // ((127 - EXACT) * least)))


def of_quality(size: tuple[int, int], quality: int) -> Coefficients:
    """Return what is common to the images of a cache of this size, (height, width), and quality."""
    return Coefficients(size, "420", quality_tables(quality))


def quality_tables(quality: int) -> tuple[Table, Table]:
    """Return the tables that libjpeg takes for a quality, 1 to 100."""
    scale = 5000 // quality if quality < 50 else 200 - 2 * quality

    def scaled(table: Sequence[int]) -> Table:
        return tuple(min(255, max(1, (step * scale + 50) // 100)) for step in table)

    return scaled(_LUMA), scaled(_CHROMA)


def encode_coefficients(image: npt.NDArray[np.uint8], quality: int, jpeg: bytes | memoryview | None = None) -> bytes:
    """Encode uint8 RGB (height, width, 3), both sides multiples of `SIDE_PX`: libjpeg's coefficients, 4:2:0.

    `jpeg` has these very pixels: if its size, sampling and tables are those, its coefficients are taken over.
    Releases the GIL.
    """
    head = _head((image.shape[0], image.shape[1]), quality)
    if jpeg is not None:
        with suppress(CannotRewrite):
            data = pack_jpeg(jpeg)
            if data.startswith(head):
                return data
    return _encode(np.ascontiguousarray(image), head)


@lru_cache(8)
def _head(size: tuple[int, int], quality: int) -> bytes:
    return of_quality(size, quality).head


def pack_jpeg(data: bytes | memoryview) -> bytes:
    """Return the coefficients and tables of a JPEG as a DCT image, all exactly, and nothing else. Releases the GIL.

    Raises:
        CannotRewrite: it is a kind of JPEG that cannot be packed, or damaged.
    """
    try:
        packed = pack(data, MAX_PIXELS)
    except ValueError as error:
        raise CannotRewrite(str(error)) from None
    if simplejpeg.decode_jpeg_header(data)[2] not in ("YCbCr", "Gray"):
        raise CannotRewrite("colours other than YCbCr")
    return packed


def to_jpeg(data: bytes | memoryview) -> bytes:
    """Return a JPEG with the coefficients of an image, all exactly. Releases the GIL. Raises ImageError."""
    _check_extension()
    try:
        return _to_jpeg(data)
    except ValueError as error:
        raise _refused(error) from None


def decode_part(
    data: bytes | memoryview,
    box: tuple[int, int, int, int] | None = None,
    fast: bool = False,
    buffer: Callable[[int], npt.NDArray[np.uint8]] | None = None,
) -> tuple[npt.NDArray[np.uint8], tuple[int, int]]:
    """Decode an image, or the part of it that a box needs, to the levels of libjpeg-turbo. Releases the GIL.

    Args:
        data: a DCT image.
        box: (top, left, bottom, right). It may lie beyond the image, and the part may be a column wider.
        fast: as in `decoding.decode`, like `buffer`.

    Returns:
        uint8 RGB pixels, and the row and column of the image at which they begin.

    Raises:
        ImageError: the bytes are damaged.
    """
    _check_extension()
    try:
        height, width = read_dct_size(data)
    except struct.error:
        raise ImageError("truncated", "the DCT image ends within its header") from None
    if height * width > min(MAX_PIXELS, _MOST_PX_A_BYTE * len(data)):
        raise ImageError("truncated", f"the DCT image has fewer bytes than {width}x{height} pixels take")
    top, left, bottom, right = box or (0, 0, height, width)
    top, left = min(max(top, 0), max(height - 1, 0)), min(max(left, 0), max(width - 1, 0)) // 2 * 2
    bottom, right = max(top + 1, min(bottom, height)), max(left + 1, min(right, width))
    shape = bottom - top, right - left, 3
    memory = np.empty(math.prod(shape), np.uint8) if buffer is None else buffer(math.prod(shape))
    try:
        _decode(data, memory, (top, left, bottom, right), fast)
    except ValueError as error:
        raise _refused(error) from None
    return memory.reshape(shape), (top, left)


def unpack_into(data: memoryview, head: bytes, out: npt.NDArray[Any]) -> None:
    """Unpack an image with this `Coefficients.head` into int8 `out` of their shape. Releases the GIL.

    Raises:
        ImageError: the bytes are damaged, or of an image of another size, sampling or quality.
    """
    _check_extension()
    try:
        unpack(data, head, out)
    except ValueError as error:
        raise _refused(error) from None


def _check_extension() -> None:
    if not CAN_REWRITE:
        raise ImageError("unsupported", "a DCT image, which only tpufeed's C extension reads (docs/install.md)")


def _refused(error: ValueError) -> ImageError:
    reason = "truncated" if str(error) == "truncated" else "unreadable"
    return ImageError(reason, f"the DCT image does not decode: {error}")
