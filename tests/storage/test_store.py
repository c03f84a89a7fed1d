"""One contract for every store, memory, local folders, Google Cloud Storage and fsspec's, and the store of a URL."""

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

import pytest
from crc32c import crc32c

from tests.gcs_server import GcsServer
from tpufeed.errors import (
    ObjectChangedError,
    ObjectExistsError,
    ObjectNotFoundError,
    OptionError,
    StoreError,
    UnknownSchemeError,
    UsageError,
)
from tpufeed.storage.filesystem import FsspecStore
from tpufeed.storage.gcs import GcsStore
from tpufeed.storage.local import LocalStore
from tpufeed.storage.memory import MemoryStore
from tpufeed.storage.store import ObjectInfo, Span, open_store, url_scheme

STORES = {
    "memory": lambda path: MemoryStore(f"memory://{path.name}"),
    "local": lambda path: LocalStore(str(path / "local")),
    "gs": lambda path: GcsStore(f"gs://bucket{path}"),
    "gs rapid": lambda path: GcsStore(f"gs://rapid{path}"),
    "fsspec memory": lambda path: FsspecStore(f"memory://{path}"),
    "fsspec file": lambda path: FsspecStore(f"file://{path}/file"),
}
CONDITIONAL = {"memory", "local", "gs", "gs rapid"}
PINS = CONDITIONAL  # reads of a version are of that version
GENERATIONS = {"memory", "gs", "gs rapid"}

NAMES = [
    "plain.txt",
    "a/b/c",
    "größe/幅/🖼.jpg",
    "new\nline",
    "with space ",
    "q?a=1&b#c%20d",
    "*[ab]{c}",
    "a::b",
    "-dash",
    "~tilde",
    ".hidden/..x",
    "back\\slash",
    "x" * 200,
]
BAD_NAMES = ["", ".", "..", "../up", "a/../b", "a/..", "/absolute", "a//b", "a/", "./a", "a/./b", "nul\0"]


@pytest.fixture(scope="module", autouse=True)
def gcs_server():
    with GcsServer(md5=False) as server, server.zonal("rapid") as rapid, pytest.MonkeyPatch.context() as patch:
        for key, value in {**server.environment(), "STORAGE_EMULATOR_HOST_GRPC": rapid.address}.items():
            patch.setenv(key, value)
        yield server


@pytest.fixture(params=STORES, ids=lambda name: name.replace(" ", "-"))
def store(request, tmp_path):
    return STORES[request.param](tmp_path)


@pytest.fixture(params=sorted(CONDITIONAL))
def conditional_store(request, tmp_path):
    return STORES[request.param](tmp_path)


@pytest.fixture(params=sorted(PINS))
def pinning_store(request, tmp_path):
    return STORES[request.param](tmp_path)


def listing(store, prefix=""):
    return {info.name: info.size_bytes for info in store.iter_objects(prefix)}


def put_as_file(store, name, data, replaces=None):
    with store.temporary_folder() as folder:
        path = folder / "object"
        path.write_bytes(data)
        return store.put_file(name, path, replaces)


both_puts = pytest.mark.parametrize(
    "put", [lambda store, *args: store.put(*args), put_as_file], ids=["put", "put_file"]
)


def replace_later(store, name, data):
    """Local versions are mtimes, and a clock's tick may be as long as 10 ms."""
    info = store.put(name, data, store.stat(name))
    path = store.local_path(name)
    if path is not None:
        status = path.stat()
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1_000_000_000))
        info = store.stat(name)
    return info


def test_only_the_stores_that_have_preconditions_say_so(tmp_path):
    made = {name: make(tmp_path) for name, make in STORES.items()}
    assert {name for name, store in made.items() if store.conditional} == CONDITIONAL
    assert {name for name, store in made.items() if store.generations} == GENERATIONS
    assert {name for name, store in made.items() if not store.shared} == {"memory"}
    assert all(store.retries == 0 for store in made.values())


