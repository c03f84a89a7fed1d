"""Store an image file by a policy: check it, and keep it, or shrink and encode it again.

Images are not shrunk by `windows.resize`: that serves training and prefers speed. A JPEG is decoded at 1/2, 1/4 or 1/8
if 1.9 times the wanted size is left: below that the DCT's own filter shows. Then blocks are averaged if 3 times the
wanted size is left. A Lanczos filter, with Pillow's taps at a pixel's centre, and cubic interpolation do the rest: the
PSNR to Pillow's Lanczos is about 50 dB, in a third of the time, because OpenCV runs both in SIMD.
"""

import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any, Literal, TypeAlias

import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image

from tpufeed.errors import ImageError, OptionError
from tpufeed.images.coefficients import pack_jpeg
from tpufeed.images.decoding import Pixels, check_pixels, decode_stored, turn
from tpufeed.images.geometry import Geometry
from tpufeed.images.header import MAX_PIXELS, ImageHeader, format_of_name, read_header
from tpufeed.images.kept import Kept, read_kept
from tpufeed.images.markers import encode_jpeg, is_sound, mark_jpeg
from tpufeed.images.mending import mend
from tpufeed.images.modern import MODERN
from tpufeed.images.pixel_format import MOST_FRAMES, RGB8, PixelFormat
from tpufeed.images.protocols import Window
from tpufeed.images.restart import CAN_REWRITE, CannotRewrite
from tpufeed.images.tensors import encode_npy
from tpufeed.images.windows import MOST_AVERAGED, short_side_size
from tpufeed.options import between, group

StoredFormat = Literal["jpeg", "png", "webp"]
Encoding = Literal["keep", "exact", "jpeg", "png", "webp", "dct"]
PresizeMode = Literal["short", "long", "fit"]
Quality: TypeAlias = Annotated[int, between(1, 100)]
_LONGEST_SIDE_PX = {"jpeg": 65_500, "png": 2**31 - 1, "webp": 16_383}
_LEAST_OVERSAMPLING = 1.9
_LEAST_AFTER_MEANS = 3
_LOBES = 3
DEEP_BITS = (10, 12, 14)  # the numbers of bits that `Images.deep` may name
NODATA, NODATA_MASKED = "nodata", "nodata, masked"  # odd cases of images that lack values
_BITS_USED = {bits: f"deep ({bits} bits used)" for bits in range(9, DEEP_BITS[-1] + 1)}


