"""Encode uint8 pixels."""

import io
from typing import Literal

import numpy as np
import simplejpeg
from PIL import Image

from tpufeed.errors import ImageError
from tpufeed.images.decoding import Pixels

StoredFormat = Literal["jpeg", "png", "webp"]
_LONGEST_SIDE_PX = {"jpeg": 65_500, "png": 2**31 - 1, "webp": 16_383}


def encode(image: Pixels, image_format: StoredFormat, quality: int) -> bytes:
    """Encode `image` (uint8, height x width x 1 or 3) as JPEG, PNG or WebP.

    Args:
        image: grey or RGB; WebP knows no grey and holds it as RGB.
        image_format: the format.
        quality: of JPEG (4:2:0 below 95, else 4:4:4) and of WebP, which is lossy; 1 to 100.

    Raises:
        ImageError: too_large for the format.
    """
    if max(image.shape) > _LONGEST_SIDE_PX[image_format]:
        height, width = image.shape[:2]
        longest = _LONGEST_SIDE_PX[image_format]
        raise ImageError("too_large", f"{width}x{height} pixels; a side in {image_format} has at most {longest}")
    image = np.ascontiguousarray(image)
    if image_format == "jpeg":
        colorspace, subsampling = ("GRAY", "Gray") if image.shape[2] == 1 else ("RGB", "420" if quality < 95 else "444")
        return bytes(simplejpeg.encode_jpeg(image, quality, colorspace, subsampling))
    buffer, picture = io.BytesIO(), Image.fromarray(image.squeeze(2) if image.shape[2] == 1 else image)
    if image_format == "webp":
        picture.save(buffer, "WEBP", quality=quality)
    else:
        picture.save(buffer, "PNG", compress_level=3)
    return buffer.getvalue()
