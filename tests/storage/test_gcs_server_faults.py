"""Faults by script: each fires, is seen by a client, and stands in the log."""

import http.client
import os
import time
from collections.abc import Iterator

import pytest

from tests.gcs_server import ACTIONS, GcsServer

_DATA = os.urandom(1 << 20)
_HALF = len(_DATA) // 2


@pytest.fixture
def server() -> Iterator[GcsServer]:
    with GcsServer() as server:
        server.put("bucket", "data", _DATA)
        yield server


def _call(server: GcsServer, method: str, path: str, body: bytes = b"", **headers: str) -> http.client.HTTPResponse:
    """The answer to one request over a connection of its own; its `data` are its body."""
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=10)
    try:
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        response.data = response.read()  # type: ignore[attr-defined]
        return response
    finally:
        connection.close()


def _read(server: GcsServer) -> bytes:
    return _call(server, "GET", "/bucket/data").data


@pytest.mark.parametrize("status", [401, 403, 408, 429, 500, 502, 503, 504])
def test_statuses(server, status: int):
    server.fault("status", operation="read", status=status, retry_after=3, calls=[1, 3])
    answers = [_call(server, "GET", "/storage/v1/b/bucket/o/data?alt=media") for _ in range(4)]
    assert [answer.status for answer in answers] == [status, 200, status, 200]
    assert answers[0].headers["Retry-After"] == "3"
    assert [record.fault for record in server.log] == ["status", "", "status", ""]


def test_a_reset_instead_of_an_answer(server):
    server.fault("reset", method="PUT", name="n*")
    with pytest.raises(ConnectionResetError):
        _call(server, "PUT", "/bucket/new", _DATA)
    assert server.names("bucket") == ["data"]
    (record,) = server.requests(fault="reset")
    assert (record.status, record.received_bytes) == (0, len(_DATA))


def test_a_reset_in_the_middle(server):
    server.fault("reset_midway", calls=None)
    with pytest.raises((ConnectionResetError, http.client.IncompleteRead)):
        _read(server)
    with pytest.raises((ConnectionResetError, BrokenPipeError)):
        _call(server, "PUT", "/bucket/new", bytes(64 << 20))
    assert server.names("bucket") == ["data"]
    read, put = server.log
    assert (read.fault, read.status, read.sent_bytes) == ("reset_midway", 200, _HALF)
    assert (put.fault, put.status, put.received_bytes) == ("reset_midway", 0, 32 << 20)


def test_a_chunk_that_breaks_off_is_held_in_part(server):
    where = _call(server, "POST", "/upload/storage/v1/b/bucket/o?uploadType=resumable&name=a").headers["Location"]
    path = where.removeprefix(server.url)
    server.fault("reset_midway", operation="chunk", name="a", after_bytes=600_000)
    with pytest.raises((ConnectionResetError, BrokenPipeError)):
        _call(server, "PUT", path, _DATA, **{"Content-Range": f"bytes 0-{len(_DATA) - 1}/{len(_DATA)}"})
    held = _call(server, "PUT", path, **{"Content-Range": f"bytes */{len(_DATA)}"})
    assert (held.status, held.headers["Range"]) == (308, "bytes=0-524287")
    span = f"bytes 524288-{len(_DATA) - 1}/{len(_DATA)}"
    assert _call(server, "PUT", path, _DATA[524288:], **{"Content-Range": span}).status == 200
    assert server.get("bucket", "a") == _DATA


def test_a_lost_answer(server):
    server.fault("lose_response", operation="write")
    with pytest.raises(ConnectionResetError):
        _call(server, "PUT", "/bucket/new", b"stored", **{"x-goog-if-generation-match": "0"})
    assert server.get("bucket", "new") == b"stored"
    assert _call(server, "PUT", "/bucket/new", b"stored", **{"x-goog-if-generation-match": "0"}).status == 412
    assert [(record.fault, record.status) for record in server.log] == [("lose_response", 200), ("", 412)]


def test_a_truncated_body(server):
    server.fault("truncate", after_bytes=1000)
    with pytest.raises(http.client.IncompleteRead) as caught:
        _read(server)
    assert caught.value.partial == _DATA[:1000]
    assert caught.value.expected == len(_DATA) - 1000
    assert server.requests(fault="truncate", status=200, sent_bytes=1000)


