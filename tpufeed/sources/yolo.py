"""Read YOLO's data.yaml: folders or lists of images by split, and a text file of boxes for each image."""

import itertools
import math
import posixpath
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from tpufeed.builds.item import Item, Outline
from tpufeed.dataset.naming import count_ending
from tpufeed.errors import (
    ImageError,
    MissingExtraError,
    NoInputsError,
    OptionError,
    SourceError,
    TpufeedError,
    UsageError,
)
from tpufeed.sources.boxes import FlipPairs
from tpufeed.sources.inputs import Files
from tpufeed.sources.options import BOXES, KEYPOINTS, ShardOptions
from tpufeed.sources.paths import identity_of, is_image_name, resolve, stem_of, whole
from tpufeed.sources.source import (
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
)
from tpufeed.storage.reading import open_compared
from tpufeed.storage.store import BROKEN_LINK, ObjectInfo, Store, open_store
from tpufeed.text import format_names

_SPLITS = ("train", "val", "test")
_NAME = "data.yaml"  # of exports
_MOST_BYTES = 1 << 20  # of a data.yaml: PyYAML reads 100 KB in a second
_AT_ONCE = 4096
_BOX, _CORNERS = 4, 3
_MOST_POINTS = 512
_BEYOND = 0.01  # shares of an image that a number may be outside of it, as Ultralytics allows
_SAID = 80  # characters of a line in a message
_CLASSES = "classes.txt"  # beside labels. Names are those of the data.yaml
_KEYS = [re.compile(rf"^['\"]?{key}['\"]?[ \t]*:", re.MULTILINE) for key in ("train", "val", "names")]


class _Yaml(msgspec.Struct):
    names: list[str | int] | dict[int, str | int]
    nc: int | None = None
    path: str | None = None
    train: str | list[str] | None = None
    val: str | list[str] | None = None
    test: str | list[str] | None = None
    kpt_shape: tuple[Annotated[int, msgspec.Meta(ge=1, le=_MOST_POINTS)], Literal[2, 3]] | None = None
    flip_idx: list[int] | None = None


_YAML = msgspec.json.Decoder(_Yaml)


@dataclass(frozen=True, slots=True)
class _Config:
    """Contents of a data.yaml."""

    root: str  # of the images, relative to the file
    splits: dict[str, list[str]]  # folders of images or lists of them
    names: dict[int, str]  # of classes, in the order of their ids
    points: tuple[int, int] | None  # keypoints of a box, and the numbers of each
    pairs: FlipPairs | None


class _Labels(NamedTuple):
    """Contents of the label file of an image. Wrong lines keep their places, as a reject must not affect columns."""

    boxes: list[list[float]]
    classes: list[str]
    keypoints: list[list[list[float]]]
    outlines: list[Outline]  # of polygons, or empty for boxes
    problem: tuple[str, str] | None


class _Image(NamedTuple):
    file: str
    info: ObjectInfo | TpufeedError | None
    split: str
    label: str  # the file of its labels
    label_info: ObjectInfo | TpufeedError | None


