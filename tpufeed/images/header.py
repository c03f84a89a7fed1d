"""Read an image file's header without decoding: its size, and what is odd about it. One reader for each format."""

import io
import struct
import zlib
from dataclasses import dataclass
from typing import Literal

from PIL import Image

from tpufeed.errors import ImageError

Format = Literal["jpeg", "png", "webp", "bmp", "gif", "tiff"]
_START_OF_FRAME = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_STANDALONE = frozenset({0x01, *range(0xD0, 0xD9)})
_COMMON_FRAMES = frozenset({0xC0, 0xC1, 0xC2})  # Huffman-coded DCT; not every decoder knows arithmetic or lossless
_NO_ODD: tuple[str, ...] = ()
_BITFIELDS = 3
_GREY_RAMP = bytes(level for level in range(256) for _ in range(3))
_GREY_MODES = ("1", "L", "LA", "La", "F")
_SUFFIXES: dict[str, Format] = {
    **dict.fromkeys(("jpg", "jpeg", "jpe", "jfif"), "jpeg"),
    **dict.fromkeys(("png", "apng"), "png"),
    "webp": "webp",
    "gif": "gif",
    **dict.fromkeys(("bmp", "dib"), "bmp"),
    **dict.fromkeys(("tif", "tiff"), "tiff"),
}


@dataclass(frozen=True, slots=True)
class ImageHeader:
    """Format, size and odd cases of an image.

    Attributes:
        width: of the stored pixels, before any EXIF orientation; likewise height.
        channels: 1 or 3, as `decoding.decode_stored` gives them: alpha is gone, palettes and CMYK are RGB.
        plain: but for an orientation, its own bytes decode to 8-bit grey or RGB in any decoder, so that they may be
            kept.
        orientation: of EXIF or TIFF, 1 to 8.
        orientation_at: where the tag's value stands in the file: the one byte that holds 1 to 8; 0 where none is.
        odd: which of exif, cmyk, alpha, deep, greyscale and animated the image shows, in this order. They follow from
            the header: an alpha channel that is opaque throughout is alpha.
    """

    format: Format
    width: int
    height: int
    channels: int
    plain: bool
    orientation: int = 1
    orientation_at: int = 0
    odd: tuple[str, ...] = ()


def read_header(data: bytes) -> ImageHeader:
    """Read the header of an image of one of the formats that are taken.

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
    """Return the format by the first bytes; file names lie."""
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
    """Return the format that a file's name promises; None where its suffix names none of them."""
    return _SUFFIXES.get(name.rpartition(".")[2].lower())


def _odd_cases(
    *,
    exif: bool = False,
    cmyk: bool = False,
    alpha: bool = False,
    deep: bool = False,
    greyscale: bool = False,
    animated: bool = False,
) -> tuple[str, ...]:
    """Return the names of the cases that are met."""
    met = {"exif": exif, "cmyk": cmyk, "alpha": alpha, "deep": deep, "greyscale": greyscale, "animated": animated}
    return tuple(name for name, is_met in met.items() if is_met)


def _find_orientation(data: bytes, start: int, stop: int) -> tuple[int, int]:
    """Return value and place of tag 0x0112 in IFD0 of the TIFF structure at `[start, stop)`; `(1, 0)` without one.

    A block that cannot be parsed, whatever is wrong with it, counts as one without the tag (Exif 2.32, section 4.6).
    The place is that of the byte which holds the value, in either byte order and width.
    """
    stop = min(stop, len(data))
    little = data[start : start + 2] == b"II"
    order = "<" if little else ">"
    try:
        (offset,) = struct.unpack_from(order + "I", data, start + 4)
        at = start + offset
        (entries,) = struct.unpack_from(order + "H", data, at)
        for entry in range(at + 2, min(at + 2 + 12 * entries, stop - 11), 12):
            tag, kind = struct.unpack_from(order + "HH", data, entry)
            if tag == 0x0112 and kind in (3, 4):  # it should be a SHORT; some write a LONG
                (value,) = struct.unpack_from(order + ("H" if kind == 3 else "I"), data, entry + 8)
                if not 1 <= value <= 8:
                    break
                return value, entry + 8 if little else entry + (9 if kind == 3 else 11)
    except struct.error:
        pass
    return 1, 0


