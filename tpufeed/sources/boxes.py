"""Check boxes and keypoints, and convert them to pixels of the stored image."""

import itertools
import math
import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from tpufeed.dataset.schema import LABEL, TEXT, FeatureSpec, Kind, flip_problem
from tpufeed.errors import ImageError, OptionError
from tpufeed.images.geometry import Geometry
from tpufeed.sources.columns import Declared
from tpufeed.text import shorten
from tpufeed.tfrecord.example import Feature

VOC = "voc"  # left, top, right and bottom as Pascal VOC counts pixels: from 1, and the last one is inside
_LEFT = re.compile(r"left|(?<![a-z])l(?![a-z])")
FORMATS = ("xyxy", "xywh", "cxcywh", VOC)
Outside = Literal["reject", "clip", "drop"]  # what to do with boxes that reach further beyond the image
_OUTSIDE_PX = 2.0  # a box may reach this far beyond its image: tools round, and count pixels from 0 or from 1
_LEAST_AREA = 1e-6  # of a box, in square pixels: in float32 less may become nothing
_BOX = 4
_Numbers: TypeAlias = npt.NDArray[Any]
_Bools: TypeAlias = npt.NDArray[np.bool_]
FlipPairs: TypeAlias = tuple[tuple[int, int], ...]


def check_format(box_format: str) -> tuple[str, bool]:
    """Return the numbers of a box, and whether they are shares of the image's width and height.

    Args:
        box_format: "xyxy" (left, top, right, bottom), "xywh" (left, top, width, height), "cxcywh" (middle, width,
            height), followed by ",relative" for shares, or "voc" ("xyxy", counted from 1).

    Raises:
        OptionError: the format is unknown.
    """
    form, comma, relative = box_format.partition(",")
    if form not in FORMATS or (comma and (relative.strip() != "relative" or form == VOC)):
        raise OptionError(
            f"unknown box format {box_format!r}: expected {VOC}, or one of {', '.join(FORMATS[:-1])}, followed by "
            "',relative' if numbers are shares of the width and height"
        )
    return form, bool(comma)


def declare(boxes: str | None, keypoints: str | None, columns: Sequence[Declared]) -> tuple[Declared, ...]:
    """Return the declared columns with boxes and keypoints. Raises OptionError if these have another type."""
    if boxes is not None and boxes == keypoints:
        raise OptionError(f"the column {boxes!r} cannot hold both boxes and keypoints")
    declared = {column.name: column for column in columns}
    kinds: tuple[tuple[str | None, Kind, tuple[int, ...] | None], ...] = (
        (boxes, "boxes", (_BOX,)),
        (keypoints, "keypoints", None),
    )
    for name, kind, each in kinds:
        if name is None:
            continue
        said = declared.get(name, Declared(name, "float32", None, each))
        if said.dtype != "float32" or said.shape is not None or (said.each != each and kind == "boxes"):
            raise OptionError(f"the column {name!r} of {kind} is declared as {said}. Leave this declaration out")
        declared[name] = said._replace(kind=kind)
    return tuple(declared.values())


def parse_pairs(flip_pairs: str | Sequence[Sequence[int]]) -> FlipPairs:
    """Parse pairs like "1:2,3:4", or a list of pairs. "none" means no pairs. Raises OptionError."""
    pairs: Any = flip_pairs
    if isinstance(flip_pairs, str):
        pairs = [] if flip_pairs == "none" else [each.split(":") for each in flip_pairs.split(",")]
        pairs = [[int(point) if point.strip().isdecimal() else point for point in pair] for pair in pairs]
    found = []
    for pair in pairs if isinstance(pairs, Iterable) else [pairs]:
        try:
            one, other = map(operator.index, pair)
        except (TypeError, ValueError):
            raise OptionError(
                f"flip_pairs {flip_pairs!r}: {pair!r} is not a pair of indexes of keypoints, which count from 0. Write "
                "1:2,3:4 or [(1, 2), (3, 4)], or none or [] if no points are left and right"
            ) from None
        found.append((one, other))
    return tuple(found)


def pair_names(names: Any, points: int) -> FlipPairs | None:
    """Return the pairs of names like left_eye and right_eye, or L-ear and R-ear. None if no names are a pair."""
    if not isinstance(names, list) or len(names) != points or not all(isinstance(name, str) for name in names):
        return None
    places = {name.lower(): place for place, name in enumerate(names)}
    opposite = [(at, _LEFT.sub(lambda left: "r" if left[0] == "l" else "right", name)) for name, at in places.items()]
    return tuple((at, places[name]) for at, name in opposite if places.get(name, at) != at) or None


def format_pairs(pairs: FlipPairs) -> str:
    """Return the text that `parse_pairs` takes for some pairs."""
    return ",".join(f"{one}:{other}" for one, other in pairs) or "none"


