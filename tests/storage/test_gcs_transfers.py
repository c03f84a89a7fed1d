"""What a GcsStore makes of each fault; the server's log proves that the fault struck."""

import os
import time
from dataclasses import replace
from threading import Timer

import pytest
from crc32c import crc32c

from tests.gcs_server import GcsServer
from tpufeed.errors import AccessError, ObjectExistsError, ObjectNotFoundError, StoreError
from tpufeed.storage import gcs_transfers
from tpufeed.storage.gcs import GcsStore
from tpufeed.storage.gcs_requests import Patience
from tpufeed.storage.store import Span

PATIENCE = Patience(
    deadline_seconds=20, first_pause_seconds=0.01, longest_pause_seconds=0.05, connect_seconds=5, read_seconds=0.5
)
HURRY = Patience(
    deadline_seconds=0.4, first_pause_seconds=0.05, longest_pause_seconds=0.05, connect_seconds=1, read_seconds=0.2
)
DATA = bytes(range(256)) * 1024  # 256 KiB
LARGE = os.urandom(1 << 20) * 5
BREAKS = [
    {"action": "status", "status": 503, "calls": (1, 2)},
    {"action": "status", "status": 429, "retry_after": 0.1},
    {"action": "reset"},
    {"action": "reset_midway"},
    {"action": "stall", "seconds": 1.0, "after_bytes": 1000},
    {"action": "stall", "seconds": 0.1, "after_bytes": 1000, "then": "close"},
    {"action": "lose_response"},
]
BROKEN_ANSWERS = [{"action": "truncate"}, {"action": "truncate", "after_bytes": 0}]
# One of each kind, where all of them are tried on another call of the same kind.
FEW = [BREAKS[0], *BREAKS[2:5], BREAKS[-1]]


def name_of(value):
    """For ids: of a rule its values, of a read its name."""
    return "-".join(map(str, value.values())) if isinstance(value, dict) else None


each = pytest.mark.parametrize("rule", FEW, ids=name_of)


@pytest.fixture(scope="module")
def running():
    with GcsServer(md5=False) as server, pytest.MonkeyPatch.context() as patch:
        for key, value in server.environment().items():
            patch.setenv(key, value)
        yield server


@pytest.fixture
def server(running):
    running.clear_faults()
    for name in running.names("bucket"):
        running.remove("bucket", name)
    running.clear_log()
    return running


@pytest.fixture
def store(server):
    return GcsStore("gs://bucket/folder", PATIENCE)


@pytest.fixture
def chunked(monkeypatch):
    monkeypatch.setattr(gcs_transfers, "SMALL_BYTES", 1 << 20)
    monkeypatch.setattr(gcs_transfers, "CHUNK_BYTES", 2 << 20)


def struck(server, count=1):
    """The faults so far, as soon as there are `count`: a stall is logged when it is over."""
    deadline = time.monotonic() + 10
    while True:
        found = [record.fault for record in server.log if record.fault]
        if len(found) >= count or time.monotonic() > deadline:
            return found
        time.sleep(0.02)


def read_span(store, name, **span):
    (result,) = store.read_many([Span(name, **span)])
    if isinstance(result, Exception):
        raise result
    return result


def read_into(store, name):
    buffer = bytearray(len(DATA))
    assert store.read_into(name, 0, memoryview(buffer)) == len(DATA)
    return bytes(buffer)


READS = {
    "read": lambda store, name: store.read(name),
    "read_range": lambda store, name: store.read_range(name, 0, len(DATA)),
    "read_into": read_into,
    "read_many": read_span,
}
each_read = pytest.mark.parametrize("read", READS.values(), ids=READS)
# Those of one object share what they do; those of many have a client of their own.
ALL_READS = [(READS[name], rule) for name in ("read", "read_many") for rule in (*BREAKS, *BROKEN_ANSWERS)]
ALL_READS += [(read, {"action": "corrupt"}) for read in READS.values()]
ALL_READS += [(READS[name], BREAKS[3]) for name in ("read_range", "read_into")]


@pytest.mark.first_cases(16)
@pytest.mark.parametrize(("read", "rule"), ALL_READS, ids=name_of)
def test_a_read_survives(server, store, read, rule):
    server.put("bucket", "folder/a", DATA)
    fault = server.fault(operation="read", **rule)
    assert read(store, "a") == DATA
    assert struck(server, len(fault.calls)) == [fault.action] * len(fault.calls)
    assert store.retries >= len(fault.calls) - 1  # aiohttp tries once more by itself where it is cut off
    assert read is read_span or store.retries == len(fault.calls)


