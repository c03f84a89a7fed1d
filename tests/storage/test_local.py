"""What only a local folder can do, and what only a local folder can suffer."""

import errno
import fcntl
import itertools
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest

from tpufeed.errors import (
    LinkError,
    ObjectChangedError,
    ObjectExistsError,
    ObjectNotFoundError,
    OptionError,
    StoreError,
)
from tpufeed.storage.filesystem import FsspecStore
from tpufeed.storage.local import LocalStore, find_mount
from tpufeed.storage.memory import MemoryStore
from tpufeed.storage.store import BROKEN_LINK, open_store

HOLD = """
import sys
from tpufeed.storage.store import open_store
with open_store(sys.argv[1]).temporary_folder() as folder:
    (folder / "half-written").write_bytes(bytes(1000))
    print(folder, flush=True)
    sys.stdin.read()
"""


@contextmanager
def another_process(url, temporary):
    """A process that holds a temporary folder of the store at `url`, and that folder."""
    environment = {**os.environ, "TMPDIR": str(temporary)}
    command = [sys.executable, "-c", HOLD, url]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            yield process, Path(process.stdout.readline().strip())
        finally:
            process.kill()


@pytest.fixture(params=["local", "memory", "fsspec"])
def store_and_url(request, tmp_path, monkeypatch):
    """A store whose temporary folders lie below `tmp_path`, and a URL whose do so in another process."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    if request.param == "local":
        return LocalStore(str(tmp_path / "store")), str(tmp_path / "store")
    return (MemoryStore if request.param == "memory" else FsspecStore)("memory://tmp"), "memory://tmp"


def test_the_temporary_folder_of_a_killed_process_is_removed_by_the_next(store_and_url, tmp_path):
    store, url = store_and_url
    with another_process(url, tmp_path) as (process, folder):
        assert (folder / "half-written").is_file()
        assert folder.is_relative_to(tmp_path)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    assert (folder / "half-written").is_file()
    with store.temporary_folder() as mine:
        assert mine.parent == folder.parent
        assert not folder.exists()
        assert mine.is_dir()


def test_the_temporary_folder_of_a_living_process_stays(store_and_url, tmp_path):
    store, url = store_and_url
    with another_process(url, tmp_path) as (process, folder):
        for _ in range(3):
            with store.temporary_folder() as mine:
                assert mine.parent == folder.parent
        assert (folder / "half-written").is_file()
        process.stdin.close()
        assert process.wait() == 0
    assert not folder.exists()


@pytest.fixture
def of_another_host(store_and_url, tmp_path, monkeypatch):
    """A temporary folder as another host has made it at the same place; its lock is not seen here."""
    store, _ = store_and_url
    read = Path.read_text
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", lambda path: "another boot" if path.name == "boot_id" else read(path))
        with store.temporary_folder() as folder:
            name = folder
    (name / "inner").mkdir(parents=True)
    (name / "inner" / "half-written").write_bytes(bytes(1000))
    return name


def test_the_temporary_folder_of_another_host_stays(store_and_url, of_another_host):
    """Though its lock is not seen here: the NFS client of each kernel keeps locks of folders to itself."""
    store, _ = store_and_url
    for _ in range(2):
        with store.temporary_folder() as mine:
            assert mine.parent == of_another_host.parent
    assert (of_another_host / "inner" / "half-written").is_file()


@pytest.mark.parametrize("fresh", [None, ".", "inner", "inner/half-written"])
def test_the_temporary_folder_of_another_host_goes_a_day_after_the_last_change(store_and_url, of_another_host, fresh):
    store, _ = store_and_url
    yesterday = of_another_host.stat().st_mtime - 25 * 3600
    for path in (*of_another_host.rglob("*"), of_another_host):
        if fresh is None or path != of_another_host / fresh:
            os.utime(path, (yesterday, yesterday))
    with store.temporary_folder():
        assert of_another_host.exists() == (fresh is not None)


def test_two_mounts_have_locks_of_their_own(tmp_path, monkeypatch):
    """As two containers of one host may have the same NFS export."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    store, found = MemoryStore("memory://"), tmp_path.stat()
    with store.temporary_folder() as one, store.temporary_folder() as two:
        domain = one.name.rpartition("_")[0]
        assert two.name.startswith(f"{domain}_")
        elsewhere = os.stat_result([*found[:2], found.st_dev + 1, *found[3:]])
        monkeypatch.setattr(Path, "stat", lambda *_, **__: elsewhere)
        with store.temporary_folder() as there:
            assert not there.name.startswith(domain)


