"""The Protocol of all kinds of source: each lists items, and describes as data what its samples hold."""

import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

from tpufeed.builds.item import Item, Labels
from tpufeed.dataset.naming import SPLIT_OF_WORD, read_classes
from tpufeed.errors import AccessError, ImageError, OptionError, SourceError, StoreError, UnavailableError
from tpufeed.sources.boxes import FlipPairs, declare
from tpufeed.sources.columns import Declared
from tpufeed.sources.inputs import Files, iter_read
from tpufeed.sources.options import BOXES, GEOREFERENCE, KEYPOINTS, ShardOptions
from tpufeed.sources.paths import ARROW, PARQUET, is_hidden, is_image_name
from tpufeed.storage.store import ObjectInfo, Store

NUMBER = "label"  # the column of labels that are numbers
_MOST_PIXELS = 1 << 31  # of a side
MOST_ANNOTATION_BYTES = 10 << 20  # of the file of an image
_MOST_AT_ONCE, _MOST_BYTES_AT_ONCE = 4096, 64 << 20  # files of annotations that are read together
_SAID = 40  # characters of a value in a message
IMAGELESS, SPLITS = "no image", "a folder of a split"  # marks of folders
# train, Training_Set, trainset, test_images, val2017
SPLIT_NAME = re.compile(
    rf"({'|'.join(SPLIT_OF_WORD)})(?:_?(?:sets?|data|dataset|images?|imgs?|split|[0-9]{{4}}))?", re.IGNORECASE
)
_MOST_LOOKED_AT = 10_000  # files of a folder, before it is taken for one with images


_Row = TypeVar("_Row")


@dataclass(slots=True)
class Found:
    """Findings of a source while it is listed."""

    ignored_files: Counter[str] = field(default_factory=Counter)  # not images by their names, by their endings
    notes: list[str] = field(default_factory=list)  # warnings, as sentences


class Contents(NamedTuple):
    """Contents of a source's samples besides their images, as far as they are declared."""

    class_names: tuple[str, ...] | None = None  # in the order of their ids
    declared: tuple[Declared, ...] = ()  # columns of known types, including those of boxes and keypoints
    boxes: str | None = None  # the column of boxes
    keypoints: str | None = None  # the column of keypoints
    pairs: FlipPairs | None = None  # keypoints that are the left and the right of the same thing
    box_columns: tuple[str, ...] = ()  # columns with a value for each box
    box_format: str | None = None  # of boxes and keypoints, see `boxes.check_format`, or None if it is not declared

    @classmethod
    def of_boxes(cls, class_names: Iterable[str] | None, columns: Mapping[str, str], **more: Any) -> "Contents":
        """Return the contents of a source that declares its boxes itself, with the types of all `columns`."""
        keypoints = KEYPOINTS if KEYPOINTS in columns else None
        declared = declare(BOXES, keypoints, [Declared.parse(*column) for column in columns.items()])
        return cls(None if class_names is None else tuple(class_names), declared, BOXES, keypoints, **more)

    def merge(self, options: ShardOptions) -> "Contents":
        """Return the contents by a source and the options of a build together.

        Columns that the source declares itself cannot be given as options. A user's list of classes overrides the
        source's. The list that an append has from its dataset does not: the source still says what its numbers mean.

        Raises:
            OptionError: there are no boxes or keypoints, though their format is given.
        """
        given, name_of = options.class_names, options.name_of
        if self.class_names is not None and (given is None or options.keeps_classes):
            given = read_classes(self.class_names)
        boxes, keypoints = self.boxes or options.boxes_name, self.keypoints or options.keypoints_name
        if options.boxes.format is not None and boxes is None and keypoints is None:
            raise OptionError("boxes.format is for boxes. Name the column that holds them: --boxes COLUMN")
        declared = [each._replace(name=name_of(each.name)) for each in self.declared or options.declared]
        if options.label_type == "number":
            given, declared = None, [*declared, Declared(NUMBER, "float32")]
        if options.georeference:
            declared.append(Declared(name_of(GEOREFERENCE), "string"))
        return Contents(
            given,
            tuple(declared),
            boxes and name_of(boxes),
            keypoints and name_of(keypoints),
            self.pairs if options.boxes.pairs is None else options.boxes.pairs,
            tuple(map(name_of, self.box_columns or options.boxes.columns or ())),
            self.box_format or options.boxes.format,
        )


