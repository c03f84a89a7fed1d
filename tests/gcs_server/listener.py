"""The server's socket, a thread for each connection, and the tests' own door."""

import contextlib
import socket
import threading
from dataclasses import asdict, replace
from urllib.parse import unquote

from tests.gcs_server.calls import json_body
from tests.gcs_server.exchange import Ended, Exchange, Link, Wire
from tests.gcs_server.faults import Fault
from tests.gcs_server.messages import (
    ApiError,
    ProtocolError,
    Request,
    Response,
    json_response,
    missing_object,
    parse_head,
    response,
)
from tests.gcs_server.objects import Bucket, Conditions, StoredObject
from tests.gcs_server.world import World


def control(world: World, request: Request) -> Response:
    """Carry out what a `GcsServer` asks for."""
    parts = [unquote(part) for part in request.path.split("/")[2:]]
    try:
        if parts[0] == "objects" and len(parts) > 1:
            return _object(world, request, parts[1], "/".join(parts[2:]))
        return json_response(_command(world, request, parts))
    except ApiError as error:
        return response(error, "json")
    except (TypeError, ValueError) as error:
        return response(ApiError(400, str(error)), "json")


def _command(world: World, request: Request, parts: list[str]) -> object:
    result: object = None
    match (request.method, *parts):
        case ("GET", "log"):
            result = [asdict(record) for record in world.log.records()]
        case ("DELETE", "log"):
            world.log.clear()
        case ("POST", "faults"):
            world.faults.add(Fault(**json_body(request)))
        case ("DELETE", "faults"):
            world.faults.clear()
        case ("POST", "settings"):
            world.settings = replace(world.settings, **json_body(request))
        case ("POST", "buckets"):
            world.vault.buckets.create(Bucket(**json_body(request)), replace_rules=True)
        case ("GET", "authority"):
            result = str(world.authority.certificate_file())
        case ("GET", "uploads"):
            result = len(world.vault.uploads)
        case _:
            raise ApiError(404, f"{request.method} {request.path}: no such control")
    return result


def _object(world: World, request: Request, bucket: str, name: str) -> Response:
    buckets = world.vault.buckets
    if request.method == "PUT":
        attributes: dict[str, object] = {"contentType": request.headers.get("content-type", "application/octet-stream")}
        draft = StoredObject(bucket, name, request.body, 0, attributes=attributes)
        return json_response(str(world.vault.store(draft, Conditions()).generation))
    if not name:
        return json_response(list(buckets.bucket(bucket).names))
    live = buckets.live(bucket, name)
    if live is None:
        raise missing_object(bucket, name)
    if request.method == "DELETE":
        buckets.change(bucket, name, lambda _: None)
        return json_response(None)
    return Response(200, {"X-Goog-Generation": str(live.generation)}, live.data)


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


class Listener:
    """Listens on 127.0.0.1 from the start; serves from `start` to `stop`."""

    def __init__(self, world: World, port: int = 0):
        self._world = world
        self._socket = socket.create_server(("127.0.0.1", port), backlog=1024)
        self.port: int = self._socket.getsockname()[1]
        self._lock = threading.Lock()
        self._connections: dict[Connection, threading.Thread] = {}
        self._thread = threading.Thread(target=self._accept, name=f"gcs-server-{self.port}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End every connection and wait for its thread; what stalls wakes up."""
        self._world.stopping.set()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # close alone wakes no accept
        if self._thread.ident is not None:
            self._thread.join(5)
        self._socket.close()
        with self._lock:
            left = list(self._connections.items())
        for connection, _ in left:
            connection.wire.hang_up()
        for _, thread in left:
            thread.join(5)
        self._world.authority.close()

    def _accept(self) -> None:
        number = 0
        while not self._world.stopping.is_set():
            try:
                sock, _ = self._socket.accept()
            except OSError:
                return
            number += 1
            connection = Connection(Wire(sock), self._world, number)
            thread = threading.Thread(target=self._serve, args=(connection,), name=f"gcs-{number}", daemon=True)
            with self._lock:
                self._connections[connection] = thread
            thread.start()

    def _serve(self, connection: Connection) -> None:
        try:
            connection.serve()
        finally:
            with self._lock:
                del self._connections[connection]
