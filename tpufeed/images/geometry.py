"""Geometry of a sample: where each place of a result lies in the stored image, and which part of that it shows.

Ops move pixels by windows and affine maps. All of a chain are composed to one map here. It moves masks, boxes and
points as the images are moved, without looking at a pixel.

Places are continuous: x to the right in [0, width], y down in [0, height], the middle of the first pixel at (0.5, 0.5).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from tpufeed.images.protocols import Affine, Window

Point: TypeAlias = tuple[float, float]
Polygon: TypeAlias = tuple[Point, ...]  # convex, of at least three corners, or empty
Array: TypeAlias = npt.NDArray[Any]
Boxes: TypeAlias = npt.NDArray[np.float32]
Bools: TypeAlias = npt.NDArray[np.bool_]

_IDENTITY: Affine = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0)
_SLACK = 1e-6  # pixels, of rounding
_NO_AREA = 1e-9
# For each EXIF orientation the place in the stored image, from x and y of the result in shares of its size.
_TURNED: dict[int, Affine] = {
    1: (1, 0, 0, 0, 1, 0),
    2: (-1, 0, 1, 0, 1, 0),
    3: (-1, 0, 1, 0, -1, 1),
    4: (1, 0, 0, 0, -1, 1),
    5: (0, 1, 0, 1, 0, 0),
    6: (0, 1, 0, -1, 0, 1),
    7: (0, -1, 1, -1, 0, 1),
    8: (0, -1, 1, 1, 0, 0),
}


@dataclass(frozen=True, slots=True)
class Geometry:
    """Immutable map from a result to the image that it was made of.

    Attributes:
        source: (height, width) of the image in pixels.
        size: (height, width) of the result.
        to_source: from a place in the result to the place in the image.
        visible: the part of the image that the result shows, in places of the image. All beyond it is fill, even if a
            later step reaches what an earlier one had cut off.
    """

    source: tuple[int, int]
    size: tuple[int, int]
    to_source: Affine
    visible: Polygon

    @classmethod
    def identity(cls, height: int, width: int) -> Self:
        """Return the map of an image of this size to itself."""
        return cls((height, width), (height, width), _IDENTITY, _rectangle(0.0, 0.0, float(width), float(height)))

    def window(self, window: Window) -> "Geometry":
        """Return the map after a window is cut out of the result and resized."""
        x_scale, y_scale = window.width / window.out_width, window.height / window.out_height
        step = (x_scale, 0.0, float(window.left), 0.0, y_scale, float(window.top))
        return self._then(step, (window.out_height, window.out_width))

    def affine(self, to_before: Affine) -> "Geometry":
        """Return the map after a step that keeps the size, from places after it to places before it."""
        return self._then(to_before, self.size)

    def turned(self, orientation: int) -> "Geometry":
        """Return the map after an EXIF orientation, 1 to 8, is applied."""
        height, width = self.size
        a, b, c, d, e, f = _TURNED[orientation]
        size = (height, width) if orientation < 5 else (width, height)
        # Shares of the result's sides become pixels of the image's.
        out_height, out_width = size
        step = (
            a * width / out_width,
            b * width / out_height,
            c * width,
            d * height / out_width,
            e * height / out_height,
            f * height,
        )
        return self._then(step, size)

    def warp(self, image: Array, fill: int, out: Array | None = None) -> Array:
        """Return a mask as the result shows it: each pixel is the nearest of the image, or `fill` beyond it.

        Args:
            image: integers of shape `source`.
            fill: the value beyond `visible`.
            out: memory of shape `size` and the image's dtype. It is returned.
        """
        height, width = self.size
        a, b, c, d, e, f = self.to_source
        across, down = np.arange(width) + 0.5, np.arange(height) + 0.5
        if not self.visible:
            result = np.full(self.size, fill, image.dtype)
        elif b == d == 0 and _is_box(self.visible):
            (left, right), (top, bottom) = _spans(self.visible)
            columns, rows = across * a + c, down * e + f
            column_numbers = np.clip(columns.astype(np.intp), 0, self.source[1] - 1)
            row_numbers = np.clip(rows.astype(np.intp), 0, self.source[0] - 1)
            result = image.take(row_numbers, 0).take(column_numbers, 1)
            result[(rows < top - _SLACK) | (rows > bottom + _SLACK)] = fill
            result[:, (columns < left - _SLACK) | (columns > right + _SLACK)] = fill
        else:
            across, down = across.astype(np.float32), down.astype(np.float32)[:, None]
            x, y = across * np.float32(a) + (down * b + c), across * np.float32(d) + (down * e + f)
            rows = np.clip(y, 0, self.source[0] - 1, dtype=np.int32, casting="unsafe")
            columns = np.clip(x, 0, self.source[1] - 1, dtype=np.int32, casting="unsafe")
            result = image.ravel().take(rows * np.int32(self.source[1]) + columns)
            for outside in self._iter_outside(across, down):
                result[outside] = fill
        if out is None:
            return result
        out[...] = result
        return out

    def _iter_outside(self, across: Array, down: Array) -> Iterator[Bools]:
        """Yield the result's pixels beyond each side of `visible`, except for sides that no pixel is beyond."""
        a, b, c, d, e, f = self.to_source
        height, width = self.size
        for (x, y), (along_x, along_y) in _sides(self.visible):
            # How far within, as a function of the place in the result.
            by_x, by_y = along_x * d - along_y * a, along_x * e - along_y * b
            start = along_x * (f - y) - along_y * (c - x) + _SLACK * (abs(along_x) + abs(along_y))
            if start + min(0.0, by_x * width) + min(0.0, by_y * height) < 0:
                yield across * np.float32(by_x) + (down * np.float32(by_y) + np.float32(start)) < 0

    def move_boxes(self, boxes: Array, min_visibility: float = 0.0) -> tuple[Boxes, Bools]:
        """Return boxes in pixels of the result, each the smallest around its visible part, and which boxes are kept.

        Args:
            boxes: (n, 4): left, top, right, bottom in pixels of the image.
            min_visibility: the least visible share of a box's area, 0 to 1. A box without area is never kept.
        """
        given = np.asarray(boxes, np.float64).reshape(-1, 4)
        kept = np.zeros(len(given), np.bool_)
        moved = np.zeros((len(given), 4), np.float32)
        if not len(given) or not self.visible:
            return moved, kept
        inverse, areas = _invert(self.to_source), (given[:, 2] - given[:, 0]) * (given[:, 3] - given[:, 1])
        a, b, _, d, e, _ = self.to_source
        if (b == d == 0 or a == e == 0) and _is_box(self.visible):  # sides stay parallel to the axes
            (left, right), (top, bottom) = _spans(self.visible)
            cut = np.clip(given, (left, top, left, top), (right, bottom, right, bottom))
            shown = (cut[:, 2] - cut[:, 0]) * (cut[:, 3] - cut[:, 1])
            corners = _apply(inverse, cut.reshape(-1, 2, 2))
            moved[:, :2], moved[:, 2:] = corners.min(1), corners.max(1)
        else:
            shown = np.zeros(len(given))
            for number, (left, top, right, bottom) in enumerate(given.tolist()):
                part = _clip(self.visible, left, top, right, bottom)
                shown[number] = abs(_signed_area(part))
                if part:
                    corners = _apply(inverse, np.array(part))
                    moved[number, :2], moved[number, 2:] = corners.min(0), corners.max(0)
        kept = (areas > _NO_AREA) & (shown > _NO_AREA) & (shown >= min_visibility * areas * (1 - 1e-9))
        height, width = self.size
        np.clip(moved, 0, (width, height, width, height), out=moved)
        return moved, kept

    def move_points(self, points: Array) -> tuple[Boxes, Bools]:
        """Return points in pixels of the result, and which of them it shows.

        Args:
            points: (n, 2) or (n, 3): x, y and a visibility. 0 means that a point is absent. It becomes 0 for points
                that the result does not show.
        """
        given = np.asarray(points, np.float32)
        moved = given.copy()
        if not len(given):
            return moved, np.zeros(0, np.bool_)
        moved[:, :2] = _apply(_invert(self.to_source), given[:, :2].astype(np.float64))
        shown = np.full(len(given), bool(self.visible))
        for (x, y), (along_x, along_y) in _sides(self.visible):
            slack = _SLACK * (abs(along_x) + abs(along_y))
            shown &= along_x * (given[:, 1] - y) - along_y * (given[:, 0] - x) >= -slack
        if given.shape[1] > 2:
            shown &= given[:, 2] > 0
            moved[~shown, 2] = 0
        return moved, shown

    def bounds(self) -> tuple[float, float, float, float]:
        """Return (top, left, height, width) of what the result shows, in pixels of the image."""
        if not self.visible:
            return 0.0, 0.0, 0.0, 0.0
        (left, right), (top, bottom) = _spans(self.visible)
        return top, left, bottom - top, right - left

    @property
    def is_mirrored(self) -> bool:
        """True if the result is a mirror image, in any orientation: a left hand looks like a right one."""
        a, b, _, d, e, _ = self.to_source
        return a * e - b * d < 0

    def _then(self, step: Affine, size: tuple[int, int]) -> "Geometry":
        to_source = _compose(self.to_source, step)
        a, b, c, d, e, f = to_source
        corners = _rectangle(0.0, 0.0, float(size[1]), float(size[0]))
        shown: Polygon = tuple((a * x + b * y + c, d * x + e * y + f) for x, y in corners)
        return Geometry(self.source, size, to_source, _intersect(self.visible, shown))


