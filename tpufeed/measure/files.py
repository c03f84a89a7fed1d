"""Write an output file atomically, and check before the work that it can be written."""

import uuid
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from tpufeed.errors import OptionError, StoreError
from tpufeed.processes.limits import room_left
from tpufeed.storage.local import is_folder


def write_file(path: Path, write: Callable[[IO[bytes]], Any]) -> None:
    """Write a file under a temporary name, then move it to `path`. Replace an earlier file.

    Raises:
        StoreError: the file cannot be written.
    """
    temporary = path.with_name(f".{path.name[:50]}.{uuid.uuid4().hex}")
    try:
        with temporary.open("xb") as file:
            write(file)
        temporary.replace(path)
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror or error}{room_left(error, path)}") from error
    finally:
        with suppress(OSError):
            temporary.unlink()


def check_output(path: Path, suffixes: Collection[str] = (), rule: str = "") -> None:
    """Check that a file can be written to `path`, before measurements that take minutes.

    Raises:
        OptionError: the path has none of the `suffixes` (the message is `rule`), it is a folder, or its folder does
            not exist.
        StoreError: the folder may not be searched.
    """
    if suffixes and path.suffix.lower() not in suffixes:
        raise OptionError(f"{path}: {rule}")
    if not is_folder(path.parent):
        raise OptionError(f"{path}: there is no folder {path.parent}; create it first")
    if is_folder(path):
        raise OptionError(f"{path} is a folder; give the name of a file")
