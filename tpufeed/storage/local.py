"""Local files: a store over a folder, temporary folders, and files mapped into memory."""

import ctypes
import errno
import fcntl
import hashlib
import mmap
import os
import platform
import re
import secrets
import shutil
import stat
import tempfile
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from io import FileIO
from pathlib import Path

from tpufeed.errors import (
    LinkError,
    ObjectChangedError,
    ObjectExistsError,
    ObjectNotFoundError,
    OptionError,
    StoreError,
)
from tpufeed.processes.limits import FULL, room_left
from tpufeed.storage.store import BROKEN_LINK, ObjectInfo, Store, check_name, file_path

_TEMPORARY = "_tpufeed/tmp"
_NO_HARD_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
_UNSUPPORTED = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}
_PREFIX = "tpufeed_put_"
_OURS = re.compile(rf"{_PREFIX}[0-9a-f]{{16}}_[0-9a-f]{{16}}")  # no other folder has such a name by chance
_PART = re.compile(r"part-[0-9]{5,}")  # a folder within a dataset, see `dataset.naming`
_TRIES = 100
_BLOCK_BYTES = 4 << 20
_LARGE_BYTES, _HOLLOW, _MOST_EXTENTS = 1 << 28, 16, 10_000
_MOST_SPECIAL = 1000
_ABANDONED_SECONDS = 86_400.0  # without a change, for a folder that another host made
_INTS = ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long
_MMAP = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, *_INTS, use_errno=True)(
    ("mmap", ctypes.CDLL(None))
)
_MUNMAP = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t)(("munmap", ctypes.CDLL(None)))