def _read_jpeg(data: bytes) -> ImageHeader:
    """Read the segments up to the first scan. Raises IndexError where the file ends within its header."""
    offset, frame, kind, orientation, place = 2, 0, 0, 1, 0
    while True:
        if data[offset] != 0xFF:
            raise ImageError("unreadable", f"no JPEG marker at byte {offset}")
        marker = data[offset + 1]
        if marker == 0xFF:  # fill byte
            offset += 1
            continue
        if marker in _STANDALONE:
            offset += 2
            continue
        if marker == 0xDA:
            break
        if marker in _START_OF_FRAME:
            frame, kind = offset + 4, marker
        elif marker == 0xE1 and not place and data.startswith(b"Exif\0\0", offset + 4):
            stop = offset + 2 + (data[offset + 2] << 8 | data[offset + 3])
            orientation, place = _find_orientation(data, offset + 10, stop)
        offset += 2 + (data[offset + 2] << 8 | data[offset + 3])
    if not frame:
        raise ImageError("unreadable", "a JPEG without a frame header")
    if data.rfind(b"\xff\xd9") < offset:
        raise ImageError("truncated", "the JPEG has no end marker; the file was cut short")
    precision, components = data[frame], data[frame + 5]
    height, width = data[frame + 1] << 8 | data[frame + 2], data[frame + 3] << 8 | data[frame + 4]
    if not height or not width:
        raise ImageError("unreadable", f"the JPEG's header says {width}x{height} pixels")
    if precision != 8:
        raise ImageError("unsupported", f"a JPEG of {precision} bits a channel; only those of 8 are decoded")
    plain = kind in _COMMON_FRAMES and components in (1, 3)
    odd = _NO_ODD
    if components != 3 or orientation != 1:
        odd = _odd_cases(exif=orientation != 1, cmyk=components == 4, greyscale=components == 1)
    return ImageHeader("jpeg", width, height, 1 if components == 1 else 3, plain, orientation, place, odd)


def _read_png(data: bytes) -> ImageHeader:
    """Read all chunks with their CRCs, of PNG and APNG. Raises struct.error where the file ends before the last one."""
    width, height, depth, colour = struct.unpack_from(">IIBB", data, 16)
    if data[12:16] != b"IHDR" or not width or not height:
        raise ImageError("unreadable", "the PNG has no usable IHDR")
    orientation, place, alpha, animated = 1, 0, colour in (4, 6), False
    offset, kind = 8, b""
    view = memoryview(data)
    while kind != b"IEND":  # Pillow leaves out the CRCs of the pixels, libpng (TensorFlow) stops at them
        length, kind = struct.unpack_from(">I4s", data, offset)
        (crc,) = struct.unpack_from(">I", data, offset + 8 + length)
        if zlib.crc32(view[offset + 4 : offset + 8 + length]) != crc:
            raise ImageError("unreadable", f"the CRC of the PNG's chunk {kind!r} at byte {offset} does not match")
        if kind == b"eXIf" and not place:
            orientation, place = _find_orientation(data, offset + 8, offset + 8 + length)
        alpha = alpha or kind == b"tRNS"
        animated = animated or kind == b"acTL"
        offset += 12 + length
    odd = _odd_cases(
        exif=orientation != 1, alpha=alpha, deep=depth == 16, greyscale=colour in (0, 4), animated=animated
    )
    plain = depth == 8 and not alpha and not animated
    return ImageHeader("png", width, height, 1 if colour in (0, 4) else 3, plain, orientation, place, odd)


def _read_webp(data: bytes) -> ImageHeader:
    """Read the chunks of the RIFF container and the first bytes of its bitstreams (RFC 9649).

    Raises struct.error or IndexError where the file ends within its header.
    """
    (size,) = struct.unpack_from("<I", data, 4)
    end = 8 + size
    if end > len(data):
        raise ImageError("truncated", f"the WebP says that it has {end} bytes; there are {len(data)}")
    offset, width, height = 12, 0, 0
    orientation, place, alpha, animated = 1, 0, False, False
    while offset + 8 <= end:
        kind, size = struct.unpack_from("<4sI", data, offset)
        body = offset + 8
        if body + size > end:
            raise ImageError("truncated", f"the WebP's chunk {kind!r} at byte {offset} goes past the end")
        if kind == b"VP8X":
            alpha, animated = bool(data[body] & 0x10), bool(data[body] & 0x02)
        if kind in _SIZES:
            found = _SIZES[kind](data, body)
            width, height = max(width, found[0]), max(height, found[1])
        if kind == b"VP8L":
            alpha = alpha or bool(data[body + 4] & 0x10)
        alpha, animated = alpha or kind == b"ALPH", animated or kind == b"ANMF"
        if kind == b"EXIF" and not place:
            start = body + 6 if data.startswith(b"Exif\0\0", body) else body  # some write JPEG's prefix here, too
            orientation, place = _find_orientation(data, start, body + size)
        offset = body + size + (size & 1)
    if not width or not height:
        raise ImageError("unreadable", "a WebP without a picture")
    odd = _odd_cases(exif=orientation != 1, alpha=alpha, animated=animated)
    return ImageHeader("webp", width, height, 3, not alpha and not animated, orientation, place, odd)


def _canvas_size(data: bytes, body: int) -> tuple[int, int]:
    width, height = data[body + 4 : body + 7], data[body + 7 : body + 10]
    return 1 + int.from_bytes(width, "little"), 1 + int.from_bytes(height, "little")


def _lossy_size(data: bytes, body: int) -> tuple[int, int]:
    start, width, height = struct.unpack_from("<3sHH", data, body + 3)
    if start != b"\x9d\x01\x2a":
        raise ImageError("unreadable", f"no VP8 key frame at byte {body}")
    return width & 0x3FFF, height & 0x3FFF


def _lossless_size(data: bytes, body: int) -> tuple[int, int]:
    signature, bits = struct.unpack_from("<BI", data, body)
    if signature != 0x2F:
        raise ImageError("unreadable", f"no VP8L signature at byte {body}")
    return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)


