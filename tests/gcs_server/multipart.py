"""The two parts of a multipart upload: JSON metadata, then the media."""

import json
import re

from tests.gcs_server.errors import ApiError
from tests.gcs_server.messages import Request

_HEAD_BYTES = 64 << 10  # metadata lie in the first bytes; the rest may not even have come


def multipart_metadata(request: Request) -> dict[str, object]:
    """The metadata alone, {} where they cannot be read; a body of which the first 64 KiB are there will do."""
    try:
        return _metadata(bytes(request.body[:_HEAD_BYTES]), _boundary(request))[0]
    except ApiError:
        return {}


def split_multipart(request: Request) -> tuple[dict[str, object], str, memoryview]:
    """Metadata, content type of the media, the media (a view of the body, no copy). Raises ApiError 400."""
    boundary = _boundary(request)
    metadata, start, content_type = _metadata(bytes(request.body[:_HEAD_BYTES]), boundary)
    tail = bytes(request.body[-len(boundary) - 16 :])
    found = re.search(rb"\r?\n" + re.escape(boundary) + rb"--\s*$", tail)
    if found is None:
        raise ApiError(400, "Malformed multipart body.", "badRequest")
    return metadata, content_type, request.body[start : len(request.body) - len(tail) + found.start()]


def _boundary(request: Request) -> bytes:
    found = re.search(r'boundary="?([^";]+)"?', request.headers.get("content-type", ""))
    if found is None:
        raise ApiError(400, "Missing end boundary in multipart body.", "badRequest")
    return b"--" + found.group(1).encode()


def _metadata(head: bytes, boundary: bytes) -> tuple[dict[str, object], int, str]:
    """The metadata, where the media start, their content type."""
    marks = [found.end() for found in re.finditer(re.escape(boundary) + rb"\r?\n", head)][:2]
    if len(marks) < 2:
        raise ApiError(400, "Malformed multipart body.", "badRequest")
    blank = re.compile(rb"\r?\n\r?\n")
    json_start, media_start = (blank.search(head, mark) for mark in marks)
    if json_start is None or media_start is None:
        raise ApiError(400, "Malformed multipart body.", "badRequest")
    try:
        metadata = json.loads(head[json_start.end() : head.rindex(boundary, 0, marks[1])])
    except ValueError:
        raise ApiError(400, "Parse Error", "parseError") from None
    if not isinstance(metadata, dict):
        raise ApiError(400, "Parse Error", "parseError")
    kind = re.search(rb"content-type:\s*([^\r\n]+)", head[marks[1] : media_start.end()], re.IGNORECASE)
    return metadata, media_start.end(), kind.group(1).decode("latin-1") if kind else ""
