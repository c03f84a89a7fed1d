"""Read an image file's header without decoding: its size, its odd cases, and what no decoder should be given.

JPEG, PNG and WebP, whose bytes may be kept, are read here. Pillow reads BMP, GIF and TIFF, and `modern` AVIF, HEIC and
JPEG XL.

A JPEG's segments are read once, as libjpeg finds them, into a `JpegHeader` for all users. Files that would crash or
stall a decoder are refused. libjpeg-turbo 3 decodes lossless JPEGs, but never at 1/2, 1/4 or 1/8: when
simplejpeg asked for that, it wrote the whole image into memory for a reduced one. And a scan of a progressive JPEG
needs 3 bytes for 32,767 blocks, so a file of 150 KB kept a decoder busy for 16 s.
"""

import io
import logging
import re
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
from PIL import Image, UnidentifiedImageError

from tpufeed.errors import ImageError
from tpufeed.images.modern import MODERN, read_modern, sniff_modern
from tpufeed.images.tensors import NPY_START, read_npy_header
from tpufeed.images.unwritten import check_segments

# Our errors have what these log. Without a handler Python would print the log to stderr, once per file.
for _name in ("PIL.TiffImagePlugin", "tifffile"):
    logging.getLogger(_name).addHandler(logging.NullHandler())

Format = Literal["jpeg", "png", "webp", "bmp", "gif", "tiff", "avif", "heic", "jxl", "dct", "npy", "dicom", "jp2"]
MAX_PIXELS = 178_956_970  # Pillow, too, takes larger images for an attack
JPEG_START = b"\xff\xd8\xff"
DCT_START = b"\x89DCT"  # images of caches, see `coefficients`
DICOM_MARK = b"DICM"  # after 128 bytes of anything
CODESTREAM, BOXES = b"\xff\x4f\xff\x51", b"\0\0\0\x0cjP  "  # of JPEG 2000
ALL_COEFFICIENTS = b"\0\x3f\0"  # the end of a scan's header in a baseline file
SEQUENTIAL = frozenset({0xC0, 0xC1})
_COMMON_FRAMES = frozenset({0xC0, 0xC1, 0xC2})  # Huffman-coded DCT. Not all decoders support arithmetic or lossless
_ODD_CASES = ("exif", "cmyk", "alpha", "deep", "greyscale", "animated", "bands")
_GREY_MODES = ("1", "L", "LA", "La", "F")
# Bits per sample by colour type (PNG, 3rd edition, table 8).
_PNG_DEPTHS = {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}
_PNG_CRITICAL = (b"IHDR", b"PLTE", b"IDAT", b"IEND")
# The types of TIFF in which Pillow takes an orientation: SHORT, LONG, SBYTE, SSHORT, SLONG and IFD.
_INTEGERS = {3: "H", 4: "I", 6: "b", 8: "h", 9: "i", 13: "I"}
_TIFF_COLOURS = {2: 3, 3: 1, 5: 4, 6: 3, 8: 3}  # samples per pixel by photometric interpretation, if not 1
_SEGMENT = struct.Struct(">HH")  # its marker and its length
_INTERVAL = struct.Struct(">H")
_DCT_SIZE = struct.Struct("<HH")
_FRAME = struct.Struct(">HHB")  # height, width, components, after the precision
_FILL = re.compile(rb"\xff*")
_NEXT = re.compile(rb"\xff[^\x00\x01\xff\xd0-\xd7]")  # after a scan: no stuffed byte, no restart marker
_MCUS = {  # by the factors of 4:4:4, 4:2:2, 4:4:0, 4:2:0 and 4:1:1
    bytes((across << 4 | down, 0x11, 0x11)): (8 * down, 8 * across)
    for across, down in ((1, 1), (2, 1), (1, 2), (2, 2), (4, 1))
}
_TABLES = frozenset({0xFFC4, 0xFFDB})
_NOTES = frozenset({*range(0xFFE0, 0xFFF0), 0xFFFE})
_JFIF, _EXIF, _ICC, _ADOBE = 0xFFE0, 0xFFE1, 0xFFE2, 0xFFEE
_START_OF_FRAME = frozenset(range(0xFFC0, 0xFFD0)) - {0xFFC4, 0xFFC8, 0xFFCC}
_STANDALONE = frozenset({0xFF01, *range(0xFFD0, 0xFFD8)})
_START, _END, _SCAN, _RESTART_INTERVAL, _FILLED = 0xFFD8, 0xFFD9, 0xFFDA, 0xFFDD, 0xFFFF
_SCAN_BYTES = np.uint16(0xDAFF)  # as a little-endian number
LOSSLESS = 0xC3
_HUFFMAN = frozenset({0xC0, 0xC1, 0xC2, LOSSLESS})
_ARITHMETIC = frozenset({0xC9, 0xCA})
_PROGRESSIVE = frozenset({0xC2, 0xCA})
# libjpeg-turbo's own tools have this limit, too. Photographs have about 10 scans, mozjpeg's at most 15.
_MOST_SCANS = 500
# A scan takes up to 50 ns for each block of 64 pixels, even if it has no bytes for the block. All scans together may
# have this many blocks (less than a second), or this many times the blocks of the image.
_MOST_PASSED, _MOST_PASSES = 16_000_000, 10
_ARITHMETIC_COST = 8  # times that of Huffman codes: a block may have 63 decisions that take no bytes
_STARTS: tuple[tuple[bytes, Format], ...] = (
    (JPEG_START, "jpeg"),
    (b"\x89PNG\r\n\x1a\n", "png"),
    (DCT_START, "dct"),
    (b"GIF87a", "gif"),
    (b"GIF89a", "gif"),
    (b"II*\0", "tiff"),
    (b"MM\0*", "tiff"),
    (b"II+\0", "tiff"),  # BigTIFF
    (b"MM\0+", "tiff"),
    (NPY_START, "npy"),
    (b"BM", "bmp"),
)
_SUFFIXES: dict[str, Format] = {
    **dict.fromkeys(("jpg", "jpeg", "jpe", "jfif"), "jpeg"),
    **dict.fromkeys(("png", "apng"), "png"),
    "webp": "webp",
    "gif": "gif",
    **dict.fromkeys(("bmp", "dib"), "bmp"),
    **dict.fromkeys(("tif", "tiff"), "tiff"),
    "avif": "avif",
    **dict.fromkeys(("heic", "heif", "hif"), "heic"),
    "jxl": "jxl",
    "npy": "npy",
    **dict.fromkeys(("dcm", "dicom"), "dicom"),
    **dict.fromkeys(("jp2", "j2k"), "jp2"),
}