@pytest.mark.first_cases(5)
@both_puts
def test_what_is_put_is_read_listed_and_deleted(store, put):
    data = bytes(range(256))
    for name in NAMES:
        put(store, name, data)
        assert store.read(name) == data
        assert store.stat(name).size_bytes == 256
        assert store.stat(name).name == name
        assert listing(store) == {name: 256}
        assert list(store.iter_objects()) == [store.stat(name)]
        store.delete(name)
        assert store.stat(name) is None
        assert listing(store) == {}


@both_puts
def test_a_put_never_replaces(store, put):
    put(store, "a", b"first")
    for data in (b"second", b"first", b""):
        with pytest.raises(ObjectExistsError, match="/a ") as caught:
            put(store, "a", data)
        assert isinstance(caught.value, FileExistsError)
    assert store.read("a") == b"first"
    store.delete("a")
    put(store, "a", b"third")
    assert store.read("a") == b"third"


def test_a_range_is_cut_off_only_by_the_end(store):
    data = b"0123456789"
    store.put("digits", data)
    put_as_file(store, "empty", b"")
    assert store.read("empty") == store.read_range("empty", 0, 10) == b""
    assert listing(store) == {"digits": 10, "empty": 0}
    for start, stop in ((0, 10), (0, 1), (3, 7), (9, 10), (8, 100), (10, 12), (50, 60), (4, 4)):
        expected = data[start:stop]
        assert store.read_range("digits", start, stop) == expected
        buffer = bytearray(b"." * (stop - start + 4))
        assert store.read_into("digits", start, memoryview(buffer)[2:-2]) == len(expected)
        assert bytes(buffer) == b".." + expected.ljust(stop - start, b".") + b".."


def test_what_is_absent_is_not_found(store):
    store.put("folder/object", b"x")
    for name in ("absent", "folder", "folder/absent", "folder/object/below", "absent/below"):
        assert store.stat(name) is None
        with pytest.raises(ObjectNotFoundError) as caught:
            store.read(name)
        assert store.url in str(caught.value)
        assert name in str(caught.value)
        assert isinstance(caught.value, FileNotFoundError)
        assert isinstance(caught.value, StoreError)
        with pytest.raises(ObjectNotFoundError):
            store.read_range(name, 0, 1)
        with pytest.raises(ObjectNotFoundError):
            store.read_range(name, 0, 0)
        with pytest.raises(ObjectNotFoundError):
            store.read_into(name, 0, memoryview(bytearray(1)))
        store.delete(name)
    assert store.read("folder/object") == b"x"


def test_a_prefix_is_a_folder_and_no_beginning_of_names(store):
    for name in ("a/x", "a/b/y", "ab/z", "a.txt", "c"):
        store.put(name, b"12")
    assert listing(store) == {"a/x": 2, "a/b/y": 2, "ab/z": 2, "a.txt": 2, "c": 2}
    assert listing(store, "a") == listing(store, "a/") == {"a/x": 2, "a/b/y": 2}
    assert listing(store, "a/b") == {"a/b/y": 2}
    assert listing(store, "c") == listing(store, "a/x") == listing(store, "absent") == listing(store, "absent/b") == {}


def test_listings_are_never_from_a_cache(store):
    store.put("folder/a", b"")
    assert listing(store, "folder") == {"folder/a": 0}
    type(store)(store.url).put("folder/b", b"1")
    assert listing(store, "folder") == {"folder/a": 0, "folder/b": 1}
    type(store)(store.url).delete("folder/a")
    assert listing(store, "folder") == {"folder/b": 1}
    assert store.stat("folder/a") is None


def test_the_version_stays_while_nothing_changes(store):
    store.put("a", b"x")
    first = store.stat("a")
    assert isinstance(first, ObjectInfo)
    assert first.version
    store.put("b", b"y")
    store.read("a")
    assert store.stat("a") == first


