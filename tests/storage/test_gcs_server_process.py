"""The GCS of the tests in a process of its own, and started by hand."""

import http.client
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.gcs_server import GcsServer

_ROOT = Path(__file__).parents[2]


def _start(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.gcs_server", *arguments]
    return subprocess.Popen(command, cwd=_ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_a_server_of_its_own_obeys_the_same_object():
    with GcsServer(("one", "two"), process=True, md5=False) as server:
        assert server.pid
        generation = server.put("two", "a/b", b"data")
        server.fault("status", name="a/*", status=503, retry_after=7)
        connection = http.client.HTTPConnection(server.url.removeprefix("http://"))
        connection.request("GET", "/two/a/b")
        response = connection.getresponse()
        response.read()
        assert (response.status, response.headers["Retry-After"]) == (503, "7")
        connection.request("GET", "/two/a/b")
        assert connection.getresponse().read() == b"data"
        first, second = GcsServer.attach(server.url).log
        assert (first.fault, first.status, second.fault, second.status) == ("status", 503, "", 200)
        assert (second.generation, second.sent_bytes, second.bucket) == (generation, 4, "two")
        assert first.seconds < second.seconds < time.monotonic()
        server.clear_log()
        assert server.log == []
        with pytest.raises(ValueError, match="unexpected keyword"):
            server.configure(speed=1)
        with pytest.raises(ValueError, match="no action"):
            server.fault("explode")
        connection.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_started_by_hand(tmp_path: Path, number: signal.Signals):
    (tmp_path / "pictures" / "cats").mkdir(parents=True)
    (tmp_path / "pictures" / "cats" / "1.jpg").write_bytes(b"cat")
    process = _start("--latency-ms", "1", "--connection-mb-per-second", "50", "--folder", str(tmp_path))
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    assert line.startswith("export STORAGE_EMULATOR_HOST=http://127.0.0.1:")
    assert GcsServer.attach(line.partition("=")[2]).get("pictures", "cats/1.jpg") == b"cat"
    process.send_signal(number)
    assert process.communicate(timeout=20) == ("", "")
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--port", "65536"], "'65536' is no port"),
        (["--latency-ms", "-1"], "'-1' is no number from 0 on"),
        (["--connection-mb-per-second", "fast"], "'fast' is no number from 0 on"),
        (["--folder", "/nowhere"], "/nowhere is no folder"),
    ],
)
def test_bad_flags(arguments: list[str], message: str):
    process = _start(*arguments)
    output, errors = process.communicate(timeout=20)
    assert (process.returncode, output) == (2, "")
    assert message in errors


def test_a_port_that_is_taken():
    with GcsServer() as server:
        process = _start("--port", server.url.rpartition(":")[2])
        _, errors = process.communicate(timeout=20)
    assert process.returncode == 2
    assert "Address already in use" in errors
