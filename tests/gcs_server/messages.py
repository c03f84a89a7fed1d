"""HTTP/1.1 as data: requests, responses, refusals in the words of GCS, hashes and ranges."""

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import NamedTuple
from urllib.parse import parse_qsl
from xml.sax.saxutils import escape

from crc32c import crc32c

Data = bytes | bytearray | memoryview


@dataclass(slots=True)
class Request:
    """A request; `path` is as it came, percent signs and all, `headers` have lower-case names."""

    method: str
    target: str
    headers: Mapping[str, str]
    scheme: str = "http"
    body: memoryview = field(default_factory=lambda: memoryview(b""))

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    @property
    def query(self) -> dict[str, str]:
        return dict(parse_qsl(self.target.partition("?")[2], keep_blank_values=True))

    @property
    def base(self) -> str:
        """Where the client found us, for the links we give it."""
        return f"{self.scheme}://{self.headers.get('host', 'localhost')}"

    @property
    def body_bytes(self) -> int:
        return int(self.headers.get("content-length") or 0)


@dataclass(slots=True)
class Response:
    """An answer; `generation` is that of the object it is about, for the log."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: Data = b""
    generation: str = ""

    def head(self, keep_alive: bool) -> bytes:
        """Status line and headers. A Content-Length that is set (HEAD) stands."""
        try:
            phrase = HTTPStatus(self.status).phrase
        except ValueError:
            phrase = "Unknown"
        lines = [f"HTTP/1.1 {self.status} {phrase}"]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        if "Content-Length" not in self.headers and self.status not in {204, 304}:
            lines.append(f"Content-Length: {len(self.body)}")
        lines.append(f"Connection: {'keep-alive' if keep_alive else 'close'}")
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def json_response(value: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    body = json.dumps(value).encode()
    return Response(status, {"Content-Type": "application/json; charset=UTF-8", **(headers or {})}, body)


class ProtocolError(Exception):
    """What came is no HTTP/1.1."""


def parse_head(head: bytes, scheme: str) -> Request:
    """Raises ProtocolError."""
    first, *lines = head.decode("latin-1").split("\r\n")
    if first.count(" ") != 2 or not first[first.rindex(" ") :].startswith(" HTTP/1."):
        raise ProtocolError(f"{first!r}: not HTTP/1")
    method, target, version = first.split(" ")
    headers: dict[str, str] = {} if version == "HTTP/1.1" else {"connection": "close"}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon:
            raise ProtocolError(f"{line!r}: not a header")
        key, value = name.strip().lower(), value.strip()
        headers[key] = f"{headers[key]},{value}" if key == "x-goog-hash" and key in headers else value
    return Request(method, target, headers, scheme)


_REASONS = {
    400: ("invalid", "InvalidArgument", "Invalid argument."),
    401: ("authError", "AuthenticationRequired", "Invalid Credentials"),
    403: ("forbidden", "AccessDenied", "The caller does not have storage.objects access to the resource."),
    404: ("notFound", "NoSuchKey", "Not Found"),
    408: ("requestTimeout", "RequestTimeout", "Request Timeout"),
    412: ("conditionNotMet", "PreconditionFailed", "At least one of the pre-conditions you specified did not hold."),
    416: ("requestedRangeNotSatisfiable", "InvalidRange", "The requested range cannot be satisfied."),
    429: ("rateLimitExceeded", "SlowDown", "The rate of requests to this object exceeds the limit. Reduce it."),
    500: ("internalError", "InternalError", "We encountered an internal error. Please try again."),
    502: ("badGateway", "BadGateway", "Bad Gateway"),
    503: ("backendError", "ServiceUnavailable", "We encountered an internal error. Please try again."),
    504: ("gatewayTimeout", "GatewayTimeout", "Gateway Timeout"),
}


class ApiError(Exception):
    """An answer that is no success; `headers` go with it."""

    def __init__(self, status: int, message: str = "", reason: str = "", headers: dict[str, str] | None = None):
        known = _REASONS.get(status, ("unknown", "Unknown", "Unknown"))
        self.status, self.message, self.reason = status, message or known[2], reason or known[0]
        self.code, self.headers = reason or known[1], dict(headers or {})
        super().__init__(f"{status} {self.reason}: {self.message}")


def missing_bucket() -> ApiError:
    error = ApiError(404, "The specified bucket does not exist.")
    error.code = "NoSuchBucket"
    return error


def missing_object(bucket: str, name: str) -> ApiError:
    return ApiError(404, f"No such object: {bucket}/{name}")


def response(error: ApiError, dialect: str) -> Response:
    """The answer in the dialect of the call: `json`, `media` (plain text, as GCS does for downloads) or `xml`."""
    if error.status in {304, 308}:
        return Response(error.status, error.headers)
    if dialect == "xml":
        body = "<?xml version='1.0' encoding='UTF-8'?>" + (
            f"<Error><Code>{escape(error.code)}</Code><Message>{escape(error.message)}</Message></Error>"
        )
        kind = "application/xml; charset=UTF-8"
    elif dialect == "media":
        body, kind = error.message, "text/html; charset=UTF-8"
    else:
        item = {"message": error.message, "domain": "global", "reason": error.reason}
        body = json.dumps({"error": {"code": error.status, "message": error.message, "errors": [item]}})
        kind = "application/json; charset=UTF-8"
    if error.status == 401:
        error.headers.setdefault("WWW-Authenticate", 'Bearer realm="https://accounts.google.com/"')
    return Response(error.status, {"Content-Type": kind, **error.headers}, body.encode())


def crc_text(crc: int) -> str:
    return base64.b64encode(crc.to_bytes(4, "big")).decode()


def md5_text(digest: bytes) -> str:
    return base64.b64encode(digest).decode()


def crc_of(data: Data) -> int:
    return crc32c(data)


def md5_of(data: Data) -> bytes:
    return hashlib.md5(data, usedforsecurity=False).digest()


def hash_header(crc: int, md5: bytes | None) -> str:
    return f"crc32c={crc_text(crc)}" + (f",md5={md5_text(md5)}" if md5 else "")


def expected_crc(headers: Mapping[str, str], metadata: dict[str, object]) -> str:
    """The CRC-32C that the client says its bytes have, "" where it says none: the JSON metadata first."""
    found = re.search(r"crc32c=([^,]+)", headers.get("x-goog-hash", ""))
    return str(metadata.get("crc32c") or (found[1] if found else ""))


def check_crc(expected: str, crc: int) -> None:
    """Raises ApiError 400 where the bytes that came are not those that were sent."""
    if expected and expected != crc_text(crc):
        raise ApiError(400, f'Provided CRC32C "{expected}" doesn\'t match calculated CRC32C "{crc_text(crc)}".')


class Span(NamedTuple):
    """Bytes `[start, stop)`."""

    start: int
    stop: int


def requested_span(header: str, size: int) -> Span | None:
    """What of an object of `size` bytes is asked for; None: all of it.

    A header that cannot be read and several ranges ask for all, as with GCS. Raises ApiError 416.
    """
    found = re.fullmatch(r"bytes=(\d*)-(\d*)", header.strip())
    if found is None or found.groups() == ("", "") or (found[1] and found[2] and int(found[2]) < int(found[1])):
        return None
    first, last = found.groups()
    if not first:
        first, last = str(max(size - int(last), 0)), ""
    if int(first) >= size or found.groups() == ("", "0"):
        raise ApiError(416, headers={"Content-Range": f"bytes */{size}"})
    return Span(int(first), min(int(last) + 1, size) if last else size)