@pytest.mark.parametrize("rule", [*BREAKS, *BROKEN_ANSWERS], ids=name_of)
def test_a_part_is_read_on_where_it_broke_off(server, store, rule):
    server.put("bucket", "folder/large", LARGE)
    server.fault(operation="read", **{"after_bytes": 2_500_000} | rule)
    assert store.read_range("large", 1000, 4_000_000) == LARGE[1000:4_000_000]
    first, *_, last = server.requests(operation="read")
    assert first.range == "bytes=1000-3999999"
    if rule["action"] == "truncate" and "after_bytes" not in rule:
        assert int(last.range[6:].partition("-")[0]) == 2_501_000


def test_a_read_that_is_replaced_while_it_is_broken_begins_again(server, store):
    server.put("bucket", "folder/large", LARGE)
    server.fault("stall", operation="read", after_bytes=2_500_000, seconds=0.8, then="close")
    reading = GcsStore(store.url, Patience(read_seconds=0.3, first_pause_seconds=1.5))
    timer = Timer(0.1, server.put, ("bucket", "folder/large", LARGE[::-1]))
    timer.start()
    assert reading.read("large") in (LARGE[::-1], LARGE)
    timer.join()
    assert struck(server) == ["stall"]


@each
def test_a_small_put_survives(server, store, rule):
    fault = server.fault(operation="write", **rule)
    info = store.put("a", DATA)
    assert server.get("bucket", "folder/a") == DATA
    assert info == store.stat("a")
    assert struck(server, len(fault.calls)) == [fault.action] * len(fault.calls)
    assert info.crc32c == crc32c(DATA)


@pytest.mark.first_cases(5)
@pytest.mark.parametrize(
    ("operation", "rule"),
    [*(("chunk", rule) for rule in BREAKS), ("chunk", {"action": "corrupt"}), *(("start", rule) for rule in FEW)],
    ids=name_of,
)
def test_a_large_put_survives(server, store, chunked, tmp_path, operation, rule):
    path = tmp_path / "shard"
    path.write_bytes(LARGE)
    fault = server.fault(operation=operation, **rule)
    info = store.put_file("large", path)
    assert server.get("bucket", "folder/large") == LARGE
    assert info == store.stat("large")
    assert (info.size_bytes, info.crc32c) == (len(LARGE), crc32c(LARGE))
    assert set(struck(server)) == {fault.action}


def test_a_damaged_put_is_refused_and_put_again(server, store):
    server.fault("corrupt", operation="write")
    store.put("a", DATA)
    assert [record.status for record in server.requests(operation="write")] == [400, 200]
    assert server.get("bucket", "folder/a") == DATA
    assert struck(server) == ["corrupt"]


def test_a_broken_chunk_is_sent_on_from_where_it_broke_off(server, store, chunked):
    server.fault("reset_midway", operation="chunk", calls=(2,), after_bytes=1_000_000)
    store.put("large", LARGE)
    assert struck(server) == ["reset_midway"]
    assert len(server.requests(operation="start")) == 1
    assert len(server.requests(operation="query")) == 1
    kept = 2_097_152 + (1_000_000 >> 18 << 18)  # the service keeps whole pieces of 256 KiB
    ranges = [record.range for record in server.requests(operation="chunk")]  # a busy server notes them in any order
    assert sum(each.startswith(f"bytes {kept}-") for each in ranges) == 1
    assert sum(record.received_bytes for record in server.requests(operation="chunk")) < len(LARGE) + (1 << 20)


def test_an_upload_that_the_service_has_forgotten_begins_again(server, chunked):
    server.fault("status", operation="chunk", calls=(2,), status=410)
    # The answer is read however busy the machine is: where it comes too late, the upload goes on.
    GcsStore("gs://bucket/folder", replace(PATIENCE, read_seconds=20)).put("large", LARGE)
    assert struck(server) == ["status"]
    assert len(server.requests(operation="start")) == 2
    assert server.get("bucket", "folder/large") == LARGE


@pytest.mark.parametrize("data", [DATA, LARGE], ids=["small", "large"])
def test_what_met_a_put_whose_answer_was_lost_is_compared(server, store, chunked, data):
    server.put("bucket", "folder/a", data[::-1])
    server.fault("reset", operation="start" if data is LARGE else "write")
    with pytest.raises(ObjectExistsError, match="gs://bucket/folder/a"):
        store.put("a", data)
    assert struck(server) == ["reset"]
    assert server.get("bucket", "folder/a") == data[::-1]


def test_the_lost_answer_to_a_put_in_the_place_of_a_version_is_a_success(server, store):
    first = store.put("a", b"first")
    server.fault("lose_response", operation="write")
    second = store.put("a", b"second", first)
    assert struck(server) == ["lose_response"]
    assert [record.status for record in server.requests(operation="write")] == [200, 200, 412]
    assert second == store.stat("a") != first