class YoloSource(Source):
    """The images of a data.yaml with their boxes. An image without a label file is a sample without boxes."""

    what, suffixes, has_outlines = "YOLO's data.yaml", (".yaml", ".yml"), True
    marks = (_NAME,)
    labels_from, splits_from = "the names of its boxes' classes", "the keys of the file"

    @classmethod
    def claim(cls, folder: Folder) -> Place | None:
        """Return the place of a data.yaml that names images and classes."""
        info = folder.store.stat(_NAME)
        if info is None or not 0 < info.size_bytes <= _MOST_BYTES:
            return None
        text = folder.store.read(_NAME).decode("utf-8", "replace")
        train, val, names = (key.search(text) for key in _KEYS)
        return folder.place([info] if names and (train or val) else [])

    def __init__(self, place: Place, options: ShardOptions) -> None:
        if len(place.files) > 1:
            raise OptionError(f"{place.store.url}: {len(place.files)} files of YOLO. Shard each separately")
        check_declares_all(options, "a data.yaml")
        store, name = place.store, place.files[0].name
        self._where = f"{store.url}/{name}"
        self._config = config = _read_config(store, name)
        self._labelled, self._outlined = options.label == "auto", options.outlines is not None
        self.splits = options.split_shares is None
        self._notes, self._entries, self.base = list[str](), list[tuple[str, Store, str]](), ""
        # `path` may be that of another machine. Then the file is in the folder that it means.
        roots = list(dict.fromkeys(_join(store.url, each) for each in (config.root, ".")))
        for split, entries in config.splits.items():
            for entry in entries:
                spelled = dict.fromkeys((entry, re.sub(r"^(\.\./)+", "", entry)))
                tried = [(root, each) for root in roots for each in spelled]
                try:
                    with listing():
                        root, at = next(((root, at) for root, each in tried if (at := _look(root, each))), ("", None))
                except (UsageError, SourceError) as error:  # no place can be called so
                    raise SourceError(f"{self._where}: {split} names {entry[:_SAID]!r}: {error}") from error
                if at is not None:
                    self.base = self.base or root
                    self._entries.append((split, *at))
                    continue
                looked = " and ".join(dict.fromkeys(_join(*each) for each in tried))
                wrong = f"{self._where}: {split} names {entry!r}, which is not there (looked for {looked})"
                if split != "test":  # Roboflow names it in exports without one
                    raise SourceError(f"{wrong}. Correct 'path' or '{split}' in the file")
                self._notes.append(f"{wrong}: the dataset has no images of it")
        if not self._entries:
            raise SourceError(f"{self._where}: none of its folders of images is there")
        names = config.names.values() if self._labelled else None
        columns = {BOXES: f"float32[,{_BOX}]"}
        if config.points is not None:
            columns[KEYPOINTS] = f"float32[,{config.points[0]},{config.points[1]}]"
        self.contents = Contents.of_boxes(names, columns, pairs=config.pairs, box_format="cxcywh,relative")

    def iter_items(self, found: Found) -> Iterator[Item]:
        """Yield the images. The label files of many are read at once."""
        found.notes += self._notes
        images, files = self._iter_images(found), Files(self.base)
        lacking, count, first = 0, 0, ""
        for chunk in chunks_of(images, lambda image: getattr(image.label_info, "size_bytes", 0)):
            infos = {image.label: image.label_info for image in chunk if image.label_info is not None}
            texts = read_annotations(files, {name: x for name, x in infos.items() if isinstance(x, ObjectInfo)})
            for image in chunk:
                if image.label_info is None:
                    if isinstance(image.info, ObjectInfo):
                        lacking, first = lacking + 1, first or image.file
                    yield self._to_item(image, b"")
                else:
                    yield self._to_item(image, texts.get(image.label, str(image.label_info)))
            count += len(chunk)
        if not count:
            raise NoInputsError(f"{self._where}: no images found in the folders that it names")
        if lacking == count:
            label = whole(self.base, _label_of(self.base, first))
            raise SourceError(
                f"{self._where}: none of its {count:,} images has a label file, like {label} for {first}. Labels are "
                "in a folder 'labels' beside 'images', or beside the images"
            )
        if lacking:
            found.notes.append(f"{lacking:,} images have no label file, like {first}: they are samples without boxes")

    def _iter_images(self, found: Found) -> Iterator[_Image]:
        """Yield all images, with their label files as these are listed or looked up."""
        files, lost = Files(self.base), set[str]()
        for split, store, name in self._entries:
            if name.endswith(".txt"):
                yield from self._iter_list(files, split, store, name)
                continue
            image = resolve(self.base, whole(store.url, f"{name}/x.jpg".lstrip("/")))
            with listing():
                for file in (_label_of(self.base, image), image):  # images and labels may be in folders below, too
                    at, prefix = _open(self.base, file.rpartition("/")[0])
                    labels = {
                        resolve(self.base, whole(at.url, info.name)): info
                        for info in at.iter_objects(prefix)
                        if info.name.endswith(".txt")
                    }
                    if labels:
                        break
                used = set[str]()  # images may share one, like a.jpg and a.png
                for info in store.iter_objects(name):
                    if is_image_name(info.name):
                        file = resolve(self.base, whole(store.url, info.name))
                        label = _label_of(self.base, file)
                        used.add(label)
                        yield _Image(file, info, split, label, labels.get(label))
                    elif not info.name.endswith(".txt"):
                        count_ending(found.ignored_files, info.name)
            lost.update(label for label in labels.keys() - used if posixpath.basename(label) != _CLASSES)
        if lost:
            found.notes.append(f"{len(lost):,} label files belong to no image: {format_names(sorted(lost))}")

    def _iter_list(self, files: Files, split: str, store: Store, name: str) -> Iterator[_Image]:
        where = f"{store.url}/{name}"
        with listing(f"{where} cannot be read"), open_compared(store, name) as file:
            try:
                lines = [line.strip() for line in file.read().decode("utf-8-sig").splitlines()]
            except UnicodeDecodeError as error:
                raise SourceError(f"{where}: not a list of images: {error}") from error
        lines = [line.replace("\\", "/") for line in lines if line]
        folder = whole(store.url, name).rpartition("/")[0]
        # Relative to the list or to the root. CVAT writes data/ before names relative to either.
        ways = [(at, start) for at in dict.fromkeys((folder, self.base)) for start in ("", "data/")]
        tried = [resolve(self.base, _join(at, line.removeprefix(start))) for line in lines[:1] for at, start in ways]
        there = [isinstance(info, ObjectInfo) for info in files.stats(tried)]
        at, start = ways[there.index(True)] if True in there else ways[0]
        for first in range(0, len(lines), _AT_ONCE):
            some = lines[first : first + _AT_ONCE]
            names = [resolve(self.base, _join(at, line.removeprefix(start))) for line in some]
            labels = [_label_of(self.base, name) for name in names]
            both = files.stats([*names, *labels])
            yield from map(_Image, names, both, itertools.repeat(split), labels, both[len(names) :])

    def _to_item(self, image: _Image, data: bytes | str) -> Item:
        info, config, where = image.info, self._config, whole(self.base, image.label)
        problem: tuple[str, str] | None = None
        try:
            text = "" if isinstance(data, str) else data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            text, data = "", f"not UTF-8 text: {error}"
        if isinstance(data, str):
            problem = "bad_box", f"its labels, {where}: {data}"
        labels = _read_labels(text, config, where)
        if isinstance(info, TpufeedError):
            problem = "unreadable", str(info)
        elif info is None or info.version == BROKEN_LINK:
            problem = "unreadable", f"there is no such file; {self._where} lists it"
        columns: dict[str, Any] = {BOXES: labels.boxes}
        if config.points is not None:
            columns[KEYPOINTS] = labels.keypoints
        label = tuple(labels.classes) if self._labelled else None
        split = image.split if self.splits else None
        outlines = tuple(labels.outlines) if self._outlined else ()
        path, problem = identity_of(self.base, image.file), problem or labels.problem
        return item_of(path, image.file, info, label, split, columns, problem=problem, outlines=outlines)


