"""Decode images: JPEG through libjpeg-turbo (simplejpeg), everything else through Pillow and plug-ins.

All become 8-bit RGB, or grey if asked for. Only .npy, which holds images of another pixel format, stays as it is.
"""

import io
import threading
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

import cv2
import numpy as np
import numpy.typing as npt
import simplejpeg
from PIL import Image, UnidentifiedImageError

from tpufeed.errors import ImageError
from tpufeed.images.coefficients import decode_part
from tpufeed.images.header import (
    DCT_START,
    JPEG_START,
    LOSSLESS,
    ImageHeader,
    JpegHeader,
    has_unnamed_band,
    read_header,
    read_jpeg_header,
    sniff,
)
from tpufeed.images.modern import MODERN, load_modern
from tpufeed.images.restart import CAN_REWRITE, CannotRewrite, to_baseline
from tpufeed.images.tensors import NPY_START, npy_image, npy_part
from tpufeed.images.unwritten import (
    PNG_SCALES,
    check_ccitt,
    check_png_rows,
    iter_jpegs,
    load_whole,
    one_pixel_of,
    plain_png_of,
)

_LINE_BYTES = 32  # of AVX2's stores
_DCT_HEAD = 12  # bytes of a DCT image that tell its size
_SCALING = ("Gray", "RGB", "YCbCr")  # colour spaces that simplejpeg decodes to grey or RGB, at any size
T = TypeVar("T")
Pixels: TypeAlias = npt.NDArray[Any]  # (height, width, channels) of a `PixelFormat`
Buffer: TypeAlias = Callable[[int], Pixels]  # a flat uint8 array of at least this size, free to be overwritten


