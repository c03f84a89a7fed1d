"""Loader and its kin on gs://: the same samples as from a folder, and no request that local copies make needless."""

import json
import subprocess
import sys
import threading
import time
import zlib
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

import tpufeed
from tests.frameworks import lazy
from tests.gcs_server import GcsServer
from tpufeed.dataset.reader import open_dataset
from tpufeed.stream.executor import ThreadExecutor

DataLoader = lazy("torch.utils.data:DataLoader")

READER = Path(__file__).with_name("remote_reader.py")
URL = "gs://bucket/cache"


def put_folder(server, folder, name):
    for path in sorted(Path(folder).rglob("*")):
        if path.is_file():
            server.put("bucket", f"{name}/{path.relative_to(folder)}", path.read_bytes())


@pytest.fixture(scope="module")
def running(dataset_url, cache_url):
    """The server with a dataset and a cache of two variants."""
    with GcsServer(process=True, md5=False) as server, pytest.MonkeyPatch.context() as patch:
        for key, value in server.environment().items():
            patch.setenv(key, value)
        put_folder(server, dataset_url, "dataset")
        put_folder(server, cache_url, "cache")
        yield server


@pytest.fixture
def server(running):
    running.clear_faults()
    running.clear_log()
    return running


def make(url, **options):
    given = {"columns": ["sample", "image"], "batch_size": 10, "threads": 2}
    return tpufeed.Loader(url, **given | options)


def epoch_of(batches):
    return [[[int(s), zlib.crc32(image)] for s, image in zip(*batch, strict=True)] for batch in batches]


def epochs_of(url, count=1, **options):
    with make(url, **options) as loader:
        return [epoch_of(loader) for _ in range(count)]


def whole_reads(server, name="cache"):
    """How often each object was fetched whole: only local copies need that."""
    found = Counter()
    for record in server.requests(operation="read", name=f"{name}/*"):
        if record.range == f"bytes=0-{len(server.get('bucket', record.name)) - 1}":
            found[record.name] += 1
    return found


def files_of(url, split="train"):
    return [file for variant in open_dataset(url).split(split).variants for file in variant.files]


STRANGERS = set()  # threads of loaders that tests of other files have left to the garbage collector


@pytest.fixture(autouse=True)
def strangers():
    STRANGERS.clear()
    STRANGERS.update(threading.enumerate())


def loader_threads():
    found = set(threading.enumerate()) - STRANGERS
    return [thread.name for thread in found if thread.name.startswith("tpufeed-")]


# Samples


@pytest.mark.parametrize(("copied", "shuffle"), [(True, True), (False, False)], ids=["copies", "ranges, in order"])
def test_samples_are_those_of_the_local_cache(server, cache_url, copied, shuffle, tmp_path):
    options = {"local_dir": tmp_path} if copied else {"local_bytes": 0}
    expected = epochs_of(cache_url, 4, shuffle=shuffle, seed=3)
    assert epochs_of(URL, 4, shuffle=shuffle, seed=3, **options) == expected
    assert server.requests(operation="read", name="*.tfrecord")
    assert loader_threads() == []


@pytest.mark.all
def test_worker_processes_share_what_one_more_process_copies(server, cache_url, tmp_path):
    shards = {f"cache/{file.name}" for file in files_of(cache_url) if file.name.endswith(".tfrecord")}
    with make(URL, seed=3, processes=2, threads=1, local_dir=tmp_path) as loader:
        found = [epoch_of(loader) for _ in range(2)]
        deadline = time.monotonic() + 60
        while not shards <= whole_reads(server).keys() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert {whole_reads(server)[name] for name in shards} == {1}, "once each"
        server.clear_log()
        found += [epoch_of(loader) for _ in range(2)]
        assert not server.requests(operation="read", name="*.tfrecord")
    assert found == epochs_of(cache_url, 4, seed=3)


