"""The entry point of a worker process: `python -m tpufeed.engines.worker DESCRIPTOR ENTRY LAUNCHER`."""

import importlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection

from tpufeed.engines.engine import Done, Job, Service, failure_message
from tpufeed.engines.launch import fill_streams, wait_for_end

_LEAVE_SECONDS = 30.0  # Beam's host has to cancel a pipeline, which takes a service 20


def main(descriptor: int, entry: str, launcher: int) -> None:
    """Take a job, then run its tasks as they come, until the launcher's end of the socket closes; or serve.

    The module of `entry` is imported before there is a job, which may be long in coming.
    """
    fill_streams()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the launcher decides
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # the launcher has blocked it until here
    connection = Connection(descriptor)
    threading.Thread(target=_watch, args=[launcher, connection], name="tpufeed-watch", daemon=True).start()
    with suppress(ImportError):  # the job says so when it comes
        importlib.import_module(entry.partition(":")[0])
    try:
        job, function = _receive_job(connection)
        if isinstance(job, Service):
            function(job.context, connection)
            return
        while True:
            index, task = connection.recv()
            signal.signal(signal.SIGTERM, _leave)  # without a task there is nothing to tidy: it ends at once
            try:
                function(job.context, task, connection.send)
            except Exception as error:  # noqa: BLE001  # the launcher raises it
                connection.send(failure_message(error))
            else:
                connection.send(Done(index))
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
    except (EOFError, ConnectionError):
        return
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it is leaving already


def _watch(launcher: int, connection: Connection) -> None:
    """Hang up when the launcher has died."""
    wait_for_end(launcher)
    with suppress(OSError), socket.socket(fileno=os.dup(connection.fileno())) as ours:
        ours.shutdown(socket.SHUT_RDWR)
    time.sleep(_LEAVE_SECONDS)
    os._exit(1)  # an op of the user's, or a drive, does not return


def _leave(number: int, _: object) -> None:
    """By an exception, so that temporary folders are removed on the way. Once: no second one should keep that."""
    signal.signal(number, signal.SIG_IGN)
    sys.exit(128 + number)


def _receive_job(connection: Connection) -> tuple[Job | Service, Callable[..., None]]:
    try:
        job: Job | Service = connection.recv()
        return job, job.load()
    except (ImportError, AttributeError) as error:
        connection.send(
            f"a worker process cannot import what the job needs: {error}. Move what `__main__` defines into a module "
            "that can be imported, or take one worker"
        )
        raise EOFError from error


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
