"""Objects in Google Cloud Storage: puts have preconditions, reads are pinned and checked, and faults are retried."""

import threading
from collections.abc import Generator, Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from crc32c import crc32c

from tpufeed.errors import ObjectExistsError, ObjectNotFoundError, StoreError
from tpufeed.storage.gcs_rapid import PARTS, RapidDownload, RapidUpload
from tpufeed.storage.gcs_requests import (
    FIELDS,
    GcsFolder,
    Patience,
    PreconditionError,
    Request,
    Resource,
    check_installed,
    generation_of,
    to_crc32c,
)
from tpufeed.storage.gcs_transfers import Content, Download, ReadError, Upload, content_of_file, read_many
from tpufeed.storage.local import temporary_folder
from tpufeed.storage.reading import read_by_threads
from tpufeed.storage.store import ObjectInfo, Span, Store

_NO_GENERATION = "0"  # as a precondition: there is no object
_LOOKS = 3  # tries of a put that is refused because of an object which is gone a moment later
_PATIENCE = Patience()


class GcsStore(Store):
    """A `Store` over gs://bucket/folder. Making one sends no request."""

    conditional = True
    generations = True
    checks_reads = True

    def __init__(self, url: str, patience: Patience = _PATIENCE) -> None:
        self._folder = GcsFolder(url, patience, self._count_retry)
        self.url = self._folder.url
        self.retries = 0
        self._counting = threading.Lock()
        check_installed()

    # Without locks and connections: a worker process makes its own.
    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.url, self._folder.patience)

    def read(self, name: str, version: str = "") -> bytes:
        return self._download(name, version).read()

    def read_range(self, name: str, start: int, stop: int, version: str = "") -> bytes:
        buffer = memoryview(bytearray(max(0, stop - start)))
        return bytes(buffer[: self.read_into(name, start, buffer, version)])

    def read_into(self, name: str, start: int, buffer: memoryview, version: str = "") -> int:
        if len(buffer):
            return self._download(name, version).read_into(start, buffer)
        self._folder.find(name, version)  # HTTP has no range of no bytes
        return 0

    def read_many(self, spans: Iterable[Span]) -> Generator[bytes | StoreError, None, None]:
        return read_by_threads(self, spans) if self._folder.speaks_grpc() else read_many(self._folder, spans)

    def stat(self, name: str) -> ObjectInfo | None:
        try:
            return self._to_info(self._folder.find(name))
        except ObjectNotFoundError:
            return None

    def iter_objects(self, prefix: str = "") -> Iterator[ObjectInfo]:
        start = f"{self._folder.key(prefix.rstrip('/'))}/" if prefix else self._folder.root
        params = {"prefix": start, "fields": f"items({FIELDS}),nextPageToken"}
        for page in self._folder.iter_pages(self._folder.where(prefix).rstrip("/"), params):
            for found in page.items:
                # Consoles make empty objects with such names to show empty folders. Parts are not objects yet.
                if not found.name.endswith("/") and f"/{PARTS}" not in f"/{found.name}":
                    yield self._to_info(found)

    def iter_folders(self) -> Iterator[str]:
        params = {"prefix": self._folder.root, "delimiter": "/", "fields": "prefixes,nextPageToken"}
        for page in self._folder.iter_pages(self.url, params):
            for found in page.prefixes:
                if found != self._folder.root + PARTS:
                    yield found[len(self._folder.root) :].rstrip("/")

    def put(self, name: str, data: bytes, replaces: ObjectInfo | None = None) -> ObjectInfo:
        return self._put(name, Content(data, len(data), crc32c(data)), replaces)

    def put_file(self, name: str, path: Path, replaces: ObjectInfo | None = None) -> ObjectInfo:
        try:
            return self._put(name, content_of_file(path), replaces)
        except ReadError as error:
            raise StoreError(f"{self._folder.where(name)}: {error}") from error

    def delete(self, name: str, version: str = "") -> None:
        if not version:
            found = self.stat(name)
            if found is None:
                return
            version = found.version
        # A second try must not remove an object that another writer has put since the first.
        params = {"ifGenerationMatch": generation_of(version)}
        request = Request("DELETE", self._folder.path(name), params, accept=(404, 412))
        self._folder.call(self._folder.where(name), "storage.objects.delete", request, bytes)

    def temporary_folder(self) -> AbstractContextManager[Path]:
        return temporary_folder()

    def _put(self, name: str, content: Content, replaces: ObjectInfo | None) -> ObjectInfo:
        generation = _NO_GENERATION if replaces is None else generation_of(replaces.version)
        lost = False  # true if the answer to an applied request may be lost
        for _ in range(_LOOKS):
            upload = (RapidUpload if self._folder.speaks_grpc() else Upload)(self._folder, name, content, generation)
            try:
                return self._to_info(upload.run())
            except PreconditionError:
                # A 412 after a failed try of ours may be our own object, whose answer was lost: compare it below.
                lost = lost or upload.tries_failed > 0
            found = self.stat(name)
            if found is not None:
                if lost and (found.size_bytes, found.crc32c) == (content.size_bytes, content.crc32c):
                    return found
                break
            generation = _NO_GENERATION
        replaced = "" if replaces is None else f", no longer as generation {replaces.version}"
        raise ObjectExistsError(f"{self._folder.where(name)} exists already{replaced}")

    def _download(self, name: str, version: str) -> Download:
        return (RapidDownload if self._folder.speaks_grpc() else Download)(self._folder, name, version)

    def _count_retry(self) -> None:
        with self._counting:
            self.retries += 1

    def _to_info(self, resource: Resource) -> ObjectInfo:
        if not resource.name.startswith(self._folder.root):
            raise StoreError(f"{self.url}: the service answered about an object in another folder: {resource.name}")
        crc32c = to_crc32c(resource.crc32c) if resource.crc32c else None
        return ObjectInfo(resource.name[len(self._folder.root) :], resource.size, resource.generation, crc32c)
