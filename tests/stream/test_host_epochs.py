"""From one epoch to the next: prepared ahead, endless, counted, copied."""

import itertools
import threading
import time

import numpy as np
import pytest

import tpufeed
from tpufeed.errors import LoaderError, RecordError
from tpufeed.images import CenterCrop, Custom
from tpufeed.stream.host import EpochPrefetch

MOMENT_SECONDS = 0.02


def make(url, **options):
    return tpufeed.Loader(url, **{"batch_size": 10, "columns": ["sample", "image"], "threads": 2} | options)


def same(batches, others):
    for batch, other in zip(batches, others, strict=True):
        for one, another in zip(batch, other, strict=True):
            np.testing.assert_array_equal(one, another)


def test_the_next_epoch_is_prepared_while_the_last_batches_are_used(cache_url):
    with make(cache_url, prefetch=3) as loader:
        iterator = iter(loader)
        for _ in range(6):
            next(iterator)
        submitted = []
        begin = loader.stream._executor.submit
        loader.stream._executor.submit = lambda request: submitted.append(request.epoch) or begin(request)
        next(iterator)
        assert next(iterator, None) is None
        assert submitted == [1], "the third of three: two were in work already"
        ahead = list(loader)
        assert len(submitted) == 1 + 4 + 3, "those three were not begun again, and three of epoch 2 were"
    with make(cache_url) as other:
        other.set_epoch(1)
        same(ahead, other)


@pytest.mark.parametrize("move", ["set_epoch", "load_state_dict"])
def test_what_was_prepared_for_another_epoch_is_dropped(cache_url, move):
    with make(cache_url, prefetch=3) as loader, make(cache_url) as other:
        state = other.state_dict()
        list(loader)
        loader.set_epoch(0) if move == "set_epoch" else loader.load_state_dict(state)
        same(loader, other)


def test_an_iteration_that_is_never_begun_is_no_epoch(cache_url):
    """Lightning asks for an iterator to see whether there is one."""
    with make(cache_url) as loader, make(cache_url) as other:
        iter(loader)
        unused = iter(loader)
        assert loader.state_dict() == other.state_dict()
        same(loader, other)
        del unused
        same(loader, other)


@pytest.mark.parametrize("move", ["set_epoch", "load_state_dict"])
def test_moving_in_the_middle_of_an_epoch_is_an_error_of_its_iteration(cache_url, move):
    with make(cache_url) as loader:
        state = loader.state_dict()
        iterator = iter(loader)
        next(iterator)
        loader.set_epoch(1) if move == "set_epoch" else loader.load_state_dict(state)
        with pytest.raises(LoaderError, match="set_epoch"):
            next(iterator)
        assert len(list(loader)) == 7


@pytest.mark.first_cases(6)
@pytest.mark.parametrize("begun", [[], [0], [1], [0, 1], [1, 0]], ids=str)
@pytest.mark.parametrize("move", ["set_epoch", "load_state_dict"])
@pytest.mark.parametrize("repeat", [False, True])
def test_no_iteration_opened_before_a_move_goes_on(cache_url, move, begun, repeat):
    """Whichever it is: frameworks call `iter` to see whether they can, and one keeps what it gets."""
    with make(cache_url, repeat=repeat) as loader, make(cache_url) as other:
        iterators = [iter(loader) for _ in range(3)]
        for number in begun:
            next(iterators[number])
        if move == "set_epoch":
            loader.set_epoch(5)
            other.set_epoch(5)
        else:
            state = other.stream.state_at(4, 30)
            loader.load_state_dict(state)
            other.load_state_dict(state)
        for iterator in iterators:
            with pytest.raises(LoaderError):
                next(iterator)
        assert loader.state_dict() == other.state_dict()
        same(itertools.islice(loader, len(other) if move == "set_epoch" else 4), other)


def test_naming_the_next_epoch_ends_each_iteration_under_way_and_no_other(cache_url):
    with make(cache_url) as loader, make(cache_url) as other:
        first, second, third = (iter(loader) for _ in range(3))
        next(first)
        loader.set_epoch(1)
        with pytest.raises(LoaderError):
            next(first)
        other.set_epoch(1)
        same(second, other)
        same(third, other)


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("remainder", ["drop", "pad", "repeat"])
def test_a_state_after_all_batches_of_an_epoch_is_that_of_its_end(cache_url, remainder, mixed):
    options = {"batch_size": 15, "remainder": remainder}
    data = tpufeed.Mixture({cache_url: 1}) if mixed else cache_url
    with make(data, **options) as loader, make(data, **options) as other:
        state = loader.state_dict(batches=len(list(loader)))
        assert state == loader.state_dict()
        other.load_state_dict(state)
        same(other, loader)


