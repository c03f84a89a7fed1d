"""Zonal (Rapid) buckets, by a server that speaks gRPC: Google's own client reads and appends, faults strike it."""

import asyncio
import os
import signal
import threading
import time
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

import tpufeed
from tests.gcs_server import GcsServer
from tests.gcs_server import rapid as server_of_rapid
from tests.gcs_server.rapid import Fault
from tests.storage.test_gcs_transfers import PATIENCE
from tpufeed.errors import AccessError, MissingExtraError, StoreError, UnavailableError
from tpufeed.storage import gcs_rapid
from tpufeed.storage.gcs import GcsStore
from tpufeed.storage.gcs_rapid import PARTS
from tpufeed.storage.gcs_requests import Tries

# A busy machine is slow to open a stream: a try must not end by its time, but by its fault.
HURRY = replace(PATIENCE, deadline_seconds=1, read_seconds=10)
DATA = np.random.default_rng(0).bytes(5_000_000)
READ_FAULTS = [
    Fault("read", "UNAVAILABLE"),
    Fault("read", "INTERNAL", 100_000),
    Fault("read", "RESOURCE_EXHAUSTED", 1_000_000, times=2),
    Fault("read", "flip", 300_000),
    Fault("read", "stall", 300_000),
    Fault("read", "redirect", 300_000),
]
WRITE_FAULTS = [
    Fault("write", "UNAVAILABLE"),
    Fault("write", "INTERNAL", 3_000_000, times=2),
    Fault("write", "DATA_LOSS", 2_500_000),
    Fault("write", "stall", 3_000_000),
    Fault("write", "redirect", 3_000_000),
]


@pytest.fixture
def server(monkeypatch):
    with GcsServer(md5=False) as server:
        for key, value in server.environment().items():
            monkeypatch.setenv(key, value)
        yield server


@pytest.fixture
def rapid(server, monkeypatch):
    with server.zonal("rapid") as rapid:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST_GRPC", rapid.address)
        yield rapid


def names(server):
    return server.names("rapid")


def kind_of(fault):
    return f"{fault.kind}-{fault.after_bytes}"


def test_bytes_go_over_grpc_and_all_else_over_json(server, rapid):
    store = GcsStore("gs://rapid/set")
    put = store.put("a", DATA)
    assert store.read("a", put.version) == DATA
    assert store.read_range("a", 4_000_000, 6_000_000) == DATA[4_000_000:]
    assert store.stat("a") == put
    assert [line.split("/")[:2] for line in rapid.opened] == [
        ["write set", ".tpufeed-parts"],
        ["read set", "a"],
        ["read set", "a"],
    ]
    asked = [record.operation for record in server.requests()]
    assert asked == ["layout", "move", "stat"]
    assert names(server) == ["set/a"]


@pytest.mark.parametrize("fault", READ_FAULTS, ids=kind_of)
def test_a_read_that_breaks_goes_on(server, rapid, fault):
    server.put("rapid", "set/a", DATA)
    store = GcsStore("gs://rapid/set", PATIENCE)
    expected = [fault.kind] * fault.times
    rapid.faults.append(fault)
    assert store.read("a") == DATA
    assert rapid.struck == expected
    assert store.retries
    assert len(rapid.opened) == 1 + len(expected)
    assert ("elsewhere" in rapid.opened[-1]) == (fault.kind == "redirect")


@pytest.mark.first_cases(3)
@pytest.mark.parametrize("fault", WRITE_FAULTS, ids=kind_of)
def test_a_put_that_breaks_is_whole_at_the_end(server, rapid, fault):
    store = GcsStore("gs://rapid/set", PATIENCE)
    expected = [fault.kind] * fault.times
    rapid.faults.append(fault)
    put = store.put("a", DATA)
    assert rapid.struck == expected
    assert store.retries
    assert store.read("a", put.version) == DATA
    assert names(server) == ["set/a"]


