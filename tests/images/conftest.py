"""Images of every kind, made from real photographs with Pillow."""

import io

import numpy as np
import pytest
from PIL import Image


def encode_by_pillow(image, image_format, **options):
    buffer = io.BytesIO()
    image.save(buffer, image_format, **options)
    return buffer.getvalue()


def exif_of(orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


@pytest.fixture(scope="session")
def encoded():
    """`encoded(image, format, **options)` are Pillow's bytes."""
    return encode_by_pillow


@pytest.fixture(scope="session")
def cat(photos):
    """A photograph of 150 x 99 pixels, as a Pillow image in RGB."""
    return Image.open(io.BytesIO(photos["chelsea.png"])).convert("RGB").resize((150, 99), Image.Resampling.LANCZOS)


@pytest.fixture(scope="session")
def kinds(cat):
    """One file of each kind by name."""
    sixteen = (np.asarray(cat.convert("L")).astype(np.uint16) << 8) + 77
    palette = cat.quantize(64)
    return {
        "jpeg": encode_by_pillow(cat, "JPEG", quality=90),
        "jpeg, 4:4:4": encode_by_pillow(cat, "JPEG", quality=90, subsampling=0),
        "jpeg, progressive": encode_by_pillow(cat, "JPEG", quality=90, progressive=True),
        "jpeg, grey": encode_by_pillow(cat.convert("L"), "JPEG", quality=90),
        "jpeg, cmyk": encode_by_pillow(cat.convert("CMYK"), "JPEG", quality=90),
        "jpeg, turned": encode_by_pillow(cat, "JPEG", quality=90, exif=exif_of(6)),
        "png": encode_by_pillow(cat, "PNG"),
        "png, grey": encode_by_pillow(cat.convert("L"), "PNG"),
        "png, palette": encode_by_pillow(palette, "PNG"),
        "png, palette with transparency": encode_by_pillow(palette, "PNG", transparency=3),
        "png, rgba": encode_by_pillow(cat.convert("RGBA"), "PNG"),
        "png, grey and alpha": encode_by_pillow(cat.convert("LA"), "PNG"),
        "png, 16 bit": encode_by_pillow(Image.fromarray(sixteen), "PNG"),
        "png, 1 bit": encode_by_pillow(cat.convert("1"), "PNG"),
        "png, turned": encode_by_pillow(cat, "PNG", exif=exif_of(6)),
        "gif, animated": encode_by_pillow(cat, "GIF", save_all=True, append_images=[cat.rotate(90), cat.rotate(180)]),
        "webp": encode_by_pillow(cat, "WEBP", quality=90),
        "webp, lossless": encode_by_pillow(cat, "WEBP", lossless=True),
        "bmp": encode_by_pillow(cat, "BMP"),
        "tiff": encode_by_pillow(cat, "TIFF"),
        "tiff, lzw": encode_by_pillow(cat, "TIFF", compression="tiff_lzw"),
        "tiff, turned": encode_by_pillow(cat, "TIFF", exif=exif_of(6)),
    }