def _rectangle(left: float, top: float, right: float, bottom: float) -> Polygon:
    return (left, top), (right, top), (right, bottom), (left, bottom)


def _compose(outer: Affine, inner: Affine) -> Affine:
    """Return the map that applies `inner` first."""
    a, b, c, d, e, f = outer
    p, q, r, s, t, u = inner
    return a * p + b * s, a * q + b * t, a * r + b * u + c, d * p + e * s, d * q + e * t, d * r + e * u + f


def _invert(affine: Affine) -> Affine:
    a, b, c, d, e, f = affine
    determinant = a * e - b * d
    p, q, s, t = e / determinant, -b / determinant, -d / determinant, a / determinant
    return p, q, -(p * c + q * f), s, t, -(s * c + t * f)


def _apply(affine: Affine, points: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    a, b, c, d, e, f = affine
    x, y = points[..., 0], points[..., 1]
    return np.stack((a * x + b * y + c, d * x + e * y + f), -1)


def _spans(polygon: Polygon) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return the least and the largest x, and those of y."""
    xs, ys = [x for x, _ in polygon], [y for _, y in polygon]
    return (min(xs), max(xs)), (min(ys), max(ys))


def _is_box(polygon: Polygon) -> bool:
    if len(polygon) != 4:
        return False
    (left, right), (top, bottom) = _spans(polygon)
    return all(x in (left, right) and y in (top, bottom) for x, y in polygon)


def _intersect(one: Polygon, other: Polygon) -> Polygon:
    """Sutherland and Hodgman 1974: cut a convex polygon by each side of the other."""
    if not one:
        return ()
    if _is_box(one) and _is_box(other):
        spans = [(max(a[0], b[0]), min(a[1], b[1])) for a, b in zip(_spans(one), _spans(other), strict=True)]
        (left, right), (top, bottom) = spans
        return _rectangle(left, top, right, bottom) if left < right and top < bottom else ()
    for (x, y), (along_x, along_y) in _sides(other):
        one = _cut(one, [along_x * (py - y) - along_y * (px - x) for px, py in one])
        if not one:
            return ()
    return one


def _clip(polygon: Polygon, left: float, top: float, right: float, bottom: float) -> Polygon:
    """Return the part of a convex polygon within a box."""
    for sign, axis, limit in ((1, 0, left), (-1, 0, right), (1, 1, top), (-1, 1, bottom)):
        polygon = _cut(polygon, [sign * (corner[axis] - limit) for corner in polygon])
    return polygon


def _cut(polygon: Polygon, inside: list[float]) -> Polygon:
    """Return the part of a polygon in which a linear function, given by its values at the corners, is not below 0."""
    found: list[Point] = []
    for number, (point, value) in enumerate(zip(polygon, inside, strict=True)):
        before, was = polygon[number - 1], inside[number - 1]
        if (value >= 0) != (was >= 0):
            share = was / (was - value)
            found.append((before[0] + share * (point[0] - before[0]), before[1] + share * (point[1] - before[1])))
        if value >= 0:
            found.append(point)
    return tuple(found) if len(found) > 2 else ()


def _signed_area(polygon: Polygon) -> float:
    """Return half the sum of cross products: above 0 if corners follow each other clockwise, as y goes down."""
    return sum(polygon[number - 1][0] * y - x * polygon[number - 1][1] for number, (x, y) in enumerate(polygon)) / 2


def _sides(polygon: Polygon) -> Iterator[tuple[Point, Point]]:
    """Yield start and direction of each side, clockwise: the inside is to the right."""
    corners = polygon if _signed_area(polygon) > 0 else polygon[::-1]
    for number, (x, y) in enumerate(corners):
        along_x, along_y = corners[(number + 1) % len(corners)][0] - x, corners[(number + 1) % len(corners)][1] - y
        # Cutting leaves corners that are equal except for rounding: the direction of such a side means nothing.
        if abs(along_x) + abs(along_y) > _SLACK:
            yield (x, y), (along_x, along_y)
