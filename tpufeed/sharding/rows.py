"""Rows: one for each sample of a source, before labels have ids and columns have types."""

import os
import posixpath
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tpufeed.build.plan import ImageRef
from tpufeed.errors import AccessError, SourceError, StoreError, UnavailableError, url_identity
from tpufeed.storage.registry import url_scheme

Label = str | int | None
Labels = tuple[Label, ...]  # of a sample of several classes

_ROW_DIGITS = 9  # so that the order of names is that of rows
_ROW = re.compile(rf"(.+\.(?:parquet|arrow))/[0-9]{{{_ROW_DIGITS},}}(?:/|\Z)", re.IGNORECASE | re.DOTALL)
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")
SPLIT_OF_WORD = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev", "eval", "evaluation"), "val"),
    **dict.fromkeys(("test", "testing"), "test"),
}
# Folders that other programs put among images: thumbnails of a Synology or QNAP, bins, snapshots.
HIDDEN_FOLDERS = frozenset(
    (
        "__macosx",
        ".appledouble",
        "@eadir",
        "@tmp",
        "@recycle",
        "@recently-snapshot",
        "#recycle",
        "#snapshot",
        "$recycle.bin",
        "system volume information",
        "lost+found",
    )
)


class Row(NamedTuple):
    """One sample as its source describes it.

    Attributes:
        path: names the sample: the global order, its split and `image/filename` follow from it. See `identity_of`.
        bytes: of the encoded image; of a row of Parquet an estimate, which is never compared.
        version: equal means unchanged, see `storage.store.ObjectInfo`.
        label: a class's name or id, as the source says, or several; None where it says none.
        split: as the source says.
        file: where the bytes lie, where that is not `path` below the source: a name there, an absolute path or a URL.
        offset: of the image within its file.
        columns: further values by name.
        problem: why the sample cannot be taken, as (reason code, message).
        images: its further images, in the order of `ShardOptions.pictures`; none where one of them is missing.
        group: rows of one group stand side by side in the global order, as they are read together; by their paths.
        pixels: height and width of the image that boxes and keypoints are of, if the source says it.
    """

    path: str
    bytes: int
    version: str
    label: Label | Labels = None
    split: str | None = None
    file: str = ""
    offset: int = 0
    columns: Mapping[str, Any] | None = None
    problem: tuple[str, str] | None = None
    images: tuple[ImageRef, ...] = ()
    group: str = ""
    pixels: tuple[int, int] | None = None


@dataclass(slots=True)
class Found:
    """Notes that a source takes while its rows are read.

    Attributes:
        ignored_files: files that are no images by their names, counted by their endings.
        nested: folders in class folders, as (class, folder); of a thousand no more are noted.
        tars: names of tars.
        notes: warnings, as sentences.
    """

    ignored_files: Counter[str] = field(default_factory=Counter)
    nested: set[tuple[str, str]] = field(default_factory=set)
    tars: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


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
    return name.lower().endswith(IMAGE_SUFFIXES) and not any(map(is_hidden, name.split("/")))


def is_hidden(part: str) -> bool:
    """Return true for a name that other programs hide."""
    return (part.startswith(".") and not part.startswith("..")) or part.lower() in HIDDEN_FOLDERS


def splits_mentioned(names: Iterable[str]) -> set[str]:
    """Return those of train, val and test that some names mention: `flowers-train` is no split's usual name."""
    words = (word for name in names for word in re.findall("[a-z]+", name.lower()))
    return {SPLIT_OF_WORD[word] for word in words if word in SPLIT_OF_WORD}


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
    """The file that `path` in a table at `base` means: a name below `base` where it can be, else absolute or a URL."""
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
