"""Resumable uploads: sessions that collect the bytes of one object."""

import re
import secrets
import threading
from dataclasses import dataclass, field

from tests.gcs_server.conditions import Conditions
from tests.gcs_server.errors import ApiError
from tests.gcs_server.messages import Data

QUANTUM = 256 << 10  # GCS keeps whole multiples of it until the upload ends
_RANGE = re.compile(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)")


@dataclass(slots=True)
class Upload:
    """An upload under way; `result` is the object's JSON when it is finished."""

    bucket: str
    name: str
    attributes: dict[str, object]
    conditions: Conditions
    expected: dict[str, str]
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

    def cancel(self, key: str) -> None:
        with self._lock:
            if self._uploads.pop(key, None) is None:
                raise ApiError(404, "No such upload session.")
