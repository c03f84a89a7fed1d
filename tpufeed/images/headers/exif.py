"""The one tag of EXIF that changes how an image is seen."""

import struct


def find_orientation(data: bytes, start: int, stop: int) -> tuple[int, int]:
    """Value and place of tag 0x0112 in IFD0 of the TIFF structure at `[start, stop)`; `(1, 0)` without one.

    A block that cannot be parsed, whatever is wrong with it, counts as one without the tag (Exif 2.32, section 4.6).
    The place is that of the byte which holds the value, in either byte order and width.
    """
    stop = min(stop, len(data))
    little = data[start : start + 2] == b"II"
    order = "<" if little else ">"
    try:
        (offset,) = struct.unpack_from(order + "I", data, start + 4)
        at = start + offset
        (entries,) = struct.unpack_from(order + "H", data, at)
        for entry in range(at + 2, min(at + 2 + 12 * entries, stop - 11), 12):
            tag, kind = struct.unpack_from(order + "HH", data, entry)
            if tag == 0x0112 and kind in (3, 4):  # it should be a SHORT; some write a LONG
                (value,) = struct.unpack_from(order + ("H" if kind == 3 else "I"), data, entry + 8)
                if not 1 <= value <= 8:
                    break
                return value, entry + 8 if little else entry + (9 if kind == 3 else 11)
    except struct.error:
        pass
    return 1, 0