@pytest.mark.first_cases(26)
@pytest.mark.parametrize("name", BAD_NAMES)
def test_names_cannot_leave_the_store(store, name):
    calls = [
        lambda: store.read(name),
        lambda: store.read_range(name, 0, 1),
        lambda: store.read_into(name, 0, memoryview(bytearray(1))),
        lambda: list(store.read_many([Span(name)])),
        lambda: store.stat(name),
        lambda: store.put(name, b"x"),
        lambda: put_as_file(store, name, b"x"),
        lambda: store.delete(name),
    ]
    if name not in ("", "a/"):  # all objects, and a folder
        calls.append(lambda: list(store.iter_objects(name)))
    if store.local_path("a") is not None:
        calls.append(lambda: store.local_path(name))
    for call in calls:
        with pytest.raises(OptionError, match="name"):
            call()
    assert listing(store) == {}


def test_stores_at_another_url_are_apart(store):
    other = type(store)(f"{store.url}-other")
    below = type(store)(f"{store.url}/below")
    store.put("a", b"1")
    assert listing(other) == listing(below) == {}
    below.put("b", b"22")
    assert listing(store) == {"a": 1, "below/b": 2}
    other.put("a", b"333")
    assert store.read("a") == b"1"


def test_temporary_folders_are_apart_and_removed_on_exit(store):
    with store.temporary_folder() as one, store.temporary_folder() as two:
        (one / "file").write_bytes(b"1")
        (two / "file").write_bytes(b"2")
        (one / "folder").mkdir()
        assert one != two
        assert (one / "file").read_bytes() == b"1"
        assert listing(store) == {}
    assert not one.exists()
    assert not two.exists()


@pytest.mark.first_cases(2)
@both_puts
def test_exactly_one_of_concurrent_puts_of_a_name_wins(conditional_store, put):
    barrier = threading.Barrier(8)

    def race(number):
        barrier.wait()
        try:
            put(conditional_store, f"folder/object-{turn}", b"%d" % number * 1000)
        except ObjectExistsError:
            return None
        return number

    with ThreadPoolExecutor(8) as pool:
        for turn in range(3):
            winners = [number for number in pool.map(race, range(8)) if number is not None]
            assert len(winners) == 1
            assert conditional_store.read(f"folder/object-{turn}") == b"%d" % winners[0] * 1000
    assert len(listing(conditional_store)) == 3


def test_the_folders_right_below_are_listed(store):
    assert list(store.iter_folders()) == []
    for name in ("top.txt", "b/c/deep", "a/x", "größe/y"):
        store.put(name, b"x")
    assert sorted(set(store.iter_folders()) - {"_tpufeed"}) == ["a", "b", "größe"]


def test_only_a_local_folder_knows_what_fits(store):
    free = store.free_bytes()
    assert (free is not None) == isinstance(store, LocalStore)
    if free is not None:
        assert free > 0


@both_puts
def test_a_put_returns_what_a_stat_says(store, put):
    info = put(store, "a/b", b"12345")
    assert info == store.stat("a/b")
    assert (info.name, info.size_bytes) == ("a/b", 5)
    assert info.crc32c in {None, crc32c(b"12345")}


@both_puts
def test_a_put_replaces_the_version_it_names_and_no_other(store, put):
    first = put(store, "a", b"first")
    second = replace_later(store, "a", b"second, longer")
    assert second.version != first.version
    assert store.read("a") == b"second, longer"
    with pytest.raises(ObjectExistsError, match="a"):
        put(store, "a", b"third", first)
    assert store.read("a") == b"second, longer"
    third = put(store, "a", b"third", second)
    assert store.read("a") == b"third"
    assert store.stat("a") == third
    store.delete("a")
    put(store, "a", b"fourth", third)  # what was to be replaced is gone: so much the better
    assert store.read("a") == b"fourth"


def test_a_delete_removes_the_version_it_names_and_no_other(store):
    first = store.put("a", b"first")
    second = replace_later(store, "a", b"second, longer")
    for version in (first.version, "no version of this store"):
        store.delete("a", version)
        assert store.read("a") == b"second, longer"
    store.delete("a", second.version)
    store.delete("a", second.version)
    assert store.stat("a") is None


