"""Objects at any URL that fsspec knows. It has no preconditions, so only one writer may write at a time."""

import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote

import fsspec

from tpufeed.errors import (
    AccessError,
    MissingExtraError,
    ObjectExistsError,
    ObjectNotFoundError,
    OptionError,
    StoreError,
    TpufeedError,
    UnavailableError,
    mask_secrets,
)
from tpufeed.storage.local import temporary_folder
from tpufeed.storage.reading import read_by_threads
from tpufeed.storage.store import ObjectInfo, Span, Store, check_name

# Errors of Python, botocore and aiohttp by name, to import no backend for them.
_NETWORK_ERRORS = {"ConnectionError", "TimeoutError", "ClientConnectionError", "ClientPayloadError", "HTTPClientError"}
_PASSING = {408, 425, 429, 500, 502, 503, 504, *range(520, 528)}  # HTTP statuses. The last are Cloudflare's
_ABSENT = {404, 410}
_WEB_WAITS_SECONDS = (0.5, 2.0)  # before the second and the third try
_WEB_TIMEOUTS = {"total": 300, "connect": 30, "sock_connect": 10, "sock_read": 30}  # in seconds, of aiohttp
_DEAD_AFTER = 8  # requests in a row, each with all of its tries
_REST_SECONDS = 60.0  # between requests to a server that looks dead
T = TypeVar("T")
# `blob_id` is the Hugging Face hub's.
_VERSION_KEYS = ("generation", "blob_id", "ETag", "etag", "mtime", "LastModified", "last_modified", "created")


