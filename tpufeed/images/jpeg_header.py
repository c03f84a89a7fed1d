"""Read the segments of a JPEG before its first scan as libjpeg finds them, and refuse what no decoder should be given.

libjpeg-turbo 3 decodes lossless JPEGs, but never at 1/2, 1/4 or 1/8: when simplejpeg asked for that, it wrote the whole
image into memory for a reduced one. And a scan of a progressive JPEG needs 3 bytes for 32,767 blocks, so a file of
150 KB kept a decoder busy for 16 s. The bytes that are read here tell both before a decoder sees the file.
"""

import re
import struct
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from tpufeed.errors import ImageError

__all__ = ["JPEG_START", "MAX_PIXELS", "JpegHeader", "read_jpeg_header"]

JPEG_START = b"\xff\xd8\xff"
MAX_PIXELS = 178_956_970  # where Pillow, too, takes an image for an attack
_SEGMENT = struct.Struct(">HH")  # its marker and its length
_FRAME = struct.Struct(">BHHB")  # precision, height, width, components
_FILL = re.compile(rb"\xff*")
_NEXT = re.compile(rb"\xff[^\x00\x01\xff\xd0-\xd7]")  # behind a scan: no stuffed byte, no restart marker
_TABLES = frozenset({0xFFC4, 0xFFCC, 0xFFDB, 0xFFDD})
_APPLICATIONS = frozenset({0xFFE0, 0xFFE1, 0xFFE2, 0xFFEE})
_START_OF_FRAME = frozenset(range(0xFFC0, 0xFFD0)) - {0xFFC4, 0xFFC8, 0xFFCC}
_STANDALONE = frozenset({0xFF01, *range(0xFFD0, 0xFFD8)})
_START, _END, _SCAN, _FILLED = 0xFFD8, 0xFFD9, 0xFFDA, 0xFFFF
_SCAN_BYTES = np.uint16(0xDAFF)  # as a little-endian number
_LOSSLESS = 0xC3
_HUFFMAN = frozenset({0xC0, 0xC1, 0xC2, _LOSSLESS})
_ARITHMETIC = frozenset({0xC9, 0xCA})
_PROGRESSIVE = frozenset({0xC2, 0xCA})
# libjpeg-turbo's own tools have this limit, too. Photographs have some 10 scans, those of mozjpeg 15 at most.
_MOST_SCANS = 500
# A scan takes up to 50 ns for each block of 64 pixels, even if the block has no bytes in it. All scans together may
# pass this number of blocks (less than a second), or the image's own blocks this number of times.
_MOST_PASSED, _MOST_PASSES = 16_000_000, 10
_ARITHMETIC_COST = 8  # times that of Huffman codes: a block may have 63 decisions that take no bytes


class JpegHeader(NamedTuple):
    """What a JPEG says before its first scan.

    Attributes:
        kind: the second byte of its frame's marker: 0xC0 and 0xC1 are baseline, 0xC2 progressive.
        height: in pixels; likewise width.
        components: 1, 3 or 4.
        applications: (marker, offset, length) of each segment before the scan that may hold JFIF, EXIF, ICC or Adobe's
            data, as its bytes have them; the offset is that of the marker.
        empty: where the first segment with a length below 2 is; 0 if there is none.
        scan: where the first scan's marker is.
    """

    kind: int
    height: int
    width: int
    components: int
    applications: list[tuple[int, int, int]]
    empty: int
    scan: int

    @property
    def is_lossless(self) -> bool:
        """True where the decoder cannot reduce the image, and must not be asked to."""
        return self.kind == _LOSSLESS


