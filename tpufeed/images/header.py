"""Read an image file's header without decoding: its size, and which odd cases it shows.

JPEG, PNG and WebP, whose bytes may be kept, are read here; Pillow reads BMP, GIF and TIFF.
"""

import io
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from PIL import Image, UnidentifiedImageError

from tpufeed.errors import ImageError
from tpufeed.images.jpeg_header import JPEG_START, read_jpeg_header
from tpufeed.images.unwritten import check_segments

Format = Literal["jpeg", "png", "webp", "bmp", "gif", "tiff"]
ALL_COEFFICIENTS = b"\0\x3f\0"  # what the header of a baseline file's scan ends with
_SEQUENTIAL = frozenset({0xC0, 0xC1})
_COMMON_FRAMES = frozenset({0xC0, 0xC1, 0xC2})  # Huffman-coded DCT; not every decoder knows arithmetic or lossless
_NO_ODD: tuple[str, ...] = ()
_ODD_CASES = ("exif", "cmyk", "alpha", "deep", "greyscale", "animated", "bands")
_GREY_MODES = ("1", "L", "LA", "La", "F")
# Bits a sample by colour type (PNG, 3rd edition, table 8).
_PNG_DEPTHS = {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}
_PNG_CRITICAL = (b"IHDR", b"PLTE", b"IDAT", b"IEND")
_TIFF_COLOURS = {2: 3, 3: 1, 5: 4, 6: 3, 8: 3}  # samples by photometric interpretation; 1 of all others
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
        odd: which of exif, cmyk, alpha, deep, greyscale, animated and bands the image shows, in this order. They follow
            from the header: an alpha channel that is opaque throughout is alpha.
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
    if start.startswith(JPEG_START):
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


def _odd_cases(**met: bool) -> tuple[str, ...]:
    """Return the names of the cases that are met, in the order of `ImageHeader.odd`."""
    return tuple(name for name in _ODD_CASES if met.get(name))


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
    """Read the segments up to the first scan.

    Raises ImageError where libjpeg assumes something, with a warning that is an error to strict decoders: `mending`
    writes what it assumes.
    """
    header = read_jpeg_header(data)
    orientation, place, profile = 1, 0, list[bytes]()
    jfif = adobe = b""
    if header.empty:
        raise ImageError("unreadable", f"the JPEG's segment at byte {header.empty} has no length")
    for marker, offset, length in header.applications:
        start = data[offset + 4 : offset + min(19, 2 + length)]
        if marker == 0xFFE1 and not place and start.startswith(b"Exif\0\0"):
            orientation, place = _find_orientation(data, offset + 10, offset + 2 + length)
        elif marker == 0xFFE0 and is_jfif(start):
            jfif = start
        elif marker == 0xFFEE and is_adobe(start):
            adobe = start
        elif marker == 0xFFE2 and is_icc(start):
            profile.append(start)
    if jfif and jfif[5] != 1:
        raise ImageError("unreadable", f"the JPEG says that it is of JFIF {jfif[5]}; there is only version 1")
    if adobe and not is_known_transform(adobe, header.components, bool(jfif)):
        raise ImageError(
            "unreadable", f"the JPEG's colours are transformed in the way {adobe[11]}, which Adobe has not"
        )
    if profile and not is_whole_profile(profile):
        raise ImageError("unreadable", "parts of the JPEG's ICC profile are misnumbered or missing")
    stop = header.scan + 8 + 2 * data[header.scan + 4]  # of the scan's header
    if header.kind in _SEQUENTIAL and data[stop - 3 : stop] != ALL_COEFFICIENTS:
        raise ImageError("unreadable", "the header of the JPEG's scan does not say that it has all coefficients")
    if data.rfind(b"\xff\xd9") < header.scan:
        raise ImageError("truncated", "the JPEG has no end marker; the file was cut short")
    components = header.components
    plain = header.kind in _COMMON_FRAMES and components != 4
    odd = _NO_ODD
    if components != 3 or orientation != 1:
        odd = _odd_cases(exif=orientation != 1, cmyk=components == 4, greyscale=components == 1)
    channels = 1 if components == 1 else 3
    return ImageHeader("jpeg", header.width, header.height, channels, plain, orientation, place, odd)


def is_jfif(segment: bytes) -> bool:
    """Return true for the contents of a JFIF segment; its sixth byte is the version, which is 1."""
    return segment.startswith(b"JFIF\0") and len(segment) >= 14


