"""Checks that a build can be written where it is to go, and fits there."""

import errno
import os

from tpufeed.dataset.naming import PLAN
from tpufeed.errors import BuildError, OptionError, StoreError
from tpufeed.storage.store import Store


def check_writable(destination: Store) -> None:
    """Check that a local folder can be made and written to. Changes nothing; other stores say so at the first write.

    Raises:
        OptionError: it is a file, or in one.
        StoreError: it cannot be written to.
    """
    path = destination.local_path(PLAN)
    if path is None:
        return
    folder = next(folder for folder in path.parents if os.path.lexists(folder))
    if not folder.is_dir():
        raise OptionError(
            f"{destination.url} cannot be a dataset's folder: {folder} is a file; take another destination"
        )
    if not os.access(folder, os.W_OK | os.X_OK):
        wrong = errno.EROFS if os.statvfs(folder).f_flag & os.ST_RDONLY else errno.EACCES
        raise StoreError(f"{destination.url}/{PLAN} cannot be written: {folder}: {os.strerror(wrong)}")


def check_space(destination: Store, wanted_bytes: float, freed_bytes: int = 0) -> None:
    """Raises BuildError where `wanted_bytes` of shards do not fit, once `freed_bytes` are removed."""
    free = destination.free_bytes()
    if free is not None and wanted_bytes > free + freed_bytes:
        raise BuildError(
            f"{destination.url} has room for {(free + freed_bytes) / 1e6:,.1f} MB; the shards will take about "
            f"{wanted_bytes / 1e6:,.1f} MB. Nothing was changed. Make room, take another destination, or store smaller "
            "images"
        )