_SIZES = {b"VP8X": _canvas_size, b"VP8 ": _lossy_size, b"VP8L": _lossless_size}


def _read_bmp(data: bytes) -> ImageHeader:
    """Read OS/2 and Windows headers, in the variants that Pillow decodes.

    Raises struct.error where the file ends within its header.
    """
    (size,) = struct.unpack_from("<I", data, 14)
    alpha, colours = False, 0
    if size == 12:
        width, height, _, bits = struct.unpack_from("<HHHH", data, 18)
    else:
        width, height, _, bits, compression = struct.unpack_from("<iiHHI", data, 18)
        height = abs(height)  # negative: rows run from top to bottom
        (colours,) = struct.unpack_from("<I", data, 46)
        if compression == _BITFIELDS and bits == 32 and size >= 56:
            masks = struct.unpack_from("<4I", data, 54)
            alpha = masks[3] != 0 or not any(masks)
    if width <= 0 or height <= 0:
        raise ImageError("unreadable", f"the BMP's header says {width}x{height} pixels")
    grey = bits in (1, 4, 8) and _is_grey(data, 14 + size, 3 if size == 12 else 4, colours or 1 << bits)
    return ImageHeader("bmp", width, height, 1 if grey else 3, False, odd=_odd_cases(alpha=alpha, greyscale=grey))


def _is_grey(data: bytes, offset: int, step: int, colours: int) -> bool:
    """Return true for a palette of black and white, or of every level of grey in its place."""
    if colours > 256:
        return False
    levels = (0, 255) if colours == 2 else range(colours)
    return all(data[at : at + 3] == bytes([level] * 3) for at, level in zip(_count(offset, step), levels, strict=False))


def _count(start: int, step: int) -> range:
    return range(start, start + 256 * step, step)


def _read_gif(data: bytes) -> ImageHeader:
    """Read the screen, the first picture, and whether another one follows (GIF89a specification).

    Raises IndexError where the file ends before its first picture; what is cut off behind that is not missed.
    """
    width, height, flags = struct.unpack_from("<HHB", data, 6)
    palette, offset = _palette(data, 13, flags)
    transparent = False
    while data[offset] != 0x2C:
        if data[offset] == 0x3B:
            raise ImageError("unreadable", "a GIF without a picture")
        if data[offset] != 0x21:
            offset += 1
            continue
        if data[offset + 1] == 0xF9:
            transparent = bool(data[offset + 3] & 1)
        offset = _after_blocks(data, offset + 2)
    left, top, across, down, flags = struct.unpack_from("<HHHHB", data, offset + 1)
    own, offset = _palette(data, offset + 10, flags)
    width, height = max(width, left + across), max(height, top + down)  # as Pillow widens the screen
    if not width or not height:
        raise ImageError("unreadable", f"the GIF's header says {width}x{height} pixels")
    palette = own or palette
    grey = palette == _GREY_RAMP[: len(palette)]
    odd = _odd_cases(alpha=transparent, greyscale=grey, animated=_has_another_picture(data, offset + 1))
    return ImageHeader("gif", width, height, 1 if grey else 3, False, odd=odd)


def _palette(data: bytes, offset: int, flags: int) -> tuple[bytes, int]:
    """Return the colours, if there are any, and where they end."""
    stop = offset + (6 << (flags & 7) if flags & 0x80 else 0)
    return data[offset:stop], stop


def _after_blocks(data: bytes, offset: int) -> int:
    while data[offset]:
        offset += 1 + data[offset]
    return offset + 1


def _has_another_picture(data: bytes, offset: int) -> bool:
    try:
        offset = _after_blocks(data, offset)
        while data[offset] != 0x2C:
            if data[offset] == 0x3B:
                return False
            offset = _after_blocks(data, offset + 2) if data[offset] == 0x21 else offset + 1
    except IndexError:
        return False
    return True


def _read_tiff(data: bytes) -> ImageHeader:
    """Read the first directory through Pillow; several pages count as animated."""
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
    odd = _odd_cases(
        exif=orientation != 1,
        cmyk=mode == "CMYK",
        alpha=alpha,
        deep=bits > 8 or mode == "F",
        greyscale=grey,
        animated=_has_another_page(data),
    )
    return ImageHeader("tiff", width, height, 1 if grey else 3, False, orientation, odd=odd)


def _tag(image: Image.Image, number: int) -> int:
    value = image.tag_v2.get(number, 0)  # type: ignore[attr-defined]
    return int(value[0] if isinstance(value, tuple) else value)


def _has_another_page(data: bytes) -> bool:
    order = "<" if data[:2] == b"II" else ">"
    try:
        (start,) = struct.unpack_from(order + "I", data, 4)
        (entries,) = struct.unpack_from(order + "H", data, start)
        (following,) = struct.unpack_from(order + "I", data, start + 2 + 12 * entries)
    except struct.error:
        return False
    return bool(following)


_READERS = {
    "jpeg": _read_jpeg,
    "png": _read_png,
    "webp": _read_webp,
    "gif": _read_gif,
    "bmp": _read_bmp,
    "tiff": _read_tiff,
}
