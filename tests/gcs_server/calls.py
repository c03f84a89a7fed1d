"""From a request to the call of the API that it is."""

import contextlib
import json
import re
from dataclasses import dataclass, field
from urllib.parse import unquote

from tests.gcs_server.messages import ApiError, Request
from tests.gcs_server.objects import Uploads

_HEAD_BYTES = 64 << 10  # metadata lie in the first bytes; the rest may not even have come


def multipart_metadata(request: Request) -> dict[str, object]:
    """The metadata alone, {} where they cannot be read; a body of which the first 64 KiB are there will do."""
    return _metadata(bytes(request.body[:_HEAD_BYTES]), _boundary(request))[0]


def split_multipart(request: Request) -> tuple[dict[str, object], str, memoryview]:
    """Metadata, content type of the media, the media (a view of the body, no copy). Raises ApiError 400."""
    boundary = _boundary(request)
    metadata, start, content_type = _metadata(bytes(request.body[:_HEAD_BYTES]), boundary)
    tail = bytes(request.body[-len(boundary) - 16 :])
    found = re.search(rb"\r?\n" + re.escape(boundary) + rb"--\s*$", tail)
    assert found is not None
    return metadata, content_type, request.body[start : len(request.body) - len(tail) + found.start()]


def _boundary(request: Request) -> bytes:
    found = re.search(r'boundary="?([^";]+)"?', request.headers.get("content-type", ""))
    assert found is not None
    return b"--" + found.group(1).encode()


def _metadata(head: bytes, boundary: bytes) -> tuple[dict[str, object], int, str]:
    """The metadata, where the media start, their content type."""
    marks = [found.end() for found in re.finditer(re.escape(boundary) + rb"\r?\n", head)][:2]
    blank = re.compile(rb"\r?\n\r?\n")
    json_start, media_start = (blank.search(head, mark) for mark in marks)
    assert json_start is not None
    assert media_start is not None
    metadata = json.loads(head[json_start.end() : head.rindex(boundary, 0, marks[1])])
    kind = re.search(rb"content-type:\s*([^\r\n]+)", head[marks[1] : media_start.end()], re.IGNORECASE)
    return metadata, media_start.end(), kind.group(1).decode("latin-1") if kind else ""


_METHODS_OF_AN_OBJECT = {"GET": "stat", "DELETE": "delete"}


@dataclass(slots=True)
class Call:
    """What a request asks for.

    Attributes:
        operation: `read`, `stat`, `list`, `layout`, `write` (a whole upload in one request), `start`,
            `chunk` and `query` (of a resumable upload), `delete`, `move`, or `?`.
        target: where a `move` leads.
        dialect: of the answer, as `messages.response` has it.
        query: the request's, parsed once.
    """

    request: Request
    operation: str
    bucket: str = ""
    name: str = ""
    dialect: str = "json"
    target: str = ""
    query: dict[str, str] = field(default_factory=dict)


def call_of(request: Request, uploads: Uploads) -> Call:
    """What `request` asks for. Looks into the first bytes of the body for an upload's name, where it is there only.

    The parts of a resumable upload, whose requests bear no name, have the name that it was started with.
    """
    query = request.query
    call = _routed(request, [unquote(part) for part in request.path.split("/")[1:]], query)
    call.query = query
    if "upload_id" in query and not call.name:
        with contextlib.suppress(ApiError):
            call.name = uploads.get(query["upload_id"]).name
    return call


def _routed(request: Request, parts: list[str], query: dict[str, str]) -> Call:
    method = request.method
    match parts:
        case ["storage", "v1", "b", bucket, "o" | "storageLayout" as what]:
            return Call(request, {"o": "list"}.get(what, "layout") if method == "GET" else "?", bucket)
        case ["storage", "v1", "b", bucket, "o", name] | ["download", "storage", "v1", "b", bucket, "o", name]:
            media = method == "GET" and (query.get("alt") == "media" or parts[0] == "download")
            operation = "read" if media else _METHODS_OF_AN_OBJECT.get(method, "?")
            return Call(request, operation, bucket, name, "media" if media else "json")
        case ["storage", "v1", "b", bucket, "o", name, "moveTo", "o", target]:
            return Call(request, "move" if method == "POST" else "?", bucket, name, target=target)
        case ["upload", "storage", "v1", "b", bucket, "o"] | ["resumable", "upload", "storage", "v1", "b", bucket, "o"]:
            return _upload(request, bucket, query)
        case [bucket, *rest] if bucket and rest and rest != [""] and bucket not in {"storage", "upload", "download"}:
            return Call(request, "read" if method == "GET" else "?", bucket, "/".join(rest), "xml")
    return Call(request, "?")


def _upload(request: Request, bucket: str, query: dict[str, str]) -> Call:
    name = query.get("name", "")
    if "upload_id" in query:
        is_query = request.headers.get("content-range", "").startswith("bytes */") and not request.body_bytes
        return Call(request, "query" if is_query else "chunk", bucket, name)
    kind = query.get("uploadType") or request.headers.get("x-goog-upload-protocol", "media")
    if kind == "multipart":
        return Call(request, "write", bucket, name or str(multipart_metadata(request).get("name", "")))
    if kind == "resumable":
        return Call(request, "start", bucket, name or str(json_body(request).get("name", "")))
    return Call(request, "write", bucket, name)


def json_body(request: Request) -> dict[str, object]:
    """The request's JSON object; an empty body is an empty one."""
    found: dict[str, object] = json.loads(bytes(request.body) or b"{}")
    return found
