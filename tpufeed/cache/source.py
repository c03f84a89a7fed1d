"""What a cache is made of: the samples of a dataset, or raw images."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from tpufeed.dataset.commit import Reject
from tpufeed.dataset.plan import PlanHeader, Task
from tpufeed.dataset.reader import Dataset
from tpufeed.dataset.schema import FILENAME, LABEL, fixed_ints, record_layout
from tpufeed.errors import ImageError
from tpufeed.images.decoding import Pixels
from tpufeed.images.policy import ImagePolicy, load_image
from tpufeed.sharding.files import Files
from tpufeed.sharding.inputs import InputFeatures, iter_taken
from tpufeed.tfrecord.example import Feature, decode_entries, decode_example
from tpufeed.tfrecord.layout import FixedLayout


class Sample(NamedTuple):
    """One sample before its ops.

    Attributes:
        number: its id within the split, which its random numbers follow from.
        name: for messages.
        image: encoded, plain and upright; or uint8 RGB pixels.
        label: the class's id, or None.
        rest: the features besides image, label, sizes and format.
        odd: odd cases that a policy dealt with.
    """

    number: int
    name: str
    image: bytes | memoryview | Pixels
    label: int | None
    rest: dict[str, Feature]
    odd: tuple[str, ...] = ()


class CacheSource(Protocol):
    """Reads samples. Small and picklable: it goes to every worker."""

    def iter_samples(self, header: PlanHeader, task: Task) -> Iterator[Sample | Reject]:
        """The samples of a task, in order. Header and task are those of the cache's plan."""

    def draws_seed(self, seed: int) -> int:
        """The seed that ops over these samples draw with, where the user's is `seed`."""


@dataclass(frozen=True, slots=True)
class DatasetSource:
    """The samples of a dataset."""

    dataset: Dataset

    def iter_samples(self, header: PlanHeader, task: Task) -> Iterator[Sample | Reject]:
        features = self.dataset.manifest.features
        layout, names = record_layout(features), fixed_ints(features)
        shape = self.dataset.manifest.tensor_shape
        keys = {feature.name: feature.key for feature in features[1:]}
        ours = fixed_ints(header.features)
        kept = [f.name for f in header.features[1:] if f.name in keys and f.name not in ours]  # in the schema's order
        for number, payload in self._iter_payloads(task.split, task.first, task.stop):
            image, values, stored = _parse(layout, payload)
            rest = {name: stored[keys[name]] for name in kept if keys[name] in stored}
            label = dict(zip(names, values, strict=True)).get(LABEL)
            pixels = image if shape is None else np.frombuffer(image, np.uint8).reshape(shape)
            yield Sample(number, _text(rest.get(FILENAME)) or f"sample {number}", pixels, label, rest)

    def draws_seed(self, seed: int) -> int:
        return self.dataset.manifest.draws_seed(seed)

    def _iter_payloads(self, split: str, start: int, stop: int) -> Iterator[tuple[int, memoryview]]:
        reader = self.dataset.reader(split)
        first = 0
        for shard, entry in enumerate(self.dataset.split(split).variants[0].shards):
            for sample in range(max(first, start), min(first + entry.records, stop)):
                yield sample, reader.read(shard, sample - first)
            first += entry.records


@dataclass(frozen=True, slots=True)
class RawSource:
    """Images as they lie in folders, tables or tars: sharded and warmed in one go."""

    policy: ImagePolicy

    def iter_samples(self, header: PlanHeader, task: Task) -> Iterator[Sample | Reject]:
        features = InputFeatures(header)

        def take(data: bytes, name: str) -> tuple[bytes | Pixels, tuple[str, ...]]:
            return load_image(data, self.policy, name)

        for number, (item, taken) in enumerate(iter_taken(Files(header.base), task.inputs, take), task.first):
            if isinstance(taken, ImageError):
                yield Reject(item.path, taken.reason, str(taken))
                continue
            image, odd = taken
            label = item.label if features.labelled else None
            yield Sample(number, item.path, image, label, features(item), odd)

    def draws_seed(self, seed: int) -> int:
        return seed


def first_samples(source: CacheSource, header: PlanHeader, tasks: Iterable[Task]) -> Iterator[Sample]:
    """The samples of some tasks that can be taken: for a probe."""
    for task in tasks:
        for sample in source.iter_samples(header, task):
            if isinstance(sample, Sample):
                yield sample


def _parse(layout: FixedLayout, payload: memoryview) -> tuple[memoryview, tuple[int, ...], Mapping[str, Feature]]:
    """Image, fixed integers and features of a record; what stands behind the integers is all that has to be parsed."""
    parts = layout.split(payload)
    if parts is None:
        return *layout.decode(payload), decode_example(payload)
    image_bytes, values, rest = parts
    stored = {key: Feature("int64", (value,)) for key, value in zip(layout.int_keys, values, strict=True)}
    image = payload[layout.image_offset : layout.image_offset + image_bytes]
    return image, values, stored | decode_entries(rest)


def _text(feature: Feature | None) -> str:
    if feature is None or not feature.values or not isinstance(feature.values[0], memoryview):
        return ""
    return str(feature.values[0], "utf-8", "replace")
