"""The Protocol of all kinds of source: each lists items, and says as data what its samples hold."""

import os
import posixpath
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple, Protocol

from tpufeed.build.item import Item
from tpufeed.dataset.naming import read_classes
from tpufeed.errors import AccessError, SourceError, StoreError, UnavailableError, url_identity
from tpufeed.sharding.boxes import FlipPairs
from tpufeed.sharding.columns import Declared
from tpufeed.sharding.inputs import files_of, place_of
from tpufeed.sharding.options import ShardOptions
from tpufeed.storage.store import ObjectInfo, Store, url_scheme

_MANY_SHOWN = 8
_ROW_DIGITS = 9  # so that the order of names is that of rows
_ROW = re.compile(rf"(.+\.(?:parquet|arrow))/[0-9]{{{_ROW_DIGITS},}}(?:/|\Z)", re.IGNORECASE | re.DOTALL)
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")
# Folders that other programs put among images: thumbnails of a Synology or QNAP, bins, snapshots.
HIDDEN_FOLDERS = (
    r"__macosx|\.appledouble|@eadir|@tmp|@recycle|@recently-snapshot|#recycle|#snapshot|\$recycle\.bin|"
    r"system volume information|lost\+found"
)
_HIDDEN = re.compile(rf"(?:\A|/)(?:\.(?!\.)|(?:{HIDDEN_FOLDERS})(?:/|\Z))")


@dataclass(slots=True)
class Found:
    """Notes that a source takes while its rows are read.

    Attributes:
        ignored_files: files whose names are not those of images, counted by their endings.
        notes: warnings, as sentences.
    """

    ignored_files: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)


class Contents(NamedTuple):
    """What the samples of a source hold besides their images, as far as it is said.

    Attributes:
        class_names: in the order of their ids.
        declared: columns of known types, with those of boxes and keypoints among them.
        boxes: the column of boxes.
        keypoints: the column of keypoints.
        pairs: keypoints that are the left and the right of the same.
        box_columns: columns with a value for each box.
    """

    class_names: tuple[str, ...] | None = None
    declared: tuple[Declared, ...] = ()
    boxes: str | None = None
    keypoints: str | None = None
    pairs: FlipPairs | None = None
    box_columns: tuple[str, ...] = ()

    def merge(self, options: ShardOptions) -> "Contents":
        """Return what a source and the options of a build say together.

        Columns that a source says itself cannot be given as options. A user's list of classes goes before the source's;
        the list that an append has from its dataset does not: the source still says what its own numbers mean.
        """
        given = options.class_names
        if self.class_names is not None and (given is None or options.keeps_classes):
            given = read_classes(self.class_names)
        return Contents(
            given,
            self.declared or options.declared,
            self.boxes or options.boxes,
            self.keypoints or options.keypoints,
            self.pairs if options.pairs is None else options.pairs,
            self.box_columns or tuple(options.box_columns or ()),
        )


@dataclass(slots=True)
class Place:
    """Where a source is: a folder, or files in one.

    Attributes:
        store: the folder.
        files: named by a user, or found in the folder.
        objects: all that is in a folder of images, for one reading.
        is_folder: the files are all that the folder has, and none was named.
    """

    store: Store
    files: Sequence[ObjectInfo]
    objects: Iterable[ObjectInfo] = ()
    is_folder: bool = False


