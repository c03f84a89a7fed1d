"""Draw the outlines of objects as the mask of their sample.

pycocotools draws them. Its C code trusts all numbers, so they are checked first.
"""

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any, Literal, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from tpufeed.builds.item import Item, Outline
from tpufeed.errors import ImageError, MissingExtraError
from tpufeed.text import shorten

Outlines: TypeAlias = Literal["semantic", "instance"]

MOST_VALUES = 254  # classes or objects: 0 is the background, 255 a crowd
NO_OUTLINE, NO_PIXELS = "no outline", "outline without pixels"  # odd cases
_CROWD = 255
_LEAST_NUMBERS = 6  # of a polygon. With 4, pycocotools would take it for a box
_MOST_PIXELS = 3 << 24  # of an image. With more, pycocotools may write past the end of its run lengths
_MOST_LENGTH_PX = 4 << 20  # of a polygon: pycocotools allocates 80 bytes per pixel of its length
_RUN_LENGTHS = re.compile(rb"(?:[P-o]{0,5}[0-O])++")  # 5 bits per character, the last below "P". 30 bits are enough
_SAID = 60  # characters of a value in a message


class _RunLengths(msgspec.Struct, gc=False):
    counts: list[int] | str
    size: tuple[int, int]  # height and width


_decode_segmentation = msgspec.json.Decoder(tuple[tuple[float, ...], ...] | _RunLengths | None).decode


def import_pycocotools() -> Any:
    """Return the module that draws. Raises MissingExtraError."""
    try:
        from pycocotools import mask
    except ImportError as error:
        raise MissingExtraError("pycocotools", "annotations") from error
    return mask


def coco_outlines(
    segmentations: Iterable[tuple[Any, bytes, bool]], size: tuple[int, int] | None
) -> tuple[tuple[Outline, ...], str]:
    """Return the outlines of an image's annotations, and what is wrong with the first bad one, if any.

    Args:
        segmentations: the id, the JSON of the segmentation, which may be missing, and whether it is a crowd.
        size: height and width of the image, if the file has them.
    """
    found = list[Outline]()
    for number, segmentation, is_crowd in segmentations:
        outline, wrong = _read_segmentation(segmentation, size)
        if wrong:
            return (), f"the 'segmentation' of the annotation {number}: {wrong}"
        found.append(msgspec.structs.replace(outline, is_crowd=True) if is_crowd else outline)
    return tuple(found), ""


def _read_segmentation(segmentation: bytes, size: tuple[int, int] | None) -> tuple[Outline, str]:
    try:
        said = _decode_segmentation(segmentation) if segmentation else None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        expected = "expected a list of polygons, each a list of numbers, or an object with 'counts' and 'size'"
        return Outline(), f"{error}: {_format(segmentation)}; {expected}"
    if not isinstance(said, _RunLengths):
        outline = Outline(said or ())
        return outline, find_fault(outline, None)  # a worker knows whether its box is kept, wherever it is
    counts, wrong = said.counts, _find_size_fault(said.size, size)
    if not wrong and isinstance(counts, list):
        if min(counts, default=-1) < 0 or sum(counts) != math.prod(said.size):
            return Outline(), _format_wrong_sum(sum(counts), said.size)
        counts = import_pycocotools().frPyObjects({"counts": counts, "size": said.size}, *said.size)["counts"].decode()
    outline = Outline(counts=str(counts).encode(), size=said.size)
    return outline, wrong or _find_counts_fault(outline)


def find_fault(outline: Outline, size: tuple[int, int] | None) -> str:
    """Return why pycocotools cannot draw an outline in an image of this height and width, or empty text if it can."""
    if outline.counts:
        return _find_size_fault(outline.size, size) or _find_counts_fault(outline)
    for place, polygon in enumerate(outline.polygons):
        which = f"polygon {place + 1} of {len(outline.polygons)}"
        if len(polygon) < _LEAST_NUMBERS or len(polygon) % 2:
            return f"{which} has {len(polygon)} numbers, {_format(polygon)}. Expected x and y of three points or more"
        if not all(map(math.isfinite, polygon)):
            return f"{which} is {_format(polygon)}. Expected finite numbers"
        if size is not None and _touches(polygon, size) and _length_of(polygon) > _MOST_LENGTH_PX:
            return f"{which} is more than {_MOST_LENGTH_PX:,} pixels long: {_format(polygon)}"
    if size is None or not outline.polygons:
        return ""
    is_inside = any(_touches(polygon, size) for polygon in outline.polygons)
    outside = f"it lies outside the image of {size[1]}x{size[0]} pixels: {_format(outline.polygons)}"
    return _find_size_fault(size, size) if is_inside else outside


def _find_size_fault(said: tuple[int, int], size: tuple[int, int] | None) -> str:
    height, width = said
    if size is not None and size != said:
        return f"its run lengths are for {width}x{height} pixels. The image has {size[1]}x{size[0]}"
    if min(said) < 1 or height * width > _MOST_PIXELS:
        return f"it is in an image of {width}x{height} pixels. Expected 1 to {_MOST_PIXELS:,} pixels"
    return ""


