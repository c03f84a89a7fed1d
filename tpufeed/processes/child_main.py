"""The entry point of a child process: `python -m tpufeed.processes.child_main DESCRIPTOR ENTRY LAUNCHER [forks]`.

See `child`; with `forks` it is a fork server, see `forking`.
"""

import importlib
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from pkgutil import resolve_name

from tpufeed.processes.channel import Channel
from tpufeed.processes.child import LAUNCHERS_SIGNALS, Failure, fill_streams
from tpufeed.processes.forking import LauncherWatch, cannot_import, serve_forks

_WATCH_SECONDS = 1.0
_LEAVE_SECONDS = 30.0  # the process in which Beam works has to cancel a pipeline, which takes a service 20


def main(descriptor: int, entry: str, launcher: int, forks: bool) -> None:
    """Run what `Child.begin` asks for, until the launcher's end of the socket closes.

    The module of `entry` is imported before anything is asked for, which may be long in coming.
    """
    fill_streams()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the launcher decides
    for number in LAUNCHERS_SIGNALS if forks else ():
        signal.signal(number, lambda *_: None)  # not ignored, as what a fork executes would ignore them, too
    # The launcher has blocked them until here, and a thread of it may have blocked SIGCHLD, too.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGCHLD, *LAUNCHERS_SIGNALS})
    os.set_inheritable(descriptor, False)  # or what a framework executes here would keep the launcher waiting
    connection = Channel(descriptor)
    if forks:
        _import(entry)
        forked = serve_forks(connection, LauncherWatch(launcher))
        if forked is None:
            return
        connection = forked  # this process is one of the forks
    try:
        threading.Thread(target=_watch, args=[launcher, connection], name="tpufeed-watch", daemon=True).start()
    except RuntimeError as error:
        connection.send(Failure.of(error, "a worker process cannot begin: "))
        return
    _import(entry)
    try:
        try:
            wanted, context = connection.recv()
            resolve_name(entry)
            function = resolve_name(wanted)
        except (ImportError, AttributeError) as error:
            connection.send(cannot_import(error))
            return
        function(context, connection)
    except (EOFError, ConnectionError):
        return
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it is leaving already


def _import(entry: str) -> None:
    with suppress(ImportError):  # reported when the function is asked for
        importlib.import_module(entry.partition(":")[0])


def _watch(launcher: int, connection: Channel) -> None:
    """Hang up when the launcher has died.

    The socket closes at once, unless a fork of the launcher holds its end open. PR_SET_PDEATHSIG would come too early:
    when the launcher's *thread* ends that has started this process.
    """
    watch = LauncherWatch(launcher)
    while watch.lives():
        time.sleep(_WATCH_SECONDS)
    with suppress(OSError):
        connection.hang_up()
    time.sleep(_LEAVE_SECONDS)
    os._exit(1)  # an op of the user's, or a drive, does not return


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4:] == ["forks"])
