"""Choose samples that are spread over a split, and read them."""

import random
import time
from collections.abc import Iterator
from contextlib import suppress

import numpy as np

from tpufeed.dataset.order import places_of
from tpufeed.dataset.reader import Dataset
from tpufeed.dataset.records import Reader
from tpufeed.errors import RecordError, advised
from tpufeed.text import format_count

_MOST_TAKEN, _TAKEN_AT_ONCE = 512, 16

Place = tuple[int, int]  # (shard, record)


def default_split(dataset: Dataset) -> str:
    """Return "train", or the first split if no split has this name."""
    splits = dataset.manifest.splits
    return "train" if "train" in splits else next(iter(splits), "train")


def draw_evenly(dataset: Dataset, split: str, count: int, seed: int) -> list[Place]:
    """Draw `count` samples, or all if there are fewer: a random one from each of `count` equal parts."""
    total, draw = dataset.split(split).records, random.Random(seed)
    count = min(count, total)
    drawn = [draw.randrange(total * part // count, total * (part + 1) // count) for part in range(count)]
    numbers, chosen = np.array(drawn, np.int64), dataset.chosen(split)
    first = np.cumsum([0, *(shard.records for shard in dataset.split(split).variants[0].shards)])
    return places_of(numbers if chosen is None else chosen.samples(numbers), first)


def iter_payloads(reader: Reader, places: list[Place]) -> Iterator[memoryview | RecordError]:
    """Yield the payload at each place, or the error if the record is damaged."""
    with suppress(RecordError):
        yield from reader.read_many(places)
        return
    for place in places:
        try:
            yield reader.read(*place)
        except RecordError as error:
            yield error


def take_sample(dataset: Dataset, split: str, seconds: float) -> tuple[list[bytes], list[str]]:
    """Read images from all over the first variant of a split: as many as this time allows, at least one block.

    Return them as they are stored, and a note if some records could not be read.

    Raises:
        StoreError, ShardError: a shard cannot be read at all.
    """
    reader, stop = dataset.reader(split), time.monotonic() + seconds
    places = draw_evenly(dataset, split, _MOST_TAKEN, seed=0)
    random.Random(0).shuffle(places)  # if time runs out, the sample is still spread over the split
    images, damaged = list[bytes](), list[str]()
    for start in range(0, len(places), _TAKEN_AT_ONCE):
        if images and time.monotonic() > stop:
            break
        for payload in iter_payloads(reader, places[start : start + _TAKEN_AT_ONCE]):
            try:
                if isinstance(payload, RecordError):
                    raise payload
                images.append(bytes(reader.layout.decode(payload)[0]))
            except RecordError as error:
                damaged.append(str(error))
    reader.release()
    if not damaged:
        return images, []
    note = (
        f"{len(damaged)} of {format_count(len(damaged) + len(images), 'record')} in the sample "
        f"{'is' if len(damaged) == 1 else 'are'} damaged, the first: {damaged[0]}. "
        f"Run: {advised('verify', dataset.url)}"
    )
    return images, [note]