class JpegHeader(NamedTuple):
    """The header of a JPEG, up to its first scan.

    Attributes:
        kind: the second byte of its frame's marker: 0xC0 and 0xC1 are baseline, 0xC2 progressive. 0xC3 is lossless: the
            decoder cannot reduce the image, and must not be asked to.
        height: height in pixels. `width` likewise.
        components: 1, 3 or 4.
        frame: offset of the frame's marker.
        scan: offset of the first scan's marker.
        scanned: the number of components in the first scan.
        notes: (marker, offset, length) of each segment of application data and each comment, as stored. The offset is
            that of the marker.
        interval: MCUs of a restart interval, or 0 without one.
        empty: offset of the first segment with a length below 2, or 0.
        mcu: (height, width) of an MCU in pixels, or None unless it is a baseline JPEG of one scan with a common
            subsampling, and all other segments are tables.
    """

    kind: int
    height: int
    width: int
    components: int
    frame: int
    scan: int
    scanned: int
    notes: list[tuple[int, int, int]]
    interval: int
    empty: int
    mcu: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class ImageHeader:
    """Format, size and odd cases of an image.

    Attributes:
        width: width of the stored pixels, before any EXIF orientation. `height` likewise.
        channels: 1 or 3, as `decoding.decode_stored` gives them: alpha is gone, palettes and CMYK are RGB. Of an image
            that is kept as it is, all that it has.
        plain: True if its own bytes decode to 8-bit grey or RGB in any decoder, except for an orientation: they may be
            kept.
        orientation: orientation by EXIF, TIFF or AVIF, 1 to 8, or 1 for HEIC and JPEG XL, as their decoders turn them.
        orientation_at: offset of the one byte of the file that holds the orientation, or 0 without one.
        odd: which of exif, cmyk, alpha, deep, greyscale, animated and bands the image has, in this order, by its
            header: a fully opaque alpha channel is alpha, too.
        jpeg: the header of a JPEG, or None for other formats.
    """

    format: Format
    width: int
    height: int
    channels: int
    plain: bool
    orientation: int = 1
    orientation_at: int = 0
    odd: tuple[str, ...] = ()
    jpeg: JpegHeader | None = field(default=None, compare=False, repr=False)