def is_adobe(segment: bytes) -> bool:
    """Return true for the contents of Adobe's segment; its twelfth byte is the transform of colours."""
    return segment.startswith(b"Adobe") and len(segment) >= 12


def is_icc(segment: bytes) -> bool:
    """Return true for the contents of a segment with a part of an ICC profile."""
    return segment.startswith(b"ICC_PROFILE\0") and len(segment) >= 14


def is_known_transform(adobe: bytes, components: int, jfif: bool) -> bool:
    """Return true unless libjpeg has to assume a transform of colours. JFIF has one, whatever Adobe's segment says."""
    return components == 1 or (components == 3 and jfif) or adobe[11] in ((0, 1) if components == 3 else (0, 2))


def is_whole_profile(segments: Sequence[bytes]) -> bool:
    """Return true where the parts of an ICC profile are all there once, by their numbers and their count."""
    numbers = sorted(segment[12:14] for segment in segments)
    in_turn = [bytes((number, len(segments) & 255)) for number in range(1, min(255, len(segments)) + 1)]
    return numbers == in_turn and any(len(segment) > 14 for segment in segments)


def _read_png(data: bytes) -> ImageHeader:
    """Read all chunks with their CRCs, of PNG and APNG. Raises struct.error where the file ends before the last one."""
    width, height, depth, colour, compression, filters, interlace = struct.unpack_from(">IIBBBBB", data, 16)
    if data[8:16] != b"\0\0\0\rIHDR" or not width or not height:
        raise ImageError("unreadable", "the PNG has no usable IHDR")
    if depth not in _PNG_DEPTHS.get(colour, ()) or compression or filters or interlace > 1:
        values = f"depth {depth}, colour {colour}, compression {compression}, filter {filters}, interlace {interlace}"
        raise ImageError("unreadable", f"the PNG's IHDR has values that there are not: {values}")
    orientation, place, alpha, animated = 1, 0, colour in (4, 6), False
    has_palette = has_pixels = False
    offset, kind = 8, b""
    view = memoryview(data)
    while kind != b"IEND":  # Pillow leaves out the CRCs of the pixels, libpng (TensorFlow) stops at them
        length, kind = struct.unpack_from(">I4s", data, offset)
        (crc,) = struct.unpack_from(">I", data, offset + 8 + length)
        if zlib.crc32(view[offset + 4 : offset + 8 + length]) != crc:
            raise ImageError("unreadable", f"the CRC of the PNG's chunk {kind!r} at byte {offset} does not match")
        if kind == b"IDAT":
            if colour == 3 and not has_palette:
                raise ImageError("unreadable", "the PNG has no palette before its pixels")
            has_pixels = True
        elif kind == b"PLTE":
            if has_palette or (colour == 3 and (has_pixels or length % 3 or not 3 <= length <= 768)):
                raise ImageError("unreadable", f"the PNG's palette at byte {offset} is no palette, or late")
            has_palette = True
        elif (kind not in _PNG_CRITICAL and not kind[0] & 0x20) or (kind == b"IHDR" and offset > 8):
            raise ImageError("unreadable", f"the PNG has a chunk {kind!r} at byte {offset}, which decoders refuse")
        elif kind == b"eXIf" and not place:
            orientation, place = _find_orientation(data, offset + 8, offset + 8 + length)
        alpha = alpha or kind == b"tRNS"
        animated = animated or kind == b"acTL"
        offset += 12 + length
    if not has_pixels:
        raise ImageError("truncated", "the PNG has no pixels")
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
        across = down = 0
        if kind == b"VP8X":  # of the canvas
            alpha, animated = bool(data[body] & 0x10), bool(data[body] & 0x02)
            across = 1 + int.from_bytes(data[body + 4 : body + 7], "little")
            down = 1 + int.from_bytes(data[body + 7 : body + 10], "little")
        elif kind == b"VP8 ":
            start, across, down = struct.unpack_from("<3sHH", data, body + 3)
            if start != b"\x9d\x01\x2a":
                raise ImageError("unreadable", f"no VP8 key frame at byte {body}")
            across, down = across & 0x3FFF, down & 0x3FFF
        elif kind == b"VP8L":
            signature, bits = struct.unpack_from("<BI", data, body)
            if signature != 0x2F:
                raise ImageError("unreadable", f"no VP8L signature at byte {body}")
            across, down = 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
            alpha = alpha or bool(data[body + 4] & 0x10)
        width, height = max(width, across), max(height, down)
        alpha, animated = alpha or kind == b"ALPH", animated or kind == b"ANMF"
        if kind == b"EXIF" and not place:
            start = body + 6 if data.startswith(b"Exif\0\0", body) else body  # some write JPEG's prefix here, too
            orientation, place = _find_orientation(data, start, body + size)
        offset = body + size + (size & 1)
    if not width or not height:
        raise ImageError("unreadable", "a WebP without a picture")
    odd = _odd_cases(exif=orientation != 1, alpha=alpha, animated=animated)
    return ImageHeader("webp", width, height, 3, not alpha and not animated, orientation, place, odd)


