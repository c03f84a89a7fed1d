"""Restart markers are put into stored JPEGs: windows can then be cut out of their bytes.

A restart interval begins at a byte, with its predictors reset (ITU-T T.81, E.1.4). So any rectangle of whole intervals,
after a header with its height and width, is a JPEG with the same pixels, and a decoder needs only that.

A marker costs 3.3 to 3.9 bytes: its own two, the rest of a byte, and DC levels instead of differences. The
shorter the intervals, the fewer pixels around a window are decoded. So an image has as many markers as fit into a share
of its bytes: 1 % if the file is kept, 3 % if it is encoded and usually gets smaller.

The markers are found by a search. numpy takes 11 us for 30 KB and 18 us for 80 KB. An index in the file would have to
be checked against the bytes (this takes about as long), and would cost 2 bytes per segment: see
docs/decisions/2026-11-26-jpeg.md.
"""

import struct
from dataclasses import dataclass
from typing import NamedTuple

import cv2
import numpy as np
import numpy.typing as npt

from tpufeed.errors import ImageError
from tpufeed.images.decoding import Pixels, check_pixels
from tpufeed.images.header import ImageHeader, JpegHeader, read_jpeg_header
from tpufeed.images.restart import CannotRewrite, add_markers, to_baseline

_SIZE = struct.Struct(">HH")
_TELL_COLOURS = (0xFFE0, 0xFFEE)  # JFIF, Adobe
_MOST_SEGMENTS = 1 << 16
_CODES = ((np.arange(_MOST_SEGMENTS) & 7) + 0xD0).astype(np.uint8)
_END = b"\xd9"
_LEAST_SPARED_PX = 12_000  # decoding them takes as long as cutting, about 50 us
_MARKER_BYTES = 4.0
_GROWTH_KEPT, _GROWTH_ENCODED = 0.01, 0.03
_TOO_SMALL = "too small to gain by it"
_MOST_SIDE_PX = 65_500  # that libjpeg-turbo decodes
_LEAST_PX = 128 * 128  # smaller images are decoded whole
_BYTES_A_PIXEL = ((95, 0.7), (85, 0.3), (70, 0.18), (0, 0.1))  # of photographs, by the least quality