def test_of_two_that_replace_a_version_at_once_one_is_told(conditional_store):
    """A plan that another run has replaced must not be replaced by who saw the one before it."""
    barrier = threading.Barrier(4)

    def race(number):
        barrier.wait()
        try:
            put_as_file(conditional_store, "a", b"%d" % number * (1000 + number), seen)
        except ObjectExistsError:
            return None
        return number

    with ThreadPoolExecutor(4) as pool:
        for turn in range(3):
            seen = replace_later(conditional_store, "a", b"%d" % turn)
            (winner,) = [number for number in pool.map(race, range(4)) if number is not None]
            assert conditional_store.read("a") == b"%d" % winner * (1000 + winner)


def test_a_put_does_not_replace_a_version_of_another_store(store):
    store.put("a", b"first")
    with pytest.raises(ObjectExistsError):
        store.put("a", b"second", ObjectInfo("a", 5, "no version of this store"))
    assert store.read("a") == b"first"


def test_versions_that_a_store_gives_out_are_never_the_same(tmp_path):
    for name in sorted(GENERATIONS):
        store = STORES[name](tmp_path)
        seen = set()
        for _ in range(5):
            seen.add(store.put("a", b"same").version)
            store.delete("a")
        assert len(seen) == 5


def test_reads_of_a_version_are_of_that_version(pinning_store):
    store = pinning_store
    first = store.put("a", b"0123456789")
    buffer = bytearray(4)

    def reads(version):
        span = Span("a", 2, 6, version)
        return [
            lambda: store.read("a", version),
            lambda: store.read_range("a", 2, 6, version),
            lambda: bytes(buffer[: store.read_into("a", 2, memoryview(buffer), version)]),
            lambda: raised_or(next(store.read_many([Span("a", version=version)]))),
            lambda: raised_or(next(store.read_many([span]))),
        ]

    expected = [b"0123456789", b"2345", b"2345", b"0123456789", b"2345"]
    assert [read() for read in reads(first.version)] == expected
    second = replace_later(store, "a", b"9876543210")
    for read in reads(first.version):
        with pytest.raises(ObjectChangedError, match="/a"):
            read()
    assert [read() for read in reads(second.version)] == [b"9876543210", b"7654", b"7654", b"9876543210", b"7654"]
    store.delete("a")
    for read in reads(first.version):
        with pytest.raises(ObjectNotFoundError):
            read()


def raised_or(result):
    if isinstance(result, Exception):
        raise result
    return result


def test_threads_read_a_large_object_into_one_buffer(store):
    data = os.urandom(5 << 20)
    store.put("large", data)
    buffer = bytearray(len(data))
    starts = range(0, len(data), 700_001)
    with ThreadPoolExecutor(8) as pool:
        counts = pool.map(
            lambda start: store.read_into("large", start, memoryview(buffer)[start : start + 700_001]), starts
        )
    assert sum(counts) == len(data)
    assert buffer == data


@pytest.mark.first_cases(3)
def test_spans_are_read_in_turn_and_what_is_absent_is_an_error_in_its_place(store):
    for number in range(40):
        store.put(f"folder/{number}", b"%d" % number * (number % 7))
    names = [name for number in range(40) for name in ((f"folder/{number}",) if number % 10 else (f"absent/{number}",))]
    found = list(store.read_many(Span(name) for name in names))
    assert len(found) == len(names)
    for number, result in enumerate(found):
        if number % 10:
            assert result == b"%d" % number * (number % 7)
        else:
            assert isinstance(result, ObjectNotFoundError)
            assert f"absent/{number}" in str(result)


