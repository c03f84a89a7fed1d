"""The GCS of the tests, as google-cloud-storage sees it."""

import http.client
import os
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.gcs_server import GcsServer

storage = pytest.importorskip("google.cloud.storage")
auth_exceptions = pytest.importorskip("google.auth.exceptions")
exceptions = pytest.importorskip("google.api_core.exceptions")


@pytest.fixture
def server() -> Iterator[GcsServer]:
    with GcsServer() as server:
        yield server


@pytest.fixture
def client(server: GcsServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    client = storage.Client(project="project")
    yield client
    client.close()


def test_what_is_uploaded_is_downloaded(client, server, tmp_path: Path):
    bucket, data = client.bucket("bucket"), os.urandom(1 << 20)
    file = tmp_path / "data"
    file.write_bytes(data)
    blob = bucket.blob("folder/a name with ü, % and ?.bin")
    blob.metadata = {"kind": "test"}
    blob.upload_from_filename(file, content_type="image/x", checksum="md5")
    assert server.get("bucket", blob.name) == data
    assert bucket.blob(blob.name).download_as_bytes(checksum="md5") == data
    assert bucket.blob(blob.name).download_as_bytes(checksum="crc32c") == data
    assert bucket.blob(blob.name).download_as_bytes(start=1000, end=1999) == data[1000:2000]
    found = bucket.get_blob(blob.name)
    assert (found.size, found.content_type, found.metadata) == (len(data), "image/x", {"kind": "test"})
    assert (found.generation, found.crc32c, found.md5_hash) == (blob.generation, blob.crc32c, blob.md5_hash)
    assert [record.range for record in server.requests(operation="read", status=206)] == ["bytes=1000-1999"]


def test_a_range_past_the_end_is_refused(client):
    blob = client.bucket("bucket").blob("short")
    blob.upload_from_string(b"12345")
    assert blob.download_as_bytes(start=3, end=100) == b"45"
    with pytest.raises(exceptions.RequestRangeNotSatisfiable):
        blob.download_as_bytes(start=5, end=6)


def test_resumable_uploads_in_small_chunks(client, server):
    data = os.urandom((8 << 20) + 5)  # below 8 MiB it is one request, whatever the chunk size
    blob = client.bucket("bucket").blob("big", chunk_size=2 << 20)
    blob.upload_from_string(data, if_generation_match=0)
    assert server.get("bucket", "big") == data
    assert [record.status for record in server.requests(operation="chunk", name="big")] == [308] * 4 + [200]
    assert server.unfinished_uploads() == 0
    with blob.open("wb", chunk_size=256 << 10) as stream:
        stream.write(data[: 512 << 10])
        assert server.get("bucket", "big") == data
        assert server.unfinished_uploads() == 1
        stream.write(b"the end")
    assert server.get("bucket", "big") == data[: 512 << 10] + b"the end"


@pytest.mark.parametrize("size", [10, 9 << 20])
def test_create_only(client, server, size: int):
    blob = client.bucket("bucket").blob("once")
    blob.upload_from_string(bytes(size), if_generation_match=0)
    with pytest.raises(exceptions.PreconditionFailed):
        blob.upload_from_string(b"another", if_generation_match=0)
    assert server.get("bucket", "once") == bytes(size)


def test_one_of_many_creators_wins(server):
    def create(writer: int) -> int:
        connection = http.client.HTTPConnection(server.url.removeprefix("http://"))
        connection.request("PUT", "/bucket/once", str(writer), {"x-goog-if-generation-match": "0"})
        status = connection.getresponse().status
        connection.close()
        return status

    with ThreadPoolExecutor(16) as threads:
        statuses = list(threads.map(create, range(64)))
    assert sorted(statuses) == [200] + [412] * 63
    assert server.get("bucket", "once") == str(statuses.index(200)).encode()


def test_generations(client):
    bucket = client.bucket("bucket")
    blob = bucket.blob("object")
    blob.upload_from_string(b"old")
    old = blob.generation
    blob.upload_from_string(b"new", if_generation_match=old)
    assert blob.generation > old
    assert bucket.blob("object", generation=blob.generation).download_as_bytes() == b"new"
    with pytest.raises(exceptions.NotFound):
        bucket.blob("object", generation=old).download_as_bytes()
    with pytest.raises(exceptions.PreconditionFailed):
        blob.upload_from_string(b"newer", if_generation_match=old)
    with pytest.raises(exceptions.PreconditionFailed):
        blob.delete(if_generation_match=old)
    blob.metadata = {"a": "b"}
    blob.patch(if_metageneration_match=1)
    assert (blob.metageneration, bucket.get_blob("object").metadata) == (2, {"a": "b"})
    with pytest.raises(exceptions.PreconditionFailed):
        blob.patch(if_metageneration_match=1)


def test_listings(client, server):
    for name in ("a/1", "a/2", "a/b/3", "a0", "b/4", "c"):
        server.put("bucket", name, name.encode())

    def names(**options: object) -> tuple[list[str], list[str]]:
        found = client.list_blobs("bucket", **options)
        return [blob.name for blob in found], sorted(found.prefixes)

    assert names() == (["a/1", "a/2", "a/b/3", "a0", "b/4", "c"], [])
    assert names(prefix="a/") == (["a/1", "a/2", "a/b/3"], [])
    assert names(delimiter="/") == (["a0", "c"], ["a/", "b/"])
    assert names(prefix="a/", delimiter="/") == (["a/1", "a/2"], ["a/b/"])
    assert names(start_offset="a/2", end_offset="b/4") == (["a/2", "a/b/3", "a0"], [])
    assert names(max_results=2) == (["a/1", "a/2"], [])
    for size in range(1, 7):
        assert names(page_size=size) == names()
        assert names(page_size=size, delimiter="/") == names(delimiter="/")
    assert names(prefix="none") == ([], [])


def test_compose_copy_and_delete(client, server):
    bucket = client.bucket("bucket")
    server.put("bucket", "1", b"one")
    server.put("bucket", "2", b"two")
    joined = bucket.blob("joined")
    joined.compose([bucket.blob("1"), bucket.blob("2")], if_generation_match=0)
    assert server.get("bucket", "joined") == b"onetwo"
    assert (joined.component_count, joined.md5_hash) == (2, None)
    bucket.copy_blob(joined, bucket, "copy", if_generation_match=0)
    bucket.blob("rewritten").rewrite(joined)
    assert bucket.blob("copy").download_as_bytes(checksum="crc32c") == b"onetwo"
    joined.delete()
    with pytest.raises(exceptions.NotFound):
        joined.delete()
    assert server.names("bucket") == ["1", "2", "copy", "rewritten"]


def test_buckets_that_refuse(client, server):
    server.create_bucket("paid", requester_pays=True)
    server.create_bucket("closed", refuses=403)
    server.create_bucket("unknown", refuses=401)
    with pytest.raises(exceptions.NotFound, match="bucket does not exist"):
        client.bucket("nowhere").blob("a").upload_from_string(b"a")
    assert client.lookup_bucket("nowhere") is None
    assert client.lookup_bucket("bucket").name == "bucket"
    client.create_bucket("made").blob("a").upload_from_string(b"a")
    with pytest.raises(exceptions.BadRequest, match="requester pays"):
        client.bucket("paid").blob("a").upload_from_string(b"a")
    client.bucket("paid", user_project="p").blob("a").upload_from_string(bytes(9 << 20))
    with pytest.raises(exceptions.Forbidden):
        list(client.list_blobs("closed"))
    with pytest.raises(auth_exceptions.InvalidOperation, match="cannot be refreshed"):  # its answer to a 401
        client.bucket("unknown").blob("a").download_as_bytes()


def test_hashes_are_checked_and_given(server):
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"))

    def call(method: str, path: str, body: bytes = b"", **headers: str) -> http.client.HTTPResponse:
        connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        response = connection.getresponse()
        response.read()
        return response

    right = {"crc32c": "4waSgw==", "md5": "JfnnlDI7RTiF9RgfG2JNCw=="}  # as GCS documents them, of "123456789"
    assert call("PUT", "/bucket/a", b"123456789", x_goog_hash="crc32c=AAAAAA==").status == 400
    assert call("PUT", "/bucket/a", b"123456789", content_md5="AAAAAAAAAAAAAAAAAAAAAA==").status == 400
    assert server.names("bucket") == []
    assert call("PUT", "/bucket/a", b"123456789", x_goog_hash=f"crc32c={right['crc32c']}").status == 200
    for headers in ({}, {"range": "bytes=2-3"}):
        response = call("GET", "/bucket/a", **headers)
        assert response.headers["x-goog-hash"] == f"crc32c={right['crc32c']},md5={right['md5']}"
        assert response.headers["x-goog-stored-content-length"] == "9"
        assert response.headers["x-goog-generation"] == server.log[-1].generation
    head = call("HEAD", "/bucket/a")
    assert (head.status, head.headers["content-length"]) == (200, "9")
    assert call("HEAD", "/bucket/b").status == 404
    generation = server.requests(operation="write", status=200)[0].generation
    assert call("GET", f"/storage/v1/b/bucket/o/a?ifGenerationNotMatch={generation}").status == 304
    assert call("GET", f"/storage/v1/b/bucket/o/a?ifGenerationMatch={generation}").status == 200
    assert call("GET", "/storage/v1/b/bucket/o/a?ifGenerationMatch=1").status == 412
    assert len({record.connection for record in server.log}) == 1
    connection.close()


def test_a_resumable_upload_goes_on_from_what_is_held(server):
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"))
    quantum, data = 256 << 10, os.urandom(600_000)

    def send(where: str, body: bytes, span: str) -> tuple[int, str | None]:
        connection.request("PUT", where, body, {"Content-Range": f"bytes {span}"})
        response = connection.getresponse()
        response.read()
        return response.status, response.headers["Range"]

    connection.request("POST", "/upload/storage/v1/b/bucket/o?uploadType=resumable&name=a")
    response = connection.getresponse()
    response.read()
    where = response.headers["Location"].removeprefix(server.url)
    assert send(where, b"", "*/600000") == (308, None)
    assert send(where, data[:1000], "0-999/*")[0] == 400
    assert send(where, data[quantum:], f"{quantum}-599999/600000")[0] == 503
    assert send(where, data[:300_000], "0-299999/*") == (308, f"bytes=0-{quantum - 1}")
    assert send(where, b"", "*/600000") == (308, f"bytes=0-{quantum - 1}")
    assert send(where, data[100_000:], "100000-599999/600000")[0] == 200
    assert send(where, b"", "*/600000")[0] == 200
    assert server.get("bucket", "a") == data
    assert {record.operation for record in server.requests(name="a")} == {"start", "query", "chunk"}
    connection.close()


def test_requests_as_other_clients_write_them(server):
    def ask(text: str, body: bytes = b"") -> bytes:
        with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), timeout=10) as connection:
            connection.sendall(text.replace("\n", "\r\n").encode() + body)
            connection.shutdown(socket.SHUT_WR)
            return b"".join(iter(lambda: connection.recv(65536), b""))

    chunked = ask("PUT /bucket/a HTTP/1.1\nTransfer-Encoding: chunked\n\n", b"3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n")
    assert chunked.startswith(b"HTTP/1.1 200")
    assert server.get("bucket", "a") == b"abcde"
    expecting = ask("PUT /bucket/b HTTP/1.1\nContent-Length: 2\nExpect: 100-continue\n\nhi")
    assert expecting.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200")
    two = ask("GET /bucket/a HTTP/1.1\nRange: bytes=-2\n\nGET /bucket/a HTTP/1.1\nRange: bytes=0-\n\n")
    assert two.count(b"HTTP/1.1 206") == 2
    assert two.endswith(b"abcde")
    assert b"content-range: bytes 3-4/5\r\n" in two.lower()
    assert b"<Code>NoSuchKey</Code>" in ask("GET /bucket/none HTTP/1.0\n\n")
    assert b"<Code>NoSuchBucket</Code>" in ask("GET /nowhere/a HTTP/1.1\nConnection: close\n\n")
    assert ask("nonsense\n\n") == b""
    assert ask("CONNECT example.com:443 HTTP/1.1\n\n").startswith(b"HTTP/1.1 403")
    assert b'"reason": "parseError"' in ask("POST /storage/v1/b HTTP/1.1\nContent-Length: 1\n\n{")
