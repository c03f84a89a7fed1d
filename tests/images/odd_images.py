"""Odd images without end for `scripts/try-images`: rare modes and depths of all formats, and broken files."""

import io
import random
import struct
import zlib
from collections.abc import Callable, Iterator

from PIL import Image

_PNG_KINDS = [(0, depth) for depth in (1, 2, 4, 8, 16)] + [(3, depth) for depth in (1, 2, 4, 8)]
_PNG_KINDS += [(colour, depth) for colour in (2, 4, 6) for depth in (8, 16)]
_PNG_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
_ADAM7 = ((0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1))


def iter_odd_images(seed: int) -> Iterator[tuple[str, bytes]]:
    """Yield a name and the bytes of images without end; some are sound, some are broken in a way of their format."""
    makers: list[Callable[[random.Random], tuple[str, bytes]]] = [_png, _png, _tiff, _tiff, _bands, _gif, _bmp, _webp]
    makers.append(_jpeg)
    number = 0
    while True:
        rng = random.Random(f"{seed} {number}")
        kind, data = rng.choice(makers)(rng)
        yield f"odd {number}, {kind}", data
        number += 1


def _size(rng: random.Random) -> tuple[int, int]:
    width, height = rng.choice((1, 2, 7, 8, 9, 33, 64, 100)), rng.choice((1, 2, 7, 8, 9, 33, 64, 100))
    return rng.choice(((width, height), (width, height), (1, 3000), (3000, 2)))


