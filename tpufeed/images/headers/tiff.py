"""TIFF: Pillow reads the directory, which is lazy; the format is rare and its directory is not simple."""

import io
import struct

from PIL import Image

from tpufeed.errors import ImageError
from tpufeed.images.headers.model import ImageHeader, odd_cases

_GREY_MODES = ("1", "L", "LA", "La", "F")


def read_tiff(data: bytes) -> ImageHeader:
    """Raises ImageError; several pages count as animated."""
    try:
        with Image.open(io.BytesIO(data), formats=("TIFF",)) as image:
            width, height = _tag(image, 256), _tag(image, 257)
            orientation, bits = _tag(image, 274), max(image.tag_v2.get(258, (1,)))  # type: ignore[attr-defined]
            mode, alpha = image.mode, image.has_transparency_data
    except Image.DecompressionBombError as error:
        raise ImageError("too_large", f"too many pixels: {error}") from error
    except Exception as error:  # the plugin raises what it comes across: TypeError, SyntaxError, struct.error, ...
        reason = "truncated" if isinstance(error, EOFError) or "truncated" in str(error) else "unreadable"
        raise ImageError(reason, f"the TIFF's directory does not parse: {error}") from error
    if width <= 0 or height <= 0:
        raise ImageError("unreadable", f"the TIFF's header says {width}x{height} pixels")
    grey = mode in _GREY_MODES or mode.startswith("I")
    orientation = orientation if 1 <= orientation <= 8 else 1
    odd = odd_cases(
        exif=orientation != 1,
        cmyk=mode == "CMYK",
        alpha=alpha,
        deep=bits > 8 or mode == "F",
        greyscale=grey,
        animated=_has_another(data),
    )
    return ImageHeader("tiff", width, height, 1 if grey else 3, False, orientation, odd=odd)


def _tag(image: Image.Image, number: int) -> int:
    value = image.tag_v2.get(number, 0)  # type: ignore[attr-defined]
    return int(value[0] if isinstance(value, tuple) else value)


def _has_another(data: bytes) -> bool:
    order = "<" if data[:2] == b"II" else ">"
    try:
        (start,) = struct.unpack_from(order + "I", data, 4)
        (entries,) = struct.unpack_from(order + "H", data, start)
        (following,) = struct.unpack_from(order + "I", data, start + 2 + 12 * entries)
    except struct.error:
        return False
    return bool(following)
