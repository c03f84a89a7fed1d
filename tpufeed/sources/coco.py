"""Read COCO's JSON: boxes, their categories, and keypoints if there are any.

A file of 450 MB has the outlines of 860,000 objects. Only fields that become features are decoded. A file whose fields
have other types than COCO's is decoded again, and its rows are taken or refused one by one.
"""

import itertools
import posixpath
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np

from tpufeed.builds.item import Item
from tpufeed.errors import NoInputsError, OptionError, SourceError, TpufeedError
from tpufeed.sources.boxes import FlipPairs, pair_names
from tpufeed.sources.coco_folders import find_images, find_splits, parse_named, stats
from tpufeed.sources.inputs import Files
from tpufeed.sources.options import BOXES, KEYPOINTS, ShardOptions
from tpufeed.sources.outlines import coco_outlines
from tpufeed.sources.paths import identity_of, name_of_row, resolve, whole
from tpufeed.sources.source import (
    SPLITS,
    Contents,
    Folder,
    Found,
    Place,
    Source,
    check_declares_all,
    item_of,
    listing,
    read_size,
)
from tpufeed.storage.reading import open_compared
from tpufeed.storage.store import BROKEN_LINK, ObjectInfo, Store

_CROWD, _IMAGE_ID = "iscrowd", "image_id"
_AT_ONCE = 2048
_SHOWN = 3
_EXPECTED = "expected an object with 'images', 'annotations' and 'categories'"
_BOX = 4
_MOST_POINTS = 512  # keypoints of an object: a face has up to 478
_MOST_POINTS_OF_IMAGE = 200_000  # keypoints, also of objects that have none
_SAID = 40  # characters of a value in a message
_INT64 = 1 << 63
_POINT = 3
_WHOLE = re.compile(r"\s*([+-]?[0-9]{1,18})(\.0*)?\s*", re.ASCII)
_TEXT_OR_NAN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\Z)|(NaN|-?Infinity)', re.DOTALL)  # `json.dump` writes NaN
_ROW_FIELDS = {
    "category_id": "a number or text",
    "iscrowd": "0 or 1",
    "bbox": "left, top, width and height",
    "keypoints": "numbers",
}


_I = TypeVar("_I")
_C = TypeVar("_C")
_A = TypeVar("_A")


class _Image(msgspec.Struct, gc=False):
    id: int
    file_name: str
    width: Any = None
    height: Any = None


class _Annotation(msgspec.Struct, gc=False):
    image_id: int
    category_id: int
    bbox: list[float]
    iscrowd: int | bool = 0
    keypoints: list[float] | None = None


class _OutlinedAnnotation(_Annotation, gc=False):
    id: Any = None
    segmentation: msgspec.Raw = msgspec.Raw()


class _Category(msgspec.Struct, gc=False):
    id: int
    name: str
    keypoints: Any = None  # their names, if it is a list of text


class _Content(msgspec.Struct, Generic[_I, _C, _A], gc=False):
    images: list[_I]
    categories: list[_C]
    annotations: list[_A] | None = None


_OBJECT: Any = msgspec.Struct  # rows have the fields of other structs, which are not known to mypy


def _loosen(kind: Any) -> Any:
    """Return the type of rows with the fields of a struct, of any types. A row may also not be an object."""
    types = {"segmentation": (msgspec.Raw, msgspec.Raw())}
    fields = [(name, *types.get(name, (Any, None))) for name in kind.__struct_fields__]
    loose: Any = msgspec.defstruct(kind.__name__, fields, gc=False)
    return loose | list[Any] | str | float | bool | None


# The decoder of a file as COCO writes it, and that of rows with any types.
_CONTENT_OF: Any = _Content
_KINDS, _OUTLINED_KINDS = (_Image, _Category, _Annotation), (_Image, _Category, _OutlinedAnnotation)
_CONTENT = (
    msgspec.json.Decoder(_CONTENT_OF[_KINDS]),
    msgspec.json.Decoder(_CONTENT_OF[tuple(map(_loosen, _KINDS))]),
)
_OUTLINED_CONTENT = (
    msgspec.json.Decoder(_CONTENT_OF[_OUTLINED_KINDS]),
    msgspec.json.Decoder(_CONTENT_OF[tuple(map(_loosen, _OUTLINED_KINDS))]),
)