@pytest.mark.all
def test_a_put_that_is_slow_but_moves_is_no_failed_try(server, rapid, monkeypatch):
    """It is looked at after every 16 of 39 pieces of 2 MB, of which the service confirms every eighth."""
    looks = []

    async def look(tasks, timeout):
        seen = len(rapid.struck)
        while len(rapid.struck) < seen + 16 and not all(task.done() for task in tasks):
            await asyncio.sleep(0.01)
        looks.append(len(rapid.struck))

    monkeypatch.setattr(asyncio, "wait", look)
    rapid.faults.append(Fault("write", "slow", times=10_000))
    store = GcsStore("gs://rapid/set", PATIENCE)
    store.put("a", DATA * 16)
    assert rapid.struck.count("slow") == 39
    assert len(looks) >= 3
    assert store.retries == 0


@pytest.mark.all
def test_a_second_try_is_not_taken_for_silent_by_the_bytes_of_the_first(server, rapid, monkeypatch):
    """Each try has 16 MiB confirmed when its fault strikes; the second one is silent then, until it is looked at."""
    wait, looks = asyncio.wait, []

    async def look(*tasks, **options):
        found = await wait(*tasks, **options)
        looks.append(found)
        return found

    def pause():
        seen = len(looks)
        while len(looks) == seen:
            time.sleep(0.01)

    monkeypatch.setattr(asyncio, "wait", look)
    rapid.faults += [Fault("write", "DATA_LOSS", 20_000_000), Fault("write", "slow", 20_000_000, before=pause)]
    store = GcsStore("gs://rapid/set", replace(PATIENCE, read_seconds=3))
    store.put("a", DATA * 10)
    assert rapid.struck == ["DATA_LOSS", "slow"]
    assert store.retries == 1


@pytest.mark.all
@pytest.mark.parametrize("method", ["read", "write"])
def test_ctrl_c_ends_a_transfer(server, rapid, method):
    server.put("rapid", "set/a", DATA * 4)
    store = GcsStore("gs://rapid/set", PATIENCE)
    rapid.faults.append(Fault(method, "slow", times=10_000, before=partial(_interrupt_once, [])))
    buffer = bytearray(len(DATA) * 4)
    calls = {
        "read": lambda: store.read_into("a", 0, memoryview(buffer)),
        "write": lambda: store.put("b", DATA * 4),
    }
    with pytest.raises(KeyboardInterrupt):
        calls[method]()
    came, struck = bytes(buffer), len(rapid.struck)
    rapid.faults.clear()  # what still goes on now goes on at full speed
    assert GcsStore("gs://rapid/set", PATIENCE).read("a") == DATA * 4
    assert bytes(buffer) == came
    assert struck < 4 * len(DATA) >> 16
    assert names(server) == ["set/a"]


def _interrupt_once(done):
    if not done:
        done.append(True)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)


def test_a_fork_of_a_process_that_has_used_grpc_is_refused(server, rapid):
    store = GcsStore("gs://rapid/set", PATIENCE)
    store.put("a", b"x")
    receiver, sender = os.pipe()
    child = os.fork()
    if not child:
        try:
            said = repr(store.read("a"))
        except BaseException as error:  # noqa: BLE001  # pytest must not run on in a fork
            said = f"{type(error).__name__}: {error}"
        os.write(sender, said.encode())
        os._exit(0)
    os.close(sender)
    with os.fdopen(receiver) as answer:
        said = answer.read()
    os.waitpid(child, 0)
    assert said.startswith("StoreError: gs://rapid/set: this process was forked from one that has used gRPC")
    assert 'multiprocessing_context="forkserver"' in said
    assert store.read("a") == b"x"


def test_an_object_that_is_replaced_while_it_is_read_is_read_anew(server, rapid):
    server.put("rapid", "set/a", DATA)
    other = DATA[::-1]
    put = partial(server.put, "rapid", "set/a", other)
    rapid.faults.append(Fault("read", "UNAVAILABLE", 300_000, before=put))
    assert GcsStore("gs://rapid/set", PATIENCE).read("a") == other
    assert rapid.struck == ["UNAVAILABLE"]
    assert len(rapid.opened) == 3


