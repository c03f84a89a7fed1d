"""Local copies that several processes share, some of which are killed."""

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import crc32c
import pytest

from tests.local_copies import wait_copied
from tpufeed.storage.copies import LocalCopies
from tpufeed.storage.copies_folder import RemoteShard
from tpufeed.storage.filesystem import FsspecStore

SIZE = 1000
PATIENCE = 30

# Each read is a line of the log. Those of a name that begins with "stuck" never end.
CHILD = """
import os, sys, time
from pathlib import Path
from tpufeed.storage.filesystem import FsspecStore
from tpufeed.storage.copies_folder import RemoteShard
from tpufeed.storage.copies import LocalCopies
from tests.local_copies import wait_copied

url, folder, log, shards, budget = sys.argv[1:]

class LoggedStore(FsspecStore):
    def read_into(self, name, start, buffer, version=""):
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(descriptor, f"{name} {start}\\n".encode())
        os.close(descriptor)
        if name.startswith("stuck"):
            os.write(1, b"stuck\\n")  # at once, by whichever thread
            time.sleep(1000)
        time.sleep(0.02)
        return super().read_into(name, start, buffer, version)

shards = [RemoteShard(name, int(size), int(crc)) for name, size, crc in map(str.split, shards.split(","))]
copies = LocalCopies(LoggedStore(url), Path(folder), int(budget), connections=2, range_bytes=300)
print("ready", flush=True)
sys.stdin.readline()
copies.fetch(shards)
views = [wait_copied(copies, shard, 30) for shard in shards]
good = [bytes(view) == copies._store.read(shard.name) for view, shard in zip(views, shards)]
print("read", all(good), copies.statistics().shards_fetched, flush=True)
sys.stdin.readline()
copies.close()
"""


class Site:
    """A store that other processes see, and a folder for local copies."""

    def __init__(self, path):
        self.store = FsspecStore(f"file://{path}/store")
        self.parent = path / "copies"
        self.log = path / "log"

    def put(self, name, size=SIZE):
        data = random.Random(name).randbytes(size)
        self.store.put(name, data)
        return RemoteShard(name, size, crc32c.crc32c(data))

    def copies(self, shards):
        return LocalCopies(self.store, self.parent, shards * SIZE, connections=2, range_bytes=300)

    def reads(self):
        return self.log.read_text().splitlines()

    @contextmanager
    def child(self, shards, budget_shards=100):
        listed = ",".join(f"{shard.name} {shard.size_bytes} {shard.crc32c}" for shard in shards)
        arguments = [self.store.url, str(self.parent), str(self.log), listed, str(budget_shards * SIZE)]
        command = [sys.executable, "-c", CHILD, *arguments]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout.readline() == "ready\n"
                yield process
            finally:
                process.kill()


def go_on(process):
    process.stdin.write("\n")
    process.stdin.flush()


def kill(process):
    process.send_signal(signal.SIGKILL)
    assert process.wait(PATIENCE) == -signal.SIGKILL


def files(copies, suffix):
    return list(copies.folder.glob(f"*{suffix}"))


def until(condition):
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def site(tmp_path):
    return Site(tmp_path)


@pytest.mark.all
def test_three_processes_at_once_make_one_download_of_each_shard(site):
    shards = [site.put(f"s{number}") for number in range(5)]
    with site.child(shards) as first, site.child(shards) as second, site.child(shards[::-1]) as third:
        processes = first, second, third
        for process in processes:
            go_on(process)
        said = [process.stdout.readline().split() for process in processes]
    assert [words[:2] for words in said] == [["read", "True"]] * 3
    assert sum(int(words[2]) for words in said) == 5
    assert sorted(site.reads()) == sorted(f"s{number} {start}" for number in range(5) for start in (0, 300, 600, 900))


def test_what_another_process_looks_at_stays_until_it_dies(site, caplog):
    theirs, mine, another = (site.put(name) for name in ("theirs", "mine", "another"))
    with site.child([theirs]) as process, site.copies(1) as copies:
        go_on(process)
        assert process.stdout.readline().split()[:2] == ["read", "True"]
        copies.fetch([mine])
        assert wait_copied(copies, mine, PATIENCE) is not None
        assert len(files(copies, ".shard")) == 2
        assert "in use" in caplog.text
        assert copies.open(theirs) is not None
        kill(process)
        copies.fetch([another])
        assert wait_copied(copies, another, PATIENCE) is not None
        assert len(files(copies, ".shard")) == 1
        assert copies.open(theirs) is None


