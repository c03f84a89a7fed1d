"""Files whose images stay as they are: PNG of 16 bits or with alpha, TIFF, JPEG 2000, DICOM, .npy and .npz."""

import io
import itertools
import struct
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np

from tpufeed.errors import ImageError, MissingExtraError
from tpufeed.images.decoding import Pixels, decode_png, decode_stored
from tpufeed.images.dicom import read_dicom
from tpufeed.images.header import BOXES, CODESTREAM, DICOM_MARK, MAX_PIXELS, ImageHeader, read_header, sniff
from tpufeed.images.jpeg2000 import read_jp2
from tpufeed.images.pixel_format import MOST_CHANNELS, PIXEL_TYPES, RGB8, PixelFormat
from tpufeed.images.tensors import MOST_HEADER_BYTES, npy_view, read_npy_header
from tpufeed.images.unwritten import check_png_rows
from tpufeed.text import format_names

BANDS_FIRST = "bands first"  # the odd case of an array of (channels, height, width)
_WITH_ALPHA = (4, 6)  # colour types of PNG
_PNG_ORDER = {0: [0], 2: [2, 1, 0], 4: [0, 3], 6: [2, 1, 0, 3]}  # OpenCV's channels by colour type
_MOST_BYTES = 1 << 31  # protobuf holds no message of 2 GiB
_PALETTE = 3
_AS_STORED = (1, 2, 6)  # photometrics whose values Pillow and GDAL give alike: grey from black to white, RGB, YCbCr
_SMALLER, _MASK = 1, 4  # kinds of pages in a TIFF
# Odd cases: what a file says of its values, and nobody applies.
MASKED, TRANSPARENT = "mask page, not applied", "transparent level, not applied"
_COLOURS = {0: "MINISWHITE, not inverted", 5: "CMYK, as it is", 6: "YCbCr, as it is", 8: "CIELab, as it is"}
NODATA_TAG = 42113  # of GDAL
_ZIP_START = b"PK\3\4"
_MOST_CHUNK_PIXELS = 1 << 26
_T = TypeVar("_T")


class Kept(NamedTuple):
    """An image that is kept as it is: its header, its format, and what decodes it.

    `load` returns (height, width, channels), not turned. It raises ImageError, or MissingExtraError. `nodata` has for
    each channel the value that the file says is no data, or None.
    """

    header: ImageHeader
    pixels: PixelFormat
    load: Callable[[], Pixels]
    nodata: Sequence[float | None] = ()


def read_kept(data: bytes, has_nodata: bool = False) -> Kept | None:
    """Return the image of a file that is not `RGB8`, or None for one that is. With `has_nodata` also a TIFF that is.

    Raises:
        ImageError: the file is damaged, or its numbers are of another type, or it has too many channels.
        MissingExtraError: tifffile, pydicom or a decoder is not installed.
    """
    reader = {"png": _read_png, "tiff": _read_tiff, "npy": _read_npy}.get(sniff(data) or "")
    if reader is None and data[128:132] == DICOM_MARK:
        reader = _read_dicom
    if reader is None and data.startswith(_ZIP_START):
        reader = _read_npz
    if reader is None and data.startswith((CODESTREAM, BOXES)):
        reader = _read_jp2
    kept = None if reader is None else reader(data)
    if has_nodata and kept is None and reader is _read_tiff:
        return _read_any(data)._replace(pixels=RGB8)  # grey or RGB, as without a mask
    return kept


def read_pages(data: bytes, choose: Callable[[int], Sequence[int]]) -> list[Kept] | None:
    """Return pages of a TIFF as images, or None if the first is `RGB8`. `choose` gets how many there are.

    Raises:
        ImageError: as for an image; or other_pixels: a page is `RGB8`, and the first is not.
        MissingExtraError: a package that decodes it is not installed.
    """
    file = _open_tiff(data)
    if (first := _read_page(file, 0, len(data))) is None:
        return None
    try:
        count, last, form = len(file.pages), file.pages[-1], file.tiff
        at = last.offset + form.tagnosize + form.tagsize * struct.unpack_from(form.tagnoformat, data, last.offset)[0]
        (following,) = struct.unpack_from(form.offsetformat, data, at)
    except Exception as error:  # it raises all kinds of errors
        raise ImageError("unreadable", f"tifffile does not open the pages of the TIFF: {error}") from error
    if following:  # tifffile finds fewer pages
        raise ImageError("truncated", f"the TIFF ends after page {count}, which says that another one follows")
    found = list[Kept]()
    for number in choose(count):
        if (page := _read_page(file, number, len(data))) is None:
            raise ImageError("other_pixels", f"page {number + 1} is 8-bit grey or RGB, and the first is {first.pixels}")
        odd = tuple(case for case in page.header.odd if case != "animated")
        found.append(page._replace(header=replace(page.header, odd=odd)))
    return found


