"""Threads and open shards of Loader: whose they are, and that they go."""

import gc
import os
import resource
import subprocess
import sys
import threading
import time
from contextlib import nullcontext
from pathlib import Path

import cv2
import numpy as np
import pytest

import tpufeed
from tests.dataset.lanes import lane_parts
from tpufeed.dataset import records as records_module
from tpufeed.dataset.order import EpochOrder
from tpufeed.dataset.reader import open_dataset
from tpufeed.errors import LoaderError, RecordError
from tpufeed.storage.local import map_file

THREADS = 3


def decoding_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("tpufeed-decode")]


def wait_until_gone(threads):
    """Threads of a dropped executor end on their own; the deadline only keeps a failing test from hanging."""
    deadline = time.monotonic() + 60
    while any(thread.is_alive() for thread in threads) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not any(thread.is_alive() for thread in threads)


@pytest.fixture(autouse=True)
def no_thread_stays():
    assert wait_until_gone(decoding_threads())
    yield
    gc.collect()
    assert wait_until_gone(decoding_threads())


def make(url, **options):
    return tpufeed.Loader(url, **{"batch_size": 10, "threads": THREADS} | options)


# Threads


def test_one_loader_has_its_threads_however_often_it_is_left_early(cache_url):
    with make(cache_url) as loader:
        seen = set()
        for _ in range(30):
            for _batch in loader:
                break
            seen |= set(decoding_threads())
    assert 1 <= len(seen) <= THREADS
    assert not decoding_threads()


def test_close_leaves_no_thread_and_the_next_iteration_goes_on(cache_url):
    loader = make(cache_url)
    for epoch in range(3):
        iterator = iter(loader)
        assert iterator.epoch == epoch
        next(iterator)
        assert decoding_threads()
        loader.close()
        assert not decoding_threads()
        with pytest.raises(LoaderError, match="closed"):
            next(iterator)
    loader.close()


def test_the_newest_iteration_counts(cache_url):
    with make(cache_url) as loader, make(cache_url) as other:
        older, newer = iter(loader), iter(loader)
        next(older), next(newer)
        with pytest.raises(LoaderError, match="another iteration"):
            next(older)
        state = loader.state_dict()
        assert (state["epoch"], state["samples"]) == (1, 10)
        assert len(list(newer)) == len(other) - 1


def test_an_iterator_that_is_dropped_gives_up_what_it_was_preparing(dataset_url, ops):
    """Else each `break` would leave work to do for the next epoch's threads."""
    with make(dataset_url, ops=ops, threads=1, prefetch=60, batch_size=1) as loader:
        iterator = iter(loader)
        next(iterator)
        pending = [future for batch in iterator._prefetch.futures for future in batch.chunks]
        assert not any(future.cancelled() for future in pending)
        del iterator
        loader.set_epoch(5)
        assert len(pending) == 60
        assert any(future.cancelled() for future in pending)
        assert all(future.done() or future.running() for future in pending)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("how", ["break", "exception", "not finished", "damaged record"])
def test_loaders_that_are_forgotten_take_their_threads_along(cache_url, damage, how):
    """Without the help of the garbage collector, which training loops like to switch off."""
    started = set()
    url = damage(cache_url, 33).url if how == "damaged record" else cache_url
    gc.disable()
    try:
        for _ in range(20):
            forget(url, how, started)
        assert len(started) >= 20
        assert wait_until_gone(started)
    finally:
        gc.enable()


def test_a_batch_that_is_given_up_while_it_is_waited_for_keeps_no_thread(dataset_url, ops):
    started = set()
    gc.disable()
    try:
        give_up(dataset_url, ops, started)
        assert started
        assert wait_until_gone(started)
    finally:
        gc.enable()


def give_up(url, ops, started):
    iterator = iter(make(url, ops=ops, threads=1, prefetch=60, batch_size=1))
    next(iterator)
    started |= set(decoding_threads())
    for pending in iterator._prefetch.futures:
        pending.cancel()
    with pytest.raises(LoaderError, match="closed"):
        list(iterator)


def forget(url, how, started):
    loader = make(url)
    if how == "not finished":
        next(iter(loader))
        started |= set(decoding_threads())
        return
    with pytest.raises((KeyError, RecordError)) if how != "break" else nullcontext():
        for _batch in loader:
            started |= set(decoding_threads())
            if how == "exception":
                raise KeyError
            if how == "break":
                break


@pytest.mark.all
def test_a_process_ends_though_an_iteration_is_open(dataset_url):
    code = (
        "import sys, tpufeed; ops = [tpufeed.images.RandomResizedCrop(64)]; "
        "epoch = iter(tpufeed.Loader(sys.argv[1], ops=ops, batch_size=1, prefetch=60)); next(epoch)"
    )
    command = [sys.executable, "-c", code, dataset_url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert (done.returncode, done.stderr) == (0, "")


# Shards


@pytest.fixture(scope="module")
def many_shards(tmp_path_factory):
    """200 shards of three images of 8x8 pixels."""
    folder = tmp_path_factory.mktemp("many")
    (folder / "images").mkdir()
    for number in range(600):
        cv2.imwrite(str(folder / f"images/{number:03d}.png"), np.full((8, 8, 3), number % 256, np.uint8))
    tpufeed.shard(
        folder / "images", folder / "d", shards=200, images=tpufeed.Images(check="header"), label="none", workers=1
    )
    return folder / "d"


@pytest.fixture
def few_descriptors():
    """As under `ulimit -n` of 30 more than there are."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 30, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.all
@pytest.mark.parametrize("lanes", [200, 120, 7])
def test_each_part_of_a_shard_is_opened_once_however_many_lanes_there_are(
    lanes, many_shards, few_descriptors, monkeypatch
):
    opened = []
    monkeypatch.setattr(records_module, "map_file", lambda *given: opened.append(given) or map_file(*given))
    dataset = open_dataset(many_shards)
    order = EpochOrder([shard.records for shard in dataset.split("train").variants[0].shards], 0, 0, lanes)
    parts = sum(len(lane_parts(order, lane)) for lane in range(lanes))
    options = {"lanes": lanes, "threads": 1, "processes": 0, "batch_size": 10, "prefetch": 1}
    with make(many_shards, ops=[], columns=["sample"], **options) as loader:
        assert sorted(sample for samples in loader for sample in samples.tolist()) == list(range(600))
    # And what the next epoch begins with: two batches of it may be prepared already.
    assert 200 <= len(opened) <= parts + max(lanes, 20)


def test_where_fewer_shards_may_be_open_than_lanes_read_not_each_record_opens_one(many_shards, monkeypatch):
    opened = []
    monkeypatch.setattr(records_module, "map_file", lambda *given: opened.append(given) or map_file(*given))
    monkeypatch.setattr(records_module, "_MOST_MAPPED", 150)
    options = {"lanes": 200, "threads": 1, "processes": 0, "batch_size": 10, "prefetch": 1}
    with make(many_shards, ops=[], columns=["sample"], **options) as loader:
        assert sorted(sample for samples in loader for sample in samples.tolist()) == list(range(600))
    assert 200 <= len(opened) < 500  # of 600 records; in the order in which they were opened all of them


def test_the_files_of_a_closed_loader_are_open_no_more(many_shards):
    def mapped():
        return sum(f"{many_shards}/" in line for line in Path("/proc/self/maps").read_text().splitlines())

    loader = make(many_shards, ops=[], columns=["sample"], processes=0)
    next(iter(loader))
    assert mapped()
    loader.close()
    assert not mapped()
