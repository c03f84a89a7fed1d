"""Temporary folders that do not outlive their makers: in use means flocked, which death ends."""

import fcntl
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_SYSTEM_PREFIX = "tpufeed-put-"
_TRIES = 100


@contextmanager
def temporary_folder(parent: Path | None = None) -> Iterator[Path]:
    """A new folder in `parent`, removed on exit; those of killed processes are removed first.

    Args:
        parent: holds nothing else, is made where it is missing and removed where this leaves it empty. None is where
            the system keeps temporary files.

    Raises:
        OSError: it cannot be made.
    """
    prefix = _SYSTEM_PREFIX if parent is None else ""
    where = Path(tempfile.gettempdir()) if parent is None else parent
    _remove_abandoned(where, prefix)
    folder, descriptor = _make_locked(where, prefix)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)
        if parent is not None:
            with suppress(OSError):
                parent.rmdir()


def _make_locked(parent: Path, prefix: str) -> tuple[Path, int]:
    for tries_left in reversed(range(_TRIES)):
        folder = parent / f"{prefix}{secrets.token_hex(8)}"
        try:
            with suppress(FileExistsError):  # exist_ok=True fails where another thread removes it at this moment
                parent.mkdir(parents=True)
            folder.mkdir(mode=0o700)
            descriptor = os.open(folder, os.O_RDONLY)
        except FileNotFoundError:
            if not tries_left:
                raise
            continue  # another process has tidied up in between
        with suppress(OSError):  # a file system without locks: nothing is tidied there
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        if folder.exists():
            return folder, descriptor
        os.close(descriptor)
    raise FileNotFoundError(f"{parent}: folders vanish as they are made")


def _remove_abandoned(parent: Path, prefix: str) -> None:
    try:
        names = os.listdir(parent)
    except FileNotFoundError:
        return
    for name in names:
        if name.startswith(prefix):
            with suppress(OSError):
                _remove_unlocked(parent / name)


def _remove_unlocked(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.fstat(descriptor).st_uid == os.getuid():  # the system's folder is everyone's
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(descriptor)
