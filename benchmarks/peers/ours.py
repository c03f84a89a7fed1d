"""tpufeed's own loaders; a setting is an adapter of `Loader`, or "numpy", and behind a colon `direct` of `to_tf`.

Epochs follow one another within one iteration, as they do in training by steps: the photos here are few, and one epoch
of the raw cache takes a tenth of a second.
"""

from collections.abc import Iterator
from typing import Any

import tpufeed
from benchmarks.peers import BATCH, SCALE, SIZE, Source
from tpufeed.images import HorizontalFlip, RandomResizedCrop

SETTINGS = dict.fromkeys(("jpeg", "small", "presized", "raw"), "numpy")


def batches(source: Source, setting: str) -> Iterator[Any]:
    name, _, direct = setting.partition(":")
    ops = None if source.work == "raw" else [RandomResizedCrop(SIZE, scale=SCALE), HorizontalFlip()]
    if name == "grain_source":
        from benchmarks.peers.grain import feed

        samples = tpufeed.grain_source(source.dataset, ops=ops).to_map_dataset()
        return feed(samples.map(lambda sample: (sample["image"], sample["label"])), 2)
    loader = tpufeed.Loader(source.dataset, batch_size=BATCH, ops=ops, repeat=True)
    return iter(loader if name == "numpy" else getattr(loader, name)(**{"direct": True} if direct else {}))
