"""A client's connection: bytes in, bytes out, at the speed of a link."""

import contextlib
import socket
import ssl
import struct

from tests.gcs_server.messages import Data, ProtocolError
from tests.gcs_server.throttle import Throttle

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
            if len(self._ahead) > _HEAD_LIMIT:
                raise ProtocolError("the head of a request is longer than 64 KiB")
            piece = self._sock.recv(_HEAD_LIMIT)
            if not piece:
                return None
            self._ahead += piece
        head = bytes(self._ahead[:end])
        del self._ahead[: end + 4]
        return head

    def read_line(self) -> bytes:
        while (end := self._ahead.find(b"\r\n")) < 0:
            self._ahead += self._some()
        line = bytes(self._ahead[:end])
        del self._ahead[: end + 2]
        return line

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

    def _some(self) -> bytes:
        piece = self._sock.recv(_HEAD_LIMIT)
        if not piece:
            raise ConnectionError("the client went in the middle of a body")
        return piece
