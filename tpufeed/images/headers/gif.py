"""GIF (GIF89a specification): the screen, the first picture, and whether another follows."""

import struct

from tpufeed.errors import ImageError
from tpufeed.images.headers.model import ImageHeader, odd_cases

_GREY_RAMP = bytes(level for level in range(256) for _ in range(3))


def read_gif(data: bytes) -> ImageHeader:
    """Raises IndexError where the file ends before its first picture; what is cut off behind that is not missed."""
    width, height, flags = struct.unpack_from("<HHB", data, 6)
    palette, offset = _palette(data, 13, flags)
    transparent = False
    while data[offset] != 0x2C:
        if data[offset] == 0x3B:
            raise ImageError("unreadable", "a GIF without a picture")
        if data[offset] != 0x21:
            offset += 1
            continue
        if data[offset + 1] == 0xF9:
            transparent = bool(data[offset + 3] & 1)
        offset = _after_blocks(data, offset + 2)
    left, top, across, down, flags = struct.unpack_from("<HHHHB", data, offset + 1)
    own, offset = _palette(data, offset + 10, flags)
    width, height = max(width, left + across), max(height, top + down)  # as Pillow widens the screen
    if not width or not height:
        raise ImageError("unreadable", f"the GIF's header says {width}x{height} pixels")
    palette = own or palette
    grey = palette == _GREY_RAMP[: len(palette)]
    odd = odd_cases(alpha=transparent, greyscale=grey, animated=_has_another(data, offset + 1))
    return ImageHeader("gif", width, height, 1 if grey else 3, False, odd=odd)


def _palette(data: bytes, offset: int, flags: int) -> tuple[bytes, int]:
    """The colours, if there are any, and where they end."""
    stop = offset + (6 << (flags & 7) if flags & 0x80 else 0)
    return data[offset:stop], stop


def _after_blocks(data: bytes, offset: int) -> int:
    while data[offset]:
        offset += 1 + data[offset]
    return offset + 1


def _has_another(data: bytes, offset: int) -> bool:
    try:
        offset = _after_blocks(data, offset)
        while data[offset] != 0x2C:
            if data[offset] == 0x3B:
                return False
            offset = _after_blocks(data, offset + 2) if data[offset] == 0x21 else offset + 1
    except IndexError:
        return False
    return True
