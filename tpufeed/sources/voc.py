"""Read Pascal VOC's XML: a file for each image, with its boxes, their classes, and which are difficult or truncated."""

import itertools
import math
import posixpath
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple
from xml.parsers import expat

from tpufeed.builds.item import Item
from tpufeed.dataset.naming import SPLIT_OF_WORD
from tpufeed.errors import ImageError, OptionError, SourceError
from tpufeed.sources.boxes import VOC
from tpufeed.sources.inputs import Files
from tpufeed.sources.options import BOXES, ShardOptions
from tpufeed.sources.paths import is_hidden, is_image_name, parent_of, stem_of
from tpufeed.sources.source import (
    SPLITS,
    Contents,
    Folder,
    Found,
    Place,
    Source,
    check_declares_all,
    chunks_of,
    item_of,
    listing,
    read_annotations,
    read_size,
)
from tpufeed.storage.store import BROKEN_LINK, ObjectInfo, Store, open_store
from tpufeed.text import format_names

_FLAGS = ("difficult", "truncated")
_ANNOTATIONS, _IMAGES = ("Annotations", "annotations"), ("JPEGImages", "images", "Images")
_LISTS = "ImageSets/Main"
_SIDES = ("xmin", "ymin", "xmax", "ymax")
_FLAG = {"": 0, "0": 0, "false": 0, "1": 1, "true": 1}
_LEVELS = 4  # of elements that are kept: annotation/object/bndbox/xmin
_SAID = 40  # characters of a value in a message
_SUFFIX = ".xml"
_MOST_PEEKED = 1000  # files of a split's folder
_HEAD_BYTES = 1 << 12


class _Annotation(NamedTuple):
    """The texts of a file by the names of their elements, like `size/width`."""

    fields: dict[str, str]
    objects: list[dict[str, str]]  # those within each object, like `bndbox/xmin`


def _find_annotations(folder: Folder) -> list[ObjectInfo]:
    """Return the .xml files of a dataset's folder: those in its folder of annotations, if it has one of images as well.

    Else those in its folders of splits, if these are all of its folders, with the images beside, as Roboflow has them.
    """
    store, folders = folder.store, folder.folders
    for name in (name for name in folders if name in _ANNOTATIONS):
        files = (info for info in store.iter_objects(name) if _is_xml(info.name))
        if (first := next(files, None)) is not None and _find_folder(store):
            return [first, *files]
    if not folders or not all(name.lower() in SPLIT_OF_WORD for name in folders):
        return []
    # Not to the end: images of class folders may be millions, and have no such files.
    heads = (itertools.islice(store.iter_objects(name), _MOST_PEEKED) for name in folders)
    found = [info for head in heads for info in head if _is_xml(info.name) and info.name.count("/") == 1]
    if not found or b"<annotation" not in store.read_range(found[0].name, 0, _HEAD_BYTES):
        return []
    return [info for name in folders for info in store.iter_objects(name) if _is_xml(info.name)]


def _find_images(store: Store) -> tuple[Store, str] | None:
    """Return the store and the folder in it that hold the images of a folder of .xml files, or None.

    They are beside these files, or in a folder like JPEGImages or images, which is beside the files or their folder.
    """
    parent = parent_of(store.url)
    with listing():
        if any(is_image_name(info.name) and "/" not in info.name for info in store.iter_objects()):
            return store, ""
        for at in (store, open_store(parent)) if parent else (store,):
            if folder := _find_folder(at):
                return at, folder
    return None


def _find_folder(store: Store) -> str:
    return next((each for each in _IMAGES if any(is_image_name(x.name) for x in store.iter_objects(each))), "")


def _is_xml(name: str) -> bool:
    return name.lower().endswith(_SUFFIX) and not is_hidden(name)