class Folder:
    """A folder that the user named: all kinds of source look at one listing of it."""

    def __init__(self, store: Store) -> None:
        self.store, self._objects = store, store.iter_objects()
        self._first = list(itertools.islice(self._objects, 1))  # an error of access is that of the listing

    @cached_property
    def folders(self) -> list[str]:
        """Names of the folders right below, sorted, without hidden ones."""
        return sorted(name for name in self.store.iter_folders() if not is_hidden(name))

    @cached_property
    def imageless(self) -> list[ObjectInfo]:
        """All files below, or an empty list if an image is among them.

        Class folders are not listed to their end: of 10,000 files in subfolders one has to hold rows.
        """
        while not self._first or not is_image_name(self._first[-1].name):
            has_rows = (info.name.lower().endswith((PARQUET, ARROW)) for info in self._first)
            if len(self._first) == _MOST_LOOKED_AT and self.folders and not any(has_rows):
                break
            if (info := next(self._objects, None)) is None:
                return self._first
            self._first.append(info)
        return []

    @cached_property
    def marks(self) -> set[str]:
        """What kinds look for: `IMAGELESS`, `SPLITS`, and the names of its folders, in small letters with a slash."""
        has_splits = any(map(SPLIT_NAME.fullmatch, self.folders))
        found = {IMAGELESS: self.imageless, SPLITS: has_splits, **{f"{name.lower()}/": True for name in self.folders}}
        return {mark for mark, is_there in found.items() if is_there}

    def has(self, mark: str) -> bool:
        """Return true for one of its `marks`, and for the name of a file right below."""
        return mark in self.marks or ("." in mark and self.store.stat(mark) is not None)

    def iter_objects(self) -> Iterator[ObjectInfo]:
        """Yield all files below. The first reading continues the listing that kinds have looked at."""
        first, objects = self._first, self._objects
        self._first, self._objects = [], self.store.iter_objects()
        return itertools.chain(first, objects)

    def place(self, files: Sequence[ObjectInfo], why: str = "") -> "Place | None":
        """Return the place of some of its files, or None if there are none."""
        return Place(self.store, files, self, why=why or f"it has {files[0].name}") if files else None


@dataclass(slots=True)
class Place:
    """The place of a source: a folder, or files in one."""

    store: Store  # the folder
    files: Sequence[ObjectInfo]  # that the user named, or that were found in `folder`
    folder: Folder | None = None  # that the user named
    split: str | None = None  # of all that it holds
    parts: Sequence["Place"] = ()  # places of several splits, each with a file
    why: str = ""  # it is of its kind, for people
    notes: Sequence[str] = ()  # sentences for the user


class Source(Protocol):
    """Raw images of one kind, at one place."""

    what: ClassVar[str]  # the kind, for people
    suffixes: ClassVar[tuple[str, ...]] = ()  # of files that may be of this kind
    marks: ClassVar[tuple[str, ...]] = ()  # a folder that may be of this kind has one of these, see `Folder.marks`
    has_outlines: ClassVar[bool] = False  # items may have the outlines of their objects
    labels_are_names: ClassVar[bool] = False  # labels are names of folders, even if they look like numbers
    spells_files: ClassVar[bool] = False  # an item's `path` is one of several spellings of its file
    groups: ClassVar[bool] = False  # takes `group_by`
    yields_to_masks: ClassVar[bool] = False  # a folder is another kind's if `masks` is given
    base: str  # the URL that the files of items are relative to
    splits: bool = False  # items have splits
    # As the source declares them. `box_columns` and `box_format` may follow while it is listed.
    contents: Contents = Contents()
    image_column: str = ""  # of paths in a table, once it is listed
    why: str = ""  # it is of this kind, for people
    # Where labels and splits come from, for people. Known once it is listed.
    labels_from: str = ""
    splits_from: str = ""
    images_from: str = ""  # the folder that names were found to be relative to

    def __init__(self, place: Place, options: ShardOptions) -> None:
        """Look at a place of this kind.

        Raises:
            OptionError: this kind does not take an option, or the place is ambiguous.
            SourceError: it cannot be read.
        """

    @classmethod
    def claim(cls, folder: Folder) -> Place | None:  # noqa: ARG003  # most kinds of files claim none
        """Return the place in a folder with one of the `marks`, or None if it is of another kind.

        Raises:
            OptionError: the folder is ambiguous.
            StoreError: it cannot be read.
        """
        return None

    def iter_items(self, found: Found) -> Iterator[Item]:
        """Yield each item once, and add findings to `found`.

        Raises:
            SourceError, NoInputsError, OptionError: the source cannot be understood. Names the place.
            DamagedReadError: earlier items may be wrong: list it again.
            UnavailableError, AccessError: a store does not answer, or refuses.
        """

    def iter_warnings(self, found: Found, classes: Sequence[str] | None, columns: Sequence[str]) -> Iterator[str]:
        """Yield warnings if its samples may not be what the user meant. `classes` are None without labels."""
        return iter(())


