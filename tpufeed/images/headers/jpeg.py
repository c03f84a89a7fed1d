"""JPEG (ITU T.81, annex B): the markers up to the first scan. The hot path of `check="header"`."""

from tpufeed.errors import ImageError
from tpufeed.images.headers.exif import find_orientation
from tpufeed.images.headers.model import ImageHeader, odd_cases

_START_OF_FRAME = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_STANDALONE = frozenset({0x01, *range(0xD0, 0xD9)})
_COMMON_FRAMES = frozenset({0xC0, 0xC1, 0xC2})  # Huffman-coded DCT; not every decoder knows arithmetic or lossless
_NO_ODD: tuple[str, ...] = ()


def read_jpeg(data: bytes) -> ImageHeader:
    """Raises IndexError where the file ends within its header."""
    offset, frame, kind, orientation, place = 2, 0, 0, 1, 0
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
        if marker in _START_OF_FRAME:
            frame, kind = offset + 4, marker
        elif marker == 0xE1 and not place and data.startswith(b"Exif\0\0", offset + 4):
            stop = offset + 2 + (data[offset + 2] << 8 | data[offset + 3])
            orientation, place = find_orientation(data, offset + 10, stop)
        offset += 2 + (data[offset + 2] << 8 | data[offset + 3])
    if not frame:
        raise ImageError("unreadable", "a JPEG without a frame header")
    if data.rfind(b"\xff\xd9") < offset:
        raise ImageError("truncated", "the JPEG has no end marker; the file was cut short")
    precision, components = data[frame], data[frame + 5]
    height, width = data[frame + 1] << 8 | data[frame + 2], data[frame + 3] << 8 | data[frame + 4]
    if not height or not width:
        raise ImageError("unreadable", f"the JPEG's header says {width}x{height} pixels")
    if precision != 8:
        raise ImageError("unsupported", f"a JPEG of {precision} bits a channel; only those of 8 are decoded")
    plain = kind in _COMMON_FRAMES and components in (1, 3)
    odd = _NO_ODD
    if components != 3 or orientation != 1:
        odd = odd_cases(exif=orientation != 1, cmyk=components == 4, greyscale=components == 1)
    return ImageHeader("jpeg", width, height, 1 if components == 1 else 3, plain, orientation, place, odd)
