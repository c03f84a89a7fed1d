"""The server's socket: a thread for each connection."""

import contextlib
import socket
import threading

from tests.gcs_server.connection import Connection
from tests.gcs_server.wire import Wire
from tests.gcs_server.world import World


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
