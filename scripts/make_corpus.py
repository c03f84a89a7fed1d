#!/usr/bin/env python
"""Make a folder of odd and broken images, in two class folders, to see what `tpufeed shard` makes of them.

    scripts/make_corpus.py FOLDER

Everything is made by code from photographs that scikit-image ships; the same releases give the same bytes. Each
file's expectation under the default policy with presizing off is "kept", "changed" or the reason of its rejection.
"""

import argparse
import io
import struct
import sys
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
from PIL import Image

CLASSES = ("astronaut", "cat")
_SOURCES = {"astronaut": "astronaut.png", "cat": "chelsea.png"}
_BOMB_SIDE = 20_000

Entry = tuple[str, bytes, str]  # name, bytes, expectation


def make_corpus(folder: Path) -> dict[str, str]:
    """Fill `folder` and return what to expect of each file: relative path -> "kept", "changed" or a reject's reason."""
    expectations = {}
    for label in CLASSES:
        (folder / label).mkdir(parents=True, exist_ok=True)
        # scikit-image's folder stands beside cv2's; importing it would take seconds.
        photo = Image.open(Path(cv2.__file__).parents[1] / "skimage" / "data" / _SOURCES[label]).convert("RGB")
        photo = photo.resize((160, 120), Image.Resampling.LANCZOS)
        for name, data, expectation in _entries(photo):
            (folder / label / name).write_bytes(data)
            expectations[f"{label}/{name}"] = expectation
    return expectations


def _entries(photo: Image.Image) -> Iterator[Entry]:
    yield from _sound(photo)
    yield from _odd(photo)
    yield from _deep()
    yield from _turned(photo)
    yield from _named(photo)
    yield from _damaged(photo)
    yield from _bombs(photo)


def _sound(photo: Image.Image) -> Iterator[Entry]:
    yield "plain.jpg", _encode(photo, "JPEG", quality=90), "kept"
    yield "444.jpg", _encode(photo, "JPEG", quality=95, subsampling=0), "kept"
    yield "progressive.jpg", _encode(photo, "JPEG", quality=90, progressive=True), "kept"
    yield "restart-markers.jpg", _encode(photo, "JPEG", quality=90, restart_marker_blocks=5), "kept"
    yield "greyscale.jpg", _encode(photo.convert("L"), "JPEG", quality=90), "kept"
    yield "one-pixel.jpg", _encode(photo.resize((1, 1)), "JPEG"), "kept"
    yield "trailing-bytes.jpg", _encode(photo, "JPEG", quality=90) + b"trailing" * 50, "kept"
    yield "plain.png", _encode(photo, "PNG"), "kept"
    yield "greyscale.png", _encode(photo.convert("L"), "PNG"), "kept"
    yield "palette.png", _encode(photo.quantize(64), "PNG"), "kept"
    yield "one-pixel.png", _encode(photo.resize((1, 1)), "PNG"), "kept"
    yield "plain.webp", _encode(photo, "WEBP", quality=90), "kept"
    yield "lossless.webp", _encode(photo, "WEBP", lossless=True), "kept"
    yield "plain.bmp", _encode(photo, "BMP"), "changed"
    yield "greyscale.bmp", _encode(photo.convert("L"), "BMP"), "changed"
    yield "still.gif", _encode(photo, "GIF"), "changed"
    yield "plain.tiff", _encode(photo, "TIFF"), "changed"
    yield "lzw.tif", _encode(photo, "TIFF", compression="tiff_lzw"), "changed"