class VocSource(Source):
    """The images of .xml files with their boxes."""

    what, suffixes, labels_are_names = "Pascal VOC's XML", (_SUFFIX,), True
    labels_from, marks = "the names of its objects", ("annotations/", SPLITS)

    @classmethod
    def claim(cls, folder: Folder) -> Place | None:
        return folder.place(sorted(_find_annotations(folder), key=lambda info: info.name))

    def __init__(self, place: Place, options: ShardOptions) -> None:
        check_declares_all(options, "Pascal VOC's .xml", takes=("boxes.format",))
        if options.boxes.format not in (None, "xyxy", VOC):
            raise OptionError(
                f"the boxes of .xml files are {VOC}, or xyxy if they count from 0, not {options.boxes.format}"
            )
        self._labelled = options.label == "auto"
        store, files = place.store, list(place.files)
        at = (store, _find_folder(store)) if place.folder else _find_images(store)
        if at is None:
            raise OptionError(
                f"{store.url}: the images of its {len(files):,} .xml files are not there. Expected them beside the "
                f"files, or in one of the folders {', '.join(_IMAGES)} beside {store.url}"
            )
        self._store, self._images = at
        self.base = self._store.url
        self._files, self._folder = files, files[0].name.partition("/")[0]  # the folder of the files below `base`
        by_folder: dict[str, str] | None = None  # the split of each name, if the files are in folders of splits
        if place.folder and not self._images:
            self._folder = ""
            by_folder = {
                info.name[: -len(_SUFFIX)]: SPLIT_OF_WORD[info.name.partition("/")[0].lower()] for info in files
            }
        elif not place.folder:
            self._folder = store.url.removeprefix(self.base).strip("/")
            self._files = [replace(info, name=f"{self._folder}/{info.name}".lstrip("/")) for info in files]
        self._split_of, self._shared = by_folder or {}, dict[str, list[str]]()
        if options.split_shares is not None:
            self._split_of = {}
        elif by_folder is None:
            self._split_of, self._shared = _read_lists(self._store)
        self.splits = bool(self._split_of)
        self.splits_from = f"the lists of {_LISTS}" if by_folder is None else "folders"
        columns = {BOXES: "float32[,4]", **dict.fromkeys(_FLAGS, "int64[]")}
        box_format = VOC if options.boxes.format is None else None
        self.contents = Contents.of_boxes(None, columns, box_columns=_FLAGS, box_format=box_format)

    def iter_items(self, found: Found) -> Iterator[Item]:
        """Yield the image of each file. Many files are read at once."""
        self._from_zero = list[str]()
        images = defaultdict[str, list[ObjectInfo]](list)  # by their names without suffixes
        with listing():
            for info in self._store.iter_objects(self._images):
                if is_image_name(info.name):
                    images[stem_of(info.name.removeprefix(f"{self._images}/"))].append(info)
        stems = {info.name: stem_of(info.name.removeprefix(f"{self._folder}/")) for info in self._files}
        listed = [info for info in self._files if not self.splits or stems[info.name] in self._split_of]
        if not listed:
            raise SourceError(
                f"{self.base}/{_LISTS}: none of the {len(self._files):,} .xml files is listed there. Correct the "
                "lists, or pass splits, like train=1"
            )
        # The name of a file decides, as in torchvision and detectron2: the name in it may be that of another machine.
        owners = {images[stem][0].name: name for name, stem in stems.items() if len(images.get(stem, ())) == 1}
        reader = Files(self.base)
        for chunk in chunks_of(listed, lambda info: info.size_bytes):
            infos = {info.name: info for info in chunk}
            for name, data in read_annotations(reader, infos).items():
                where, read, problem = f"{self.base}/{name}", _Annotation({}, []), None
                try:
                    read = _parse(data)
                except ImageError as error:
                    problem = error.reason, f"{where}: {error}"
                called = read.fields.get("filename", "").replace("\\", "/").rpartition("/")[2]
                fit = images.get(stems[name]) or images.get(stem_of(called)) or images.get(called) or []
                fit = [info for info in fit if posixpath.basename(info.name) == called] if len(fit) > 1 else fit
                owner = owners.setdefault(fit[0].name, name) if fit else ""
                info = fit[0] if owner == name else ObjectInfo(name, 0, "")
                if not fit:
                    expected = f"{self.base}/{posixpath.join(self._images, stems[name])}.jpg"
                    problem = problem or ("unreadable", f"{where} has no image, or several. Expected {expected}")
                elif owner != name:
                    both = f"{where} and {self.base}/{owner} both annotate {fit[0].name}"
                    problem = problem or ("bad_box", both)
                elif info.version == BROKEN_LINK:
                    problem = "unreadable", "a link to nothing"
                yield self._to_item(info, self._split_of.get(stems[name]), read, where, problem)
        found.notes += self._iter_notes()
        for what, left_out in (
            ("images have no .xml file", {x.name for infos in images.values() for x in infos} - owners.keys()),
            (f"images are in none of the lists of {_LISTS}", stems.keys() - {info.name for info in listed}),
            (f"names in the lists of {_LISTS} have no .xml file", self._split_of.keys() - set(stems.values())),
        ):
            if left_out:
                found.notes.append(f"{len(left_out):,} {what} and are left out: {format_names(sorted(left_out))}")

    def _iter_notes(self) -> Iterator[str]:
        """Decide from which number pixels are counted, and yield notes on that and on the lists of splits."""
        if self._from_zero and self.contents.box_format is not None:
            self.contents = self.contents._replace(box_format="xyxy")
            yield (
                f"boxes count pixels from 0, so they are stored as they are: {len(self._from_zero):,} .xml files have "
                f"a box that begins at 0, which VOC's counting from 1 cannot give: {format_names(self._from_zero)}. "
                f"Else pass --box-format {VOC}"
            )
        if self._shared:
            shared = [f"{stem} ({', '.join(splits)})" for stem, splits in self._shared.items()]
            yield (
                f"{len(shared):,} names are in the lists of several splits of {_LISTS}, and are taken in the first: "
                f"{format_names(shared)}. Leave each in one list"
            )

    def _to_item(
        self, info: ObjectInfo, split: str | None, read: _Annotation, where: str, problem: tuple[str, str] | None
    ) -> Item:
        labels, boxes, flags, wrong = list[str](), list[list[float]](), list[list[int]](), ""
        starts_at_zero = False
        # Wrong objects keep their places, as a reject must not affect the types of columns.
        for number, one in enumerate(read.objects, 1):
            said = [one.get(f"bndbox/{side}") for side in _SIDES]
            sides, marks = [_number(each) for each in said], [_FLAG.get(one.get(each, "").lower()) for each in _FLAGS]
            what = "" if one.get("name") else "no 'name'"
            if None in sides:
                side = sides.index(None)
                what = what or f"{_SIDES[side]!r} {str(said[side])[:_SAID]!r}. Expected a 'bndbox' of four numbers"
            if None in marks:
                flag = _FLAGS[marks.index(None)]
                what = what or f"{flag!r} {one[flag][:_SAID]!r}. Expected 0 or 1"
            wrong = wrong or (what and f"object {number} of {where} has {what}")
            boxes.append([side or 0.0 for side in sides])
            starts_at_zero |= any(side is not None and 0 <= side < 1 for side in sides[:2])
            flags.append([mark or 0 for mark in marks])
            labels += [one["name"]] if one.get("name") else []
        if starts_at_zero and not wrong:
            self._from_zero.append(where)
        pixels, wrong_size = read_size(read.fields.get("size/height"), read.fields.get("size/width"))
        wrong = wrong or (wrong_size and f"{where} has {wrong_size}")
        label = tuple(labels) if self._labelled else None
        columns = {BOXES: boxes, **{flag: [each[at] for each in flags] for at, flag in enumerate(_FLAGS)}}
        problem = problem or (("bad_box", wrong) if wrong else None)
        return item_of(info.name, info.name, info, label, split, columns, problem=problem, pixels=pixels)


