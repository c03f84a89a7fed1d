"""Answers of other servers than Google's, and names that look like its words: told apart by status and call."""

import errno
import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.gcs_server import GcsServer
from tpufeed.errors import AccessError, ObjectNotFoundError, StoreError, UnavailableError
from tpufeed.storage import gcs_transfers
from tpufeed.storage.gcs import GcsStore
from tpufeed.storage.gcs_requests import Patience
from tpufeed.storage.store import Span

PATIENCE = Patience(deadline_seconds=20, first_pause_seconds=0.01, longest_pause_seconds=0.05)
HURRY = Patience(deadline_seconds=0.3, first_pause_seconds=0.01, longest_pause_seconds=0.05)
NAMES = ["my-bucket", "requester pays, a bucket that does not exist", "CERTIFICATE_VERIFY_FAILED crc32c does not match"]


@pytest.fixture(scope="module")
def running():
    with GcsServer(md5=False) as server, pytest.MonkeyPatch.context() as patch:
        for key, value in server.environment().items():
            patch.setenv(key, value)
        server.create_bucket("my-bucket")
        yield server


@pytest.fixture
def server(running):
    running.clear_faults()
    running.clear_log()
    for name in running.names("my-bucket"):
        running.remove("my-bucket", name)
    return running


def read_span(store, name, **span):
    (result,) = store.read_many([Span(name, **span)])
    if isinstance(result, Exception):
        raise result
    return result


READS = {
    "read": lambda store, name: store.read(name),
    "read_range": lambda store, name: store.read_range(name, 0, 9),
    "read_many": read_span,
}
each_read = pytest.mark.parametrize("read", READS.values(), ids=READS)
each_name = pytest.mark.parametrize("name", NAMES)


# Words


@each_read
@each_name
def test_a_missing_object_is_missing_whatever_its_name(server, read, name):
    """GCS answers with `No such object: my-bucket/this does not exist`."""
    with pytest.raises(ObjectNotFoundError, match="no such object"):
        read(GcsStore(f"gs://my-bucket/{name}", PATIENCE), f"{name} does not exist")


@each_read
def test_one_listing_tells_a_missing_bucket_from_missing_objects(server, read):
    store = GcsStore("gs://my-bucket/folder", PATIENCE)
    for name in "abc":
        with pytest.raises(ObjectNotFoundError):
            read(store, name)
    assert [record.operation for record in server.log].count("list") == 1
    server.clear_log()
    store = GcsStore("gs://my-bucket/folder", PATIENCE)
    store.put("a", b"x")
    with pytest.raises(ObjectNotFoundError):
        read(store, "b")
    assert not server.requests(operation="list"), "where something was put there is a bucket"


@each_read
def test_where_nobody_may_list_what_is_missing_is_the_object(server, read):
    server.fault("status", status=403, operation="list", calls=None)
    with pytest.raises(ObjectNotFoundError, match="no such object"):
        read(GcsStore("gs://my-bucket/folder", PATIENCE), "a")


@each_read
@pytest.mark.parametrize("status", [400, 403])
def test_a_refusal_is_known_by_its_status_whatever_it_names(server, read, status):
    message = f"{NAMES[1]}: hash does not match: CERTIFICATE_VERIFY_FAILED"
    server.fault("status", status=status, operation="read", message=message, calls=None)
    store = GcsStore("gs://my-bucket", PATIENCE)
    with pytest.raises(AccessError if status == 403 else StoreError, match=message) as caught:
        read(store, "a")
    assert "TPUFEED_GCS_USER_PROJECT" not in str(caught.value)
    assert store.retries == 0


# Fields


class Foreign:
    """A server whose answers are a test's: `answers` is status, headers and body by method."""

    def __init__(self):
        self.answers, foreign = {}, self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self):
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                status, headers, body = foreign.answers[self.command]
                body = body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_response(status)
                for key, value in {"Content-Length": str(len(body)), **headers}.items():
                    self.send_header(key, value)
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_POST = do_PUT = do_DELETE = answer  # as http.server wants them

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()


@pytest.fixture
def foreign(monkeypatch):
    found = Foreign()
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", found.url)
    yield found
    found.server.shutdown()
    found.server.server_close()


