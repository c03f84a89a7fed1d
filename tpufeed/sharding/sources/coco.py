"""Read COCO's JSON: boxes, their categories, and keypoints if there are any.

A file of 450 MB has the outlines of 860,000 objects. Only fields that become features are decoded.
"""

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import numpy as np

from tpufeed.build.item import Item
from tpufeed.dataset.naming import splits_mentioned
from tpufeed.errors import NoInputsError, OptionError, SourceError, TpufeedError
from tpufeed.sharding.boxes import FlipPairs, declare
from tpufeed.sharding.columns import Declared
from tpufeed.sharding.inputs import Files
from tpufeed.sharding.options import ShardOptions
from tpufeed.sharding.outlines import coco_outlines
from tpufeed.sharding.sources.source import Contents, Found, Place, Source, identity_of, is_hidden, listing, resolve
from tpufeed.storage.reading import open_compared
from tpufeed.storage.store import BROKEN_LINK, ObjectInfo, Store, open_store

_BOXES, _KEYPOINTS, _CROWD, _IMAGE_ID = "boxes", "keypoints", "iscrowd", "image_id"
_TRIED_IMAGES = 16
_LEVELS = 3
_MOST_FOLDERS = 1000  # to search for the images
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
_MOST_POINTS_OF_IMAGE = 200_000  # keypoints; an object without keypoints takes as many numbers as the others
_SAID = 40  # characters of a value in a message
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


class _OutlinedAnnotation(_Annotation, gc=False):
    id: Any = None
    segmentation: msgspec.Raw = msgspec.Raw()


class _Category(msgspec.Struct, gc=False):
    id: int
    name: str
    keypoints: Any = None  # their names, if it is a list of text


class _Content(msgspec.Struct, gc=False):
    images: list[_Image]
    annotations: list[_Annotation]
    categories: list[_Category]


class _OutlinedContent(_Content, gc=False):
    annotations: list[_OutlinedAnnotation]  # type: ignore[assignment]  # of a subclass


_CONTENT, _OUTLINED_CONTENT = msgspec.json.Decoder(_Content), msgspec.json.Decoder(_OutlinedContent)


@dataclass(frozen=True, slots=True)
class Coco:
    """Contents of a file, in its order."""

    where: str  # its URL
    images: list[_Image]
    categories: dict[int, str]  # names in the order of their ids
    annotations: dict[int, list[_Annotation]]  # by the id of their image
    keypoints: int  # of an annotation; 0 if no annotation has any
    flip_pairs: FlipPairs | None  # keypoints that are left and right, by their names; None if these do not tell


def read_coco(store: Store, name: str, outlines: bool = False) -> Coco:
    """Read the file `name`, with its segmentations if `outlines` are drawn.

    Raises:
        SourceError: it is not a COCO file, or contradicts itself; says where.
        NoInputsError: it names no images.
        UnavailableError, AccessError: the store does not answer, or refuses.
    """
    where = f"{store.url}/{name}"
    with listing(f"{where} cannot be read"), open_compared(store, name) as file:
        data = file.read()
    try:
        content = (_OUTLINED_CONTENT if outlines else _CONTENT).decode(data.removeprefix(b"\xef\xbb\xbf"))
    except msgspec.ValidationError as error:
        raise SourceError(
            f"{where}: not annotations of COCO's instances or keypoints: {error}; {_EXPECTED}. A table in JSON has one "
            "object per line, and a name that ends in .jsonl"
        ) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SourceError(f"{where}: not JSON: {error}. The file was cut short or badly copied") from error
    if not content.images:
        raise NoInputsError(f"{where}: it names no images")
    categories = sorted(content.categories, key=lambda category: category.id)
    for what, values in (
        ("images have the id", [image.id for image in content.images]),
        ("categories have the id", [category.id for category in categories]),
        ("categories are called", [category.name for category in categories]),
    ):
        ((value, times),) = Counter[Any](values).most_common(1) or [(None, 0)]
        if times > 1:
            raise SourceError(f"{where}: {times} of its {what} {value!r}")
    by_image: dict[int, list[_Annotation]] = {image.id: [] for image in content.images}
    for number, one in enumerate(content.annotations):
        if one.image_id not in by_image:
            raise SourceError(
                f"{where}: annotation {number} (from 0) belongs to the image {one.image_id}, which is not among its "
                f"{len(by_image):,} images; remove such annotations"
            )
        by_image[one.image_id].append(one)
    marked = (one.keypoints for annotations in by_image.values() for one in annotations if one.keypoints)
    each = len(next(marked, ())) // _POINT
    if each > _MOST_POINTS:
        raise SourceError(f"{where}: an annotation has {each:,} keypoints; at most {_MOST_POINTS:,} are allowed")
    named = {category.id: category.name for category in categories}
    # All categories that have keypoints must agree on the pairs.
    used = {one.category_id for one in content.annotations if one.keypoints}
    pairs = {_pair_names(category.keypoints, each) for category in categories if category.id in used}
    return Coco(where, content.images, named, by_image, each, pairs.pop() if len(pairs) == 1 else None)


