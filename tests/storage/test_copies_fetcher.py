"""Local copies within one process: what is fetched, in which order, and what is removed for it."""

import gc
import logging
import os
import random
import threading
import time
from contextlib import suppress
from itertools import count

import crc32c
import pytest

from tests.local_copies import wait_copied
from tpufeed.errors import OptionError, ShardError, StoreError
from tpufeed.storage import copies_fetcher
from tpufeed.storage.copies import LocalCopies
from tpufeed.storage.copies_folder import CopiesFolder, RemoteShard, copy_key
from tpufeed.storage.memory import MemoryStore

SIZE = 1000
PATIENCE = 30  # seconds for what must happen; nothing depends on how soon
A_WHILE = 0.6  # seconds for what must not happen: longer than any poll

_names = count()


class WatchedStore(MemoryStore):
    """Notes what is read; `gate` holds reads back, `fault` has its say about each."""

    def __init__(self):
        super().__init__(f"memory://watched-{next(_names)}")
        self.gate = threading.Event()
        self.gate.set()
        self.reads = []
        self.begun = threading.Semaphore(0)
        self.fault = lambda *read: read[-1]

    def read_into(self, name, start, buffer, version=""):
        self.reads.append((name, start))
        self.begun.release()
        assert self.gate.wait(PATIENCE)
        return self.fault(name, buffer, super().read_into(name, start, buffer, version))


def put(store, name, size=SIZE):
    data = random.Random(name).randbytes(size)
    store.put(name, data)
    return RemoteShard(name, size, crc32c.crc32c(data))


@pytest.fixture
def store():
    return WatchedStore()


@pytest.fixture
def make_copies(store, tmp_path):
    copies = []

    def make(shards=100, **options):
        options = {"connections": 2, "range_bytes": 300, **options}
        copies.append(LocalCopies(store, tmp_path, shards * SIZE, **options))
        return copies[-1]

    yield make
    store.gate.set()
    for one in copies:
        one.close()


def use(copies, shard):
    """Fetch it, look at it, and let it go."""
    copies.fetch([shard])
    assert wait_copied(copies, shard, PATIENCE) is not None


def copied(copies):
    return {path.stem for path in copies.folder.glob("*.shard")}


def until(condition):
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def keys(store, *shards):
    return {copy_key(store.url, shard) for shard in shards}