class Source(Protocol):
    """Raw images of one kind, at one place.

    Attributes:
        kind: its name.
        suffixes: of files that may be of this kind.
        has_values: items may have further values, which become columns.
        labels_are_names: labels are names of folders, even those that look like numbers.
        spells_files: an item's `path` is one of several spellings of its file.
        numbers_rows: an item's `path` is the number of its row, which another image may have in a newer file.
        base: the URL that the files of items are relative to.
        splits: true if items say their splits.
        contents: what it says itself of its samples.
    """

    kind: ClassVar[str]
    suffixes: ClassVar[tuple[str, ...]] = ()
    has_values: ClassVar[bool] = True
    labels_are_names: ClassVar[bool] = False
    spells_files: ClassVar[bool] = False
    numbers_rows: ClassVar[bool] = False
    base: str
    splits: bool = False
    contents: Contents = Contents()

    def __init__(self, place: Place, options: ShardOptions) -> None:
        """Look at a place of this kind.

        Raises:
            OptionError: an option that this kind does not take; or nobody can tell what is meant.
            SourceError: it cannot be read.
        """

    def iter_items(self, found: Found) -> Iterator[Item]:
        """Yield all items, once; what is noticed meanwhile is added to `found`.

        Raises:
            SourceError, NoInputsError, OptionError: the source cannot be understood; names the place.
            DamagedReadError: items that were given out before may be wrong: list it again.
            UnavailableError, AccessError: a store does not answer, or refuses.
        """

    def iter_files(self) -> Iterator[str]:
        """Yield where the files of all items are, as `place_of` says it. Raises as `iter_items` does."""
        return (place_of(file) for item in self.iter_items(Found()) for file in files_of(item))

    def iter_warnings(self, found: Found, classes: Sequence[str] | None, columns: Sequence[str]) -> Iterator[str]:
        """Yield sentences on what its samples have become that may not have been meant.

        Args:
            found: what listing it has found.
            classes: names of the classes; None if samples have no labels.
            columns: names of the further columns.
        """
        return iter(())


@contextmanager
def listing(what: str = "the source cannot be listed") -> Iterator[None]:
    """Turn what fails within it into a SourceError, unless the store does not answer or refuses."""
    try:
        yield
    except (UnavailableError, AccessError):  # no fault of the request
        raise
    except StoreError as error:
        raise SourceError(f"{what}: {error}") from error


def is_image_name(name: str) -> bool:
    """Return true for an image's name. Hidden files and folders (.ipynb_checkpoints, ._x.jpg, @eaDir) are no images."""
    name = name.lower()
    return name.endswith(IMAGE_SUFFIXES) and _HIDDEN.search(name) is None


def is_hidden(name: str) -> bool:
    """Return true for the name of a file or folder, or for a path with one, that other programs hide."""
    return _HIDDEN.search(name.lower()) is not None


def stem_of(name: str) -> str:
    """Return a relative path without the suffix of an image."""
    return name.rpartition(".")[0]


def name_of_row(file: str, row: int) -> str:
    """Return what the image in row `row` (from 0) of a file is called, however many rows the file has."""
    return f"{file}/{row:0{_ROW_DIGITS}d}"


def file_of_row(path: str) -> str:
    """Return the file of the image that `path` names, as `name_of_row` and maybe a name behind it; empty for others."""
    match = _ROW.match(path)
    return match[1] if match else ""


def identity_of(base: str, path: str) -> str:
    """Return what a path or URL of a source at `base` is known by, however it is signed: see `errors.url_identity`."""
    if "?" in path and "://" not in path and url_scheme(base) in ("http", "https"):
        root = "https://host/"
        return url_identity(root + path).removeprefix(root)
    return url_identity(path)


def resolve(base: str, path: str) -> str:
    """Return the file that `path` in a table at `base` means: a name below `base` if it can be, else a path or URL."""
    if url_scheme(path) == "file":
        path = path.partition("://")[2] if "://" in path else path
    else:
        name = path.removeprefix(base.rstrip("/") + "/")
        is_clean = posixpath.normpath(name) == name and not name.startswith(("/", "../"))  # no URL is: it has "//"
        return name if is_clean else path
    if path.startswith("/") and url_scheme(base) != "file":  # a file of this machine, as every other program has it
        return posixpath.normpath(path)
    if url_scheme(base) == "file":
        full = os.path.normpath(os.path.join(base, path))  # noqa: PTH118  # Path would not resolve '..'
        return full.removeprefix(base.rstrip("/") + "/")
    scheme, _, root = base.partition("://")
    full = posixpath.normpath(posixpath.join("/" + root, path))
    below = "/" + root.rstrip("/") + "/"
    return full.removeprefix(below) if full.startswith(below) else f"{scheme}:/{full}"


def show(names: Sequence[str]) -> str:
    """Return a few names as text."""
    return f"{', '.join(names[:_MANY_SHOWN])}{' ...' if len(names) > _MANY_SHOWN else ''}"
