"""Restart markers in the JPEGs that are stored: loaders cut windows out of them, see `segments`.

A marker costs some 3.3 to 3.9 bytes: two of its own, the rest of a byte, and DC levels in place of differences. The
shorter the intervals, the fewer pixels around a window are decoded. So an image has as many markers as fit into a share
of its bytes: 1 % where a file is kept, 3 % where it is encoded, which mostly makes it smaller.
"""

import cv2

from tpufeed.errors import ImageError
from tpufeed.images.decoding import Pixels, check_pixels
from tpufeed.images.header import ImageHeader
from tpufeed.images.restart import CannotRewrite, add_markers, to_baseline
from tpufeed.images.segments import Box, read_frame, read_segments

__all__ = ["choose_interval", "encode_jpeg", "is_sound", "mark_jpeg"]

_MARKER_BYTES = 4.0
_GROWTH_KEPT, _GROWTH_ENCODED = 0.01, 0.03
_TOO_SMALL = "too small to gain by it"
_MOST_SIDE_PX = 65_500  # that libjpeg-turbo decodes
_LEAST_PX = 128 * 128  # of smaller images no window is cut, see `segments`
_BYTES_A_PIXEL = ((95, 0.7), (85, 0.3), (70, 0.18), (0, 0.1))  # of photographs, by the quality from which on


def choose_interval(mcus: tuple[int, int], size_bytes: int, growth: float, marker_bytes: float = _MARKER_BYTES) -> int:
    """Return the MCUs of a restart interval; 0 where an image is better without.

    It divides a row: a segment that goes on in the next row is part of no rectangle.

    Args:
        mcus: rows and columns of them in the image.
        size_bytes: of the JPEG without markers.
        growth: the share of its bytes that markers may add.
        marker_bytes: that each adds.
    """
    rows, columns = mcus
    most = size_bytes * growth / marker_bytes
    fitting = (length for length in range(1, columns + 1) if columns % length == 0 and rows * columns // length <= most)
    return next(fitting, 0)


def encode_jpeg(image: Pixels, quality: int) -> bytes:
    """Encode uint8 pixels (height, width, 1 or 3) with restart markers; 4:2:0 below quality 95, else 4:4:4."""
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
    # An image with less in it than photographs have is encoded once more, with the intervals that it has room for.
    return data if interval == 0 or 0 < fitting <= interval else encode(fitting)


def mark_jpeg(data: bytes, baseline: bool = False) -> bytes:
    """Return a JPEG with the same coefficients and metadata, and restart markers that serve.

    Args:
        data: a JPEG; it is returned as it is where it has such markers already.
        baseline: make a baseline JPEG of a progressive one, though it may be too small for markers.

    Raises:
        CannotRewrite: with the reason. The file is as good as before.
    """
    if read_segments(memoryview(data)) is not None:
        return data
    if read_frame(memoryview(data)) is None and baseline:
        baseline_data = to_baseline(data)
        try:
            return mark_jpeg(baseline_data)
        except CannotRewrite:
            return baseline_data
    frame = read_frame(memoryview(data))
    if frame is None:
        add_markers(data, 1)  # says what is in the way
        raise CannotRewrite("unusual subsampling")
    height, width = frame.size
    interval = choose_interval(frame.mcus, len(data), _GROWTH_KEPT) if height * width >= _LEAST_PX else 0
    if not interval:
        raise CannotRewrite(_TOO_SMALL)
    marked = add_markers(data, interval)
    added = len(marked) - len(data)
    if added > len(data) * _GROWTH_KEPT:  # large DC levels, as of 4:4:4; what markers cost is known now
        segments = frame.mcus[0] * frame.mcus[1] // interval
        interval = choose_interval(frame.mcus, len(data), _GROWTH_KEPT, 1.05 * added / segments)
        if not interval:
            raise CannotRewrite(_TOO_SMALL)
        marked = add_markers(data, interval)
    return marked


def is_sound(data: bytes, marked: bytes, header: ImageHeader) -> bool:
    """Return true where `data`, of which `mark_jpeg` made `marked`, surely decodes strictly. False says nothing.

    Rewriting has followed every code of a baseline file. So what can still be wrong lies in its header, and shows in
    the first row of segments. Of 380,000 damaged files, none that passed here failed `check_pixels`; 3 % failed here
    alone. A progressive file is decoded by other means, and always gets the whole check.
    """
    if marked is data or read_frame(memoryview(data)) is None:
        return False
    segments = read_segments(memoryview(marked))
    row = None if segments is None else segments.cut(Box(0, 0, 1, header.width))
    if row is None or header.height > _MOST_SIDE_PX:
        return False
    try:
        check_pixels(bytes(row.data), header)
    except ImageError:
        return False
    return True
