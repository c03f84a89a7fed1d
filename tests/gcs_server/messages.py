"""Requests and responses of HTTP/1.1 as data."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from urllib.parse import parse_qsl

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
