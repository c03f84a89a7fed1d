"""Sources of a cache: the samples of a dataset, or raw images."""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tpufeed.build.commit import Reject
from tpufeed.build.destination import see_objects
from tpufeed.build.plan import Input, PlanHeader, Task
from tpufeed.cache.moving import moves
from tpufeed.dataset.reader import Dataset
from tpufeed.dataset.schema import FILENAME, FORMAT, LABEL, FeatureSpec, fixed_ints, record_layout, several_labels
from tpufeed.errors import ImageError
from tpufeed.images.decoding import Pixels
from tpufeed.images.policy import ImagePolicy, load_image
from tpufeed.sharding.inputs import Files, InputFeatures, iter_taken
from tpufeed.sharding.worker import see_inputs
from tpufeed.tfrecord.example import (
    Feature,
    decode_arrays,
    decode_entries,
    decode_example,
    encode_entries,
    encode_entry,
    split_entries,
)
from tpufeed.tfrecord.layout import ScalarEntry

_FILENAME_ENTRY = ScalarEntry(FILENAME, "bytes")


class Sample(NamedTuple):
    """One sample before its ops.

    Attributes:
        number: its id within the split, which its random numbers follow from.
        name: for messages.
        image: encoded and plain; or uint8 RGB pixels. Upright, but where the source says `upright`.
        label: the class's id, or None.
        rest: the features besides image, label, sizes and format, as encoded entries.
        odd: odd cases that a policy dealt with.
        labels: ids of classes, of a sample that may have several.
        moving: features that move with the crop, by their keys.
    """

    number: int
    name: str
    image: bytes | memoryview | Pixels
    label: int | None
    rest: bytes
    odd: tuple[str, ...] = ()
    labels: tuple[int, ...] = ()
    moving: Mapping[str, Feature] = {}  # none is ever changed


@dataclass(frozen=True, slots=True)
class DatasetSource:
    """The samples of a dataset. Small and picklable, like `RawSource`: it goes to every worker."""

    dataset: Dataset

    def iter_samples(self, header: PlanHeader, task: Task) -> Generator[Sample | Reject, None, None]:
        """The samples of a task, in order. Header and task are those of the cache's plan."""
        features = self.dataset.manifest.features
        layout, names = record_layout(features), fixed_ints(features)
        shape = self.dataset.manifest.tensor_shape
        keys = {feature.name: feature.key for feature in features[1:]}
        moving = {feature.name for feature in features[1:] if moves(feature)}
        own = {*fixed_ints(header.features), FORMAT, *moving}
        kept = {f.name: keys[f.name] for f in header.features[1:] if f.name in keys and f.name not in own}
        as_stored = all(name == key and key not in layout.int_keys for name, key in kept.items())
        payloads = self.dataset.reader(task.split).iter_payloads(task.first, task.stop)
        for number, payload in enumerate(payloads, task.first):
            parts = layout.split(payload) if as_stored else None
            if parts is None:
                image, values = layout.decode(payload)
                stored = decode_example(payload)
                entries = {name: encode_entry(name, stored[key]) for name, key in kept.items() if key in stored}
            else:
                image = payload[layout.image_offset : layout.image_offset + parts[0]]
                values, entries = parts[1], split_entries(parts[2])
            label = dict(zip(names, values, strict=True)).get(LABEL)
            pixels = image if shape is None else np.frombuffer(image, np.uint8).reshape(shape)
            rest = b"".join([entries[name] for name in kept if name in entries])  # in the schema's order
            name = _text(entries.get(FILENAME)) or f"sample {number}"
            if not moving and not several_labels(self.dataset.manifest.features):
                yield Sample(number, name, pixels, label, rest)
                continue
            parsed = decode_arrays(payload, name)
            listed = parsed[keys[LABEL]].values if label is None and LABEL in keys and keys[LABEL] in parsed else ()
            yield Sample(number, name, pixels, label, rest, labels=tuple(map(int, listed)), moving=parsed)

    @property
    def features(self) -> tuple[FeatureSpec, ...]:
        """The features of the samples."""
        return self.dataset.manifest.features

    def see(self, header: PlanHeader, task: Task) -> dict[str, str]:
        """Return what this host sees of the files that a task needs, see `Job.reach`."""
        shards = self.dataset.split(task.split).variants[0].shards
        return see_objects((self.dataset.shards, shard.name) for shard in shards[:1])

    def draws_seed(self, seed: int) -> int:
        """The seed that ops over these samples draw with, where the user's is `seed`."""
        return self.dataset.manifest.draws_seed(seed)

    @property
    def upright(self) -> bool:
        """True where encoded images are to be turned by their EXIF orientation."""
        return self.dataset.manifest.upright

    @property
    def mends(self) -> bool:
        """True where JPEGs that fail are mended."""
        return True

    @property
    def retries(self) -> int:
        """Requests that this process made again, as far as it is known."""
        return self.dataset.shards.retries


@dataclass(frozen=True, slots=True)
class RawSource:
    """Images as they lie in folders, tables or tars: sharded and warmed in one go."""

    policy: ImagePolicy

    def iter_samples(self, header: PlanHeader, task: Task) -> Generator[Sample | Reject, None, None]:
        features = InputFeatures(header.features, header.class_names)

        def take(item: Input, data: Sequence[bytes]) -> tuple[bytes | Pixels, tuple[str, ...]]:
            return load_image(data[0], self.policy, item.path)

        for number, (item, taken) in enumerate(iter_taken(Files(header.base), task.inputs, take), task.first):
            if isinstance(taken, ImageError):
                yield Reject(item.path, taken.reason, str(taken))
                continue
            image, odd = taken
            label = item.label if features.labelled and not features.several_labels else None
            yield Sample(number, item.path, image, label, encode_entries(features(item)), odd, item.labels)

    @property
    def features(self) -> tuple[FeatureSpec, ...]:
        return ()  # of raw images nothing moves with the crop

    def see(self, header: PlanHeader, task: Task) -> dict[str, str]:
        return see_inputs(header, task)

    def draws_seed(self, seed: int) -> int:
        return seed

    @property
    def upright(self) -> bool:
        return False

    @property
    def mends(self) -> bool:
        return self.policy.damaged == "mend"

    @property
    def retries(self) -> int:
        return 0  # each task opens stores of its own


CacheSource = DatasetSource | RawSource


def _text(entry: bytes | None) -> str:
    if entry is None:
        return ""
    short = _FILENAME_ENTRY.read(entry, 0)
    if short is not None:
        return str(short[0], "utf-8", "replace")
    (feature,) = decode_entries(entry).values()
    value = feature.values[0] if feature.values else None
    return str(value, "utf-8", "replace") if isinstance(value, memoryview) else ""
