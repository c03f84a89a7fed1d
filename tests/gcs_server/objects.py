"""What the server keeps: buckets, generations of objects, uploads under way; and what it tells of them."""

import re
import secrets
import threading
import time
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from urllib.parse import quote

from tests.gcs_server.messages import (
    ApiError,
    Data,
    Response,
    check_crc,
    crc_of,
    crc_text,
    hash_header,
    json_response,
    md5_of,
    md5_text,
    missing_bucket,
)

_PAGE = 1000
_LAST = "\U0010ffff"  # sorts behind all that follows a prefix


@dataclass(frozen=True, slots=True)
class StoredObject:
    """A generation of an object. `data` is never written to again; `attributes` are the client's own metadata."""

    bucket: str
    name: str
    data: Data
    crc: int
    md5: bytes | None = None
    attributes: dict[str, object] = field(default_factory=dict)
    generation: int = 0
    metageneration: int = 1
    created: datetime = field(default_factory=lambda: datetime.now(UTC))
    updated: datetime = field(default_factory=lambda: datetime.now(UTC))


@dataclass(slots=True)
class Bucket:
    """A bucket; `refuses` is 0 or the status (401, 403) that every call on it gets."""

    name: str
    requester_pays: bool = False
    refuses: int = 0
    location: str = "US"
    location_type: str = "multi-region"
    created: datetime = field(default_factory=lambda: datetime.now(UTC))
    objects: dict[str, StoredObject] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)  # sorted


@dataclass(frozen=True, slots=True)
class Page:
    """A page of a listing; `token` continues it."""

    objects: list[StoredObject]
    prefixes: list[str]
    token: str


