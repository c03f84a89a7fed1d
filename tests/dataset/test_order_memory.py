"""An order keeps O(shards), and makes each permutation once."""

import tracemalloc

import numpy as np
import pytest

from tests.dataset.lanes import lane_parts
from tpufeed.dataset import order as order_module
from tpufeed.dataset.order import EpochOrder


def kept_bytes(run):
    """`(kept, at the most)` of what `run` allocates, while its result lives."""
    tracemalloc.start()
    try:
        result = run()
        return tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        del result


def test_one_part_of_each_lane_is_kept():
    def read(shards):
        order = EpochOrder([4000] * shards, 0, 0, 4)
        for first in range(0, order.records, 1000):
            order.places_at(np.arange(first, first + 1000))
        return order

    parts = 4 * 4000 * np.dtype(np.uint16).itemsize
    for shards in (16, 64):
        kept, _ = kept_bytes(lambda shards=shards: read(shards))
        assert parts < kept < parts + 20_000 + 50 * shards


def test_a_hundred_million_records_take_a_few_megabytes():
    def read():
        order = EpochOrder([1000] * 100_000, 0, 0, 64)
        order.places_at(np.arange(40_000_000, 40_010_000))
        return order

    kept, most = kept_bytes(read)
    assert kept < 4e6
    assert most < 12e6


@pytest.mark.parametrize("batch", [1, 37, 400])
def test_each_permutation_is_made_once_an_epoch(monkeypatch, batch):
    made = []
    permutation = order_module._permutation
    monkeypatch.setattr(order_module, "_permutation", lambda *args: made.append(args) or permutation(*args))
    order = EpochOrder([30, 0, 55, 1, 120, 18], 3, 1, 8)
    made.clear()  # that of the shards
    for first in range(0, order.records, batch):
        order.places_at(np.arange(first, min(first + batch, order.records)))
    assert len(made) == sum(len(lane_parts(order, lane)) for lane in range(8))
