"""One request and its answer over a client's connection, with the fault that the script has for them."""

import contextlib
import socket
import ssl
import struct
import time
from dataclasses import dataclass

import numpy as np

from tests.gcs_server import service
from tests.gcs_server.calls import Call, call_of
from tests.gcs_server.faults import Fault, Record
from tests.gcs_server.messages import ApiError, Data, Request, Response, response
from tests.gcs_server.service import keep_partial
from tests.gcs_server.world import World


class Throttle:
    """Sleeps to absolute deadlines, so that what one sleep is late the next makes up for. One thread at a time."""

    def __init__(self, bytes_per_second: float):
        self.bytes_per_second = bytes_per_second
        self.piece_bytes = int(min(max(bytes_per_second / 200, 1 << 10), 256 << 10))
        self._due = 0.0

    def begin(self) -> None:
        """A transfer starts: idle time before it is not made up for."""
        self._due = max(self._due, time.monotonic())

    def take(self, size: int) -> None:
        """Return when the last of `size` bytes is through."""
        self._due += size / self.bytes_per_second
        wait = self._due - time.monotonic()
        if wait > 0:
            time.sleep(wait)


_PIECE = 4 << 20
_HEAD_LIMIT = 64 << 10


class Wire:
    """Reads ahead of a request's head only; bodies go from and to the caller's memory. One thread at a time."""

    def __init__(self, sock: socket.socket):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sock = sock
        self._ahead = bytearray()
        self.sent_bytes = 0

    def read_head(self) -> bytes | None:
        """The next request's head without its empty line; None where the client has gone."""
        while (end := self._ahead.find(b"\r\n\r\n")) < 0:
            piece = self._sock.recv(_HEAD_LIMIT)
            if not piece:
                return None
            self._ahead += piece
        head = bytes(self._ahead[:end])
        del self._ahead[: end + 4]
        return head

    def read_into(self, buffer: memoryview, throttle: Throttle | None = None) -> None:
        """Fill `buffer`. Raises ConnectionError where the client goes first."""
        at = min(len(buffer), len(self._ahead))
        buffer[:at] = self._ahead[:at]
        del self._ahead[:at]
        piece = throttle.piece_bytes if throttle else len(buffer)
        if throttle:
            throttle.begin()
            throttle.take(at)
        while at < len(buffer):
            got = self._sock.recv_into(buffer[at : at + piece])
            if not got:
                raise ConnectionError("the client went in the middle of a body")
            at += got
            if throttle:
                throttle.take(got)

    def send(self, head: bytes, body: Data, throttle: Throttle | None = None) -> None:
        """Counts in `sent_bytes` what of `body` went out."""
        self.sent_bytes = 0
        if len(body) < 16 << 10 and throttle is None:
            self._sock.sendall(head + body)
            self.sent_bytes = len(body)
            return
        self._sock.sendall(head)
        self.send_more(body, throttle)

    def send_more(self, body: Data, throttle: Throttle | None = None) -> None:
        view = memoryview(body)
        piece = throttle.piece_bytes if throttle else _PIECE
        if throttle:
            throttle.begin()
        for start in range(0, len(view), piece):
            part = view[start : start + piece]
            if throttle:
                throttle.take(len(part))
            self._sock.sendall(part)
            self.sent_bytes += len(part)

    def encrypt(self, context: ssl.SSLContext) -> None:
        """TLS from here on, as the server."""
        self._sock = context.wrap_socket(self._sock, server_side=True)

    def reset(self) -> None:
        """Close with an RST; what was not read or not sent is lost."""
        with contextlib.suppress(OSError):
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._sock.close()

    def hang_up(self) -> None:
        """End both directions, from any thread: who waits on the connection wakes up."""
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self._sock, socket.SHUT_RDWR)

    def close(self) -> None:
        self.hang_up()
        self._sock.close()


_PEEK_BYTES = 64 << 10  # of an upload, read before its fault is chosen: the object's name may lie in there
_UPLOADS = {"write", "chunk"}


class Ended(Exception):
    """The connection is over: by a fault, or because the client wants no more."""


@dataclass(slots=True)
class Link:
    """A connection's throttles, one each way; they live as long as its rate."""

    up: Throttle | None = None
    down: Throttle | None = None

    def at(self, bytes_per_second: float) -> "Link":
        if not bytes_per_second:
            self.up = self.down = None
        elif self.up is None or self.up.bytes_per_second != bytes_per_second:
            self.up, self.down = Throttle(bytes_per_second), Throttle(bytes_per_second)
        return self


