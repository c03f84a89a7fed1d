"""Beam's own job server in a process: `python -m tests.engines.beam_server FOLDER`.

Writes a file `port` into the folder, and a file `cancelled-...` for each pipeline that it is told to cancel.
"""

import sys
import time
from pathlib import Path

from apache_beam.runners.portability.local_job_service import LocalJobServicer


class JobServer(LocalJobServicer):
    folder: Path

    def Cancel(self, request, context=None):  # it is called so
        (self.folder / f"cancelled-{request.job_id}").touch()
        return super().Cancel(request, context)


if __name__ == "__main__":
    server = JobServer()
    server.folder = Path(sys.argv[1])
    (server.folder / "port.new").write_text(str(server.start_grpc_server()))
    (server.folder / "port.new").rename(server.folder / "port")
    while True:
        time.sleep(60)