@each
def test_stat_listing_and_delete_survive(server, store, rule):
    for number in range(3):
        server.put("bucket", f"folder/{number}", b"x")
    for operation in ("stat", "list", "delete"):
        server.fault(operation=operation, **rule)
    assert store.stat("0").size_bytes == 1
    assert {info.name for info in store.iter_objects()} == {"0", "1", "2"}
    store.delete("1")
    assert server.names("bucket") == ["folder/0", "folder/2"]
    assert set(struck(server, 3)) == {rule["action"]}
    assert {record.operation for record in server.log if record.fault} == {"stat", "list", "delete"}


def test_a_second_try_to_delete_spares_what_another_writer_has_put(server, store, monkeypatch):
    server.put("bucket", "folder/a", b"old")
    server.fault("lose_response", operation="delete")
    monkeypatch.setattr(time, "sleep", lambda _: server.put("bucket", "folder/a", b"new"))
    store.delete("a")
    assert struck(server) == ["lose_response"]
    assert server.get("bucket", "folder/a") == b"new"


@pytest.mark.parametrize("read", [READS["read"], read_span], ids=["read", "read_many"])
def test_the_server_s_wish_to_wait_is_honoured(server, store, read):
    server.put("bucket", "folder/a", DATA)
    server.fault("status", operation="read", status=429, retry_after=1, calls=(1,))
    assert read(store, "a") == DATA
    first, second = server.requests(operation="read")
    assert second.seconds - first.seconds >= 1
    assert (first.status, first.fault) == (429, "status")


@each_read
def test_a_rejected_token_is_renewed_once(server, store, read):
    server.put("bucket", "folder/a", DATA)
    server.fault("status", operation="read", status=401)
    assert read(store, "a") == DATA
    assert [record.status for record in server.requests(operation="read")] in ([401, 200], [401, 206])
    server.fault("status", operation="read", status=401, calls=None)
    server.clear_log()
    with pytest.raises(AccessError, match=r"folder/a: .*anonymous.*HTTP 401.*gcloud auth"):
        read(store, "a")
    assert [record.status for record in server.requests(operation="read")] == [401, 401]


CALLS = {
    **{f"{name}-storage.objects.get": read for name, read in READS.items()},
    "stat-storage.objects.get": lambda store, name: store.stat(name),
    "iter_objects-storage.objects.list": lambda store, _: list(store.iter_objects()),
    "iter_folders-storage.objects.list": lambda store, _: list(store.iter_folders()),
    "put-storage.objects.create": lambda store, name: store.put(name, b"x"),
    "put_large-storage.objects.create": lambda store, name: store.put(name, LARGE),
}
each_call = pytest.mark.parametrize(("label", "call"), CALLS.items(), ids=CALLS)


@each_call
def test_what_is_forbidden_is_asked_for_once(server, store, chunked, monkeypatch, label, call):
    server.create_bucket("private", refuses=403)
    private = GcsStore("gs://private/folder", PATIENCE)
    monkeypatch.setattr("tpufeed.storage.gcs_requests.GcsSession.identity", "me@example.com")
    with pytest.raises(AccessError) as caught:
        call(private, "a")
    message = str(caught.value)
    assert "gs://private/folder" in message
    assert label.rpartition("-")[2] in message
    assert "grant me@example.com roles/storage.objectUser on the bucket private" in message
    assert [record.status for record in server.log] == [403]
    assert private.retries == 0


@each_call
def test_a_bucket_that_does_not_exist_is_named(server, chunked, label, call):
    with pytest.raises(StoreError, match=r"gs://absent/folder.*bucket absent") as caught:
        call(GcsStore("gs://absent/folder", PATIENCE), "a")
    assert not isinstance(caught.value, ObjectNotFoundError)
    assert {record.status for record in server.log} == {404}


@each_call
def test_who_pays_is_said_by_a_variable(server, chunked, monkeypatch, label, call):
    server.create_bucket("paid", requester_pays=True)
    server.put("paid", "folder/a", DATA)
    with pytest.raises(AccessError, match="TPUFEED_GCS_USER_PROJECT"):
        call(GcsStore("gs://paid/folder", PATIENCE), "a")
    assert [record.status for record in server.log] == [400]
    monkeypatch.setenv("TPUFEED_GCS_USER_PROJECT", "mine")
    name = "b" if "put" in label else "a"
    call(GcsStore("gs://paid/folder", PATIENCE), name)
    if "put" in label:
        server.remove("paid", "folder/b")
    assert "userProject=mine" in server.log[-1].target


