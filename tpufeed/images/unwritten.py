"""Load an image through Pillow, and refuse it if rows are missing.

Pillow and libtiff accept some files that end early. Rows that they do not write are black in a PNG, transparent in a
GIF, and whatever the memory held before in a TIFF.
"""

import io
import struct
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from tpufeed.errors import ImageError

PNG_SCALES = {"L;2": 85, "L;4": 17}  # by which Pillow multiplies samples of 2 and 4 bits
_PART_BYTES = 1 << 20
_PNG_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
_ADAM7 = ((0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1))
_MOST_TILE_BYTES = 1 << 26
_CCITT = (2, 3, 4)
_REVERSED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))
# The codes of ITU-T T.4 and T.6 that rows of one colour need, by the pixels of a run.
_WHITE = {0: "00110101", 1: "000111", 2: "0111", 4: "1011", 8: "10011", 16: "101010", 32: "00011011", 64: "11011"}
_BLACK = {0: "0000110111", 1: "010", 2: "11", 4: "011", 8: "000101", 16: "0000010111", 32: "000001101010"}
_BLACK[64] = "0000001111"
_END_OF_LINE, _HORIZONTAL, _AS_ABOVE = "000000000001", "001", "1"


def load_whole(image: Image.Image, data: bytes | memoryview) -> None:
    """Load an image that Pillow has opened from `data`. Raises ImageError if rows are missing, and what Pillow does.

    Good files cost no more than `load` does: rows are only counted if one looks unwritten.
    """
    if image.format == "TIFF":
        check_segments(image.tag_v2, len(data))  # type: ignore[attr-defined]  # of TiffImageFile
        image.load()
        return
    tile = getattr(image, "tile", None)  # a JPEG XL has none
    extents = tile[0][1] if tile else None
    image.load()
    if image.format == "PNG":
        last = image.crop((0, image.height - 1, *image.size)).tobytes()
        if image.info.get("interlace") or not last.strip(b"\0"):
            check_png_rows(data)
    elif image.format == "GIF" and extents is not None and image.mode in ("L", "P"):
        left, top, right, bottom = extents
        unwritten = image.info.get("transparency", 0)
        if (np.asarray(image)[top:bottom, left:right] == unwritten).all(1).any():
            _check_gif_rows(bytes(data), (slice(top, bottom), slice(left, right)))


