"""Staged copies within one process: what is fetched, in which order, and what goes for it."""

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

from tests.stages import wait_staged
from tpufeed.errors import OptionError, ShardError, StoreError
from tpufeed.storage import stage_fetcher
from tpufeed.storage.memory import MemoryStore
from tpufeed.storage.stage import ShardStage
from tpufeed.storage.stage_folder import RemoteShard, StageFolder, copy_key

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
def make_stage(store, tmp_path):
    stages = []

    def make(shards=100, **options):
        options = {"connections": 2, "range_bytes": 300, **options}
        stages.append(ShardStage(store, tmp_path, shards * SIZE, **options))
        return stages[-1]

    yield make
    store.gate.set()
    for stage in stages:
        stage.close()


def use(stage, shard):
    """Fetch it, look at it, and let it go."""
    stage.fetch([shard])
    assert wait_staged(stage, shard, PATIENCE) is not None


def staged(stage):
    return {path.stem for path in stage.folder.glob("*.shard")}


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
def test_a_copy_is_the_shard(store, make_stage, size):
    shard = put(store, "a", size)
    stage = make_stage()
    assert stage.open(shard) is None
    stage.fetch([shard])
    view = wait_staged(stage, shard, PATIENCE)
    assert view is not None
    assert bytes(view) == store.read("a")
    assert sorted(start for _, start in store.reads) == list(range(0, size, 300))
    found = stage.statistics()
    assert (found.shards_fetched, found.bytes_fetched, found.hits, found.used_bytes) == (1, size, 1, size)
    assert found.misses > 0
    assert not list(stage.folder.glob("*.part"))


def test_opening_never_waits_for_a_download(store, make_stage):
    shard = put(store, "a")
    stage = make_stage()
    store.gate.clear()
    stage.fetch([shard])
    assert store.begun.acquire(timeout=PATIENCE)
    assert stage.open(shard) is None
    store.gate.set()
    assert bytes(wait_staged(stage, shard, PATIENCE)) == store.read("a")


def test_shards_are_fetched_in_the_order_in_which_they_are_due(store, make_stage):
    shards = [put(store, name) for name in "cabd"]
    stage = make_stage(connections=1)
    stage.fetch(shards)
    assert wait_staged(stage, shards[-1], PATIENCE) is not None
    assert store.reads == [(name, start) for name in "cabd" for start in (0, 300, 600, 900)]


def test_what_is_opened_as_soon_as_it_appears_is_not_held(store, make_stage, monkeypatch):
    """Before the thread that has fetched it comes to note so."""
    a, b = put(store, "a"), put(store, "b")
    stage, publish = make_stage(), StageFolder.publish

    def publish_and_open(self, part):
        descriptor = publish(self, part)
        assert stage.open(a) is not None
        return descriptor

    monkeypatch.setattr(StageFolder, "publish", publish_and_open)
    stage.fetch([a])
    until(lambda: not stage._fetcher._downloads and stage.statistics().shards_fetched)
    monkeypatch.undo()
    use(make_stage(1), b)
    assert staged(stage) == keys(store, b)


def test_the_next_shard_begins_before_the_last_ranges_of_one_have_come(store, make_stage):
    a, b = put(store, "a"), put(store, "b")
    stage = make_stage(connections=6)
    store.gate.clear()
    stage.fetch([a, b])
    for _ in range(6):
        assert store.begun.acquire(timeout=PATIENCE)
    assert {name for name, _ in store.reads} == {"a", "b"}


def test_a_new_list_replaces_what_has_not_begun(store, make_stage):
    a, b, c = (put(store, name) for name in "abc")
    stage = make_stage(connections=1)
    store.gate.clear()
    stage.fetch([a, b])
    assert store.begun.acquire(timeout=PATIENCE)
    stage.fetch([c])
    store.gate.set()
    assert wait_staged(stage, c, PATIENCE) is not None
    assert staged(stage) == keys(store, a, c)
    assert stage.open(b) is None


def test_copies_of_other_urls_names_and_contents_are_other_copies(store):
    shard = put(store, "a")
    others = [RemoteShard("b", SIZE, shard.crc32c), RemoteShard("a", 1, shard.crc32c), RemoteShard("a", SIZE, 1)]
    found = {copy_key(store.url, each) for each in (shard, *others)} | {copy_key("memory://x", shard)}
    assert len(found) == 5


def test_the_one_used_longest_ago_goes_first(store, make_stage):
    a, b, c, d = (put(store, name) for name in "abcd")
    stage = make_stage(shards=3)
    for shard in (a, b, c):
        use(stage, shard)
    assert stage.open(a) is not None
    use(stage, d)
    assert staged(stage) == keys(store, a, c, d)
    assert stage.statistics().evictions == 1


