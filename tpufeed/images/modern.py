"""Read AVIF, HEIC and JPEG XL through Pillow and its plug-ins.

A plug-in is imported when the first such file is met. Its decoder is called directly, not through `Image.open`: the
user's Pillow stays as it is (only the import of pillow_jxl registers JPEG XL there). All three decoders refuse files
that end early. pillow_jxl decodes as it opens a file, so a JPEG XL's header is read here.
"""

import importlib
import importlib.util
import io
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
from PIL import Image

from tpufeed.errors import ImageError

ModernFormat = Literal["avif", "heic", "jxl"]
_NEEDS: dict[str, tuple[str, str]] = {  # the module, and what to do if it is missing
    "avif": ("PIL._avif", "an AVIF image: install Pillow 11.3 or later with AVIF (pip install 'pillow>=11.3')"),
    "heic": ("pillow_heif", "a HEIC image: pip install pillow-heif"),
    "jxl": ("pillow_jxl", "a JPEG XL image: pip install pillow-jxl-plugin"),
}
MODERN = frozenset(_NEEDS)
_BRANDS: dict[bytes, ModernFormat] = {
    **dict.fromkeys((b"avif", b"avis"), "avif"),
    **dict.fromkeys((b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs"), "heic"),
}
_ANY_CODEC = (b"mif1", b"msf1")  # brands of the container alone
_CODESTREAM = b"\xff\x0a"
_CONTAINER = b"\0\0\0\x0cJXL \r\n\x87\n"
_HEADER_BYTES = 4096  # far more than a JPEG XL's header has without names of channels
_RATIOS = ((0, 1), (1, 1), (6, 5), (4, 3), (3, 2), (16, 9), (5, 4), (2, 1))  # width to height
_NONE = (0, 0)
_ENUM = (_NONE, (1, 0), (2, 4), (18, 6))
_GREY, _ALPHA = 1, 0  # a colour space, and a kind of channels


def sniff_modern(data: bytes | memoryview) -> ModernFormat | None:
    """Return the format by the first bytes: of a container by its brands, the major one first."""
    start = bytes(data[:256])
    if start.startswith((_CODESTREAM, _CONTAINER)):
        return "jxl"
    if start[4:8] != b"ftyp":
        return None
    stop = min(len(start), int.from_bytes(start[:4], "big"))
    brands = [start[at : at + 4] for at in (8, *range(16, stop, 4))]
    known = (_BRANDS[brand] for brand in brands if brand in _BRANDS)
    return next(known, "heic" if any(brand in _ANY_CODEC for brand in brands) else None)


def readable_formats() -> frozenset[str]:
    """Return the formats that can be read here, without importing what reads them."""
    return frozenset(name for name, (module, _) in _NEEDS.items() if importlib.util.find_spec(module) is not None)


def read_modern(data: bytes, image_format: str) -> tuple[tuple[int, int], int, dict[str, bool]]:
    """Read a header without decoding.

    Returns:
        Width and height in pixels as they are decoded. The orientation, 1 to 8, that decoded pixels still need (Pillow
        does not turn AVIFs, libheif and libjxl turn the image), and whether it is one of the odd cases.

    Raises:
        ImageError: unsupported, truncated, unreadable.
        IndexError, struct.error: a JPEG XL ends within its header.
    """
    if image_format == "jxl":
        _require(image_format)
        size, turned_by, odd = _read_jxl(data)
        return (size[::-1] if turned_by >= 5 else size), 1, odd
    with _refusing(image_format):
        image = _open(data, image_format)
        if image_format == "heic":
            deep, orientation = image.info["bit_depth"] > 8, 1
        else:  # Pillow does not tell the depth: the third byte of the AV1 configuration does
            at = data.find(b"av1C\x81") + 6
            deep, orientation = at > 6 and bool(data[at] & 0x40), image.getexif().get(0x0112, 1)
        odd = {"alpha": image.has_transparency_data, "deep": deep, "greyscale": image.mode[0] in "LI"}
        return image.size, orientation if 1 <= orientation <= 8 else 1, odd | {"animated": image.n_frames > 1}


def load_modern(data: bytes, image_format: str, size: tuple[int, int]) -> Image.Image:
    """Decode the first frame, or the primary image, of the (width, height) that its header says.

    Raises:
        ImageError: unsupported, truncated, unreadable.
    """
    with _refusing(image_format):
        image: Image.Image = _decode_jxl(data) if image_format == "jxl" else _open(data, image_format)
        image.load()
    if image.size != size:
        raise ImageError(
            "unreadable", f"the header says {size[0]}x{size[1]} pixels; {image.width}x{image.height} are decoded"
        )
    return image


def _require(image_format: str) -> Any:
    module, needed = _NEEDS[image_format]
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImageError("unsupported", needed) from error


@contextmanager
def _refusing(image_format: str) -> Iterator[None]:
    try:
        yield
    except (ImageError, MemoryError):
        raise
    except Exception as error:  # the plug-ins raise all kinds of errors: SyntaxError, RuntimeError, ValueError, ...
        is_cut = any(words in str(error).lower() for words in ("truncated", "end of file", "iloc box references"))
        # libjxl's text is only the advice to build libjxl.
        reason = "it is damaged, or cut short" if image_format == "jxl" else str(error).strip()
        error.__traceback__ = None  # it holds the image
        raise ImageError(
            "truncated" if is_cut else "unreadable", f"the {image_format} does not decode: {reason}"
        ) from error


def _open(data: bytes, image_format: str) -> Any:
    """Open an AVIF or a HEIC without decoding it."""
    module = _require(image_format)
    if image_format == "avif":
        module = importlib.import_module("PIL.AvifImagePlugin")
    opener = module.AvifImageFile if image_format == "avif" else module.HeifImageFile
    return opener(io.BytesIO(data))


def _decode_jxl(data: bytes) -> Image.Image:
    is_jpeg, facts, pixels, *_ = _require("jxl").Decoder(num_threads=0)(data)
    if is_jpeg:  # a JPEG that was packed without loss, and is not turned
        from PIL import ImageOps

        image: Image.Image = Image.open(io.BytesIO(pixels), formats=("JPEG",))
        image.getexif()[0x0112] = _read_jxl(data)[1]
        return ImageOps.exif_transpose(image)
    size = facts.width, facts.height
    if facts.mode == "LA" and len(pixels) == 4 * size[0] * size[1]:  # it says neither that samples have 16 bits
        pixels = ((np.frombuffer(pixels, np.uint16).astype(np.uint32) + 128) // 257).astype(np.uint8).tobytes()
    return Image.frombytes("F" if facts.mode == "F;16" else facts.mode, size, pixels)  # its floats have 32 bits


class _Bits:
    """Numbers of a JPEG XL's header (ISO/IEC 18181-1, annex B), whose bits start at the lowest of each byte."""

    def __init__(self, data: bytes) -> None:
        self._value, self._left = int.from_bytes(data, "little"), 8 * len(data)

    def take(self, count: int) -> int:
        value = self._value & ((1 << count) - 1)
        self._value, self._left = self._value >> count, self._left - count
        if self._left < 0:
            raise IndexError("the header is longer")
        return value

    def choose(self, *ways: tuple[int, int]) -> int:
        """Take two bits. They choose one of four ways: the least value and the bits of what is added to it."""
        least, count = ways[self.take(2)]
        return least + self.take(count)

    def size(self) -> tuple[int, int]:
        """Take width and height."""
        is_small = self.take(1)

        def take_side() -> int:
            return 8 * (1 + self.take(5)) if is_small else self.choose((1, 9), (1, 13), (1, 18), (1, 30))

        height, ratio = take_side(), self.take(3)
        across, down = _RATIOS[ratio]
        return (height * across // down if ratio else take_side()), height

    def is_deep(self) -> bool:
        if not self.take(1):
            return self.choose((8, 0), (10, 0), (12, 0), (1, 6)) > 8
        self.choose((32, 0), (16, 0), (24, 0), (1, 6))
        self.take(4)
        return True  # floats

    def is_alpha(self) -> bool:
        """Take a further channel, and return true for alpha that is not premultiplied."""
        if self.take(1):
            return True
        kind = self.choose(*_ENUM)
        self.is_deep()
        self.choose(_NONE, (3, 0), (4, 0), (1, 3))
        self.take(8 * self.choose(_NONE, (0, 4), (16, 5), (48, 10)))  # its name
        return kind == _ALPHA and not self.take(1)


def _read_jxl(data: bytes) -> tuple[tuple[int, int], int, dict[str, bool]]:
    """Read the size of a JPEG XL, the orientation by which libjxl turns it, and its odd cases."""
    bits = _Bits(_jxl_codestream(data))
    size, orientation, grey, alpha, deep = bits.size(), 1, False, False, False
    if not bits.take(1):
        if bits.take(1):
            orientation = 1 + bits.take(3)
            if bits.take(1):
                bits.size()  # at which to show it
            if bits.take(1):
                raise ImageError("unsupported", "a JPEG XL with a preview, which tpufeed does not read")
            if bits.take(1):
                raise ImageError("unsupported", "an animated JPEG XL, of which pillow-jxl-plugin gives the last frame")
        deep = bits.is_deep()
        bits.take(1)
        channels = bits.choose(_NONE, (1, 0), (2, 4), (1, 12))
        alpha = channels == 1 and bits.is_alpha()
        if channels and not alpha:
            raise ImageError("unsupported", "a JPEG XL with premultiplied alpha, or with channels besides alpha")
        bits.take(1)
        if not bits.take(1):
            bits.take(1)
            grey = bits.choose(*_ENUM) == _GREY
    return size, orientation, {"alpha": alpha, "deep": deep, "greyscale": grey}


def _jxl_codestream(data: bytes) -> bytes:
    """Return the start of the codestream, after its signature. In a container it may be in several boxes."""
    found, offset = b"", 0
    if data.startswith(_CODESTREAM):
        found, offset = data[:_HEADER_BYTES], len(data)
    while offset + 8 <= len(data) and len(found) < _HEADER_BYTES:
        size, kind = struct.unpack_from(">I4s", data, offset)
        start = offset + 8
        if size == 1:
            (size,), start = struct.unpack_from(">Q", data, start), start + 8
        stop = offset + size if size else len(data)
        if stop < start:
            raise ImageError("unreadable", f"the box {kind!r} at byte {offset} of the jxl has a size of {size}")
        if kind in (b"jxlc", b"jxlp"):
            start += 4 * (kind == b"jxlp")
            found += data[start : min(stop, start + _HEADER_BYTES)]
        offset = stop
    if found[:2] != _CODESTREAM[: len(found)]:
        raise ImageError("unreadable", "the jxl has no codestream")
    return found[2:]