def read_header(data: bytes) -> ImageHeader:
    """Read the header of an image in any of the supported formats.

    Raises:
        ImageError: zero_bytes, not_an_image, unreadable, unsupported, or truncated if the header or the end of a JPEG,
            PNG or WebP is missing.
    """
    image_format = sniff(data)
    if image_format is None:
        if not data:
            raise ImageError("zero_bytes", "the file is empty")
        kept = "JPEG 2000" if data.startswith((CODESTREAM, BOXES)) else "DICOM" if data[128:132] == DICOM_MARK else ""
        more = f". It is a {kept}, which --pixels keep reads" if kept else ""
        raise ImageError("not_an_image", f"no image format that tpufeed reads starts with {data[:8]!r}{more}")
    try:
        if image_format in MODERN:
            return _read_modern(data, image_format)
        reader = _READERS.get(image_format)
        return _read_by_pillow(data, image_format) if reader is None else reader(data)
    except (IndexError, struct.error) as error:
        raise ImageError("truncated", f"the file ends within its {image_format} header") from error


def sniff(data: bytes | memoryview) -> Format | None:
    """Return the format by the first bytes, as file names may lie."""
    start = bytes(data[:12])
    if start.startswith(b"RIFF") and start[8:] == b"WEBP":
        return "webp"
    return next((found for begin, found in _STARTS if start.startswith(begin)), None) or sniff_modern(data)


def format_of_name(name: str) -> Format | None:
    """Return the format that a file's name promises, or None if its suffix names no format."""
    return _SUFFIXES.get(name.rpartition(".")[2].lower())


def _odd_cases(**met: bool) -> tuple[str, ...]:
    """Return the names of the cases that are met, in the order of `ImageHeader.odd`."""
    return tuple(name for name in _ODD_CASES if met.get(name))


