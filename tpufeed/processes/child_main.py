"""The entry point of a child process: `python -m tpufeed.processes.child_main DESCRIPTOR ENTRY LAUNCHER [forks]`.

See `child`. With `forks` it is a fork server: it forks children, kills them on request, and reports how they end.
"""

import ctypes
import gc
import importlib
import os
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from multiprocessing.connection import wait
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from tpufeed.errors import LoaderError
from tpufeed.processes.channel import Channel
from tpufeed.processes.child import LAUNCHERS_SIGNALS, Failure, Forked, Signal, fill_streams, no_room

_WATCH_SECONDS = 1.0
_LEAVE_SECONDS = 30.0  # after the launcher has ended: Beam's child has to cancel a pipeline, which can take 20 s
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_OOM_SCORE = Path("/proc/self/oom_score_adj")
_FIRST = 1000  # the highest score


def main(descriptor: int, entry: str, launcher: int, forks: bool) -> None:
    """Run the function that `Child.begin` names, until the launcher's end of the socket closes.

    The module of `entry` is imported in advance, because `begin` may come much later.
    """
    fill_streams()
    # If memory runs out, the system should kill this process before the launcher, which then reports it. By default it
    # kills the one with most memory: a training process, because it maps all batches.
    with suppress(OSError, ValueError):
        _OOM_SCORE.write_text(str(min(_FIRST, int(_OOM_SCORE.read_text()) + _FIRST)))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group. The launcher decides
    for number in LAUNCHERS_SIGNALS if forks else ():
        signal.signal(number, lambda *_: None)  # not SIG_IGN: the programs that a fork executes would inherit it
    # The launcher has blocked them until now, and one of its threads may have blocked SIGCHLD, too.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGCHLD, *LAUNCHERS_SIGNALS})
    os.set_inheritable(descriptor, False)  # or a program that a framework executes here would keep the launcher waiting
    connection = Channel(descriptor)
    if forks:
        _import(entry)
        forked = _ForkServer(connection).serve(_LauncherWatch(launcher))
        if forked is None:
            return
        connection = forked  # this process is one of the forks
    try:
        threading.Thread(target=_watch, args=[launcher, connection], name="tpufeed-watch", daemon=True).start()
    except RuntimeError as error:
        connection.send(Failure.of(error, "a worker process cannot start: "))
        return
    _import(entry)
    try:
        try:
            wanted, context = connection.recv()
            resolve_name(entry)
            function = resolve_name(wanted)
        except (ImportError, AttributeError) as error:
            connection.send(_cannot_import(error))
            return
        function(context, connection)
    except (EOFError, ConnectionError):
        return
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it is exiting already


def _import(entry: str) -> None:
    with suppress(ImportError):  # reported when the function is requested
        importlib.import_module(entry.partition(":")[0])


def _watch(launcher: int, connection: Channel) -> None:
    """Hang up when the launcher has died.

    The socket closes at once, unless a fork of the launcher holds its end open. PR_SET_PDEATHSIG would come too early:
    when the launcher's *thread* that started this process ends.
    """
    watch = _LauncherWatch(launcher)
    while watch.lives():
        time.sleep(_WATCH_SECONDS)
    with suppress(OSError):
        connection.hang_up()
    time.sleep(_LEAVE_SECONDS)
    os._exit(1)  # an op of the user or a drive hangs


