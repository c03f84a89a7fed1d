"""Write a file for people whole or not at all."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from tpufeed.errors import StoreError


def write_file(path: Path, write: Callable[[IO[bytes]], Any]) -> None:
    """Write a file beside its place, then put it there; what was there is replaced.

    Raises:
        StoreError: it cannot be written.
    """
    umask = os.umask(0)
    os.umask(umask)
    temporary = None
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name[:50]}.", delete=False) as file:
            temporary = Path(file.name)
            write(file)
        temporary.chmod(0o666 & ~umask)  # such files are made for their owner alone
        temporary.replace(path)
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror or error}") from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