@contextmanager
def listing(what: str = "the source cannot be listed") -> Iterator[None]:
    """Turn a StoreError within it into a SourceError, unless the store does not answer or refuses."""
    try:
        yield
    except (UnavailableError, AccessError):  # not the fault of the source
        raise
    except StoreError as error:
        raise SourceError(f"{what}: {error}") from error


def check_declares_all(options: ShardOptions, what: str, takes: Sequence[str] = ()) -> None:
    """Raise OptionError if options contradict a source that declares its boxes, columns, labels and splits itself.

    It takes the options `takes` all the same.
    """
    if options.label not in ("auto", "none"):
        raise OptionError(f"the labels of {what} are the classes of its boxes, or none, not {options.label!r}")
    if options.split_by is not None:
        raise OptionError(f"{what} has its own splits, or is split by shares (splits). Leave split_by out")
    own = [name for name in ("image", "columns", "image_columns") if getattr(options, name)]
    of_boxes = ("column", "format", "keypoints", "columns")
    own += [f"boxes.{name}" for name in of_boxes if getattr(options.boxes, name)]
    if given := [name for name in own if name not in takes]:
        raise OptionError(f"{what} declares its images, boxes and columns itself. Leave out {', '.join(given)}")


def chunks_of(rows: Iterable[_Row], size_of: Callable[[_Row], int]) -> Iterator[list[_Row]]:
    """Yield rows in lists, short ones if annotations are large: those of a list are in memory at once."""
    chunk, size = list[_Row](), 0
    for row in rows:
        chunk.append(row)
        size += size_of(row)
        if len(chunk) == _MOST_AT_ONCE or size >= _MOST_BYTES_AT_ONCE:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def item_of(
    path: str, file: str, info: object, label: Labels | None, split: str | None, values: dict[str, Any], **more: Any
) -> Item:
    """Return the item of a file that annotations name. `path` is its identity, and `info` its state if it is there."""
    size, version = (info.size_bytes, info.version) if isinstance(info, ObjectInfo) else (0, "")
    return Item(path, size, version, label, split, "" if file == path else file, values=values, **more)


def read_size(height: Any, width: Any) -> tuple[tuple[int, int] | None, str]:
    """Return the height and width that annotations say, None if one is missing, and what is wrong with them.

    A build compares them with those of the file, see `worker.SampleMaker`.
    """
    sides = list[int]()
    for value in (height, width):
        try:
            side = float(0 if value in (None, "") else value)
            is_sound = 0 <= side < _MOST_PIXELS and side.is_integer()
            sides.append(int(side) if is_sound else 0 if math.isnan(side) else -1)
        except (TypeError, ValueError, OverflowError):
            sides.append(-1)
    tall, wide = sides
    if min(tall, wide) < 0:
        return None, f"an impossible 'width' or 'height', {str(width)[:_SAID]} x {str(height)[:_SAID]}"
    return ((tall, wide) if min(tall, wide) else None), ""


@lru_cache(maxsize=64)
def size_columns(names: tuple[str, ...]) -> tuple[str, str] | None:
    """Return the columns whose names tell that they hold the height and width of an image, or None."""
    bare = {name.lower().replace("_", ""): name for name in names}
    of_images = ((f"{owner}height", f"{owner}width") for owner in ("image", "img", ""))
    return next(((bare[height], bare[width]) for height, width in of_images if {height, width} <= bare.keys()), None)


def read_annotations(files: Files, infos: Mapping[str, ObjectInfo]) -> dict[str, bytes | str]:
    """Return the bytes of small files, or what is wrong with one. Many remote files are read at once.

    Raises UnavailableError and AccessError of a store.
    """
    items = [Item(name, info.size_bytes, info.version) for name, info in infos.items()]
    small = [item for item in items if item.bytes <= MOST_ANNOTATION_BYTES]
    found = {
        item.path: str(data) if isinstance(data, ImageError) else data[0] for item, data in iter_read(files, small)
    }
    limit = f"expected at most {MOST_ANNOTATION_BYTES >> 20} MB"
    return {item.path: found.get(item.path, f"the file has {item.bytes:,} bytes; {limit}") for item in items}