class _LauncherWatch:
    """Watches the process that launched this one: its parent, or a descendant of a script that is the parent."""

    def __init__(self, launcher: int) -> None:
        self._launcher = launcher
        self._parent = os.getppid()

    def lives(self) -> bool:
        """Return False as soon as the launcher or the parent has ended."""
        if os.getppid() != self._parent:
            return False
        try:
            os.kill(self._launcher, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass
        return True


def _cannot_import(error: Exception) -> Failure:
    """Return the Failure of a child that could not import the function or its context."""
    return Failure(
        LoaderError.__name__,
        f"a worker process cannot import what the job needs: {error}. Move what `__main__` defines into a module that "
        "can be imported, or use one worker (processes=0 of a loader)",
    )


def _prepare(entry: str, context: Any) -> Failure | None:
    """Call a function "module:function", and return its failure, or None."""
    try:
        function = resolve_name(entry)
    except (ImportError, AttributeError) as error:
        return _cannot_import(error)
    try:
        function(context)
    except Exception as error:  # noqa: BLE001  # the launcher raises it
        return Failure.of(error, "worker processes cannot start: ")
    return None


class _ForkServer:
    """Forks children of this process, and reports to the launcher how they end."""

    def __init__(self, connection: Channel) -> None:
        self._connection = connection
        self._forks: dict[int, int] = {}  # numbers of the forks, by process id
        self._failure: Failure | None = None  # of `prepare`
        self._woken, self._alarm = socket.socketpair()  # a byte comes for each signal, such as SIGCHLD
        for end in (self._woken, self._alarm):
            end.setblocking(False)
        signal.set_wakeup_fd(self._alarm.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def serve(self, watch: _LauncherWatch) -> Channel | None:
        """Obey the launcher until it hangs up or ends, then wait for the forks to end.

        Like `os.fork`, it returns several times: in each fork with its connection, in the server with None.
        """
        try:
            while watch.lives():
                forked = self._obey(_WATCH_SECONDS)
                if forked is not None:
                    return forked
        except (EOFError, ConnectionError):  # the launcher has hung up
            pass
        deadline = time.monotonic() + _LEAVE_SECONDS
        while self._forks and time.monotonic() < deadline:  # the rest are killed with this process
            self._hear([], _WATCH_SECONDS)
        self._close()
        return None

    def _obey(self, seconds: float) -> Channel | None:
        """Wait `seconds` for an order or the end of a fork. Return the connection in a fork, else None."""
        if self._connection not in self._hear([self._connection], seconds):
            return None
        order = self._connection.recv()
        if isinstance(order, Signal):
            for process in (process for process, number in self._forks.items() if number == order.fork):
                os.kill(process, order.number)  # nobody has waited for it yet, so the process id is still its own
        elif isinstance(order, int):
            return self._fork(order, self._connection.receive_descriptor())
        else:
            self._failure = _prepare(*order)
            gc.collect()
            gc.freeze()  # a collection would write to all objects, and each fork would copy their pages
        return None

    def _close(self) -> None:
        """Stop handling signals. A later one could not write its byte to the closed socket."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for end in (self._woken, self._alarm):
            end.close()

    def _hear(self, connections: list[Channel], seconds: float) -> list[Any]:
        """Wait for one of these connections or for the end of a fork, and report that."""
        ready = wait([*connections, self._woken], seconds)
        if self._woken in ready:
            self._woken.recv(4096)
        while self._forks:
            process, status = os.waitpid(-1, os.WNOHANG)
            if not process:
                break
            number = self._forks.pop(process, None)
            if number is not None:  # else it was started by code that the interpreter ran at startup
                with suppress(
                    ConnectionError
                ):  # the launcher is gone, but the other forks may still exit by themselves
                    self._connection.send(Forked(number, process, os.waitstatus_to_exitcode(status)))
        return ready

    def _fork(self, number: int, end: int) -> Channel | None:
        os.set_inheritable(end, False)
        server = os.getpid()
        failure, process = self._failure, 0
        try:
            process = os.fork() if failure is None else 0
        except OSError as error:
            failure = Failure(LoaderError.__name__, no_room(error))
        if failure is not None:
            with Channel(end) as child, suppress(OSError):
                child.send(failure)
            self._connection.send(Forked(number, 0, 1))
            return None
        if process:
            os.close(end)
            self._forks[process] = number
            self._connection.send(Forked(number, process, None))
            return None
        self._become_a_fork(server)
        return Channel(end)

    def _become_a_fork(self, server: int) -> None:
        """Make this fork like a new interpreter."""
        self._close()
        self._connection.close()
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != server:  # the server has just ended
            os._exit(1)
        if "numpy.random" in sys.modules:  # ops of the user may use it, and each process needs different numbers
            sys.modules["numpy.random"].seed()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4:] == ["forks"])