def _read_config(store: Store, name: str) -> _Config:
    """Read a data.yaml. Raises SourceError, which names the key and what was expected."""
    try:
        import yaml
    except ImportError as error:
        raise MissingExtraError("pyyaml", "annotations") from error

    class Loader(yaml.SafeLoader):  # type: ignore[misc]  # PyYAML has no types here
        def flatten_mapping(self, _: Any) -> None:
            """Leave merge keys (`<<`) as they are, so that they are refused: a few lines can grow without end."""

    where = f"{store.url}/{name}"
    with listing(f"{where} cannot be read"), open_compared(store, name) as file:
        data = file.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise SourceError(f"{where}: it has more than {_MOST_BYTES >> 20} MB, too much for YOLO's data.yaml")
    try:
        said = _YAML.decode(msgspec.json.encode(yaml.load(data, Loader)))  # a safe one
    except msgspec.ValidationError as error:
        raise SourceError(f"{where}: not YOLO's data.yaml, with train, val and names: {error}") from error
    # PyYAML raises all of these for values like `!!int ""`.
    except (
        yaml.YAMLError,
        ValueError,
        TypeError,
        RecursionError,
        LookupError,
        AttributeError,
        ArithmeticError,
    ) as error:
        raise SourceError(f"{where}: not YAML: {error}") from error
    names = dict(sorted(said.names.items() if isinstance(said.names, dict) else enumerate(said.names)))
    named = {key: str(name) for key, name in names.items()}
    if said.nc is not None and said.nc != len(named):
        raise SourceError(f"{where}: 'nc' is {said.nc}, but 'names' has {len(named)} classes. Correct one of them")
    if not named:
        raise SourceError(f"{where}: 'names' is empty. Expected the names of the classes")
    for class_name, times in Counter(named.values()).most_common(1):
        if times != 1:
            raise SourceError(f"{where}: 'names' has {times} classes called {class_name!r}. Expected each name once")
    splits = {
        split: [entry.strip().replace("\\", "/") for entry in ([entries] if isinstance(entries, str) else entries)]
        for split in _SPLITS
        if (entries := getattr(said, split))
    }
    if not splits:
        raise SourceError(f"{where}: it has none of the keys train, val and test, which name the folders of images")
    points, order, pairs = said.kpt_shape, said.flip_idx, None
    if points is not None and order:
        places = dict(enumerate(order))
        if len(order) != points[0] or any(places.get(other) != at for at, other in places.items()):
            raise SourceError(f"{where}: 'flip_idx' is {order}. Expected {points[0]} numbers that swap keypoints")
        pairs = tuple((at, other) for at, other in places.items() if at < other) or None
    return _Config((said.path or ".").strip().replace("\\", "/"), splits, named, points, pairs)