def read_bands(files: Sequence[tuple[str, bytes]], numbers: Sequence[int] = ()) -> Kept:
    """Return the image that several files make, one band each, or chosen bands of one file.

    Args:
        files: names of the files, and their bytes.
        numbers: the bands of the one file, from 1, in the order of the channels. Empty for several files.

    Raises:
        ImageError: a file is damaged; or bad_bands: files differ in size or type, or there is no such band.
        MissingExtraError: a package that decodes a file is not installed.
    """
    if not numbers:
        return _join([(name, _of(name, partial(_read_any, data))) for name, data in files])
    ((_, data),) = files
    kept = _read_any(data)
    if max(numbers) > kept.pixels.channels:
        raise ImageError("bad_bands", f"the image is {kept.pixels}, and --bands asks for band {max(numbers)}")
    wanted, chosen = PixelFormat(kept.pixels.dtype, len(numbers)), [number - 1 for number in numbers]
    nodata = [kept.nodata[number] for number in chosen] if kept.nodata else ()
    return Kept(kept.header, wanted, lambda: np.ascontiguousarray(kept.load()[..., chosen]), nodata)


def _join(parts: Sequence[tuple[str, Kept]]) -> Kept:
    """Return images of one band as the channels of one image. Raises ImageError, naming their files."""
    names, images = zip(*parts, strict=True)
    said = [f"{at.width}x{at.height} pixels, {pixels}, orientation {at.orientation}" for at, pixels, *_ in images]
    for name, image, one in zip(names, images, said, strict=True):
        if image.pixels.channels > 1:
            raise ImageError("bad_bands", f"{name} is {image.pixels}. Expected a file of one band")
        if one != said[0]:
            way = "Resample the bands of an image to one grid, and save them as one type"
            raise ImageError("bad_bands", f"{names[0]} has {said[0]}, and {name} has {one}. {way}")

    def load() -> Pixels:
        return np.concatenate([_of(name, image.load) for name, image in parts], axis=2)

    odd = tuple(dict.fromkeys(case for image in images for case in image.header.odd))
    header, nodata = replace(images[0].header, odd=odd), [one for image in images for one in image.nodata or (None,)]
    shape = header.height, header.width, len(images)
    return _kept(header.format, shape, images[0].pixels.dtype, load, header)._replace(nodata=nodata)


def _of(name: str, step: Callable[[], _T]) -> _T:
    """Do a step with one of several files. Raises ImageError with its name."""
    try:
        return step()
    except ImageError as error:
        raise error.at(name) from error


def _read_any(data: bytes) -> Kept:
    """Return the image of a file, also of one that is `RGB8`."""
    if (kept := read_kept(data)) is not None:
        return kept
    header, nodata = read_header(data), tuple[float | None, ...]()
    if header.format == "tiff":
        page: Any = _open_tiff(data).pages[0]
        nodata = (_nodata_of(page),) * header.channels
        if nodata[0] is not None and (page.photometric not in _AS_STORED or page.bitspersample != 8):
            kind = f"{page.bitspersample}-bit {page.photometric.name}"
            raise ImageError("unsupported", f"a nodata value in a TIFF of {kind}, decoded to other values")
    return Kept(header, PixelFormat("uint8", header.channels), lambda: decode_stored(data, header), nodata)