@group
@dataclass(frozen=True, slots=True, kw_only=True)
class Images:
    """How images are checked and stored, and what becomes of each odd case.

    Attributes:
        check: "full" decodes every image strictly, so that none can stop a training run, "header" trusts everything
            after a sound header.
        encode: "keep" (JPEG, PNG and still, opaque WebP that need no change, JPEGs with restart markers), "exact" (the
            same without markers), "dct" (as "keep", but the coefficients of JPEGs), or "jpeg", "png" or "webp" for all
            images. Markers cost no quality, and let loaders decode only the window that a crop needs. Coefficients take
            1.5 times the bytes, without loss, and crops decode several times as fast. With the first three, JPEG and
            WebP that need a change become JPEG, and so do AVIF, HEIC and JPEG XL, which take too long to decode in a
            loader. All else becomes PNG. With the last three, images that have the format stay as with "keep".
        pixels: "rgb8" makes 8-bit RGB or grey of all images, by `deep`, `alpha` and `bands`, "keep" stores PNG of 16
            bits or with alpha, TIFF, JPEG 2000, DICOM, and NumPy's .npy and .npz as they are: uint8, uint16 or float32
            with 1 to 64 channels. The dataset gets the pixel format that most images have, and images with another one
            are rejected.
        frames: make a clip of each animated GIF, PNG or WebP, TIFF of several pages, or folder of numbered images: this
            many frames, 2 to 1024, from the first to the last one at equal distances. One with fewer is rejected. See
            docs/clips.md.
        frame_stride: take one frame in this many instead, from the first one on, until there are `frames`.
        progressive: "keep" leaves progressive JPEGs as they are, "baseline" rewrites them without loss, to decode two
            to three times faster and have restart markers.
        quality: quality of JPEG and WebP images that are encoded again, 1 to 100.
        presize: shrink images to this side in pixels, never enlarge them. Default: keep their sizes.
        presize_mode: the side that `presize` gives: "short", "long", or "fit", which gives the shorter side and cuts
            out the middle square. "fit" only cuts smaller images.
        max_pixels: reject images with more pixels than this, without decoding them. Default: 178,956,970.
        min_side: reject images with a shorter side than this, in pixels.
        exif: apply an orientation, or ignore it: then pixels are taken as stored, and no tag is left that would turn
            them in other decoders, except with encode="exact". A JPEG or WebP can still be kept: only the tag's value
            becomes 1 in a copy of the bytes. Orientations in XMP are not read. HEIC and JPEG XL come upright from their
            decoders, whatever this says.
        cmyk: convert to RGB as Pillow does, without the ICC profile.
        alpha: put transparent pixels over white or black.
        deep: scale more than 8 bits per channel, 32-bit integers and floats (see `decoding.to_8_bits`) to 8 bits.
            "10", "12" or "14": grey values in 16-bit files have only so many bits, as those of many X-ray machines.
            Larger values become white.
        greyscale: keep one channel, or make three. WebP has no grey and always has three.
        animated: take the first frame or page, or the primary image of a HEIC.
        bands: leave out the bands of a TIFF beyond its colours and alpha, like near infrared.
        extension: if the name says another format than the bytes, believe the bytes. Names without an image's suffix
            say nothing.
        nan: with pixels="keep", what to do with an image that has NaN or infinite values: reject it, make these 0, or
            keep them.
        nodata: with pixels="keep", what to do with the values that a GeoTIFF says are no data: keep them, or "mask"
            them: a pixel with no data in some band becomes 0 in all bands, and 1 in a mask, the column "nodata".
        damaged: remove the bytes that strict decoders refuse from a damaged JPEG that has all of its pixels, see
            `mending.mend`. With check="header", damage after the first scan's header is not looked for, except a
            missing end marker. With encode="exact" such a JPEG is stored unchanged, and loaders mend it each time.
        restart_markers: kept JPEGs get restart markers: `encode` allows it, and tpufeed has its C extension.

    Raises:
        OptionError: a value is not valid, or two do not fit together.
    """

    check: Literal["full", "header"] = "full"
    encode: Encoding = "keep"
    pixels: Literal["rgb8", "keep"] = "rgb8"
    frames: Annotated[int, between(2, MOST_FRAMES)] | None = None
    frame_stride: Annotated[int, between(1, 65535)] | None = None
    progressive: Literal["keep", "baseline"] = "keep"
    quality: Quality = 90
    presize: Annotated[int, between(8, 16384)] | None = None
    presize_mode: PresizeMode = "short"
    max_pixels: Annotated[int, between(1, MAX_PIXELS)] = MAX_PIXELS
    min_side: Annotated[int, between(1, 65535)] = 1
    exif: Literal["apply", "ignore"] = "apply"
    cmyk: Literal["rgb", "reject"] = "rgb"
    alpha: Literal["white", "black", "reject"] = "white"
    deep: Literal["scale", "10", "12", "14", "reject"] = "scale"
    greyscale: Literal["keep", "rgb", "reject"] = "keep"
    animated: Literal["first", "reject"] = "first"
    bands: Literal["drop", "reject"] = "drop"
    extension: Literal["sniff", "reject"] = "sniff"
    nan: Literal["reject", "zero", "keep"] = "reject"
    nodata: Literal["keep", "mask"] = "keep"
    damaged: Literal["mend", "reject"] = "mend"
    restart_markers: bool = field(init=False)  # decided once, for the plan: all hosts of a build do the same

    def __post_init__(self) -> None:
        object.__setattr__(self, "restart_markers", self.encode in ("keep", "jpeg") and CAN_REWRITE)
        if self.pixels == "keep" and self.encode != "keep":
            raise OptionError(
                f"pixels='keep' keeps images as they are, and encode={self.encode!r} changes them: leave one out"
            )
        if self.nodata == "mask" and (self.pixels != "keep" or self.frames is not None):
            raise OptionError("nodata='mask' is for single images that are kept: pass --pixels keep, and no --frames")
        if self.frame_stride is not None and self.frames is None:
            raise OptionError("frame_stride is for clips. Give frames as well, like frames=16")
        if self.encode == "dct" and not CAN_REWRITE:
            raise OptionError("encode='dct' takes a tpufeed with its C extension (docs/install.md)")
        if self.progressive == "baseline" and not self.restart_markers:
            raise OptionError(
                "progressive='baseline' rewrites JPEGs: that takes encode='keep' or 'jpeg', and a tpufeed with its C "
                "extension (docs/install.md)"
            )

    @property
    def deep_bits(self) -> int:
        """Bits of the grey values in 16-bit files."""
        return int(self.deep) if self.deep.isdigit() else 16

    def to_dict(self) -> dict[str, Any]:
        """Return the fields by name, as plain JSON data for plan and manifest.

        Newer options with default values are left out: datasets made before these options existed can then grow.
        """
        younger: dict[str, str | None] = {"bands": "drop", "pixels": "rgb8", "nan": "reject", "nodata": "keep"}
        younger |= {"frames": None, "frame_stride": None}
        return {name: value for name, value in asdict(self).items() if (name, value) not in younger.items()}