def _say_wrong(one: _Annotation, coco: Coco) -> str:
    """Return the field of an annotation that is wrong; empty for a sound annotation."""
    if one.category_id not in coco.categories:
        return f"'category_id' {one.category_id}, which is not among its {len(coco.categories)} categories"
    if not -_INT64 <= one.iscrowd < _INT64:
        return f"'iscrowd' {str(one.iscrowd)[:_SAID]}; expected 0 or 1"
    if one.keypoints and coco.keypoints and len(one.keypoints) != coco.keypoints * _POINT:
        expected = coco.keypoints * _POINT
        return f"'keypoints' of {len(one.keypoints)} numbers; expected {expected}, as others have"
    return "" if len(one.bbox) == _BOX else f"'bbox' {one.bbox[: _BOX + 1]}; expected left, top, width and height"


def _side(value: Any) -> int:
    """Return a width or height: 0 if it is missing, -1 if it is impossible."""
    if isinstance(value, str) and value.strip().isdecimal() and len(value) < _SAID:
        value = int(value)
    if value is None or value == 0:
        return 0
    is_side = isinstance(value, int | float) and 0 < value < _MOST_PIXELS and value == int(value)
    return int(value) if is_side else -1


def _pair_names(names: Any, points: int) -> FlipPairs | None:
    """Return the pairs of names like left_eye and right_eye, or L-ear and R-ear; None if there are none."""
    if not isinstance(names, list) or len(names) != points or not all(isinstance(name, str) for name in names):
        return None
    places = {name.lower(): place for place, name in enumerate(names)}
    opposite = [(at, _LEFT.sub(lambda left: "r" if left[0] == "l" else "right", name)) for name, at in places.items()]
    return tuple((at, places[name]) for at, name in opposite if places.get(name, at) != at) or None