@pytest.mark.all
def test_samples_are_those_of_the_local_dataset(server, dataset_url, ops, tmp_path):
    """JPEGs, with ops, and every column."""
    options = {"ops": ops, "remainder": "pad", "columns": ["sample", "image", "label", "filename"]}
    with make(dataset_url, **options) as local, make("gs://bucket/dataset", local_dir=tmp_path, **options) as remote:
        for _ in range(2):
            for ours, theirs in zip(local, remote, strict=True):
                assert all(map(np.array_equal, ours, theirs))


def test_two_ranks_are_those_of_the_local_cache_and_share_copies(server, cache_url, tmp_path):
    """Each shard is fetched once, though both ranks read some of them."""
    worlds = [{"world": (rank, 2), "lanes": 4, "batch_size": 5} for rank in range(2)]
    with ExitStack() as stack:
        loaders = [stack.enter_context(make(URL, local_dir=tmp_path, **world)) for world in worlds]
        found = [[epoch_of(loader) for _ in range(2)] for loader in loaders]
    assert found == [epochs_of(cache_url, 2, **world) for world in worlds]
    seen = [sample for epochs in found for batch in epochs[0] for sample, _ in batch]
    assert len(set(seen)) == len(seen) == 70
    assert set(whole_reads(server).values()) == {1}


# Requests


@pytest.mark.all
def test_two_variants_are_remote_for_two_epochs(server, cache_url, tmp_path):
    local = epochs_of(cache_url, 4)
    with make(URL, local_dir=tmp_path) as loader:
        assert [epoch_of(loader) for _ in range(2)] == local[:2]
        wait_until_copied(tmp_path, files_of(cache_url))
        assert whole_reads(server) == dict.fromkeys((f"cache/{file.name}" for file in files_of(cache_url)), 1)
        server.clear_log()
        assert [epoch_of(loader) for _ in range(2)] == local[2:]
    assert server.log == []


def wait_until_copied(parent, files, seconds=60):
    """The last copies may come after the epoch whose batches have not waited for them."""
    done, left = threading.Event(), int(seconds / 0.02)
    while len(copies(parent)) < len(files) and left:
        done.wait(0.02)
        left -= 1
    assert sorted(path.stat().st_size for path in copies(parent)) == sorted(file.bytes for file in files)


def copies(parent):
    return list(Path(parent).glob("*/*.shard"))


@pytest.mark.all
def test_the_next_process_finds_the_copies(server, cache_url, tmp_path):
    """All it asks for is the manifest."""
    with make(URL, local_dir=tmp_path) as loader:
        first = [epoch_of(loader) for _ in range(2)]
        wait_until_copied(tmp_path, files_of(cache_url))
    server.clear_log()
    assert epochs_of(URL, 2, local_dir=tmp_path) == first
    assert [record.name for record in server.log] == ["cache/manifest.json"]


def read_in_processes(count, url, copies, epochs):
    """What remote_reader.py wrote down in each of some processes, none of which ends before all are through."""
    command = [sys.executable, *map(str, (READER, url, copies, epochs))]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen(command, **pipes) for _ in range(count)]
    found = [process.stdout.readline() for process in processes]
    for process in processes:
        process.communicate()
    assert [process.returncode for process in processes] == [0] * count
    return list(map(json.loads, found))


@pytest.mark.all
def test_two_processes_share_copies(server, cache_url, tmp_path):
    """At the same time; each object is fetched whole once, by one of them."""
    server.configure(latency_ms=20)
    try:
        found = read_in_processes(2, URL, tmp_path, 4)
    finally:
        server.configure(latency_ms=0)
    assert found == [epochs_of(cache_url, 4)] * 2
    fetched = whole_reads(server)
    assert set(fetched.values()) == {1}
    assert fetched.keys() == {f"cache/{file.name}" for file in files_of(cache_url)}