class Scratch(threading.local):
    """A `Buffer` with memory per thread that only grows: fresh memory would cost page faults for every image.

    A crop is resized out of it right away. So its address is 16 past a multiple of 32: libjpeg-turbo's AVX2 code writes
    rows that begin at a multiple past the cache (jdcolext-avx2.asm), and `resize` then reads all of them from memory.
    That made decoding and cropping of photographs of 256 pixels 5 % slower.
    """

    def __init__(self) -> None:
        self._memory = np.empty(0, np.uint8)

    def __call__(self, size: int) -> Pixels:
        if size > len(self._memory):
            memory = np.empty(size + 2 * _LINE_BYTES, np.uint8)
            start = (_LINE_BYTES // 2 - memory.ctypes.data) % _LINE_BYTES
            self._memory = memory[start : start + size]
        return self._memory[:size]


def decode(
    data: bytes | memoryview,
    reduce: int = 1,
    buffer: Buffer | None = None,
    fast: bool = False,
    jpeg: JpegHeader | None = None,
) -> Pixels:
    """Decode the stored pixels to RGB of shape (height, width, 3), not turned by EXIF. A .npy keeps its format.

    Args:
        data: an encoded image. A DCT image has the pixels of the JPEG that has its coefficients.
        reduce: 1, 2, 4 or 8: a JPEG comes out at 1/reduce of its size (each side rounded up), averaged in the DCT
            domain: faster and free of aliasing. Other formats (DCT images, too), CMYK and lossless JPEGs come out at
            full size.
        buffer: gives memory to decode into, to avoid page faults. The pixels are then a view of it.
        fast: repeat a JPEG's colour samples instead of interpolating between them: 4 % faster, 0.4 levels off on
            average once a crop is resized. TensorFlow's default, the fast inverse transform, is 1.3 levels off for
            a gain of 2 % (benchmarks/decode.py).
        jpeg: the header of a JPEG that has been read already.

    Raises:
        ImageError: not_an_image, unreadable, truncated, unsupported or too_large.
    """
    if data[:4] == DCT_START:
        return decode_part(data, None, fast, buffer)[0]
    if data[:6] == NPY_START:
        return npy_part(data)[0]
    if jpeg is None and data[:3] == JPEG_START:
        jpeg = read_jpeg_header(data)
    if jpeg is not None:
        pixels = _decode_jpeg(data, jpeg, "RGB", reduce, fast, buffer)
        if pixels is not None:
            return pixels
        _check_jpeg(data, jpeg, must=False)  # raises, as Pillow would leave grey what it cannot decode
    return decode_by_pillow(data, "RGB")


def decode_stored(
    data: bytes, header: ImageHeader, reduce: int = 1, backdrop: int = 255, deep_bits: int = 16
) -> Pixels:
    """Decode the stored pixels, not turned: alpha over a backdrop, 16 bits scaled to 8, frame or page 0.

    Args:
        data: an encoded image.
        header: its header, from `read_header`.
        reduce: as in `decode`.
        backdrop: 255 for white, 0 for black.
        deep_bits: bits of the grey values in files of 16 bits.

    Returns:
        uint8 of shape (height, width, header.channels).

    Raises:
        ImageError: unreadable, truncated, unsupported or too_large.
    """
    if header.jpeg is not None:
        found = _decode_jpeg(data, header.jpeg, "GRAY" if header.channels == 1 else "RGB", reduce)
        if found is not None:
            return found
        _check_jpeg(data, header.jpeg)  # raises, as Pillow would leave grey what it cannot decode
    if header.format == "dct":
        return decode_part(data)[0][..., : header.channels]
    mode = "L" if header.channels == 1 else "RGB"
    if deep_bits < 16 and "deep" in header.odd and header.channels > 1 and header.format not in MODERN:
        raise ImageError("unsupported", f"a colour image of 16 bits, but deep={deep_bits} is for grey ones")
    pixels = decode_by_pillow(data, mode, backdrop, deep_bits)
    pixels = pixels.reshape(*pixels.shape[:2], header.channels)
    if header.format == "tiff" and header.orientation != 1:  # Pillow turns a TIFF, and nothing else, as it loads it
        pixels = turn(pixels, inverse_orientation(header.orientation))
    return pixels


def check_pixels(data: bytes, header: ImageHeader) -> None:
    """Refuse what `decode` refuses, in less time: of a JPEG only the entropy code is decoded.

    Nothing else can fail in a JPEG. Of 9,100 damaged files, and 2,400 in CMYK, decoding at 1/8 refused exactly those
    that full decoding refused, in two thirds of the time (tests/images/test_decoding_checks.py, with fewer files).

    Raises:
        ImageError: unreadable, truncated, unsupported or too_large.
    """
    is_decoded = header.jpeg is not None and _check_jpeg(data, header.jpeg)
    if header.format == "png" and header.plain and not data[28]:  # of 8 bits, neither animated nor interlaced
        check_png_rows(data)
        open_by_pillow(one_pixel_of(data), _load)
    elif not is_decoded:  # also a JPEG of a rare subsampling: libjpeg may refuse it though all codes are right
        open_by_pillow(data, _load)


def turn(pixels: Pixels, orientation: int) -> Pixels:
    """Turn stored `pixels` (height, width, channels) upright. Orientations 1 to 8 are those of Exif 2.32, table 6."""
    if orientation == 1:
        return pixels
    height, width, channels = pixels.shape
    result = pixels
    if orientation >= 5:
        height, width = width, height
        result = cv2.transpose(result) if channels <= 4 else result.transpose(1, 0, 2)  # OpenCV takes no more
    down, across = orientation in (3, 4, 7, 8), orientation in (2, 3, 6, 7)
    if down or across:
        result = cv2.flip(result, -1 if down and across else 0 if down else 1)
    return result.reshape(height, width, channels)


def inverse_orientation(orientation: int) -> int:
    """Return the EXIF orientation that undoes another one: all but 6 and 8 undo themselves."""
    return {6: 8, 8: 6}.get(orientation, orientation)


def image_size(data: bytes | memoryview) -> tuple[int, int]:
    """Return `(height, width)` of the stored pixels, from the header. Raises ImageError."""
    if data[:3] == JPEG_START:
        header = read_jpeg_header(data, check_scans=False)
        return header.height, header.width
    if data[:6] == NPY_START:
        height, width, _ = npy_image(data).shape
        return height, width
    if sniff(data) in (*MODERN, "dct"):
        found = read_header(bytes(data if data[:4] != DCT_START else data[:_DCT_HEAD]))
        return found.height, found.width
    return open_by_pillow(data, lambda image, _: image).size[::-1]


def _decode_jpeg(
    data: bytes | memoryview,
    jpeg: JpegHeader,
    wanted: str,
    reduce: int = 1,
    fast: bool = False,
    buffer: Buffer | None = None,
) -> Pixels | None:
    """Decode a JPEG strictly, by libjpeg-turbo.

    Args:
        data: the JPEG.
        jpeg: its header, or that of the larger JPEG that it was cut from.
        wanted: "RGB" or "GRAY", or "" for the pixels that take the least time.
        reduce: as in `decode`, like `fast` and `buffer`.

    Returns:
        None if only Pillow can decode to what is wanted: CMYK, lossless JPEGs, or rare subsamplings.

    Raises:
        ImageError: unreadable, truncated or unsupported.
    """
    is_lossless = jpeg.kind == LOSSLESS
    try:
        space = simplejpeg.decode_jpeg_header(data)[2]
    except KeyError:  # 4:4:1
        return None
    except ValueError as error:
        if "subsampling" in str(error):
            return None
        raise ImageError("unreadable", f"the JPEG's header does not parse: {error}") from error
    if is_lossless and space in ("YCbCr", "YCCK"):
        raise ImageError("unsupported", f"a lossless JPEG in {space}, which libjpeg-turbo does not convert to RGB")
    height, width = -(-jpeg.height // reduce), -(-jpeg.width // reduce)
    if wanted and (is_lossless or space not in _SCALING):
        return None
    if not wanted:
        wanted = "CMYK" if space in ("CMYK", "YCCK") else "RGB" if is_lossless and space == "RGB" else "GRAY"
        if not is_lossless:  # as small as can be. Sides of 0 would make simplejpeg ignore `min_factor`
            height, width, reduce = 1, 1, 8
    memory = None if buffer is None else buffer(height * width * 3)
    try:
        pixels: Pixels = simplejpeg.decode_jpeg(
            data, wanted, fastupsample=fast, min_height=height, min_width=width, min_factor=reduce, buffer=memory
        )
    except ValueError as error:
        reason = "truncated" if "premature end of jpeg" in str(error).lower() else "unreadable"
        raise ImageError(reason, f"the JPEG does not decode: {error}") from error
    return pixels


def _check_jpeg(data: bytes | memoryview, jpeg: JpegHeader, must: bool = True) -> bool:
    """Follow all codes of a JPEG in the fastest way. Raises ImageError if one is wrong.

    Returns:
        False for a rare subsampling that only Pillow decodes. Its codes are not followed without the C extension:
        that is an error if they `must` be.
    """
    if _decode_jpeg(data, jpeg, "") is not None:
        return True
    if CAN_REWRITE:
        try:
            to_baseline(bytes(data))
        except CannotRewrite as error:
            reason = {"truncated": "truncated", "arithmetic, lossless or hierarchical": "unsupported"}.get(str(error))
            raise ImageError(reason or "unreadable", f"the JPEG does not decode: {error}") from error
    elif must:
        raise ImageError(
            "unsupported", "a JPEG of a rare subsampling: to check it takes tpufeed's C extension (docs/install.md)"
        )
    return False


def decode_by_pillow(data: bytes | memoryview, mode: str, backdrop: int = 255, deep_bits: int = 16) -> Pixels:
    """Decode to pixels in `mode`, "RGB" or "L". Errors in our own scaling are not taken for errors of the image."""
    image = open_by_pillow(data, lambda image, data: flatten(_load(image, data), mode, backdrop))
    return np.asarray(image if image.mode == mode else to_8_bits(image, backdrop, deep_bits).convert(mode))


def open_by_pillow(data: bytes | memoryview, step: Callable[[Image.Image, bytes | memoryview], T]) -> T:
    """Return the result of a step with an opened image, which gets the data, too. Raises ImageError."""
    image_format = sniff(data)
    if image_format is None:
        raise ImageError("not_an_image", f"no image format that tpufeed reads starts with {bytes(data[:8])!r}")
    try:
        if image_format in MODERN:
            header = read_header(bytes(data))
            return step(load_modern(bytes(data), image_format, (header.width, header.height)), data)
        return step(Image.open(io.BytesIO(data), formats=(image_format,)), data)
    except ImageError:
        raise
    except UnidentifiedImageError as error:
        raise ImageError("unreadable", f"Pillow does not take the file for a {image_format}") from error
    except Image.DecompressionBombError as error:
        raise ImageError("too_large", f"too many pixels: {error}") from error
    except MemoryError as error:
        if image_format != "tiff":  # not the image's fault: another machine may have enough
            raise
        raise ImageError("unreadable", "the tags of the TIFF ask for more memory than there is") from error
    except Exception as error:  # its plugins raise all kinds of errors: struct.error, KeyError, SyntaxError, ...
        reason = "truncated" if "truncated" in str(error) or isinstance(error, EOFError) else "unreadable"
        # It holds the image, and an error that `mend` raises again lives until the next garbage collection.
        error.__traceback__ = None
        raise ImageError(reason, f"Pillow does not decode the file: {error}") from error


def _load(image: Image.Image, data: bytes | memoryview) -> Image.Image:
    """Load an image that has all of its rows. The transparent level is scaled like Pillow's samples."""
    samples = image.tile[0][3] if image.format == "PNG" and image.tile else None  # type: ignore[attr-defined]
    if image.format == "TIFF":
        tags, whole = image.tag_v2, bytes(data)  # type: ignore[attr-defined]  # of TiffImageFile
        check_ccitt(whole, tags)
        for number, (stream, height, width) in enumerate(iter_jpegs(whole, tags)):
            found = read_header(stream)
            if found.height < height or found.width < width:
                size = f"{found.width}x{found.height} pixels, expected {width}x{height}"
                raise ImageError("truncated", f"strip or tile {number} of the TIFF has {size}")
            check_pixels(stream, found)
    load_whole(image, data)
    level = image.info.get("transparency")
    if samples in PNG_SCALES and isinstance(level, int):
        image.info["transparency"] = level % (1 + 255 // PNG_SCALES[samples]) * PNG_SCALES[samples]
    elif samples == "RGB;16B" and isinstance(level, tuple):
        image = _transparent_where(image, bytes(data), level)
    return image


def decode_png(data: bytes) -> Pixels:
    """Return the samples of a PNG as they are, of shape (height, width), or (height, width, 3 or 4) as BGR or BGRA.

    Raises:
        ImageError: unreadable.
    """
    samples = cv2.imdecode(np.frombuffer(plain_png_of(data), np.uint8), cv2.IMREAD_UNCHANGED)
    if samples is None:
        raise ImageError("unreadable", "the PNG does not decode by libpng")
    return samples


def _transparent_where(image: Image.Image, data: bytes, colour: tuple[int, ...]) -> Image.Image:
    """Return an image in RGBA whose pixels of a colour of 16 bits are transparent: Pillow has only the upper 8."""
    is_clear = (decode_png(data)[..., 2::-1] == colour).all(2)
    result = image.convert("RGB")
    del result.info["transparency"]
    result.putalpha(Image.fromarray(np.where(is_clear, np.uint8(0), np.uint8(255))))
    return result


def flatten(image: Image.Image, mode: str, backdrop: int) -> Image.Image:
    """Convert to `mode`, "RGB" or "L", with alpha over a grey `backdrop`. Images for `to_8_bits` stay as they are.

    Colour images of 16 bits are cut to 8 by Pillow itself, within one level of scaling.
    """
    if image.mode == "F" or image.mode.startswith("I"):
        return image
    if image.has_transparency_data and not has_unnamed_band(image):
        grey = image.mode in ("1", "L", "LA", "La")
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, (backdrop, backdrop, backdrop, 255)), image)
        image = image.convert("L" if grey else "RGB")
    return image.convert(mode)


def to_8_bits(image: Image.Image, backdrop: int, deep_bits: int = 16) -> Image.Image:
    """Scale a grey image of integers of 16 or 32 bits, or of floats, to 8 bits. Transparent pixels are `backdrop`.

    Integers have `deep_bits`, also those of 32 bits: 0 to 65,535 by default. Files do not say what floats mean: their
    range is [0, 1], [0, 255] or [0, 65535], the first that holds every pixel, and NaN is black.
    """
    values: npt.NDArray[Any] = np.asarray(image)
    if image.mode == "F":
        values = np.nan_to_num(values, nan=0.0, posinf=65535.0, neginf=0.0)
        highest = float(values.max())
        top = 1.0 if highest <= 1 else 255.0 if highest <= 255 else 65535.0
        return Image.fromarray((np.clip(values, 0, top) * (255 / top)).round().astype(np.uint8))
    top = (1 << deep_bits) - 1
    scaled = ((np.clip(values, 0, top).astype(np.uint32) * 255 + top // 2) // top).astype(np.uint8)
    transparent = image.info.get("transparency")
    if isinstance(transparent, int):
        scaled[values == transparent] = backdrop
    return Image.fromarray(scaled)
