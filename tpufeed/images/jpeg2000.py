"""Read JPEG 2000, the format of Sentinel-2, with its values as stored: imagecodecs decodes it, by OpenJPEG.

Pillow would spread values of 9 to 15 bits over 16.
"""

import struct
from collections.abc import Callable

from tpufeed.errors import ImageError, MissingExtraError
from tpufeed.images.decoding import Pixels
from tpufeed.images.header import CODESTREAM, ImageHeader

_YCC = 18  # an enumerated colour space


def find_codestream(data: bytes) -> int:
    """Return the byte at which the codestream begins. Raises ValueError or struct.error without one."""
    at = 0
    while not data.startswith(CODESTREAM, at):
        size, kind = struct.unpack_from(">I4s", data, at)
        head = 16 if size == 1 else 8
        (size,) = struct.unpack_from(">Q", data, at + 8) if size == 1 else (size,)
        if kind != b"jp2c" and size < head:
            raise ValueError("its boxes end before its codestream")
        at += head if kind == b"jp2c" else size
    return at


def read_size(data: bytes, at: int) -> tuple[int, int]:
    """Return the (height, width) of the codestream at a byte. Raises struct.error."""
    across, down, left, top = struct.unpack_from(">4I", data, at + 8)
    return down - top, across - left


def read_jp2(data: bytes) -> tuple[ImageHeader, str, Callable[[], Pixels]]:
    """Read the header. Return it, the type of the values, and what decodes them to (height, width, channels).

    Raises:
        ImageError: it is damaged, or its components differ in size or type, or are YCC or indexes of a palette.
        MissingExtraError: imagecodecs is not installed.
    """
    try:
        at = find_codestream(data)
        (height, width), (channels,) = read_size(data, at), struct.unpack_from(">H", data, at + 40)
        parts = {data[start : start + 3] for start in range(at + 42, at + 42 + 3 * channels, 3)}
        ((depth, *steps),) = parts if len(parts) == 1 else (bytes(3),)
        colours, palette = data.find(b"colr\1", 0, at), data.find(b"pclr", 0, at)
        is_ycc = colours >= 0 and struct.unpack_from(">I", data, colours + 7) == (_YCC,)
    except (ValueError, struct.error) as error:
        raise ImageError("unreadable", f"the header of the JPEG 2000 does not parse: {error}") from error
    if steps != [1, 1] or is_ycc or palette >= 0:
        why = "a palette" if palette >= 0 else "YCC colours" if is_ycc else "components of several sizes or types"
        raise ImageError("unsupported", f"a JPEG 2000 with {why}")
    try:
        import imagecodecs
    except ImportError as error:
        raise MissingExtraError("imagecodecs, for JPEG 2000,", "bands") from error

    def load() -> Pixels:
        try:
            found: Pixels = imagecodecs.jpeg2k_decode(data)
            return found.reshape(height, width, channels)
        except MemoryError:
            raise
        except Exception as error:  # it raises all kinds of errors
            raise ImageError("unreadable", f"the JPEG 2000 does not decode: {error}") from error

    bits = next(bits for bits in (8, 16, 32, 64) if (depth & 127) < bits or bits == 64)
    dtype = f"{'int' if depth & 128 else 'uint'}{bits}"
    return ImageHeader("jp2", width, height, channels, False), dtype, load
