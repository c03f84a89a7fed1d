"""One client's connection: request after request."""

import contextlib

from tests.gcs_server.control import control
from tests.gcs_server.exchange import Ended, Exchange, Link
from tests.gcs_server.messages import ProtocolError, Request, Response, parse_head
from tests.gcs_server.wire import Wire
from tests.gcs_server.world import World


class Connection:
    """Serves one client until either side ends it."""

    def __init__(self, wire: Wire, world: World, number: int):
        self.wire = wire
        self._world, self._number = world, number
        self._link = Link()
        self._scheme = "http"

    def serve(self) -> None:
        """Runs in the connection's own thread; never raises for what a client does."""
        try:
            with contextlib.suppress(OSError, Ended, ProtocolError):
                while (head := self.wire.read_head()) is not None:
                    self._serve_one(parse_head(head, self._scheme))
        finally:
            self.wire.close()

    def _serve_one(self, request: Request) -> None:
        if request.method == "CONNECT":
            self._tunnel(request)
        elif request.path.startswith("/_control/"):
            body = memoryview(bytearray(request.body_bytes))
            self.wire.read_into(body)
            request.body = body
            response = control(self._world, request)
            self.wire.send(response.head(keep_alive=True), response.body)
        else:
            Exchange(self.wire, self._link, self._world, request, self._number).run()

    def _tunnel(self, request: Request) -> None:
        """A client takes us for its proxy: behind it we are that host ourselves, with TLS, if it is one of Google's."""
        if not self._world.authority.speaks_for(request.target.partition(":")[0]):
            self.wire.send(Response(403).head(keep_alive=False), b"")
            raise Ended
        self.wire.send(b"HTTP/1.1 200 Connection established\r\n\r\n", b"")
        self.wire.encrypt(self._world.authority.context())
        self._scheme = "https"