WHOLE = {"name": "f/a", "size": "1", "generation": "7", "crc32c": "kPWZ4w=="}
SPOILED = {
    "no size": ({"size": None}, "size"),
    "no generation": ({"generation": None}, "generation"),
    "no name": ({"name": None}, "name"),
    "a size that is none": ({"size": "many"}, "size"),
    "a negative size": ({"size": "-5"}, "size"),
    "a generation that is none": ({"generation": "latest"}, "generation"),
    "a sum that is none": ({"crc32c": "?"}, ""),
    "a short sum": ({"crc32c": "AAA="}, "CRC-32C"),
    "a list": ([], "object"),
}


def spoiled(change):
    return change if isinstance(change, list) else {k: v for k, v in (WHOLE | change).items() if v is not None}


@pytest.mark.parametrize(("change", "said"), SPOILED.values(), ids=SPOILED)
def test_an_answer_that_lacks_something_is_named(foreign, change, said):
    store = GcsStore("gs://b/f", PATIENCE)
    foreign.answers = {"GET": (200, {}, spoiled(change)), "POST": (200, {}, spoiled(change))}
    where = rf"gs://b/f/a: {foreign.url} does not answer like Google Cloud Storage: .*{said}"
    with pytest.raises(StoreError, match=where):
        store.stat("a")
    with pytest.raises(StoreError, match=where):
        store.put("a", b"x")
    foreign.answers["GET"] = 200, {}, {"items": [WHOLE, spoiled(change)]}
    with pytest.raises(StoreError, match=rf"gs://b/f.*{said}"):
        list(store.iter_objects())
    assert store.retries == 0


def test_an_empty_object_may_have_no_size(foreign):
    """As with servers that leave zeros out of their JSON."""
    foreign.answers["GET"] = 200, {}, {"name": "f/a", "generation": "7", "crc32c": "AAAAAA=="}
    found = GcsStore("gs://b/f", PATIENCE).stat("a")
    assert (found.size_bytes, found.crc32c) == (0, 0)


def test_a_listing_of_something_else_is_named(foreign):
    store = GcsStore("gs://b/f", PATIENCE)
    for page, said in (
        ({"items": [WHOLE | {"name": "other/a"}]}, "another folder: other/a"),
        ({"items": [], "nextPageToken": "same"}, "'same' follows itself"),
        ({"items": 3}, "items"),
    ):
        foreign.answers["GET"] = 200, {}, page
        with pytest.raises(StoreError, match=rf"gs://b/f.*{said}"):
            list(store.iter_objects())
    foreign.answers["GET"] = 200, {}, {"prefixes": [4]}
    with pytest.raises(StoreError, match="prefixes"):
        list(store.iter_folders())


@pytest.mark.parametrize("body", [b"<html>", b"\xff\xfe", b""])
def test_what_is_no_json_is_tried_again(foreign, body):
    foreign.answers["GET"] = 200, {}, body
    store = GcsStore("gs://b/f", HURRY)
    with pytest.raises(UnavailableError, match=r"gs://b/f/a: .*JSON"):
        store.stat("a")
    assert store.retries


@each_read
@pytest.mark.parametrize("value", ["crc32c=?", "crc32c=AAA=", "crc32c=é"])
def test_a_sum_that_is_none_is_named(foreign, read, value):
    foreign.answers["GET"] = 200, {"X-Goog-Hash": value}, b"123456789"
    with pytest.raises(StoreError, match=r"gs://b/f/a: .*X-Goog-Hash"):
        read(GcsStore("gs://b/f", PATIENCE), "a")


@pytest.mark.parametrize("call", [READS["read_range"], lambda store, name: read_span(store, name, start=3, stop=9)])
def test_a_range_may_come_with_status_200(foreign, call):
    start = 0 if call is READS["read_range"] else 3
    foreign.answers["GET"] = 200, {"Content-Range": f"bytes {start}-8/20"}, b"012345678"[start:]
    assert call(GcsStore("gs://b/f", PATIENCE), "a") == b"012345678"[start:]