def _read_png(data: bytes) -> Kept | None:
    header = read_header(data)
    depth, kind = data[24], data[25]
    if depth < 16 and kind not in _WITH_ALPHA:  # also one with a palette, or with a transparent colour
        return None
    order = _PNG_ORDER[kind]
    odd = tuple(case for case in header.odd if case in ("exif", "animated"))
    lacks_alpha = "alpha" in header.odd and kind not in _WITH_ALPHA
    header = replace(header, odd=(*odd, TRANSPARENT) if lacks_alpha else odd)

    def load() -> Pixels:
        check_png_rows(data)
        return np.ascontiguousarray(np.atleast_3d(decode_png(data))[..., order])

    return _kept("png", (header.height, header.width, len(order)), np.dtype(f"u{depth // 8}"), load, header)


def _read_dicom(data: bytes) -> Kept:
    header, dtype, load = read_dicom(data)
    return _kept("dicom", (header.height, header.width, header.channels), dtype, load, header)


def _read_jp2(data: bytes) -> Kept:
    header, dtype, load = read_jp2(data)
    return _kept("jp2", (header.height, header.width, header.channels), dtype, load, header)


def _read_npy(data: bytes) -> Kept:
    array = npy_view(data)
    return _of_array(array.shape, array.dtype, lambda: array)


def _read_npz(data: bytes) -> Kept:
    """Read the only array of an archive. Its numbers are unpacked after its size is known."""

    def unpack(most: int = -1) -> bytes:
        try:
            with zipfile.ZipFile(io.BytesIO(data)) as file, file.open(names[0]) as entry:
                return entry.read(most)
        except MemoryError:
            raise
        except Exception as error:  # it raises all kinds of errors
            raise ImageError("unreadable", f"the .npz does not unpack: {error}") from error

    try:
        infos = zipfile.ZipFile(io.BytesIO(data)).infolist()
    except Exception as error:
        raise ImageError("unreadable", f"the .npz does not open: {error}") from error
    names = [info.filename for info in infos]
    if len(names) != 1:
        arrays = format_names([name.removesuffix(".npy") for name in names]) or "none"
        raise ImageError("unsupported", f"the .npz has {len(names)} arrays ({arrays}). Expected the image alone")
    header = read_npy_header(unpack(MOST_HEADER_BYTES), infos[0].file_size)
    wanted = header.start + header.dtype.itemsize * int(np.prod(header.shape, dtype=object))
    if infos[0].file_size > wanted:  # it could be gigabytes of zeros
        raise ImageError("unsupported", f"{names[0]} in the .npz has {infos[0].file_size:,} bytes, not {wanted:,}")
    return _of_array(header.shape, header.dtype, lambda: npy_view(unpack()))


def _of_array(shape: tuple[int, ...], dtype: Any, load: Callable[[], Pixels]) -> Kept:
    is_turned = len(shape) == 3 and shape[0] < min(shape[1:])
    shape = (*shape[1:], shape[0]) if is_turned else shape
    if len(shape) not in (2, 3) or 0 in shape:
        said = f"an array of the shape {shape}, expected (height, width) or (height, width, channels)"
        raise ImageError("unsupported", said)
    shape = (*shape, 1)[:3]
    header = ImageHeader("npy", shape[1], shape[0], shape[2], False, odd=(BANDS_FIRST,) if is_turned else ())

    def turn() -> Pixels:
        return load().transpose(1, 2, 0) if is_turned else load().reshape(shape)

    return _kept("npy", shape, dtype, turn, header)


def _open_tiff(data: bytes) -> Any:
    """Open a TIFF by tifffile, without reading its pixels. Raises ImageError, MissingExtraError."""
    try:
        import tifffile
    except ImportError as error:
        raise MissingExtraError("tifffile", "bands") from error
    try:
        return tifffile.TiffFile(io.BytesIO(data))
    except Exception as error:  # it raises all kinds of errors
        raise ImageError("unreadable", f"tifffile does not open the TIFF: {error}") from error


def _nodata_of(page: Any) -> float | None:
    """Return the value that GDAL calls no data. A text that is no number is equal to no value."""
    try:
        return float(str(page.tags[NODATA_TAG].value).strip(" \0"))
    except (KeyError, ValueError):
        return None


def _read_tiff(data: bytes) -> Kept | None:
    return _read_page(_open_tiff(data), 0, len(data))