def test_what_is_not_ours_in_the_system_s_temporary_folder_stays(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for name in ("tpufeed-mine", "other", "tpufeed-put"):
        (tmp_path / name).mkdir()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / f"tpufeed_put_{'0' * 16}_{'0' * 16}").symlink_to(elsewhere)
    (tmp_path / "tpufeed-put-file").write_bytes(b"")
    before = set(tmp_path.iterdir())
    with MemoryStore("memory://").temporary_folder() as folder:
        assert set(tmp_path.iterdir()) == before | {folder}
    assert set(tmp_path.iterdir()) == before


def test_files_of_temporary_folders_are_no_objects(tmp_path):
    store = LocalStore(str(tmp_path))
    store.put("_tpufeed/plan", b"1")
    with store.temporary_folder() as folder:
        (folder / "shard").write_bytes(b"half")
        assert [info.name for info in store.iter_objects()] == ["_tpufeed/plan"]
        assert [info.name for info in store.iter_objects("_tpufeed")] == ["_tpufeed/plan"]


def test_links_are_followed_but_never_in_a_circle(tmp_path):
    (tmp_path / "store" / "folder").mkdir(parents=True)
    (tmp_path / "store" / "folder" / "a").write_bytes(b"12")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "b").write_bytes(b"123")
    (tmp_path / "store" / "folder" / "up").symlink_to("..")
    (tmp_path / "store" / "folder" / "here").symlink_to(".")
    (tmp_path / "store" / "out").symlink_to(tmp_path / "outside")
    (tmp_path / "store" / "file").symlink_to(tmp_path / "outside" / "b")
    found = {info.name: info.size_bytes for info in LocalStore(str(tmp_path / "store")).iter_objects()}
    assert found == {"folder/a": 2, "out/b": 3, "file": 3}


@pytest.mark.parametrize("target", ["absent", "link", "/absent/folder"])
def test_a_broken_link_is_listed_and_cannot_be_read(tmp_path, target):
    (tmp_path / "link").symlink_to(target)
    (tmp_path / "photo").write_bytes(b"1")
    store = LocalStore(str(tmp_path))
    assert {(info.name, info.size_bytes) for info in store.iter_objects()} == {("link", 0), ("photo", 1)}
    with pytest.raises(StoreError):
        store.read("link")
    with pytest.raises(ObjectExistsError):
        store.put("link", b"x")


@pytest.fixture(params=[True, False], ids=["of images", "of a dataset"])
def linked(request, tmp_path):
    """A store with a link to a folder and one to a file, which lie in `tmp_path / "outside"`."""
    (tmp_path / "outside/inner").mkdir(parents=True)
    (tmp_path / "outside/inner/thesis").write_bytes(b"years of work")
    (tmp_path / "store").mkdir()
    (tmp_path / "store/folder").symlink_to(tmp_path / "outside")
    (tmp_path / "store/file").symlink_to(tmp_path / "outside/inner/thesis")
    return LocalStore(str(tmp_path / "store"), follow=request.param)


def test_nothing_is_written_or_removed_through_a_link(linked, tmp_path):
    for work in (
        lambda: linked.put("folder/new", b"1"),
        lambda: linked.put("folder/a/new", b"1"),
        lambda: linked.put("file", b"1"),
        lambda: linked.delete("folder/inner/thesis"),
        lambda: linked.delete("file"),
    ):
        with pytest.raises((LinkError, ObjectExistsError)):
            work()
    (tmp_path / "store/_tpufeed").symlink_to(tmp_path / "outside")
    with pytest.raises(LinkError, match="_tpufeed"), linked.temporary_folder():
        pass
    assert [path.name for path in (tmp_path / "outside").rglob("*")] == ["inner", "thesis"]
    assert (tmp_path / "store/file").is_symlink()


def test_a_part_is_below_its_dataset(tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "dataset").mkdir()
    (tmp_path / "dataset/part-00002").symlink_to(tmp_path / "outside")
    part = LocalStore(str(tmp_path / "dataset/part-00002"), follow=False)
    for work in (lambda: part.put("new", b"1"), lambda: part.stat("new"), lambda: list(part.iter_objects())):
        with pytest.raises(LinkError, match="part-00002"):
            work()
    assert not any((tmp_path / "outside").iterdir())


