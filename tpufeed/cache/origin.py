"""The origin of a cache: the samples of a dataset."""

from collections.abc import Generator, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tpufeed.builds.plan import PlanHeader, Task
from tpufeed.cache.moving import moves
from tpufeed.dataset.naming import MANIFEST, PLAN
from tpufeed.dataset.reader import Dataset, find_dataset, own_ids
from tpufeed.dataset.schema import (
    FILENAME,
    FORMAT,
    LABEL,
    ONE_HOT,
    SIZE,
    TEXT,
    fixed_ints,
    record_layout,
    several_labels,
)
from tpufeed.errors import DatasetNotFoundError, OptionError, advised
from tpufeed.images.decoding import Pixels
from tpufeed.images.ops import OPS
from tpufeed.storage.store import open_store
from tpufeed.tfrecord.example import (
    Feature,
    decode_arrays,
    decode_entries,
    decode_example,
    encode_entry,
    split_entries,
)
from tpufeed.tfrecord.layout import ScalarEntry

_FILENAME_ENTRY = ScalarEntry(FILENAME, "bytes")


class OriginSample(NamedTuple):
    """A sample before its ops.

    Attributes:
        number: its id within the split of the source, also if that is a view. It decides the random numbers.
        name: its name in messages.
        image: encoded image, or pixels. Upright, unless the manifest says otherwise.
        label: the id of its class, or None.
        rest: all features except image, label, sizes and format, as encoded entries.
        odd: odd cases that a policy handled.
        labels: ids of its classes, if samples may have several.
        moving: features that change with the crop, by their keys.
    """

    number: int
    name: str
    image: bytes | memoryview | Pixels
    label: int | None
    rest: bytes
    odd: tuple[str, ...] = ()
    labels: tuple[int, ...] = ()
    moving: Mapping[str, Feature] = {}  # never changed


def iter_samples(origin: Dataset, header: PlanHeader, task: Task) -> Generator[OriginSample, None, None]:
    """Yield the samples of a task of the cache's plan, in order."""
    features = origin.manifest.features
    layout, names, classes = record_layout(features), fixed_ints(features), own_ids(origin)
    shape = origin.manifest.tensor_shape
    keys = {feature.name: feature.key for feature in features[1:]}
    moving = {feature.name for feature in features[1:] if moves(feature)}
    # Features that the cache does not take from its origin.
    own = {*fixed_ints(header.features), *moving, FORMAT, SIZE, ONE_HOT, *((TEXT,) if header.are_counted else ())}
    # The key of each feature in the cache and in the source.
    kept = {f.key: keys[f.name] for f in header.features[1:] if f.name in keys and f.name not in own}
    filename = next((f.key for f in header.features if f.name == FILENAME), FILENAME)
    # Entries are copied as bytes, unless the source has other keys or stores some of them as fixed numbers.
    as_stored = all(key == there and there not in layout.int_keys for key, there in kept.items())
    payloads = origin.iter_payloads(task.split, 0, task.first, task.stop)
    chosen, ids = origin.chosen(task.split), np.arange(task.first, task.stop)
    ids = ids if chosen is None else chosen.samples(ids)
    for number, payload in zip(ids.tolist(), payloads, strict=True):
        parts = layout.split(payload) if as_stored else None
        if parts is None:
            image, values = layout.decode(payload)
            stored = decode_example(payload)
            entries = {key: encode_entry(key, stored[there]) for key, there in kept.items() if there in stored}
        else:
            image = payload[layout.image_offset : layout.image_offset + parts[0]]
            values, entries = parts[1], split_entries(parts[2])
        stored_label = dict(zip(names, values, strict=True)).get(LABEL)
        pixels = image if shape is None else origin.manifest.pixels.of_bytes(image, shape)
        rest = b"".join([entries[key] for key in kept if key in entries])  # in the schema's order
        name = _text(entries.get(filename)) or f"sample {number}"
        place = partial("{}, sample {} of split {!r}".format, origin.label, number, task.split)
        label = None if stored_label is None else int(classes.of([stored_label], place)[0])
        if not moving and not several_labels(origin.manifest.features):
            yield OriginSample(number, name, pixels, label, rest)
            continue
        parsed = decode_arrays(payload, name)
        listed = parsed[keys[LABEL]].values if label is None and LABEL in keys and keys[LABEL] in parsed else ()
        labels = tuple(classes.of(listed, place).tolist())
        yield OriginSample(number, name, pixels, label, rest, labels=labels, moving=parsed)


def open_origin(src: str | Path | Dataset, allow_augmented: bool) -> Dataset:
    """Open the dataset at `src`, if it is not open yet.

    Raises:
        OptionError: `src` is an augmented cache and not allowed.
        DatasetNotFoundError: there is no dataset, or it is not finished.
    """
    store = src.store if isinstance(src, Dataset) else open_store(src, follow=False)
    dataset = src if isinstance(src, Dataset) else find_dataset(store)
    if dataset is None:
        if store.stat(PLAN) is not None:
            raise DatasetNotFoundError(
                f"{store.url} holds an unfinished dataset. Run its command again to finish it first"
            )
        raise DatasetNotFoundError(
            f"{store.url} holds no dataset: there is no {MANIFEST}. To warm raw images, make a dataset of them first: "
            f"{advised('shard', store.url, 'DATASET')}, then {advised('cache warmup', 'DATASET', 'CACHE')}"
        )
    cache = dataset.manifest.cache
    random = [str(op["op"]) for op in cache.ops if op["op"] not in OPS or OPS[op["op"]].draws] if cache else []
    if cache is not None and random and not allow_augmented:
        raise OptionError(
            f"{dataset.url} is a cache with random ops ({', '.join(random)}): its images are already cropped or "
            f"changed, and only the first of its {cache.variants} variants would be read. Warm from its source, "
            f"{dataset.manifest.options.get('source')}, or give allow_augmented=True (--allow-augmented)"
        )
    return dataset


def _text(entry: bytes | None) -> str:
    if entry is None:
        return ""
    short = _FILENAME_ENTRY.read(entry, 0)
    if short is not None:
        return str(short[0], "utf-8", "replace")
    (feature,) = decode_entries(entry).values()
    value = feature.values[0] if feature.values else None
    return str(value, "utf-8", "replace") if isinstance(value, memoryview) else ""
