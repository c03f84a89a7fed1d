"""The tests' local GCS server as a process of its own, for benchmarks and the demo: in memory, as slow as a link."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.entry import ROOT

if TYPE_CHECKING:
    from tests.gcs_server import GcsServer

LATENCY_MS, CONNECTION_MB_PER_SECOND = 30, 50


@contextmanager
def serve(folder: Path | None = None) -> Iterator["GcsServer"]:
    """A server with the files FOLDER/BUCKET/NAME, else with an empty bucket "bucket".

    gs:// URLs lead to it, in this process and in those that it starts, until the end of the context.
    """
    from tests.gcs_server import GcsServer

    command = [sys.executable, "-m", "tests.gcs_server", "--stop-with-stdin", "--no-md5"]
    command += ["--bucket", "bucket"] if folder is None else ["--folder", str(folder)]
    before = dict(os.environ)
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            if "=" not in line:
                raise RuntimeError(f"{' '.join(command)} did not start, exit status {process.wait()}")
            server = GcsServer.attach(line.strip().partition("=")[2])
            os.environ.update(server.environment())
            set_link(server)
            yield server
        finally:
            process.stdin.close()
            for name in ("STORAGE_EMULATOR_HOST", "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"):
                os.environ.pop(name, None)
                os.environ.update({name: before[name]} if name in before else {})


def set_link(server: "GcsServer", limited: bool = True) -> None:
    """30 ms a request and 50 MB/s a connection, or neither delay nor limit."""
    rate = CONNECTION_MB_PER_SECOND * 1e6 if limited else 0.0
    server.configure(latency_ms=LATENCY_MS if limited else 0.0, connection_bytes_per_second=rate)
