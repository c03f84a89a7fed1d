"""Mend JPEGs that have all of their pixels, but damage between their segments. Read their headers."""

import re

import numpy as np

from tpufeed.errors import ImageError
from tpufeed.images.decoding import check_pixels, decode_by_pillow, image_size
from tpufeed.images.header import (
    ALL_COEFFICIENTS,
    SEQUENTIAL,
    ImageHeader,
    find_colour_notes,
    read_header,
    read_jpeg_header,
    sniff,
)

# The last byte of a run of 0xFF, and the byte after it. With the whole run in the pattern, the search ran from each of
# its bytes to its end: a photograph followed by 1 MB of erased flash took hours.
_MARKER = re.compile(rb"\xff[^\x00\xff]")
_END_OF_SCAN = re.compile(rb"\xff[^\x00\xff\xd0-\xd7]")
_STANDALONE = frozenset({0x01, *range(0xD0, 0xD8)})
_START_OF_FRAME = frozenset({0xC0, 0xC1, 0xC2})
_START, _END, _SCAN = 0xD8, 0xD9, 0xDA
_NO_PIXELS = frozenset({*range(0xE0, 0xEE), 0xEF, 0xFE})  # application data and comments. 0xEE tells the colour space
_LEAST_PADDING = 4  # decoders read up to three bytes ahead without a complaint


def mend(data: bytes | memoryview, error: ImageError) -> bytes:
    """Return a copy of a JPEG that decodes strictly, to the pixels that tolerant decoders see in `data`.

    The copy leaves out bytes after segments that do not affect pixels (EXIF, comments), bytes of one value that pad the
    end of a scan, an ICC profile with misnumbered or missing parts, and everything after the end marker. A JFIF
    version, an Adobe transform and a range of coefficients that libjpeg does not know become what libjpeg assumes. A
    missing end marker is added if no part of a scan is missing. Bytes after a table may belong to it, and other bytes
    after a scan may be its rest, as a damaged bit makes decoders lose step and end early. Such a file is still refused.

    Args:
        data: all of the file.
        error: why strict decoding refused it.

    Raises:
        ImageError: `error`, if `data` is not such a JPEG.
    """
    if error.reason in ("unreadable", "truncated") and sniff(data) == "jpeg":
        whole = bytes(data)
        for trim in (False, True):
            copy = _copy_segments(whole, trim)
            if copy is not None and copy != whole and _is_sound(copy, whole):
                return copy
    raise error


def seen_header(data: bytes | memoryview) -> ImageHeader:
    """Read an image's header. If only its mended copy can be read, that of the copy: the copy's pixels are used then.

    Raises:
        ImageError: neither can be read.
    """
    try:
        return read_header(bytes(data))
    except ImageError as error:
        return read_header(mend(data, error))


def orientation_of(data: bytes | memoryview) -> int:
    """Return the EXIF orientation, 1 to 8, that pixels from `decode` still need, or 1 if no header can be read."""
    return see_image(data)[0]


def see_image(data: bytes | memoryview) -> tuple[int, tuple[int, int] | None]:
    """Return what `orientation_of` does, and (height, width) of the pixels from `decode`, None if they are unknown."""
    try:
        header = seen_header(data)
    except ImageError:
        return 1, None
    if header.format == "tiff":  # Pillow turns it as it loads it
        return 1, (header.height, header.width) if header.orientation == 1 else None
    return header.orientation, (header.height, header.width)


def seen_size(data: bytes | memoryview, upright: bool) -> tuple[int, int]:
    """Return `(height, width)` of an encoded image in pixels, as ops see it: `upright`, or else as it is stored.

    Raises:
        ImageError: its header cannot be read, and it cannot be mended.
    """
    try:
        size = image_size(data)
    except ImageError as error:
        size = image_size(mend(data, error))
    return size[::-1] if upright and orientation_of(data) >= 5 else size


