"""From uint8 pixels to encoded bytes."""

import io
from typing import Literal

import numpy as np
import simplejpeg
from PIL import Image

from tpufeed.images.decoding import Pixels

StoredFormat = Literal["jpeg", "png"]


def encode(image: Pixels, image_format: StoredFormat, quality: int) -> bytes:
    """`image` (uint8, height x width x 1 or 3) as JPEG of `quality` (1 to 100; 4:2:0 below 95, else 4:4:4) or PNG."""
    image = np.ascontiguousarray(image)
    if image_format == "jpeg":
        colorspace, subsampling = ("GRAY", "Gray") if image.shape[2] == 1 else ("RGB", "420" if quality < 95 else "444")
        return bytes(simplejpeg.encode_jpeg(image, quality, colorspace, subsampling))
    buffer = io.BytesIO()
    Image.fromarray(image.squeeze(2) if image.shape[2] == 1 else image).save(buffer, "PNG", compress_level=3)
    return buffer.getvalue()
