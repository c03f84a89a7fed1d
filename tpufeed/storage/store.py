"""What a store is: named bytes below one URL."""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

BROKEN_LINK = "broken link"  # the version of a link to nothing


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One object. `version` is its generation, or for files the mtime in nanoseconds: equal means unchanged."""

    name: str
    size_bytes: int
    version: str


class Store(Protocol):
    """Named bytes below one URL. Names are relative, `/`-separated and never leave the URL.

    Thread-safe. Workers in other processes open their own from `url`.

    Attributes:
        url: where it stands, as the user may type it.
        shared: other processes that open `url` see the same objects.
        conditional: `put` and `put_file` are atomically create-only; where False, let one writer write at a time.
    """

    url: str
    shared: bool
    conditional: bool

    def read(self, name: str) -> bytes:
        """All bytes. Raises ObjectNotFoundError."""

    def read_range(self, name: str, start: int, stop: int) -> bytes:
        """The bytes `[start, stop)`; fewer only where the object ends. Raises ObjectNotFoundError."""

    def stat(self, name: str) -> ObjectInfo | None:
        """What the object is now, or None where there is none."""

    def iter_objects(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Each object below the folder `prefix`, in no order, never from a cache. A missing folder is empty."""

    def iter_folders(self) -> Iterator[str]:
        """Names of the folders right below, in no order."""

    def free_bytes(self) -> int | None:
        """How much more fits, or None where nobody can say."""

    def put(self, name: str, data: bytes) -> None:
        """Create the object, whole or not at all. Raises ObjectExistsError."""

    def put_file(self, name: str, path: Path) -> None:
        """Create the object from a closed file of `temporary_folder()`, which it may move. Raises ObjectExistsError."""

    def delete(self, name: str) -> None:
        """Remove the object; a missing one is no error."""

    def local_path(self, name: str) -> Path | None:
        """Where the object lies as a local file, or None where the store is not a local folder."""

    def temporary_folder(self) -> AbstractContextManager[Path]:
        """A local folder for files to be `put_file`d; it is removed on exit, and after a kill by the next one made."""
