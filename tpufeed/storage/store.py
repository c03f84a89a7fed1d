"""The `Store` protocol, the store of a URL, and names and spans in a store."""

import os
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Set
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import import_module
from io import FileIO
from pathlib import Path
from typing import Protocol

from tpufeed.errors import OptionError, StoreError, UnknownSchemeError

BROKEN_LINK = "broken link"  # the version of a link to nothing, or of a link that is not followed
# File and class of each backend, by name: it imports this file, and its client library is loaded on first use.
_BACKENDS = {
    "file": ("local", "LocalStore"),
    "memory": ("memory", "MemoryStore"),
    "gs": ("gcs", "GcsStore"),
    "gcs": ("gcs", "GcsStore"),
}


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One object."""

    name: str  # below the store's URL
    size_bytes: int
    version: str  # its generation, or for files the mtime in nanoseconds: equal means unchanged
    crc32c: int | None = None  # of its bytes, if the store vouches for one


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes `[start, stop)` of an object, or up to its end if `stop` is None. `version` as in `Store.read_range`."""

    name: str
    start: int = 0
    stop: int | None = None
    version: str = ""


class Store(Protocol):
    """Named bytes below one URL. Names are relative, `/`-separated and never lead out of the URL.

    Thread-safe. Workers in other processes open their own store from `url`.

    A read with a `version` returns the bytes of that version, or raises ObjectChangedError if the object has another.
    An fsspec store would need one more request to tell, and reads the present version.

    Attributes:
        url: URL in a form that users may type.
        shared: other processes that open `url` see the same objects.
        conditional: `put` and `put_file` are atomically create-only. If False, only one writer may write at a time.
        generations: the store assigns versions, and no two contents of a name ever have the same version.
        retries: number of repeated requests.
        checks_reads: `read` returns what is stored: the store, or this machine's disk, compares its own checksum.
        special_files: names of the first pipes, sockets and devices that listings have left out.
    """

    url: str
    shared: bool = True
    conditional: bool = False
    generations: bool = False
    retries: int = 0
    checks_reads: bool = False
    special_files: Set[str] = frozenset()

    def read(self, name: str, version: str = "") -> bytes:
        """Read all bytes. Raises ObjectNotFoundError, ObjectChangedError."""

    def read_document(self, name: str, version: str = "") -> bytes:
        """Read text, like JSON, but not a hole in a file, which can have any size. Raises as `read`, and StoreError."""
        return self.read(name, version)

    def read_range(self, name: str, start: int, stop: int, version: str = "") -> bytes:
        """Read the bytes `[start, stop)`, fewer only if the object ends earlier. Raises as `read` does."""

    def read_into(self, name: str, start: int, buffer: memoryview, version: str = "") -> int:
        """Read into `buffer` from byte `start` on, and return the number of bytes, fewer only if the object ends."""
        data = self.read_range(name, start, start + len(buffer), version)
        buffer[: len(data)] = data
        return len(data)

    def read_many(self, spans: Iterable[Span]) -> Generator[bytes | StoreError, None, None]:
        """Yield the bytes of each span in turn, or why they cannot be read. A remote store reads many at once, ahead.

        Spans are consumed as results are. Close the generator unless you take all results.
        """
        return (read_span(self, span) for span in spans)

    def stat(self, name: str) -> ObjectInfo | None:
        """Return the object's present state, or None if there is no such object."""

    def iter_objects(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yield each object below the folder `prefix` in any order, never from a cache. A missing folder is empty."""

    def iter_folders(self) -> Iterator[str]:
        """Yield the names of the folders right below, in any order."""

    def free_bytes(self) -> int | None:
        """Return the free space in bytes, or None if it is unknown."""
        return None

    def try_puts(self) -> tuple[str, ...]:
        """Try, with files that are removed again, whether a build can write here, and return warnings.

        Only a local folder can lack something.

        Raises:
            StoreError: the folder's file system lacks something that a build needs.
        """
        return ()

    def put(self, name: str, data: bytes, replaces: ObjectInfo | None = None) -> ObjectInfo:
        """Create the object, whole or not at all. It replaces the object `replaces`, if given.

        Raises:
            ObjectExistsError: there is an object already, or another one than `replaces`.
        """

    def put_file(self, name: str, path: Path, replaces: ObjectInfo | None = None) -> ObjectInfo:
        """Put a closed file of `temporary_folder()`, which this may move. Raises as `put` does."""

    def delete(self, name: str, version: str = "") -> None:
        """Remove the object, or only one `version` of it.

        A missing object, or one with another version, is no error. A store that is not `conditional` checks the version
        just before it removes the object.
        """

    def local_path(self, name: str) -> Path | None:
        """Return the object's path as a local file, or None if the store is not a local folder."""
        return None

    def open_local(self, name: str) -> FileIO | None:
        """Open the object as a local file, unbuffered, or None if the store is not a local folder.

        Raises StoreError, or LinkError if it, or a folder that holds it, is a link that must not be followed.
        """
        return None

    def temporary_folder(self) -> AbstractContextManager[Path]:
        """Make a local folder for files of `put_file`. It is removed on exit, or after a kill by the next call."""


def open_store(url: str | Path, follow: bool = True) -> Store:
    """Return the store at `url`: a path, `file://`, `memory://`, or any scheme that fsspec knows. Accesses nothing.

    `zip::PATH` is the content of a zip file.

    Args:
        url: URL or path of the store.
        follow: read through symbolic links below a local folder. A dataset is opened without this: its author could
            have put a link to any of our files into it.

    Raises:
        UnknownSchemeError: nothing opens this scheme.
        OptionError: it names no bucket, or is neither text nor a path, but for example a list of URLs.
        MissingExtraError: its backend is not installed.
    """
    if not isinstance(url, str | os.PathLike):
        raise OptionError(
            f"expected one URL or path, like gs://bucket/flowers, not a {type(url).__name__}: {url!r:.80}"
        )
    text = str(url)
    if text.startswith("zip::") and "://" not in text:  # fsspec needs a scheme
        text = f"zip::file://{Path(text.removeprefix('zip::')).absolute()}"
    scheme = url_scheme(text)
    if text.lower().startswith((f"{scheme}://", f"{scheme}::")):  # not a path with "://" further on
        text = scheme + text[len(scheme) :]
    file, name = "filesystem", "FsspecStore"
    if scheme in _BACKENDS and not (text.startswith(f"{scheme}::") and "://" in text):  # chains are fsspec's
        file, name = _BACKENDS[scheme]
    else:
        from fsspec.registry import known_implementations, registry

        if scheme not in known_implementations and scheme not in registry:
            raise UnknownSchemeError(
                f"{text}: nothing opens {scheme}:// URLs. Give a local path, gs://, s3://, memory:// or another scheme "
                "that fsspec knows"
            )
    backend: Callable[..., Store] = getattr(import_module(f"tpufeed.storage.{file}"), name)
    return backend(text, follow) if name == "LocalStore" else backend(text)


def url_scheme(url: str) -> str:
    """Return `gs` for gs://bucket/x, `file` for a path, `zip` for an fsspec chain like zip::gs://bucket/x.zip."""
    match = re.match(r"([A-Za-z][A-Za-z0-9+._-]*)(::[A-Za-z0-9+._:-]+)?://", url)
    return match.group(1).lower() if match else "file"


def file_path(url: str) -> str:
    """Return the path of a `file://` URL, or a path unchanged. Raises OptionError for a URL of another host."""
    if not url.lower().startswith("file://"):
        return url
    host, slash, rest = url[len("file://") :].partition("/")
    if slash and host.lower() in ("", "localhost"):
        return slash + rest
    raise OptionError(
        f"{url} names no folder of this machine. Write file:///folder, with three slashes, or the path alone"
    )


def check_name(name: str) -> str:
    """Return `name` if it is relative, without NUL and parts like `..`. Otherwise raise OptionError.

    Such a name could lead out of its store.
    """
    if "\0" in name or any(part in ("", ".", "..") for part in name.split("/")):
        raise OptionError(f"{name!r} cannot name an object. Names are relative, without empty, '.' or '..' parts")
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