def _read_by_pillow(data: bytes, image_format: Format) -> ImageHeader:
    """Read a BMP, a GIF or a TIFF: the first frame or page, which also says if others follow.

    These are always decoded and encoded again, which costs far more than Pillow's parsing. A WebP may be kept: there
    Pillow's parsing would take 140 us where ours takes 4 us.
    """
    try:
        with Image.open(io.BytesIO(data), formats=(image_format,)) as image:
            (width, height), mode, alpha = image.size, image.mode, image.has_transparency_data
            animated = getattr(image, "is_animated", False)
            orientation, deep, bands = 1, mode == "F", False
            if image_format == "bmp":
                _check_bmp_size(image, len(data))
            if image_format == "tiff":
                tags: Any = image.tag_v2  # type: ignore[attr-defined]  # of TiffImageFile
                # Pillow's size is that of the turned image.
                values = (tags.get(tag, 0) for tag in (256, 257, 274))
                width, height, orientation = (int(v[0] if isinstance(v, tuple) else v) for v in values)
                orientation = orientation if 1 <= orientation <= 8 else 1
                deep = deep or max(tags.get(258, (1,))) > 8
                check_segments(tags, len(data))
                alpha = alpha and not has_unnamed_band(image)
                colours = _TIFF_COLOURS.get(tags.get(262), 1)
                bands = int(tags.get(277, 1)) > colours + (1 if alpha else 0)
    except ImageError:
        raise
    except UnidentifiedImageError as error:  # whose text has an address, which is another each time
        raise ImageError("unreadable", f"Pillow does not know this kind of {image_format}") from error
    except Image.DecompressionBombError as error:
        raise ImageError("too_large", f"too many pixels: {error}") from error
    except Exception as error:  # its plugins raise what they come across: TypeError, SyntaxError, struct.error, ...
        reason = "truncated" if isinstance(error, EOFError) or "truncated" in str(error) else "unreadable"
        raise ImageError(reason, f"the {image_format} header does not parse: {error}") from error
    if width <= 0 or height <= 0:
        raise ImageError("unreadable", f"the {image_format} header says {width}x{height} pixels")
    grey = mode in _GREY_MODES or mode.startswith("I")
    odd = _odd_cases(
        exif=orientation != 1,
        cmyk=mode == "CMYK",
        alpha=alpha,
        deep=deep,
        greyscale=grey,
        animated=animated,
        bands=bands,
    )
    return ImageHeader(image_format, width, height, 1 if grey else 3, False, orientation, odd=odd)


def _check_bmp_size(image: Any, size: int) -> None:
    """Raise ImageError for a BMP of `size` bytes that says it has more pixels: Pillow would allocate all of them."""
    codec, _, start, arguments = image.tile[0]
    if codec == "raw" and start + arguments[1] * (image.height - 1) >= size:
        raise ImageError("truncated", f"the BMP says that it has {image.width}x{image.height} pixels, and ends before")


def has_unnamed_band(image: Image.Image) -> bool:
    """Return true for a TIFF with a fourth band of which no tag says that it is alpha, as Pillow takes it to be."""
    return image.format == "TIFF" and 338 not in image.tag_v2  # type: ignore[attr-defined]  # of TiffImageFile


_READERS: dict[Format, Callable[[bytes], ImageHeader]] = {
    "jpeg": _read_jpeg,
    "png": _read_png,
    "webp": _read_webp,
    "gif": partial(_read_by_pillow, image_format="gif"),
    "bmp": partial(_read_by_pillow, image_format="bmp"),
    "tiff": partial(_read_by_pillow, image_format="tiff"),
}