def _odd(photo: Image.Image) -> Iterator[Entry]:
    others = [photo.rotate(90), photo.rotate(180)]
    rgba = photo.convert("RGBA")
    rgba.putalpha(photo.convert("L"))
    cmyk = _encode(photo.convert("CMYK"), "JPEG", quality=90)
    yield "cmyk.jpg", cmyk, "changed"
    yield "ycck.jpg", _as_ycck(cmyk), "changed"
    yield "cmyk.tiff", _encode(photo.convert("CMYK"), "TIFF"), "changed"
    yield "rgba.png", _encode(rgba, "PNG"), "changed"
    yield "la.png", _encode(rgba.convert("LA"), "PNG"), "changed"
    yield "rgba.webp", _encode(rgba, "WEBP", quality=90), "changed"
    yield "rgba.tiff", _encode(rgba, "TIFF"), "changed"
    yield "palette-transparent.png", _encode(photo.quantize(64), "PNG", transparency=3), "changed"
    yield "transparent.gif", _encode(photo.quantize(64), "GIF", transparency=3), "changed"
    yield "1-bit.png", _encode(photo.convert("1"), "PNG"), "changed"
    yield "1-bit.bmp", _encode(photo.convert("1"), "BMP"), "changed"
    for suffix, image_format in (("gif", "GIF"), ("webp", "WEBP"), ("png", "PNG")):
        data = _encode(photo, image_format, save_all=True, append_images=others, duration=100)
        yield f"animated.{suffix}", data, "changed"
    yield "pages.tiff", _encode(photo, "TIFF", save_all=True, append_images=others), "changed"


def _deep() -> Iterator[Entry]:
    ramp = np.linspace(0, 1, 160 * 120).reshape(120, 160)
    sixteen = (ramp * 65535).astype(np.uint16)
    colour = np.ascontiguousarray(np.stack([sixteen, sixteen[::-1], sixteen[:, ::-1]], axis=2))
    yield "16-bit.png", _encode(Image.fromarray(sixteen), "PNG"), "changed"
    yield "16-bit-rgb.png", cv2.imencode(".png", colour)[1].tobytes(), "changed"
    yield "16-bit.tiff", _encode(Image.fromarray(sixteen), "TIFF"), "changed"
    yield "16-bit-rgb.tiff", cv2.imencode(".tiff", colour)[1].tobytes(), "changed"
    yield "float.tiff", _encode(Image.fromarray(ramp.astype(np.float32)), "TIFF"), "changed"


def _turned(photo: Image.Image) -> Iterator[Entry]:
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = orientation
        expectation = "kept" if orientation == 1 else "changed"
        yield f"exif-{orientation}.jpg", _encode(photo, "JPEG", quality=90, exif=exif), expectation
        yield f"exif-{orientation}.png", _encode(photo, "PNG", exif=exif), expectation
        yield f"exif-{orientation}.webp", _encode(photo, "WEBP", quality=90, exif=exif), expectation
        yield f"exif-{orientation}.tiff", _encode(photo, "TIFF", exif=exif), "changed"
    for number, block in enumerate((b"", b"II*\0", b"MM\0*\0\0\0\x08\xff\xff", b"II*\0\xff\xff\xff\xff", bytes(40))):
        broken = b"Exif\0\0" + block
        yield f"broken-exif-{number}.jpg", _encode(photo, "JPEG", quality=90, exif=broken), "kept"
        yield f"broken-exif-{number}.png", _with_chunk(_encode(photo, "PNG"), b"eXIf", block), "kept"
        yield f"broken-exif-{number}.webp", _encode(photo, "WEBP", exif=broken), "kept"


def _named(photo: Image.Image) -> Iterator[Entry]:
    jpeg, png = _encode(photo, "JPEG", quality=90), _encode(photo, "PNG")
    yield "png-named.jpg", png, "kept"
    yield "jpeg-named.png", jpeg, "kept"
    yield "text-named.jpg", b"This is a text.\nSomeone has named it .jpg\n" * 20, "not_an_image"
    yield "page-named.jpg", b"<!DOCTYPE html><html><body>404 Not Found</body></html>", "not_an_image"
    yield "zero-bytes.jpg", b"", "zero_bytes"
    yield "zero-bytes.png", b"", "zero_bytes"
    yield "SHOUTING.JPG", jpeg, "kept"
    for name in (
        "with spaces .jpg",
        "ünï-コード-🐈.jpg",
        "new\nline.jpg",
        "..photo.jpg",
        "50%_#?&.jpg",
        '\'"quotes".jpg',
    ):
        yield name, jpeg, "kept"


