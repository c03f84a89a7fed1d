"""tpufeed's own loaders; a setting is an adapter of `Loader`, or "numpy", and behind a colon `direct` of `to_tf`.

Behind the colon `dct` reads the JPEGs as DCT images, and `device` a cache of them, whose coefficients it hands over:
crop and flip are left to a device.

Epochs follow one another within one iteration, as they do in training by steps: the photos here are few, and one epoch
of the raw cache takes a tenth of a second.
"""

from collections.abc import Iterator
from typing import Any

import tpufeed
from benchmarks.peers import BATCH, SCALE, SIZE, Source, other_form
from tpufeed.images import HorizontalFlip, RandomResizedCrop

SETTINGS = dict.fromkeys(("jpeg", "small", "presized", "raw"), "numpy")


def batches(source: Source, setting: str) -> Iterator[Any]:
    name, _, how = setting.partition(":")
    ops = None if source.work == "raw" else [RandomResizedCrop(SIZE, scale=SCALE), HorizontalFlip()]
    if name == "grain_source":
        from benchmarks.peers.grain import feed

        samples = tpufeed.grain_source(source.dataset, ops=ops).to_map_dataset()
        return feed(samples.map(lambda sample: (sample["image"], sample["label"])), 2)
    dataset = other_form(source.dataset, how) if how in ("dct", "device") else source.dataset
    given = {"device_ops": ops} if how == "device" else {"ops": ops}
    loader = tpufeed.Loader(dataset, batch_size=BATCH, repeat=True, **given)
    if how == "device":
        return ((batch["image"], batch["label"]) for batch in loader.stream.iterate(as_dict=True, on_device=True))
    return iter(loader if name == "numpy" else getattr(loader, name)(**{"direct": True} if how == "direct" else {}))