@dataclass(slots=True)
class Coco:
    """Contents of a file, in its order, and what was refused."""

    where: str  # its URL
    split: str | None = None
    base: str = ""  # the folder of its images
    images: list[_Image] = field(default_factory=list)
    categories: dict[int, str] = field(default_factory=dict)  # names in the order of their ids
    class_names: tuple[str, ...] = ()  # each name once
    annotations: dict[int, list[_Annotation]] = field(default_factory=dict)  # by the id of their image
    keypoints: int = 0  # of an annotation, or 0 if no annotation has any
    flip_pairs: FlipPairs | None = None  # keypoints that are left and right, if their names tell
    problems: dict[Any, str] = field(default_factory=dict)  # why annotations were refused, by the id of their image
    lost: list[tuple[str, str]] = field(default_factory=list)  # images without id or name: a name and what is wrong
    notes: list[str] = field(default_factory=list)  # what was left out, as sentences


def read_coco(store: Store, name: str, outlines: bool = False) -> Coco:
    """Read the file `name`, with its segmentations if `outlines` are drawn.

    Raises:
        SourceError: it is not a COCO file, or contradicts itself. Says where.
        NoInputsError: it names no images.
        UnavailableError, AccessError: the store does not answer, or refuses.
    """
    where = f"{store.url}/{name}"
    coco = Coco(where)
    with listing(f"{where} cannot be read"), open_compared(store, name) as file:
        data = file.read()
    try:
        images, categories, annotations = _decode(data.removeprefix(b"\xef\xbb\xbf"), outlines, coco)
    except msgspec.ValidationError as error:
        raise SourceError(
            f"{where}: not annotations of COCO's instances or keypoints: {error}; {_EXPECTED}. A table in JSON has one "
            "object per line, and a name that ends in .jsonl"
        ) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SourceError(f"{where}: not JSON: {error}. The file was cut short or badly copied") from error
    if not images and not coco.lost:
        raise NoInputsError(f"{where}: it names no images")
    for what, ids in ("images", [row.id for row in images]), ("categories", [row.id for row in categories]):
        ((value, times),) = Counter[Any](ids).most_common(1) or [(None, 0)]
        if times > 1:
            places = [str(place) for place, each in enumerate(ids) if each == value]
            raise SourceError(
                f"{where}: {times} of its {what} have the id {value!r}: {', '.join(places[:_SHOWN])} (from 0). Remove "
                "all but one, or give each its own id"
            )
    by_image: dict[int, list[_Annotation]] = {image.id: [] for image in images}
    unknown = [one.image_id for one in annotations if one.image_id not in by_image]
    if unknown:
        said = f"{where}: {len(unknown):,} of its {len(annotations):,} annotations"
        why = f"of images that are not in the file, like image {unknown[0]}"
        if len(unknown) == len(annotations):
            raise SourceError(f"{said} are {why}. Give the file that also lists their images")
        coco.notes.append(f"{said} are {why}, and are left out")
    for one in annotations:
        by_image.get(one.image_id, []).append(one)
    kept = list(itertools.chain.from_iterable(by_image.values()))
    marked = [one for one in kept if one.keypoints]
    lengths = Counter(len(one.keypoints or ()) for one in marked)
    points = max(1, max(lengths, key=lambda length: lengths[length]) // _POINT) if marked else 0
    if points > _MOST_POINTS:
        raise SourceError(f"{where}: an annotation has {points:,} keypoints. At most {_MOST_POINTS:,} are allowed")
    categories.sort(key=lambda category: (isinstance(category.id, str), category.id))
    used = {one.category_id for one in marked}  # all categories that have keypoints must agree on the pairs
    pairs = {pair_names(category.keypoints, points) for category in categories if category.id in used}
    coco.images, coco.annotations, coco.keypoints = images, by_image, points
    coco.flip_pairs = pairs.pop() if len(pairs) == 1 else None
    coco.categories = {category.id: category.name for category in categories}
    coco.class_names, joined = _join_names(coco.categories, {one.category_id for one in kept})
    coco.notes += [f"{where}: {said}" for said in joined]
    return coco


def _join_names(categories: Mapping[Any, str], used: set[Any]) -> tuple[tuple[str, ...], list[str]]:
    """Return the names of categories, each once, and notes on names that several `used` ids have.

    Of categories with one name, such as Roboflow's root, the first that is used decides the place.
    """
    ids = defaultdict[str, list[Any]](list)
    for number, name in categories.items():
        ids[name].append(number)
    found = {name: [number for number in numbers if number in used] or numbers[:1] for name, numbers in ids.items()}
    joined = [
        f"the categories {', '.join(map(str, numbers))} are all called {name!r}, and become one class"
        for name, numbers in found.items()
        if len(numbers) > 1
    ]
    first = {numbers[0] for numbers in found.values()}
    return tuple(name for number, name in categories.items() if number in first), joined


def _decode(data: bytes, outlines: bool, coco: Coco) -> tuple[list[_Image], list[_Category], list[_Annotation]]:
    """Decode a file: as COCO writes it, else row by row. Raises msgspec.DecodeError."""
    strict, loose = _OUTLINED_CONTENT if outlines else _CONTENT
    try:
        try:
            content = strict.decode(data)
        except msgspec.DecodeError:
            if b"NaN" in data or b"Infinity" in data:  # pandas means a missing value by NaN
                data = _TEXT_OR_NAN.sub(lambda found: b"null" if found[1] else found[0], data)
            content = strict.decode(data)
    except msgspec.ValidationError as error:
        return _take_rows(loose.decode(data), coco, error)
    return content.images, content.categories, content.annotations or []


def _to_id(value: Any) -> Any:
    """Return an id as an int, or as text that is not a number: 7, 7.0 and "7" are the same. None for other values."""
    if type(value) is int:
        return value
    if isinstance(value, str):
        whole = _WHOLE.fullmatch(value)
        return int(whole[1]) if whole else value or None
    return int(value) if isinstance(value, float) and value.is_integer() else None


def _take_rows(
    loose: Any, coco: Coco, error: msgspec.ValidationError
) -> tuple[list[_Image], list[_Category], list[_Annotation]]:
    """Take the rows of a file one by one. Raises the `error` of its first bad row if it has no annotations of boxes."""
    where, rows = coco.where, loose.annotations or []
    images, categories, annotations, boxless = list[Any](), list[Any](), list[Any](), 0
    for number, row in enumerate(loose.images):
        said, file = (row.id, row.file_name) if isinstance(row, _OBJECT) else (None, None)
        image_id, has_name = _to_id(said), isinstance(file, str) and bool(file)
        if image_id is None or not has_name:
            wrong = (
                f"the 'id' {said!r:.{_SAID}} and the 'file_name' {file!r:.{_SAID}}. Expected a number or text, and text"
            )
            place = str(file) if has_name else name_of_row(where.rpartition("/")[2], number)
            coco.lost.append((place, f"the image {number} (from 0) of {where} has {wrong}"))
            continue
        row.id = image_id
        images.append(row)
    for row in loose.categories:
        if isinstance(row, _OBJECT) and isinstance(row.name, str | int | float) and _to_id(row.id) is not None:
            row.id, row.name = _to_id(row.id), str(row.name)
            categories.append(row)
    if lost := len(loose.categories) - len(categories):
        coco.notes.append(f"{where}: {lost} categories without id or name are left out")
    known = {row.id for row in images}
    for number, row in enumerate(rows):
        if not isinstance(row, _OBJECT) or row.bbox is None:
            boxless += 1
            continue
        row.image_id = _to_id(row.image_id)
        if row.image_id in known and (wrong := _take_fields(row)):
            problem = f"{wrong!r} {getattr(row, wrong)!r:.{_SAID}} in annotation {number} (from 0)"
            coco.problems.setdefault(row.image_id, f"{problem}. Expected {_ROW_FIELDS[wrong]}")
            continue
        annotations.append(row)
    if (rows and boxless == len(rows)) or (loose.images and not images):
        raise error
    if boxless:
        coco.notes.append(f"{where}: {boxless:,} of its {len(rows):,} annotations have no 'bbox' and are left out")
    return images, categories, annotations


def _take_fields(row: Any) -> str:
    """Give the fields of an annotation COCO's types. Return the name of the first field that cannot have its type."""
    category, crowd, points = _to_id(row.category_id), row.iscrowd, row.keypoints
    if category is None:
        return "category_id"
    crowd = int(crowd or 0) if crowd is None or isinstance(crowd, bool) else _to_id(crowd)
    if not isinstance(crowd, int):
        return "iscrowd"
    for name, numbers in (("bbox", row.bbox), ("keypoints", [] if points is None else points)):
        if not isinstance(numbers, list) or not all(type(number) in (int, float) for number in numbers):
            return name
    row.category_id, row.iscrowd = category, crowd
    return ""


def _find_fault(one: _Annotation, coco: Coco) -> str:
    """Return the field of an annotation that is wrong, or empty text for a sound annotation."""
    if one.category_id not in coco.categories:
        return f"'category_id' {one.category_id}, which is not among its {len(coco.categories)} categories"
    if not -_INT64 <= one.iscrowd < _INT64:
        return f"'iscrowd' {str(one.iscrowd)[:_SAID]}. Expected 0 or 1"
    if one.keypoints and coco.keypoints and len(one.keypoints) != coco.keypoints * _POINT:
        expected = coco.keypoints * _POINT
        return f"'keypoints' of {len(one.keypoints)} numbers. Expected {expected}, as others have"
    return "" if len(one.bbox) == _BOX else f"'bbox' {one.bbox[: _BOX + 1]}. Expected left, top, width and height"


class CocoSource(Source):
    """The images of COCO files with their boxes, maybe of several splits. Images without annotations have no boxes."""

    what, suffixes, has_outlines = "COCO's JSON", (".json",), True
    labels_from, splits_from = "the categories of its boxes", "a file for each"
    marks, yields_to_masks = ("annotations/", SPLITS), True

    @classmethod
    def claim(cls, folder: Folder) -> Place | None:
        return find_splits(folder)

    def __init__(self, place: Place, options: ShardOptions) -> None:
        if len(place.files) > 1:
            raise OptionError(
                f"{place.store.url}: {len(place.files)} COCO files. Name their splits, like "
                "train=train.json,val=val.json, or shard each separately with its images"
            )
        places = place.parts or (place,)
        self.splits = any(each.split is not None for each in places)
        if options.split_by is not None or (self.splits and options.split_shares is not None):
            raise OptionError("a COCO file is split by shares, or each split has a file: train=train.json,val=val.json")
        check_declares_all(options, "a COCO file", takes=("image",))
        self._labelled, self._outlined = options.label == "auto", options.outlines is not None
        folders = dict(parse_named(options.image or "")) if self.splits else {}
        if unknown := folders.keys() - {each.split for each in places}:
            raise OptionError(f"--image {options.image}: no COCO file is of the split {min(unknown)!r}")
        self._cocos = cocos = list[Coco]()
        for each in places:
            coco = read_coco(each.store, each.files[0].name, self._outlined)
            folder = folders.get(str(each.split)) if folders else options.image
            coco.base = find_images(coco.where, [image.file_name for image in coco.images], each.store, folder).url
            coco.split = each.split
            cocos.append(coco)
        bases = [coco.base for coco in cocos]
        if place.folder and self.splits and bases[0].startswith(f"{place.store.url.rstrip('/')}/"):
            bases.append(posixpath.dirname(bases[0]))  # so that paths stay when a second split comes
        self.base = _common_base(bases)
        self.images_from = "" if place.folder else self.base
        self._notes = [*place.notes, *itertools.chain.from_iterable(coco.notes for coco in cocos)]
        if place.folder:
            found = (f"{coco.where} with the images in {coco.base}" for coco in cocos)
            way = "--split-by folder takes it as folders of images"
            self._notes.insert(0, f"{place.store.url} is taken as COCO: {'; '.join(found)}. {way}")
        self._notes += _other_ids(cocos)
        self._keypoints = max(coco.keypoints for coco in cocos)
        for coco in cocos:
            if coco.keypoints not in (0, self._keypoints):
                raise SourceError(
                    f"{coco.where}: annotations have {coco.keypoints} keypoints, and {self._keypoints} in another of "
                    "the files. Shard it separately"
                )
        self._has_text_ids = any(isinstance(image.id, str) for coco in cocos for image in coco.images)
        pairs = {coco.flip_pairs for coco in cocos if coco.keypoints}
        names = dict.fromkeys(itertools.chain.from_iterable(coco.class_names for coco in cocos))
        image_id = "string" if self._has_text_ids else "int64"
        columns = {_IMAGE_ID: image_id, BOXES: f"float32[,{_BOX}]", _CROWD: "int64[]"}
        if self._keypoints:
            columns[KEYPOINTS] = f"float32[,{self._keypoints},{_POINT}]"
        self.contents = Contents.of_boxes(
            names if self._labelled else None,
            columns,
            pairs=pairs.pop() if len(pairs) == 1 else None,
            box_columns=(_CROWD,),
        )

    def iter_items(self, found: Found) -> Iterator[Item]:
        found.notes.extend(self._notes)
        files, seen = Files(self.base), dict[str, tuple[Coco, _Image]]()
        for coco in self._cocos:
            for name, wrong in coco.lost:
                path = identity_of(self.base, self._place(coco, name))
                yield Item(path, 0, "", split=coco.split, problem=("bad_box", wrong))
            images = iter(coco.images)
            while chunk := list(itertools.islice(images, _AT_ONCE)):
                looked = stats(files, [image.file_name for image in chunk], partial(self._place, coco))
                for image, (name, info) in zip(chunk, looked, strict=True):
                    file = self._place(coco, name)
                    owner = seen.setdefault(file, (coco, image))
                    other = "" if owner[1] is image else f"{owner[1].id} of {owner[0].where}"
                    yield self._to_item(coco, image, name, file, info, other)

    def _place(self, coco: Coco, name: str) -> str:
        """Return the file that the name of an image means: a name below `base` if possible, else a path or URL."""
        file = resolve(coco.base, name)
        return file if coco.base == self.base else resolve(self.base, whole(coco.base, file))

    def _to_item(
        self, coco: Coco, image: _Image, name: str, file: str, info: ObjectInfo | TpufeedError | None, other: str
    ) -> Item:
        annotations = coco.annotations[image.id]
        wrong = [_find_fault(one, coco) for one in annotations]
        # Wrong values keep their places, as a reject must not affect the types of columns.
        boxes = [one.bbox if len(one.bbox) == _BOX else [0.0] * _BOX for one in annotations]
        columns: dict[str, Any] = {
            _IMAGE_ID: str(image.id) if self._has_text_ids else image.id,
            BOXES: [[left, top, left + width, top + height] for left, top, width, height in boxes],
            _CROWD: [0 if odd else int(one.iscrowd) for odd, one in zip(wrong, annotations, strict=True)],
        }
        if self._keypoints:
            unmarked = [[0.0] * _POINT] * self._keypoints  # one list for all annotations without
            columns[KEYPOINTS] = [
                np.reshape(one.keypoints, (-1, _POINT)).tolist()
                if one.keypoints and len(one.keypoints) == self._keypoints * _POINT
                else unmarked
                for one in annotations
            ]
        pixels, wrong_size = read_size(image.height, image.width)
        said, problem = f"the image {image.id} of {coco.where}", None
        if isinstance(info, TpufeedError):
            problem = "unreadable", f"{said}: {info}"
        elif info is None or info.version == BROKEN_LINK:
            problem = "unreadable", f"there is no such file; {said} names it"
        elif other:
            twice = f"{said} is also the image {other}"
            problem = "bad_box", f"{twice}. Remove one of them, or put the annotations of both under one id"
        elif refused := next(filter(None, [coco.problems.get(image.id), *wrong]), None):
            problem = "bad_box", f"an annotation of {said} has the {refused}"
        elif wrong_size:
            problem = "bad_box", f"{said} has {wrong_size}"
        elif len(annotations) * self._keypoints > _MOST_POINTS_OF_IMAGE:
            count = f"{len(annotations):,} annotations of {self._keypoints} keypoints"
            problem = "bad_box", f"{said} has {count}, which is more than {_MOST_POINTS_OF_IMAGE:,} keypoints"
            columns[KEYPOINTS] = []
        outlined: Any = annotations if self._outlined else ()
        outlines, wrong_outline = coco_outlines(((x.id, x.segmentation, bool(x.iscrowd)) for x in outlined), pixels)
        if problem is None and wrong_outline:
            problem = "bad_mask", f"{said}: {wrong_outline}"
        names, label = coco.categories, None
        if self._labelled:
            label = tuple(names[one.category_id] for one in annotations if one.category_id in names)
        path = identity_of(self.base, name if coco.base == self.base else file)
        return item_of(path, file, info, label, coco.split, columns, problem=problem, outlines=outlines, pixels=pixels)


def _common_base(bases: Sequence[str]) -> str:
    """Return the folder that holds all of some folders, or the first one if no folder does. Raises OptionError."""
    if len(set(bases)) > 1 and any("::" in base for base in bases):
        raise OptionError(f"images of several splits are in a zip ({', '.join(bases[:_SHOWN])}). Unpack it first")
    levels = zip(*(base.split("/") for base in bases), strict=False)
    common = [level[0] for level in itertools.takewhile(lambda level: len(set(level)) == 1, levels)]
    has_root = len(common) >= (3 if "://" in bases[0] else 1)  # gs://bucket has three parts
    return ("/".join(common) or "/") if has_root else bases[0]


def _other_ids(cocos: Sequence[Coco]) -> Iterator[str]:
    """Yield a note on each file whose category ids differ from those of the first."""
    first = cocos[0]
    for coco in cocos[1:]:
        differ = (
            f"{number} is {name!r}"
            for number, name in coco.categories.items()
            if name in first.class_names and first.categories.get(number) != name
        )
        if example := next(differ, None):
            yield (
                f"{coco.where}: its category {example}, which has another id in {first.where}. Categories of one name "
                "are one class, with the id of the first file"
            )
