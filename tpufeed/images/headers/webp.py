"""WebP (RFC 9649): the chunks of the RIFF container and the first bytes of its bitstreams."""

import struct

from tpufeed.errors import ImageError
from tpufeed.images.headers.exif import find_orientation
from tpufeed.images.headers.model import ImageHeader, odd_cases


def read_webp(data: bytes) -> ImageHeader:
    """Raises struct.error or IndexError where the file ends within its header."""
    (size,) = struct.unpack_from("<I", data, 4)
    end = 8 + size
    if end > len(data):
        raise ImageError("truncated", f"the WebP says that it has {end} bytes; there are {len(data)}")
    offset, width, height = 12, 0, 0
    orientation, place, alpha, animated = 1, 0, False, False
    while offset + 8 <= end:
        kind, size = struct.unpack_from("<4sI", data, offset)
        body = offset + 8
        if body + size > end:
            raise ImageError("truncated", f"the WebP's chunk {kind!r} at byte {offset} goes past the end")
        if kind == b"VP8X":
            alpha, animated = bool(data[body] & 0x10), bool(data[body] & 0x02)
        if kind in _SIZES:
            found = _SIZES[kind](data, body)
            width, height = max(width, found[0]), max(height, found[1])
        if kind == b"VP8L":
            alpha = alpha or bool(data[body + 4] & 0x10)
        alpha, animated = alpha or kind == b"ALPH", animated or kind == b"ANMF"
        if kind == b"EXIF" and not place:
            start = body + 6 if data.startswith(b"Exif\0\0", body) else body  # some write JPEG's prefix here, too
            orientation, place = find_orientation(data, start, body + size)
        offset = body + size + (size & 1)
    if not width or not height:
        raise ImageError("unreadable", "a WebP without a picture")
    odd = odd_cases(exif=orientation != 1, alpha=alpha, animated=animated)
    return ImageHeader("webp", width, height, 3, not alpha and not animated, orientation, place, odd)


def _canvas_size(data: bytes, body: int) -> tuple[int, int]:
    width, height = data[body + 4 : body + 7], data[body + 7 : body + 10]
    return 1 + int.from_bytes(width, "little"), 1 + int.from_bytes(height, "little")


def _lossy_size(data: bytes, body: int) -> tuple[int, int]:
    start, width, height = struct.unpack_from("<3sHH", data, body + 3)
    if start != b"\x9d\x01\x2a":
        raise ImageError("unreadable", f"no VP8 key frame at byte {body}")
    return width & 0x3FFF, height & 0x3FFF


def _lossless_size(data: bytes, body: int) -> tuple[int, int]:
    signature, bits = struct.unpack_from("<BI", data, body)
    if signature != 0x2F:
        raise ImageError("unreadable", f"no VP8L signature at byte {body}")
    return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)


_SIZES = {b"VP8X": _canvas_size, b"VP8 ": _lossy_size, b"VP8L": _lossless_size}
