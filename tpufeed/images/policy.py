"""What becomes of an image file on its way into a shard: kept as it is, or changed and encoded anew."""

from dataclasses import dataclass
from typing import Literal

from tpufeed.errors import OptionError
from tpufeed.images.decoding import Pixels, decode, decode_upright
from tpufeed.images.encoding import StoredFormat, encode
from tpufeed.images.header import ImageHeader, read_header
from tpufeed.images.resizing import reduction, resize, short_side_size


@dataclass(frozen=True, slots=True)
class ImagePolicy:
    """How images are checked and stored.

    Attributes:
        check: "full" decodes every image strictly, so that none can stop a training; "header" trusts what follows a
            sound header.
        presize_px: shrink images whose shorter side is longer than this to it; None keeps sizes.
        quality: of JPEGs that are encoded anew.
    """

    check: Literal["full", "header"] = "full"
    presize_px: int | None = None
    quality: int = 90

    def __post_init__(self) -> None:
        if self.check not in ("full", "header"):
            raise OptionError(f"check is 'full' or 'header', not {self.check!r}")
        if self.presize_px is not None and not 8 <= self.presize_px <= 16384:
            raise OptionError(f"presize is a side in pixels between 8 and 16384, not {self.presize_px}")
        if not 1 <= self.quality <= 100:
            raise OptionError(f"quality is a JPEG's between 1 and 100, not {self.quality}")


@dataclass(frozen=True, slots=True)
class StoredImage:
    """An image as its record holds it; `kept` says that `data` is the file's own bytes."""

    data: bytes
    format: StoredFormat
    height: int
    width: int
    channels: int
    kept: bool


def store_image(data: bytes, policy: ImagePolicy) -> StoredImage:
    """The image of a file as `policy` wants it stored: upright 8-bit grey or RGB, JPEG or PNG.

    A JPEG or PNG that is all that keeps its own bytes. What must change is encoded anew, PNG and lossless formats as
    PNG, JPEG and WebP as JPEG.

    Raises:
        ImageError: with its reason code.
    """
    header = read_header(data)
    if header is not None and header.plain and not _shrinks(header, policy):
        if policy.check == "full":
            decode(data)
        assert header.format in ("jpeg", "png")
        return StoredImage(data, header.format, header.height, header.width, header.channels, True)
    pixels = _decode(data, header, policy)
    stored_format: StoredFormat = "jpeg" if data[:1] in (b"\xff", b"R") else "png"
    height, width, channels = pixels.shape
    return StoredImage(encode(pixels, stored_format, policy.quality), stored_format, height, width, channels, False)


def _shrinks(header: ImageHeader, policy: ImagePolicy) -> bool:
    return policy.presize_px is not None and min(header.height, header.width) > policy.presize_px


def _decode(data: bytes, header: ImageHeader | None, policy: ImagePolicy) -> Pixels:
    if header is not None and header.plain and header.channels == 3 and policy.presize_px is not None:
        height, width = short_side_size(header.height, header.width, policy.presize_px)
        return resize(decode(data, reduction(header.height, header.width, height, width)), height, width)
    pixels = decode_upright(data)
    if policy.presize_px is not None and min(pixels.shape[:2]) > policy.presize_px:
        height, width = short_side_size(pixels.shape[0], pixels.shape[1], policy.presize_px)
        pixels = resize(pixels, height, width).reshape(height, width, -1)
    return pixels