def _read_page(file: Any, number: int, size: int) -> Kept | None:
    """Return the image of a page of a TIFF, or None if it is `RGB8`. The file has as many bytes. Raises ImageError."""
    try:
        page: Any = file.pages[number]
        several, is_masked, depth = len(file.pages) > 1, False, page.imagedepth
        (height, width), channels, dtype = (page.imagelength, page.imagewidth), page.samplesperpixel, page.dtype
        tag, chunk = page.tags.get(274), int(np.prod(page.chunks, dtype=object))
        spans, colours = [*zip(page.dataoffsets, page.databytecounts, strict=True)], int(page.photometric)
        if several:  # smaller copies, as in a cloud-optimised GeoTIFF, and masks are no pages of their own
            kinds = (int(file.pages[other].subfiletype) for other in range(1, len(file.pages)))
            found = [*itertools.takewhile(lambda kind: kind & (_SMALLER | _MASK), kinds)]
            several, is_masked = len(found) < len(file.pages) - 1, any(kind & _MASK for kind in found)
    except Exception as error:  # it raises all kinds of errors
        raise ImageError("unreadable", f"tifffile does not open the TIFF: {error}") from error
    if colours == _PALETTE or dtype is None or (dtype.itemsize == 1 and dtype.kind in "ub" and channels in (1, 3)):
        return None  # the old way reads it, or says what is wrong with it
    if depth != 1:
        raise ImageError("unsupported", f"a TIFF of a volume, {depth} pixels deep")
    if missing := sum(not count for _, count in spans):
        way = "If these are empty: gdal_translate -co SPARSE_OK=FALSE"
        raise ImageError("truncated", f"the TIFF lacks {missing} of its {len(spans)} strips or tiles. {way}")
    if any(start + count > size for start, count in spans):
        raise ImageError("truncated", "the TIFF ends before its last strip or tile")
    if chunk > _MOST_CHUNK_PIXELS and chunk > 2 * height * width * channels:
        raise ImageError(
            "too_large", f"a strip or tile of the TIFF has {chunk:,} values, but its image {height}x{width}"
        )
    turn = int(tag.value) if tag is not None and tag.value in range(1, 9) else 1
    met = {"exif": turn != 1, "animated": several, MASKED: is_masked, _COLOURS.get(colours): colours in _COLOURS}
    odd = tuple(case for case, is_met in met.items() if case and is_met)

    def load() -> Pixels:
        try:
            found: Pixels = page.asarray()
        except MemoryError:
            raise
        except Exception as error:
            if "imagecodecs" in str(error):
                raise MissingExtraError(f"imagecodecs, for {page.compression.name} in a TIFF,", "bands") from error
            raise ImageError("unreadable", f"tifffile does not decode the TIFF: {error}") from error
        if "S" in page.axes:
            found = np.moveaxis(found, page.axes.index("S"), -1)
        return np.ascontiguousarray(found).reshape(height, width, channels)

    header = ImageHeader("tiff", width, height, channels, False, turn, odd=odd)
    kept = _kept("tiff", (height, width, channels), dtype, load, header)
    return kept._replace(nodata=(_nodata_of(page),) * channels)


def _kept(kind: str, shape: tuple[int, ...], dtype: Any, load: Callable[[], Pixels], header: ImageHeader) -> Kept:
    """Return the image if its numbers can be kept. Raises ImageError."""
    name = np.dtype(dtype).newbyteorder("=").name
    if name not in PIXEL_TYPES:
        raise ImageError(
            "unsupported", f"a {kind} of {name}. {', '.join(PIXEL_TYPES)} are kept: save it as one of these"
        )
    if not 1 <= shape[2] <= MOST_CHANNELS:
        raise ImageError("unsupported", f"{shape[2]} channels: 1 to {MOST_CHANNELS} are kept")
    if shape[0] * shape[1] > MAX_PIXELS or np.prod(shape, dtype=object) * np.dtype(name).itemsize >= _MOST_BYTES:
        raise ImageError("too_large", f"{shape[1]}x{shape[0]} pixels of {shape[2]} channels of {name}")
    return Kept(header, PixelFormat(name, shape[2]), lambda: np.asarray(load(), np.dtype(name)))