def _parse(data: bytes | str) -> _Annotation:
    """Parse a file, or what is wrong with it. Raises ImageError.

    Entities and DTDs are refused: they can grow without end, or read other files.
    """
    if isinstance(data, str):
        raise ImageError("bad_box", data)
    found, path, text = _Annotation({}, []), list[str](), list[str]()

    def start(tag: str, _: object) -> None:
        if not path and tag != "annotation":
            raise ImageError("bad_box", f"it begins with <{tag[:_SAID]}>. Expected <annotation>")
        path.append(tag)
        text.clear()
        if path == ["annotation", "object"]:
            found.objects.append({})

    def end(_: str) -> None:
        if len(path) <= _LEVELS:
            _, *names = path
            fields = found.objects[-1] if names[:1] == ["object"] else found.fields
            fields.setdefault("/".join(names[fields is not found.fields :]), "".join(text).strip())
        path.pop()
        text.clear()

    def refuse(*_: object) -> None:
        raise ImageError("bad_box", "it declares an entity or a DTD, which are refused. Remove the declaration")

    parser = expat.ParserCreate()
    parser.buffer_text = True
    parser.StartElementHandler, parser.EndElementHandler, parser.CharacterDataHandler = start, end, text.append
    parser.StartDoctypeDeclHandler = parser.EntityDeclHandler = refuse
    try:
        parser.Parse(data, True)
    except ImageError:
        raise
    except (expat.ExpatError, ValueError, LookupError) as error:  # of an unknown encoding
        raise ImageError("bad_box", f"not XML: {error}") from error
    return found


def _read_lists(store: Store) -> tuple[dict[str, str], dict[str, list[str]]]:
    """Return the split of each name in the lists of a dataset, and the names in the lists of several splits.

    The first list with a name decides. Without lists both are empty.
    """
    found, several = dict[str, str](), dict[str, list[str]]()
    for name, split in (("train", "train"), ("val", "val"), ("test", "test"), ("trainval", "train")):
        if name == "trainval" and not {"train", "val"}.isdisjoint(found.values()):
            break
        file = f"{_LISTS}/{name}.txt"
        where = f"{store.url}/{file}"
        try:
            with listing(f"{where} cannot be read"):
                text = store.read(file).decode("utf-8-sig") if store.stat(file) else ""
        except UnicodeDecodeError as error:
            raise SourceError(f"{where}: not a list of names: {error}") from error
        for line in text.splitlines():
            if (stem := line.strip().strip('"')) and (first := found.setdefault(stem, split)) != split:
                several.setdefault(stem, [first]).append(split)
    return found, several


def _number(text: str | None) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if math.isfinite(number) else None