@each_read
def test_a_damage_that_stays_is_an_error(server, read):
    server.put("bucket", "folder/a", DATA)
    server.fault("corrupt", operation="read", calls=None)
    patient = replace(HURRY, read_seconds=30)  # on a busy machine the last try would end by its time, not by the bytes
    with pytest.raises(StoreError, match=r"gs://bucket/folder/a: .*\d+ tries .*crc32c"):
        read(GcsStore("gs://bucket/folder", patient), "a")
    assert len(struck(server)) > 1


@pytest.mark.parametrize(
    "rule",
    [
        {"action": "status", "status": 503, "message": "no luck today"},
        {"action": "status", "status": 429, "retry_after": 600},
        {"action": "truncate", "after_bytes": 0},
    ],
    ids=lambda rule: rule["action"],
)
@pytest.mark.parametrize("read", [READS["read"], read_span], ids=["read", "read_many"])
def test_patience_ends_with_what_was_tried_and_why_it_failed(server, read, rule):
    server.put("bucket", "folder/a", DATA)
    server.fault(operation="read", calls=None, **rule)
    impatient = GcsStore("gs://bucket/folder", HURRY)
    with pytest.raises(StoreError, match=r"gs://bucket/folder/a: .*\d+ tries") as caught:
        read(impatient, "a")
    assert rule.get("message", "") in str(caught.value)
    assert 0 < impatient.retries < len(struck(server, impatient.retries + 1))


def test_slow_progress_is_progress(server, chunked):
    server.put("bucket", "folder/large", LARGE)
    server.fault("truncate", operation="read", after_bytes=(1 << 20) + 1000, calls=(1, 2, 3, 4))
    patience = Patience(deadline_seconds=0.5, first_pause_seconds=0.5, longest_pause_seconds=0.5, read_seconds=5)
    store = GcsStore("gs://bucket/folder", patience)
    assert store.read("large") == LARGE
    assert struck(server) == ["truncate"] * 4


REFUSED = [
    ("write", lambda store: store.put("a", b"x")),
    ("read", lambda store: store.read("a")),
    ("stat", lambda store: store.stat("a")),
    ("list", lambda store: list(store.iter_objects())),
]


@pytest.mark.parametrize("status", [400, 405, 501])
@pytest.mark.parametrize(("operation", "call"), REFUSED, ids=[operation for operation, _ in REFUSED])
def test_a_zonal_bucket_says_so_where_it_does_not_do_what_others_do(server, monkeypatch, operation, call, status):
    monkeypatch.setattr("tpufeed.storage.gcs_requests.has_grpc", lambda: False)
    bucket = f"rapid-{operation}-{status}"  # a process asks each bucket once
    server.create_bucket(bucket, location="US-CENTRAL1-A", location_type="zone")
    server.put(bucket, "set/a", b"bytes")
    server.fault("status", operation=operation, status=status, message="Not here.")
    expected = rf"HTTP {status}: Not here.*zonal \(Rapid\) bucket in US-CENTRAL1-A.*pip install .*\[rapid\]'"
    with pytest.raises(StoreError, match=expected):
        call(GcsStore(f"gs://{bucket}/set", HURRY))
    assert [record.status for record in server.requests(operation=operation)] == [status]
    assert len(server.requests(operation="layout")) == 1


def test_a_bucket_of_an_unknown_type_is_named(server):
    server.create_bucket("odd", location="SEA-OF-TRANQUILITY", location_type="lunar")
    server.fault("status", operation="write", status=400)
    with pytest.raises(StoreError, match="'lunar' in SEA-OF-TRANQUILITY"):
        GcsStore("gs://odd/set", HURRY).put("a", b"x")


@pytest.mark.parametrize("layout", [None, 403, 404, 503])
def test_the_error_of_an_ordinary_bucket_stays_what_it_is(server, layout):
    server.fault("status", operation="write", status=400, message="Not today.")
    bucket = f"rapid-{layout}" if layout else "bucket"
    if layout:
        server.create_bucket(bucket, location="US-CENTRAL1-A", location_type="zone")
        server.fault("status", operation="layout", status=layout, calls=None)
    with pytest.raises(StoreError, match=r"HTTP 400: Not today\.$"):
        GcsStore(f"gs://{bucket}/set", HURRY).put("a", b"x")
    assert len(server.requests(operation="layout")) == 1


def test_a_bucket_that_does_all_is_asked_nothing(server):
    server.create_bucket("rapid", location="US-CENTRAL1-A", location_type="zone")
    store = GcsStore("gs://rapid/set", HURRY)
    store.put("new", b"x")
    assert store.read("new") == b"x"
    assert not server.requests(operation="layout")