def _find_orientation(data: bytes, start: int, stop: int) -> tuple[int, int]:
    """Return value and offset of tag 0x0112 in IFD0 of the TIFF structure at `[start, stop)`. `(1, 0)` without it.

    A damaged block counts as one without the tag (Exif 2.32, section 4.6). The offset is that of the byte that holds
    the value, in either byte order and width.
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
            if tag == 0x0112 and kind in _INTEGERS:  # it should be a SHORT. Cameras and tools write others
                form = _INTEGERS[kind]
                (value,) = struct.unpack_from(order + form, data, entry + 8)
                if not 1 <= value <= 8:
                    break
                return value, entry + 8 + (0 if little else struct.calcsize("=" + form) - 1)
    except struct.error:
        pass
    return 1, 0


def read_jpeg_header(data: bytes | memoryview, check_scans: bool = True) -> JpegHeader:
    """Read a JPEG's segments up to the first scan, and refuse what no decoder should be given.

    Args:
        data: a JPEG.
        check_scans: True to refuse too many scans. False saves the search if the file will not be decoded.

    Raises:
        ImageError: unreadable, truncated (also if the file is too short for its blocks), unsupported (if it is
            hierarchical, or does not have 8 bits per channel and 1, 3 or 4 channels), or too_large, if it has too many
            pixels, or too many scans for them.
    """
    try:
        header = _walk_jpeg(data)
    except (struct.error, IndexError) as error:
        raise ImageError("truncated", "the file ends within its jpeg header") from error
    kind, height, width, components = header[:4]
    if not height or not width:
        raise ImageError("unreadable", f"the JPEG's header says {width}x{height} pixels")
    if kind not in _HUFFMAN and kind not in _ARITHMETIC:
        raise ImageError("unsupported", f"a JPEG of the kind SOF{kind - 0xC0}, which no decoder here supports")
    if (precision := data[header.frame + 4]) != 8:
        raise ImageError("unsupported", f"a JPEG of {precision} bits a channel: only 8 are decoded")
    if components not in (1, 3, 4):
        raise ImageError("unsupported", f"a JPEG of {components} channels: only 1, 3 or 4 are decoded")
    if height * width > MAX_PIXELS:
        raise ImageError("too_large", f"too many pixels: {height} x {width}, at most {MAX_PIXELS}")
    has_scans = check_scans and (header.scanned != components or kind in _PROGRESSIVE)
    # Each block has at least a bit for its DC level, and one for its AC levels except in progressive scans. With a
    # header that promises more, the decoder would make a grey image, or a gigabyte of coefficients.
    room = (len(data) - header.scan) * (8 if kind in (0xC2, LOSSLESS) else 4)
    most_blocks = components * -(-height // 8) * -(-width // 8)  # to count them takes 3 us
    if has_scans or most_blocks > room:
        blocks = _count_blocks(data, header)
        if kind in _HUFFMAN and sum(blocks.values()) > room:
            raise ImageError("truncated", f"{len(data)} bytes cannot hold {width}x{height} pixels: it was cut short")
        if has_scans:
            _check_scans(data, header, blocks)
    return header


def _walk_jpeg(data: bytes | memoryview) -> JpegHeader:
    """Find the segments up to the first scan. One with a length below 2 ends after its length field, as in libjpeg.

    Raises struct.error or IndexError if the file ends before the scan.
    """
    notes: list[tuple[int, int, int]] = []  # list[...]() takes 0.3 us
    offset, frame, interval, empty, is_usual = 2, 0, 0, 0, True
    while True:
        marker, length = _SEGMENT.unpack_from(data, offset)
        if marker not in _TABLES:
            if marker in _NOTES:
                notes.append((marker, offset, length))
            elif marker == _SCAN:
                break
            elif marker in _START_OF_FRAME and not frame:
                frame = offset
            elif marker == _RESTART_INTERVAL:
                (interval,) = _INTERVAL.unpack_from(data, offset + 4)
            else:
                is_usual = False
                if marker in _STANDALONE:
                    offset += 2
                    continue
                if marker == _FILLED:
                    offset = _FILL.match(data, offset).end() - 1  # type: ignore[union-attr]  # it may match nothing
                    continue
                if marker < 0xFF02 or marker in (_START, _END) or marker in _START_OF_FRAME:
                    raise ImageError("unreadable", f"no JPEG marker at byte {offset}, or one too many")
        if length < 2:
            empty, length = empty or offset, 2
        offset += 2 + length
    if not frame:
        raise ImageError("unreadable", "a JPEG without a frame header")
    height, width, components = _FRAME.unpack_from(data, frame + 5)
    kind, scanned = data[frame + 1], data[offset + 4]
    is_plain = is_usual and not empty and kind in SEQUENTIAL and scanned == components
    at = slice(frame + 11, frame + 10 + 3 * components, 3)
    # A single component is never interleaved: its MCU is a block, whatever its factors.
    mcu = None if not is_plain else (8, 8) if components == 1 else _MCUS.get(bytes(data[at]))
    return JpegHeader(kind, height, width, components, frame, offset, scanned, notes, interval, empty, mcu)


def _count_blocks(data: bytes | memoryview, header: JpegHeader) -> dict[int, int]:
    """Return the blocks of each component by its id (T.81, A.1.1), in a lossless JPEG 64 pixels count as a block."""
    factors = bytes(data[header.frame + 10 : header.frame + 10 + 3 * header.components])
    if len(factors) != 3 * header.components:
        raise ImageError("truncated", "the file ends within its jpeg header")
    across, down = [factor >> 4 for factor in factors[1::3]], [factor & 15 for factor in factors[1::3]]
    if not all(1 <= factor <= 4 for factor in (*across, *down)):
        raise ImageError("unreadable", "the JPEG's sampling factors are not between 1 and 4")
    widest, highest = 8 * max(across), 8 * max(down)
    return {
        name: -(-header.width * h // widest) * -(-header.height * v // highest)
        for name, h, v in zip(factors[::3], across, down, strict=True)
    }


def _check_scans(data: bytes | memoryview, header: JpegHeader, blocks: dict[int, int]) -> None:
    """Raise ImageError if decoding all scans would take too long for the size of the image."""
    cost = _ARITHMETIC_COST if header.kind in _ARITHMETIC else 1
    all_blocks = sum(blocks.values()) * cost
    most = max(_MOST_PASSED, _MOST_PASSES * all_blocks)
    # Including scans of pictures after the end marker. bytes.count takes eight times as long.
    most_scans = sum(
        np.count_nonzero(np.frombuffer(data, "<u2", (len(data) - start) // 2, start) == _SCAN_BYTES)
        for start in (header.scan, header.scan + 1)
    )
    if most_scans <= _MOST_SCANS and most_scans * all_blocks <= most:
        return
    passed = 0
    for scans, names in enumerate(_scans(bytes(data), header.scan), 1):
        passed += cost * sum(blocks.get(name, 0) for name in names)
        if scans > _MOST_SCANS or passed > most:
            raise ImageError(
                "too_large",
                f"{most_scans} scans of {header.width}x{header.height} pixels take too long to decode, at most "
                f"{_MOST_SCANS} scans are decoded, and {most // all_blocks} if each has all of these pixels",
            )


def _scans(data: bytes, offset: int) -> Iterator[bytes]:
    """Yield the ids of the components in each scan, the first of which has its marker at `offset`."""
    while True:
        stop = offset + 2 + max(2, int.from_bytes(data[offset + 2 : offset + 4], "big"))
        yield data[offset + 5 : min(stop, offset + 5 + 2 * data[offset + 4]) : 2] if offset + 4 < len(data) else b""
        while True:
            found = _NEXT.search(data, stop)
            if found is None or data[found.start() + 1] == 0xD9:
                return
            offset = found.start()
            if data[offset + 1] == 0xDA:
                break
            stop = offset + 2 + max(2, int.from_bytes(data[offset + 2 : offset + 4], "big"))


def _read_jpeg(data: bytes) -> ImageHeader:
    """Read a JPEG's header, and its application data.

    Raises ImageError if libjpeg would assume something and warn: an error for strict decoders. `mending`
    writes what libjpeg assumes into a copy.
    """
    header = read_jpeg_header(data)
    if header.empty:
        raise ImageError("unreadable", f"the JPEG's segment at byte {header.empty} has no length")
    orientation, place = 1, 0
    for marker, offset, length in header.notes:
        if marker == _EXIF and not place and data.startswith(b"Exif\0\0", offset + 4, offset + 2 + length):
            orientation, place = _find_orientation(data, offset + 10, offset + 2 + length)
    colours = find_colour_notes(data, header)
    if colours.jfif and (version := data[colours.jfif[-1] + 5]) != 1:
        raise ImageError("unreadable", f"the JPEG says that it is of JFIF {version}. There is only version 1")
    if not colours.is_known_transform:
        transform = data[colours.adobe + 11]
        raise ImageError(
            "unreadable", f"the JPEG's colours have the transform {transform}, which Adobe does not define"
        )
    if not colours.is_whole_profile:
        raise ImageError("unreadable", "parts of the JPEG's ICC profile are misnumbered or missing")
    stop = header.scan + 8 + 2 * header.scanned  # of the scan's header
    if header.kind in SEQUENTIAL and data[stop - 3 : stop] != ALL_COEFFICIENTS:
        raise ImageError("unreadable", "the header of the JPEG's scan does not say that it has all coefficients")
    if data.rfind(b"\xff\xd9") < header.scan:
        raise ImageError("truncated", "the JPEG has no end marker. The file was cut short")
    components = header.components
    plain = header.kind in _COMMON_FRAMES and components != 4
    odd: tuple[str, ...] = ()
    if components != 3 or orientation != 1:
        odd = _odd_cases(exif=orientation != 1, cmyk=components == 4, greyscale=components == 1)
    channels = 1 if components == 1 else 3
    return ImageHeader("jpeg", header.width, header.height, channels, plain, orientation, place, odd, header)


class ColourNotes(NamedTuple):
    """The segments of a JPEG that tell the meaning of its colours.

    Attributes:
        jfif: offset of the contents of each JFIF segment. The sixth byte is the version, 1.
        adobe: offset of the contents of Adobe's last segment, whose twelfth byte is the colour transform, or 0.
        profile: (start, stop) of each segment with a part of an ICC profile, including its marker.
        is_known_transform: True if libjpeg need not guess the transform: JFIF has one, whatever Adobe's segment says.
        is_whole_profile: True if each part of the profile is there once, by its number and the count, or there is no
            profile.
    """

    jfif: list[int]
    adobe: int
    profile: list[tuple[int, int]]
    is_known_transform: bool
    is_whole_profile: bool


def find_colour_notes(data: bytes | bytearray, header: JpegHeader) -> ColourNotes:
    """Find the segments among `header.notes` that tell the meaning of colours."""
    jfif: list[int] = []
    adobe, profile = 0, []
    for marker, offset, length in header.notes:
        start, stop = offset + 4, offset + 2 + length
        if marker == _JFIF and length >= 16 and data.startswith(b"JFIF\0", start):
            jfif.append(start)
        elif marker == _ADOBE and length >= 14 and data.startswith(b"Adobe", start):
            adobe = start
        elif marker == _ICC and length >= 16 and data.startswith(b"ICC_PROFILE\0", start):
            profile.append((offset, stop))
    is_known = is_whole = True
    if adobe and header.components > 1 and not (header.components == 3 and jfif):
        is_known = data[adobe + 11] in ((0, 1) if header.components == 3 else (0, 2))
    if profile:
        numbers = sorted(data[start + 16 : start + 18] for start, _ in profile)
        in_turn = [bytes((number, len(profile) & 255)) for number in range(1, min(255, len(profile)) + 1)]
        is_whole = numbers == in_turn and any(stop - start > 18 for start, stop in profile)
    return ColourNotes(jfif, adobe, profile, is_known, is_whole)


def _read_png(data: bytes) -> ImageHeader:
    """Read all chunks with their CRCs, of PNG and APNG. Raises struct.error if the file ends early."""
    width, height, depth, colour, compression, filters, interlace = struct.unpack_from(">IIBBBBB", data, 16)
    if data[8:16] != b"\0\0\0\rIHDR" or not width or not height:
        raise ImageError("unreadable", "the PNG has no usable IHDR")
    if depth not in _PNG_DEPTHS.get(colour, ()) or compression or filters or interlace > 1:
        values = f"depth {depth}, colour {colour}, compression {compression}, filter {filters}, interlace {interlace}"
        raise ImageError("unreadable", f"the PNG's IHDR has undefined values: {values}")
    orientation, place, alpha, animated = 1, 0, colour in (4, 6), False
    has_palette = has_pixels = False
    offset, kind = 8, b""
    view = memoryview(data)
    while kind != b"IEND":  # Pillow ignores CRCs of pixels, libpng (TensorFlow) fails
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
                raise ImageError("unreadable", f"the PNG's palette at byte {offset} is invalid, or late")
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

    Raises struct.error or IndexError if the file ends within its header.
    """
    (size,) = struct.unpack_from("<I", data, 4)
    end = 8 + size
    if end > len(data):
        raise ImageError("truncated", f"the WebP says that it has {end} bytes, but there are {len(data)}")
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
            start = body + 6 if data.startswith(b"Exif\0\0", body) else body  # some write the prefix of JPEG here, too
            orientation, place = _find_orientation(data, start, body + size)
        offset = body + size + (size & 1)
    if not width or not height:
        raise ImageError("unreadable", "a WebP without a picture")
    odd = _odd_cases(exif=orientation != 1, alpha=alpha, animated=animated)
    return ImageHeader("webp", width, height, 3, not alpha and not animated, orientation, place, odd)