def test_what_another_process_has_fetched_ahead_stays(site, caplog):
    stuck, first, second, mine = site.put("stuck", 300), site.put("first"), site.put("second"), site.put("mine")
    with site.child([stuck, first, second]) as process, site.copies(3) as copies:
        go_on(process)
        assert process.stdout.readline() == "stuck\n"  # so the others are never opened there
        until(lambda: len(files(copies, ".shard")) == 2)
        copies.fetch([mine])
        assert wait_copied(copies, mine, PATIENCE) is not None
        assert copies.statistics().used_bytes == 300 + 3 * SIZE
        assert copies.statistics().evictions == 0
        assert "in use" in caplog.text


def test_a_killed_download_is_cleaned_up_by_the_next_process(site):
    shard = site.put("stuck")
    with site.child([shard]) as process:
        go_on(process)
        assert process.stdout.readline() == "stuck\n"
        kill(process)
    (folder,) = site.parent.iterdir()
    (part,) = folder.glob("*.part")
    assert part.stat().st_size == SIZE
    with site.copies(2) as copies:
        assert copies.folder == folder
        assert not part.exists()
        assert copies.statistics().used_bytes == 0


def test_a_part_of_a_living_process_is_left_alone_and_taken_over_at_its_death(site):
    shard, other = site.put("stuck"), site.put("other")
    with site.child([shard]) as process:
        go_on(process)
        assert process.stdout.readline() == "stuck\n"
        with site.copies(5) as copies:
            assert len(files(copies, ".part")) == 1
            copies.fetch([shard, other])
            assert wait_copied(copies, other, PATIENCE) is not None  # nobody waits for the other process
            assert copies.open(shard) is None
            assert len(files(copies, ".part")) == 1
            kill(process)
            view = wait_copied(copies, shard, PATIENCE)
            assert view is not None
            assert bytes(view) == site.store.read("stuck")
            assert not files(copies, ".part")


def test_the_part_of_a_living_process_counts(site):
    stuck, mine = site.put("stuck"), site.put("mine")
    with site.child([stuck]) as process, site.copies(1) as copies:
        go_on(process)
        assert process.stdout.readline() == "stuck\n"
        assert copies.statistics().used_bytes == SIZE
        copies.fetch([mine])
        assert wait_copied(copies, mine, PATIENCE) is not None  # needed next, so it exceeds the budget
        assert copies.statistics().used_bytes == 2 * SIZE


def in_fork(work):
    """Run `work` in a forked process, to its end; its exit status."""
    child = os.fork()
    if not child:
        try:
            os._exit(0 if work() else 3)
        except BaseException:  # noqa: BLE001  # whatever it is, pytest must not go on in the child
            os._exit(4)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_forked_process_goes_on_by_itself(site):
    a, b, c = (site.put(name) for name in "abc")
    with site.copies(5) as copies:
        copies.fetch([a])
        view = wait_copied(copies, a, PATIENCE)

        def work():
            copies.fetch([b])
            found = wait_copied(copies, b, PATIENCE)
            copies.close()
            return bytes(view) == site.store.read("a") and bytes(found) == site.store.read("b")

        assert in_fork(work) == 0
        copies.fetch([c])
        assert wait_copied(copies, c, PATIENCE) is not None
        assert copies.open(b) is not None


def test_a_process_forked_in_the_middle_of_a_download_locks_nothing(site):
    a, b = site.put("a"), site.put("b")
    children = []

    class ForkingStore(FsspecStore):
        def read_into(self, name, start, buffer, version=""):
            if name == "a" and start == 0:
                children.append(os.fork())
                if not children[-1]:
                    signal.alarm(PATIENCE)
                    while True:
                        signal.pause()
            return super().read_into(name, start, buffer, version)

    with LocalCopies(ForkingStore(site.store.url), site.parent, SIZE, connections=2, range_bytes=300) as copies:
        try:
            copies.fetch([a])
            assert wait_copied(copies, a, PATIENCE) is not None
            assert len(children) == 1
            with site.copies(1) as other:
                other.fetch([b])
                assert wait_copied(other, b, PATIENCE) is not None
                assert [path.stat().st_size for path in files(other, ".shard")] == [SIZE]  # a has gone
                assert other.statistics().evictions == 1
        finally:
            for child in children:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
