"""Requests about the objects below one URL, made again until they succeed or patience ends."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec

from tpufeed.errors import AccessError, ObjectChangedError, ObjectNotFoundError, OptionError, StoreError
from tpufeed.storage.gcs_answers import Page, Resource
from tpufeed.storage.gcs_errors import Target, denied
from tpufeed.storage.gcs_retrying import Patience, TransientError, Tries, UnauthorizedError
from tpufeed.storage.gcs_session import GcsSession, Request, open_session
from tpufeed.storage.naming import check_name

FIELDS = "name,size,generation,crc32c"
NEVER_A_GENERATION = "1"  # generations are microseconds since 1970

T = TypeVar("T")
Send = Callable[[Request], AbstractContextManager[Any]]


class GcsFolder:
    """What lies below gs://bucket/folder. Thread-safe.

    Attributes:
        url: as the user typed it, without a slash at its end.
        bucket: its name.
        root: what the keys of its objects begin with: "folder/", or "".
        patience: with faults.
        count_retry: called before each try that is not a call's first.
    """

    def __init__(self, url: str, patience: Patience, count_retry: Callable[[], None]) -> None:
        scheme, _, path = url.partition("://")
        self.url = f"{scheme}://{path.rstrip('/')}"
        self.bucket, _, folder = path.rstrip("/").partition("/")
        if not self.bucket:
            raise OptionError(f"{url}: this names no bucket; write {scheme}://BUCKET or {scheme}://BUCKET/FOLDER")
        self.root = f"{check_name(folder)}/" if folder else ""
        self.patience, self.count_retry = patience, count_retry
        self._session: tuple[int, GcsSession] | None = None
        self._bucket_exists = False  # as far as is known

    @property
    def session(self) -> GcsSession:
        """The process's; it is made by the first request."""
        found = self._session
        if found is None or found[0] != os.getpid():
            found = self._session = os.getpid(), open_session()
        return found[1]

    def persist(self, where: str, permission: str, attempt: Callable[[Send, Tries], T]) -> T:
        """What `attempt` returns as soon as it raises no TransientError.

        Args:
            where: URL of the object or folder, for messages.
            permission: what the caller needs for it, as storage.objects.get.
            attempt: one try of all that is left to do.

        Raises:
            StoreError: it cannot succeed, or patience has ended.
            PreconditionError: as the service said.
        """
        target, tries = Target(where, self.bucket, permission), Tries(where, self.patience)

        def send(request: Request) -> AbstractContextManager[Any]:
            return self.session.answer(request, target, self.patience)

        while True:
            try:
                found = attempt(send, tries)
                self._bucket_exists = True
                return found
            except ObjectNotFoundError:
                self.check_bucket()
                raise
            except UnauthorizedError as error:
                if tries.refreshed:
                    raise denied(target, self.session.identity, f"HTTP 401: {error}") from error
                tries.refreshed = True
                self.count_retry()
                self._refresh(target, tries)
            except TransientError as error:
                time.sleep(tries.pause_after(error))
                self.count_retry()

    def where(self, name: str) -> str:
        """The URL of an object, for messages."""
        return f"{self.url}/{name}"

    def key(self, name: str) -> str:
        """The object's name in its bucket. Raises OptionError where it could lead out of the folder."""
        return self.root + check_name(name)

    def path(self, name: str = "", kind: str = "") -> str:
        """The path at the service of an object, or of all; `kind` is "/download" or "/upload"."""
        objects = f"{kind}/storage/v1/b/{quote(self.bucket, safe='')}/o"
        return f"{objects}/{quote(self.key(name), safe='')}" if name else objects

    def check_bucket(self) -> None:
        """Raise StoreError where there is no bucket: a missing object's answer differs from that in its words only."""
        if not self._bucket_exists:
            # A caller who may not list is told 403 for a missing object, so that one who was told 404 may.
            params = {"prefix": self.root, "maxResults": "1", "fields": "nextPageToken"}
            with suppress(AccessError):
                self.call(self.url, "storage.objects.list", Request("GET", self.path(), params))
            self._bucket_exists = True

    def find(self, name: str, version: str = "") -> Resource:
        """What the service says of an object. Raises ObjectNotFoundError."""
        check_name(name)
        params = {"fields": FIELDS, **({"generation": generation_of(version)} if version else {})}
        request = Request("GET", self.path(name), params)
        return self.call_json(self.where(name), "storage.objects.get", request, Resource)

    def absence(self, name: str, version: str, error: ObjectNotFoundError) -> StoreError:
        """The error for an object that is not there, which one of another generation may be."""
        self.check_bucket()
        try:
            found = self.find(name).generation if version else ""
        except ObjectNotFoundError:
            return error
        if not found:
            return error
        return ObjectChangedError(f"{self.where(name)}: it is generation {found} by now, not {version}")

    def iter_pages(self, where: str, params: dict[str, str]) -> Iterator[Page]:
        """The pages of a listing. Raises StoreError where the bucket does not exist."""
        token = ""
        while True:
            request = Request("GET", self.path(), {**params, **({"pageToken": token} if token else {})})
            page = self.call_json(where, "storage.objects.list", request, Page)
            yield page
            if not page.token:
                return
            if page.token == token:
                raise StoreError(f"{where}: the listing has no end: page {token!r} is followed by itself")
            token = page.token

    def call(self, where: str, permission: str, request: Request) -> bytes:
        """The body of the answer to a request. Raises as `persist` does."""

        def attempt(send: Send, _: Tries) -> bytes:
            with send(request) as response:
                content: bytes = response.content
                return content

        return self.persist(where, permission, attempt)

    def call_json(self, where: str, permission: str, request: Request, kind: type[T]) -> T:
        """The JSON that answers a request. Raises as `persist` does."""

        def attempt(send: Send, _: Tries) -> T:
            with send(request) as response:
                return self.decode(where, response.content, kind)

        return self.persist(where, permission, attempt)

    def decode(self, where: str, content: bytes, kind: type[T]) -> T:
        """The JSON of an answer.

        Raises:
            TransientError: it is none, but a proxy's page.
            StoreError: it lacks a field, or has one of another type.
        """
        try:
            return msgspec.json.decode(content, type=kind, strict=False)  # its integers are texts
        except msgspec.ValidationError as error:
            raise StoreError(
                f"{where}: {self.session.endpoint} answers otherwise than Google Cloud Storage: {error}"
            ) from error
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise TransientError(f"the answer is no JSON: {error}") from error

    def _refresh(self, target: Target, tries: Tries) -> None:
        while True:
            try:
                return self.session.refresh(target)
            except TransientError as error:
                time.sleep(tries.pause_after(error))
                self.count_retry()


def generation_of(version: str) -> str:
    """The generation that a version names; one of another store's matches none here."""
    return version if version.isascii() and version.isdigit() else NEVER_A_GENERATION