@dataclass(frozen=True, slots=True)
class StoredImage:
    """An image as its record holds it.

    Attributes:
        kept: `data` is the file's own bytes, or has the same coefficients with restart markers or as a DCT image.
        mended: `data` is the file's own bytes without the damaged ones.
        odd: the odd cases that were met, by the names of `Images`'s fields.
        added_bytes: bytes that restart markers, or the form of DCT images, added to a kept JPEG, or None if it has
            neither.
        unmarked: why a kept JPEG could not get restart markers, or become a DCT image.
        source: height and width of the file's image, turned as `Images.exif` says, before presizing.
        orientation: EXIF orientation of the file, 1 to 8, whether it was applied or not.
        levels: the least and the greatest value of an image that is not `RGB8`.
        nodata: where the file's image, turned, has no data: 1 in an array (height, width). None if no mask is made.
    """

    data: bytes
    format: StoredFormat | Literal["dct", "npy"]
    height: int
    width: int
    channels: int
    kept: bool
    odd: tuple[str, ...] = ()
    mended: bool = False
    added_bytes: int | None = None
    unmarked: str = ""
    source: tuple[int, int] = (0, 0)
    orientation: int = 1
    levels: tuple[float, float] | None = None
    nodata: npt.NDArray[np.uint8] | None = None


def store_image(
    data: bytes, policy: Images, name: str = "", pixels: PixelFormat = RGB8, kept: Kept | None = None
) -> StoredImage:
    """Return the image of a file as `policy` wants it stored: 8-bit grey or RGB as JPEG, PNG or WebP, others as .npy.

    Args:
        data: all of the file.
        policy: the policy.
        name: the file's name or path, only for `policy.extension`.
        pixels: with `policy.pixels` "keep" the format that the image must have.
        kept: with `policy.pixels` "keep" the image itself, if it is made of several files, some bands, or a frame.

    Raises:
        MissingExtraError: a package that decodes the file is not installed.
        ImageError: the image cannot be stored. It has a reason code. A bad image raises no other error.
        MemoryError: the machine is too small, which is not the image's fault.
    """
    if policy.pixels == "keep":
        kept = kept or read_kept(data, policy.nodata == "mask")
        found = RGB8 if kept is None else kept.pixels
        if found != pixels:
            if kept is None:
                read_header(data)  # says if it is no image at all
            raise ImageError(
                "other_pixels", f"the image is {found.of_images}, and those of the dataset are {pixels.of_images}"
            )
        if kept is not None:
            return _store_kept(kept, policy, name)
    try:
        return _store(data, policy, name)
    except ImageError as error:
        if policy.damaged == "reject":
            raise
        image = _store(mend(data, error), policy, name)
        if image.kept and policy.encode == "exact":
            return replace(image, data=data, odd=(*image.odd, "damaged"))
        return replace(image, kept=False, mended=image.kept, odd=(*image.odd, "damaged"))