def _read_labels(text: str, config: _Config, where: str) -> _Labels:
    """Read a label file. Each line is an object."""
    found = _Labels([], [], [], [], None)
    points, each = config.points or (0, 0)
    for row, line in enumerate(text.splitlines(), 1):
        values = line.split()
        if not values:
            continue
        box, marks, outline, wrong = [0.0] * _BOX, [[0.0] * each] * points, Outline(), None
        try:
            kind, *numbers = map(float, values)
            if kind not in config.names:
                count = len(config.names)
                raise ImageError("bad_label", f"the class is not among the {count} names of the data.yaml")
            found.classes.append(config.names[int(kind)])
            box, marks, outline = _read_box(numbers, points, each)
        except ImageError as error:
            wrong = error.reason, str(error)
        except ValueError:
            wrong = "bad_box", "expected a class and numbers"
        found.boxes.append(box)
        found.keypoints.append(marks)
        found.outlines.append(outline)
        if wrong is not None and found.problem is None:
            found = found._replace(problem=(wrong[0], f"line {row} of {where}, {line[:_SAID]!r}: {wrong[1]}"))
    return found


def _read_box(numbers: list[float], points: int, each: int) -> tuple[list[float], list[list[float]], Outline]:
    """Return the box, keypoints and outline of a box or a polygon. Raises ImageError, which says what was expected."""
    box, marks, outline, expected = numbers[:_BOX], list[list[float]](), Outline(), _BOX + points * each
    is_polygon = not points and len(numbers) >= 2 * _CORNERS and len(numbers) % 2 == 0
    shares = numbers
    if len(numbers) == expected:
        marks = [numbers[first : first + each] for first in range(_BOX, expected, each)] if points else []
        shares = [*box, *itertools.chain.from_iterable(mark[:2] for mark in marks)]
    elif not is_polygon:
        corners = "" if points else ", or x and y of 3 or more corners"
        raise ImageError("bad_box", f"{len(numbers)} numbers after the class. Expected {expected}{corners}")
    if not all(-_BEYOND <= number <= 1 + _BEYOND for number in shares) or not all(map(math.isfinite, numbers)):
        raise ImageError("bad_box", "expected shares of the image's width and height, from 0 to 1")
    if is_polygon:
        (left, right), (top, bottom) = ((min(side), max(side)) for side in (numbers[::2], numbers[1::2]))
        box, outline = [(left + right) / 2, (top + bottom) / 2, right - left, bottom - top], Outline((tuple(numbers),))
    if min(box[2:]) <= 0:
        raise ImageError("bad_box", "expected a box with an area")
    return box, marks, outline


def _join(folder: str, path: str) -> str:
    return whole(folder, resolve(folder, path))


def _label_of(base: str, file: str) -> str:
    """Return the label file of an image: below `labels` instead of the last `images`, else beside the image."""
    head, images, tail = whole(base, file).rpartition("/images/")
    return resolve(base, f"{stem_of(f'{head}/labels/{tail}' if images else tail)}.txt")


def _open(base: str, path: str) -> tuple[Store, str]:
    """Return a store, and the name in it of a folder or list at `path`, as `resolve` has given it for `base`."""
    if not path.startswith("/") and "://" not in path:
        return open_store(base), path
    if not path.endswith(".txt"):
        return open_store(path), ""
    folder, _, name = path.rpartition("/")
    return open_store(folder or "/"), name


def _look(root: str, entry: str) -> tuple[Store, str] | None:
    """Return the place of a folder or list that a data.yaml names, or None if nothing is there."""
    store, name = _open(root, resolve(root, entry))
    if name.endswith(".txt"):
        return None if store.stat(name) is None else (store, name)
    return None if next(iter(store.iter_objects(name)), None) is None else (store, name)
