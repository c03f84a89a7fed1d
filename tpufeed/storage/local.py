"""Objects as files of a local folder. Create-only puts are hard links, which fail where the name is taken."""

import errno
import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tpufeed.errors import ObjectExistsError, ObjectNotFoundError, StoreError
from tpufeed.storage.naming import check_name
from tpufeed.storage.store import ObjectInfo

_TEMPORARY = "_tpufeed/tmp"
_NO_HARD_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


class LocalStore:
    """A `Store` over a local folder."""

    shared = True
    conditional = True

    def __init__(self, url: str) -> None:
        self.url = os.path.abspath(Path(url.removeprefix("file://")).expanduser())  # noqa: PTH100  # also resolves '..'
        self._root = Path(self.url)
        self._prefix = f"{self._root}/"

    def read(self, name: str) -> bytes:
        with self._errors(name), open(self._path(name), "rb", buffering=0) as file:  # noqa: PTH123  # 10 us less
            return file.readall()

    def read_range(self, name: str, start: int, stop: int) -> bytes:
        with self._errors(name), open(self._path(name), "rb", buffering=0) as file:  # noqa: PTH123
            return os.pread(file.fileno(), stop - start, start)

    def stat(self, name: str) -> ObjectInfo | None:
        with self._errors(name):
            try:
                found = os.stat(self._path(name))  # noqa: PTH116
            except (FileNotFoundError, NotADirectoryError):
                return None
        return ObjectInfo(name, found.st_size, str(found.st_mtime_ns))

    def iter_objects(self, prefix: str = "") -> Iterator[ObjectInfo]:
        start = self._root / check_name(prefix.rstrip("/")) if prefix else self._root
        if start.exists():
            with self._errors(prefix):
                yield from _walk(os.fspath(start), len(self._prefix), set())

    def put(self, name: str, data: bytes) -> None:
        with self.temporary_folder() as folder, self._errors(name):
            path = folder / "object"
            with path.open("wb", buffering=0) as file:
                file.write(data)
                os.fsync(file.fileno())
            self.put_file(name, path)

    def put_file(self, name: str, path: Path) -> None:
        final = Path(self._path(name))
        with self._errors(name):
            final.parent.mkdir(parents=True, exist_ok=True)
            _move_to_new(path, final)
            descriptor = os.open(final.parent, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def delete(self, name: str) -> None:
        with self._errors(name):
            Path(self._path(name)).unlink(missing_ok=True)

    def local_path(self, name: str) -> Path:
        return Path(self._path(name))

    @contextmanager
    def temporary_folder(self) -> Iterator[Path]:
        """In the store's own file system, so that a put is a link. In use means flocked, which death ends."""
        with self._errors(_TEMPORARY):
            parent = self._root / _TEMPORARY
            parent.mkdir(parents=True, exist_ok=True)
            _remove_abandoned(parent)
            folder, descriptor = _make_locked(parent)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(descriptor)
            with suppress(OSError):
                parent.rmdir()

    def _path(self, name: str) -> str:
        return self._prefix + check_name(name)

    @contextmanager
    def _errors(self, name: str) -> Iterator[None]:
        try:
            yield
        except StoreError:
            raise
        except FileNotFoundError as error:
            raise ObjectNotFoundError(f"{self._prefix}{name}: no such file") from error
        except OSError as error:
            raise StoreError(f"{self._prefix}{name}: {error.strerror or error}") from error


def _walk(folder: str, skip: int, above: set[tuple[int, int]]) -> Iterator[ObjectInfo]:
    """Follows links as image folders are full of them, but never in a circle. A broken link is an empty object."""
    status = os.stat(folder)  # noqa: PTH116
    here = status.st_dev, status.st_ino
    if here in above:
        return
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                yield from _walk(entry.path, skip, above | {here})
            elif entry.is_file():
                found = entry.stat()
                yield ObjectInfo(entry.path[skip:], found.st_size, str(found.st_mtime_ns))
            elif entry.is_symlink():
                yield ObjectInfo(entry.path[skip:], 0, "broken link")


def _move_to_new(path: Path, final: Path) -> None:
    try:
        os.link(path, final)
    except FileExistsError:
        raise ObjectExistsError(f"{final} exists already") from None
    except OSError as error:
        if error.errno not in _NO_HARD_LINKS:
            raise
        # Drive mounts and some FUSE systems have no hard links: there one writer at a time is the user's duty.
        if final.exists():
            raise ObjectExistsError(f"{final} exists already") from None
        path.rename(final)
        return
    path.unlink()


def _make_locked(parent: Path) -> tuple[Path, int]:
    while True:
        folder = parent / secrets.token_hex(8)
        try:
            folder.mkdir(parents=True)
            descriptor = os.open(folder, os.O_RDONLY)
        except FileNotFoundError:  # another process has tidied up in between
            continue
        with suppress(OSError):  # a file system without locks: nothing is tidied there
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        if folder.exists():
            return folder, descriptor
        os.close(descriptor)


def _remove_abandoned(parent: Path) -> None:
    for folder in list(parent.glob("*")):
        with suppress(OSError):
            descriptor = os.open(folder, os.O_RDONLY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(descriptor)
