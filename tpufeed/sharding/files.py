"""The files that a source's rows name: below the source, at absolute paths, or at URLs of their own."""

import os
import posixpath
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from tpufeed.errors import (
    AccessError,
    MissingExtraError,
    SourceError,
    StoreError,
    TpufeedError,
    UnavailableError,
)
from tpufeed.storage.registry import open_store, url_scheme
from tpufeed.storage.store import ObjectInfo, Store

_STATS_AT_ONCE = 32


class Files:
    """Finds files for one source. Thread-safe; stores of other places are opened once."""

    def __init__(self, base: str) -> None:
        self.base = open_store(base)
        self._elsewhere: dict[str, Store] = {}

    def find(self, file: str) -> tuple[Store, str]:
        """The store of a file and its name there."""
        if "://" in file:
            scheme, _, rest = file.partition("://")
            host, _, name = rest.lstrip("/").partition("/")
            root = f"{scheme}://{'/' if rest.startswith('/') else ''}{host}"  # local:///folder
        elif file.startswith("/"):
            root, name = "/", file[1:]
        else:
            return self.base, file
        store = self._elsewhere.get(root)
        if store is None:
            store = self._elsewhere[root] = open_store(root)
        return store, name

    @property
    def retries(self) -> int:
        """Requests that were made again."""
        return sum(store.retries for store in (self.base, *self._elsewhere.values()))

    def stats(self, files: list[str]) -> list[ObjectInfo | TpufeedError | None]:
        """What each file is now, or why nobody can say; remote ones are asked for many at once.

        Raises:
            MissingExtraError: what opens their URLs is not installed.
        """
        if all("://" not in file for file in files) and self.base.local_path("x") is not None:
            return [self._stat(file) for file in files]
        with ThreadPoolExecutor(_STATS_AT_ONCE, "tpufeed-stat") as executor:
            return list(executor.map(self._stat, files))

    def _stat(self, file: str) -> ObjectInfo | TpufeedError | None:
        try:
            store, name = self.find(file)
            return store.stat(name)
        except MissingExtraError:
            raise
        except TpufeedError as error:
            return error
        except UnicodeEncodeError:  # the row's path is refused
            return None


@contextmanager
def listing() -> Iterator[None]:
    """Within it a source is listed: what fails is a SourceError, unless the store does not answer or refuses."""
    try:
        yield
    except (UnavailableError, AccessError):  # no fault of the request
        raise
    except StoreError as error:
        raise SourceError(f"the source cannot be listed: {error}") from error


def resolve(base: str, path: str) -> str:
    """The file that `path` in a table at `base` means: a name below `base` where it can be, else absolute or a URL."""
    if url_scheme(path) == "file":
        path = path.partition("://")[2] if "://" in path else path
    else:
        name = path.removeprefix(base.rstrip("/") + "/")
        is_clean = posixpath.normpath(name) == name and not name.startswith(("/", "../"))  # no URL is: it has "//"
        return name if is_clean else path
    if path.startswith("/") and url_scheme(base) != "file":  # a file of this machine, as every other program has it
        return posixpath.normpath(path)
    if url_scheme(base) == "file":
        full = os.path.normpath(os.path.join(base, path))  # noqa: PTH118  # Path would not resolve '..'
        return full.removeprefix(base.rstrip("/") + "/")
    scheme, _, root = base.partition("://")
    full = posixpath.normpath(posixpath.join("/" + root, path))
    below = "/" + root.rstrip("/") + "/"
    return full.removeprefix(below) if full.startswith(below) else f"{scheme}:/{full}"