def _find_counts_fault(outline: Outline) -> str:
    """Read the run lengths as pycocotools does, which checks neither where they end nor their sum."""
    if not _RUN_LENGTHS.fullmatch(outline.counts):
        return f"its run lengths are damaged: {_format(outline.counts)}"
    bits = np.frombuffer(outline.counts, np.uint8).astype(np.int64) - ord("0")
    ends = np.flatnonzero(bits < 32)
    lengths = np.diff(ends, prepend=-1)
    starts = ends - lengths + 1
    shifts = 5 * (np.arange(len(bits)) - np.repeat(starts, lengths))
    counts = np.add.reduceat((bits & 31) << shifts, starts)
    counts -= np.where(bits[ends] & 16, 1 << 5 * lengths, 0)  # the sign
    for first in (1, 2):  # the others are differences from the last but one
        counts[first::2] = counts[first::2].cumsum()
    is_sound = counts.min() >= 0 and counts.sum() == math.prod(outline.size)
    return "" if is_sound else _format_wrong_sum(int(counts.sum()), outline.size)


def _format_wrong_sum(total: int, size: tuple[int, int]) -> str:
    return f"its run lengths add up to {total:,}. Expected numbers from 0 that add up to {math.prod(size):,} pixels"


def _touches(polygon: Sequence[float], size: tuple[int, int]) -> bool:
    xs, ys = polygon[::2], polygon[1::2]
    return max(xs) > 0 and min(xs) < size[1] and max(ys) > 0 and min(ys) < size[0]


def _length_of(polygon: Sequence[float]) -> float:
    """Return the length of a polygon. Each side counts by its longer extent."""
    points = np.reshape(polygon, (-1, 2))
    return float(np.abs(points - np.roll(points, 1, 0)).max(1).sum())


def _format(value: Any) -> str:
    text = bytes(value).decode(errors="replace") if isinstance(value, bytes | msgspec.Raw) else str(value)
    return shorten(text, _SAID)


class MaskDrawer:
    """Draws the masks of samples. Raises MissingExtraError without pycocotools.

    Args:
        kind: "semantic": a pixel is 1 + the id of its class; "instance": 1 + the place of its object in the list of
            boxes.
        is_relative: like boxes, outlines are shares of the image's width and height.
    """

    def __init__(self, kind: Outlines, is_relative: bool) -> None:
        self._kind, self._is_relative, self._draw = kind, is_relative, import_pycocotools()

    def draw(
        self, item: Item, kept: npt.NDArray[np.bool_], size: tuple[int, int]
    ) -> tuple[npt.NDArray[np.uint8], tuple[str, ...]]:
        """Return the mask of an item in an image of this height and width, and its odd cases.

        Crowds are drawn first, then each object over earlier ones. Objects whose boxes are not `kept` are left out, and
        do not count.

        Raises:
            ImageError: bad_mask: an outline cannot be drawn. Names its place and value.
        """
        outlines, is_semantic = item.outlines, self._kind == "semantic"
        values = np.array(item.labels, np.int64) + 1 if is_semantic else np.cumsum(kept)
        if not len(outlines) == len(kept) == len(values):
            counts = f"{len(outlines)} outlines, {len(kept)} boxes and {len(item.labels)} labels"
            raise ImageError("bad_mask", f"the sample has {counts}. Expected one of each for every object")
        mask, odd = np.zeros(size, np.uint8, order="F"), list[str]()
        for place in sorted(np.flatnonzero(kept).tolist(), key=lambda place: not outlines[place].is_crowd):
            outline, value = self._to_pixels(outlines[place], size), int(values[place])
            wrong = find_fault(outline, size)
            if not wrong and value > MOST_VALUES and not outline.is_crowd:
                wrong = f"its value would be {value}, and masks have values for {MOST_VALUES} objects"
            if wrong:
                raise ImageError("bad_mask", f"outline {place + 1} of {len(outlines)}: {wrong}")
            if not (outline.counts or outline.polygons):
                odd.append(NO_OUTLINE)
                continue
            pixels = self._pixels_of(outline, size)
            np.copyto(mask, _CROWD if outline.is_crowd else value, where=pixels)
            if not pixels.any():
                odd.append(NO_PIXELS)
        return mask, tuple(odd)

    def _to_pixels(self, outline: Outline, size: tuple[int, int]) -> Outline:
        if not self._is_relative or not outline.polygons:
            return outline
        polygons = (
            tuple(number * size[1 - place % 2] for place, number in enumerate(polygon)) for polygon in outline.polygons
        )
        return msgspec.structs.replace(outline, polygons=tuple(polygons))

    def _pixels_of(self, outline: Outline, size: tuple[int, int]) -> npt.NDArray[np.bool_]:
        runs = {"counts": outline.counts, "size": size}
        if not outline.counts:
            inside = [list(polygon) for polygon in outline.polygons if _touches(polygon, size)]
            runs = self._draw.merge(self._draw.frPyObjects(inside, *size))
        pixels: npt.NDArray[np.bool_] = self._draw.decode(runs).view(np.bool_)
        return pixels
