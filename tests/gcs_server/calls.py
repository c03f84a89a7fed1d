"""From a request to the call of the API that it is."""

import contextlib
import json
from dataclasses import dataclass, field
from urllib.parse import unquote

from tests.gcs_server.errors import ApiError
from tests.gcs_server.messages import Request
from tests.gcs_server.multipart import multipart_metadata
from tests.gcs_server.uploads import Uploads

_METHODS_OF_A_BUCKET = {"GET": "bucket.stat", "DELETE": "bucket.delete"}
_METHODS_OF_AN_OBJECT = {"GET": "stat", "DELETE": "delete", "PATCH": "patch", "PUT": "patch"}
_METHODS_OF_XML = {"GET": "read", "HEAD": "read", "PUT": "write", "DELETE": "delete"}


@dataclass(slots=True)
class Call:
    """What a request asks for.

    Attributes:
        operation: `read`, `stat`, `list`, `write` (a whole upload in one request), `start`, `chunk`, `query` and
            `cancel` (of a resumable upload), `delete`, `patch`, `compose`, `copy`, `bucket.stat` and so on, or `?`.
        dialect: of the answer, as `errors.response` has it.
        target: bucket and name that a copy goes to.
        query: the request's, parsed once.
    """

    request: Request
    operation: str
    bucket: str = ""
    name: str = ""
    dialect: str = "json"
    target: tuple[str, str] = ("", "")
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


def _routed(request: Request, parts: list[str], query: dict[str, str]) -> Call:  # noqa: PLR0911
    method = request.method
    match parts:
        case ["storage", "v1", "b"]:
            return Call(request, "bucket.create" if method == "POST" else "bucket.list")
        case ["storage", "v1", "b", bucket]:
            return Call(request, _METHODS_OF_A_BUCKET.get(method, "?"), bucket)
        case ["storage", "v1", "b", bucket, "o"]:
            return Call(request, "list" if method == "GET" else "?", bucket)
        case ["storage", "v1", "b", bucket, "o", name] | ["download", "storage", "v1", "b", bucket, "o", name]:
            if method == "GET" and (query.get("alt") == "media" or parts[0] == "download"):
                return Call(request, "read", bucket, name, "media")
            return Call(request, _METHODS_OF_AN_OBJECT.get(method, "?"), bucket, name)
        case ["storage", "v1", "b", bucket, "o", name, "compose"]:
            return Call(request, "compose", bucket, name)
        case ["storage", "v1", "b", bucket, "o", name, "rewriteTo" | "copyTo", "b", to_bucket, "o", to_name]:
            return Call(request, "copy", bucket, name, target=(to_bucket, to_name))
        case ["upload", "storage", "v1", "b", bucket, "o"] | ["resumable", "upload", "storage", "v1", "b", bucket, "o"]:
            return _upload(request, bucket, query)
        case [bucket, *rest] if bucket and rest and rest != [""] and bucket not in {"storage", "upload", "download"}:
            return Call(request, _METHODS_OF_XML.get(method, "?"), bucket, "/".join(rest), "xml")
    return Call(request, "?")


def _upload(request: Request, bucket: str, query: dict[str, str]) -> Call:
    name = query.get("name", "")
    if "upload_id" in query:
        if request.method == "DELETE":
            return Call(request, "cancel", bucket, name)
        is_query = request.headers.get("content-range", "").startswith("bytes */") and not request.body_bytes
        return Call(request, "query" if is_query else "chunk", bucket, name)
    kind = query.get("uploadType") or request.headers.get("x-goog-upload-protocol", "media")
    if kind == "multipart":
        return Call(request, "write", bucket, name or str(multipart_metadata(request).get("name", "")))
    if kind == "resumable":
        return Call(request, "start", bucket, name or _name_in_json(request))
    return Call(request, "write", bucket, name)


def _name_in_json(request: Request) -> str:
    try:
        return str(json_body(request).get("name", ""))
    except ApiError:
        return ""


def json_body(request: Request) -> dict[str, object]:
    """The request's JSON object; an empty body is an empty one. Raises ApiError 400."""
    if not len(request.body):
        return {}
    try:
        found = json.loads(bytes(request.body))
    except ValueError:
        raise ApiError(400, "Parse Error", "parseError") from None
    if not isinstance(found, dict):
        raise ApiError(400, "Parse Error", "parseError")
    return found


def mapping(value: object) -> dict[str, object]:
    """A JSON object within one; null is an empty one. Raises ApiError 400."""
    if not isinstance(value or {}, dict):
        raise ApiError(400, "Parse Error", "parseError")
    return value or {}  # type: ignore[return-value]