def _picture(rng: random.Random, mode: str) -> Image.Image:
    """Return blocks of random colours with some noise, so that run lengths and filters have work."""
    width, height = _size(rng)
    blocks = Image.frombytes("RGBA", (4, 4), rng.randbytes(64)).resize((width, height), Image.Resampling.NEAREST)
    if rng.random() < 0.5:
        blocks.paste(Image.frombytes("RGBA", (width, 1), rng.randbytes(4 * width)), (0, height // 2))
    if mode in ("I;16", "F", "I"):
        return Image.frombytes(mode, (width, height), rng.randbytes(width * height * (2 if mode == "I;16" else 4)))
    return blocks.convert(mode) if mode in ("RGBA", "LA") else blocks.convert("RGB").convert(mode)


def _encoded(image: Image.Image, image_format: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, image_format, **options)
    return buffer.getvalue()


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def _iter_rows(rng: random.Random, width: int, height: int, bits: int, interlace: bool) -> Iterator[bytes]:
    for top, left, down, across in _ADAM7 if interlace else ((0, 0, 1, 1),):
        size = (-(-(width - left) // across) * bits + 7) // 8
        if size > 0:
            for _ in range(-(-(height - top) // down)):
                yield bytes((rng.randrange(5),)) + (rng.randbytes(size) if rng.random() < 0.6 else bytes(size))


def _png(rng: random.Random) -> tuple[str, bytes]:
    """Any bytes are rows of a PNG, but for the number of the filter."""
    colour, depth = rng.choice(_PNG_KINDS)
    width, height = _size(rng)
    interlace = rng.random() < 0.25
    rows = list(_iter_rows(rng, width, height, depth * _PNG_CHANNELS[colour], interlace))
    flaw = rng.choice(("", "", "", "rows", "filter", "stream", "chunk", "twice", "order", "IHDR"))
    if flaw == "rows":
        del rows[rng.randrange(len(rows)) :]
    elif flaw == "filter":
        rows[-1] = b"\7" + rows[-1][1:]
    packed = zlib.compress(b"".join(rows))
    if flaw == "stream":
        packed = packed[: -rng.randrange(1, 6)]
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, interlace)
    if flaw == "IHDR":
        place = rng.randrange(8, 13)
        header = header[:place] + bytes((rng.randrange(9),)) + header[place + 1 :]
    chunks = [_chunk(b"IHDR", header)]
    if colour == 3 or rng.random() < 0.1:
        chunks.append(_chunk(b"PLTE", rng.randbytes(3 * rng.choice((1 << min(depth, 8), 2, 256)))))
    if rng.random() < 0.4 and colour in (0, 2, 3):
        level = 0 if rng.random() < 0.5 else rng.randrange(1 << depth)
        said = {0: struct.pack(">H", level), 2: struct.pack(">3H", level, level, level), 3: rng.randbytes(2)}
        chunks.append(_chunk(b"tRNS", said[colour]))
    if rng.random() < 0.2:
        chunks.append(_chunk(b"tEXt", b"a\0" + rng.randbytes(9)))
    middle = rng.choice((len(packed), len(packed) // 2))
    chunks += [_chunk(b"IDAT", part) for part in (packed[:middle], packed[middle:]) if part]
    if rng.random() < 0.2:
        chunks.append(_chunk(rng.choice((b"tEXt", b"eXIf", b"tIME")), rng.randbytes(7)))
    chunks.append(_chunk(b"IEND", b""))
    if flaw == "chunk":
        del chunks[rng.randrange(1, len(chunks))]
    elif flaw == "twice":
        chunks.insert(1, chunks[rng.randrange(len(chunks))])
    elif flaw == "order":
        chunks[1:-1] = rng.sample(chunks[1:-1], len(chunks) - 2)
    return f"png of colour {colour}, {depth} bits, interlace {interlace}, flaw {flaw}", b"\x89PNG\r\n\x1a\n" + b"".join(
        chunks
    )


def _tiff(rng: random.Random) -> tuple[str, bytes]:
    mode = rng.choice(("1", "1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16", "F", "I"))
    compressions = ["raw", "tiff_lzw", "tiff_adobe_deflate", "packbits"]
    compressions += ["group3", "group4", "tiff_ccitt"] * 2 if mode == "1" else []
    compressions += ["jpeg", "jpeg"] if mode in ("L", "RGB") else []
    compression, order = rng.choice(compressions), rng.choice((1, 2)) if mode == "1" else 1
    rows = rng.choice((16, 64, 4000) if compression == "jpeg" else (1, 7, 64, 4000))
    tags = {278: rows, 274: rng.choice((1, 1, 3, 6)), 266: order}
    data = bytearray(_encoded(_picture(rng, mode), "TIFF", compression=compression, tiffinfo=tags))
    (start,) = struct.unpack_from("<I", data, 4)
    (count,) = struct.unpack_from("<H", data, start)
    places = [start + 2 + 12 * number for number in range(count)]
    flaw = rng.choice(("", "", "tag", "value", "pixels", "pixels", "size"))
    if flaw == "tag":  # no decoder knows number 65,000
        struct.pack_into("<H", data, rng.choice(places), 65000)
    elif flaw == "value":
        struct.pack_into("<I", data, rng.choice(places) + 8, rng.choice((0, 1, 2, 7, 9, 1000, 2**20, 2**31)))
    elif flaw == "size":
        for place in places:
            if struct.unpack_from("<H", data, place)[0] in (257, 278):
                struct.pack_into("<HI", data, place + 2, 4, 1)
                struct.pack_into("<I", data, place + 8, 130)
    elif flaw == "pixels":
        at = rng.randrange(8, max(9, min(start, len(data)) if start > 16 else len(data)))
        change = rng.choice((bytes(20), rng.randbytes(6)))
        data[at : at + len(change)] = change
    return f"tiff {mode}, {compression}, flaw {flaw}", bytes(data)


def _bands(rng: random.Random) -> tuple[str, bytes]:
    """Return a TIFF in strips or tiles, with bands of which tags say this or that."""
    width, height = rng.randrange(1, 40), rng.randrange(1, 40)
    photometric, bands, depth = rng.choice((0, 1, 2, 3, 5)), rng.randrange(1, 7), rng.choice((8, 8, 16))
    pixels = rng.randbytes(width * height * bands * depth // 8)
    order = rng.choice("<>")
    fields = {256: (4, [width]), 257: (4, [height]), 258: (3, [depth] * bands), 259: (3, [1]), 262: (3, [photometric])}
    fields |= {273: (4, [8]), 277: (3, [bands]), 278: (4, [height]), 279: (4, [len(pixels)])}
    if rng.random() < 0.6:
        fields[338] = (3, [rng.choice((0, 0, 1, 2)) for _ in range(rng.randrange(1, 4))])
    if rng.random() < 0.2:
        side = rng.choice((16, 64, 16384))
        fields |= {322: (4, [side]), 323: (4, [side]), 324: (4, [8]), 325: (4, [len(pixels)])}
        del fields[273], fields[278], fields[279]
    if photometric == 3:
        fields[320] = (3, [rng.randrange(65536) for _ in range(768)])
    start = 8 + len(pixels)
    directory, behind = struct.pack(order + "H", len(fields)), b""
    for tag, (kind, values) in sorted(fields.items()):
        packed = struct.pack(f"{order}{len(values)}{'H' if kind == 3 else 'I'}", *values)
        if len(packed) > 4:
            packed, behind = struct.pack(order + "I", start + 6 + 12 * len(fields) + len(behind)), behind + packed
        directory += struct.pack(order + "HHI", tag, kind, len(values)) + packed.ljust(4, b"\0")
    head = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(order + "I", start)
    said = fields.get(338, (0, []))[1]
    return f"tiff of {bands} bands, colour {photometric}, extra {said}", head + pixels + directory + bytes(4) + behind


def _gif(rng: random.Random) -> tuple[str, bytes]:
    image = _picture(rng, rng.choice(("1", "L", "P")))
    options = {"transparency": rng.randrange(4)} if rng.random() < 0.4 else {}
    more = [image.rotate(90)] if rng.random() < 0.3 else []
    data = bytearray(
        _encoded(image, "GIF", interlace=rng.choice((0, 1)), save_all=bool(more), append_images=more, **options)
    )
    flaw = rng.choice(("", "", "code", "block"))
    at = rng.randrange(len(data) // 2, len(data))
    if flaw == "code":
        data[at] ^= 1 << rng.randrange(8)
    elif flaw == "block":  # the pixels end here
        data[at] = 0
    return f"gif {image.mode}, flaw {flaw}", bytes(data)


def _bmp(rng: random.Random) -> tuple[str, bytes]:
    mode = rng.choice(("1", "L", "P", "RGB", "RGBA"))
    data = bytearray(_encoded(_picture(rng, mode), "BMP"))
    flaw = rng.choice(("", "", "run lengths", "header"))
    if flaw == "run lengths" and mode in ("L", "P"):
        struct.pack_into("<I", data, 30, 1)
    elif flaw == "header":
        data[rng.randrange(14, 54)] = rng.choice((0, 1, 4, 24, 32, 255))
    return f"bmp {mode}, flaw {flaw}", bytes(data)


def _webp(rng: random.Random) -> tuple[str, bytes]:
    image = _picture(rng, rng.choice(("RGB", "RGBA")))
    more = [image.rotate(180)] if rng.random() < 0.2 else []
    lossless = rng.random() < 0.5
    return f"webp {image.mode}", _encoded(image, "WEBP", lossless=lossless, save_all=bool(more), append_images=more)


def _jpeg(rng: random.Random) -> tuple[str, bytes]:
    image, exif = _picture(rng, rng.choice(("L", "RGB", "RGB", "CMYK"))), Image.Exif()
    exif[0x0112] = rng.choice((1, 1, 1, 3, 6, 8))
    options = {} if image.mode == "L" else {"subsampling": rng.choice((0, 1, 2))}
    progressive = rng.random() < 0.3
    return f"jpeg {image.mode}", _encoded(image, "JPEG", quality=90, progressive=progressive, exif=exif, **options)
