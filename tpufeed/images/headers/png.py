"""PNG and APNG: all chunks, with their CRCs."""

import struct
import zlib

from tpufeed.errors import ImageError
from tpufeed.images.headers.exif import find_orientation
from tpufeed.images.headers.model import ImageHeader, odd_cases


def read_png(data: bytes) -> ImageHeader:
    """Raises struct.error where the file ends before its last chunk does."""
    width, height, depth, colour = struct.unpack_from(">IIBB", data, 16)
    if data[12:16] != b"IHDR" or not width or not height:
        raise ImageError("unreadable", "the PNG has no usable IHDR")
    orientation, place, alpha, animated = 1, 0, colour in (4, 6), False
    offset, kind = 8, b""
    view = memoryview(data)
    while kind != b"IEND":  # Pillow leaves out the CRCs of the pixels, libpng (TensorFlow) stops at them
        length, kind = struct.unpack_from(">I4s", data, offset)
        (crc,) = struct.unpack_from(">I", data, offset + 8 + length)
        if zlib.crc32(view[offset + 4 : offset + 8 + length]) != crc:
            raise ImageError("unreadable", f"the CRC of the PNG's chunk {kind!r} at byte {offset} does not match")
        if kind == b"eXIf" and not place:
            orientation, place = find_orientation(data, offset + 8, offset + 8 + length)
        alpha = alpha or kind == b"tRNS"
        animated = animated or kind == b"acTL"
        offset += 12 + length
    odd = odd_cases(exif=orientation != 1, alpha=alpha, deep=depth == 16, greyscale=colour in (0, 4), animated=animated)
    plain = depth == 8 and not alpha and not animated
    return ImageHeader("png", width, height, 1 if colour in (0, 4) else 3, plain, orientation, place, odd)