class LocalStore(Store):
    """A `Store` over a local folder. A create-only put is a hard link: it fails if the name is taken.

    The folder may be a link. Nothing is written or removed through a link below it, as a dataset from elsewhere may
    hold a link to any place. With `follow`, files are read through such links, as for a folder of images.
    """

    conditional = True
    checks_reads = True

    def __init__(self, url: str, follow: bool = True) -> None:
        path = file_path(url)
        if not path:
            raise OptionError("an empty path was given. Name a folder, or '.' for the present one")
        self.url = os.path.abspath(os.path.expanduser(path))  # noqa: PTH100, PTH111  # resolves '..'
        self._root = Path(self.url)
        self._prefix = self.url.rstrip("/") + "/"
        self._follow = follow
        self.special_files: set[str] = set()
        # Length of the part of the path whose links are trusted: the dataset's path, if this is the folder of a part.
        self._trusted = len(str(self._root.parent)) if _PART.fullmatch(self._root.name) else len(self.url.rstrip("/"))

    def read(self, name: str, version: str = "") -> bytes:
        with self._errors(name), self.open_local(name) as file:
            data = file.readall()
            self._check_version(file, name, version)
            return data

    def read_document(self, name: str, version: str = "") -> bytes:
        blocks: list[bytes] = []
        with self._errors(name), self.open_local(name) as file:
            most = min(_BLOCK_BYTES, os.fstat(file.fileno()).st_size + 1)  # memory for it is asked for at each read
            while block := file.read(most):
                if len(block) == _BLOCK_BYTES and b"\0" in block:
                    at, size = file.tell() - len(block) + block.index(0), os.fstat(file.fileno()).st_size
                    found = f"byte {at} of {size:,} is zero. The file was damaged or forged"
                    raise StoreError(f"{self._prefix}{name} is not text: {found}")
                blocks.append(block)
            self._check_version(file, name, version)
        return b"".join(blocks)

    def read_range(self, name: str, start: int, stop: int, version: str = "") -> bytes:
        with self._errors(name), self.open_local(name) as file:
            data = os.pread(file.fileno(), stop - start, start)
            while len(data) < stop - start:  # Linux reads at most 2 GiB at once
                more = os.pread(file.fileno(), stop - start - len(data), start + len(data))
                if not more:
                    break
                data += more
            self._check_version(file, name, version)
            return data

    def stat(self, name: str) -> ObjectInfo | None:
        path = self._prefix + check_name(name)
        with self._errors(name):
            try:
                if not self._follow:
                    self._check_folders(path)
                found = os.stat(path, follow_symlinks=self._follow)  # noqa: PTH116
            except (FileNotFoundError, NotADirectoryError):
                return None
        if stat.S_ISLNK(found.st_mode):
            raise _link_error(path)
        if not stat.S_ISREG(found.st_mode):  # a folder, or a device that could be read without end
            return None
        return ObjectInfo(name, found.st_size, str(found.st_mtime_ns))

    def iter_objects(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yield each file. Links are followed, but never in a circle. A broken link is an empty object.

        If links are not followed, each link is one. A folder of a million files is not held in memory, and no folder
        above the present one is kept open.
        """
        start = self._prefix + check_name(prefix.rstrip("/")) if prefix else self.url
        skip = len(self._prefix)
        waiting: list[tuple[str, frozenset[tuple[int, int]]]] = [(start, frozenset())]  # each with the folders above it
        with self._errors(prefix):
            if not self._follow:
                self._check_folders(f"{start}/")
            while waiting:
                folder, above = waiting.pop()
                inside = []
                with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
                    status = os.stat(folder)  # noqa: PTH116
                    here = status.st_dev, status.st_ino
                    if here in above or folder[skip:] == _TEMPORARY:
                        continue
                    for entry in entries:
                        found = None
                        try:
                            if self._follow or not entry.is_symlink():
                                found = entry.stat()
                        except OSError as error:
                            if not entry.is_symlink():
                                if isinstance(error, FileNotFoundError):  # removed since it was listed
                                    continue
                                raise
                        if found is None:
                            yield ObjectInfo(entry.path[skip:], 0, BROKEN_LINK)
                        elif stat.S_ISDIR(found.st_mode):
                            inside.append((entry.path, above | {here}))
                        elif stat.S_ISREG(found.st_mode):
                            yield ObjectInfo(entry.path[skip:], found.st_size, str(found.st_mtime_ns))
                        elif len(self.special_files) < _MOST_SPECIAL:
                            self.special_files.add(entry.path[skip:])
                waiting += reversed(inside)

    def iter_folders(self) -> Iterator[str]:
        with self._errors(""), suppress(FileNotFoundError, NotADirectoryError), os.scandir(self.url) as found:
            yield from [entry.name for entry in found if entry.is_dir()]

    def free_bytes(self) -> int:
        folder = self._root
        with self._errors(""):
            while not mode_of(folder):
                folder = folder.parent
            return shutil.disk_usage(folder).free

    def try_puts(self) -> tuple[str, ...]:
        with self.temporary_folder() as folder, self._errors(_TEMPORARY):
            try:
                lacks = _find_lacks(folder, self.url)
            except OSError as error:
                if error.errno not in FULL:  # free space is another check with a better message
                    raise
                return ()
            if not lacks:
                return ()
            mount, kind = find_mount(folder)
        only = f"let one command at a time write to {self.url}"
        return (f"the mount {mount} ({kind}) has no {' and no '.join(lacks)}: {only}",)

    def put(self, name: str, data: bytes, replaces: ObjectInfo | None = None) -> ObjectInfo:
        with self.temporary_folder() as folder, self._errors(name):
            path = folder / "object"
            with path.open("wb") as file:  # buffered, as a raw write may stop short without an error
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            return self.put_file(name, path, replaces)

    def put_file(self, name: str, path: Path, replaces: ObjectInfo | None = None) -> ObjectInfo:
        final = Path(self._prefix + check_name(name))
        with self._errors(name):
            self._check_folders(str(final), make=True)
            status = path.stat()
            with _locked(final.parent, replaces is not None) as descriptor:
                if replaces is not None and self.stat(name) == replaces:  # a link itself, not what it leads to
                    path.replace(final)
                else:
                    try:
                        os.link(path, final)
                    except OSError as error:
                        _move_without_link(path, final, error)
                    else:
                        path.unlink()
                # A name is content of its folder: without this a crash of the machine could lose only the name.
                os.fsync(descriptor)
        return ObjectInfo(name, status.st_size, str(status.st_mtime_ns))

    def delete(self, name: str, version: str = "") -> None:
        path = Path(self._prefix + check_name(name))
        with self._errors(name), suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
            self._check_folders(str(path))
            with _locked(path.parent, bool(version)):
                status = path.lstat()
                if stat.S_ISLNK(status.st_mode):
                    raise _link_error(str(path))
                if version in ("", str(status.st_mtime_ns)):
                    path.unlink()

    def local_path(self, name: str) -> Path:
        return Path(self._prefix + check_name(name))

    def open_local(self, name: str) -> FileIO:
        path = self._prefix + check_name(name)
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # a pipe would wait for its writer
        with self._errors(name):
            if not self._follow:
                self._check_folders(path)
                flags |= os.O_NOFOLLOW
            try:
                descriptor = os.open(path, flags)
            except OSError as error:
                if error.errno == errno.ELOOP and not self._follow:
                    raise _link_error(path) from None
                raise
        # A link in a dataset from elsewhere may lead to something that could be read, or waited for, without end.
        status = os.fstat(descriptor)
        is_plain = stat.S_ISREG(status.st_mode)
        if is_plain and (status.st_size < _LARGE_BYTES or not _is_hollow(descriptor, status.st_size)):
            return FileIO(descriptor)
        os.close(descriptor)
        if stat.S_ISDIR(status.st_mode):
            raise ObjectNotFoundError(f"{path}: {os.strerror(errno.EISDIR)}")
        hollow = f"nearly all of its {status.st_size:,} bytes are a hole: it is a forged file"
        raise StoreError(f"{path}: {hollow if is_plain else 'it is not a plain file but a pipe or a device'}")

    @contextmanager
    def temporary_folder(self) -> Iterator[Path]:
        """Make a folder in the store's file system: a put is then a link. Remove new empty parents on exit."""
        parent = self._root / _TEMPORARY
        with self._errors(_TEMPORARY):
            missing = [folder for folder in parent.parents if not mode_of(folder)]
        try:
            with ExitStack() as stack:
                with self._errors(_TEMPORARY):
                    make = partial(self._check_folders, f"{parent}/", make=True)
                    folder = stack.enter_context(temporary_folder(parent, make))
                yield folder
        finally:
            with suppress(OSError):  # not empty: another process has a temporary folder in them
                for folder in missing:  # innermost first
                    folder.rmdir()

    def _check_folders(self, path: str, make: bool = False) -> None:
        """Raise LinkError if a folder that holds `path` is a link, the outermost first. With `make`, make them all.

        A missing folder is no error: opening `path` will fail.
        """
        if make:
            Path(self.url[: self._trusted] or "/").mkdir(parents=True, exist_ok=True)
        start = path.find("/", self._trusted + 1)
        while start >= 0:
            folder, start = path[:start], path.find("/", start + 1)
            if make:
                with suppress(FileExistsError):
                    os.mkdir(folder)  # noqa: PTH102
            try:
                is_link = stat.S_ISLNK(os.lstat(folder).st_mode)
            except (FileNotFoundError, NotADirectoryError):
                if make:
                    raise
                return
            if is_link:  # before anything is made in it
                raise _link_error(folder)

    def _check_version(self, file: FileIO, name: str, version: str) -> None:
        """Raise ObjectChangedError if a file has another version. Call this after reading: it may be written to."""
        if version and version != str(os.fstat(file.fileno()).st_mtime_ns):
            path = Path(f"{self._prefix}{name}")
            mount, kind = find_mount(path.parent)
            hint = f"; or the mount {mount} ({kind}) may still be uploading it: then try again in some seconds"
            raise ObjectChangedError(
                f"{path} has changed since it was listed: its mtime differs{hint if kind.startswith('fuse') else ''}"
            )

    @contextmanager
    def _errors(self, name: str) -> Iterator[None]:
        try:
            yield
        except StoreError:
            raise
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
            raise ObjectNotFoundError(f"{self._prefix}{name}: {error.strerror}") from error
        except OSError as error:
            path = f"{self._prefix}{name}"
            raise StoreError(f"{path}: {error.strerror or error}{room_left(error, path)}") from error


def _link_error(path: str) -> LinkError:
    return LinkError(
        f"{path} is a symbolic link. Links below a dataset's folder are not followed, as they may lead anywhere. If "
        "you trust it, copy the dataset with the files behind its links: cp -RL DATASET COPY. The folder itself may be "
        "a link"
    )


@contextmanager
def _locked(folder: Path, exclusive: bool) -> Iterator[int]:
    """Open a folder. If `exclusive`, no other process replaces or removes a version in it meanwhile.

    File systems do not compare versions, so nobody may write between our check and our write.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        if exclusive:
            with suppress(OSError):  # a file system without locks
                fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


def _find_lacks(folder: Path, url: str) -> list[str]:
    """Return what a folder's file system lacks without which only one process at a time may write there.

    Leaves files in the folder. Raises StoreError if a build cannot work there.
    """
    lacks = list[str]()
    first, second, final = (folder / f"object-{number}" for number in range(3))
    for path in (first, second):
        path.write_bytes(b"1")
    with _needed(url, folder, "make a hard link"):
        try:
            os.link(first, final)
        except OSError as error:
            if error.errno not in _NO_HARD_LINKS:
                raise
            lacks.append("hard links")
    with _needed(url, folder, "write to a file that was closed before"):  # as indexes are
        with second.open("ab") as file:
            file.write(b"2")
        with second.open("r+b") as file:
            file.write(b"3")
            file.seek(0)
            file.read()
    with _needed(url, folder, "rename a file to the name of another"):
        second.replace(final)
    with _locked(folder, exclusive=False) as descriptor:
        with _needed(url, folder, "write a folder to the disk (fsync)"):
            os.fsync(descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            lacks.append("file locks (flock)")
    times = [final.stat().st_mtime_ns for _ in range(3)]
    if not min(times) or len(set(times)) > 1:
        found = "is 0" if not min(times) else "changes by itself"
        time = f"tell when a file was last changed, as the mtime of a new file {found}"
        raise _unsuitable(url, folder, time)
    return lacks


@contextmanager
def _needed(where: object, folder: Path, what: str) -> Iterator[None]:
    """Raise StoreError if a folder's file system cannot do what a build needs."""
    try:
        yield
    except OSError as error:
        # EIO is rclone's answer to a hard link. On a disk it is the disk's error.
        if error.errno in _UNSUPPORTED or (error.errno == errno.EIO and find_mount(folder)[1].startswith("fuse")):
            raise _unsuitable(where, folder, f"{what} ({error.strerror})") from error
        raise


def _unsuitable(where: object, folder: Path, what: str) -> StoreError:
    mount, kind = find_mount(folder)
    return StoreError(
        f"{where}: the mount {mount} ({kind}) cannot {what}, as a build must. Build in the bucket itself "
        "(gs://...), or on a local disk and copy the finished folder"
    )


def _move_without_link(path: Path, final: Path, error: OSError) -> None:
    """Move a file after a hard link of it failed with `error`, or raise why it cannot be moved."""
    if error.errno == errno.EIO:
        with _needed(final, final.parent, "make a hard link"):
            raise error
    # Drive mounts and some FUSE systems have no hard links: there the user must see to it that one writer writes.
    if isinstance(error, FileExistsError) or (error.errno in _NO_HARD_LINKS and os.path.lexists(final)):
        with suppress(FileNotFoundError):
            mode = final.lstat().st_mode
            if not stat.S_ISREG(mode) and not stat.S_ISLNK(mode):  # not an object that `stat` would find
                what = "a folder" if stat.S_ISDIR(mode) else "a pipe or a device"
                raise StoreError(f"{final} cannot be written: {what} has that name. Remove it") from None
        raise ObjectExistsError(f"{final} exists already") from None
    if error.errno not in _NO_HARD_LINKS:
        raise error
    path.rename(final)


def _is_hollow(descriptor: int, size: int) -> bool:
    """Return true for a file that is nearly all holes.

    A file of terabytes is made in no time, and would be read for hours. Some file systems do not tell holes.
    """
    data = at = 0
    try:
        for _ in range(_MOST_EXTENTS):
            at = os.lseek(descriptor, at, os.SEEK_DATA)
            end = os.lseek(descriptor, at, os.SEEK_HOLE)
            data, at = data + end - at, end
            if data * _HOLLOW >= size:
                return False
    except OSError as error:
        if error.errno != errno.ENXIO:  # there is no more data
            return False
        at = size
    finally:
        os.lseek(descriptor, 0, os.SEEK_SET)
    return data * _HOLLOW < at


def mode_of(path: str | Path) -> int:
    """Return the mode of the file or folder at a path, following links, or 0 if there is nothing.

    Raises StoreError if a folder above may not be searched, where `Path.exists` is false since Python 3.14.
    """
    try:
        return os.stat(path).st_mode  # noqa: PTH116
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: no file can have this name
        return 0
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}") from error


