"""Buckets and the objects in them, in memory."""

import threading
import time
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from tests.gcs_server.errors import ApiError, missing_bucket
from tests.gcs_server.messages import Data

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
    components: int = 0
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

    def __iter__(self) -> Iterator[Bucket]:
        with self._lock:
            return iter([self._buckets[name] for name in sorted(self._buckets)])

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
            return held

    def bucket(self, name: str) -> Bucket:
        """Raises ApiError 404."""
        try:
            return self._buckets[name]
        except KeyError:
            raise missing_bucket() from None

    def remove_bucket(self, name: str) -> None:
        with self._lock:
            if self.bucket(name).objects:
                raise ApiError(409, "The bucket you tried to delete is not empty.", "conflict")
            del self._buckets[name]

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
        end, most = query.get("endOffset"), _page_size(query.get("maxResults", ""))
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


def _page_size(asked: str) -> int:
    if asked and not asked.isdecimal():
        raise ApiError(400, f"Invalid value for maxResults: '{asked}'")
    return min(int(asked or 0) or _PAGE, _PAGE)


def _under(name: str, prefixes: list[str]) -> bool:
    return bool(prefixes) and name.startswith(prefixes[-1])
