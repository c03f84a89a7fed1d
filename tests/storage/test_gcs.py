"""What is a GcsStore's alone: URLs, credentials, processes, connections."""

import gzip
import json
import os
import pickle
import subprocess
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import google.auth
import pytest
from crc32c import crc32c
from google.auth.credentials import Credentials
from google.auth.exceptions import DefaultCredentialsError

from tests.gcs_server import GcsServer
from tpufeed.errors import AccessError, MissingExtraError, OptionError, StoreError
from tpufeed.storage import gcs_requests, gcs_transfers
from tpufeed.storage.gcs import GcsStore
from tpufeed.storage.gcs_requests import Patience
from tpufeed.storage.store import Span, open_store


@pytest.fixture(scope="module")
def running():
    with GcsServer(process=True) as server:  # one that forks reach, and that does not share this process's GIL
        yield server


@pytest.fixture
def server(running, monkeypatch):
    for key, value in running.environment().items():
        monkeypatch.setenv(key, value)
    running.clear_faults()
    for name in running.names("bucket"):
        running.remove("bucket", name)
    running.clear_log()
    return running


class Token(Credentials):
    """Credentials that work from the second token on."""

    def __init__(self, error=None):
        super().__init__()
        self.token, self.error, self.refreshed = "first", error, 0

    def refresh(self, request):
        self.refreshed += 1
        if self.error:
            raise self.error
        self.token = "second"

    @property
    def account(self):
        return "me@example.com"


@pytest.fixture
def with_credentials(server, monkeypatch):
    """Set the endpoint as users do, so that the store looks for credentials."""

    def use(default):
        monkeypatch.delenv("STORAGE_EMULATOR_HOST")
        monkeypatch.setenv("API_ENDPOINT_OVERRIDE", server.url)
        monkeypatch.setattr(google.auth, "default", default)
        monkeypatch.setattr(gcs_requests, "_sessions", {})
        return GcsStore("gs://bucket", Patience(deadline_seconds=1, first_pause_seconds=0.01))

    return use


@pytest.mark.parametrize(
    ("url", "shown", "key"),
    [
        ("gs://bucket", "gs://bucket", "a"),
        ("gs://bucket/", "gs://bucket", "a"),
        ("gs://bucket/x/y/", "gs://bucket/x/y", "x/y/a"),
        ("gcs://bucket/x", "gcs://bucket/x", "x/a"),
        ("GS://bucket/x", "gs://bucket/x", "x/a"),
        ("gs://bucket/größe#1?b=%20", "gs://bucket/größe#1?b=%20", "größe#1?b=%20/a"),
    ],
)
def test_urls(server, url, shown, key):
    store = open_store(url)
    assert isinstance(store, GcsStore)
    assert store.url == shown
    store.put("a", b"1")
    assert server.names("bucket") == [key]
    assert [info.name for info in store.iter_objects()] == ["a"]
    assert list(store.read_many([Span("a")])) == [b"1"]


@pytest.mark.parametrize("url", ["gs://", "gs:///", "gcs://", "gs:///folder"])
def test_a_url_without_a_bucket_is_no_store(url):
    with pytest.raises(OptionError, match=r"gc?s://BUCKET"):
        open_store(url)


@pytest.mark.parametrize("url", ["gs://bucket//x", "gs://bucket/../x", "gs://bucket/a/./b"])
def test_a_url_with_parts_that_are_no_names_is_no_store(url):
    with pytest.raises(OptionError, match="name"):
        open_store(url)


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "google.cloud.storage", None)
    with pytest.raises(MissingExtraError):
        gcs_requests.check_installed()
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(MissingExtraError, match=r"google-cloud-storage .*\[gcs\]"):
        open_store("gs://bucket")


def test_a_missing_aiohttp_is_named(server, monkeypatch):
    store = GcsStore("gs://bucket")
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    with pytest.raises(MissingExtraError, match=r"aiohttp .*\[gcs\]"):
        list(store.read_many([Span("a")]))


