"""Samples to look at: spread over a split, or of one class."""

import numpy as np

from tpufeed.dataset.reader import open_dataset
from tpufeed.measure import sampling
from tpufeed.measure.sampling import draw_evenly, draw_of_class


def test_samples_are_spread_over_the_split_and_seeded(dataset_url):
    dataset = open_dataset(dataset_url)
    shards = dataset.split("train").variants[0].shards
    starts = np.cumsum([0, *(shard.records for shard in shards)])
    for count in (1, 4, 9, 1000):
        places = draw_evenly(dataset, "train", count, 0)
        samples = [int(starts[shard]) + record for shard, record in places]
        total = int(starts[-1])
        assert len(samples) == min(count, total)
        assert all(total * n // len(samples) <= s < total * (n + 1) // len(samples) for n, s in enumerate(samples))
    assert (
        draw_evenly(dataset, "train", 9, 1)
        == draw_evenly(dataset, "train", 9, 1)
        != draw_evenly(dataset, "train", 9, 2)
    )


def test_a_class_is_read_no_further_than_needed(dataset_url, monkeypatch):
    dataset, read = open_dataset(dataset_url), []
    original = sampling.Reader.read_many
    monkeypatch.setattr(
        sampling.Reader, "read_many", lambda self, places: read.extend(places) or original(self, places)
    )
    places, _ = draw_of_class(dataset, "train", 2, 1, 0)
    assert places[0] in read
    assert len(read) < dataset.split("train").records
    assert draw_of_class(dataset, "train", 2, 3, 5) == draw_of_class(dataset, "train", 2, 3, 5)
