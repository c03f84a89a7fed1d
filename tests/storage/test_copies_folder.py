"""The folder of local copies: who owns it, where it is by default, and what happens if its disk is full."""

import errno
import fcntl
import os
import shutil
import subprocess
import threading
from pathlib import Path

import pytest

from tests.local_copies import wait_copied
from tpufeed.errors import OptionError
from tpufeed.storage import copies_folder
from tpufeed.storage.copies import LocalCopies
from tpufeed.storage.copies_folder import CopiesFolder, PartialCopy

from .test_copies_fetcher import PATIENCE, SIZE, WatchedStore, copied, put, until, use, warnings_of


@pytest.fixture
def store():
    return WatchedStore()


def make(store, parent, shards=100, **options):
    return LocalCopies(store, parent, shards * SIZE, connections=2, range_bytes=300, **options)


def test_the_folder_is_the_users_alone_and_names_nothing(store, tmp_path):
    with make(store, tmp_path / "new" / "folder") as copies:
        use(copies, put(store, "secret-name"))
        assert copies.folder.stat().st_mode & 0o777 == 0o700
        assert copies.folder.parent == tmp_path / "new" / "folder"
        assert not [path for path in copies.folder.iterdir() if "secret" in path.name or path.stat().st_mode & 0o077]


def folder_of(parent):
    return parent / f"tpufeed-copies-1-{os.getuid()}"


def other_user(path):
    path.mkdir(mode=0o700)
    os.chown(path, 12345, 12345)


SPOILED = {
    "open to others": lambda path: (path.mkdir(), path.chmod(0o770)),
    "a file": lambda path: path.write_bytes(b""),
    "a link": lambda path: (path.with_name("target").mkdir(mode=0o700), path.symlink_to(path.with_name("target"))),
    "a broken link": lambda path: path.symlink_to("nowhere"),
    "another user's": other_user,
}


@pytest.mark.parametrize("spoil", SPOILED)
def test_a_folder_that_is_not_the_users_alone_is_refused(store, tmp_path, spoil):
    if spoil == "another user's" and os.getuid():
        pytest.skip("only root can give a folder away")
    SPOILED[spoil](folder_of(tmp_path))
    with pytest.raises(OptionError, match="folder of user") as caught:
        make(store, tmp_path)
    assert str(folder_of(tmp_path)) in str(caught.value)
    assert "local_dir" in str(caught.value)


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_folder_without_file_locks_is_refused(store, tmp_path, monkeypatch, code):
    def refuse(descriptor, operation):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(OptionError, match="local_dir") as caught:
        make(store, tmp_path)
    assert f"{folder_of(tmp_path)} cannot hold local copies: {os.strerror(code)}" in str(caught.value)


def test_a_folder_that_cannot_be_made_is_refused(store, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OptionError, match="File exists"):
        make(store, tmp_path / "file")


def test_the_default_places_are_memory_the_cache_and_the_temporary_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(copies_folder.tempfile, "gettempdir", lambda: "/temporary")
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    monkeypatch.delenv(copies_folder.LOCAL_DIR)
    assert copies_folder._default_places() == [Path("/dev/shm"), Path("/cache"), Path("/temporary")]
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert copies_folder._default_places()[1] == Path("~/.cache").expanduser()
    monkeypatch.setenv(copies_folder.LOCAL_DIR, "")
    assert len(copies_folder._default_places()) == 3
    monkeypatch.setenv(copies_folder.LOCAL_DIR, str(tmp_path))
    assert copies_folder._default_places() == [tmp_path]


def test_the_default_place_is_the_first_with_room(store, tmp_path, monkeypatch):
    places = [tmp_path / name for name in ("unusable", "small", "good", "last")]
    places[0].write_bytes(b"")
    monkeypatch.setattr(copies_folder, "_default_places", lambda: places)
    room = {places[1]: copies_folder._LEAST_ROOM_BYTES - 1, places[2]: copies_folder._LEAST_ROOM_BYTES}
    monkeypatch.setattr(copies_folder, "free_bytes", lambda folder: room.get(folder, 0))
    with LocalCopies(store) as copies:
        assert copies.folder == folder_of(places[2])
        (copies.folder / "0.shard").write_bytes(b"x")
    room[places[2]] -= 1  # taken by that copy, which does not drive the others away
    with LocalCopies(store) as copies:
        assert copies.folder == folder_of(places[2])
    room[places[2]] -= 1
    with LocalCopies(store) as copies:
        assert copies.folder == folder_of(places[3])  # small as it is: there is no other
    assert not folder_of(places[1]).exists()