def _store(data: bytes, policy: Images, name: str) -> StoredImage:
    header, odd = _read(data, policy, name)
    size = (header.height, header.width)
    # An ignored orientation is removed from a JPEG or WebP in place. In a PNG it has a CRC: the PNG is encoded again.
    turns = header.orientation != 1 and (policy.exif == "apply" or header.format == "png")
    fits = policy.presize is None or (
        scaled_size(*size, policy.presize, policy.presize_mode) == size
        and (policy.presize_mode != "fit" or header.height == header.width)
    )
    is_kept = header.plain and not turns and fits and not (header.channels == 1 and policy.greyscale == "rgb")
    stored_format: StoredFormat = "png"
    match policy.encode:
        case "jpeg" | "png" | "webp" as wanted:
            stored_format = wanted
        case _ if header.format in ("jpeg", "webp", *MODERN):
            stored_format = "webp" if header.format == "webp" and is_kept else "jpeg"
    keeps = stored_format == header.format and is_kept
    image = (_keep if keeps else _encode_anew)(data, header, odd, policy, stored_format)
    return _pack(image) if policy.encode == "dct" and image.format == "jpeg" else image


def _store_kept(kept: Kept, policy: Images, name: str) -> StoredImage:
    """Store an image with the type and the channels that it has."""
    header, odd = _check(kept.header, policy, name)
    orientation = header.orientation if policy.exif == "apply" else 1
    pixels = turn(kept.load(), orientation)
    empty = _find_nodata(pixels, kept.nodata)
    holes = empty
    if kept.pixels == RGB8 and pixels.shape[2] == 1 and policy.greyscale == "rgb":
        pixels = pixels.repeat(3, axis=2)
    if empty.any():
        odd = (*odd, NODATA_MASKED if policy.nodata == "mask" else NODATA)
        if policy.nodata == "mask":
            pixels = np.where(empty[..., None], pixels.dtype.type(0), pixels)
    if pixels.dtype.kind == "f" and not (sound := np.isfinite(pixels)).all():
        if policy.nan == "reject":
            why = f"{np.sum(~sound):,} values are NaN or infinite. --policy nan=zero makes them 0"
            raise ImageError("unsupported", why)
        odd = (*odd, "nan")
        holes = empty | ~sound.all(axis=2)
        pixels = np.where(sound, pixels, np.float32(0)) if policy.nan == "zero" else pixels
    size = (pixels.shape[0], pixels.shape[1])
    if policy.presize is not None:
        pixels = _presize_around(pixels, holes, scaled_size(*size, policy.presize, policy.presize_mode), policy)
    height, width, channels = pixels.shape
    values = pixels
    if policy.nodata == "mask" and empty.any():
        values = pixels[_placed(Geometry.identity(*size), (height, width), policy).warp(empty, 0) == 0]
    if values.dtype.kind == "f":
        values = values[np.isfinite(values)]
    is_rgb8 = kept.pixels == RGB8
    return StoredImage(
        encode(pixels, "png", policy.quality) if is_rgb8 else encode_npy(pixels),
        "png" if is_rgb8 else "npy",
        height,
        width,
        channels,
        False,
        odd,
        source=size,
        orientation=header.orientation,
        levels=(float(values.min()), float(values.max())) if values.size and not is_rgb8 else None,
        nodata=empty if policy.nodata == "mask" else None,
    )