@pytest.mark.parametrize("linked", [True], indirect=True)
def test_images_are_read_through_links(linked):
    assert linked.read("folder/inner/thesis") == linked.read("file") == b"years of work"


@pytest.mark.parametrize("linked", [False], indirect=True)
def test_a_dataset_is_read_through_no_link(linked):
    for name in ("folder/inner/thesis", "file"):
        for work in (linked.read, linked.stat, linked.open_local):
            with pytest.raises(LinkError, match=name.partition("/")[0]):
                work(name)
    assert {(info.name, info.version) for info in linked.iter_objects()} == {
        ("folder", BROKEN_LINK),
        ("file", BROKEN_LINK),
    }
    with pytest.raises(LinkError):
        list(linked.iter_objects("folder"))


def test_the_folder_itself_may_be_a_link(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    store = LocalStore(str(tmp_path / "link"), follow=False)
    put = store.put("a/b", b"1")
    assert store.read("a/b") == b"1"
    assert list(store.iter_objects()) == [put]
    store.delete("a/b")
    assert store.stat("a/b") is None


def test_only_our_own_temporary_folders_are_tidied(tmp_path):
    for name in ("thesis", "tpufeed_put_thesis", "0123456789abcdef_0123456789abcdef"):
        (tmp_path / "_tpufeed/tmp" / name).mkdir(parents=True)
    before = set((tmp_path / "_tpufeed/tmp").iterdir())
    with LocalStore(str(tmp_path)).temporary_folder():
        pass
    assert set((tmp_path / "_tpufeed/tmp").iterdir()) == before


def test_a_file_that_is_one_hole_is_not_read(tmp_path):
    """It takes no room, and would be read for hours."""
    with (tmp_path / "file").open("wb") as file:
        file.truncate(1 << 40)
        if file.seek(0, os.SEEK_HOLE) != 0:
            pytest.skip("this file system has no holes")
    store = LocalStore(str(tmp_path))
    for work in (lambda: store.read("file"), lambda: store.read_range("file", 0, 10)):
        with pytest.raises(StoreError, match="hole"):
            work()


@pytest.mark.parametrize("kind", ["folder", "pipe"])
def test_a_put_where_a_folder_or_a_pipe_stands_ends(kind, tmp_path):
    (tmp_path / "name").mkdir() if kind == "folder" else os.mkfifo(tmp_path / "name")
    with pytest.raises(StoreError, match="Remove it") as caught:
        LocalStore(str(tmp_path)).put("name", b"1")
    assert not isinstance(caught.value, ObjectExistsError)


def test_what_is_no_file_is_no_object(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_bytes(b"")
    assert [info.name for info in LocalStore(str(tmp_path)).iter_objects()] == ["file"]


@pytest.mark.parametrize("code", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS])
def test_file_systems_without_hard_links_still_take_puts(tmp_path, monkeypatch, code):
    refused = []

    def refuse(source, target):
        refused.append(target)
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "link", refuse)
    store = LocalStore(str(tmp_path))
    store.put("folder/a", b"1")
    with pytest.raises(ObjectExistsError):
        store.put("folder/a", b"2")
    assert len(refused) == 2
    assert store.read("folder/a") == b"1"
    assert not (tmp_path / "_tpufeed" / "tmp").exists()


@pytest.mark.parametrize(("kind", "named"), [("fuse.rclone", True), ("ext4", False)])
def test_a_mount_that_answers_a_hard_link_with_an_io_error_is_named(tmp_path, monkeypatch, kind, named):
    """As rclone's. On a disk that is no mount of a bucket the error is what it says."""

    def refuse(source, target):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "link", refuse)
    monkeypatch.setattr(Path, "read_text", mounts((f"{tmp_path}/my bucket", kind)))
    with pytest.raises(StoreError, match="/a: ") as raised:
        LocalStore(str(tmp_path / "my bucket/d")).put("a", b"1")
    assert (f"{tmp_path}/my bucket ({kind})" in str(raised.value)) == named
    assert not (tmp_path / "my bucket/d/_tpufeed").exists()


def refuse_links(monkeypatch, code):
    def refuse(source, target):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "link", refuse)