def test_a_corrupt_body_under_the_true_hash(server):
    server.fault("corrupt", after_bytes=5)
    bad, good = (_call(server, "GET", "/bucket/data") for _ in range(2))
    assert bad.headers["x-goog-hash"] == good.headers["x-goog-hash"]
    assert [at for at, (left, right) in enumerate(zip(bad.data, _DATA, strict=True)) if left != right] == [5]
    assert good.data == _DATA == server.get("bucket", "data")
    assert len(server.requests(fault="corrupt")) == 1


def test_an_upload_that_is_damaged_on_its_way_is_refused(server):
    server.fault("corrupt", operation="write")
    answers = [_call(server, "PUT", "/bucket/a", b"123456789", **{"x-goog-hash": "crc32c=4waSgw=="}) for _ in range(2)]
    assert [answer.status for answer in answers] == [400, 200]


def test_stalls(server):
    server.fault("stall", seconds=0.2, name="data")
    server.fault("stall", seconds=0.2, after_bytes=10, calls=[2])
    server.fault("stall", seconds=0.2, after_bytes=10, then="close", calls=[3])
    server.fault("stall", seconds=0.2, then="close", calls=[4])
    server.fault("stall", seconds=0.2, after_bytes=10, calls=[5])
    started = time.monotonic()
    assert _read(server) == _DATA
    assert _read(server) == _DATA
    with pytest.raises(http.client.IncompleteRead):
        _read(server)
    with pytest.raises(http.client.RemoteDisconnected):
        _read(server)
    assert _call(server, "PUT", "/bucket/put", _DATA).status == 200
    assert time.monotonic() - started >= 1
    assert [(record.fault, record.status) for record in server.log] == [
        ("stall", 200), ("stall", 200), ("stall", 200), ("stall", 0), ("stall", 200),
    ]  # fmt: skip


def test_a_server_that_stops_waits_for_no_stall(server):
    server.fault("stall", seconds=3600, after_bytes=10)
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=10)
    connection.request("GET", "/bucket/data")
    response = connection.getresponse()
    server.stop()
    with pytest.raises((http.client.IncompleteRead, ConnectionResetError)):
        response.read()
    connection.close()


def test_slow_links_and_latency(server):
    server.fault("slow", bytes_per_second=4e6, calls=[1])
    started = time.monotonic()
    assert _read(server) == _DATA
    assert time.monotonic() - started >= 0.26
    server.configure(connection_bytes_per_second=4e6, latency_ms=50)
    started = time.monotonic()
    assert _read(server) == _DATA
    assert _call(server, "PUT", "/bucket/put", _DATA).status == 200
    assert time.monotonic() - started >= 0.62
    assert [record.fault for record in server.log] == ["slow", "", ""]


def test_what_matches(server):
    server.fault("status", method="GET", path="*alt=media*", status=500, calls=None)
    assert _call(server, "GET", "/storage/v1/b/bucket/o/data?alt=media").status == 500
    assert _call(server, "GET", "/storage/v1/b/bucket/o/data").status == 200
    assert _call(server, "GET", "/bucket/data").status == 200
    server.clear_faults()
    server.fault("status", operation="list", status=500)
    assert _call(server, "GET", "/storage/v1/b/bucket/o").status == 500
    assert _call(server, "GET", "/storage/v1/b/bucket/o").status == 200
    with pytest.raises(ValueError, match="bytes_per_second"):
        server.fault("slow")
    assert len(ACTIONS) == 8


def test_google_cloud_storage_tries_again(server, monkeypatch: pytest.MonkeyPatch):
    storage = pytest.importorskip("google.cloud.storage")
    retry = pytest.importorskip("google.cloud.storage.retry").DEFAULT_RETRY.with_delay(initial=0.01)
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
    client = storage.Client(project="project")
    blob = client.bucket("bucket").blob("data")
    server.fault("status", operation="read", status=429)
    server.fault("reset", operation="read", calls=[2])
    server.fault("reset_midway", operation="read", calls=[3])
    assert blob.download_as_bytes(retry=retry) == _DATA
    faults = [record.fault for record in server.requests(operation="read")]
    assert faults[:3] == ["status", "reset", "reset_midway"]
    assert faults[-1] == ""
    server.fault("corrupt", operation="read")
    with pytest.raises(Exception, match=r"[Cc]hecksum"):
        blob.download_as_bytes(retry=retry)
    client.close()