def find_images(coco: Coco, store: Store, folder: str | None) -> Store:
    """Find the folder that the names of images are relative to. `store` has their file; a user may name the `folder`.

    It is the folder of the file, if the images are there; else a folder inside it, or inside one of these that is
    called `images`. COCO's own files are in `annotations`, next to `train2017` and so on: from a folder of such a name
    the search starts one folder higher. Annotation tools give the images of every project the same names. So a folder
    is only taken if nothing speaks against it: it holds all images of the probe, or its name is like the file's; its
    name does not mention another split; no other folder holds them as well; and its name is usual for images, or it is
    the only folder there.

    Raises:
        OptionError: there is no such folder, or several are possible; says what to pass.
        UnavailableError, AccessError: the store does not answer, or refuses.
    """
    if folder is not None:
        return open_store(folder)
    step = max(1, len(coco.images) // _TRIED_IMAGES)
    names = [image.file_name for image in coco.images[::step][:_TRIED_IMAGES]]
    if all(file.startswith("/") or "://" in file for file in (resolve(store.url, name) for name in names)):
        return store  # all names are absolute
    around = _look_around(coco, store, names)
    found, stem = around.found, coco.where.rpartition("/")[2].rpartition(".")[0]
    if found.get(store.url) == len(names):  # they are relative to their file
        return store

    own = splits_mentioned([stem])

    def is_meant(url: str) -> bool:
        """Return true if a folder's name fits the file's: `val2017` and `instances_val2017`, `val` and `images_val`."""
        called = url.rpartition("/")[2]
        parts, splits = _words(called) - _GENERAL, splits_mentioned([called])
        is_called_so = bool(parts) and parts <= _words(stem) - _GENERAL
        return url in around.tops or is_called_so or (len(splits) == 1 and splits == own)

    def is_of_another_split(url: str) -> bool:
        splits = splits_mentioned([url.rpartition("/")[2]])
        return url not in around.tops and len(splits) == len(own) == 1 and splits != own

    fit = [url for url in found if not is_of_another_split(url)]
    whole, meant = [url for url in fit if found[url] == len(names)], [url for url in fit if is_meant(url)]
    if len(meant) == 1 and set(whole) <= set(meant):
        return open_store(meant[0])
    rival = next((url for url in around.looked if url not in found and url not in around.tops and is_meant(url)), None)
    if len(fit) == len(whole) == 1 and rival is None:
        called = whole[0].rpartition("/")[2]
        if whole[0] in around.alone or splits_mentioned([called]) or not _IMAGES.isdisjoint(_kinds(called)):
            return open_store(whole[0])
    like = f"images like {names[0]} are in"
    if len(fit) > 1:
        why = f"{like} {' and in '.join((whole if len(whole) > 1 else fit)[:_SHOWN])}"
    elif whole:
        other = f", and {rival} has the name of the file but does not hold them" if rival else ""
        why = f"{like} {whole[0]}, but nothing tells that they belong to this file{other}"
    elif fit:
        why = f"{like} {fit[0]}, but only {found[fit[0]]} of {len(names)} that were looked up"
    elif found:
        why = f"{like} {next(iter(found))}, which has the name of another split"
    else:
        why = f"no image like {names[0]} is in the {len(around.looked)} folders around {store.url}"
    raise OptionError(f"{coco.where}: {why}; pass the folder that its file names are relative to: --image DIR")


class _Around(NamedTuple):
    """Folders around a COCO file."""

    tops: list[str]  # its own folder, and the one above it if that may hold its images
    looked: list[str]  # all that were searched
    found: dict[str, int]  # number of images in each that has some
    alone: set[str]  # those that have no folder beside them, except the file's own


def _look_around(coco: Coco, store: Store, names: Sequence[str]) -> _Around:
    parent, _, own = store.url.rstrip("/").rpartition("/")
    tops = [store.url]
    if (
        parent and not parent.endswith((":", "/")) and not _ANNOTATIONS.isdisjoint(_kinds(own))
    ):  # a bucket has no parent
        tops.append(parent)
    around, roots = _Around(tops, [], {}, set()), tops[:]
    with listing(f"the images of {coco.where} cannot be looked up"):
        for _ in range(_LEVELS):
            roots = roots[: _MOST_FOLDERS - len(around.looked)]
            inner = [url for url in roots if not around.looked or url.rpartition("/")[2].lower() == "images"]
            for url in roots:
                around.looked.append(url)
                infos = Files(url).stats([resolve(url, name) for name in names])
                if count := sum(isinstance(info, ObjectInfo) for info in infos):
                    around.found[url] = count
                if around.found.get(store.url) == len(names):
                    return around
            if len(names) in around.found.values():
                break
            roots = []
            for url in inner:
                names_in = (name for name in sorted(open_store(url).iter_folders()) if not is_hidden(name))
                urls = [each for name in names_in if (each := f"{url.rstrip('/')}/{name}") not in around.looked]
                around.alone.update(urls if len(urls) == 1 else ())
                roots += urls
    return around


def _words(name: str) -> set[str]:
    return {word.removesuffix("s") for word in re.findall("[a-z0-9]+", name.lower())}


def _kinds(name: str) -> set[str]:
    return _words(re.sub("[0-9]+", " ", name))


class CocoSource(Source):
    """The images of a file with their boxes; an image without annotations is a sample without boxes."""

    suffixes, has_outlines = (".json",), True

    def __init__(self, place: Place, options: ShardOptions) -> None:
        if len(place.files) > 1:
            raise OptionError(
                f"{place.store.url}: {len(place.files)} COCO files; shard each separately with its images"
            )
        if options.split_by is not None:
            raise OptionError("a COCO file is split by shares; or shard the file of each split separately")
        if options.label not in ("auto", "none"):
            raise OptionError(f"the labels of COCO's boxes are its categories, or none; not {options.label!r}")
        own = ("columns", "image_columns", "boxes", "box_format", "keypoints", "box_columns")
        given = [name for name in own if getattr(options, name)]
        if given:
            raise OptionError(f"a COCO file declares its boxes and columns itself; leave out {', '.join(given)}")
        self._labelled = options.label == "auto"
        self._coco = coco = read_coco(place.store, place.files[0].name, options.outlines is not None)
        self.base = find_images(coco, place.store, options.image).url
        columns = {_IMAGE_ID: "int64", _BOXES: f"float32[,{_BOX}]", _CROWD: "int64[]"}
        if coco.keypoints:
            columns[_KEYPOINTS] = f"float32[,{coco.keypoints},{_POINT}]"
        keypoints = _KEYPOINTS if coco.keypoints else None
        self.contents = Contents(
            tuple(coco.categories.values()) if self._labelled else None,
            declare(_BOXES, keypoints, [Declared.parse(*column) for column in columns.items()]),
            _BOXES,
            keypoints,
            coco.flip_pairs,
            (_CROWD,),
        )

    def iter_files(self) -> Iterator[str]:
        """Yield the names in the file, without looking the images up."""
        return (resolve(self.base, image.file_name) for image in self._coco.images)

    def iter_items(self, found: Found) -> Iterator[Item]:
        images, files = iter(self._coco.images), Files(self.base)
        while chunk := list(itertools.islice(images, _AT_ONCE)):
            names = [resolve(self.base, image.file_name) for image in chunk]
            for image, file, info in zip(chunk, names, files.stats(names), strict=True):
                yield self._to_item(image, file, info)

    def _to_item(self, image: _Image, file: str, info: ObjectInfo | TpufeedError | None) -> Item:
        coco, annotations = self._coco, self._coco.annotations[image.id]
        wrong = [_say_wrong(one, coco) for one in annotations]
        # Wrong values keep their places, as a reject must not affect the types of columns.
        boxes = [one.bbox if len(one.bbox) == _BOX else [0.0] * _BOX for one in annotations]
        columns: dict[str, Any] = {
            _IMAGE_ID: image.id,
            _BOXES: [[left, top, left + width, top + height] for left, top, width, height in boxes],
            _CROWD: [0 if odd else one.iscrowd for odd, one in zip(wrong, annotations, strict=True)],
        }
        if coco.keypoints:
            unmarked = [[0.0] * _POINT] * coco.keypoints  # one list for all annotations without
            columns[_KEYPOINTS] = [
                np.reshape(one.keypoints, (-1, _POINT)).tolist()
                if one.keypoints and len(one.keypoints) == coco.keypoints * _POINT
                else unmarked
                for one in annotations
            ]
        height, width = _side(image.height), _side(image.width)
        said, problem = f"the image {image.id} of {coco.where}", None
        if isinstance(info, TpufeedError):
            problem = "unreadable", f"{said}: {info}"
        elif info is None or info.version == BROKEN_LINK:
            problem = "unreadable", f"there is no such file; {said} names it"
        elif any(wrong):
            problem = "bad_box", f"an annotation of {said} has the {next(filter(None, wrong))}"
        elif min(height, width) < 0:
            problem = "bad_box", f"{said} has an impossible 'width' or 'height'"
        elif len(annotations) * coco.keypoints > _MOST_POINTS_OF_IMAGE:
            count = f"{len(annotations):,} annotations of {coco.keypoints} keypoints"
            problem = "bad_box", f"{said} has {count}, which is more than {_MOST_POINTS_OF_IMAGE:,} keypoints"
            columns[_KEYPOINTS] = []
        path, pixels = identity_of(self.base, image.file_name), (height, width) if min(height, width) > 0 else None
        outlined = [one for one in annotations if isinstance(one, _OutlinedAnnotation)]
        outlines, wrong_outline = coco_outlines(((x.id, x.segmentation, bool(x.iscrowd)) for x in outlined), pixels)
        if problem is None and wrong_outline:
            problem = "bad_mask", f"{said}: {wrong_outline}"
        label = None
        if self._labelled:
            names = coco.categories
            label = tuple(names[one.category_id] for one in annotations if one.category_id in names)
        size, version = (info.size_bytes, info.version) if isinstance(info, ObjectInfo) else (0, "")
        place = "" if file == path else file
        return Item(path, size, version, label, None, place, 0, columns, problem, outlines=outlines, pixels=pixels)
