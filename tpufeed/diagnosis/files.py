"""Files for people, written whole or not at all."""

import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

from tpufeed.errors import StoreError


def write_files(writers: Mapping[Path, Callable[[IO[bytes]], Any]]) -> None:
    """Write all files beside their places, then put each in its place; what was there is replaced.

    Raises:
        StoreError: one cannot be written.
    """
    umask = os.umask(0)
    os.umask(umask)
    temporaries: dict[Path, Path] = {}
    path = next(iter(writers))
    try:
        for path, write in writers.items():
            with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name[:50]}.", delete=False) as file:
                temporaries[path] = Path(file.name)
                write(file)
            temporaries[path].chmod(0o666 & ~umask)  # such files are made for their owner alone
        for path, temporary in temporaries.items():
            temporary.replace(path)
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror or error}") from error
    finally:
        for temporary in temporaries.values():
            temporary.unlink(missing_ok=True)