def _find_nodata(pixels: Pixels, nodata: Sequence[float | None]) -> npt.NDArray[np.uint8]:
    """Return where one of the channels has its nodata value: 1 in an array (height, width)."""
    found = np.zeros(pixels.shape[:2], np.uint8)
    for channel, value in enumerate(nodata):
        if value is not None:
            found |= np.isnan(pixels[..., channel]) if np.isnan(value) else pixels[..., channel] == value
    return found


def _presize(pixels: Pixels, wanted: tuple[int, int], policy: Images) -> Pixels:
    """Shrink upright pixels to `wanted`, a (height, width), or cut out the middle square of that."""
    height, width = wanted
    if policy.presize_mode == "fit":  # cut first: edges fall on pixels of the source, not of the result
        height = width = min(height, width)
        tall, wide = pixels.shape[:2]
        side = min(tall, wide)
        top, left = (tall - side) // 2, (wide - side) // 2
        pixels = pixels[top : top + side, left : left + side]
    return shrink(pixels, height, width)


def _presize_around(pixels: Pixels, holes: npt.NDArray[np.uint8], wanted: tuple[int, int], policy: Images) -> Pixels:
    """Presize upright pixels. Those without data do not mix with others: they stay where they are the nearest."""
    size = (pixels.shape[0], pixels.shape[1])
    if wanted == size or not holes.any():
        return _presize(pixels, wanted, policy)
    known, filled = holes == 0, pixels.copy()
    for channel in range(pixels.shape[2]):
        filled[..., channel][~known] = pixels[..., channel][known].mean() if known.any() else 0
    small = _presize(filled, wanted, policy)
    placed = _placed(Geometry.identity(*size), (small.shape[0], small.shape[1]), policy)
    left = placed.warp(holes, 0) != 0
    for channel in range(pixels.shape[2]):
        small[..., channel][left] = placed.warp(pixels[..., channel], 0)[left]
    return small


def _pack(image: StoredImage) -> StoredImage:
    """Return a JPEG as a DCT image if it can be one."""
    try:
        data = pack_jpeg(image.data)
    except CannotRewrite as error:
        return replace(image, unmarked=str(error))
    added = len(data) - len(image.data) if image.kept else None
    return replace(image, data=data, format="dct", added_bytes=added)


def _keep(
    data: bytes, header: ImageHeader, odd: tuple[str, ...], policy: Images, stored_format: StoredFormat
) -> StoredImage:
    """Check the file's own bytes and store them, with restart markers if that is possible and they still decode."""
    stored = data
    if header.orientation != 1 and policy.encode != "exact":  # ignored, and removed so that no decoder applies it
        stored = data[: header.orientation_at] + b"\1" + data[header.orientation_at + 1 :]
    marked, unmarked = stored, ""
    if policy.restart_markers and header.jpeg is not None:
        try:
            marked = mark_jpeg(stored, header.jpeg, policy.progressive == "baseline")
        except CannotRewrite as error:
            unmarked = str(error)
    if policy.check == "full" and (marked is stored or not is_sound(marked, header)):
        try:
            check_pixels(marked, header)  # decodes the whole image
        except ImageError:
            if marked is stored:
                raise
            check_pixels(stored, header)
            marked, unmarked = stored, "does not decode with markers"
    added = None if marked is stored else len(marked) - len(stored)
    size = (header.height, header.width)
    kept = stored is data
    return StoredImage(
        marked, stored_format, *size, header.channels, kept, odd, False, added, unmarked, size, header.orientation
    )