def check_png_rows(data: bytes | memoryview) -> None:
    """Inflate the pixels of a PNG without decoding them, in half the time, and count their bytes.

    Only their length, zlib's checksum, and the filters of rows can be wrong.

    Raises:
        ImageError: truncated, unreadable.
    """
    width, height, depth, colour, _, _, interlace = struct.unpack_from(">IIBBBBB", data, 16)
    bits = depth * _PNG_CHANNELS[colour]
    passes = _ADAM7 if interlace else ((0, 0, 1, 1),)
    sizes = [(-(-(height - top) // down), -(-(width - left) // across)) for top, left, down, across in passes]
    expected = sum(rows * (1 + (columns * bits + 7) // 8) for rows, columns in sizes if rows > 0 and columns > 0)
    stride = 1 + (width * bits + 7) // 8
    inflate, found = zlib.decompressobj(), 0
    try:
        for piece in _iter_pixels(data):
            left: bytes | memoryview = piece
            while left and found <= expected:
                part = inflate.decompress(left, _PART_BYTES)
                left = inflate.unconsumed_tail
                if not interlace and max(part[-found % stride :: stride], default=0) > 4:
                    raise ImageError("unreadable", "a row of the PNG has an undefined filter")
                found += len(part)
    except zlib.error as error:
        raise ImageError("unreadable", f"the PNG's pixels do not inflate: {error}") from error
    if found < expected or not (inflate.eof or found > expected):
        raise ImageError("truncated", f"the PNG's pixels end after {found} of {expected} bytes, or without checksum")


def one_pixel_of(data: bytes) -> bytes:
    """Return a copy of a PNG with a single pixel, to parse everything else in the file quickly."""
    depth, colour = data[24:26]
    header = _png_chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, depth, colour, 0, 0, 0))
    pixel = _png_chunk(b"IDAT", zlib.compress(bytes(1 + (depth * _PNG_CHANNELS[colour] + 7) // 8), 0))
    spans = [(start, stop) for kind, start, stop in _iter_chunks(memoryview(data)) if kind == b"IDAT"]
    first, last = spans[0][0], spans[-1][1]
    return b"".join((data[:8], header, data[33:first], pixel, data[last:]))


def plain_png_of(data: bytes) -> bytes:
    """Return a copy of a PNG without what is not needed for its samples: libpng prints what is wrong with the rest."""
    chunks = _iter_chunks(memoryview(data))
    return data[:8] + b"".join(data[start:stop] for kind, start, stop in chunks if not kind[0] & 0x20)


def _png_chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def _iter_chunks(view: memoryview) -> Iterator[tuple[bytes, int, int]]:
    """Yield kind, start and stop of each chunk of a PNG, without checking CRCs."""
    offset = 8
    while offset + 8 <= len(view):
        length, kind = struct.unpack_from(">I4s", view, offset)
        yield kind, offset, offset + 12 + length
        offset += 12 + length


def _iter_pixels(data: bytes | memoryview) -> Iterator[memoryview]:
    """Yield the contents of a PNG's first consecutive IDAT chunks: decoders read no others."""
    view, seen = memoryview(data), False
    for kind, start, stop in _iter_chunks(view):
        if kind == b"IDAT":
            seen = True
            yield view[start + 8 : stop - 4]
        elif seen:
            return


def _check_gif_rows(data: bytes, place: tuple[slice, slice]) -> None:
    """Decode over two different colours. Raises ImageError if they show at `place`, the frame's rectangle."""
    offset = 13 + (3 * 2 ** ((data[10] & 7) + 1) if data[10] & 0x80 else 0)
    while data[offset] != 0x2C:  # extensions, up to the first frame
        offset += 2
        while data[offset]:
            offset += 1 + data[offset]
        offset += 1
    found = []
    for colour in (0, 1):
        control = bytes((0x21, 0xF9, 4, 1, 0, 0, colour, 0))
        with Image.open(io.BytesIO(data[:offset] + control + data[offset:]), formats=("GIF",)) as image:
            found.append(np.asarray(image)[place])
    if not np.array_equal(found[0], found[1]):
        raise ImageError("truncated", "the pixels of the GIF end before its last row")


def check_segments(tags: Any, size: int) -> None:
    """Check the strips or tiles of a TIFF of `size` bytes by its tags, before Pillow allocates what those ask for.

    Raises:
        ImageError: truncated, too_large, unreadable.
    """
    width, height, across, down, _, starts, lengths = _layout(tags)
    extra = tags.get(338, ())
    unread = len(extra) if tags.get(284, 1) == 2 and not any(extra) else 0  # planes of unknown meaning
    planes = _samples(tags) if tags.get(284, 1) == 2 else 1
    expected = (planes - unread) * -(-width // across) * -(-height // down)
    if len(starts) < expected or (lengths and len(lengths) < expected):
        raise ImageError("truncated", f"the TIFF has {len(starts)} strips or tiles, but its size asks for {expected}")
    if 0 in starts[:expected] or (0 in lengths[:expected] and tags.get(259, 1) != 1):
        raise ImageError("truncated", "the TIFF leaves out strips or tiles")
    needed = across * down * max(tags.get(258, (1,))) * _samples(tags) // planes // 8
    if tags.get(259, 1) == 1 and width * height * max(tags.get(258, (1,))) * (_samples(tags) - unread) // 8 > size:
        raise ImageError("truncated", f"the TIFF says that it has {width}x{height} pixels, and ends before")
    if needed > _MOST_TILE_BYTES and across * down > 2 * width * height:
        raise ImageError("too_large", f"a TIFF's tile has {across}x{down} pixels, but its image has {width}x{height}")


def check_ccitt(data: bytes, tags: Any) -> None:
    """Refuse a fax TIFF if libtiff leaves rows unwritten: damaged codes only make it skip rows.

    A strip is decoded into the memory of the strip before it: here once a white strip, and once a black one.
    """
    if tags.get(259) not in _CCITT:
        return
    width, height, across, down, tiled, starts, lengths = _layout(tags)
    segments = [data[start : start + length] for start, length in zip(starts, lengths, strict=False)]
    segments = segments[: -(-width // across) * -(-height // down)]
    last = down if tiled else height - down * (len(segments) - 1)
    found = []
    for is_black in (False, True):
        copy = _interleaved(tags, segments, across, (down, last), is_black)
        with Image.open(io.BytesIO(copy), formats=("TIFF",)) as image:
            rows: npt.NDArray[Any] = np.asarray(image)
        whole = rows[: 2 * down * (len(segments) - 1)].reshape(-1, 2, down, across)[:, 1]
        found.append((whole, rows[-last:]))
    if not all(np.array_equal(one, other) for one, other in zip(*found, strict=True)):
        raise ImageError("truncated", "fax codes of the TIFF are damaged: some of its rows cannot be decoded")


def _interleaved(tags: Any, segments: list[bytes], width: int, rows: tuple[int, int], is_black: bool) -> bytes:
    """Return a TIFF with a strip of one colour before each of `segments`. The last one has `rows[1]` rows."""
    line = _row_of_runs(width, is_black, _HORIZONTAL if tags[259] == 4 else "")
    if tags[259] == 4:
        bits = (line if is_black else _AS_ABOVE) * rows[0] + 2 * _END_OF_LINE
    elif tags[259] == 3:
        bits = (_END_OF_LINE + ("1" if tags.get(292, 0) & 1 else "") + line) * rows[0]
    else:
        bits = (line + "0" * (-len(line) % 8)) * rows[0]
    bits += "0" * (-len(bits) % 8)
    plain = int(bits, 2).to_bytes(len(bits) // 8, "big")
    plain = plain.translate(_REVERSED) if tags.get(266, 1) == 2 else plain
    body, offsets, lengths = [plain], [], []
    end = 8 + len(plain)
    for segment in segments:
        body.append(segment)
        offsets += [8, end]
        lengths += [len(plain), len(segment)]
        end += len(segment)
    height = rows[0] * (2 * len(segments) - 1) + rows[1]
    fields: dict[int, tuple[int, ...]] = {256: (width,), 257: (height,), 273: tuple(offsets), 278: (rows[0],)}
    fields |= {279: tuple(lengths), 277: (1,), 258: (1,)}
    fields |= {tag: (int(tags[tag]),) for tag in (259, 262, 266, 292, 293) if tag in tags}
    start = end + end % 2
    directory, values = [struct.pack("<H", len(fields))], b""
    for tag, found in sorted(fields.items()):
        packed = struct.pack(f"<{len(found)}I", *found)
        if len(found) > 1:
            packed, values = struct.pack("<I", start + 2 + 12 * len(fields) + 4 + len(values)), values + packed
        directory.append(struct.pack("<HHI", tag, 4, len(found)) + packed)
    return b"".join((b"II*\0", struct.pack("<I", start), *body, bytes(end % 2), *directory, bytes(4), values))


def _row_of_runs(width: int, is_black: bool, mode: str) -> str:
    """Return the codes of a row of one colour, with `mode` before each run of white and the black one after it."""
    mine, other = (_BLACK, mode + _WHITE[0]) if is_black else (_WHITE, _BLACK[0])
    runs = [mine[64] * (width // 64) + mine[0]] if width >= 64 else []
    runs += [mine[bit] for bit in (32, 16, 8, 4, 2, 1) if width & bit]
    return (other if is_black else "") + other.join(runs)  # a row begins with white


def iter_jpegs(data: bytes, tags: Any) -> Iterator[tuple[bytes, int, int]]:
    """Yield each strip or tile of a TIFF whose compression is JPEG, with the height and width that it must have."""
    if tags.get(259) != 7:
        return
    width, height, across, down, tiled, starts, lengths = _layout(tags)
    tables = bytes(tags.get(347, b""))
    separate = tags.get(284, 1) == 2
    rows, columns = -(-height // down), -(-width // across)
    for number, (start, length) in enumerate(zip(starts, lengths, strict=False)):
        plane, place = divmod(number, rows * columns)
        if plane and not separate:
            return
        tall = down if tiled else min(down, height - place // columns * down)
        wide = across
        if plane and tags.get(262) == 6:  # colours have fewer pixels
            halves = tags.get(530, (2, 2))
            tall, wide = -(-tall // halves[1]), -(-wide // halves[0])
        stream = data[start : start + length]
        yield (tables[:-2] + stream[2:] if tables else stream), tall, wide


def _layout(tags: Any) -> tuple[int, int, int, int, bool, tuple[int, ...], tuple[int, ...]]:
    """Return a TIFF's width and height, those of its strips or tiles, if it has tiles, and offsets and lengths."""
    width, height = int(tags[256]), int(tags[257])
    tiled = 273 not in tags and 324 in tags
    across, down = (tags[322], tags[323]) if tiled else (width, min(tags.get(278) or height, height))
    starts, lengths = (tags.get(tag, ()) for tag in ((324, 325) if tiled else (273, 279)))
    if not all(isinstance(side, int) and side > 0 for side in (across, down)):
        raise ImageError("unreadable", f"the TIFF has strips or tiles of {across}x{down} pixels")
    return width, height, across, down, tiled, tuple(starts), tuple(lengths)


def _samples(tags: Any) -> int:
    return int(tags.get(277, 1))