def refuse_locks(monkeypatch, code):
    def refuse(descriptor, operation):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", refuse)


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
@pytest.mark.parametrize("links", [True, False])
def test_a_mount_without_locks_or_hard_links_is_for_one_writer(tmp_path, monkeypatch, code, links):
    store = LocalStore(str(tmp_path / "my bucket/d"))
    assert store.try_puts() == ()
    refuse_locks(monkeypatch, code)
    if not links:
        refuse_links(monkeypatch, errno.EPERM)
    monkeypatch.setattr(Path, "read_text", mounts((f"{tmp_path}/my bucket", "drive")))
    (warning,) = store.try_puts()
    assert f"{tmp_path}/my bucket (drive)" in warning
    assert ("flock" in warning, "hard links" in warning) == (True, not links)
    assert not list(tmp_path.iterdir())
    stored = store.put("a", b"1")
    with pytest.raises(ObjectExistsError):
        store.put("a", b"2")
    store.put("a", b"3", stored)
    assert store.read("a") == b"3"
    assert [path.name for path in (tmp_path / "my bucket/d").iterdir()] == ["a"]


class Status:
    """What `Path.stat` returns, with another mtime."""

    def __init__(self, found, mtime_ns):
        self._found, self.st_mtime_ns = found, mtime_ns

    def __getattr__(self, name):
        return getattr(self._found, name)


def refuse_to_open_again(monkeypatch):
    path_open = Path.open

    def refuse(self, mode="r", *rest):
        if mode in ("ab", "r+b"):
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        return path_open(self, mode, *rest)

    monkeypatch.setattr(Path, "open", refuse)


def refuse_to_replace(monkeypatch):
    def refuse(self, target):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(Path, "replace", refuse)


def give_mtimes(*times):
    def patch(monkeypatch):
        found, path_stat = itertools.cycle(times), Path.stat
        monkeypatch.setattr(Path, "stat", lambda self, **rest: Status(path_stat(self, **rest), next(found)))

    return patch


@pytest.mark.parametrize(
    ("lack", "words"),
    [
        (lambda monkeypatch: refuse_links(monkeypatch, errno.EIO), "hard link"),
        (refuse_to_open_again, "closed before"),
        (refuse_to_replace, "rename"),
        (give_mtimes(0), "mtime of a new file is 0"),
        (give_mtimes(1, 2, 3), "mtime of a new file changes by itself"),
    ],
)
def test_what_a_mount_lacks_is_said_before_anything_is_written(tmp_path, monkeypatch, lack, words):
    lack(monkeypatch)
    monkeypatch.setattr(Path, "read_text", mounts((str(tmp_path), "fuse.rclone")))
    with pytest.raises(StoreError, match=words) as raised:
        LocalStore(str(tmp_path / "d")).try_puts()
    assert f"{tmp_path} (fuse.rclone)" in str(raised.value)
    assert "gs://" in str(raised.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("code", "is_told"), [(errno.EIO, True), (errno.ENOSPC, False), (errno.EDQUOT, False)])
def test_an_error_of_a_disk_is_what_it_says_and_a_full_disk_is_found_later(tmp_path, monkeypatch, code, is_told):
    refuse_links(monkeypatch, code)
    monkeypatch.setattr(Path, "read_text", mounts())
    if is_told:
        with pytest.raises(StoreError, match="d/_tpufeed/tmp: Input/output error"):
            LocalStore(str(tmp_path / "d")).try_puts()
    else:
        assert LocalStore(str(tmp_path / "d")).try_puts() == ()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["fuse.rclone", "ext4"])
def test_a_file_that_changed_on_a_mount_may_still_be_uploaded(tmp_path, monkeypatch, kind):
    (tmp_path / "a").write_bytes(b"1")
    monkeypatch.setattr(Path, "read_text", mounts((str(tmp_path), kind)))
    with pytest.raises(ObjectChangedError, match="its mtime differs") as raised:
        LocalStore(str(tmp_path)).read("a", "7")
    assert (f"{tmp_path} (fuse.rclone)" in str(raised.value)) == (kind == "fuse.rclone")


def mounts(*found):
    """Return a `read_text` of /proc/self/mounts, in which blanks are written as Linux does."""
    lines = [f"from {mount} {kind} rw 0 0".replace("my bucket", r"my\040bucket") for mount, kind in found]
    return lambda _: "\n".join(["/dev/vda / ext4 rw 0 0", *lines])


