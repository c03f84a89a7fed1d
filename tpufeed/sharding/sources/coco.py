"""COCO's JSON as a source: boxes, their categories, and keypoints where there are some.

A file of 450 MB says the outlines of 860,000 objects. Only what becomes a feature is taken out of it, into arrays.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from tpufeed.build.item import Item
from tpufeed.errors import NoInputsError, OptionError, SourceError, TpufeedError
from tpufeed.sharding.boxes import FlipPairs, declare
from tpufeed.sharding.columns import Declared
from tpufeed.sharding.inputs import Files
from tpufeed.sharding.options import ShardOptions
from tpufeed.sharding.sources.source import (
    Contents,
    Found,
    Place,
    Source,
    identity_of,
    is_hidden,
    listing,
    resolve,
    splits_mentioned,
)
from tpufeed.storage.reading import open_compared
from tpufeed.storage.store import BROKEN_LINK, ObjectInfo, Store, open_store

SUFFIXES = (".json",)
BOXES, KEYPOINTS, CROWD, IMAGE_ID = "boxes", "keypoints", "iscrowd", "image_id"
_TRIED_IMAGES = 16
_LEVELS = 3
_MOST_FOLDERS = 1000  # that are looked into for the images
_AT_ONCE = 2048
_SHOWN = 3
# Words in the names of folders and files, without a plural's s.
_ANNOTATIONS = frozenset(("annotation", "annot", "anno", "ann", "label", "json", "gt"))
_IMAGES = frozenset(
    ("image", "img", "jpegimage", "jpeg", "jpg", "png", "photo", "picture", "pic", "frame", "data", "raw", "rgb")
)
_GENERAL = _IMAGES | _ANNOTATIONS | {"coco", "instance", "keypoint", "person", "default", "result"}
_EXPECTED = "expected an object with 'images', 'annotations' and 'categories'"
_BOX = 4
_MOST_POINTS = 512  # keypoints of an object: a face has up to 478
_MOST_POINTS_OF_IMAGE = 200_000  # an object without keypoints takes as many numbers as the others
_SAID = 40  # characters of a value
_MOST_PIXELS = 1 << 31  # of a side
_INT64 = 1 << 63
_LEFT = re.compile(r"left|(?<![a-z])l(?![a-z])")
_POINT = 3


class _Image(msgspec.Struct, gc=False):
    id: int
    file_name: str
    width: Any = None
    height: Any = None


class _Annotation(msgspec.Struct, gc=False):
    image_id: int
    category_id: int
    bbox: list[float]
    iscrowd: int = 0
    keypoints: list[float] | None = None


class _Category(msgspec.Struct, gc=False):
    id: int
    name: str
    keypoints: Any = None  # their names, if it is a list of text


class _Content(msgspec.Struct, gc=False):
    images: list[_Image]
    annotations: list[_Annotation]
    categories: list[_Category]


_CONTENT = msgspec.json.Decoder(_Content)


@dataclass(frozen=True, slots=True)
class Coco:
    """Contents of a file.

    Attributes:
        where: its URL.
        images: ids and file names, in the file's order.
        categories: names, in the order of their ids.
        stops: place of each image's last annotation, plus one, among all annotations in the order of their images.
        labels: of each annotation, its category's place, or -1.
        boxes: (annotations, 4) left, top, width and height, in pixels.
        crowds: of each annotation, 1 for one box around many objects.
        points: keypoints of annotations that have some, (keypoints, 3) each, by their place.
        keypoints: how many an annotation has; 0 if none has any.
        flip_pairs: keypoints that are the left and the right of the same, by their names; None if these do not say it.
        odd: annotations that are not of these shapes: what is wrong, by their place.
        sizes: (images, 2) height and width that the file says, 0 if it says none, and -1 for what is no size.
    """

    where: str
    images: list[tuple[int, str]]
    categories: tuple[str, ...]
    stops: npt.NDArray[np.int64]
    labels: npt.NDArray[np.int64]
    boxes: npt.NDArray[np.float64]
    crowds: npt.NDArray[np.int64]
    points: dict[int, npt.NDArray[np.float64]]
    keypoints: int
    flip_pairs: FlipPairs | None
    odd: dict[int, str]
    sizes: npt.NDArray[np.int64]

    @property
    def columns(self) -> dict[str, str]:
        """Its columns besides the label, and their types."""
        columns = {IMAGE_ID: "int64", BOXES: f"float32[,{_BOX}]", CROWD: "int64[]"}
        if self.keypoints:
            columns[KEYPOINTS] = f"float32[,{self.keypoints},{_POINT}]"
        return columns


def read_coco(store: Store, name: str) -> Coco:
    """Read the file `name`.

    Raises:
        SourceError: it is not COCO's, or contradicts itself; says where.
        NoInputsError: it has no images.
        UnavailableError, AccessError: the store does not answer, or refuses.
    """
    where = f"{store.url}/{name}"
    with listing(f"{where} cannot be read"), open_compared(store, name) as file:
        data = file.read()
    try:
        content = _CONTENT.decode(data.removeprefix(b"\xef\xbb\xbf"))
    except msgspec.ValidationError as error:
        raise SourceError(
            f"{where}: no annotations of COCO's instances or keypoints: {error}; {_EXPECTED}. A table as JSON has an "
            "object on each line, and is called .jsonl"
        ) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SourceError(f"{where}: not JSON: {error}. The file was cut short or not copied well") from error
    del data
    return _arrange(content, where)


def _check_ids(content: _Content, where: str) -> None:
    """Raise where two images or categories are the same."""
    if not content.images:
        raise NoInputsError(f"{where}: it names no images")
    named = ("images", content.images), ("categories", content.categories)
    for what, ids in ((what, Counter(one.id for one in each)) for what, each in named):
        ((number, times),) = ids.most_common(1) or [(0, 0)]
        if times > 1:
            raise SourceError(f"{where}: {times} of its {what} have the id {number}")
    ((name, times),) = Counter(category.name for category in content.categories).most_common(1) or [("", 0)]
    if times > 1:
        raise SourceError(f"{where}: {times} of its categories are called {name!r}")


def _arrange(content: _Content, where: str) -> Coco:
    _check_ids(content, where)
    places = {image.id: place for place, image in enumerate(content.images)}
    categories = sorted(content.categories, key=lambda category: category.id)
    labels = {category.id: place for place, category in enumerate(categories)}
    of_images = np.empty(len(content.annotations), np.int64)
    for number, annotation in enumerate(content.annotations):
        place = places.get(annotation.image_id)
        if place is None:
            raise SourceError(
                f"{where}: annotation {number} (from 0) is of the image {annotation.image_id}, which is none of its "
                f"{len(places):,} images; take such annotations out"
            )
        of_images[number] = place
    order = np.argsort(of_images, kind="stable")
    annotations = [content.annotations[number] for number in order]
    each = next((len(one.keypoints) // _POINT for one in annotations if one.keypoints), 0)
    if each > _MOST_POINTS:
        raise SourceError(f"{where}: an annotation has {each:,} keypoints; at most {_MOST_POINTS:,} are taken")
    boxes = np.zeros((len(annotations), _BOX))
    points, odd = dict[int, npt.NDArray[np.float64]](), dict[int, str]()
    for place, one in enumerate(annotations):
        if len(one.bbox) == _BOX:
            boxes[place] = one.bbox
        else:
            odd[place] = f"'bbox' {one.bbox[: _BOX + 1]}; expected left, top, width and height"
        if one.keypoints and each:
            if len(one.keypoints) == each * _POINT:
                points[place] = np.reshape(one.keypoints, (each, _POINT))
            else:
                odd[place] = f"'keypoints' of {len(one.keypoints)} numbers; expected {each * _POINT}, as others have"
        if not -_INT64 <= one.iscrowd < _INT64:
            odd[place] = f"'iscrowd' {str(one.iscrowd)[:_SAID]}; expected 0 or 1"
        if one.category_id not in labels:
            odd[place] = f"'category_id' {one.category_id}, which is none of its {len(labels)} categories"
    return Coco(
        where,
        [(image.id, image.file_name) for image in content.images],
        tuple(category.name for category in categories),
        np.cumsum(np.bincount(of_images, minlength=len(places))),
        np.array([labels.get(one.category_id, -1) for one in annotations], np.int64),
        boxes,
        np.array([0 if place in odd else one.iscrowd for place, one in enumerate(annotations)], np.int64),
        points,
        each,
        _find_pairs(content, each),
        odd,
        np.array([(_side(image.height), _side(image.width)) for image in content.images], np.int64),
    )


def _side(value: Any) -> int:
    """Return a width or height: 0 where none is said, -1 for what cannot be one."""
    if isinstance(value, str) and value.strip().isdecimal() and len(value) < _SAID:
        value = int(value)
    if value is None or value == 0:
        return 0
    is_side = isinstance(value, int | float) and 0 < value < _MOST_PIXELS and value == int(value)
    return int(value) if is_side else -1


def _find_pairs(content: _Content, points: int) -> FlipPairs | None:
    """Return the pairs by the names of keypoints; None if categories that have keypoints do not all say the same."""
    used = {one.category_id for one in content.annotations if one.keypoints}
    found = {_pair_names(category.keypoints, points) for category in content.categories if category.id in used}
    return found.pop() if len(found) == 1 else None


def _pair_names(names: Any, points: int) -> FlipPairs | None:
    """Return the pairs of left_eye and right_eye, L-ear and R-ear and their like; None if there are none."""
    if not isinstance(names, list) or len(names) != points or not all(isinstance(name, str) for name in names):
        return None
    places = {name.lower(): place for place, name in enumerate(names)}
    opposite = [(at, _LEFT.sub(lambda left: "r" if left[0] == "l" else "right", name)) for name, at in places.items()]
    return tuple((at, places[name]) for at, name in opposite if places.get(name, at) != at) or None


def find_images(coco: Coco, store: Store, folder: str | None) -> Store:
    """Find the folder that the names of images are relative to.

    That is the folder of the file, if they are there; else a folder in it, or in one of them that is called `images`.
    COCO's own files lie in `annotations`, next to `train2017` and the like: the folder above one that is called so is
    looked into as well. Annotation tools call the images of every project alike. So a folder is only taken if nothing
    speaks against it: it holds all images that are looked for, or is called like the file; it is not called like
    another split; no other one holds them as well; and it is called like one of images, or is the only one there.

    Args:
        coco: names the images.
        store: the folder that its file lies in.
        folder: the folder of the images, where the user says it.

    Raises:
        OptionError: there is none, or nobody can tell which; says what to give.
        UnavailableError, AccessError: the store does not answer, or refuses.
    """
    if folder is not None:
        return open_store(folder)
    step = max(1, len(coco.images) // _TRIED_IMAGES)
    names = [name for _, name in coco.images[::step][:_TRIED_IMAGES]]
    if all(file.startswith("/") or "://" in file for file in (resolve(store.url, name) for name in names)):
        return store  # they are no relative names
    around = _look_around(coco, store, names)
    found, stem = around.found, coco.where.rpartition("/")[2].rpartition(".")[0]
    if found.get(store.url) == len(names):  # they are relative to their file
        return store

    def is_meant(url: str) -> bool:
        return url in around.tops or _is_called_like(url.rpartition("/")[2], stem)

    def is_of_another_split(url: str) -> bool:
        splits, own = splits_mentioned([url.rpartition("/")[2]]), splits_mentioned([stem])
        return url not in around.tops and len(splits) == len(own) == 1 and splits != own

    fit = [url for url in found if not is_of_another_split(url)]
    whole, meant = [url for url in fit if found[url] == len(names)], [url for url in fit if is_meant(url)]
    if len(meant) == 1 and set(whole) <= set(meant):
        return open_store(meant[0])
    rival = next((url for url in around.looked if url not in found and url not in around.tops and is_meant(url)), None)
    if len(fit) == len(whole) == 1 and rival is None and (whole[0] in around.alone or _is_of_images(whole[0])):
        return open_store(whole[0])
    give = "say which folder its file names are relative to: --image DIR"
    like = f"{coco.where}: images like {names[0]} are in"
    if len(fit) > 1:
        best = whole if len(whole) > 1 else fit
        raise OptionError(f"{like} {' and in '.join(best[:_SHOWN])}; {give}")
    if fit and not whole:
        raise OptionError(f"{like} {fit[0]}, but only {found[fit[0]]} of {len(names)} that were looked for; {give}")
    if fit:
        other = f", and {rival} is called like it and does not hold them" if rival else ""
        raise OptionError(f"{like} {fit[0]}, and nothing says that they are those of this file{other}; {give}")
    if found:
        raise OptionError(f"{like} {next(iter(found))}, which is called like another split; {give}")
    raise OptionError(
        f"{coco.where}: its images, like {names[0]}, are in none of {len(around.looked)} folders around {store.url}; "
        f"{give}"
    )


class _Around(NamedTuple):
    """Folders around a file of COCO.

    Attributes:
        tops: its own, and the one above it if that may hold its images.
        looked: those that were looked into.
        found: how many of the images are in those that have some.
        alone: those that have no other folder beside them, but for that of the file.
    """

    tops: list[str]
    looked: list[str]
    found: dict[str, int]
    alone: set[str]


def _look_around(coco: Coco, store: Store, names: Sequence[str]) -> _Around:
    parent, _, own = store.url.rstrip("/").rpartition("/")
    tops = [store.url]
    if parent and not parent.endswith((":", "/")) and not _ANNOTATIONS.isdisjoint(_kinds(own)):  # no bucket's parent
        tops.append(parent)
    around, roots = _Around(tops, [], {}, set()), tops
    with listing(f"the images of {coco.where} cannot be looked for"):
        for _ in range(_LEVELS):
            roots = roots[: _MOST_FOLDERS - len(around.looked)]
            inner = [url for url in roots if not around.looked or url.rpartition("/")[2].lower() == "images"]
            for url in roots:
                around.looked.append(url)
                if count := _count_files(url, names):
                    around.found[url] = count
                if around.found.get(store.url) == len(names):
                    return around
            if len(names) in around.found.values():
                break
            in_each = [[url for url in _folders_in(root) if url not in around.looked] for root in inner]
            around.alone.update(urls[0] for urls in in_each if len(urls) == 1)
            roots = [url for urls in in_each for url in urls]
    return around


def _is_of_images(url: str) -> bool:
    name = url.rpartition("/")[2]
    return bool(splits_mentioned([name])) or not _IMAGES.isdisjoint(_kinds(name))


def _words(name: str) -> set[str]:
    return {word.removesuffix("s") for word in re.findall("[a-z0-9]+", name.lower())}


def _kinds(name: str) -> set[str]:
    return _words(re.sub("[0-9]+", " ", name))


def _is_called_like(folder: str, stem: str) -> bool:
    """Return true for `val2017` and `instances_val2017`, `images_val` and `val`, `site3` and `site3_boxes`."""
    parts, said = (_words(name) - _GENERAL for name in (folder, stem))
    splits = splits_mentioned([folder])
    return (bool(parts) and parts <= said) or (len(splits) == 1 and splits == splits_mentioned([stem]))


def _count_files(base: str, names: Sequence[str]) -> int:
    """Return how many of some names are those of files below `base`."""
    return sum(isinstance(info, ObjectInfo) for info in Files(base).stats([resolve(base, name) for name in names]))


def _folders_in(url: str) -> list[str]:
    """Return the URLs of the folders right below one, without hidden ones."""
    return [f"{url.rstrip('/')}/{name}" for name in sorted(open_store(url).iter_folders()) if not is_hidden(name)]


class CocoSource(Source):
    """The images of a file, each with its boxes; one without annotations is a sample without boxes."""

    kind, suffixes = "coco", SUFFIXES

    def __init__(self, place: Place, options: ShardOptions) -> None:
        if len(place.files) > 1:
            raise OptionError(
                f"{place.store.url}: {len(place.files)} files of COCO; shard each apart, as each has its own images"
            )
        if options.split_by is not None:
            raise OptionError("a file of COCO is split by shares, or shard those of each split apart")
        if options.label not in ("auto", "none"):
            raise OptionError(f"the labels of COCO's boxes are its categories, or none; not {options.label!r}")
        own = ("columns", "image_columns", "boxes", "box_format", "keypoints", "box_columns")
        given = [name for name in own if getattr(options, name)]
        if given:
            raise OptionError(f"a file of COCO says its boxes and columns itself; leave out {', '.join(given)}")
        self._labelled = options.label == "auto"
        self._content = content = read_coco(place.store, place.files[0].name)
        self.base = find_images(content, place.store, options.image).url
        keypoints = KEYPOINTS if content.keypoints else None
        columns = [Declared.parse(*column) for column in content.columns.items()]
        self.contents = Contents(
            content.categories if self._labelled else None,
            declare(BOXES, keypoints, columns),
            BOXES,
            keypoints,
            content.flip_pairs,
            (CROWD,),
        )

    def iter_files(self) -> Iterator[str]:
        """Yield what the file names; no image is looked at."""
        return (resolve(self.base, name) for _, name in self._content.images)

    def iter_items(self, found: Found) -> Iterator[Item]:
        coco, base, files = self._content, self.base, Files(self.base)
        for first in range(0, len(coco.images), _AT_ONCE):
            chunk = coco.images[first : first + _AT_ONCE]
            names = [resolve(base, name) for _, name in chunk]
            for place, ((_, path), file, info) in enumerate(zip(chunk, names, files.stats(names), strict=True), first):
                yield _to_item(coco, place, identity_of(base, path), file, info, self._labelled)


def _to_item(
    coco: Coco, place: int, path: str, file: str, info: ObjectInfo | TpufeedError | None, labelled: bool
) -> Item:
    number = coco.images[place][0]
    start, stop = int(coco.stops[place - 1]) if place else 0, int(coco.stops[place])
    boxes = coco.boxes[start:stop]
    columns: dict[str, Any] = {
        IMAGE_ID: number,
        BOXES: np.hstack([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]]).tolist(),
        CROWD: coco.crowds[start:stop].tolist(),
    }
    if coco.keypoints:
        unmarked = [[0.0] * _POINT] * coco.keypoints  # one list for all annotations without
        marked = (coco.points.get(place) for place in range(start, stop))
        columns[KEYPOINTS] = [unmarked if one is None else one.tolist() for one in marked]
    label = tuple(coco.categories[label] for label in coco.labels[start:stop] if label >= 0) if labelled else None
    height, width = coco.sizes[place].tolist()
    problem = None
    if isinstance(info, TpufeedError):
        problem = "unreadable", f"the image {number} of {coco.where}: {info}"
    elif info is None or info.version == BROKEN_LINK:
        problem = "unreadable", f"there is no such file; the image {number} of {coco.where} names it"
    else:
        wrong = next((coco.odd[one] for one in range(start, stop) if one in coco.odd), None) if coco.odd else None
        if wrong is not None:
            problem = "bad_box", f"an annotation of the image {number} of {coco.where} has the {wrong}"
        elif min(height, width) < 0:
            problem = "bad_box", f"the image {number} of {coco.where} has a 'width' or 'height' that is no size"
        elif (stop - start) * coco.keypoints > _MOST_POINTS_OF_IMAGE:
            said = f"{stop - start:,} annotations, which is more than {_MOST_POINTS_OF_IMAGE:,} keypoints"
            problem = "bad_box", f"the image {number} of {coco.where} has {said} at {coco.keypoints} for each"
            columns[KEYPOINTS] = []
    size, version = (info.size_bytes, info.version) if isinstance(info, ObjectInfo) else (0, "")
    pixels = (height, width) if min(height, width) > 0 else None
    return Item(path, size, version, label, None, "" if file == path else file, 0, columns, problem, pixels=pixels)