def _damaged(photo: Image.Image) -> Iterator[Entry]:
    jpeg, png = _encode(photo, "JPEG", quality=90), _encode(photo, "PNG")
    for tenth in range(10):
        for suffix, data in (("jpg", jpeg), ("png", png)):
            stop = max(12, len(data) * tenth // 10)  # so that the format can be told
            yield f"truncated-{tenth}.{suffix}", data[:stop], "truncated"
        yield f"flipped-bit-{tenth}.png", _flip(png, len(png) * (2 * tenth + 1) // 20), "unreadable"
        scan = jpeg.index(b"\xff\xda") + 40
        place = scan + (len(jpeg) - scan - 100) * tenth // 10
        yield f"broken-scan-{tenth}.jpg", jpeg[:place] + b"\xff\xc5" + jpeg[place + 2 :], "unreadable"
    webp = _encode(photo, "WEBP", quality=90)
    yield "truncated.webp", webp[: len(webp) // 2], "truncated"
    gif = _encode(photo, "GIF")
    yield "truncated.gif", gif[: len(gif) // 2], "truncated"
    bmp = _encode(photo, "BMP")
    yield "truncated.bmp", bmp[: len(bmp) // 2], "truncated"


def _bombs(photo: Image.Image) -> Iterator[Entry]:
    """Files of a few kilobytes that say they are 20,000 x 20,000 pixels."""
    small, side = photo.resize((16, 16)), _BOMB_SIDE
    jpeg = bytearray(_encode(small, "JPEG"))
    struct.pack_into(">HH", jpeg, jpeg.index(b"\xff\xc0") + 5, side, side)
    yield "bomb.jpg", bytes(jpeg), "too_large"
    png = bytearray(_encode(small, "PNG"))
    struct.pack_into(">II", png, 16, side, side)
    struct.pack_into(">I", png, 29, zlib.crc32(png[12:29]))
    yield "bomb.png", bytes(png), "too_large"
    webp = bytearray(_encode(small, "WEBP", lossless=True, exif=b"Exif\0\0MM\0*"))  # EXIF makes it extended
    webp[24:30] = (side - 1).to_bytes(3, "little") * 2
    yield "bomb.webp", bytes(webp), "too_large"
    gif = bytearray(_encode(small, "GIF"))
    struct.pack_into("<HH", gif, 6, side, side)
    yield "bomb.gif", bytes(gif), "too_large"
    gif = bytearray(_encode(small, "GIF"))
    struct.pack_into("<HH", gif, gif.index(b"\x2c\0\0\0\0\x10\0\x10\0") + 5, side, side)
    yield "bomb-frame.gif", bytes(gif), "too_large"
    bmp = bytearray(_encode(small, "BMP"))
    struct.pack_into("<ii", bmp, 18, side, side)
    yield "bomb.bmp", bytes(bmp), "too_large"
    tiff = bytearray(_encode(small, "TIFF"))
    (start,) = struct.unpack_from("<I", tiff, 4)
    for entry in range(start + 2, start + 2 + 12 * tiff[start], 12):
        if struct.unpack_from("<H", tiff, entry)[0] in (256, 257):
            struct.pack_into("<HII", tiff, entry + 2, 4, 1, side)
    yield "bomb.tiff", bytes(tiff), "too_large"


def _encode(image: Image.Image, image_format: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, image_format, **options)
    return buffer.getvalue()


def _as_ycck(cmyk: bytes) -> bytes:
    """The same scan, said to be YCCK by its Adobe marker (another picture, but a decodable one)."""
    data = bytearray(cmyk)
    data[data.index(b"Adobe") + 11] = 2
    return bytes(data)


def _with_chunk(png: bytes, kind: bytes, body: bytes) -> bytes:
    chunk = struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
    return png[:33] + chunk + png[33:]


def _flip(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 0x10]) + data[place + 1 :]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    args = parser.parse_args(argv)
    if args.folder.exists() and (not args.folder.is_dir() or any(args.folder.iterdir())):
        print(f"make_corpus: {args.folder} is there already; name an empty folder or none", file=sys.stderr)
        return 2
    counts = Counter(make_corpus(args.folder).values())
    print(f"{counts.total()} files: " + ", ".join(f"{number} {what}" for what, number in counts.most_common()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