def test_an_object_that_is_written_is_not_there(server, rapid):
    store = GcsStore("gs://rapid/set", PATIENCE)
    store.put("before", b"x")
    rapid.faults.append(Fault("write", "stall", 3_000_000))
    writer = threading.Thread(target=store.put, args=("a", DATA))
    writer.start()
    while not rapid.struck:
        writer.join(0.01)
    try:
        assert any(PARTS in name for name in names(server))
        assert [found.name for found in store.iter_objects()] == ["before"]
        assert [found.name for found in GcsStore("gs://rapid", PATIENCE).iter_objects()] == ["set/before"]
        assert list(store.iter_folders()) == []
        assert store.stat("a") is None
    finally:
        writer.join()
    assert sorted(found.name for found in store.iter_objects()) == ["a", "before"]


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(
    ("method", "call"), [("read", lambda store: store.read("a")), ("write", lambda store: store.put("b", DATA))]
)
def test_what_does_not_pass_ends_with_patience_and_leaves_nothing(server, rapid, method, call):
    server.put("rapid", "set/a", DATA)
    rapid.faults.append(Fault(method, "UNAVAILABLE", times=10_000))
    # gRPC has words of its own for a stream that breaks while it is sent to; what has struck is asked below.
    expected = r"gs://rapid/set/[ab]: gave up after .* (Struck\.|Internal error from Core)"
    with pytest.raises(UnavailableError, match=expected):
        call(GcsStore("gs://rapid/set", HURRY))
    assert set(rapid.struck) == {"UNAVAILABLE"}
    assert names(server) == ["set/a"]


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("size", [100, 1_000_000])
def test_an_object_that_is_not_what_its_crc_says_ends_with_patience(server, rapid, monkeypatch, size):
    server.put("rapid", "set/a", DATA[:size])
    described = server_of_rapid._described

    def damaged(stored):
        made = described(stored)
        made.checksums.crc32c ^= 1
        return made

    monkeypatch.setattr(server_of_rapid, "_described", damaged)
    progress = []
    monkeypatch.setattr(Tries, "progress", progress.append)
    with pytest.raises(UnavailableError, match="crc32c"):
        GcsStore("gs://rapid/set", HURRY).read("a")
    assert len(rapid.opened) > 1
    assert not progress


def test_an_open_whose_answer_is_lost_is_no_other_writers_object(server, rapid):
    store = GcsStore("gs://rapid/set", PATIENCE)
    before = store.put("a", b"before")
    rapid.faults.append(Fault("open", "UNAVAILABLE"))
    assert store.read("a", store.put("a", DATA, replaces=before).version) == DATA
    assert rapid.struck == ["UNAVAILABLE"]
    assert names(server) == ["set/a"]


@pytest.mark.parametrize("call", [lambda store: store.read("a"), lambda store: store.put("b", b"x")])
def test_a_slow_crc32c_is_named(server, rapid, monkeypatch, call):
    server.put("rapid", "set/a", DATA)
    monkeypatch.setattr("google_crc32c.implementation", "python")
    with pytest.raises(StoreError, match=r"gs://rapid/set/[ab]: .*google-crc32c") as caught:
        call(GcsStore("gs://rapid/set", HURRY))
    assert "pip install" not in str(caught.value)
    assert names(server) == ["set/a"]


@pytest.mark.parametrize(
    ("status", "kind", "message"),
    [
        ("FAILED_PRECONDITION", StoreError, "gs://rapid/set/a: HTTP 400: FailedPrecondition: Struck"),
        ("PERMISSION_DENIED", AccessError, "gs://rapid/set/a: access denied to an anonymous caller"),
        ("UNIMPLEMENTED", StoreError, "gs://rapid/set/a: HTTP 501: MethodNotImplemented: Struck"),
    ],
)
def test_refusals_are_errors_at_once(server, rapid, status, kind, message):
    server.put("rapid", "set/a", DATA)
    rapid.faults.append(Fault("read", status, times=10_000))
    with pytest.raises(kind, match=message) as caught:
        GcsStore("gs://rapid/set", PATIENCE).read("a")
    assert "pip install" not in str(caught.value)  # the extra is here
    assert rapid.struck == [status]