def test_places_that_there_are_not_are_passed_over(store, tmp_path, monkeypatch):
    """A container's user has no name and no HOME, and its root is read-only."""
    monkeypatch.delenv(copies_folder.LOCAL_DIR)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(copies_folder, "MEMORY", tmp_path / "memory")
    asked = []

    def missing(error):
        def ask(*_):
            asked.append(error)
            raise error

        return ask

    monkeypatch.setattr(Path, "expanduser", missing(RuntimeError("Could not determine home directory.")))
    monkeypatch.setattr(copies_folder.tempfile, "gettempdir", missing(FileNotFoundError(errno.ENOENT, "nowhere")))
    monkeypatch.setattr(copies_folder, "free_bytes", lambda _: 32 << 20)
    with LocalCopies(store) as copies:
        assert copies.folder == folder_of(tmp_path / "memory")
        assert copies.budget_bytes == 16 << 20
    assert len(asked) == 2


def test_a_small_place_serves_where_the_last_cannot_be_written(store, tmp_path, monkeypatch):
    small, last = tmp_path / "small", tmp_path / "last"
    last.write_bytes(b"")
    monkeypatch.setattr(copies_folder, "_default_places", lambda: [small, last])
    monkeypatch.setattr(copies_folder, "free_bytes", lambda _: 32 << 20)
    with LocalCopies(store) as copies:
        assert copies.folder == folder_of(small)
    shutil.rmtree(small)
    small.write_bytes(b"")
    with pytest.raises(OptionError, match=r"last/.*local_bytes=0"):
        LocalCopies(store)