def _encode_anew(
    data: bytes, header: ImageHeader, odd: tuple[str, ...], policy: Images, stored_format: StoredFormat
) -> StoredImage:
    """Store the image upright, presized and with the channels that `policy` wants."""
    orientation = header.orientation if policy.exif == "apply" else 1
    backdrop = 0 if policy.alpha == "black" else 255
    size = wanted = (header.height, header.width)
    reduce = 1
    if policy.presize is not None:
        wanted = scaled_size(*size, policy.presize, policy.presize_mode)
        least = min(size[0] / wanted[0], size[1] / wanted[1]) / _LEAST_OVERSAMPLING
        reduce = max(factor for factor in (1, 2, 4, 8) if factor == 1 or factor <= least)
    pixels = turn(decode_stored(data, header, reduce, backdrop, policy.deep_bits), orientation)
    odd = _tell_bits(pixels, header, odd, policy)
    if policy.presize is not None:
        pixels = _presize(pixels, wanted if orientation < 5 else wanted[::-1], policy)
    if pixels.shape[2] == 1 and (policy.greyscale == "rgb" or stored_format == "webp"):
        pixels = pixels.repeat(3, axis=2)
    height, width, channels = pixels.shape
    return StoredImage(
        encode(pixels, stored_format, policy.quality),
        stored_format,
        height,
        width,
        channels,
        False,
        odd,
        source=size if orientation < 5 else size[::-1],
        orientation=header.orientation,
    )


def stored_geometry(image: StoredImage, policy: Images, turn: int = 1) -> Geometry:
    """Return where each place of a stored image lies in the image of its file, upright if `policy.exif` is "apply".

    Args:
        image: the stored image.
        policy: the policy that stored it.
        turn: an EXIF orientation to undo: places are then in the file's image before it was applied. 1: none.
    """
    height, width = image.source
    if turn == 1:
        geometry = Geometry.identity(height, width)
    else:
        geometry = Geometry.identity(*((width, height) if turn >= 5 else (height, width))).turned(turn)
    return _placed(geometry, (image.height, image.width), policy)


def _placed(geometry: Geometry, size: tuple[int, int], policy: Images) -> Geometry:
    """Return the geometry of an image after it is presized to `size`."""
    if size == geometry.size:
        return geometry
    (height, width), top, left = geometry.size, 0, 0
    if policy.presize_mode == "fit":
        side = min(height, width)
        top, left, height, width = (height - side) // 2, (width - side) // 2, side, side
    return geometry.window(Window(top, left, height, width, *size))


def _read(data: bytes, policy: Images, name: str) -> tuple[ImageHeader, tuple[str, ...]]:
    header = read_header(data)
    if header.format == "npy":
        raise ImageError("unsupported", "a NumPy array is not an 8-bit image. --pixels keep stores it as it is")
    return _check(header, policy, name)


def _check(header: ImageHeader, policy: Images, name: str) -> tuple[ImageHeader, tuple[str, ...]]:
    """Return the header, and its odd cases. Raises ImageError if the policy does not take the image."""
    odd = header.odd
    if name and format_of_name(name) not in (None, header.format):
        odd = (*odd, "extension")
    height, width = header.height, header.width
    if height * width > policy.max_pixels:
        raise ImageError("too_large", f"{width}x{height} pixels are more than {policy.max_pixels}")
    if min(height, width) < policy.min_side:
        raise ImageError("too_small", f"{width}x{height} pixels, but the shorter side is at least {policy.min_side}")
    for case in odd:
        if getattr(policy, case, "") == "reject":
            raise ImageError("unsupported", f"the policy for {case} is to reject")
    return header, odd


def _tell_bits(pixels: Pixels, header: ImageHeader, odd: tuple[str, ...], policy: Images) -> tuple[str, ...]:
    """Return the odd cases of a decoded image. If it was scaled from 16 bits and uses at most 14, they say how many."""
    if "deep" not in odd or header.format in MODERN or policy.deep_bits < 16:
        return odd
    top = int(pixels.max())  # 4,095 of 65,535 has become 16
    return (*odd, *[case for bits, case in _BITS_USED.items() if top <= 1 << bits - 8][:1])


