"""Restart markers in the JPEGs that are stored: loaders cut windows out of them, see `segments`.

A marker costs some 3.3 to 3.9 bytes: two of its own, a byte's rest of bits, and DC levels in place of differences. The shorter
the intervals, the less a window has around it that is decoded in vain. So an image has as many as it can within a share
of its bytes: 1 % where a file is kept, 3 % where it is encoded anew, which makes it smaller mostly.
"""

import cv2

from tpufeed.images.orientation import Pixels
from tpufeed.images.restart import CannotRewrite, add_markers, to_baseline
from tpufeed.images.segments import read_frame, read_segments

__all__ = ["choose_interval", "encode_jpeg", "mark_jpeg"]

_MARKER_BYTES = 4.0
_GROWTH_KEPT, _GROWTH_ENCODED = 0.01, 0.03
_LEAST_PX = 128 * 128  # of smaller images no window is cut, see `segments`
_BYTES_A_PIXEL = ((95, 0.7), (85, 0.3), (70, 0.18), (0, 0.1))  # of photographs, by the quality from which on


def choose_interval(mcus: tuple[int, int], size_bytes: int, growth: float) -> int:
    """Return the MCUs of a restart interval; 0 where an image is better without.

    It divides a row: a segment that goes on in the next row is part of no rectangle.

    Args:
        mcus: rows and columns of them in the image.
        size_bytes: of the JPEG without markers.
        growth: the share of its bytes that markers may add.
    """
    rows, columns = mcus
    most = size_bytes * growth / _MARKER_BYTES
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
        baseline: make a baseline JPEG of a progressive one first.

    Raises:
        CannotRewrite: with the reason. The file is as good as before.
    """
    if read_segments(memoryview(data)) is not None:
        return data
    frame = read_frame(memoryview(data))
    if frame is None and baseline:
        data = to_baseline(data)
        frame = read_frame(memoryview(data))
    if frame is None:
        add_markers(data, 1)  # says what is in the way
        raise CannotRewrite("unusual subsampling")
    height, width = frame.size
    interval = choose_interval(frame.mcus, len(data), _GROWTH_KEPT) if height * width >= _LEAST_PX else 0
    if not interval:
        raise CannotRewrite("too small to gain by it")
    return add_markers(data, interval)
