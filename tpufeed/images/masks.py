"""Masks and depth: one channel of integers, stored as lossless PNG, and never taken for colours.

The values of a mask with a palette are its indices: segmentation datasets use the palette to colour classes.
"""

import io
from typing import Literal, TypeAlias

import numpy as np
from PIL import Image, UnidentifiedImageError

from tpufeed.errors import ImageError
from tpufeed.images.geometry import Array, Geometry
from tpufeed.images.header import read_header, sniff
from tpufeed.images.unwritten import PNG_SCALES, check_png_rows, load_whole, one_pixel_of

MaskKind: TypeAlias = Literal["mask", "depth"]

_DTYPES = {"mask": "uint8", "depth": "uint16"}
_MODES = {"mask": ("1", "L", "P"), "depth": ("1", "L", "P", "I;16", "I")}
_NO_CHANGE: dict[str, tuple[str, ...]] = {"mask": ("L", "P"), "depth": ("I;16", "I")}


def store_mask(data: bytes, kind: MaskKind, moved: Geometry) -> bytes:
    """Return the PNG that the record of a sample holds for the mask in a file.

    Args:
        data: all of the file: a PNG of one channel, or of a palette, of 8 bits for a mask, of up to 16 for depth.
        kind: mask or depth.
        moved: how storing moves the upright image that it belongs to.

    Raises:
        ImageError: bad_mask.
    """
    image = _open(data, kind)
    width, height = image.size
    if (height, width) != moved.source:
        raise ImageError(
            "bad_mask", f"the {kind} has {width}x{height} pixels, but its image has {moved.source[1]}x{moved.source[0]}"
        )
    try:
        # Pillow checks neither CRCs of pixels nor zlib's checksum: it would give wrong values, or other decoders fail.
        header = read_header(data)
        check_png_rows(data)
    except ImageError as error:
        raise ImageError("bad_mask", f"the {kind} is damaged: {error}") from error
    if moved == Geometry.identity(height, width) and image.mode in _NO_CHANGE[kind] and _scale(image) == 1:
        whole = data[28] or "animated" in header.odd  # interlaced, or of several frames
        _pixels(image if whole else _open(one_pixel_of(data), kind), kind)
        return data
    return encode_mask(moved.warp(_pixels(image, kind), 0), kind)


def encode_mask(values: Array, kind: MaskKind) -> bytes:
    """Return the PNG of values of shape (height, width): integers of 8 bits for a mask, of 16 for depth."""
    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(values, _DTYPES[kind])).save(buffer, "PNG", compress_level=3)
    return buffer.getvalue()


def decode_mask(data: bytes | memoryview, kind: MaskKind) -> Array:
    """Return the values of a mask, uint8 of shape (height, width), or of depth, uint16.

    Raises:
        ImageError: bad_mask.
    """
    return _pixels(_open(data, kind), kind, data)


def _open(data: bytes | memoryview, kind: MaskKind) -> Image.Image:
    """Open a mask without decoding its pixels. Raises ImageError."""
    if sniff(data) != "png":
        found = "a JPEG, which does not keep its values" if sniff(data) == "jpeg" else "not a PNG"
        raise ImageError("bad_mask", f"the {kind} is {found}, expected a PNG of one channel")
    try:
        image = Image.open(io.BytesIO(data), formats=("PNG",))
    except UnidentifiedImageError as error:  # its text has an address that differs each time
        raise ImageError("bad_mask", f"the {kind} is not a PNG that Pillow knows") from error
    except Exception as error:  # Pillow raises all kinds of errors
        raise ImageError("bad_mask", f"the {kind} does not decode: {error}") from error
    if image.mode not in _MODES[kind]:
        deep = kind == "mask" and image.mode.startswith("I")
        said = "16 bits a pixel (declare it as depth)" if deep else f"several channels ({image.mode})"
        raise ImageError("bad_mask", f"the {kind} has {said}, expected a PNG of one channel, or of a palette")
    return image


def _scale(image: Image.Image) -> int:
    """Return the factor by which Pillow will multiply the samples of an image that is not loaded yet."""
    return PNG_SCALES.get(str(image.tile[0][3]), 1) if image.tile else 1  # type: ignore[attr-defined]  # of ImageFile


def _pixels(image: Image.Image, kind: MaskKind, data: bytes | memoryview | None = None) -> Array:
    """Decode the values. Rows are counted if `data` is given. Raises ImageError."""
    scale = _scale(image)
    try:
        if data is None:
            image.load()
        else:
            load_whole(image, data)
    except ImageError as error:
        raise ImageError("bad_mask", f"the {kind} is damaged: {error}") from error
    except MemoryError:
        raise
    except Exception as error:  # Pillow raises all kinds of errors
        raise ImageError("bad_mask", f"the {kind} does not decode: {error}") from error
    values = np.asarray(image) // scale if scale > 1 else np.asarray(image)
    return values.astype(_DTYPES[kind])
