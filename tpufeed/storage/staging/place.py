"""Where staged copies lie and what room there is: in memory (TPU VMs have slow disks), else on disk."""

import errno
import os
import shutil
import stat
import tempfile
from pathlib import Path

from tpufeed.cgroups import memory_left
from tpufeed.errors import OptionError

STAGE_DIR = "TPUFEED_STAGE_DIR"  # an environment variable: where to stage when nobody says
MEMORY = Path("/dev/shm")

_FORMAT_VERSION = 1
_LEAST_ROOM_BYTES = 2 << 30  # a default place with less is passed over for the next
_IN_MEMORY = {"tmpfs", "ramfs"}


def find_folder(parent: Path | None) -> Path:
    """The folder of this user's copies in `parent`, or in the best of the default places; it is there.

    Raises:
        OptionError: it cannot be made, or is not this user's alone.
    """
    places = _default_places() if parent is None else [parent.absolute()]
    name = f"tpufeed-stage-{_FORMAT_VERSION}-{os.getuid()}"
    for place in places:
        path = place / name
        try:
            if place is places[-1] or _room_bytes(place, path) >= _LEAST_ROOM_BYTES:
                make_folder(path)
                return path
        except OSError as error:
            if place is places[-1]:
                raise refuse_folder(path, error) from error
    raise AssertionError("the last place is taken or refused")


def make_folder(path: Path) -> None:
    """Make the folder, unless it is there. Raises OSError where it is not this user's alone."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        status = path.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
            found = f"{stat.filemode(status.st_mode)} of user {status.st_uid}"
            expected = f"a folder of user {os.getuid()} that nobody else may enter (chmod 700)"
            raise PermissionError(errno.EPERM, f"it is {found} and must be {expected}") from None


def refuse_folder(path: Path, error: OSError) -> OptionError:
    """The error to raise where shards cannot be staged at `path`."""
    return OptionError(
        f"{path}: shards cannot be staged there: {error.strerror}. Give another stage_dir, or stage_bytes=0 to do "
        "without"
    )


def is_in_memory(folder: Path) -> bool:
    """Whether the files of an existing folder are memory: a reboot clears it, the machine's processes share it."""
    path = f"{folder.resolve()}/"
    best, kind = "", ""
    for line in _read_lines(Path("/proc/self/mounts")):
        _, mount, its_kind, *_ = line.split(" ")
        mount = f"{mount.rstrip('/')}/"
        if path.startswith(mount) and len(mount) >= len(best):  # a later mount hides an earlier one
            best, kind = mount, its_kind
    return kind in _IN_MEMORY


def free_bytes(folder: Path) -> int:
    """How much more fits into an existing folder; where it is memory, no more than the machine or container has."""
    free = shutil.disk_usage(folder).free
    return min(free, _free_memory_bytes()) if is_in_memory(folder) else free


def _default_places() -> list[Path]:
    if os.environ.get(STAGE_DIR):
        return [Path(os.environ[STAGE_DIR]).absolute()]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return [MEMORY, cache, Path(tempfile.gettempdir())]


def _room_bytes(place: Path, path: Path) -> int:
    place.mkdir(parents=True, exist_ok=True)
    used = sum(copy.stat().st_size for copy in path.iterdir()) if path.is_dir() else 0
    return used + free_bytes(place)


def _free_memory_bytes() -> int:
    left = memory_left()
    free = [] if left is None else [left]
    for line in _read_lines(Path("/proc/meminfo")):
        if line.startswith("MemAvailable:"):
            free.append(int(line.split()[1]) << 10)
    return min(free, default=1 << 62)


def _read_lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