def test_an_epoch_begins_with_few_batches_ahead_where_shards_have_to_come(server, cache_url, tmp_path, monkeypatch):
    """Until then each record is a request, and a host of many cores would prepare a hundred batches."""
    submitted = []
    submit = ThreadExecutor.submit
    monkeypatch.setattr(ThreadExecutor, "submit", lambda *given: submitted.append(1) or submit(*given))

    def prepared(url, **options):
        """Batches in work when each of the first three comes."""
        submitted.clear()
        with make(url, batch_size=2, prefetch=9, **options) as loader:
            iterator = iter(loader)
            return [(next(iterator), len(submitted) - number)[1] for number in range(3)]

    assert prepared(cache_url) == [10, 10, 10]
    assert prepared(URL, local_dir=tmp_path) == [5, 7, 9]


# Budgets


@pytest.mark.all
def test_without_copies_all_is_read_by_ranges(server, cache_url, tmp_path):
    assert epochs_of(URL, 2, local_dir=tmp_path, local_bytes=0) == epochs_of(cache_url, 2)
    first = len(server.log)
    assert epochs_of(URL, 4, local_dir=tmp_path, local_bytes=0) == epochs_of(cache_url, 4)
    assert len(server.log) - first >= 1.8 * first
    assert not whole_reads(server)
    assert not list(tmp_path.iterdir())


@pytest.mark.all
@pytest.mark.parametrize("budget", ["1KB", "400KB"])
def test_a_budget_that_is_too_small_still_gives_every_sample(server, cache_url, budget, tmp_path):
    """For any shard, and for the six of a variant."""
    assert epochs_of(URL, 4, local_dir=tmp_path, local_bytes=budget) == epochs_of(cache_url, 4)
    assert whole_reads(server)  # a copy may have gone again for one that closing the loader cut short
    assert not list(tmp_path.glob("*/*.part"))
    if budget == "1KB":  # the indexes
        assert max((path.stat().st_size for path in copies(tmp_path)), default=0) <= 1000


@pytest.mark.all
def test_copies_on_a_full_disk_give_every_sample(server, cache_url, tmp_path, monkeypatch, caplog):
    """There is room for three shards of twelve, whatever the budget says."""
    disk_bytes = 3 * 160_000

    def free_bytes(folder):
        return disk_bytes - sum(file.stat().st_blocks * 512 for file in folder.iterdir())

    monkeypatch.setattr("tpufeed.storage.copies_folder.free_bytes", free_bytes)
    assert epochs_of(URL, 4, local_dir=tmp_path, local_bytes="1GB") == epochs_of(cache_url, 4)
    assert "is full" in caplog.text
    assert copies(tmp_path)
    assert not list(tmp_path.glob("*/*.part"))


# Ends


@pytest.mark.all
def test_close_leaves_no_thread_and_no_part_and_may_be_followed_by_an_epoch(server, cache_url, tmp_path):
    server.configure(latency_ms=30)
    try:
        loader = make(URL, local_dir=tmp_path)
        next(iter(loader))
        assert any(name.startswith("tpufeed-copies") for name in loader_threads())
        loader.close()
    finally:
        server.configure(latency_ms=0)
    assert loader_threads() == []
    assert not list(tmp_path.glob("*/*.part"))
    assert epoch_of(loader) == epochs_of(cache_url, 2)[1]
    loader.close()
    assert loader_threads() == []


# Other loaders


@pytest.mark.all
@pytest.mark.uses("torch")
def test_torch_reads_a_bucket(server, cache_url, stored):
    """A forked worker reads over its own connections."""
    dataset = tpufeed.TFRecordImages(URL)
    for epoch in range(2):
        dataset.set_epoch(epoch)
        images = np.concatenate([batch.numpy() for batch, _ in DataLoader(dataset, 10, num_workers=1)])
        np.testing.assert_array_equal(images, stored(cache_url, "train", epoch).pixels)
    assert server.requests(operation="read", name="*-v1-*.tfrecord")