def test_what_is_due_last_goes_first_when_all_are_due(store, make_stage):
    a, b, c, d = (put(store, name) for name in "abcd")
    stage = make_stage(shards=3)
    for shard in (a, b, c):
        use(stage, shard)
    stage.fetch([d, a, b, c])
    in_use = wait_staged(stage, d, PATIENCE)
    assert in_use == store.read("d")
    assert staged(stage) == keys(store, a, b, d)


def test_what_is_ahead_does_not_go_for_what_is_further_ahead(store, make_stage):
    a, b, c, d = (put(store, name) for name in "abcd")
    stage = make_stage(shards=2)
    stage.fetch([a, b, c, d])
    assert wait_staged(stage, a, PATIENCE) is not None  # so c takes its place, and not that of b
    assert wait_staged(stage, c, PATIENCE) is not None
    assert wait_staged(stage, b, PATIENCE) is not None
    assert wait_staged(stage, d, PATIENCE) is not None
    assert stage.statistics().shards_fetched == 4


def test_nothing_is_fetched_further_ahead_than_there_is_room(store, make_stage):
    shards = [put(store, name) for name in "abcdef"]
    stage = make_stage(shards=2)
    stage.fetch(shards)
    assert wait_staged(stage, shards[4], A_WHILE) is None
    assert staged(stage) == keys(store, *shards[:2])
    for shard in shards:
        assert wait_staged(stage, shard, PATIENCE) is not None
    assert stage.statistics().used_bytes == 2 * SIZE


def test_what_is_in_use_stays_and_the_budget_is_exceeded_with_one_warning(store, make_stage, caplog):
    a, b, c, d = (put(store, name) for name in "abcd")
    stage = make_stage(shards=2)
    views = []
    for shard in (a, b, c, d):
        stage.fetch([shard])
        views.append(wait_staged(stage, shard, PATIENCE)[10:20])
    assert staged(stage) == keys(store, a, b, c, d)
    assert stage.statistics().used_bytes == 4 * SIZE
    (warning,) = warnings_of(caplog)
    assert "in use" in warning
    assert str(stage.folder) in warning
    assert [bytes(view) for view in views] == [store.read(name)[10:20] for name in "abcd"]
    views.clear()
    use(stage, put(store, "e"))
    assert stage.statistics().used_bytes == 2 * SIZE


def test_a_view_outlives_its_file(store, make_stage):
    shard = put(store, "a")
    stage = make_stage()
    stage.fetch([shard])
    view = wait_staged(stage, shard, PATIENCE)
    for path in stage.folder.iterdir():
        path.unlink()
    stage.close()
    assert bytes(view) == store.read("a")


def test_a_shard_larger_than_the_budget_is_left_to_ranges(store, make_stage, caplog):
    large, small = put(store, "large", 2 * SIZE + 1), put(store, "small")
    stage = make_stage(shards=2)
    stage.fetch([large, small])
    assert wait_staged(stage, small, PATIENCE) is not None
    assert stage.open(large) is None
    assert {name for name, _ in store.reads} == {"small"}
    (warning,) = warnings_of(caplog)
    assert "2,001 bytes" in warning
    assert "stage_bytes" in warning


def test_a_copy_of_another_size_is_removed_and_fetched_again(store, make_stage, caplog):
    shard = put(store, "a")
    stage = make_stage()
    use(stage, shard)
    (path,) = stage.folder.glob("*.shard")
    os.truncate(path, 10)
    assert stage.open(shard) is None
    assert not path.exists()
    assert "has 10 bytes and should have 1000" in warnings_of(caplog)[0]
    use(stage, shard)
    assert len(store.reads) == 8


def test_a_copy_that_is_lost_while_it_is_due_is_fetched_again(store, make_stage):
    shard = put(store, "a")
    stage = make_stage()
    stage.fetch([shard])
    until(lambda: stage.statistics().shards_fetched == 1 and not stage._fetcher._downloads)
    for path in stage.folder.glob("*.shard"):
        path.unlink()
    assert bytes(wait_staged(stage, shard, PATIENCE)) == store.read("a")


def test_a_stage_goes_on_when_its_folder_is_tidied_away(store, make_stage):
    a, b = put(store, "a"), put(store, "b")
    stage = make_stage()
    use(stage, a)
    for path in stage.folder.iterdir():
        path.unlink()
    stage.folder.rmdir()
    use(stage, b)
    assert staged(stage) == keys(store, b)


