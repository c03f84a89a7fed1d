"""The process of a `ForkServer`: it forks children, kills them when it is told to, and tells how they end."""

import ctypes
import gc
import os
import signal
import socket
import sys
import time
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import recv_handle
from typing import Any

from tpufeed.engines.child import Failure, Forked, Signal, no_room
from tpufeed.engines.engine import load_function
from tpufeed.errors import LoaderError

_WATCH_SECONDS = 1.0
_LEAVE_SECONDS = 30.0  # for forks to end whose launcher has
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


class LauncherWatch:
    """Whether the process that has launched this one lives: its parent, or what a script starts that is the parent."""

    def __init__(self, launcher: int) -> None:
        self._launcher = launcher
        self._parent = os.getppid()

    def lives(self) -> bool:
        """Return false as soon as the launcher or the parent has ended."""
        if os.getppid() != self._parent:
            return False
        try:
            os.kill(self._launcher, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass
        return True


def serve_forks(connection: Connection, watch: LauncherWatch) -> Connection | None:
    """Obey the launcher until it hangs up or ends, and then wait for the forks to end.

    Returns more than once, as `os.fork` does: in each fork with its connection, in the server with None.
    """
    signal.signal(signal.SIGTERM, lambda *_: None)  # who shuts a machine down tells all processes
    server = _Server(connection)
    try:
        while watch.lives():
            forked = server.obey(_WATCH_SECONDS)
            if forked is not None:
                return forked
    except (EOFError, ConnectionError):  # the launcher has hung up
        pass
    server.wait_for_forks(_LEAVE_SECONDS)
    return None


class _Server:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._forks: dict[int, int] = {}  # their numbers, by process
        self._woken, self._alarm = socket.socketpair()  # a byte comes for each signal: for SIGCHLD, say
        for end in (self._woken, self._alarm):
            end.setblocking(False)
        signal.set_wakeup_fd(self._alarm.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def obey(self, seconds: float) -> Connection | None:
        """Wait that long for an order or the end of a fork. Returns in a fork with its connection, else with None."""
        if self._connection not in self._hear([self._connection], seconds):
            return None
        order = self._connection.recv()
        if isinstance(order, Signal):
            for process in (process for process, number in self._forks.items() if number == order.fork):
                os.kill(process, order.number)  # not waited for yet, so the number is still its own
        elif isinstance(order, int):
            return self._fork(order, recv_handle(self._connection))
        else:
            function, context = order
            load_function(function)(context)
            gc.collect()
            gc.freeze()  # a collection writes to all objects: each fork would have pages of its own
        return None

    def wait_for_forks(self, seconds: float) -> None:
        """Wait until all have ended, but no longer: the others are killed with this process."""
        deadline = time.monotonic() + seconds
        with suppress(ConnectionError):
            while self._forks and time.monotonic() < deadline:
                self._hear([], _WATCH_SECONDS)

    def _hear(self, connections: list[Connection], seconds: float) -> list[Any]:
        """Wait for one of these, or for a fork that ends, which is told."""
        ready = wait([*connections, self._woken], seconds)
        if self._woken in ready:
            self._woken.recv(4096)
        while self._forks:
            process, status = os.waitpid(-1, os.WNOHANG)
            if not process:
                break
            code = os.waitstatus_to_exitcode(status)
            self._connection.send(Forked(self._forks.pop(process), process, code))
        return ready

    def _fork(self, number: int, end: int) -> Connection | None:
        os.set_inheritable(end, False)
        server = os.getpid()
        try:
            process = os.fork()
        except OSError as error:
            with Connection(end) as child, suppress(OSError):
                child.send(Failure(LoaderError.__name__, no_room(error)))
            self._connection.send(Forked(number, 0, 1))
            return None
        if process:
            os.close(end)
            self._forks[process] = number
            self._connection.send(Forked(number, process, None))
            return None
        self._become_a_fork(server)
        return Connection(end)

    def _become_a_fork(self, server: int) -> None:
        """Be as a new interpreter is."""
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        for end in (self._connection, self._woken, self._alarm):
            end.close()
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != server:  # it has ended meanwhile
            os._exit(1)
        if "numpy.random" in sys.modules:  # an op of the user's may draw from it: not the same in each process
            sys.modules["numpy.random"].seed()