def test_importing_and_opening_load_no_client():
    program = (
        "import sys, tpufeed.storage.gcs; from tpufeed.storage.store import open_store; open_store('gs://bucket/x');"
        "clients = 'google.auth', 'google.cloud.storage', 'aiohttp', 'requests';"
        "print([name for name in clients if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_pickled_store_opens_the_same(server):
    store = GcsStore("gs://bucket/x", Patience(deadline_seconds=7))
    store.put("a", b"1")
    copy = pickle.loads(pickle.dumps(store))
    assert copy.read("a") == b"1"
    assert copy.url == store.url
    assert pickle.dumps(copy) == pickle.dumps(store)


def test_a_forked_child_reads_over_connections_of_its_own(server):
    store = GcsStore("gs://bucket")
    store.put("a", bytes(300_000))
    assert list(store.read_many([Span("a")] * 3)) == [bytes(300_000)] * 3
    pid = os.fork()
    if not pid:
        status = 1
        try:
            status = 0 if store.read("a") == bytes(300_000) == next(store.read_many([Span("a")])) else 2
        finally:
            os._exit(status)
    assert store.read("a") == bytes(300_000)
    assert os.waitpid(pid, 0)[1] == 0
    reads = server.requests(operation="read")
    assert len(reads) == 6
    assert len({record.connection for record in reads}) >= 4  # of threads and of loops, two processes each


def test_threads_keep_their_connections(server):
    store = GcsStore("gs://bucket")
    data = os.urandom(1 << 20)
    store.put("a", data)
    buffers = [bytearray(1 << 20) for _ in range(24)]
    with ThreadPoolExecutor(24) as pool:
        for _ in range(4):
            assert list(pool.map(lambda buffer: store.read_into("a", 0, memoryview(buffer)), buffers)) == [1 << 20] * 24
    assert all(buffer == data for buffer in buffers)
    assert len({record.connection for record in server.requests(operation="read")}) <= 25
    assert store.retries == 0


def test_a_listing_goes_over_pages_and_leaves_markers_of_folders_out(server):
    for number in range(1100):
        server.put("bucket", f"x/{number}", b"")
    server.put("bucket", "x/folder/", b"")
    server.put("bucket", "x/", b"")
    server.put("bucket", "x/folder/a", b"12345")
    store = GcsStore("gs://bucket/x")
    found = {info.name: info for info in store.iter_objects()}
    assert len(found) == 1101
    assert found["folder/a"] == store.stat("folder/a")
    assert found["folder/a"].crc32c == crc32c(b"12345")
    assert len(server.requests(operation="list")) == 2
    assert list(store.iter_folders()) == ["folder"]


@pytest.mark.all
def test_what_is_stored_as_gzip_comes_as_it_is_stored(server):
    stored = gzip.compress(b"text " * 1000)
    metadata = json.dumps({"name": "a.txt", "contentEncoding": "gzip", "contentType": "text/plain"}).encode()
    body = b"--x\r\nContent-Type: application/json\r\n\r\n%s\r\n--x\r\nContent-Type: text/plain\r\n\r\n%s\r\n--x--\r\n"
    request = urllib.request.Request(
        f"{server.url}/upload/storage/v1/b/bucket/o?uploadType=multipart",
        body % (metadata, stored),
        {"Content-Type": "multipart/related; boundary=x"},
    )
    urllib.request.urlopen(request).close()
    store = GcsStore("gs://bucket")
    assert store.stat("a.txt").size_bytes == len(stored)
    assert store.read("a.txt") == stored
    assert store.read_range("a.txt", 5, 500) == stored[5:500]
    assert list(store.read_many([Span("a.txt"), Span("a.txt", 3, 9)])) == [stored, stored[3:9]]


def test_a_file_that_is_put_is_left_as_it_was(server, tmp_path, monkeypatch):
    monkeypatch.setattr(gcs_transfers, "SMALL_BYTES", 1 << 20)
    store = GcsStore("gs://bucket")
    path = tmp_path / "shard"
    for size in (0, 1, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 3_000_000):
        path.write_bytes(os.urandom(size))
        info = store.put_file(str(size), path)
        assert (info.size_bytes, info.crc32c) == (size, crc32c(path.read_bytes()))
        assert store.read(str(size)) == path.read_bytes()
    assert len({record.connection for record in server.requests(operation="[wsc]*")}) == 1
    with pytest.raises(StoreError, match="gs://bucket/absent: "):
        store.put_file("absent", tmp_path / "absent")


def test_a_file_that_changes_while_it_is_put_is_not_put(server, tmp_path, monkeypatch):
    store = GcsStore("gs://bucket")
    path = tmp_path / "shard"
    path.write_bytes(bytes(100_000))
    content = gcs_transfers.content_of_file(path)
    path.write_bytes(bytes(50_000))
    monkeypatch.setattr("tpufeed.storage.gcs.content_of_file", lambda _: content)
    with pytest.raises(StoreError, match=r"gs://bucket/a: .*shard: .*shorter"):
        store.put_file("a", path)
    assert store.stat("a") is None


def test_without_credentials_public_buckets_are_read_and_others_say_how_to_log_in(server, with_credentials):
    def default(scopes):
        raise DefaultCredentialsError("none here")

    store = with_credentials(default)
    server.put("bucket", "a", b"1")
    assert store.read("a") == b"1"
    assert list(store.read_many([Span("a")])) == [b"1"]
    for status in (401, 403):
        server.fault("status", status=status, calls=None)
        for call in (lambda: store.read("a"), lambda: next(iter(store.iter_objects())), lambda: store.put("b", b"2")):
            with pytest.raises(AccessError, match="`gcloud auth application-default login`"):
                call()
        assert isinstance(next(store.read_many([Span("a")])), AccessError)
        server.clear_faults()


def test_a_key_file_that_is_not_there_is_named(server, monkeypatch, tmp_path):
    monkeypatch.delenv("STORAGE_EMULATOR_HOST")
    monkeypatch.setattr(gcs_requests, "_sessions", {})
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "key.json"))
    for call in (lambda store: store.read("a"), lambda store: list(store.read_many([Span("a")]))):
        with pytest.raises(AccessError, match=r"GOOGLE_APPLICATION_CREDENTIALS .*key\.json"):
            call(GcsStore("gs://bucket"))


