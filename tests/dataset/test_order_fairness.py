"""What an order must not depend on: a record's number within its shard, its shard's size, and the epoch before.

Epochs are independent of one another, so what is counted over epochs is binomial, and means have a standard error. The
seeds are fixed: these tests do not fail by chance.
"""

import itertools
from typing import NamedTuple

import numpy as np
import pytest

from tests.dataset.lanes import lane_parts
from tpufeed.dataset.order import EpochOrder

EPOCHS = 200
MOST_ERRORS = 5  # standard errors; of ten thousand figures one is beyond 4, and none beyond 5

# Sizes of shards, lanes and the batch of the whole world; 24 shards that 16 lanes cut in the middle each.
CASES = {
    "shards that lanes cut in the middle": ((100,) * 24, 16, 512),
    "a small last shard": ((*(100,) * 24, 10), 16, 512),
    "odd numbers of all": ((37, 11, 101, 64, 5, 90, 23), 5, 64),
    "one shard is nearly all": ((3, 400, 1, 0, 8), 7, 90),
    "more lanes than shards": ((50, 50, 50), 9, 40),
    "more lanes than records in a shard": ((3,) * 30, 40, 28),
    "one lane": ((10, 90, 35), 1, 60),
}


class Epochs(NamedTuple):
    """Where each sample comes in each epoch, and whether `remainder="drop"` leaves it out: (EPOCHS, records) both.

    `shards` are the samples of each.
    """

    positions: np.ndarray
    dropped: np.ndarray
    shards: list[np.ndarray]


@pytest.fixture(scope="module", params=CASES)
def epochs(request):
    sizes, lanes, batch = CASES[request.param]
    records = sum(sizes)
    assert records % batch
    positions = np.empty((EPOCHS, records), np.int64)
    for epoch, row in enumerate(positions):
        row[EpochOrder(sizes, 11, epoch, lanes).places_at(np.arange(records)).sample] = np.arange(records)
    shards = np.split(np.arange(records), np.cumsum(sizes)[:-1])
    return Epochs(positions, positions >= records - records % batch, [shard for shard in shards if len(shard)])


def errors(values, expected, deviation):
    """By how many standard errors the means over epochs are off; `deviation` is that of one epoch."""
    off = np.abs(values.mean(axis=0) - expected)
    return off / (np.maximum(deviation, 1e-9) / np.sqrt(len(values)))  # it is the same in all epochs, sometimes


@pytest.mark.all
def test_each_record_is_dropped_as_often_as_any_other(epochs):
    share = epochs.dropped[0].mean()
    assert errors(epochs.dropped, share, np.sqrt(share * (1 - share))).max() < MOST_ERRORS


def test_each_record_is_in_the_middle_of_the_epoch_on_average(epochs):
    records = epochs.positions.shape[1]
    assert errors(epochs.positions, (records - 1) / 2, np.sqrt((records**2 - 1) / 12)).max() < MOST_ERRORS


def test_early_records_of_shards_fare_as_late_ones_do(epochs):
    """All shards together, which shows less than a record alone would; the deviation is what is found."""
    for values in epochs[:2]:
        for parts in (2, 3):
            cut = [np.array_split(shard, parts) for shard in epochs.shards if len(shard) >= parts]
            first, last = (np.concatenate([shard[end] for shard in cut]) for end in (0, -1))
            differences = values[:, first].mean(axis=1) - values[:, last].mean(axis=1)
            assert errors(differences, 0, differences.std()) < MOST_ERRORS - 1


def test_a_shard_s_size_does_not_matter(epochs):
    for values in epochs[:2]:
        for shard in epochs.shards:
            of_shard = values[:, shard].mean(axis=1)
            assert errors(of_shard, values[0].mean(), of_shard.std()) < MOST_ERRORS - 1


def test_an_epoch_says_nothing_about_the_next_one(epochs):
    centred = epochs.positions - epochs.positions.mean()
    correlations = (centred[:-1] * centred[1:]).mean(axis=1) / (centred[0] ** 2).mean()
    assert errors(correlations, 0, correlations.std()) < MOST_ERRORS - 1
    twice = (epochs.dropped[:-1] & epochs.dropped[1:]).mean(axis=1)
    assert errors(twice, epochs.dropped[0].mean() ** 2, twice.std()) < MOST_ERRORS - 1


def test_shards_are_cut_between_any_two_records():
    """Also the shards of one epoch: a cut of one says nothing about that of another."""
    records, lanes = 20, 5
    counts = np.zeros((records, records), int)
    for epoch in range(700):
        order = EpochOrder([records] * 12, 3, epoch, lanes)
        cuts = [
            part.first for lane in range(lanes) for part in lane_parts(order, lane)[:1] if part.stop - part.first < 20
        ]
        for one, other in itertools.pairwise(cuts):
            counts[one, other] += 1
    expected = counts.sum() / counts.size
    assert expected > 5
    chi_square, freedom = ((counts - expected) ** 2).sum() / expected, counts.size - 1
    assert abs(chi_square - freedom) < MOST_ERRORS * np.sqrt(2 * freedom)