def _read_by_pillow(data: bytes, image_format: Format) -> ImageHeader:
    """Read a BMP, a GIF or a TIFF: its first frame or page. The result also says if others follow.

    These are always decoded and encoded again. That costs far more than Pillow's parsing. A WebP may be kept: Pillow
    would take 140 us to parse it, and `_read_webp` takes 4 us.
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
                animated = animated and _has_full_page(image)
    except ImageError:
        raise
    except UnidentifiedImageError as error:  # its text has an address that differs each time
        more = (
            ". --pixels keep reads uint8, uint16 and float32 of any bands, without a palette"
            if image_format == "tiff"
            else ""
        )
        raise ImageError("unreadable", f"Pillow does not know this kind of {image_format}{more}") from error
    except Image.DecompressionBombError as error:
        raise ImageError("too_large", f"too many pixels: {error}") from error
    except Exception as error:  # its plugins raise all kinds of errors: TypeError, SyntaxError, struct.error, ...
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


def _has_full_page(image: Any) -> bool:
    """Return True if a page of a TIFF beyond the first is neither a smaller copy, as in GeoTIFF, nor a mask."""
    for number in range(1, image.n_frames):
        image.seek(number)
        if not image.tag_v2.get(254, 0) & 5:
            return True
    return False


def _read_modern(data: bytes, image_format: Format) -> ImageHeader:
    """Read an AVIF, HEIC or JPEG XL. Raises IndexError or struct.error if a JPEG XL ends early."""
    (width, height), orientation, odd = read_modern(data, image_format)
    if width * height > MAX_PIXELS:
        raise ImageError("too_large", f"too many pixels: {height} x {width}, at most {MAX_PIXELS}")
    channels, cases = 1 if odd["greyscale"] else 3, _odd_cases(exif=orientation != 1, **odd)
    return ImageHeader(image_format, width, height, channels, False, orientation, odd=cases)


def _check_bmp_size(image: Any, size: int) -> None:
    """Raise ImageError for a BMP of `size` bytes that says it has more pixels: Pillow would allocate all of them."""
    codec, _, start, arguments = image.tile[0]
    if codec == "raw" and start + arguments[1] * (image.height - 1) >= size:
        raise ImageError("truncated", f"the BMP says that it has {image.width}x{image.height} pixels, and ends before")


def has_unnamed_band(image: Image.Image) -> bool:
    """Return True for a TIFF with a fourth band that Pillow takes for alpha, though no tag says so."""
    return image.format == "TIFF" and 338 not in image.tag_v2  # type: ignore[attr-defined]  # of TiffImageFile


def read_dct_size(data: bytes | memoryview) -> tuple[int, int]:
    """Return (height, width) of a DCT image (docs/format.md). Raises struct.error."""
    return _DCT_SIZE.unpack_from(data, 8)


def _read_dct(data: bytes) -> ImageHeader:
    height, width = read_dct_size(data)
    return ImageHeader("dct", width, height, 3 if data[4] else 1, False)


def _read_npy(data: bytes) -> ImageHeader:
    shape = (*read_npy_header(data).shape, 1, 1, 1)
    return ImageHeader("npy", shape[1], shape[0], shape[2], False)


_READERS: dict[Format, Callable[[bytes], ImageHeader]] = {
    "jpeg": _read_jpeg,
    "png": _read_png,
    "webp": _read_webp,
    "dct": _read_dct,
    "npy": _read_npy,
}
