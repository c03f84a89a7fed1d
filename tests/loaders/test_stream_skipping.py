"""Bad records within a budget: their slots repeat good samples, masked and counted, and nothing moves."""

import logging
from functools import partial

import numpy as np
import pytest

import tpufeed
from tpufeed.errors import OptionError, RecordError
from tpufeed.images import RandomCrop

OPTIONS = {"columns": ["sample", "image", "label"], "shuffle": False, "batch_size": 10}


@pytest.fixture(scope="module")
def damaged(cache_url, damage):
    """Sample 33 of variant 0."""
    return damage(cache_url, 33).url


def read(url, **options):
    with tpufeed.Loader(url, **OPTIONS | options) as loader:
        return list(loader), loader


@pytest.mark.parametrize(("processes", "threads"), [(0, 3), (1, 1)])
def test_the_slot_repeats_the_sample_before_it_masked_and_counted(damaged, cache_url, caplog, processes, threads):
    with caplog.at_level(logging.WARNING):
        batches, loader = read(damaged, max_bad_records=1, processes=processes, threads=threads)
    sound, _ = read(cache_url)
    assert len(batches) == len(sound) == 7
    for number, (batch, expected) in enumerate(zip(batches, sound, strict=True)):
        *columns, mask = batch
        assert mask.dtype == np.bool_
        rows = np.arange(10)
        if number == 3:
            rows[3] = 2
        assert mask.tolist() == (rows == np.arange(10)).tolist()
        for found, wanted in zip(columns, expected, strict=True):
            np.testing.assert_array_equal(found, wanted[rows])
    assert loader.stats().bad_records == 1
    assert any("bad record skipped, 1 of at most 1" in message and "record" in message for message in caplog.messages)


@pytest.mark.parametrize("error", [ValueError, KeyError])
def test_a_bug_of_ours_is_no_bad_record(cache_url, dataset_url, ops, monkeypatch, error):
    """Pixels of a cache, and JPEGs; in a loader, and sample by sample."""
    for url, given, place in (
        (cache_url, [RandomCrop(32)], "tpufeed.images.pipeline._cut"),
        (dataset_url, ops, "tpufeed.images.pipeline.reduction"),
        (dataset_url, ops, "tpufeed.images.pipeline.read_jpeg_header"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(place, partial(fail, error))
            with pytest.raises(error, match=r"^'?a bug'?$") as caught:
                read(url, ops=given, max_bad_records=100, processes=0)
            assert caught.type is error
            with pytest.raises(error) as caught:
                tpufeed.TFRecordImages(url, ops=given)[0]
            assert caught.type is error


def fail(error, *_):
    raise error("a bug")


def test_a_thread_that_cannot_be_started_is_no_closed_loader(cache_url, monkeypatch):
    monkeypatch.setattr("threading.Thread.start", partial(fail, RuntimeError))  # as it is where there are too many
    with pytest.raises(RuntimeError, match=r"^a bug$"):
        read(cache_url, processes=0)


def test_a_record_that_is_not_skipped_says_how_it_could_be(damaged):
    for processes in (0, 1):
        with pytest.raises(
            RecordError, match=r"record \d+, byte .*\. To skip some, give max_bad_records=N; tpufeed ver"
        ):
            read(damaged, processes=processes)


def test_the_first_slot_repeats_the_one_behind_it(cache_url, damage):
    batches, _ = read(damage(cache_url, 30).url, max_bad_records=1)
    samples, _, _, mask = batches[3]
    assert samples.tolist() == [31, *range(31, 40)]
    assert mask.tolist() == [False] + [True] * 9


def test_one_more_than_the_budget_is_an_error_that_names_it(damaged, damage):
    twice = damage(damaged, 52).url
    with pytest.raises(
        RecordError, match=r"2 bad records, more than max_bad_records=1; the last one: .*record \d+, byte"
    ):
        read(twice, max_bad_records=1)
    with tpufeed.Loader(twice, **OPTIONS, max_bad_records=1) as again:
        for _ in range(2):
            again.set_epoch(0)
            with pytest.raises(RecordError, match="2 bad records"):
                list(again)
    batches, loader = read(twice, max_bad_records=2)
    assert loader.stats().bad_records == 2
    assert sum(int((~mask).sum()) for *_, mask in batches) == 2


def test_a_record_counts_once_however_often_it_is_read(damaged):
    with tpufeed.Loader(damaged, **OPTIONS, max_bad_records=1) as loader:
        for _ in range(4):  # variant 0 twice
            assert len(list(loader)) == 7
        assert loader.stats().bad_records == 1


def test_a_batch_of_bad_records_alone_is_an_error(damaged):
    with pytest.raises(RecordError, match="all 1 records of a batch are bad"):
        read(damaged, batch_size=1, max_bad_records=5)


def test_padding_and_skipping_share_the_mask(damaged):
    batches, _ = read(damaged, max_bad_records=1, remainder="pad", batch_size=32)
    masks = np.concatenate([mask for *_, mask in batches])
    assert np.flatnonzero(~masks).tolist() == [33, *range(70, 96)]


@pytest.mark.parametrize("value", [-1, 1.5, "all", None])
def test_a_budget_is_a_whole_number(cache_url, value):
    with pytest.raises(OptionError, match="max_bad_records is a whole number, at least 0"):
        tpufeed.Loader(cache_url, max_bad_records=value)
