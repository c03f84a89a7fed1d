"""The parts of shards that a lane of an epoch reads."""

from itertools import starmap
from typing import NamedTuple

import numpy as np


class LanePart(NamedTuple):
    """Records `[first, stop)` of a shard, at least one. In a shard of n records, number n is its first one again.

    A whole shard is `[0, n)`.
    """

    shard: int
    first: int
    stop: int


def lane_parts(order, lane):
    """The parts that a lane reads, in its order; within a part the records are permuted."""
    shards, first, lengths = order._lane_cuts(lane)
    counts = order._first_sample[shards + 1] - order._first_sample[shards]
    # A whole shard is [0, n) however it is rotated: its records are permuted anyway.
    first = np.where(lengths == counts, 0, (first + order._rotations[shards]) % counts)
    return list(starmap(LanePart, zip(shards.tolist(), first.tolist(), (first + lengths).tolist(), strict=True)))