class FsspecStore(Store):
    """A `Store` over an fsspec file system.

    The query of an `http(s)://` URL may hold a token. It is sent with every object that is read. Clients do not
    repeat requests to a web server, so this does, up to three times. If a server has not answered several requests in a
    row, further ones fail at once, except for one per minute: a table may name a dead host a hundred thousand times.
    """

    def __init__(self, url: str) -> None:
        protocol, _, path = url.partition("://")
        self._is_web = protocol in ("http", "https")
        path, mark, query = path.partition("?") if self._is_web else (path, "", "")
        self._base, self._query = f"{protocol}://{path.rstrip('/')}", mark + query
        self.url = self._base + self._query
        self._has_secret = mask_secrets(self.url) != self.url
        self._unanswered, self._asks_from = 0, 0.0
        options: dict[str, Any] = {}
        try:
            if self._is_web:
                import aiohttp

                options["client_kwargs"] = {"timeout": aiohttp.ClientTimeout(**_WEB_TIMEOUTS)}
            # Listings never expire by default: a stale one would hide the files that another process has just written.
            self._fs, self._root = fsspec.core.url_to_fs(self._base, use_listings_cache=False, **options)
        except ImportError as error:
            if self._is_web:
                raise MissingExtraError("aiohttp", "gcs") from error
            remedy = ": pip install huggingface_hub" if protocol == "hf" else ""
            raise StoreError(f"{url}: {error}{remedy}") from self._cause(error)
        except Exception as error:  # noqa: BLE001  # some connect here, some need what a URL cannot hold
            raise StoreError(f"{url}: {type(error).__name__}: {error}") from self._cause(error)

    def read(self, name: str, version: str = "") -> bytes:
        return self._ask(name, lambda: bytes(self._fs.cat_file(self._path(name))))

    def read_range(self, name: str, start: int, stop: int, version: str = "") -> bytes:
        data = self._ask(name, lambda: bytes(self._fs.cat_file(self._path(name), start=start, end=stop)))
        if len(data) > stop - start:
            raise StoreError(f"{self._where(name)}: the server sends the whole object instead of a range of it")
        return data

    def read_many(self, spans: Iterable[Span]) -> Generator[bytes | StoreError, None, None]:
        return read_by_threads(self, spans)

    def stat(self, name: str) -> ObjectInfo | None:
        def find() -> dict[str, Any] | None:
            try:
                return dict(self._fs.info(self._path(name)))
            except (FileNotFoundError, NotADirectoryError) as error:
                if _kind_of(error) is ObjectNotFoundError:
                    return None
                raise

        found = self._ask(name, find)
        return None if found is None or found.get("type") == "directory" else _to_info(name, found)

    def iter_objects(self, prefix: str = "") -> Iterator[ObjectInfo]:
        with self._errors(prefix):
            start = self._path(prefix.rstrip("/")) if prefix else self._root
            found = self._fs.find(start, detail=True)
        skip, folder = len(_to_prefix(self._root)), _to_prefix(start)
        for path, info in sorted(found.items()):
            name = path.lstrip("/")
            if name.startswith(folder):  # an object with the name of the prefix is found as well
                yield _to_info(name[skip:], info)

    def iter_folders(self) -> Iterator[str]:
        with self._errors(""):
            found = self._fs.ls(self._root, detail=True) if self._fs.exists(self._root) else []
        for info in found:
            if info.get("type") == "directory":
                yield info["name"].rstrip("/").rsplit("/", 1)[-1]

    def put(self, name: str, data: bytes, replaces: ObjectInfo | None = None) -> ObjectInfo:
        return self._put(name, replaces, lambda path: self._fs.pipe_file(path, data))

    def put_file(self, name: str, path: Path, replaces: ObjectInfo | None = None) -> ObjectInfo:
        return self._put(name, replaces, lambda to: self._fs.put_file(str(path), to))

    def delete(self, name: str, version: str = "") -> None:
        with self._errors(name):
            found = self.stat(name)
            if found is not None and version in ("", found.version):
                self._fs.rm_file(self._path(name))

    def temporary_folder(self) -> AbstractContextManager[Path]:
        return temporary_folder()

    def _put(self, name: str, replaces: ObjectInfo | None, write: Callable[[str], object]) -> ObjectInfo:
        with self._errors(name):
            found = self.stat(name)
            if found is not None and (replaces is None or found.version != replaces.version):
                raise ObjectExistsError(f"{self._where(name)} exists already")
            self._fs.makedirs(self._path(name).rsplit("/", 1)[0], exist_ok=True)
            write(self._path(name))
        found = self.stat(name)
        if found is None:
            raise StoreError(f"{self._where(name)} is not there although it was just put")
        return found

    def _path(self, name: str) -> str:
        # An HTTP client takes '%2e%2e' for '..', and resolves it before it asks.
        if self._is_web and ".." in unquote(name).split("/"):
            raise OptionError(f"{name!r} cannot name an object: it has a '..' part")
        return f"{self._root}/{check_name(name)}{self._query}"

    def _where(self, name: str) -> str:
        return f"{self._base}/{name}{self._query}"

    def _ask(self, name: str, request: Callable[[], T]) -> T:
        """Return the answer to a request. Raises as `_errors` does, and UnavailableError after the last try."""
        waits: list[float] = []
        if self._is_web and self._unanswered < _DEAD_AFTER:
            waits += _WEB_WAITS_SECONDS
        elif self._is_web:
            now = time.monotonic()
            if now < self._asks_from:
                raise UnavailableError(
                    f"{self._where(name)}: not requested: its server has not answered {_DEAD_AFTER} requests in a row"
                )
            self._asks_from = now + _REST_SECONDS  # the others wait for the outcome of this one
        while True:
            try:
                with self._errors(name):
                    answer = request()
            except UnavailableError:
                if not waits or self._unanswered >= _DEAD_AFTER:
                    self._unanswered += 1
                    self._asks_from = time.monotonic() + _REST_SECONDS
                    raise
                time.sleep(waits.pop(0))
                self.retries += 1
            except StoreError:  # the server has answered
                self._unanswered = 0
                raise
            else:
                self._unanswered = 0
                return answer

    def _cause(self, error: Exception) -> Exception | None:
        """Return the cause to show in a trace, or None if the backend's message may hold the URL's secret."""
        return None if self._has_secret else error

    @contextmanager
    def _errors(self, name: str) -> Iterator[None]:
        try:
            yield
        except TpufeedError:
            raise
        except Exception as error:  # noqa: BLE001  # each backend has other errors: aiohttp, botocore, google.api_core
            kind = _kind_of(error)
            told = error.__cause__ if isinstance(error, FileNotFoundError) and error.__cause__ else error
            said = "no such object" if kind is ObjectNotFoundError else f"{type(told).__name__}: {told}"
            raise kind(f"{self._where(name)}: {said}") from self._cause(error)


def _kind_of(error: Exception) -> type[StoreError]:
    """Return our class for a backend's error: an outage and a refusal say nothing about the object."""
    status = None
    for each in (error, error.__cause__):  # over HTTP fsspec raises FileNotFoundError for answers of any status
        status = getattr(each, "status", status)
        if isinstance(each, PermissionError) or status in (401, 403):
            return AccessError
        if status in _PASSING or any(base.__name__ in _NETWORK_ERRORS for base in type(each).__mro__):
            return UnavailableError
    is_absent = isinstance(error, FileNotFoundError | NotADirectoryError | IsADirectoryError)
    is_other = isinstance(status, int) and status not in _ABSENT
    return ObjectNotFoundError if (is_absent and not is_other) or status in _ABSENT else StoreError


def _to_prefix(path: str) -> str:
    return f"{path.strip('/')}/".removeprefix("/")


def _to_info(name: str, info: dict[str, Any]) -> ObjectInfo:
    version = next((info[key] for key in _VERSION_KEYS if info.get(key)), "")
    if isinstance(version, datetime):  # some give seconds in a listing, but a date for a single object
        version = version.timestamp()
    return ObjectInfo(name, int(info.get("size") or 0), str(version))