def read_jpeg_header(data: bytes | memoryview, check_scans: bool = True) -> JpegHeader:
    """Read the segments up to the first scan. A segment with a length below 2 ends behind its length, as for libjpeg.

    Args:
        data: a JPEG.
        check_scans: refuse too many scans; what will not be decoded need not be searched for them.

    Raises:
        ImageError: unreadable; truncated, also if the file is too short for its blocks; unsupported, if it is
            hierarchical or has not 8 bits a channel or not 1, 3 or 4 channels; too_large, if it has too many pixels or
            too many scans for them.
    """
    try:
        applications, frame, empty, offset = _walk(data)
        precision, height, width, components = _FRAME.unpack_from(data, frame + 4)
        kind, in_scan = data[frame + 1], data[offset + 4]
    except (struct.error, IndexError) as error:
        raise ImageError("truncated", "the file ends within its jpeg header") from error
    if not height or not width:
        raise ImageError("unreadable", f"the JPEG's header says {width}x{height} pixels")
    if kind not in _HUFFMAN and kind not in _ARITHMETIC:
        raise ImageError("unsupported", f"a JPEG of the kind SOF{kind - 0xC0}, which no decoder here knows")
    if precision != 8:
        raise ImageError("unsupported", f"a JPEG of {precision} bits a channel; only those of 8 are decoded")
    if components not in (1, 3, 4):
        raise ImageError("unsupported", f"a JPEG of {components} channels; only those of 1, 3 or 4 are decoded")
    if height * width > MAX_PIXELS:
        raise ImageError("too_large", f"too many pixels: {height} x {width}; at most {MAX_PIXELS}")
    header = JpegHeader(kind, height, width, components, applications, empty, offset)
    has_scans = in_scan != components or kind in _PROGRESSIVE
    # Each block has a bit of its DC level at least, and one of its AC levels but in progressive scans. A header that
    # promises more would have the decoder fill an image of grey, or coefficients of a gigabyte.
    room = (len(data) - offset) * (8 if kind in (0xC2, _LOSSLESS) else 4)
    most_blocks = components * -(-height // 8) * -(-width // 8)  # to count them takes 3 us
    if (has_scans and check_scans) or most_blocks > room:
        blocks = _count_blocks(header, bytes(data[frame + 10 : frame + 10 + 3 * components]))
        if kind in _HUFFMAN and sum(blocks.values()) > room:
            raise ImageError("truncated", f"{len(data)} bytes cannot hold {width}x{height} pixels: it was cut short")
        if has_scans and check_scans:
            _check_scans(data, header, blocks)
    return header


def _walk(data: bytes | memoryview) -> tuple[list[tuple[int, int, int]], int, int, int]:
    """Return `applications`, where the frame's marker is, `empty`, and where the first scan's marker is.

    Raises struct.error or IndexError where the file ends before it.
    """
    applications, offset, frame, empty = list[tuple[int, int, int]](), 2, 0, 0
    while True:
        marker, length = _SEGMENT.unpack_from(data, offset)
        if marker not in _TABLES:
            if marker in _APPLICATIONS:
                applications.append((marker, offset, length))
            elif marker == _SCAN:
                break
            elif marker in _STANDALONE:
                offset += 2
                continue
            elif marker == _FILLED:
                offset = _FILL.match(data, offset).end() - 1  # type: ignore[union-attr]  # it may match nothing
                continue
            elif marker < 0xFF02 or marker in (_START, _END) or (frame and marker in _START_OF_FRAME):
                raise ImageError("unreadable", f"no JPEG marker at byte {offset}, or one too many")
            elif marker in _START_OF_FRAME:
                frame = offset
        if length < 2:
            empty, length = empty or offset, 2
        offset += 2 + length
    if not frame:
        raise ImageError("unreadable", "a JPEG without a frame header")
    return applications, frame, empty, offset


def _count_blocks(header: JpegHeader, factors: bytes) -> dict[int, int]:
    """Return the blocks of each component by its id (T.81, A.1.1); of a lossless one 64 pixels count as a block."""
    if len(factors) != 3 * header.components:
        raise ImageError("truncated", "the file ends within its jpeg header")
    across, down = [factor >> 4 for factor in factors[1::3]], [factor & 15 for factor in factors[1::3]]
    if not all(1 <= factor <= 4 for factor in (*across, *down)):
        raise ImageError("unreadable", "the JPEG's sampling factors are none")
    widest, highest = 8 * max(across), 8 * max(down)
    return {
        name: -(-header.width * h // widest) * -(-header.height * v // highest)
        for name, h, v in zip(factors[::3], across, down, strict=True)
    }


def _check_scans(data: bytes | memoryview, header: JpegHeader, blocks: dict[int, int]) -> None:
    """Raise ImageError where decoding all scans would take longer than the image's size accounts for."""
    cost = _ARITHMETIC_COST if header.kind in _ARITHMETIC else 1
    all_blocks = sum(blocks.values()) * cost
    most = max(_MOST_PASSED, _MOST_PASSES * all_blocks)
    # With those of pictures that follow the end marker. bytes.count takes eight times as long.
    most_scans = sum(
        np.count_nonzero(np.frombuffer(data, "<u2", (len(data) - start) // 2, start) == _SCAN_BYTES)
        for start in (header.scan, header.scan + 1)
    )
    if most_scans <= _MOST_SCANS and most_scans * all_blocks <= most:
        return
    passed = 0
    for scans, names in enumerate(_scans(bytes(data), header.scan), 1):
        passed += cost * sum(blocks.get(name, 0) for name in names)
        if scans > _MOST_SCANS or passed > most:
            raise ImageError(
                "too_large",
                f"{most_scans} scans of {header.width}x{header.height} pixels take too long to decode; at most "
                f"{_MOST_SCANS} scans are decoded, and {most // all_blocks} that have all of these pixels",
            )


def _scans(data: bytes, offset: int) -> Iterator[bytes]:
    """Yield the ids of the components in each scan, the first of which has its marker at `offset`."""
    while True:
        stop = offset + 2 + max(2, int.from_bytes(data[offset + 2 : offset + 4], "big"))
        yield data[offset + 5 : min(stop, offset + 5 + 2 * data[offset + 4]) : 2] if offset + 4 < len(data) else b""
        while True:
            found = _NEXT.search(data, stop)
            if found is None or data[found.start() + 1] == 0xD9:
                return
            offset = found.start()
            if data[offset + 1] == 0xDA:
                break
            stop = offset + 2 + max(2, int.from_bytes(data[offset + 2 : offset + 4], "big"))