def test_the_whole_object_instead_of_a_range_is_cut_or_refused(foreign):
    foreign.answers["GET"] = 200, {}, bytes(range(20))
    store = GcsStore("gs://b/f", PATIENCE)
    assert store.read_range("a", 0, 9) == bytes(range(9))
    assert read_span(store, "a", stop=9) == bytes(range(9))
    for call in (lambda: store.read_range("a", 3, 9), lambda: read_span(store, "a", start=3, stop=9)):
        with pytest.raises(StoreError, match=r"gs://b/f/a: .*range"):
            call()


def test_an_upload_that_has_more_than_was_sent_is_named(foreign, monkeypatch):
    monkeypatch.setattr(gcs_transfers, "SMALL_BYTES", 1)
    foreign.answers = {"POST": (200, {"Location": f"{foreign.url}/x"}, b""), "PUT": (308, {"Range": "bytes=0-99"}, b"")}
    with pytest.raises(StoreError, match=r"gs://b/f/a: .*100 bytes of 4"):
        GcsStore("gs://b/f", PATIENCE).put("a", b"1234")


# Hosts

WRONG_HOST = Patience(
    deadline_seconds=60, first_pause_seconds=0.01, longest_pause_seconds=0.05, unreachable_seconds=0.1
)


@pytest.fixture
def resolve(monkeypatch):
    """`resolve(error, times)`: to look up a name fails so often, then all are found."""
    real, left = socket.getaddrinfo, []

    def getaddrinfo(host, *arguments, **options):
        if left:
            raise left.pop()
        return real(host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)

    def fail(error, times):
        left.extend([error] * times)
        return left

    return fail


@each_read
def test_a_host_that_does_not_exist_is_named_with_the_variable(monkeypatch, resolve, read):
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://nosuch.invalid")
    resolve(socket.gaierror(socket.EAI_NONAME, "no such name"), 100_000)
    said = r"gs://b/f/a: gave up .* the host nosuch.invalid, which STORAGE_EMULATOR_HOST names, cannot be resolved"
    with pytest.raises(UnavailableError, match=said):
        read(GcsStore("gs://b/f", WRONG_HOST), "a")


@each_read
def test_an_emulator_that_does_not_run_is_named_with_the_variable(monkeypatch, read):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # and nobody listens
        port = unused.getsockname()[1]
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{port}")
        said = rf"the host 127.0.0.1, which STORAGE_EMULATOR_HOST names, refuses connections at port {port}"
        with pytest.raises(UnavailableError, match=said):
            read(GcsStore("gs://b/f", WRONG_HOST), "a")


@each_read
@pytest.mark.parametrize("error", [socket.gaierror(socket.EAI_AGAIN, "no answer"), OSError(errno.ENETUNREACH, "none")])
def test_a_machine_without_a_network_is_told_at_once(monkeypatch, caplog, resolve, read, error):
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://localhost")
    resolve(error, 100_000)
    with pytest.raises(UnavailableError, match=r"gs://b/f/a: gave up .* localhost, which STORAGE_EMULATOR_HOST names"):
        read(GcsStore("gs://b/f", WRONG_HOST), "a")
    assert caplog.messages == []  # of warnings: the error is one line


@each_read
@pytest.mark.parametrize("code", [socket.EAI_NONAME, socket.EAI_AGAIN])
def test_a_hiccup_of_the_name_service_is_waited_out(foreign, resolve, monkeypatch, read, code):
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", foreign.url.replace("127.0.0.1", "localhost"))
    foreign.answers["GET"] = 200, {}, b"123456789"
    store = GcsStore("gs://b/f", PATIENCE)
    left = resolve(socket.gaierror(code, "no such name"), 3)
    assert read(store, "a") == b"123456789"
    assert not left


@each_read
def test_a_network_that_was_there_is_waited_for_longer(foreign, resolve, monkeypatch, read):
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", foreign.url.replace("127.0.0.1", "localhost"))
    foreign.answers["GET"] = 200, {"Connection": "close"}, b"123456789"
    store = GcsStore("gs://b/f", WRONG_HOST)
    assert read(store, "a") == b"123456789"
    left = resolve(socket.gaierror(socket.EAI_AGAIN, "no answer"), 30)  # for longer than `unreachable_seconds`
    assert read(store, "a") == b"123456789"
    assert not left
