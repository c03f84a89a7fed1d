"""Frames of an animated GIF, PNG or WebP, or pages of a TIFF, each as a file of its own."""

import io
from functools import partial

from PIL import Image

from tpufeed.errors import ImageError
from tpufeed.images.decoding import open_by_pillow
from tpufeed.images.header import read_header, sniff
from tpufeed.images.kept import Kept, read_kept, read_pages

_MOST_COMPOSED = 1 << 35  # pixels: a frame needs all before it
_ORIENTATION = 274


def choose_frames(count: int, frames: int, stride: int | None) -> list[int]:
    """Return which of `count` frames make a clip: `frames` of them, from the first to the last one at equal distances.

    With a stride it is every so many from the first one on. Raises ImageError if there are too few.
    """
    needed = frames if stride is None else (frames - 1) * stride + 1
    if count < needed:
        by = "" if stride is None else f" --frame-stride {stride}"
        said = f"{count} frame{'s' * (count != 1)}, and --frames {frames}{by} takes {needed}"
        raise ImageError("too_few_frames", said)
    return [number * (count - 1) // (frames - 1) if stride is None else number * stride for number in range(frames)]


def read_frames(data: bytes, frames: int, stride: int | None, keeps: bool = False) -> list[bytes] | list[Kept]:
    """Return the chosen frames as PNG files, of a TIFF as TIFF files, or with `keeps` as images that stay as they are.

    Raises:
        ImageError: the file is damaged, or has too few frames.
        MissingExtraError: a package that keeps its values is not installed.
    """
    if keeps and sniff(data) == "tiff":
        pages = read_pages(data, partial(choose_frames, frames=frames, stride=stride))
        if pages is not None:
            return pages
    if keeps and sniff(data) is None and read_kept(data) is not None:
        choose_frames(1, frames, stride)  # raises
    header, exif = read_header(data), Image.Exif()
    exif[_ORIENTATION] = header.orientation
    if header.format not in ("gif", "png", "webp", "tiff"):
        choose_frames(1, frames, stride)  # raises
    if header.format == "gif":
        _check_gif_end(data)
    if keeps and header.format == "png" and data[24] == 16 and data[25] and "animated" in header.odd:
        raise ImageError(
            "unsupported",
            "an animated PNG of 16-bit colours, of which Pillow gives 8 bits. Save each frame as a file, or leave "
            "--pixels keep out",
        )

    def take(image: Image.Image, _: object) -> list[bytes]:
        first = int(image.info.get("default_image", False))  # of a PNG, shown where animations are not
        chosen = [first + number for number in choose_frames(getattr(image, "n_frames", 1) - first, frames, stride)]
        last, found = chosen[-1], list[bytes]()
        if header.format != "tiff" and last * header.width * header.height > _MOST_COMPOSED:
            raise ImageError("too_large", f"{last:,} frames of {header.width}x{header.height} have to be composed")
        for number in chosen:
            image.seek(number)
            frame, file = image, io.BytesIO()
            if header.format == "gif":  # the first frame may have a palette or be grey, and others not
                frame = image.convert("RGBA" if image.has_transparency_data else "RGB")
            if header.format == "tiff":
                frame.copy().save(file, "TIFF")
            else:
                frame.save(file, "PNG", compress_level=3, **({"exif": exif} if header.orientation != 1 else {}))
            found.append(file.getvalue())
        return found

    return open_by_pillow(data, take)


def _check_gif_end(data: bytes) -> None:
    """Raise ImageError if a GIF ends within a frame: Pillow would only find fewer frames."""
    at = 13 + _table_bytes(data[10:11])
    while at < len(data) and data[at] in b"\x21\x2c":  # an extension, or a frame
        at += 2 if data[at] == 0x21 else 11 + _table_bytes(data[at + 9 : at + 10])
        while at < len(data) and data[at]:
            at += 1 + data[at]
        at += 1
    if at > len(data):
        raise ImageError("truncated", "the GIF ends within a frame")


def _table_bytes(flags: bytes) -> int:
    """Return the bytes of the table of colours that follows."""
    return 3 << (flags[0] & 7) + 1 if flags and flags[0] & 0x80 else 0
