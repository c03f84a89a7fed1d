"""Shorter ways to read images than the package needs."""

from tpufeed.errors import ImageError
from tpufeed.images.decoding import decode_stored, turn
from tpufeed.images.header import read_header, read_jpeg_header
from tpufeed.images.markers import find_segments


def decode_upright(data):
    """The pixels of an image as a person should see it."""
    header = read_header(data)
    return turn(decode_stored(data, header), header.orientation)


def segments_of(data):
    """Return the segments of a JPEG; None if it has no segments, or no readable header."""
    try:
        return find_segments(memoryview(data), read_jpeg_header(data))
    except ImageError:
        return None
