"""What a stage has done so far."""

from dataclasses import dataclass


@dataclass(slots=True)
class Counts:
    """Counted from the making of a `Stage` on.

    Attributes:
        shards_fetched: copies that it has published.
        bytes_fetched: what those hold.
        retries: downloads that had to be made again.
        hits: times that a copy was opened.
        misses: times that one was not there.
    """

    shards_fetched: int = 0
    bytes_fetched: int = 0
    retries: int = 0
    hits: int = 0
    misses: int = 0


@dataclass(frozen=True, slots=True)
class StageStatistics:
    """As `Counts`, and what concerns the folder.

    Attributes:
        evictions: copies that this stage has evicted.
        used_bytes: what the folder takes now, whoever fetched it.
        budget_bytes: what it may take.
    """

    shards_fetched: int
    bytes_fetched: int
    retries: int
    hits: int
    misses: int
    evictions: int
    used_bytes: int
    budget_bytes: int