def test_the_default_budget_is_half_of_what_would_be_free_without_the_copies(store, tmp_path):
    size = 8 << 20
    first = LocalCopies(store, tmp_path)
    free = copies_folder.free_bytes(tmp_path)
    assert abs(first.budget_bytes - free // 2) < free // 10
    first.close()
    folder_of(tmp_path).joinpath("0.shard").write_bytes(bytes(size))
    assert LocalCopies(store, tmp_path)._folder.used_bytes() == size


def test_what_is_in_memory_has_no_more_room_than_the_machine_or_its_container(monkeypatch):
    if not copies_folder.is_in_memory(copies_folder.MEMORY):
        pytest.skip("/dev/shm is no tmpfs here")
    monkeypatch.setattr(copies_folder, "memory_left", lambda: None)
    assert 2500 < copies_folder.free_bytes(copies_folder.MEMORY) < 1 << 50
    monkeypatch.setattr(copies_folder, "memory_left", lambda: 2500)
    assert copies_folder.free_bytes(copies_folder.MEMORY) == 2500
    assert not copies_folder.is_in_memory(Path("/proc"))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("call", ["posix_fallocate", "pwrite"])
def test_a_full_disk_shrinks_the_budget_and_copying_continues(store, tmp_path, monkeypatch, caplog, call, number):
    a, b, c = (put(store, name) for name in "abc")
    with make(store, tmp_path) as copies:
        use(copies, a)
        real, fired = getattr(os, call), []

        def full(*arguments):
            if not fired:
                fired.append(arguments)
                raise OSError(number, os.strerror(number))
            return real(*arguments)

        monkeypatch.setattr(os, call, full)
        copies.fetch([b])
        until(lambda: copies.budget_bytes == SIZE)
        assert fired
        assert not list(copies.folder.glob("*.part"))
        assert copies.open(b) is None
        (warning,) = warnings_of(caplog)
        assert "1,000 bytes instead of 100,000" in warning
        use(copies, c)
        assert len(copied(copies)) == 1


@pytest.fixture
def small_disk(tmp_path):
    """A real file system of 1 MB; skipped if mounting is not allowed."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path)]
    if os.getuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no right to mount a file system")
    yield tmp_path
    subprocess.run(["umount", "-l", str(tmp_path)], check=True)


@pytest.mark.parametrize("lied_to", [False, True], ids=["asked", "allocating"])
def test_a_disk_that_is_smaller_than_the_budget(store, small_disk, caplog, monkeypatch, lied_to):
    if lied_to:
        monkeypatch.setattr("tpufeed.storage.copies_folder.free_bytes", lambda _: 1 << 40)
    shards = [put(store, f"s{number}", 400_000) for number in range(4)]
    with LocalCopies(store, small_disk, 1 << 40, connections=2, range_bytes=100_000) as copies:
        copies.fetch(shards)
        for shard in shards[:2]:
            assert bytes(wait_copied(copies, shard, PATIENCE)) == store.read(shard.name)
        until(lambda: copies.budget_bytes == 800_000)
        copies.fetch(shards[2:])
        for shard in shards[2:]:
            assert bytes(wait_copied(copies, shard, PATIENCE)) == store.read(shard.name)
        assert copies.statistics().evictions >= 2
    assert "is full" in caplog.text


def interleavings(first, second):
    """Each order of the steps of two, each of which keeps its own."""
    if not (first and second):
        yield first + second
        return
    for rest in interleavings(first[1:], second):
        yield first[:1] + rest
    for rest in interleavings(first, second[1:]):
        yield second[:1] + rest


class Fetching:
    """Download one copy step by step, as another process would."""

    def __init__(self, parent, data):
        self.folder, self.data = CopiesFolder(parent, 1 << 20), data
        self.part = self.descriptor = None

    def claim(self):
        claimed = self.folder.claim("key", len(self.data))
        self.part = claimed if isinstance(claimed, PartialCopy) else None

    def write(self):
        self.folder.reserve(self.part)
        os.pwrite(self.part.descriptor, self.data, 0)

    def publish(self):
        self.descriptor = self.folder.publish(self.part)

    def take(self, step):
        try:
            if step == "claim" or self.part:
                getattr(self, step)()
        except FileNotFoundError:  # removed: it is given up, to be fetched again
            self.folder.discard(self.part)
            self.part = None

    def end(self):
        if self.descriptor is not None:
            os.close(self.descriptor)


@pytest.mark.parametrize("removed", range(6))
def test_a_folder_that_is_removed_at_any_time_never_holds_an_unfinished_copy(tmp_path, removed):
    data, published = bytes(range(256)), 0
    steps = ["claim", "write", "publish"]
    for order in interleavings([(0, step) for step in steps], [(1, step) for step in steps]):
        both = Fetching(tmp_path, data), Fetching(tmp_path, data)
        for number, (which, step) in enumerate(order):
            if number == removed:
                shutil.rmtree(both[0].folder.path)
            both[which].take(step)
            for path in both[0].folder.path.glob("*.shard"):
                assert path.read_bytes() == data, (order, number)
        for each in both:
            published += each.descriptor is not None
            each.end()
        shutil.rmtree(both[0].folder.path, ignore_errors=True)
    assert published


def test_two_that_fetch_while_their_folder_is_removed(store, tmp_path, caplog):
    shard = put(store, "a")
    other_store = WatchedStore()
    other_store.url = store.url
    other_store.put("a", store.read("a"))
    for each in (store, other_store):
        each.gate.clear()
    with make(store, tmp_path) as copies, make(other_store, tmp_path) as other:
        copies.fetch([shard])
        assert store.begun.acquire(timeout=PATIENCE)
        shutil.rmtree(copies.folder)
        other.fetch([shard])
        assert other_store.begun.acquire(timeout=PATIENCE)
        store.gate.set()
        until(lambda: copied(copies) or warnings_of(caplog))  # its part went with the folder
        contents = [path.read_bytes() for path in copies.folder.glob("*.shard")]
        other_store.gate.set()
        assert bytes(wait_copied(other, shard, PATIENCE)) == store.read("a")
    assert all(copy == store.read("a") for copy in contents)


def test_a_folder_is_found_while_another_process_evicts_copies(tmp_path):
    folder, done = copies_folder.find_folder(tmp_path), threading.Event()

    def come_and_go():
        while not done.is_set():
            copies = [folder / f"{number}.shard" for number in range(50)]
            for copy in copies:
                copy.write_bytes(b"")
            for copy in copies:
                copy.unlink()

    other = threading.Thread(target=come_and_go)
    other.start()
    try:
        for _ in range(200):
            assert copies_folder.find_folder(tmp_path) == folder
    finally:
        done.set()
        other.join()
