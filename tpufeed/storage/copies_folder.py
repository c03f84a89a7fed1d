"""The folder of local copies, on disk or in memory: its place, its copies of shards, and its locks.

Processes share the folder by `flock`. The kernel releases it when a process dies. A shared lock on a copy keeps it from
being evicted, an exclusive lock on a partial copy means that a process is fetching it, and the file `lock` is held
while copies are counted, made or removed.
"""

import errno
import fcntl
import hashlib
import logging
import mmap
import os
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType

from crc32c import crc32c

from tpufeed.errors import OptionError, url_identity
from tpufeed.processes.limits import memory_left
from tpufeed.storage.local import find_mount

LOCAL_DIR = "TPUFEED_LOCAL_DIR"  # an environment variable: the folder of copies if no other is given
MEMORY = Path("/dev/shm")
_FORMAT_VERSION = 1
_LEAST_ROOM_BYTES = 2 << 30  # a default place with less room is skipped
_IN_MEMORY = {"tmpfs", "ramfs"}
_SHARD, _PART, _LOCK = ".shard", ".part", "lock"
# An executed program must not inherit a lock, and a link must not lead out of the folder.
_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW
_logger = logging.getLogger(__name__)


def find_folder(parent: Path | None) -> Path:
    """Find or make the folder of this user's copies in `parent`, or in the best of the default places.

    Raises:
        OptionError: it cannot be made, or others may enter it.
    """
    places = _default_places() if parent is None else [parent.absolute()]
    name = f"tpufeed-copies-{_FORMAT_VERSION}-{os.getuid()}"
    failures: dict[Path, OSError] = {}
    # The first with room. Without room anywhere, the last one that takes any file at all.
    for place, least in [*((each, _LEAST_ROOM_BYTES) for each in places), *((each, 0) for each in reversed(places))]:
        path = place / name
        try:
            place.mkdir(parents=True, exist_ok=True)
            used = sum(copy.size_bytes for copy in _list_copies(path))  # of copies that are kept
            if used + free_bytes(place) >= least:
                _make_folder(path)
                return path
        except OSError as error:
            failures[place] = error.with_traceback(None)  # a traceback holds this frame, and this frame the error
    raise _refusal(places[-1] / name, failures[places[-1]]) from failures[places[-1]]


def _make_folder(path: Path) -> None:
    """Make the folder, unless it is there. Raises OSError if others may enter it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        # Not `stat`: another user may have put a link of this name into /dev/shm, to a folder of ours.
        status = path.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
            found = f"{stat.filemode(status.st_mode)} of user {status.st_uid}"
            expected = f"a folder of user {os.getuid()} that nobody else may enter (chmod 700)"
            raise PermissionError(errno.EPERM, f"it is {found} and must be {expected}") from None


def _refusal(path: Path, error: OSError) -> OptionError:
    return OptionError(
        f"{path} cannot hold local copies: {error.strerror}. Give another local_dir, or local_bytes=0 for no copies"
    )


def is_in_memory(folder: Path) -> bool:
    """Return true if the files of an existing folder are in memory: a reboot clears it, and all processes share it."""
    return find_mount(folder)[1] in _IN_MEMORY


def free_bytes(folder: Path) -> int:
    """Return the free space of an existing folder, in memory no more than the machine or container has."""
    free = [shutil.disk_usage(folder).free]
    if is_in_memory(folder):
        # A tmpfs promises up to its own limit, whatever memory is left.
        left = memory_left()
        free += [] if left is None else [left]
    return min(free)


def user_cache() -> Path | None:
    """Return the user's cache folder, or None in a container whose user has neither a HOME nor a name."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    except RuntimeError:
        return None


def _default_places() -> list[Path]:
    if os.environ.get(LOCAL_DIR):
        return [Path(os.environ[LOCAL_DIR]).absolute()]
    cache = user_cache()
    places = [MEMORY] if cache is None else [MEMORY, cache]
    with suppress(FileNotFoundError):  # a read-only root may have no folder for temporary files
        places.append(Path(tempfile.gettempdir()))
    return places


@dataclass(frozen=True, slots=True)
class RemoteShard:
    """A shard as in the manifest. `place` is the URL of its store, empty for the main store of `LocalCopies`."""

    name: str
    size_bytes: int
    crc32c: int
    place: str = ""


