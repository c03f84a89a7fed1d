"""How fast the real loader is when nothing holds it up but itself."""

import time
from contextlib import closing
from dataclasses import dataclass, replace

from tpufeed.dataset.reader import Dataset
from tpufeed.errors import OptionError
from tpufeed.loaders.options import LoaderOptions
from tpufeed.loaders.stream import NumpyLoader
from tpufeed.loaders.tally import FeedStats

_BATCHES_TIMED = 16  # about, or a single one weighs too much
_LONGEST = 3  # times the seconds that were asked for


@dataclass(frozen=True, slots=True)
class Drained:
    """What a loader gave; `images_per_second` is of the steady state, `first_batch_seconds` with starting workers."""

    images_per_second: float
    images: int
    batch_size: int
    first_batch_seconds: float
    stats: FeedStats


def drain(dataset: Dataset, split: str, options: LoaderOptions, seconds: float) -> Drained:
    """Take batches as fast as they come, epoch after epoch, for some seconds once the loader is under way.

    What was prepared ahead when the clock starts was not made in its time, and as much is left at the end.

    Raises:
        TpufeedError: whatever the loader raises.
    """
    batch = min(options.batch_size, dataset.split(split).records)
    loader = NumpyLoader(dataset, split, replace(options, batch_size=batch, repeat=True, world=(0, 1)))
    begun = time.perf_counter()
    with loader, closing(iter(loader)) as batches:
        next(batches)
        first = time.perf_counter() - begun
        warm = max(1, loader.stats().prefetch)
        for _ in range(warm):
            next(batches)
            if time.perf_counter() - begun > _LONGEST * seconds:
                break
        start, taken = time.perf_counter(), 0
        while True:
            next(batches)
            taken += 1
            elapsed = time.perf_counter() - start
            if (elapsed >= seconds and taken >= _BATCHES_TIMED) or elapsed >= _LONGEST * seconds:
                break
        return Drained(taken * batch / elapsed, taken * batch, batch, first, loader.stats())


def fitting_batch(wanted: int, images_per_second: float | None, seconds: float) -> int:
    """A batch small enough for several of them to come in this time; `wanted` where that is small enough."""
    if wanted < 1:
        raise OptionError(f"a batch has at least one sample, not {wanted}")
    if not images_per_second:
        return wanted
    return max(1, min(wanted, int(images_per_second * seconds / _BATCHES_TIMED)))