def warnings_of(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("size", [0, 1, 299, 300, 301, 5000])
def test_a_copy_is_the_shard(store, make_copies, size):
    shard = put(store, "a", size)
    copies = make_copies()
    assert copies.open(shard) is None
    copies.fetch([shard])
    view = wait_copied(copies, shard, PATIENCE)
    assert view is not None
    assert bytes(view) == store.read("a")
    assert sorted(start for _, start in store.reads) == list(range(0, size, 300))
    found = copies.statistics()
    assert (found.shards_fetched, found.bytes_fetched, found.hits, found.used_bytes) == (1, size, 1, size)
    assert found.misses > 0
    assert not list(copies.folder.glob("*.part"))


def test_opening_never_waits_for_a_download(store, make_copies):
    shard = put(store, "a")
    copies = make_copies()
    store.gate.clear()
    copies.fetch([shard])
    assert store.begun.acquire(timeout=PATIENCE)
    assert copies.open(shard) is None
    store.gate.set()
    assert bytes(wait_copied(copies, shard, PATIENCE)) == store.read("a")


def test_shards_are_fetched_in_the_order_in_which_they_are_due(store, make_copies):
    shards = [put(store, name) for name in "cabd"]
    copies = make_copies(connections=1)
    copies.fetch(shards)
    assert wait_copied(copies, shards[-1], PATIENCE) is not None
    assert store.reads == [(name, start) for name in "cabd" for start in (0, 300, 600, 900)]


def test_what_is_opened_as_soon_as_it_appears_is_not_held(store, make_copies, monkeypatch):
    """Before the thread that has fetched it comes to note so."""
    a, b = put(store, "a"), put(store, "b")
    copies, publish = make_copies(), CopiesFolder.publish

    def publish_and_open(self, part):
        descriptor = publish(self, part)
        assert copies.open(a) is not None
        return descriptor

    monkeypatch.setattr(CopiesFolder, "publish", publish_and_open)
    copies.fetch([a])
    until(lambda: not copies._fetcher._downloads and copies.statistics().shards_fetched)
    monkeypatch.undo()
    use(make_copies(1), b)
    assert copied(copies) == keys(store, b)


def test_the_next_shard_begins_before_the_last_ranges_of_one_have_come(store, make_copies):
    a, b = put(store, "a"), put(store, "b")
    copies = make_copies(connections=6)
    store.gate.clear()
    copies.fetch([a, b])
    for _ in range(6):
        assert store.begun.acquire(timeout=PATIENCE)
    assert {name for name, _ in store.reads} == {"a", "b"}


def test_a_new_list_replaces_what_has_not_begun(store, make_copies):
    a, b, c = (put(store, name) for name in "abc")
    copies = make_copies(connections=1)
    store.gate.clear()
    copies.fetch([a, b])
    assert store.begun.acquire(timeout=PATIENCE)
    copies.fetch([c])
    store.gate.set()
    assert wait_copied(copies, c, PATIENCE) is not None
    assert copied(copies) == keys(store, a, c)
    assert copies.open(b) is None


def test_copies_of_other_urls_names_and_contents_are_other_copies(store):
    shard = put(store, "a")
    others = [RemoteShard("b", SIZE, shard.crc32c), RemoteShard("a", 1, shard.crc32c), RemoteShard("a", SIZE, 1)]
    found = {copy_key(store.url, each) for each in (shard, *others)} | {copy_key("memory://x", shard)}
    assert len(found) == 5


def test_the_one_used_longest_ago_goes_first(store, make_copies):
    a, b, c, d = (put(store, name) for name in "abcd")
    copies = make_copies(shards=3)
    for shard in (a, b, c):
        use(copies, shard)
    assert copies.open(a) is not None
    use(copies, d)
    assert copied(copies) == keys(store, a, c, d)
    assert copies.statistics().evictions == 1


def test_what_is_due_last_goes_first_when_all_are_due(store, make_copies):
    a, b, c, d = (put(store, name) for name in "abcd")
    copies = make_copies(shards=3)
    for shard in (a, b, c):
        use(copies, shard)
    copies.fetch([d, a, b, c])
    in_use = wait_copied(copies, d, PATIENCE)
    assert in_use == store.read("d")
    assert copied(copies) == keys(store, a, b, d)


def test_what_is_ahead_does_not_go_for_what_is_further_ahead(store, make_copies):
    a, b, c, d = (put(store, name) for name in "abcd")
    copies = make_copies(shards=2)
    copies.fetch([a, b, c, d])
    assert wait_copied(copies, a, PATIENCE) is not None  # so c takes its place, and not that of b
    assert wait_copied(copies, c, PATIENCE) is not None
    assert wait_copied(copies, b, PATIENCE) is not None
    assert wait_copied(copies, d, PATIENCE) is not None
    assert copies.statistics().shards_fetched == 4


def test_nothing_is_fetched_further_ahead_than_there_is_room(store, make_copies):
    shards = [put(store, name) for name in "abcdef"]
    copies = make_copies(shards=2)
    copies.fetch(shards)
    assert wait_copied(copies, shards[4], A_WHILE) is None
    assert copied(copies) == keys(store, *shards[:2])
    for shard in shards:
        assert wait_copied(copies, shard, PATIENCE) is not None
    assert copies.statistics().used_bytes == 2 * SIZE


def test_what_is_in_use_stays_and_the_budget_is_exceeded_with_one_warning(store, make_copies, caplog):
    a, b, c, d = (put(store, name) for name in "abcd")
    copies = make_copies(shards=2)
    views = []
    for shard in (a, b, c, d):
        copies.fetch([shard])
        views.append(wait_copied(copies, shard, PATIENCE)[10:20])
    assert copied(copies) == keys(store, a, b, c, d)
    assert copies.statistics().used_bytes == 4 * SIZE
    (warning,) = warnings_of(caplog)
    assert "in use" in warning
    assert str(copies.folder) in warning
    assert [bytes(view) for view in views] == [store.read(name)[10:20] for name in "abcd"]
    views.clear()
    use(copies, put(store, "e"))
    assert copies.statistics().used_bytes == 2 * SIZE


def test_a_view_outlives_its_file(store, make_copies):
    shard = put(store, "a")
    copies = make_copies()
    copies.fetch([shard])
    view = wait_copied(copies, shard, PATIENCE)
    for path in copies.folder.iterdir():
        path.unlink()
    copies.close()
    assert bytes(view) == store.read("a")


def test_a_shard_larger_than_the_budget_is_left_to_ranges(store, make_copies, caplog):
    large, small = put(store, "large", 2 * SIZE + 1), put(store, "small")
    copies = make_copies(shards=2)
    copies.fetch([large, small])
    assert wait_copied(copies, small, PATIENCE) is not None
    assert copies.open(large) is None
    assert {name for name, _ in store.reads} == {"small"}
    (warning,) = warnings_of(caplog)
    assert "2,001 bytes" in warning
    assert "local_bytes" in warning


def test_a_copy_of_another_size_is_removed_and_fetched_again(store, make_copies, caplog):
    shard = put(store, "a")
    copies = make_copies()
    use(copies, shard)
    (path,) = copies.folder.glob("*.shard")
    os.truncate(path, 10)
    assert copies.open(shard) is None
    assert not path.exists()
    assert "has 10 bytes and should have 1000" in warnings_of(caplog)[0]
    use(copies, shard)
    assert len(store.reads) == 8


def test_a_copy_that_is_lost_while_it_is_due_is_fetched_again(store, make_copies):
    shard = put(store, "a")
    copies = make_copies()
    copies.fetch([shard])
    until(lambda: copies.statistics().shards_fetched == 1 and not copies._fetcher._downloads)
    for path in copies.folder.glob("*.shard"):
        path.unlink()
    assert bytes(wait_copied(copies, shard, PATIENCE)) == store.read("a")


def test_copies_continue_if_their_folder_is_tidied_away(store, make_copies):
    a, b = put(store, "a"), put(store, "b")
    copies = make_copies()
    use(copies, a)
    for path in copies.folder.iterdir():
        path.unlink()
    copies.folder.rmdir()
    use(copies, b)
    assert copied(copies) == keys(store, b)


@pytest.mark.parametrize(("first", "is_bug"), [(StoreError("reset"), False), (ZeroDivisionError("reset"), True)])
def test_a_store_that_fails_is_asked_again_and_logged_once(store, make_copies, caplog, monkeypatch, first, is_bug):
    """A bug of ours is logged with its trace."""
    monkeypatch.setattr(copies_fetcher, "_FIRST_RETRY_SECONDS", 0.01)
    shard = put(store, "a", 200)
    failures = iter([first, ValueError("odd"), StoreError("reset")])

    def fault(name, buffer, found):
        for error in failures:
            raise error
        return found

    store.fault = fault
    copies = make_copies()
    use(copies, shard)
    assert next(failures, None) is None
    (warning,) = warnings_of(caplog)
    assert f"{store.url}/a" in warning
    assert "reset" in warning
    (record,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert bool(record.exc_info) == is_bug
    assert copies.statistics().retries == 3
    assert len(store.reads) == 4


def damage(times):
    left = [times]

    def fault(name, buffer, found):
        if left[0]:
            left[0] -= 1
            buffer[0] ^= 1
        return found

    return fault, left


def test_a_shard_that_is_damaged_each_time_is_an_error(store, make_copies):
    a, b = put(store, "a", 200), put(store, "b", 200)
    broken, left = damage(1000)
    store.fault = lambda name, buffer, found: broken(name, buffer, found) if name == "a" else found
    copies = make_copies()
    copies.fetch([a, b])
    assert wait_copied(copies, b, PATIENCE) is not None
    with pytest.raises(ShardError, match=f"{store.url}/a: .*CRC-32C .* 3 downloads"):
        wait_copied(copies, a, PATIENCE)
    assert left == [997]
    copies.fetch([a])
    with pytest.raises(ShardError):
        copies.open(a)
    assert copied(copies) == keys(store, b)
    assert not list(copies.folder.glob("*.part"))


def test_an_object_that_ends_too_soon_is_an_error(store, make_copies):
    data = store.read(put(store, "a").name)
    copies = make_copies()
    longer = RemoteShard("a", SIZE + 1, crc32c.crc32c(data + b"x"))
    copies.fetch([longer])
    with pytest.raises(ShardError, match=r"1000 bytes.* 1001 bytes"):
        wait_copied(copies, longer, PATIENCE)


def test_a_generation_with_the_same_bytes_is_copied(store, make_copies):
    shard = put(store, "a")
    before = store.stat("a")
    store.put("a", data := store.read("a"), before)
    assert store.stat("a").version != before.version
    copies = make_copies()
    copies.fetch([shard])
    assert wait_copied(copies, shard, PATIENCE) == data


def test_a_shard_that_is_replaced_in_mid_download_is_not_mixed(store, make_copies, caplog):
    shard = put(store, "a")
    data = store.read("a")

    def replace(name, buffer, count):
        if store.read(name) == data:
            store.put(name, bytes(SIZE), store.stat(name))
        return count

    store.fault = replace
    copies = make_copies(range_bytes=100, connections=1)
    copies.fetch([shard])
    with pytest.raises(ShardError, match=r"CRC-32C .* 3 downloads"):
        wait_copied(copies, shard, PATIENCE)
    assert "generation" in warnings_of(caplog)[0]


def descriptors():
    return sorted(os.listdir("/proc/self/fd"))


def copy_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("tpufeed-copies")]


@pytest.mark.parametrize("held", [False, True], ids=["idle", "mid-download"])
def test_closing_leaves_no_thread_descriptor_or_part(store, make_copies, held):
    gc.collect()
    before = descriptors()
    shards = [put(store, name) for name in "abc"]
    copies = make_copies()
    copies.fetch(shards[:1])
    assert wait_copied(copies, shards[0], PATIENCE) is not None
    if held:
        store.gate.clear()
    copies.fetch(shards[1:])
    threading.Timer(0.1, store.gate.set).start()
    copies.close()
    copies.close()
    assert not copy_threads()
    until(lambda: not any(isinstance(thread, threading.Timer) for thread in threading.enumerate()))
    assert descriptors() == before
    assert not list(copies.folder.glob("*.part"))
    use(copies, shards[2])
    assert len(copy_threads()) == 3


def test_copies_that_are_dropped_end_their_threads(store, tmp_path):
    copies = LocalCopies(store, tmp_path, 10 * SIZE, connections=2)
    shard = put(store, "a")
    use(copies, shard)
    threads = copy_threads()
    assert len(threads) == 3
    del copies
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()


def test_many_threads_may_use_the_same_copies(store, make_copies):
    shards = [put(store, f"s{number}") for number in range(12)]
    copies = make_copies(shards=5, connections=4)
    wrong = []

    def read(seed):
        order = random.Random(seed).sample(shards, len(shards))
        for shard in order:
            with suppress(TypeError):  # None: it had to go
                copies.fetch([shard, *order])
                if bytes(wait_copied(copies, shard, 1)) != store.read(shard.name):
                    wrong.append(shard)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert copies.statistics().hits > 0


@pytest.mark.parametrize("options", [{"budget_bytes": 0}, {"connections": 0}, {"range_bytes": 0}])
def test_numbers_must_be_numbers(store, tmp_path, options):
    with pytest.raises(OptionError):
        LocalCopies(store, tmp_path, **options)
