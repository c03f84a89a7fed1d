"""Samples to look at, spread over a split."""

import numpy as np

from tpufeed.dataset.reader import open_dataset
from tpufeed.measure.sampling import draw_evenly


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
