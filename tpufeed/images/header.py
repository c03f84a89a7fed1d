"""What an image file says of itself, read from its first bytes without decoding."""

import struct
import zlib
from dataclasses import dataclass
from typing import Literal

from tpufeed.errors import ImageError

Format = Literal["jpeg", "png", "webp", "bmp", "gif", "tiff"]

_START_OF_FRAME = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_STANDALONE = frozenset({0x01, *range(0xD0, 0xD9)})


@dataclass(frozen=True, slots=True)
class ImageHeader:
    """Format and size of an image.

    Attributes:
        width: of the stored pixels, before any EXIF orientation; likewise height.
        channels: 1 or 3, as it decodes.
        plain: its own bytes decode to upright 8-bit grey or RGB in any decoder, so that they may be kept.
    """

    format: Format
    width: int
    height: int
    channels: int
    plain: bool
    orientation: int = 1


def read_header(data: bytes) -> ImageHeader | None:
    """The header of a JPEG or PNG; None for the other formats that Pillow reads for us.

    Raises:
        ImageError: zero_bytes, not_an_image, or truncated where the header or the end of the file is missing.
    """
    if not data:
        raise ImageError("zero_bytes", "the file is empty")
    image_format = sniff(data)
    if image_format is None:
        raise ImageError("not_an_image", f"no image format that tpufeed reads starts with {data[:8]!r}")
    try:
        if image_format == "jpeg":
            return _read_jpeg(data)
        if image_format == "png":
            return _read_png(data)
    except (IndexError, struct.error) as error:
        raise ImageError("truncated", f"the file ends within its {image_format} header") from error
    return None


def sniff(data: bytes | memoryview) -> Format | None:
    """The format by the first bytes; file names lie."""
    start = bytes(data[:12])
    if start.startswith(b"\xff\xd8\xff"):
        return "jpeg"
    if start.startswith(b"\x89PNG\r\n\x1a\n"):
        return "png"
    if start.startswith(b"RIFF") and start[8:] == b"WEBP":
        return "webp"
    if start.startswith((b"GIF87a", b"GIF89a")):
        return "gif"
    if start.startswith((b"II*\0", b"MM\0*")):
        return "tiff"
    return "bmp" if start.startswith(b"BM") else None


def _read_jpeg(data: bytes) -> ImageHeader:
    offset, orientation = 2, 1
    frame: tuple[int, int, int, int] | None = None
    while True:
        if data[offset] != 0xFF:
            raise ImageError("unreadable", f"no JPEG marker at byte {offset}")
        marker = data[offset + 1]
        if marker == 0xFF:  # fill byte
            offset += 1
            continue
        if marker in _STANDALONE:
            offset += 2
            continue
        if marker == 0xDA:
            break
        (length,) = struct.unpack_from(">H", data, offset + 2)
        if marker in _START_OF_FRAME:
            frame = struct.unpack_from(">BHHB", data, offset + 4)
        elif marker == 0xE1 and orientation == 1:
            orientation = _exif_orientation(data[offset + 4 : offset + 2 + length])
        offset += 2 + length
    if frame is None:
        raise ImageError("unreadable", "a JPEG without a frame header")
    if data.rfind(b"\xff\xd9") < offset:
        raise ImageError("truncated", "the JPEG has no end marker; the file was cut short")
    precision, height, width, components = frame
    if not height or not width:
        raise ImageError("unreadable", f"the JPEG's header says {width}x{height} pixels")
    plain = precision == 8 and components in (1, 3) and orientation == 1
    return ImageHeader("jpeg", width, height, 1 if components == 1 else 3, plain, orientation)


def _exif_orientation(segment: bytes) -> int:
    """Tag 0x0112 of IFD0, or 1: an EXIF block that cannot be parsed costs nothing (Exif 2.32, section 4.6)."""
    if not segment.startswith(b"Exif\0\0"):
        return 1
    tiff = segment[6:]
    order = "<" if tiff[:2] == b"II" else ">"
    try:
        (start,) = struct.unpack_from(order + "I", tiff, 4)
        (entries,) = struct.unpack_from(order + "H", tiff, start)
        for entry in range(entries):
            at = start + 2 + 12 * entry
            tag, kind = struct.unpack_from(order + "HH", tiff, at)
            if tag == 0x0112 and kind in (3, 4):  # it should be a SHORT; some write a LONG
                (value,) = struct.unpack_from(order + ("H" if kind == 3 else "I"), tiff, at + 8)
                return int(value) if 1 <= value <= 8 else 1
    except struct.error:
        pass
    return 1


def _read_png(data: bytes) -> ImageHeader:
    width, height, depth, colour = struct.unpack_from(">IIBB", data, 16)
    if data[12:16] != b"IHDR" or not width or not height:
        raise ImageError("unreadable", "the PNG has no usable IHDR")
    offset, kind, plain = 8, b"", depth == 8 and colour in (0, 2, 3)
    view = memoryview(data)
    while kind != b"IEND":  # Pillow leaves out the CRCs of the pixels, libpng (TensorFlow) stops at them
        length, kind = struct.unpack_from(">I4s", data, offset)
        (crc,) = struct.unpack_from(">I", data, offset + 8 + length)
        if zlib.crc32(view[offset + 4 : offset + 8 + length]) != crc:
            raise ImageError("unreadable", f"the CRC of the PNG's chunk {kind!r} at byte {offset} does not match")
        plain = plain and kind not in (b"tRNS", b"acTL", b"eXIf")
        offset += 12 + length
    return ImageHeader("png", width, height, 1 if colour in (0, 4) else 3, plain)