def mark_boxes(
    features: Sequence[FeatureSpec],
    boxes: str | None,
    box_columns: Sequence[str],
    are_cut: bool,
    flip_pairs: FlipPairs | None = None,
) -> tuple[FeatureSpec, ...]:
    """Return the features of records, with those marked that belong to the column `boxes`.

    If images `are_cut`, boxes may be dropped, so that samples may have fewer than in their source.

    Raises:
        OptionError: a column is missing or lacks a value for each box, keypoints have a wrong shape, or `flip_pairs`
            do not fit them.
    """
    missing = set(box_columns) - {spec.name for spec in features}
    if missing:
        raise OptionError(f"no sample has the column {min(missing)!r}, which should have a value for each box")
    marked = list[FeatureSpec]()
    for spec in features:
        owner, lengths, pairs = spec.of, spec.lengths, spec.flip_pairs
        if spec.name in box_columns:
            owner = boxes or owner
            if spec.shape is not None:
                raise OptionError(f"the column {spec.name!r} should have a value per box. It holds {spec.type_text}")
        if spec.kind == "keypoints":
            of_boxes = len(spec.each) == 2
            if len(spec.each) not in (1, 2) or spec.each[-1] not in (2, 3) or (of_boxes and boxes is None):
                raise OptionError(
                    f"the column {spec.name!r} of keypoints has items of the shape {list(spec.each)}. Expected x, y "
                    "and maybe a visibility, or with --boxes a list of these for each box"
                )
            owner = boxes if of_boxes and boxes is not None else spec.of
            pairs = pairs if flip_pairs is None else flip_pairs
        if are_cut and boxes is not None and boxes in (spec.name, owner) and isinstance(lengths, tuple):
            lengths = 0, lengths[1]
        spec = msgspec.structs.replace(spec, of=owner, lengths=lengths, flip_pairs=pairs)  # noqa: PLW2901
        if spec.kind == "keypoints" and flip_pairs is not None and (wrong := flip_problem(spec)):
            raise OptionError(f"the column {spec.name!r}: {wrong}")
        marked.append(spec)
    return tuple(marked)


