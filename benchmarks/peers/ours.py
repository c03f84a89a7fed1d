"""tpufeed's own loaders; a setting is a loader's name."""

from collections.abc import Iterator
from typing import Any

import tpufeed
from peers import BATCH, SIZE, Source
from tpufeed.images import HorizontalFlip, RandomResizedCrop

SETTINGS = dict.fromkeys(("jpeg", "presized", "raw"), "numpy_loader")


def batches(source: Source, setting: str) -> Iterator[Any]:
    make = getattr(tpufeed, setting)
    ops = None if source.work == "raw" else [RandomResizedCrop(SIZE), HorizontalFlip()]
    loader = make(source.dataset, batch_size=BATCH, ops=ops)
    while True:
        yield from loader