def is_folder(path: str | Path) -> bool:
    """Return true for a folder. Raises as `mode_of` does."""
    return stat.S_ISDIR(mode_of(path))


def is_file(path: str | Path) -> bool:
    """Return true for a plain file. Raises as `mode_of` does."""
    return stat.S_ISREG(mode_of(path))


def find_mount(folder: Path) -> tuple[str, str]:
    """Return the mount point and kind of a folder's file system, or ("", "unknown") if the system does not tell."""
    path, best, kind = folder.resolve(), "", "unknown"
    with suppress(OSError):
        for line in Path("/proc/self/mounts").read_text().splitlines():
            _, mount, its_kind, *_ = line.split(" ")
            mount = re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), mount)  # a space is written as \040
            if path.is_relative_to(mount) and len(mount) >= len(best):  # a later mount hides an earlier one
                best, kind = mount, its_kind
    return best, kind


@contextmanager
def temporary_folder(parent: Path | None = None, make_parent: Callable[[], None] | None = None) -> Iterator[Path]:
    """Make a folder in `parent` that is removed on exit, and remove the folders of killed processes.

    On a network disk the lock of a folder holds on one host only. So a folder of another host, or of an earlier boot of
    this host, is removed only if nothing in it has changed for a day.

    Args:
        parent: holds the folder, and is removed if it is left empty. Default: the system's place for temporary files.
        make_parent: makes the parent if it is missing.

    Raises:
        OSError: it cannot be made.
        OptionError: the system has no place for temporary files.
    """
    try:
        where = Path(tempfile.gettempdir()) if parent is None else parent
    except FileNotFoundError as error:  # the root is read-only, for example
        raise OptionError(f"{error.strerror}. Set TMPDIR to a writable folder") from error
    try:
        kernel = Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:  # a sandbox without it
        kernel = platform.node()
    for tries_left in reversed(range(_TRIES)):
        try:
            with suppress(FileExistsError):  # exist_ok=True fails if another thread removes it at this moment
                make_parent() if make_parent is not None else where.mkdir(parents=True, exist_ok=True)
            # Two processes share these digits only if each sees the other's lock of a folder in `where`: the NFS client
            # of each kernel keeps such locks to itself, and so does each mount.
            domain = hashlib.blake2b(f"{kernel} {where.stat().st_dev}".encode(), digest_size=8).hexdigest()
            folder = where / f"{_PREFIX}{domain}_{secrets.token_hex(8)}"
            folder.mkdir(mode=0o700)
            descriptor = os.open(folder, os.O_RDONLY)
        except FileNotFoundError:
            if not tries_left:
                raise
            continue  # another process has cleaned up in between
        with suppress(OSError):  # a file system without locks: nothing is cleaned up there
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        # Between `mkdir` and the lock another process may have taken it for a dead process's, and removed it.
        if folder.exists():
            break
        os.close(descriptor)
    else:
        raise FileNotFoundError(f"{where}: new folders vanish at once")
    try:
        _remove_abandoned(folder)
        yield folder
    finally:
        # Locked to the end, or another process would take the rest for a dead process's.
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)
        if parent is not None:
            with suppress(OSError):
                parent.rmdir()