def test_the_service_s_own_address_is_reached_by_tls_through_a_proxy(server, monkeypatch):
    monkeypatch.delenv("STORAGE_EMULATOR_HOST")
    environment = server.tensorflow_environment()
    monkeypatch.setenv("https_proxy", environment["https_proxy"])
    monkeypatch.setenv("no_proxy", "")
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", environment["CURL_CA_BUNDLE"])
    monkeypatch.setattr(google.auth, "default", lambda **_: (Token(), "project"))
    monkeypatch.setattr(gcs_requests, "_sessions", {})
    store, data = GcsStore("gs://bucket"), os.urandom(3_000_000)
    store.put("a", data)
    assert store.read("a") == data
    assert [info.size_bytes for info in store.iter_objects()] == [3_000_000]
    assert list(store.read_many([Span("a", 5, 100), Span("a")])) == [data[5:100], data]
    monkeypatch.setattr(gcs_requests, "_sessions", {})
    monkeypatch.delenv("REQUESTS_CA_BUNDLE")
    with pytest.raises(StoreError, match=r"gs://bucket/a: .*certificate"):
        GcsStore("gs://bucket").read("a")
    (found,) = GcsStore("gs://bucket").read_many([Span("a")])
    assert "the server's certificate is not trusted" in str(found)


@pytest.mark.all
def test_the_larger_the_objects_the_fewer_are_held(server, monkeypatch):
    monkeypatch.setattr(gcs_transfers, "_HELD_BYTES", 8 << 20)
    monkeypatch.setattr(gcs_transfers, "_PRIOR_BYTES", 16 << 20)
    store = GcsStore("gs://bucket")
    store.put("large", bytes(2 << 20))
    store.put("small", b"1")
    for name, held in (("large", range(2, 9)), ("small", range(40, 129))):
        drawn = []
        results = store.read_many(Span(name) for _ in range(200) if not drawn.append(name))
        next(results)
        assert len(drawn) <= 9
        for _ in range(100):
            next(results)
        assert len(drawn) - 100 in held
        results.close()
