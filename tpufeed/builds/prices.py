"""Estimate what a build costs in Google Cloud Storage: its requests and its bytes, by one table of prices."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tpufeed.storage.store import Store, url_scheme

# Google's list prices as they stood in November 2026, of Standard storage in a region of North America. Check them
# before use: https://cloud.google.com/storage/pricing
PRICES_OF = "November 2026"
DOLLARS_A, DOLLARS_B = 0.005 / 1_000, 0.0004 / 1_000  # an operation: puts and lists; gets
DOLLARS_A_GB = {"from another region of North America": 0.02, "over the internet": 0.12}
DOLLARS_A_GB_MONTH = 0.02

_PAGE_OBJECTS = 1_000  # of a listing
_RANGE_BYTES, _CHUNK_BYTES = 8 << 20, 32 << 20  # of a get of a shard, of a put


@dataclass(frozen=True, slots=True)
class BucketCost:
    """About what a build costs in buckets.

    Attributes:
        puts: operations of class A: parts of uploads, and pages of listings.
        gets: operations of class B.
        dollars: for both.
        dollars_a_month: for keeping the shards.
        dollars_elsewhere: for reading the source from elsewhere, by where that is.
    """

    puts: int
    gets: int
    dollars: float
    dollars_a_month: float
    dollars_elsewhere: dict[str, float]


def bucket_cost(
    sources: Sequence[Store], destination: Store, gets: int, source_bytes: int, shards: int, shard_bytes: int
) -> BucketCost | None:
    """Return what it costs to read a source by so many `gets`, and to write shards. None if neither is in a bucket."""
    reads, writes = any(map(_is_priced, sources)), _is_priced(destination)
    if not (reads or writes):
        return None
    puts = math.ceil(gets / _PAGE_OBJECTS) if reads else 0
    gets = gets if reads else 0
    if writes:  # a shard: the start of its upload, its chunks and a report; its task, its report twice and a look at it
        puts += 2 * shards + max(shards, math.ceil(shard_bytes / _CHUNK_BYTES))
        gets += 4 * shards
    dollars = puts * DOLLARS_A + gets * DOLLARS_B
    a_month = shard_bytes / 1e9 * DOLLARS_A_GB_MONTH if writes else 0.0
    elsewhere = {place: source_bytes / 1e9 * price for place, price in DOLLARS_A_GB.items()} if reads else {}
    return BucketCost(puts, gets, dollars, a_month, elsewhere)


def gets_of_shards(sizes: Sequence[int]) -> int:
    """Return the gets that read whole shards of these sizes: a look at each, its offsets, and its ranges."""
    return sum(2 + math.ceil(size / _RANGE_BYTES) for size in sizes)


def _is_priced(store: Store) -> bool:
    return url_scheme(store.url) in ("gs", "gcs")
