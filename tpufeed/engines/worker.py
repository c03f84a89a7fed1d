"""The entry point of a worker process: `python -m tpufeed.engines.worker DESCRIPTOR`."""

import signal
import sys
import traceback
from multiprocessing.connection import Connection

from tpufeed.engines.engine import Done, Job
from tpufeed.errors import TpufeedError


def main(descriptor: int) -> None:
    """Take a job, then run its tasks as they come, until the launcher's end of the socket closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the launcher decides
    connection = Connection(descriptor)
    try:
        job: Job = connection.recv()
        function = job.load()
        while True:
            index, task = connection.recv()
            try:
                function(job.context, task, connection.send)
            except TpufeedError as error:
                connection.send(str(error))
            except Exception:  # noqa: BLE001  # a bug: the launcher shows it whole
                connection.send(traceback.format_exc())
            else:
                connection.send(Done(index))
    except (EOFError, ConnectionError):
        return


if __name__ == "__main__":
    main(int(sys.argv[1]))