class BoxMover:
    """Moves boxes and keypoints into pixels of the stored image. `box_format` as in `check_format` is for both.

    Attributes:
        is_relative: their numbers are shares of the image's width and height.
    """

    def __init__(self, features: Sequence[FeatureSpec], box_format: str, boxes_outside: Outside = "reject") -> None:
        self._outside = boxes_outside
        self._boxes = next((spec for spec in features if spec.kind == "boxes"), None)
        self._points = [spec for spec in features if spec.kind == "keypoints"]
        owner = None if self._boxes is None else self._boxes.name
        self._owned = [spec for spec in features if owner is not None and spec.of == owner]
        self._form, self.is_relative = check_format(box_format)

    def has_any(self, features: Mapping[str, Feature]) -> bool:
        """Return true for a sample with a box or keypoint."""
        marks = self._points if self._boxes is None else [self._boxes, *self._points]
        return any(features[spec.name].values for spec in marks)

    def are_tiny(self, features: Mapping[str, Feature]) -> bool:
        """Return true if all boxes that a source gives in pixels are within the first pixel."""
        numbers = [] if self._boxes is None or self.is_relative else features[self._boxes.name].values
        return max(numbers, default=2) <= 1

    def move(
        self, features: Mapping[str, Feature], size: tuple[int, int], stored: Geometry
    ) -> tuple[dict[str, Feature], _Bools, int]:
        """Move the boxes and keypoints of a sample. Return its features, which boxes are kept, and how many clipped.

        `size` is the height and width of the image that their numbers refer to. `stored` maps it to the stored one. A
        box outside the stored image, as "fit" cuts it, is dropped with the values that belong to it. A box is clipped
        silently if it reaches at most 2 pixels beyond the image.

        Raises:
            ImageError: bad_box: a box or keypoint is impossible. Names column and value.
        """
        height, width = size
        scale = np.array([width, height], np.float64) if self.is_relative else np.ones(2)
        moved, kept, clipped = dict(features), np.ones(0, np.bool_), 0
        for spec in self._points:
            points = _numbers(spec, features, spec.each[-1])
            _refuse(spec, points, ~np.isfinite(points).all(axis=1), "a keypoint has finite numbers")
            if spec.flip_pairs and spec.lengths and len(spec.each) == 1 and len(points) not in (0, spec.lengths[1]):
                raise ImageError(
                    "bad_box",
                    f"the column {spec.name!r} has {len(points)} keypoints. Expected {spec.lengths[1]} or none, as "
                    "flip_pairs name them by index",
                )
            unset = ~points.any(axis=1) & (spec.each[-1] == 3)  # COCO's notation for a point that was not marked
            points[:, :2] *= scale
            points = stored.move_points(points.astype(np.float32))[0]
            points[unset] = 0
            if stored.is_mirrored and spec.flip_pairs and len(points):  # its annotator saw left and right swapped
                order = np.arange(spec.each[0] if len(spec.each) > 1 else len(points))
                for one, other in spec.flip_pairs:
                    order[[one, other]] = order[[other, one]]
                points = points.reshape(-1, len(order), spec.each[-1])[:, order]
            moved[spec.name] = Feature("float", points.ravel().tolist())
        if self._boxes is not None:
            boxes = _numbers(self._boxes, features, _BOX)
            corners = self._to_corners(boxes, np.tile(scale, 2))
            outside, empty = self._check(self._boxes, boxes, corners, height, width)
            for spec in self._owned:
                count = spec.count_items(features[spec.name])
                if count != len(boxes):
                    name = "label" if spec.name in (LABEL, TEXT) else spec.name
                    raise ImageError(
                        "bad_box",
                        f"the column {name!r} has {_format(list(features[spec.name].values))}, {count:g} for the "
                        f"{len(boxes)} boxes in {self._boxes.name!r}. Expected one for each",
                    )
            corners = np.clip(corners, 0, [width, height, width, height]).astype(np.float32)
            corners, kept = stored.move_boxes(corners, 0.0)
            kept &= ~(outside | empty if self._outside == "drop" else empty)
            clipped = int((outside & kept).sum())
            moved[self._boxes.name] = Feature("float", corners[kept].ravel().tolist())
            for spec in () if kept.all() else self._owned:
                moved[spec.name] = _pick(spec, moved[spec.name], kept)
        return moved, kept, clipped

    def _to_corners(self, boxes: _Numbers, scale: _Numbers) -> _Numbers:
        first, second = boxes[:, :2], boxes[:, 2:]
        with np.errstate(invalid="ignore", over="ignore"):  # inf - inf: such a box is refused
            if self._form == "xywh":
                second = first + second
            elif self._form == "cxcywh":
                first, second = first - second / 2, first + second / 2
            elif self._form == VOC:
                first = first - 1
            return np.hstack([first, second]) * scale

    def _check(
        self, spec: FeatureSpec, boxes: _Numbers, corners: _Numbers, height: int, width: int
    ) -> tuple[_Bools, _Bools]:
        """Return which boxes reach too far beyond the image, and which are wholly outside of it. Raises ImageError."""
        finite = np.isfinite(boxes).all(axis=1) & np.isfinite(corners).all(axis=1)
        _refuse(spec, boxes, ~finite, "a box has finite numbers")
        sizes = corners[:, 2:] - corners[:, :2]
        are_corners = self._form in ("xyxy", VOC)
        ends = "the right and bottom edges" if are_corners else "the width and height"
        above = "beyond the left and top ones" if are_corners else "above 0"
        empty = (sizes <= 0).any(axis=1) | (sizes.prod(axis=1) < _LEAST_AREA)
        _refuse(spec, boxes, empty, f"it is upside down or empty. Expected {ends} {above}: check the box format")
        most = np.array([width, height, width, height])
        outside: _Bools = np.any((corners < -_OUTSIDE_PX) | (corners > most + _OUTSIDE_PX), axis=1)
        inside = np.clip(corners, 0, most)
        areas: _Numbers = (inside[:, 2:] - inside[:, :2]).prod(axis=1)
        gone = areas < _LEAST_AREA
        if self._outside == "reject":
            of = f"the image of {width}x{height} pixels"
            advice = "check the box format and EXIF orientations; --boxes-outside clip or drop takes such images"
            _refuse(spec, boxes, outside | gone, f"it lies outside {of}; {advice}", corners)
        return outside, gone


def _numbers(spec: FeatureSpec, features: Mapping[str, Feature], each: int) -> _Numbers:
    values = np.array(features[spec.name].values, np.float64)
    if values.size % each:
        raise ImageError("bad_box", f"the column {spec.name!r} has {values.size} numbers, not a multiple of {each}")
    return values.reshape(-1, each)


def _refuse(spec: FeatureSpec, rows: _Numbers, wrong: Any, why: str, corners: _Numbers | None = None) -> None:
    if not wrong.any():
        return
    place = int(wrong.argmax())
    of = "" if corners is None else f", {_format(corners[place].round(2).tolist())} in pixels"
    what = f"number {place + 1} of the {len(rows)} in the column {spec.name!r} is {_format(rows[place].tolist())}{of}"
    raise ImageError("bad_box", f"{what}: {why}")


def _format(values: Sequence[Any]) -> str:
    return shorten(str([float(f"{value:g}") if isinstance(value, float) else value for value in values]))


def _pick(spec: FeatureSpec, feature: Feature, kept: _Bools) -> Feature:
    """Return the items of the boxes that are kept."""
    if spec.is_raw:
        items = np.frombuffer(b"".join(feature.values), np.uint8).reshape(len(kept), -1)  # type: ignore[arg-type]
        return Feature("bytes", [items[kept].tobytes()])
    each = math.prod(spec.each)
    values = list(feature.values)
    starts = (int(place) * each for place in np.flatnonzero(kept))
    return Feature(feature.kind, list(itertools.chain.from_iterable(values[start : start + each] for start in starts)))
