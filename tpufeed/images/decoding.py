"""From encoded bytes to uint8 RGB: JPEG through libjpeg-turbo (simplejpeg), everything else through Pillow.

Both release the GIL while they decode. Decoding is strict: a file that ends early or has a bad scan is an error, never
an image with a grey lower half.
"""

import io
from collections.abc import Callable
from contextlib import suppress

import numpy as np
import numpy.typing as npt
import simplejpeg
from PIL import Image, ImageOps, UnidentifiedImageError

from tpufeed.errors import ImageError
from tpufeed.images.header import sniff

_MAX_PIXELS = 2 * 89_478_485  # where Pillow, too, takes an image for an attack
Pixels = npt.NDArray[np.uint8]
Buffer = Callable[[int], Pixels]  # a flat uint8 array of at least so many bytes, free to be overwritten


def decode(data: bytes | memoryview, reduce: int = 1, buffer: Buffer | None = None, fast: bool = False) -> Pixels:
    """The stored pixels as uint8 RGB of shape (height, width, 3). Does not look at EXIF: `decode_upright` does.

    Args:
        data: an encoded image.
        reduce: 1, 2, 4 or 8: a JPEG comes out at 1/reduce of its size (each side rounded up), averaged in the DCT
            domain, which is both faster and free of aliasing. Other formats and CMYK come out at full size.
        buffer: gives memory to decode into, to spare page faults; the pixels are then a view of it.
        fast: repeat a JPEG's colour samples in place of interpolating between them: 4 % faster, 0.4 levels off on
            average once a crop is resized. TensorFlow's default, the fast inverse transform, is 1.3 levels off for
            2 % (benchmarks/bench_decode.py).

    Raises:
        ImageError: unreadable, truncated or unsupported.
    """
    header = _read_jpeg_header(data) if sniff(data) == "jpeg" else None
    if header is None:
        return _decode_by_pillow(data)
    height, width, colorspace = header
    if colorspace in ("CMYK", "YCCK"):
        _check_scan(data, "CMYK")
        return _decode_by_pillow(data)
    try:
        height, width = -(-height // reduce), -(-width // reduce)
        memory = None if buffer is None else buffer(height * width * 3)
        pixels: Pixels = simplejpeg.decode_jpeg(
            data, "RGB", fastupsample=fast, min_height=height, min_width=width, min_factor=reduce, buffer=memory
        )
    except ValueError as error:
        raise ImageError(_jpeg_reason(error), f"the JPEG does not decode: {error}") from error
    return pixels


def decode_upright(data: bytes) -> Pixels:
    """The pixels as a person should see them: EXIF orientation applied, alpha over white, 16 bit scaled to 8, frame 0.

    Shape (height, width, 1) for grey, (height, width, 3) for everything else.

    Raises:
        ImageError: unreadable, truncated or unsupported.
    """
    header = _read_jpeg_header(data) if sniff(data) == "jpeg" else None
    if header is not None:
        _check_scan(data, "CMYK" if header[2] in ("CMYK", "YCCK") else "RGB")
    image = _open_by_pillow(data, _upright)
    return np.asarray(image).reshape(image.height, image.width, -1)


def image_size(data: bytes | memoryview) -> tuple[int, int]:
    """`(height, width)` of the stored pixels, from the header. Raises ImageError."""
    header = _read_jpeg_header(data) if sniff(data) == "jpeg" else None
    return _open_by_pillow(data, lambda image: image).size[::-1] if header is None else header[:2]


def _read_jpeg_header(data: bytes | memoryview) -> tuple[int, int, str] | None:
    """`(height, width, colorspace)`; None for the rare subsamplings that simplejpeg does not know and Pillow does."""
    try:
        height, width, colorspace, _ = simplejpeg.decode_jpeg_header(data)
    except KeyError:  # 4:4:1
        return None
    except ValueError as error:
        if "subsampling" in str(error):
            return None
        raise ImageError("unreadable", f"the JPEG's header does not parse: {error}") from error
    if height * width > _MAX_PIXELS:
        raise ImageError("unsupported", f"too many pixels: {height} x {width}")
    return int(height), int(width), str(colorspace)


def _check_scan(data: bytes | memoryview, colorspace: str) -> None:
    """Pillow fills what it cannot decode of a JPEG with grey; this raises."""
    try:
        simplejpeg.decode_jpeg(data, colorspace, min_factor=8)
    except ValueError as error:
        raise ImageError(_jpeg_reason(error), f"the JPEG does not decode: {error}") from error


def _decode_by_pillow(data: bytes | memoryview) -> Pixels:
    return np.asarray(_open_by_pillow(data, lambda image: _flatten(image).convert("RGB")))


def _open_by_pillow(data: bytes | memoryview, step: Callable[[Image.Image], Image.Image]) -> Image.Image:
    try:
        return step(Image.open(io.BytesIO(data)))
    except UnidentifiedImageError as error:
        reason = "not_an_image" if sniff(data) is None else "unreadable"
        raise ImageError(reason, "Pillow does not recognise the file") from error
    except Image.DecompressionBombError as error:
        raise ImageError("unsupported", f"too many pixels: {error}") from error
    except Exception as error:  # its plugins raise what they come across: struct.error, KeyError, SyntaxError, ...
        reason = "truncated" if "truncated" in str(error) or isinstance(error, EOFError) else "unreadable"
        raise ImageError(reason, f"Pillow does not decode the file: {error}") from error


def _upright(image: Image.Image) -> Image.Image:
    image.load()
    with suppress(Exception):  # EXIF that cannot be parsed, whatever the error, never costs the image
        image = ImageOps.exif_transpose(image)
    image = _flatten(image)
    return image.convert("L" if image.mode in ("1", "L") else "RGB")


def _flatten(image: Image.Image) -> Image.Image:
    """8 bits a channel and no alpha."""
    image.load()
    if image.mode.startswith("I") or image.mode == "F":
        values = np.asarray(image).astype(np.float64)
        return Image.fromarray((np.clip(values, 0, 65535) / 257).round().astype(np.uint8))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image


def _jpeg_reason(error: ValueError) -> str:
    return "truncated" if "premature end of jpeg" in str(error).lower() else "unreadable"
