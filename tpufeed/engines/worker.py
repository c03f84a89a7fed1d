"""The entry point of a worker process: `python -m tpufeed.engines.worker DESCRIPTOR ENTRY`."""

import importlib
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection

from tpufeed.engines.engine import Done, Job, Service, failure_message


def main(descriptor: int, entry: str) -> None:
    """Take a job, then run its tasks as they come, until the launcher's end of the socket closes; or serve.

    The module of `entry` is imported before there is a job, which may be long in coming.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the launcher decides
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # the launcher has blocked it until here
    connection = Connection(descriptor)
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
    main(int(sys.argv[1]), sys.argv[2])
