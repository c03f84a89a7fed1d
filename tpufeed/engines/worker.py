"""The entry point of a child process: `python -m tpufeed.engines.worker DESCRIPTOR ENTRY LAUNCHER`. See `child`."""

import importlib
import os
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from multiprocessing.connection import Connection

from tpufeed.engines.child import Failure, fill_streams
from tpufeed.engines.engine import load_function
from tpufeed.errors import LoaderError

_WATCH_SECONDS = 1.0
_LEAVE_SECONDS = 30.0  # the process in which Beam works has to cancel a pipeline, which takes a service 20


def main(descriptor: int, entry: str, launcher: int) -> None:
    """Run what `Child.begin` asks for, until the launcher's end of the socket closes.

    The module of `entry` is imported before anything is asked for, which may be long in coming.
    """
    fill_streams()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the launcher decides
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # the launcher has blocked it until here
    os.set_inheritable(descriptor, False)  # or what a framework executes here would keep the launcher waiting
    connection = Connection(descriptor)
    threading.Thread(target=_watch, args=[launcher, connection], name="tpufeed-watch", daemon=True).start()
    with suppress(ImportError):  # it is said below
        importlib.import_module(entry.partition(":")[0])
    try:
        try:
            wanted, context = connection.recv()
            load_function(entry)
            function = load_function(wanted)
        except (ImportError, AttributeError) as error:
            advice = "Move what `__main__` defines into a module that can be imported, or take one worker"
            text = f"a worker process cannot import what the job needs: {error}. {advice}"
            connection.send(Failure(LoaderError.__name__, text))
            return
        function(context, connection)
    except (EOFError, ConnectionError):
        return
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it is leaving already


def _watch(launcher: int, connection: Connection) -> None:
    """Hang up when the launcher has died.

    The socket says so at once, but not where the launcher has forked: that fork holds its end open. PR_SET_PDEATHSIG
    would come when the launcher's *thread* ends that has started this process.
    """
    parent = os.getppid()  # the launcher, unless a script that starts Python stays between the two
    while os.getppid() == parent and _lives(launcher):
        time.sleep(_WATCH_SECONDS)
    with suppress(OSError), socket.socket(fileno=os.dup(connection.fileno())) as ours:
        ours.shutdown(socket.SHUT_RDWR)
    time.sleep(_LEAVE_SECONDS)
    os._exit(1)  # an op of the user's, or a drive, does not return


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
