"""Write an output file atomically, and check before the work that it can be written."""

from collections.abc import Collection
from pathlib import Path

from tpufeed.errors import OptionError
from tpufeed.storage.local import LocalStore, is_folder


def write_file(path: Path, data: bytes) -> None:
    """Write a file whole or not at all. Replace an earlier file. Raises StoreError."""
    store = LocalStore(str(path.parent))
    store.put(path.name, data, store.stat(path.name))


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