@pytest.mark.parametrize("processes", [0, 1])
def test_statistics(cache_url, dataset_url, ops, processes):
    with make(cache_url, processes=processes, threads=1, prefetch=2) as loader:
        assert loader.stats().batches == 0
        for _ in loader:
            pass
        first = loader.stats()
        for _ in loader:
            pass
        second = loader.stats()
    assert (first.batches, first.samples, first.processes, first.threads) == (7, 70, processes, 1)
    assert (second.batches, second.samples) == (14, 140)
    assert 0 < first.wait_seconds <= first.seconds <= second.seconds
    assert 70 * 64 * 64 * 3 < first.read_bytes < 70 * 64 * 64 * 3 * 1.1
    assert first.read_seconds > 0
    assert (first.prefetch, first.buffer_bytes) == (2, 2 * 10 * 64 * 64 * 3)
    assert 1 <= first.waits <= 7
    with make(dataset_url, ops=[*ops, Custom("tests.stream.test_host_epochs:take_a_moment")]) as loader:
        list(loader)
        slow = loader.stats()
    assert slow.decode_seconds >= 70 * MOMENT_SECONDS, "ops are counted as decoding"


def test_an_error_while_the_next_epoch_is_prepared_loses_none_of_it(cache_url):
    with make(cache_url, prefetch=3) as loader, make(cache_url) as other:
        iterator = iter(loader)
        for _ in range(6):
            next(iterator)
        begin = loader.stream._executor.submit
        loader.stream._executor.submit = lambda _: 1 / 0
        with pytest.raises(ZeroDivisionError):
            next(iterator)
        loader.stream._executor.submit = begin
        other.set_epoch(1)
        same(loader, other)


def test_closing_from_another_thread_ends_the_wait_for_a_batch_of_many_chunks(dataset_url):
    slow = Custom("tests.stream.test_host_epochs:take_a_moment")
    options = {"ops": [CenterCrop(64), slow], "batch_size": 70, "threads": 1, "prefetch": 1, "timeout_seconds": 60}
    with make(dataset_url, **options) as loader:
        threading.Timer(0.2, loader.close).start()
        begun = time.monotonic()
        with pytest.raises(LoaderError, match="closed"):
            next(iter(loader))
        assert time.monotonic() - begun < 30


@pytest.mark.parametrize("options", [{}, {"repeat": True}], ids=str)
def test_closing_from_another_thread_starts_no_worker_for_the_next_epoch(cache_url, options, monkeypatch):
    """At the one moment between the checks of `next` and the opening of the epoch that follows."""
    closed = []

    def submit_and_close(prefetch, batches, submit=EpochPrefetch.submit):
        room = submit(prefetch, batches)
        if room > 0 and not closed:
            closed.append(room)
            loader.close()
        return room

    with make(cache_url, prefetch=2, **options) as loader:
        iterator = iter(loader)
        for _ in range(5):
            next(iterator)
        monkeypatch.setattr(EpochPrefetch, "submit", submit_and_close)
        with pytest.raises(LoaderError, match="closed"):
            list(iterator)
        assert closed
        assert loader.stream._executor is None


def take_a_moment(image, _):
    time.sleep(MOMENT_SECONDS)
    return image


def test_a_batch_that_fails_is_raised_when_nobody_writes_to_its_memory_any_more(cache_url, damage):
    """Its memory is the next batch's."""
    damaged = damage(cache_url, 3).url
    with make(damaged, shuffle=False, batch_size=70, threads=2) as loader:
        begun, ended = [], []
        decode = loader.stream._decoder.decode

        def watched(work, *rows):
            begun.append(id(work))
            try:
                time.sleep(0.05 * len(begun))
                return decode(work, *rows)
            finally:
                ended.append(id(work))

        loader.stream._decoder.decode = watched
        iterator = iter(loader)
        with pytest.raises(RecordError):
            next(iterator)
        assert begun.count(begun[0]) == ended.count(begun[0])
