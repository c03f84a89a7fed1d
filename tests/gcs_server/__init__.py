"""A local GCS for tests: in memory, with faults by script, for google-cloud-storage, gcsfs and TensorFlow.

    with GcsServer(["bucket"]) as server:  # process=True for one outside this process
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)  # or server.environment() for a subprocess
        server.fault("status", operation="read", name="*.tfrecord", status=503, calls=[1, 2])
        ...
        assert len(server.requests(operation="read", fault="status")) == 2

By hand: `python -m tests.gcs_server --help`.
"""

from tests.gcs_server.faults import ACTIONS, Fault, Record
from tests.gcs_server.server import GcsServer

__all__ = ["ACTIONS", "Fault", "GcsServer", "Record"]