@pytest.mark.parametrize(("first", "is_bug"), [(StoreError("reset"), False), (ZeroDivisionError("reset"), True)])
def test_a_store_that_fails_is_asked_again_and_logged_once(store, make_stage, caplog, monkeypatch, first, is_bug):
    """A bug of ours is logged with its trace."""
    monkeypatch.setattr(stage_fetcher, "_FIRST_RETRY_SECONDS", 0.01)
    shard = put(store, "a", 200)
    failures = iter([first, ValueError("odd"), StoreError("reset")])

    def fault(name, buffer, found):
        for error in failures:
            raise error
        return found

    store.fault = fault
    stage = make_stage()
    use(stage, shard)
    assert next(failures, None) is None
    (warning,) = warnings_of(caplog)
    assert f"{store.url}/a" in warning
    assert "reset" in warning
    (record,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert bool(record.exc_info) == is_bug
    assert stage.statistics().retries == 3
    assert len(store.reads) == 4


def damage(times):
    left = [times]

    def fault(name, buffer, found):
        if left[0]:
            left[0] -= 1
            buffer[0] ^= 1
        return found

    return fault, left


def test_a_shard_that_is_damaged_each_time_is_an_error(store, make_stage):
    a, b = put(store, "a", 200), put(store, "b", 200)
    broken, left = damage(1000)
    store.fault = lambda name, buffer, found: broken(name, buffer, found) if name == "a" else found
    stage = make_stage()
    stage.fetch([a, b])
    assert wait_staged(stage, b, PATIENCE) is not None
    with pytest.raises(
        ShardError, match=f"{store.url}/a: its CRC-32C is .* in each of 3 downloads. Run: tpufeed verify"
    ):
        wait_staged(stage, a, PATIENCE)
    assert left == [997]
    stage.fetch([a])
    with pytest.raises(ShardError):
        stage.open(a)
    assert staged(stage) == keys(store, b)
    assert not list(stage.folder.glob("*.part"))


def test_an_object_that_ends_too_soon_is_an_error(store, make_stage):
    data = store.read(put(store, "a").name)
    stage = make_stage()
    longer = RemoteShard("a", SIZE + 1, crc32c.crc32c(data + b"x"))
    stage.fetch([longer])
    with pytest.raises(ShardError, match=r"of 1000 bytes, .*; the manifest says 1001 bytes"):
        wait_staged(stage, longer, PATIENCE)


def test_a_generation_with_the_same_bytes_is_staged(store, make_stage):
    shard = put(store, "a")
    before = store.stat("a")
    store.put("a", data := store.read("a"), before)
    assert store.stat("a").version != before.version
    stage = make_stage()
    stage.fetch([shard])
    assert wait_staged(stage, shard, PATIENCE) == data


def test_a_shard_that_is_replaced_in_mid_download_is_not_mixed(store, make_stage, caplog):
    shard = put(store, "a")
    data = store.read("a")

    def replace(name, buffer, count):
        if store.read(name) == data:
            store.put(name, bytes(SIZE), store.stat(name))
        return count

    store.fault = replace
    stage = make_stage(range_bytes=100, connections=1)
    stage.fetch([shard])
    with pytest.raises(ShardError, match=r"CRC-32C .*; the manifest says .* in each of 3 downloads"):
        wait_staged(stage, shard, PATIENCE)
    assert "generation" in warnings_of(caplog)[0]


def descriptors():
    return sorted(os.listdir("/proc/self/fd"))


def stage_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("tpufeed-stage")]


@pytest.mark.parametrize("held", [False, True], ids=["idle", "mid-download"])
def test_closing_leaves_no_thread_descriptor_or_part(store, make_stage, held):
    gc.collect()
    before = descriptors()
    shards = [put(store, name) for name in "abc"]
    stage = make_stage()
    stage.fetch(shards[:1])
    assert wait_staged(stage, shards[0], PATIENCE) is not None
    if held:
        store.gate.clear()
    stage.fetch(shards[1:])
    threading.Timer(0.1, store.gate.set).start()
    stage.close()
    stage.close()
    assert not stage_threads()
    until(lambda: not any(isinstance(thread, threading.Timer) for thread in threading.enumerate()))
    assert descriptors() == before
    assert not list(stage.folder.glob("*.part"))
    use(stage, shards[2])
    assert len(stage_threads()) == 3


def test_a_stage_that_is_dropped_ends_its_threads(store, tmp_path):
    stage = ShardStage(store, tmp_path, 10 * SIZE, connections=2)
    shard = put(store, "a")
    use(stage, shard)
    threads = stage_threads()
    assert len(threads) == 3
    del stage
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()


def test_many_threads_may_use_a_stage(store, make_stage):
    shards = [put(store, f"s{number}") for number in range(12)]
    stage = make_stage(shards=5, connections=4)
    wrong = []

    def read(seed):
        order = random.Random(seed).sample(shards, len(shards))
        for shard in order:
            with suppress(TypeError):  # None: it had to go
                stage.fetch([shard, *order])
                if bytes(wait_staged(stage, shard, 1)) != store.read(shard.name):
                    wrong.append(shard)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert stage.statistics().hits > 0


@pytest.mark.parametrize("options", [{"budget_bytes": 0}, {"connections": 0}, {"range_bytes": 0}])
def test_numbers_must_be_numbers(store, tmp_path, options):
    with pytest.raises(OptionError):
        ShardStage(store, tmp_path, **options)
