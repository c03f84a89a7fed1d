"""Read an image file's header without decoding: its size, and what is odd about it."""

import struct

from tpufeed.errors import ImageError
from tpufeed.images.headers.bmp import read_bmp
from tpufeed.images.headers.gif import read_gif
from tpufeed.images.headers.jpeg import read_jpeg
from tpufeed.images.headers.model import Format, ImageHeader
from tpufeed.images.headers.png import read_png
from tpufeed.images.headers.tiff import read_tiff
from tpufeed.images.headers.webp import read_webp

__all__ = ["Format", "ImageHeader", "format_of_name", "read_header", "sniff"]

_READERS = {
    "jpeg": read_jpeg,
    "png": read_png,
    "webp": read_webp,
    "gif": read_gif,
    "bmp": read_bmp,
    "tiff": read_tiff,
}
_SUFFIXES: dict[str, Format] = {
    **dict.fromkeys(("jpg", "jpeg", "jpe", "jfif"), "jpeg"),
    **dict.fromkeys(("png", "apng"), "png"),
    "webp": "webp",
    "gif": "gif",
    **dict.fromkeys(("bmp", "dib"), "bmp"),
    **dict.fromkeys(("tif", "tiff"), "tiff"),
}


def read_header(data: bytes) -> ImageHeader:
    """The header of an image of one of the formats that are taken.

    Raises:
        ImageError: zero_bytes, not_an_image, unreadable, unsupported, or truncated where the header or the end of a
            JPEG, PNG or WebP is missing.
    """
    image_format = sniff(data)
    if image_format is None:
        if not data:
            raise ImageError("zero_bytes", "the file is empty")
        raise ImageError("not_an_image", f"no image format that tpufeed reads starts with {data[:8]!r}")
    try:
        return _READERS[image_format](data)
    except (IndexError, struct.error) as error:
        raise ImageError("truncated", f"the file ends within its {image_format} header") from error


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


def format_of_name(name: str) -> Format | None:
    """The format that a file's name promises; None where its suffix names none of them."""
    return _SUFFIXES.get(name.rpartition(".")[2].lower())
