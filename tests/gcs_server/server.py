"""The server as a test holds it."""

import http.client
import json
import subprocess
import sys
from collections.abc import Collection, Sequence
from dataclasses import asdict
from fnmatch import fnmatchcase
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING
from urllib.parse import quote

from tests.gcs_server.faults import Fault, Record
from tests.gcs_server.listener import Listener
from tests.gcs_server.objects import Bucket, Vault
from tests.gcs_server.world import Settings, World

if TYPE_CHECKING:
    from tests.gcs_server.rapid import RapidServer

_ROOT = Path(__file__).parents[2]


class GcsServer:
    """A GCS on 127.0.0.1, from `with` on or `start()`: in threads of this process, or a process of its own.

    Faults are set and the log is read over HTTP, so all of it works from any process that has the URL. Thread-safe.
    Where this process forks while connections are open, take `process=True`: a forked child holds copies of the
    sockets, and a connection that is reset here is not reset there.

    Attributes:
        url: for STORAGE_EMULATOR_HOST.
        buckets: exist from the start.
    """

    def __init__(
        self,
        buckets: Sequence[str] = ("bucket",),
        *,
        latency_ms: float = 0.0,
        connection_bytes_per_second: float = 0.0,
        port: int = 0,
        process: bool = False,
        md5: bool = True,
    ):
        """`port` 0 is a free one; without `md5` uploads are faster, and objects have a crc32c only."""
        self.buckets = tuple(buckets)
        self.url = ""
        self._settings = Settings(latency_ms, connection_bytes_per_second)
        self._port, self._in_process, self._md5 = port, process, md5
        self._listener: Listener | None = None
        self._process: subprocess.Popen[str] | None = None
        self._vault = Vault(md5)

    @classmethod
    def attach(cls, url: str) -> "GcsServer":
        """The server that somebody else started at `url`; `stop` leaves it alone."""
        server = cls(())
        server.url = url.rstrip("/")
        return server

    def __enter__(self) -> "GcsServer":
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> "GcsServer":
        if self.url:
            return self
        if self._in_process:
            self._spawn()
            return self
        world = World(self._vault, self._settings)
        for name in self.buckets:
            world.vault.buckets.create(Bucket(name))
        self._listener = Listener(world, self._port)
        self.url = f"http://127.0.0.1:{self._listener.port}"
        self._listener.start()
        return self

    def stop(self) -> None:
        if self._listener is not None:
            self._listener.stop()
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.communicate(timeout=20)
            except subprocess.TimeoutExpired:  # somebody has stopped it
                self._process.kill()
                self._process.communicate()
        self._listener = self._process = None
        self.url = ""

    @property
    def pid(self) -> int | None:
        """Of the server's own process."""
        return self._process.pid if self._process else None

    def environment(self) -> dict[str, str]:
        """For google-cloud-storage and gcsfs; set it before gcsfs is imported."""
        return {"STORAGE_EMULATOR_HOST": self.url, "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false"}

    def tensorflow_environment(self) -> dict[str, str]:
        """For TensorFlow's own gs:// client, in a process that has not opened one yet."""
        return {
            "https_proxy": self.url,
            "CURL_CA_BUNDLE": str(self._control("GET", "authority")),
            "NO_GCE_CHECK": "true",
            "GOOGLE_AUTH_TOKEN_FOR_TESTING": "x",
        }

    def configure(self, **settings: float) -> None:
        """Change `latency_ms`, `connection_bytes_per_second`, from the next request on."""
        self._control("POST", "settings", settings)

    def create_bucket(self, name: str, **rules: str | int) -> None:
        """`refuses` is 401 or 403 for every call on it. One that exists keeps its objects and takes the new rules."""
        self._control("POST", "buckets", {"name": name, **rules})

    def zonal(self, bucket: str) -> "RapidServer":
        """Make the bucket a zonal one, and return its gRPC side, for `with`. Of a server in this process only."""
        from tests.gcs_server.rapid import RapidServer

        self.create_bucket(bucket, location="US-CENTRAL1-A", location_type="zone")
        return RapidServer(self._vault)

    def put(self, bucket: str, name: str, data: bytes) -> str:
        """Store an object past faults and log; returns its generation."""
        return str(self._control("PUT", f"objects/{bucket}/{quote(name)}", data))

    def get(self, bucket: str, name: str) -> bytes:
        """Its bytes, past faults and log. Raises KeyError."""
        return self._request("GET", f"objects/{bucket}/{quote(name)}")

    def remove(self, bucket: str, name: str) -> None:
        self._request("DELETE", f"objects/{bucket}/{quote(name)}")

    def names(self, bucket: str) -> list[str]:
        """All objects' names, sorted."""
        found = self._control("GET", f"objects/{bucket}")
        assert isinstance(found, list)
        return found

    def fault(self, action: str, **rule: object) -> Fault:
        """Add a rule to the script: see `Fault`. Unless `calls` says otherwise, the first matching call meets it."""
        if isinstance(calls := rule.get("calls"), Collection):
            rule["calls"] = tuple(calls)
        fault = Fault(action=action, **rule)  # type: ignore[arg-type]
        self._control("POST", "faults", asdict(fault))
        return fault

    def clear_faults(self) -> None:
        self._control("DELETE", "faults")

    def unfinished_uploads(self) -> int:
        """Resumable uploads that were begun, and neither finished nor cancelled."""
        found = self._control("GET", "uploads")
        assert isinstance(found, int)
        return found

    @property
    def log(self) -> list[Record]:
        """All requests so far, in the order of their answers."""
        found = self._control("GET", "log")
        assert isinstance(found, list)
        return [Record(**record) for record in found]

    def requests(self, **patterns: str | int) -> list[Record]:
        """Those of `log` whose attributes match, as in `requests(operation="read", name="*.tfrecord", status=206)`."""
        return [
            record
            for record in self.log
            if all(
                fnmatchcase(str(getattr(record, key)), wanted)
                if isinstance(wanted, str)
                else getattr(record, key) == wanted
                for key, wanted in patterns.items()
            )
        ]

    def clear_log(self) -> None:
        self._control("DELETE", "log")

    def _spawn(self) -> None:
        command = [sys.executable, "-m", "tests.gcs_server", "--stop-with-stdin", "--port", str(self._port)]
        command += ["--latency-ms", str(self._settings.latency_ms)]
        command += ["--connection-mb-per-second", str(self._settings.connection_bytes_per_second / 1e6)]
        command += [] if self._md5 else ["--no-md5"]
        for name in self.buckets:
            command += ["--bucket", name]
        self._process = subprocess.Popen(
            command, cwd=_ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=None
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if "=" not in line:
            self._process.communicate()
            raise RuntimeError(f"{' '.join(command)} did not start, exit status {self._process.returncode}")
        self.url = line.strip().partition("=")[2]

    def _control(self, method: str, path: str, value: object = None) -> object:
        return json.loads(self._request(method, path, value))

    def _request(self, method: str, path: str, value: object = None) -> bytes:
        body = value if isinstance(value, bytes | bytearray | memoryview) else json.dumps(value).encode()
        connection = http.client.HTTPConnection(self.url.removeprefix("http://"), timeout=60)
        try:
            connection.request(method, f"/_control/{path}", b"" if value is None else body)
            answer = connection.getresponse()
            found = answer.read()
        finally:
            connection.close()
        if answer.status == 404:
            raise KeyError(found.decode())
        if answer.status != 200:
            raise ValueError(found.decode())
        return found