def test_a_mount_hides_those_around_and_before_it(tmp_path, monkeypatch):
    bucket = tmp_path / "my bucket"
    (bucket / "a").mkdir(parents=True)
    found = mounts((str(tmp_path), "nfs4"), (str(bucket), "tmpfs"), (str(bucket), "fuse"), (f"{bucket}/ab", "xfs"))
    monkeypatch.setattr(Path, "read_text", found)
    assert find_mount(bucket / "a") == (str(bucket), "fuse")
    assert find_mount(tmp_path) == (str(tmp_path), "nfs4")
    assert find_mount(tmp_path.parent) == ("/", "ext4")


def test_a_put_that_the_disk_cuts_off_leaves_no_object(tmp_path):
    """The limit on a file's size cuts a write off as a disk does that runs full."""
    code = """
import resource, sys
from tpufeed.errors import StoreError
from tpufeed.storage.local import LocalStore
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    LocalStore(sys.argv[1]).put("a", bytes(150_000))
except StoreError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert "File too large" in done.stdout
    store = LocalStore(str(tmp_path))
    assert store.stat("a") is None
    assert list(store.iter_objects()) == []


@pytest.mark.parametrize("below", ["a-file", "a-file/below"])
def test_a_store_where_no_folder_can_be_is_a_store_error(tmp_path, below):
    (tmp_path / "a-file").write_bytes(b"")
    store = LocalStore(str(tmp_path / below))
    with pytest.raises(StoreError, match="a-file"):
        store.put("a", b"1")
    with pytest.raises(ObjectNotFoundError):
        store.read("a")
    assert store.stat("a") is None
    assert list(store.iter_objects()) == []


def test_an_unwritable_folder_is_a_store_error():
    code = """
import os, sys
from tpufeed.errors import StoreError
from tpufeed.storage.local import LocalStore
if os.getuid() == 0:
    os.setgroups([])
    os.setuid(65534)  # root may write everywhere
store = LocalStore(sys.argv[1])
print(store.read("a"))
for act in (lambda: store.put("b", b"x"), lambda: store.delete("a"), lambda: store.temporary_folder().__enter__()):
    try:
        act()
    except StoreError as error:
        print(error)
"""
    with tempfile.TemporaryDirectory() as folder:  # tmp_path lies where root alone can read
        Path(folder, "a").write_bytes(b"1")
        Path(folder).chmod(0o555)
        done = subprocess.run([sys.executable, "-c", code, folder], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert lines[0] == "b'1'"
    assert len(lines) == 4
    assert all("Permission denied" in line for line in lines[1:])


def test_relative_absolute_and_file_urls_are_the_same_store(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    urls = [
        "photos",
        "./photos",
        "photos/",
        f"{tmp_path}/photos",
        f"file://{tmp_path}/photos",
        f"file://localhost{tmp_path}/photos",
        "x/../photos",
        "~/photos",
    ]
    LocalStore("photos").put("a", b"1")
    for url in urls:
        store = LocalStore(url)
        assert store.url == f"{tmp_path}/photos"
        assert store.read("a") == b"1"
        assert store.local_path("a/b") == tmp_path / "photos" / "a" / "b"


@pytest.mark.parametrize("url", ["", "file://", "file://elsewhere/photos", "FILE://photos"])
def test_what_names_no_folder_of_this_machine_is_not_the_present_folder(url):
    with pytest.raises(OptionError, match="folder"):
        open_store(url)


def test_put_file_moves_what_it_is_given(tmp_path):
    store = LocalStore(str(tmp_path))
    with store.temporary_folder() as folder:
        path = folder / "shard"
        path.write_bytes(b"1")
        number = path.stat().st_ino
        store.put_file("a", path)
        assert not path.exists()
    assert (tmp_path / "a").stat().st_ino == number


def test_a_document_is_read_whole_and_a_hole_in_it_is_not(tmp_path):
    store, path = LocalStore(str(tmp_path)), tmp_path / "a.json"
    for size in (0, 2, 4 << 20, (9 << 20) + 1):
        path.write_bytes(b"x" * size)
        assert store.read_document("a.json", store.stat("a.json").version) == path.read_bytes()
    os.truncate(path, 100 << 20)
    with pytest.raises(StoreError, match=rf"a\.json.*byte {(9 << 20) + 1} of 104,857,600"):
        store.read_document("a.json")
    path.write_bytes(b"x")
    with pytest.raises(ObjectChangedError):
        store.read_document("a.json", "1")
