"""The `Store` protocol, the store of a URL, names and spans in a store, and sizes as people write them."""

import os
import re
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from decimal import Decimal
from importlib import import_module
from io import FileIO
from pathlib import Path
from typing import Protocol

from tpufeed.errors import OptionError, StoreError, UnknownSchemeError

BROKEN_LINK = "broken link"  # the version of a link to nothing, or of one that is not followed
# File and class of each backend, by name: it imports this file, and its client library is loaded on first use only.
_BACKENDS = {
    "file": ("local", "LocalStore"),
    "memory": ("memory", "MemoryStore"),
    "gs": ("gcs", "GcsStore"),
    "gcs": ("gcs", "GcsStore"),
}
_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_UNITS |= {"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One object.

    Attributes:
        name: below the store's URL.
        size_bytes: how long it is.
        version: its generation, or for files the mtime in nanoseconds: equal means unchanged.
        crc32c: CRC-32C of its bytes, where the store vouches for one.
    """

    name: str
    size_bytes: int
    version: str
    crc32c: int | None = None


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes `[start, stop)` of an object, up to its end where `stop` is None; `version` as in `Store.read_range`."""

    name: str
    start: int = 0
    stop: int | None = None
    version: str = ""


class Store(Protocol):
    """Named bytes below one URL. Names are relative, `/`-separated and never leave the URL.

    Thread-safe. Workers in other processes open their own from `url`.

    Where a `version` is given, the bytes are that version's: ObjectChangedError is raised where the object is another
    by now. A store that cannot tell without asking once more (`pins` is False) reads what is there.

    A class that inherits from this has the common answers, here given, and writes the other methods itself.

    Attributes:
        url: where it stands, as the user may type it.
        shared: other processes that open `url` see the same objects.
        conditional: `put` and `put_file` are atomically create-only; where False, let one writer write at a time.
        pins: reads of a version are of that version.
        generations: versions are given out by the store, and no two contents of a name ever have the same.
        retries: requests that had to be made again so far.
    """

    url: str
    shared: bool = True
    conditional: bool = False
    pins: bool = False
    generations: bool = False
    retries: int = 0

    def read(self, name: str, version: str = "") -> bytes:
        """Read all bytes. Raises ObjectNotFoundError, ObjectChangedError."""

    def read_range(self, name: str, start: int, stop: int, version: str = "") -> bytes:
        """Read the bytes `[start, stop)`; fewer only where the object ends. Raises as `read` does."""

    def read_into(self, name: str, start: int, buffer: memoryview, version: str = "") -> int:
        """Fill `buffer` from byte `start` on; returns how many bytes came, fewer only where the object ends."""
        data = self.read_range(name, start, start + len(buffer), version)
        buffer[: len(data)] = data
        return len(data)

    def read_many(self, spans: Iterable[Span]) -> Generator[bytes | StoreError, None, None]:
        """Yield the bytes of each span in turn, or why they cannot be read; a remote store reads many at once, ahead.

        `spans` is drawn from as results are taken. Close it where it is not taken to its end.
        """
        return (read_span(self, span) for span in spans)

    def stat(self, name: str) -> ObjectInfo | None:
        """Return what the object is now, or None where there is none."""

    def iter_objects(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yield each object below the folder `prefix`, in no order, never from a cache. A missing folder is empty."""

    def iter_folders(self) -> Iterator[str]:
        """Yield the names of the folders right below, in no order."""

    def free_bytes(self) -> int | None:
        """Return how much more fits, or None where it is unknown."""
        return None

    def put(self, name: str, data: bytes, replaces: ObjectInfo | None = None) -> ObjectInfo:
        """Create the object, whole or not at all; `replaces` is the object that it takes the place of.

        Raises:
            ObjectExistsError: there is an object already, or another than the one to be replaced.
        """

    def put_file(self, name: str, path: Path, replaces: ObjectInfo | None = None) -> ObjectInfo:
        """`put` of a closed file of `temporary_folder()`, which it may move."""

    def delete(self, name: str, version: str = "") -> None:
        """Remove the object. Where a `version` is given, only if it is that one.

        An object that is missing, or of another version by now, is no error. A store that is not `conditional` looks
        just before it removes.
        """

    def local_path(self, name: str) -> Path | None:
        """Return the object's path as a local file, or None where the store is not a local folder."""
        return None

    def open_local(self, name: str) -> FileIO | None:
        """Open the object, unbuffered, where it is a local file; None where the store is not a local folder.

        Raises:
            OSError: it cannot be opened; LinkError where it, or a folder that holds it, is a link not to be followed.
        """
        return None

    def temporary_folder(self) -> AbstractContextManager[Path]:
        """Make a local folder for files of `put_file`; it is removed on exit, or after a kill by the next one."""


def open_store(url: str | Path, follow: bool = True) -> Store:
    """Return the store at `url`: a path, `file://`, `memory://`, or any scheme that fsspec knows. Touches nothing.

    `zip::PATH` is the content of a zip file.

    Args:
        url: where it is.
        follow: read through symbolic links below a local folder. A dataset is opened without: its author could have put
            a link to any of our files into it.

    Raises:
        UnknownSchemeError: nothing opens this scheme.
        OptionError: it names no bucket, or is not a text or path, but a list of URLs, say.
        MissingExtraError: its backend is not installed.
    """
    if not isinstance(url, str | os.PathLike):
        raise OptionError(
            f"one URL or path is wanted, like gs://bucket/flowers, not a {type(url).__name__}: {url!r:.80}"
        )
    text = str(url)
    if text.startswith("zip::") and "://" not in text:  # fsspec wants a scheme
        text = f"zip::file://{Path(text.removeprefix('zip::')).absolute()}"
    scheme = url_scheme(text)
    if "://" in text:
        text = scheme + text[len(scheme) :]
    file, name = "filesystem", "FsspecStore"
    if scheme in _BACKENDS and not (text.startswith(f"{scheme}::") and "://" in text):  # chains are fsspec's
        file, name = _BACKENDS[scheme]
    else:
        from fsspec.registry import known_implementations, registry

        if scheme not in known_implementations and scheme not in registry:
            raise UnknownSchemeError(
                f"{text}: nothing opens {scheme}:// URLs; give a local path, gs://, s3://, memory:// or another scheme "
                "that fsspec knows"
            )
    backend: Callable[..., Store] = getattr(import_module(f"tpufeed.storage.{file}"), name)
    return backend(text, follow) if name == "LocalStore" else backend(text)


def url_scheme(url: str) -> str:
    """Return `gs` for gs://bucket/x, `file` for a path, `zip` for a chain of fsspec's like zip::gs://bucket/x.zip."""
    match = re.match(r"([A-Za-z][A-Za-z0-9+._-]*)(::[A-Za-z0-9+._:-]+)?://", url)
    return match.group(1).lower() if match else "file"


def check_name(name: str) -> str:
    """Return `name`, where it is relative and has no `.` or `..` parts and no NUL.

    Raises:
        OptionError: the name could lead out of its store.
    """
    if "\0" in name or any(part in ("", ".", "..") for part in name.split("/")):
        raise OptionError(f"{name!r} is no name within a store; names are relative, without empty, '.' or '..' parts")
    return name


def read_span(store: Store, span: Span) -> bytes | StoreError:
    """Return the bytes of a span, or why they cannot be read."""
    try:
        if span.stop is None and not span.start:
            return store.read(span.name, span.version)
        stop = span.stop
        if stop is None:
            info = store.stat(span.name)
            stop = span.start if info is None else max(span.start, info.size_bytes)
        return store.read_range(span.name, span.start, stop, span.version)
    except StoreError as error:
        return error


def parse_size(text: str | int) -> int:
    """Return the bytes that "64MB", "1GiB" or 1048576 stand for. Raises OptionError."""
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", str(text))
    unit = None if match is None else _UNITS.get(match.group(2).lower())
    if match is None or unit is None:
        raise OptionError(f"{text!r} is no size; write it like 64MB or 128MiB")
    return int(Decimal(match.group(1)) * unit)  # a float would overflow