def bits_used(odd: Mapping[str, int]) -> int | None:
    """Return the most bits that images scaled from 16 use, by their odd cases, or None if one uses more than 14."""
    low = {bits: count for bits, case in _BITS_USED.items() if (count := odd.get(case))}
    return max(low) if low and sum(low.values()) == odd.get("deep") else None


def scaled_size(height: int, width: int, side_px: int, mode: PresizeMode) -> tuple[int, int]:
    """Return `(height, width)` once the longer side (mode "long") or the shorter one is `side_px`, never larger."""
    side = max(height, width) if mode == "long" else min(height, width)
    if side <= side_px:
        return height, width
    if mode == "long":
        return max(1, round(height * side_px / side)), max(1, round(width * side_px / side))
    return short_side_size(height, width, side_px)


def shrink(pixels: Pixels, height: int, width: int) -> Pixels:
    """Shrink `pixels` (h, w, channels) to a smaller or equal height x width. Raises MemoryError."""
    if pixels.shape[:2] == (height, width):
        return pixels
    if pixels.shape[2] > MOST_AVERAGED:
        groups = (pixels[..., at : at + MOST_AVERAGED] for at in range(0, pixels.shape[2], MOST_AVERAGED))
        return np.concatenate([shrink(group, height, width) for group in groups], 2)
    image: Any = pixels  # OpenCV's stubs do not know that uint8 stays uint8
    factor = int(min(pixels.shape[0] / height, pixels.shape[1] / width) / _LEAST_AFTER_MEANS)
    try:
        if factor > 1:  # average blocks, but leave 3 times the size to the filter: it costs no sharpness
            size = (-(-pixels.shape[1] // factor), -(-pixels.shape[0] // factor))
            image = cv2.resize(image, size, interpolation=cv2.INTER_AREA)
        across, down = _lanczos(image.shape[1] / width), _lanczos(image.shape[0] / height)
        image = cv2.sepFilter2D(image, -1, across, down, borderType=cv2.BORDER_REFLECT)
        image = cv2.resize(image, (width, height), interpolation=cv2.INTER_CUBIC)
    except cv2.error as error:
        raise MemoryError(str(error)) from error  # nothing else can be wrong with its arguments
    result: Pixels = image.reshape(height, width, pixels.shape[2])
    return result


def _lanczos(scale: float) -> npt.NDArray[np.float32]:
    reach = int(_LOBES * scale)
    at = np.arange(-reach, reach + 1) / scale
    taps = np.sinc(at) * np.sinc(at / _LOBES)
    normed: npt.NDArray[np.float32] = (taps / taps.sum()).astype(np.float32)
    return normed


def encode(image: Pixels, image_format: StoredFormat, quality: int) -> bytes:
    """Encode `image` (uint8, height x width x 1 or 3) as JPEG, PNG or WebP.

    Args:
        image: grey or RGB. WebP has no grey and stores RGB.
        image_format: the format.
        quality: quality of JPEG (4:2:0 below 95, else 4:4:4) and of lossy WebP, 1 to 100.

    Raises:
        ImageError: too_large for the format.
    """
    if max(image.shape) > _LONGEST_SIDE_PX[image_format]:
        height, width = image.shape[:2]
        longest = _LONGEST_SIDE_PX[image_format]
        raise ImageError("too_large", f"{width}x{height} pixels, but a side in {image_format} has at most {longest}")
    image = np.ascontiguousarray(image)
    if image_format == "jpeg":
        return encode_jpeg(image, quality)
    buffer, picture = io.BytesIO(), Image.fromarray(image.squeeze(2) if image.shape[2] == 1 else image)
    if image_format == "webp":
        picture.save(buffer, "WEBP", quality=quality)
    else:
        picture.save(buffer, "PNG", compress_level=3)
    return buffer.getvalue()