def choose_interval(mcus: tuple[int, int], size_bytes: int, growth: float, marker_bytes: float = _MARKER_BYTES) -> int:
    """Return the MCUs of a restart interval, or 0 if the image is better off without markers.

    It divides a row: a segment that continues in the next row is not part of a rectangle.

    Args:
        mcus: rows and columns of MCUs in the image.
        size_bytes: size of the JPEG without markers.
        growth: the share of its bytes that markers may add.
        marker_bytes: bytes that each marker adds.
    """
    rows, columns = mcus
    most = size_bytes * growth / marker_bytes
    fitting = (length for length in range(1, columns + 1) if columns % length == 0 and rows * columns // length <= most)
    return next(fitting, 0)


def encode_jpeg(image: Pixels, quality: int) -> bytes:
    """Encode uint8 pixels (height, width, 1 or 3) with restart markers. 4:2:0 below quality 95, else 4:4:4."""
    height, width, channels = image.shape
    side = 8 if channels == 1 or quality >= 95 else 16
    mcus = -(-height // side), -(-width // side)
    sampling = cv2.IMWRITE_JPEG_SAMPLING_FACTOR_420 if side == 16 else cv2.IMWRITE_JPEG_SAMPLING_FACTOR_444
    pixels = image if channels == 1 else cv2.cvtColor(image, cv2.COLOR_RGB2BGR)

    def encode(interval: int) -> bytes:
        options = [cv2.IMWRITE_JPEG_QUALITY, quality, cv2.IMWRITE_JPEG_RST_INTERVAL, interval]
        if channels == 3:
            options += [cv2.IMWRITE_JPEG_SAMPLING_FACTOR, sampling]
        return cv2.imencode(".jpg", pixels, options)[1].tobytes()

    if height * width < _LEAST_PX:
        return encode(0)
    share = next(share for least, share in _BYTES_A_PIXEL if quality >= least)
    interval = choose_interval(mcus, int(height * width * share), _GROWTH_ENCODED)
    data = encode(interval)
    fitting = choose_interval(mcus, len(data), _GROWTH_ENCODED)
    # An image with less detail than photographs is encoded once more, with the intervals that it has room for.
    return data if interval == 0 or 0 < fitting <= interval else encode(fitting)


def mark_jpeg(data: bytes, header: JpegHeader, baseline: bool = False) -> bytes:
    """Return a JPEG with the same coefficients and metadata, and useful restart markers.

    Args:
        data: a JPEG. It is returned unchanged if it has such markers already.
        header: its header.
        baseline: make a baseline JPEG of a progressive one, though it may be too small for markers.

    Raises:
        CannotRewrite: with the reason. Nothing is wrong with the file.
    """
    mcu = header.mcu
    if mcu is None and baseline:
        data = to_baseline(data)
        try:
            return mark_jpeg(data, read_jpeg_header(data))
        except CannotRewrite:
            return data
    if mcu is None:
        add_markers(data, 1)  # raises with the reason
        raise CannotRewrite("unusual subsampling")
    if header.interval and find_segments(memoryview(data), header) is not None:
        return data
    mcus = -(-header.height // mcu[0]), -(-header.width // mcu[1])
    interval = choose_interval(mcus, len(data), _GROWTH_KEPT) if header.height * header.width >= _LEAST_PX else 0
    if not interval:
        raise CannotRewrite(_TOO_SMALL)
    marked = add_markers(data, interval)
    added = len(marked) - len(data)
    if added > len(data) * _GROWTH_KEPT:  # large DC levels, as with 4:4:4: now the cost of markers is known
        segments = mcus[0] * mcus[1] // interval
        interval = choose_interval(mcus, len(data), _GROWTH_KEPT, 1.05 * added / segments)
        if not interval:
            raise CannotRewrite(_TOO_SMALL)
        marked = add_markers(data, interval)
    return marked


def is_sound(marked: bytes, header: ImageHeader) -> bool:
    """Return True if `marked`, made by `mark_jpeg` from a file with this header, is sure to decode strictly.

    False means nothing. Rewriting has followed every code of a baseline file. So only its header can still be wrong,
    and this shows in the first row of segments. Of 380,000 damaged files, none that passed here failed `check_pixels`.
    3 % failed only here. A progressive file is decoded in another way: it always gets the full check.
    """
    assert header.jpeg is not None
    if header.jpeg.mcu is None or header.height > _MOST_SIDE_PX:
        return False
    try:
        segments = find_segments(memoryview(marked), read_jpeg_header(marked))
        row = None if segments is None else segments.cut(Box(0, 0, 1, header.width))
        if row is None:
            return False
        check_pixels(bytes(row.data), header)
    except ImageError:
        return False
    return True


class Box(NamedTuple):
    """A rectangle in pixels of an image: rows `[top, bottom)`, columns `[left, right)`."""

    top: int
    left: int
    bottom: int
    right: int


class Cut(NamedTuple):
    """A JPEG of a part of another JPEG, and the row and column there at which it begins."""

    data: bytearray
    top: int
    left: int
    height: int
    width: int


@dataclass(frozen=True, slots=True)
class Segments:
    """A baseline JPEG whose restart intervals are rectangles of one size: part of a row of MCUs, or whole rows.

    Attributes:
        size: (height, width) of the image in pixels.
        mcu: (height, width) of an MCU in pixels.
        tall: height of a rectangle in pixels. The last ones may reach beyond the image.
        wide: width of a rectangle in pixels.
        code: offset of the entropy code.
        header: the bytes before it that a decoder needs.
        size_at: offset of height and width in the header.
    """

    data: memoryview
    size: tuple[int, int]
    mcu: tuple[int, int]
    tall: int
    wide: int
    code: int
    header: list[memoryview]
    size_at: int

    def cut(self, box: Box) -> Cut | None:
        """Return the smallest JPEG of whole segments that holds `box`. The box may lie partly outside the image.

        Returns:
            None if the whole image is hardly larger, or if its markers are not as its header promises.
        """
        (height, width), tall, wide = self.size, self.tall, self.wide
        rows, columns = -(-height // tall), -(-width // wide)
        first, last = max(0, box.top // tall), min(rows, -(-box.bottom // tall))
        left, right = max(0, box.left // wide), min(columns, -(-box.right // wide))
        cut_height, cut_width = min(height, last * tall) - first * tall, min(width, right * wide) - left * wide
        spared_px = height * width - cut_height * cut_width
        if cut_height <= 0 or cut_width <= 0 or spared_px < _LEAST_SPARED_PX:
            return None
        borders = self._find_borders(rows * columns)
        if borders is None:
            return None
        begins = borders[:-1].reshape(rows, columns)[first:last, left:right]
        ends = borders[1:].reshape(rows, columns)[first:last, left:right]
        lines = zip(begins[:, 0].tolist(), ends[:, -1].tolist(), strict=True)
        copy = bytearray(b"".join(self.header + [self.data[begin:end] for begin, end in lines]))
        codes_at = (ends - begins).cumsum()
        codes_at += len(copy) - codes_at[-1] - 1
        view = np.frombuffer(copy, np.uint8)
        view[codes_at] = _CODES[: len(codes_at)]
        view[-1] = _END[0]  # an end marker instead of the last restart marker
        _SIZE.pack_into(copy, self.size_at, cut_height, cut_width)
        return Cut(copy, first * tall, left * wide, cut_height, cut_width)

    def _find_borders(self, count: int) -> npt.NDArray[np.int64] | None:
        """Return where each of `count` segments begins, and where the last one ends, its marker included.

        Returns:
            None unless there are as many markers as needed, numbered in turn: libjpeg relies on both, too.
        """
        code = np.frombuffer(self.data, np.uint8, offset=self.code)
        marked = code[:-1] == 0xFF
        marked &= code[1:] >= 0xD0
        markers = np.flatnonzero(marked)[:count]  # some cameras put another picture after the end marker
        if code[markers + 1].tobytes() != _CODES[: count - 1].tobytes() + _END:
            return None
        borders = np.empty(count + 1, np.int64)
        borders[0], borders[1:] = 0, markers + 2
        borders += self.code
        return borders


def find_segments(data: memoryview, header: JpegHeader) -> Segments | None:
    """Return the segments of a JPEG, or None if no window can be cut out of its bytes, whatever the reason."""
    mcu = header.mcu
    if not header.interval or mcu is None:
        return None
    code = header.scan + 2 + int.from_bytes(data[header.scan + 2 : header.scan + 4], "big")
    rows, columns = -(-header.height // mcu[0]), -(-header.width // mcu[1])
    if columns % header.interval == 0:
        tall, wide = 1, header.interval
    elif header.interval % columns == 0:
        tall, wide = header.interval // columns, columns
    else:
        return None
    if not 1 < -(-rows // tall) * (columns // wide) <= _MOST_SEGMENTS or len(data) < code + 2:
        return None
    start, kept, size_at = 0, list[memoryview](), header.frame + 5
    for marker, offset, length in header.notes:
        if marker not in _TELL_COLOURS:
            kept.append(data[start:offset])
            start = offset + 2 + length
            size_at -= 2 + length if offset < header.frame else 0
    kept.append(data[start:code])
    return Segments(data, (header.height, header.width), mcu, tall * mcu[0], wide * mcu[1], code, kept, size_at)