class Buckets:
    """All buckets. Thread-safe: every change is one step under one lock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._buckets: dict[str, Bucket] = {}
        self._generation = 0

    def create(self, bucket: Bucket, replace_rules: bool = False) -> Bucket:
        """Raises ApiError 409 where it exists, unless only its rules are to be replaced."""
        with self._lock:
            held = self._buckets.get(bucket.name)
            if held is None:
                self._buckets[bucket.name] = bucket
                return bucket
            if not replace_rules:
                raise ApiError(409, "Your previous request to create the named bucket succeeded.", "conflict")
            held.requester_pays, held.refuses = bucket.requester_pays, bucket.refuses
            held.location, held.location_type = bucket.location, bucket.location_type
            return held

    def bucket(self, name: str) -> Bucket:
        """Raises ApiError 404."""
        try:
            return self._buckets[name]
        except KeyError:
            raise missing_bucket() from None

    def live(self, bucket: str, name: str) -> StoredObject | None:
        return self.bucket(bucket).objects.get(name)

    def change(
        self, bucket: str, name: str, step: Callable[[StoredObject | None], StoredObject | None]
    ) -> StoredObject | None:
        """Put what `step` makes of the live object in its place, None to delete it; nothing else comes between.

        `step` may raise, and nothing changes. A result with generation 0 gets one.
        """
        with self._lock:
            held = self.bucket(bucket)
            live = held.objects.get(name)
            result = step(live)
            if result is None:
                if live is not None:
                    del held.objects[name]
                    del held.names[bisect_left(held.names, name)]
                return None
            if not result.generation:
                self._generation = max(self._generation + 1, time.time_ns() // 1000)
                result = replace(result, generation=self._generation)
            held.objects[name] = result
            if live is None:
                insort(held.names, name)
            return result

    def page(self, bucket: str, query: dict[str, str]) -> Page:
        """The objects that `prefix`, `delimiter`, `startOffset`, `endOffset`, `pageToken` and `maxResults` select."""
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        end, most = query.get("endOffset"), min(int(query.get("maxResults") or _PAGE), _PAGE)
        page = Page([], [], "")
        with self._lock:
            held = self.bucket(bucket)
            names = held.names
            at = bisect_left(names, max(prefix, query.get("startOffset", "")))
            if token := query.get("pageToken"):
                at = max(at, bisect_right(names, token))
            while at < len(names) and names[at].startswith(prefix) and (end is None or names[at] < end):
                if len(page.objects) + len(page.prefixes) == most:
                    last = names[at - 1]
                    return replace(page, token=page.prefixes[-1] + _LAST if _under(last, page.prefixes) else last)
                cut = names[at].find(delimiter, len(prefix)) if delimiter else -1
                if cut < 0:
                    page.objects.append(held.objects[names[at]])
                    at += 1
                else:
                    page.prefixes.append(names[at][: cut + len(delimiter)])
                    at = bisect_right(names, page.prefixes[-1] + _LAST)
        return page


def _under(name: str, prefixes: list[str]) -> bool:
    return bool(prefixes) and name.startswith(prefixes[-1])


@dataclass(frozen=True, slots=True)
class Conditions:
    """Unset (None) or a number; generation 0 stands for "no live object"."""

    generation_match: int | None = None

    def check(self, live: StoredObject | None) -> None:
        """Raises ApiError 412."""
        if self.generation_match not in {None, live.generation if live else 0}:
            raise ApiError(412)


def conditions(query: Mapping[str, str]) -> Conditions:
    """Those of the query."""
    text = query.get("ifGenerationMatch")
    return Conditions(None if text is None else int(text))


QUANTUM = 256 << 10  # GCS keeps whole multiples of it until the upload ends
_RANGE = re.compile(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)")


@dataclass(slots=True)
class Upload:
    """An upload under way; `result` is the object's JSON when it is finished."""

    bucket: str
    name: str
    attributes: dict[str, object]
    conditions: Conditions
    expected: str
    pieces: list[Data] = field(default_factory=list)
    held_bytes: int = 0
    result: dict[str, object] | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, chunk: memoryview, start: int, final: bool) -> None:
        """Keep what is new in `chunk`, which begins at byte `start`; what ends no upload is cut to the quantum.

        Raises:
            ApiError: there is a gap before it, or it is too small to continue after.
        """
        if start > self.held_bytes:
            raise ApiError(
                503,
                f"Invalid request.  According to the Content-Range header, the upload offset is {start} byte(s), "
                f"which exceeds already uploaded size of {self.held_bytes} byte(s).",
            )
        if not final and 0 < len(chunk) < QUANTUM:
            raise ApiError(
                400,
                "Invalid request.  The number of bytes uploaded is required to be equal or greater than 262144, except "
                f"for the final request. The received request contained {len(chunk)} bytes.",
            )
        new = chunk[self.held_bytes - start :]
        if not final:
            new = new[: (self.held_bytes + len(new)) // QUANTUM * QUANTUM - self.held_bytes]
        if len(new):
            self.pieces.append(new)
            self.held_bytes += len(new)

    def data(self) -> Data:
        return self.pieces[0] if len(self.pieces) == 1 else b"".join(self.pieces)

    def range_headers(self) -> dict[str, str]:
        """Those of a 308: how much is held."""
        return {"Range": f"bytes=0-{self.held_bytes - 1}"} if self.held_bytes else {}


@dataclass(frozen=True, slots=True)
class ContentRange:
    """`start` is None in a status query; `total` is None while the client does not know."""

    start: int | None
    total: int | None


def content_range(text: str, body_bytes: int) -> ContentRange:
    """Without a header the body is all there is. Raises ApiError 400."""
    if not text:
        return ContentRange(0, body_bytes)
    found = _RANGE.fullmatch(text.strip())
    if found is None or (found[1] and int(found[2]) - int(found[1]) + 1 != body_bytes):
        raise ApiError(400, "Failed to parse Content-Range header.")
    return ContentRange(int(found[1]) if found[1] else None, None if found[3] == "*" else int(found[3]))


class Uploads:
    """Sessions by id. Thread-safe; an upload is changed under its own lock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._uploads: dict[str, Upload] = {}

    def __len__(self) -> int:
        return sum(upload.result is None for upload in list(self._uploads.values()))

    def start(self, upload: Upload) -> str:
        key = secrets.token_urlsafe(24)
        with self._lock:
            self._uploads[key] = upload
        return key

    def get(self, key: str) -> Upload:
        """Raises ApiError 404."""
        try:
            return self._uploads[key]
        except KeyError:
            raise ApiError(404, "No such upload session.") from None


# What a client may set.
WRITABLE = ("contentType", "contentEncoding")
_OCTETS = "application/octet-stream"


def object_resource(stored: StoredObject, base: str) -> dict[str, object]:
    path = f"b/{stored.bucket}/o/{quote(stored.name, safe='')}"
    resource: dict[str, object] = {
        "kind": "storage#object",
        "id": f"{stored.bucket}/{stored.name}/{stored.generation}",
        "selfLink": f"{base}/storage/v1/{path}",
        "mediaLink": f"{base}/download/storage/v1/{path}?generation={stored.generation}&alt=media",
        "name": stored.name,
        "bucket": stored.bucket,
        "generation": str(stored.generation),
        "metageneration": str(stored.metageneration),
        "contentType": _OCTETS,
        "storageClass": "STANDARD",
        "size": str(len(stored.data)),
        "crc32c": crc_text(stored.crc),
        "etag": _etag(stored),
        "timeCreated": _time(stored.created),
        "updated": _time(stored.updated),
        "timeStorageClassUpdated": _time(stored.created),
        **stored.attributes,
    }
    if stored.md5 is not None:
        resource["md5Hash"] = md5_text(stored.md5)
    return resource


def object_response(stored: StoredObject, base: str) -> Response:
    answer = json_response(object_resource(stored, base))
    answer.generation = str(stored.generation)
    return answer


def page_resource(page: Page, base: str) -> dict[str, object]:
    """A listing; GCS leaves out what is empty."""
    resource: dict[str, object] = {"kind": "storage#objects"}
    if page.token:
        resource["nextPageToken"] = page.token
    if page.prefixes:
        resource["prefixes"] = page.prefixes
    if page.objects:
        resource["items"] = [object_resource(stored, base) for stored in page.objects]
    return resource


def object_headers(stored: StoredObject) -> dict[str, str]:
    """The headers of a read of the object, whole or in part: hashes and lengths are the whole object's."""
    attributes = stored.attributes
    headers = {
        "Content-Type": str(attributes.get("contentType", _OCTETS)),
        "Accept-Ranges": "bytes",
        "ETag": f'"{_etag(stored)}"',
        "Last-Modified": stored.updated.strftime("%a, %d %b %Y %H:%M:%S GMT"),
        "X-Goog-Generation": str(stored.generation),
        "X-Goog-Metageneration": str(stored.metageneration),
        "X-Goog-Hash": hash_header(stored.crc, stored.md5),
        "X-Goog-Stored-Content-Length": str(len(stored.data)),
        "X-Goog-Stored-Content-Encoding": str(attributes.get("contentEncoding", "identity")),
        "X-Goog-Storage-Class": str(attributes.get("storageClass", "STANDARD")),
    }
    if attributes.get("contentEncoding"):
        headers["Content-Encoding"] = str(attributes["contentEncoding"])
    return headers


def writable_attributes(asked: dict[str, object]) -> dict[str, object]:
    """What of `asked` a client may set."""
    return {key: value for key, value in asked.items() if key in WRITABLE and value}


def _etag(stored: StoredObject) -> str:
    return f"{stored.generation:x}/{stored.metageneration:x}"


def _time(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


@dataclass(frozen=True, slots=True)
class Vault:
    """Thread-safe.

    Attributes:
        md5: objects get one. Without, they look like composite objects, and large uploads take a third of the time.
    """

    md5: bool = True
    buckets: Buckets = field(default_factory=Buckets)
    uploads: Uploads = field(default_factory=Uploads)

    def store(self, draft: StoredObject, demands: Conditions, expected: str = "") -> StoredObject:
        """Put `draft` in the place of what `demands` allow to be replaced. Raises ApiError 400 or 412."""
        draft = replace(draft, crc=crc_of(draft.data), md5=md5_of(draft.data) if self.md5 else None)
        check_crc(expected, draft.crc)

        def step(live: StoredObject | None) -> StoredObject:
            demands.check(live)
            return draft

        stored = self.buckets.change(draft.bucket, draft.name, step)
        assert stored is not None
        return stored