def test_a_move_whose_answer_is_lost_has_moved(server, rapid):
    server.fault("lose_response", operation="move")
    store = GcsStore("gs://rapid/set", PATIENCE)
    put = store.put("a", DATA)
    assert len(server.requests(operation="move")) == 2
    assert store.stat("a") == put
    assert names(server) == ["set/a"]


def test_an_ordinary_bucket_is_asked_once_and_read_by_json(server, rapid):
    for number in range(3):
        GcsStore("gs://bucket/set").put(f"{number}", b"x")
    assert not rapid.opened
    assert [record.operation for record in server.requests()] == ["layout", "write", "write", "write"]


def test_a_layout_is_asked_for_again_where_an_answer_fails(server, rapid):
    server.fault("status", operation="layout", status=503)
    store = GcsStore("gs://rapid/set", PATIENCE)
    store.put("a", b"x")
    assert store.retries == 1
    assert len(rapid.opened) == 1
    assert [record.operation for record in server.requests()] == ["layout", "layout", "move"]


def test_a_layout_that_does_not_come_is_no_ordinary_bucket(server, rapid):
    server.fault("status", operation="layout", status=503, calls=None)
    with pytest.raises(UnavailableError, match=r"gs://rapid/set: .*503"):
        GcsStore("gs://rapid/set", HURRY).read("a")
    server.clear_faults()
    server.put("rapid", "set/a", b"x")
    assert GcsStore("gs://rapid/set", HURRY).read("a") == b"x"
    assert len(rapid.opened) == 1


def test_a_request_that_a_zonal_bucket_refuses_names_no_extra_that_is_here(server, rapid):
    server.fault("status", operation="move", status=400, message="Moves are off.", calls=None)
    with pytest.raises(StoreError, match=r"Moves are off\..* rapid ") as caught:
        GcsStore("gs://rapid/set", HURRY).put("a", b"x")
    assert "pip install" not in str(caught.value)
    assert names(server) == []


@pytest.mark.parametrize("status", [403, 404])
def test_a_layout_that_may_not_be_asked_is_asked_once(server, rapid, status):
    server.fault("status", operation="layout", status=status, calls=None)
    store = GcsStore("gs://bucket/set")
    store.put("a", b"x")
    assert store.read("a") == b"x"
    assert len(server.requests(operation="layout")) == 1


def test_a_client_library_that_is_too_old_is_named(rapid, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "google.cloud.storage.asyncio.async_grpc_client", None)
    with pytest.raises(MissingExtraError, match=r"\[rapid\]"):
        GcsStore("gs://rapid/set", HURRY).read("a")


def test_no_credentials_are_named(server, monkeypatch):
    with pytest.raises(AccessError, match="`gcloud auth application-default login`"):
        gcs_rapid.RapidDownload(GcsStore("gs://rapid/set")._folder, "a", "")


@pytest.mark.all
def test_a_dataset_is_built_cached_and_read(server, rapid, photo_files, tmp_path):
    folder = tmp_path / "photos" / "all"
    folder.mkdir(parents=True)
    for file in photo_files:
        (folder / file.name).symlink_to(file)
    tpufeed.shard(folder.parent, "gs://rapid/photos", shards=2, workers=1)
    tpufeed.cache.warmup("gs://rapid/photos", "gs://rapid/cache", size=32, variants=2, workers=1)
    options = {"batch_size": 1, "processes": 1, "local_dir": tmp_path / "copies"}
    with tpufeed.Loader("gs://rapid/cache", **options) as loader:
        samples = [batch[0].shape for _ in range(2) for batch in loader]
    assert samples == [(1, 32, 32, 3)] * 2 * len(photo_files)
    assert tpufeed.verify("gs://rapid/cache").records == len(samples)
    assert not {"read", "write", "start", "chunk"} & {record.operation for record in server.requests()}