class Exchange:
    """Used once: `run`."""

    def __init__(self, wire: Wire, link: Link, world: World, request: Request, number: int):
        self._wire, self._link, self._world, self._request, self._number = wire, link, world, request, number
        self._started = time.monotonic()
        self._call = Call(request, "?")
        self._fault: Fault | None = None
        self._record = Record(request.method, "?", request.target, "", "", "", self._started, number)

    def run(self) -> None:
        """Raises Ended where nothing can follow on the connection."""
        self._receive()
        settings = self._world.settings
        if settings.latency_ms:
            self._world.stopping.wait(settings.latency_ms / 1000)
        self._answer()
        if self._request.headers.get("connection", "").lower() == "close":
            raise Ended

    def _receive(self) -> None:
        """The body, and in its first bytes what the call is and which fault it meets."""
        request = self._request
        body = memoryview(np.empty(request.body_bytes, np.uint8))  # no zeros first: they cost more than the bytes
        at = min(len(body), _PEEK_BYTES)
        self._wire.read_into(body[:at])
        request.body = body[:at]
        self._meet()
        if self._link.up:
            self._link.up.begin()
            self._link.up.take(at)
        stop = self._cut_of_upload(len(body))
        if stop > at:
            self._wire.read_into(body[at:stop], self._link.up)
        at = max(at, stop)
        request.body, self._record.received_bytes = body[:at], at
        self._strike_upload(body, at)
        request.body, self._record.received_bytes = body, len(body)

    def _meet(self) -> None:
        """Know the call, its fault and its speed."""
        request = self._request
        self._call = call = call_of(request, self._world.vault.uploads)
        self._fault = fault = self._world.faults.fire(call)
        rate = self._world.settings.connection_bytes_per_second
        if fault is not None and fault.action == "slow":
            rate = min(rate or fault.bytes_per_second, fault.bytes_per_second)
        self._link.at(rate)
        record = self._record
        record.operation, record.bucket, record.name = call.operation, call.bucket, call.name
        record.range = request.headers.get("content-range") or request.headers.get("range", "")
        record.fault = fault.action if fault else ""

    def _cut_of_upload(self, size: int) -> int:
        """How much of an upload is received before its fault strikes: all of it, but for two."""
        fault = self._fault
        if fault and self._call.operation in _UPLOADS and self._in_body(fault):
            return fault.cut(size)
        return size

    def _strike_upload(self, body: memoryview, at: int) -> None:
        fault = self._fault
        if fault is None or self._call.operation not in _UPLOADS:
            return
        if fault.action == "reset_midway":
            if self._call.operation == "chunk":
                keep_partial(self._world.vault, self._call)
            self._end(reset=True)
        if fault.action == "stall" and self._in_body(fault):
            self._stall(fault)
        if at < len(body):
            self._wire.read_into(body[at:], self._link.up)
        if fault.action == "corrupt" and len(body):
            body[min(fault.cut(len(body)), len(body) - 1)] ^= 1

    def _answer(self) -> None:
        fault = self._fault
        action = fault.action if fault else ""
        if action == "reset":
            self._end(reset=True)
        if fault and action == "stall" and not self._in_body(fault):
            self._stall(fault)
        answer = self._refusal(fault) if fault and action == "status" else service.answer(self._world.vault, self._call)
        self._record.status, self._record.generation = answer.status, answer.generation
        if action == "lose_response":
            self._end(reset=True)
        self._deliver(answer)

    def _refusal(self, fault: Fault) -> Response:
        headers = {} if fault.retry_after is None else {"Retry-After": f"{fault.retry_after:g}"}
        return response(ApiError(fault.status, fault.message, fault.reason, headers), self._call.dialect)

    def _deliver(self, answer: Response) -> None:
        """Log and send, with the faults of an answer's body."""
        fault, wire, record, body = self._fault, self._wire, self._record, answer.body
        head = answer.head(keep_alive=self._request.headers.get("connection", "").lower() != "close")
        strikes = fault is not None and self._call.operation not in _UPLOADS and self._in_body(fault)
        if fault is None or not (strikes or fault.action == "truncate"):
            return self._send(head, body)
        view = memoryview(body)
        cut = fault.cut(len(view))
        if fault.action == "corrupt":
            return self._send(head, _flipped(body, cut))
        record.sent_bytes = cut
        if fault.action == "stall":
            record.sent_bytes = cut if fault.then == "close" else len(view)
            self._world.log.add(record)
            wire.send(head, view[:cut], self._link.down)
            if self._world.stopping.wait(fault.seconds) or fault.then == "close":
                raise Ended
            return wire.send_more(view[cut:], self._link.down)
        self._world.log.add(record)
        wire.send(head, view[:cut], self._link.down)
        if fault.action == "reset_midway":
            wire.reset()
        raise Ended

    def _send(self, head: bytes, body: Data) -> None:
        self._record.sent_bytes = len(body)
        self._world.log.add(self._record)
        try:
            self._wire.send(head, body, self._link.down)
        except OSError:
            self._record.sent_bytes = self._wire.sent_bytes
            raise

    @staticmethod
    def _in_body(fault: Fault) -> bool:
        """Whether it strikes inside a body."""
        return fault.action in {"reset_midway", "truncate", "corrupt"} or (
            fault.action == "stall" and fault.after_bytes >= 0
        )

    def _stall(self, fault: Fault) -> None:
        if self._world.stopping.wait(fault.seconds) or fault.then == "close":
            self._end(reset=False)

    def _end(self, reset: bool) -> None:
        """Log, and no answer: the connection is over."""
        self._world.log.add(self._record)
        if reset:
            self._wire.reset()
        raise Ended


def _flipped(body: Data, at: int) -> Data:
    copy = bytearray(body)
    if copy:
        copy[min(at, len(copy) - 1)] ^= 1
    return copy
