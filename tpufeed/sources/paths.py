"""Names of images and files, and where the paths of a source lead."""

import os
import posixpath
import re
from collections.abc import Iterator
from contextlib import contextmanager

from tpufeed.errors import SourceError, url_identity
from tpufeed.storage.store import url_scheme

PARQUET, ARROW = ".parquet", ".arrow"
IMAGE_SUFFIXES = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff"),
    *(".avif", ".heic", ".heif", ".hif", ".jxl"),
)
# Images with --pixels keep. Elsewhere they are features beside images.
KEPT = (".npy", ".npz", ".dcm", ".dicom", ".jp2", ".j2k")
# Folders that other programs put among images: thumbnails of a Synology or QNAP, recycle bins, snapshots.
HIDDEN_FOLDERS = (
    r"__macosx|\.appledouble|@eadir|@tmp|@recycle|@recently-snapshot|#recycle|#snapshot|\$recycle\.bin|"
    r"system volume information|lost\+found"
)
_HIDDEN = re.compile(rf"(?:\A|/)(?:\.(?!\.)|(?:{HIDDEN_FOLDERS})(?:/|\Z))")
_ROW_DIGITS = 9  # so that names sort as rows
_ROW = re.compile(rf"(.+\.(?:parquet|arrow))/[0-9]{{{_ROW_DIGITS},}}(?:/|\Z)", re.IGNORECASE | re.DOTALL)


def is_image_name(name: str, others: tuple[str, ...] = ()) -> bool:
    """Return true for an image's name, unless it or a folder is hidden (.ipynb_checkpoints, ._x.jpg, @eaDir).

    `others` are further suffixes of images.
    """
    return name.lower().endswith(IMAGE_SUFFIXES + others) and not is_hidden(name)


def is_hidden(name: str) -> bool:
    """Return true for a name or path with a file or folder that other programs hide."""
    return _HIDDEN.search(name.lower()) is not None


def stem_of(name: str) -> str:
    """Return a relative path without the suffix of an image."""
    return name.rpartition(".")[0]


def name_of_row(file: str, row: int) -> str:
    """Return the name of the image in row `row` (from 0) of a file."""
    return f"{file}/{row:0{_ROW_DIGITS}d}"


def file_of_row(path: str) -> str:
    """Return the file of an image that `name_of_row` has named, maybe with a name behind, or empty text for others."""
    match = _ROW.match(path)
    return match[1] if match else ""


def identity_of(base: str, path: str) -> str:
    """Return the identity of a path or URL of a source at `base`, however it is signed. See `errors.url_identity`."""
    if "?" in path and "://" not in path and url_scheme(base) in ("http", "https"):
        root = "https://host/"
        return url_identity(root + path).removeprefix(root)
    return url_identity(path)


def resolve(base: str, path: str) -> str:
    """Return the file that `path` in a table at `base` means: a name below `base` if possible, else a path or URL."""
    if url_scheme(path) == "file":
        if "://" in path:
            host, slash, rest = path.partition("://")[2].partition("/")
            path = ("" if host == "localhost" else host) + slash + rest
    else:
        name = path.removeprefix(base.rstrip("/") + "/")
        is_clean = posixpath.normpath(name) == name and not name.startswith(("/", "../"))  # false for URLs, for "//"
        return name if is_clean else path
    if path.startswith("/") and url_scheme(base) != "file":  # a local file, as in every other program
        return posixpath.normpath(path)
    if url_scheme(base) == "file":
        full = os.path.normpath(os.path.join(base, path))  # noqa: PTH118  # Path would not resolve '..'
        return full.removeprefix(base.rstrip("/") + "/")
    scheme, _, root = base.partition("://")
    full = posixpath.normpath(posixpath.join("/" + root, path))
    below = "/" + root.rstrip("/") + "/"
    return full.removeprefix(below) if full.startswith(below) else f"{scheme}:/{full}"


def parent_of(url: str) -> str:
    """Return the folder that holds a folder, or empty text for a bucket and a root."""
    parent = url.rstrip("/").rpartition("/")[0]
    return "" if parent.endswith((":", "/")) else parent


def whole(base: str, file: str) -> str:
    """Return the path or URL of a file that `resolve` has given for `base`."""
    return file if file.startswith("/") or "://" in file else f"{base.rstrip('/')}/{file}"


@contextmanager
def in_utf8() -> Iterator[None]:
    """Turn the error of a name that is not UTF-8 into a SourceError."""
    try:
        yield
    except UnicodeEncodeError as error:
        raise SourceError(f"the file name {error.object!r} is not UTF-8. Rename it") from None