def test_spans_may_be_parts_of_objects(store):
    store.put("digits", b"0123456789")
    store.put("größe/q?a=1&b#c%20d\n", b"odd")
    spans = [
        Span("digits", 2, 5),
        Span("digits", 7),
        Span("digits", 4, 4),
        Span("digits", 8, 100),
        Span("digits", 10, 12),
        Span("digits", 50),
        Span("absent", 3, 3),
        Span("größe/q?a=1&b#c%20d\n"),
        Span("digits", 0, 3),
    ]
    found = list(store.read_many(spans))
    assert isinstance(found.pop(6), ObjectNotFoundError)
    assert found == [b"234", b"789", b"", b"89", b"", b"", b"odd", b"012"]
    assert list(store.read_many([])) == []


@pytest.mark.first_cases(3)
def test_spans_are_drawn_as_results_are_taken(store):
    store.put("a", b"1")
    drawn = []

    def spans():
        for number in range(10_000):
            drawn.append(number)
            yield Span("a")

    results = store.read_many(spans())
    assert drawn == []
    assert list(islice(results, 20)) == [b"1"] * 20
    assert len(drawn) < 500
    results.close()
    threads = [
        thread.name for thread in threading.enumerate() if thread.name.startswith(("tpufeed-bulk", "tpufeed-read"))
    ]
    assert threads == []


def test_an_error_of_the_spans_reaches_who_takes_the_results(store):
    store.put("a", b"1")

    def spans():
        yield Span("a")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        list(store.read_many(spans()))


@pytest.mark.parametrize("name", ["%2e%2e/secret.jpg", "a/%2E./%2e%2e/b.jpg", "%2e%2e%2fsecret.jpg"])
def test_quoted_names_cannot_leave_an_http_folder(name):
    """Refused before anything is asked for."""
    with pytest.raises(OptionError, match="name"):
        FsspecStore("http://127.0.0.1:1/photos").read(name)


@pytest.mark.parametrize(
    ("url", "scheme"),
    [
        ("photos", "file"),
        ("/photos/a b", "file"),
        ("./photos:2024", "file"),
        ("file:///photos", "file"),
        ("FILE:///photos", "file"),
        ("gs://bucket/x", "gs"),
        ("GS://bucket/x", "gs"),
        ("memory://x", "memory"),
        ("s3://bucket", "s3"),
        ("a/b://c", "file"),
        ("://x", "file"),
        ("zip::gs://bucket/x.zip", "zip"),
        ("simplecache::zip::memory://x", "simplecache"),
    ],
)
def test_url_scheme(url, scheme):
    assert url_scheme(url) == scheme


def test_stores_of_urls(tmp_path):
    assert isinstance(open_store("photos"), LocalStore)
    assert isinstance(open_store(tmp_path), LocalStore)
    assert open_store(tmp_path).url == open_store(f"FILE://{tmp_path}").url == str(tmp_path)
    assert open_store(f"{tmp_path}/a://b").url == f"{tmp_path}/a:/b"
    assert isinstance(open_store("memory://x"), MemoryStore)
    assert open_store("MEMORY://x").url == "memory://x"
    assert isinstance(open_store("local:///tmp"), FsspecStore)


@pytest.mark.parametrize("url", ["foo://x", "foo://", "gs2://bucket/x", "foo::bar://x"])
def test_an_unknown_scheme_is_a_usage_error_with_a_next_step(url):
    with pytest.raises(UnknownSchemeError, match="gs://") as caught:
        open_store(url)
    assert isinstance(caught.value, UsageError)
    assert isinstance(caught.value, ValueError)
    assert url in str(caught.value)


@pytest.mark.parametrize(
    ("url", "modules", "error", "step"),
    [
        ("gs://bucket/x", ("gcsfs", "google.cloud.storage"), "MissingExtraError", "[gcs]'"),
        ("s3://bucket/x", ("s3fs",), "StoreError", "Install s3fs"),
    ],
)
def test_a_missing_backend_says_what_to_install(url, modules, error, step):
    code = f"""
import sys
for module in {modules}:
    sys.modules[module] = None  # as where it is not installed
from tpufeed.errors import TpufeedError
from tpufeed.storage.store import open_store
try:
    open_store({url!r})
except TpufeedError as error:
    print(type(error).__name__, error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(error)
    assert step in done.stdout
