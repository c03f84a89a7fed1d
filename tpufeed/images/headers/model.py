"""Contents of a header."""

from dataclasses import dataclass
from typing import Literal

Format = Literal["jpeg", "png", "webp", "bmp", "gif", "tiff"]


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


def odd_cases(
    *,
    exif: bool = False,
    cmyk: bool = False,
    alpha: bool = False,
    deep: bool = False,
    greyscale: bool = False,
    animated: bool = False,
) -> tuple[str, ...]:
    """The names of those that are met."""
    met = {"exif": exif, "cmyk": cmyk, "alpha": alpha, "deep": deep, "greyscale": greyscale, "animated": animated}
    return tuple(name for name, is_met in met.items() if is_met)