def _is_sound(copy: bytes, whole: bytes) -> bool:
    try:
        check_pixels(copy, read_header(copy))
        # Pillow skips stray bytes, but needs an end marker. It does not read a second one.
        return np.array_equal(decode_by_pillow(copy, "RGB"), decode_by_pillow(whole + b"\xff\xd9", "RGB"))
    except ImageError:
        return False


def _copy_segments(data: bytes, trim: bool) -> bytes | None:
    """Copy segments and scans as libjpeg finds them, or None if bytes between them may matter, or a scan is missing.

    `trim` leaves out bytes of one value at the ends of scans.
    """
    copy, offset, marker, kind = bytearray(b"\xff\xd8"), 2, _START, 0
    in_scan = scanned = False
    missing: dict[int, set[int]] = {}
    while found := (_END_OF_SCAN if in_scan else _MARKER).search(data, offset):
        between = data[offset : found.start()].rstrip(b"\xff")
        if in_scan:
            copy += _trimmed(between) if trim else between
        elif between and marker not in _NO_PIXELS and marker != _START:
            return None  # maybe the end of a table that is longer than its length says
        elif between and (len(set(between)) > 1 if scanned else _is_segment(between)):
            return None
        marker, offset = data[found.end() - 1], found.end()
        if marker == _END:
            break
        if marker == _START:
            return None
        in_scan = marker == _SCAN
        scanned |= in_scan
        if marker in _STANDALONE:
            continue
        body = data[offset : offset + max(2, int.from_bytes(data[offset : offset + 2], "big"))]
        offset += len(body)
        kind = marker if marker in _START_OF_FRAME else kind
        if marker == _SCAN and kind in SEQUENTIAL:
            body = body[:-3] + ALL_COEFFICIENTS  # some cameras write zeros
        _note(marker, body, missing)
        if len(body) > 2:
            copy += bytes((0xFF, marker)) + body
        elif marker not in _NO_PIXELS:  # no segment that affects pixels is empty
            return None
    if found is None and in_scan:
        scan = data[offset:].rstrip(b"\xff")  # half of an end marker
        copy += _trimmed(scan) if trim else scan
    if not missing or any(missing.values()):
        return None
    return _repaired(copy + b"\xff\xd9")


def _repaired(copy: bytearray) -> bytes | None:
    """Replace a JFIF version, a colour transform and an ICC profile that libjpeg warns about by what it assumes."""
    try:
        header = read_jpeg_header(bytes(copy))
    except ImageError:
        return None
    colours = find_colour_notes(copy, header)
    for start in colours.jfif:
        copy[start + 5] = 1
    if not colours.is_known_transform:
        copy[colours.adobe + 11] = 1 if header.components == 3 else 2
    if not colours.is_whole_profile:
        for start, stop in reversed(colours.profile):
            del copy[start:stop]
    return bytes(copy)


def _note(marker: int, body: bytes, missing: dict[int, set[int]]) -> None:
    """Keep in `missing` the coefficients of each component whose last bit has not come yet."""
    if marker in _START_OF_FRAME:
        missing.update({component: set(range(64)) for component in body[8::3]})
    elif marker == _SCAN:
        first, last, precision = body[-3:].ljust(3, b"\xff")
        if precision & 15 == 0:
            for component in body[3:-3:2]:
                missing.get(component, set()).difference_update(range(first, last + 1))


def _trimmed(scan: bytes) -> bytes:
    """Return a scan without the bytes of one value at its end: without all of them, as none may be part of it."""
    kept = scan.rstrip(scan[-1:])
    if kept.endswith(b"\xff"):
        kept += scan[len(kept) : len(kept) + 1]  # the stuffed zero after a byte of 0xFF
    return kept if len(scan) - len(kept) >= _LEAST_PADDING else scan


def _is_segment(stray: bytes) -> bool:
    """Return True for a segment whose marker is damaged: a table or colour space that decoders would miss."""
    return len(stray) >= 4 and int.from_bytes(stray[2:4], "big") == len(stray) - 2 and stray[4:8] != b"Exif"
