"""BMP: OS/2 and Windows headers, in the variants that Pillow decodes."""

import struct

from tpufeed.errors import ImageError
from tpufeed.images.headers.model import ImageHeader, odd_cases

_BITFIELDS = 3


def read_bmp(data: bytes) -> ImageHeader:
    """Raises struct.error where the file ends within its header."""
    (size,) = struct.unpack_from("<I", data, 14)
    alpha, colours = False, 0
    if size == 12:
        width, height, _, bits = struct.unpack_from("<HHHH", data, 18)
    else:
        width, height, _, bits, compression = struct.unpack_from("<iiHHI", data, 18)
        height = abs(height)  # negative: rows run from top to bottom
        (colours,) = struct.unpack_from("<I", data, 46)
        if compression == _BITFIELDS and bits == 32 and size >= 56:
            masks = struct.unpack_from("<4I", data, 54)
            alpha = masks[3] != 0 or not any(masks)
    if width <= 0 or height <= 0:
        raise ImageError("unreadable", f"the BMP's header says {width}x{height} pixels")
    grey = bits in (1, 4, 8) and _is_grey(data, 14 + size, 3 if size == 12 else 4, colours or 1 << bits)
    return ImageHeader("bmp", width, height, 1 if grey else 3, False, odd=odd_cases(alpha=alpha, greyscale=grey))


def _is_grey(data: bytes, offset: int, step: int, colours: int) -> bool:
    """The palette is black and white, or every level of grey in its place."""
    if colours > 256:
        return False
    levels = (0, 255) if colours == 2 else range(colours)
    return all(data[at : at + 3] == bytes([level] * 3) for at, level in zip(_count(offset, step), levels, strict=False))


def _count(start: int, step: int) -> range:
    return range(start, start + 256 * step, step)