def _remove_abandoned(ours: Path) -> None:
    """Remove the folders of dead processes beside `ours`: their locks ended with them, see `temporary_folder`."""
    same_domain = ours.name.rpartition("_")[0]
    for path in ours.parent.iterdir():
        if not _OURS.fullmatch(path.name):
            continue
        with suppress(OSError), ExitStack() as stack:
            # The system's folder may hold another user's link of such a name, a dataset its author's.
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            stack.callback(os.close, descriptor)
            if os.fstat(descriptor).st_uid != os.getuid():  # all users share the system's folder
                continue
            # The age is by the clock of the file system, shared by all hosts, not by this host's.
            if not path.name.startswith(f"{same_domain}_") and _touched(ours) - _touched(path) < _ABANDONED_SECONDS:
                continue
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)


def _touched(folder: Path) -> float:
    """Return the time of the last change of a folder, or of anything in it."""
    return max(path.lstat().st_mtime for path in (folder, *folder.rglob("*")))


def map_file(descriptor: int, size_bytes: int) -> memoryview:
    """Map at least one byte of an open file, read-only, for as long as the view or anything made from it lives.

    The descriptor may be closed at once. Truncating the file while it is mapped ends the process with SIGBUS, as with
    Python's own mmap. Raises OSError.
    """
    # Not Python's mmap, because that keeps a duplicate of the descriptor: a reader of many shards would run out of
    # these.
    address = _MMAP(None, size_bytes, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
    if address == ctypes.c_void_p(-1).value:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    mapped = (ctypes.c_ubyte * size_bytes).from_address(address)
    # Not at the exit of the interpreter: other threads may still be reading.
    weakref.finalize(mapped, _MUNMAP, address, size_bytes).atexit = False
    return memoryview(mapped).cast("B").toreadonly()