@lru_cache(1 << 14)  # a loader needs the same keys for each list of shards
def copy_key(url: str, shard: RemoteShard) -> str:
    """Return the name of a shard's copy. `url` is the URL of its store unless the shard names a place."""
    # The name does not depend on tokens in the URL.
    identity = f"{url_identity(shard.place or url)}\0{shard.name}\0{shard.size_bytes}\0{shard.crc32c}"
    return hashlib.blake2b(identity.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()


class Refusal(Enum):
    """Reasons why this process does not fetch a copy now."""

    TAKEN = "it is there, or another process fetches it"
    FULL = "there is no room for it"


@dataclass(frozen=True, slots=True)
class PartialCopy:
    """A copy that this process is fetching to `path`. `descriptor` has the exclusive lock."""

    key: str
    size_bytes: int
    path: Path
    descriptor: int


@dataclass(frozen=True, slots=True)
class _Copy:
    name: str
    size_bytes: int
    used_ns: int

    @property
    def key(self) -> str:
        return self.name.partition(".")[0]


class CopiesFolder:
    """A folder of local copies. Thread-safe.

    Args:
        parent: holds the folder. Default: the best of the default places.
        budget_bytes: bytes that all copies together may take. Default: half of the space that is free without them.

    Attributes:
        path: the folder.
        budget_bytes: the budget. Lower it when the disk turns out to be full.
        evictions: number of copies that this object has evicted.

    Raises:
        OptionError: it cannot be made, others may enter it, or it has no locks.
    """

    def __init__(self, parent: Path | None, budget_bytes: int | None) -> None:
        self.path = find_folder(parent)
        self.evictions = 0
        try:
            with self._locked():
                self._remove_abandoned()
            if budget_bytes is None:
                budget_bytes = (self.used_bytes() + free_bytes(self.path)) // 2
        except OSError as error:
            raise _refusal(self.path, error) from error
        self.budget_bytes = budget_bytes
        self._in_memory = is_in_memory(self.path)

    def hold(self, key: str, size_bytes: int) -> int | None:
        """Open a copy under a shared lock that keeps it from being evicted, or return None if there is no copy.

        Marks the copy as the last used, and removes one of another size. Never waits. Raises OSError.
        """
        path = self.path / f"{key}{_SHARD}"
        with ExitStack() as stack:
            try:
                descriptor = os.open(path, os.O_RDONLY | _FLAGS)
                stack.callback(os.close, descriptor)
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except (FileNotFoundError, BlockingIOError):  # there is no copy, or it is being evicted
                return None
            status = os.fstat(descriptor)
            if not status.st_nlink:  # it was evicted before we had the lock
                return None
            if status.st_size != size_bytes:
                _logger.warning("%s has %d bytes and should have %d: removed", path, status.st_size, size_bytes)
                path.unlink(missing_ok=True)
                return None
            _touch(descriptor)
            stack.pop_all()
            return descriptor

    def has(self, key: str) -> bool:
        """Return true if there is a copy."""
        return (self.path / f"{key}{_SHARD}").exists()

    def evict_damaged(self, key: str, size_bytes: int, expected_crc32c: int) -> Path | None:
        """Remove a copy if its bytes have another CRC-32C. Returns its path, or None if it is sound. Raises OSError.

        Other processes that use it keep their mappings.
        """
        descriptor = self.hold(key, size_bytes)
        if descriptor is None:
            return None
        try:
            if read_crc32c(descriptor, size_bytes) == expected_crc32c:
                return None
            path = self.path / f"{key}{_SHARD}"
            with self._locked():  # another process may have removed it, and fetched it again
                if not path.exists() or not os.path.samestat(path.stat(), os.fstat(descriptor)):
                    return None
                path.unlink()
            return path
        finally:
            release(descriptor)

    def touch(self, key: str) -> None:
        """Mark a copy as the last used."""
        with suppress(OSError):
            _touch(self.path / f"{key}{_SHARD}")

    def claim(
        self,
        key: str,
        size_bytes: int,
        spared: frozenset[str] = frozenset(),
        due: Mapping[str, int] = MappingProxyType({}),
        exceed: bool = False,
    ) -> PartialCopy | Refusal:
        """Begin to fetch a copy: other processes leave it to this one, and its bytes count as used.

        `publish` or `discard` ends that. Raises OSError.

        Args:
            key: name of the copy.
            size_bytes: its size.
            spared: copies that must not be removed for it.
            due: rank of other copies that are due, the soonest first. Copies that are not due are removed first, the
                least recently used first. Then copies that are due are removed, the last due first.
            exceed: take it even if there is no room.
        """
        with self._locked(), ExitStack() as stack:
            if self.has(key):
                return Refusal.TAKEN
            for part in _list_copies(self.path, _PART):
                if part.key == key and not self._remove_unlocked(part):  # it can be removed if its process is dead
                    return Refusal.TAKEN
            path = self.path / f"{key}.{secrets.token_hex(8)}{_PART}"
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | _FLAGS, 0o600)
            stack.callback(os.close, descriptor)
            stack.callback(path.unlink, missing_ok=True)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            excess = self.used_bytes() + size_bytes - self.budget_bytes
            if excess > 0:
                excess -= self._remove_abandoned()
                copies = [copy for copy in _list_copies(self.path, _SHARD) if copy.key not in spared]
                copies.sort(key=lambda copy: (copy.key in due, -due.get(copy.key, 0), copy.used_ns))
                if excess > sum(copy.size_bytes for copy in copies) and not exceed:
                    return Refusal.FULL  # evicting all of them would not be enough
                for copy in copies:
                    if excess > 0 and self._remove_unlocked(copy):
                        excess -= copy.size_bytes
                        self.evictions += 1
                if excess > 0 and not exceed:
                    return Refusal.FULL
            # A hole. Others count it from now on. `reserve` allocates it without the lock, as that may take seconds.
            os.ftruncate(descriptor, size_bytes)
            stack.pop_all()
            return PartialCopy(key, size_bytes, path, descriptor)

    def reserve(self, part: PartialCopy) -> None:
        """Allocate the bytes of a partial copy. Raises OSError, with one of `FULL` if they do not fit."""
        # In memory fallocate would take pages until the container is killed.
        if part.size_bytes > free_bytes(self.path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if part.size_bytes:
            os.posix_fallocate(part.descriptor, 0, part.size_bytes)

    def publish(self, part: PartialCopy) -> int:
        """Make a verified copy visible, and return its descriptor, which holds it as `hold` does. Raises OSError."""
        if not self._in_memory:  # after a crash of the machine an empty copy would be trusted
            os.fdatasync(part.descriptor)
        with self._locked():
            # Turning an exclusive lock into a shared one releases it for a moment, see flock(2). Nobody can evict the
            # copy then: that takes `lock`, and we hold it.
            part.path.rename(self.path / f"{part.key}{_SHARD}")
            _touch(part.descriptor)
            fcntl.flock(part.descriptor, fcntl.LOCK_SH)
        return part.descriptor

    def discard(self, part: PartialCopy) -> None:
        """Give up a copy. Raises OSError."""
        try:
            with self._locked():
                part.path.unlink(missing_ok=True)
        finally:
            release(part.descriptor)

    def used_bytes(self) -> int:
        """Return the bytes of copies and partial copies. Raises OSError."""
        return sum(copy.size_bytes for copy in _list_copies(self.path))

    def _remove_abandoned(self) -> int:
        return sum(part.size_bytes for part in _list_copies(self.path, _PART) if self._remove_unlocked(part))

    def _remove_unlocked(self, copy: _Copy) -> bool:
        """Remove a copy unless it is in use, and return true if this removed it."""
        path = self.path / copy.name
        try:
            descriptor = os.open(path, os.O_RDONLY | _FLAGS)
        except FileNotFoundError:
            return False
        try:
            # The path still names the opened file: a new copy gets this name under `lock`, held by our callers.
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink(missing_ok=True)
            return True
        except BlockingIOError:
            return False
        finally:
            release(descriptor)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        _make_folder(self.path)  # somebody may have removed it
        descriptor = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | _FLAGS, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            release(descriptor)


def _list_copies(path: Path, suffix: str | tuple[str, ...] = (_SHARD, _PART)) -> list[_Copy]:
    """List the copies in a folder that other processes may change meanwhile."""
    copies = []
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(path) as entries:
        for entry in entries:
            if entry.name.endswith(suffix):
                with suppress(FileNotFoundError):
                    status = entry.stat(follow_symlinks=False)
                    copies.append(_Copy(entry.name, status.st_size, status.st_mtime_ns))
    return copies


def release(descriptor: int) -> None:
    """Unlock and close. Closing alone would not unlock if a forked process has the descriptor as well."""
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


def read_crc32c(descriptor: int, size_bytes: int) -> int:
    """Return the CRC-32C of an open file's first `size_bytes`. Raises OSError."""
    if not size_bytes:
        return 0
    with mmap.mmap(descriptor, size_bytes, access=mmap.ACCESS_READ) as mapping:
        return crc32c(mapping)


def _touch(file: Path | int) -> None:
    now = time.time_ns()  # the kernel's own "now" is too coarse to order uses
    os.utime(file, ns=(now, now))
