"""Sources of a cache: the samples of a dataset, or raw images."""

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from tpufeed.builds.commit import Reject
from tpufeed.builds.plan import PlanHeader, Task
from tpufeed.cache.moving import moves
from tpufeed.cache.options import CacheOptions
from tpufeed.dataset.listed import Listed
from tpufeed.dataset.manifest import Manifest
from tpufeed.dataset.naming import PLAN, check_split_name
from tpufeed.dataset.reader import Dataset, find_dataset
from tpufeed.dataset.schema import (
    FILENAME,
    FORMAT,
    LABEL,
    ONE_HOT,
    SIZE,
    TEXT,
    FeatureSpec,
    fixed_ints,
    plain_boxes,
    record_layout,
    several_labels,
)
from tpufeed.errors import DatasetNotFoundError, ImageError, OptionError
from tpufeed.images.decoding import Pixels
from tpufeed.images.ops import OPS
from tpufeed.images.policy import load_image
from tpufeed.sharding.worker import SampleMaker, see_inputs
from tpufeed.sources.inputs import Files, iter_taken
from tpufeed.sources.options import ShardOptions
from tpufeed.storage.store import Store, open_store
from tpufeed.stream.columns import iter_flip_warnings
from tpufeed.stream.mixture import own_ids
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

if TYPE_CHECKING:
    from tpufeed.sharding.inventory import Inventory

SOURCE_VERSION = "source_version"  # option: the version of the source that a cache covers, if the source has grown
SELECT = "select"  # option: what a view selects, if the source is one
RAW_OPTIONS = ("splits", "split_by", "image", "label", "classes", "max_pixels", "min_side", "policy")
_OF_SHARDS = frozenset(
    {"shard_bytes", "shards", "hosts", "seed", "check", "encode", "quality", "presize", "presize_mode"}
)
_FILENAME_ENTRY = ScalarEntry(FILENAME, "bytes")


class SourceSample(NamedTuple):
    """A sample before its ops.

    Attributes:
        number: its id within the split of the source, also if that is a view; it decides the random numbers.
        name: its name in messages.
        image: encoded image, or uint8 RGB pixels. Upright, unless the manifest says otherwise.
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


@dataclass(frozen=True, slots=True)
class Listing:
    """Contents of a source.

    Attributes:
        samples: number of samples per split.
        features: features of the samples.
        facts: fields of a plan's header that describe the source.
        inventory: inventory of raw images; None for a dataset.
    """

    samples: dict[str, int]
    features: Sequence[FeatureSpec]
    facts: dict[str, Any]
    inventory: "Inventory | None" = None


@dataclass(frozen=True, slots=True)
class DatasetSource:
    """The samples of a dataset. Small and picklable, like `RawSource`, because every worker gets it."""

    dataset: Dataset
    mends: ClassVar[bool] = True  # repairs damaged JPEGs

    @property
    def url(self) -> str:
        """URL of the source."""
        return self.dataset.url

    @property
    def stores(self) -> tuple[Store, ...]:
        """The stores that workers read from."""
        return self.dataset.store, self.dataset.shards

    @property
    def manifest(self) -> Manifest:
        """The manifest of the dataset."""
        return self.dataset.manifest

    @property
    def identity(self) -> dict[str, Any]:
        """Plain data that decides the bytes of the source."""
        return {"source_digest": self.dataset.content_digest}

    @property
    def facts(self) -> dict[str, Any]:
        """Options of a plan that do not decide bytes: the version of a source that has grown, what a view selects."""
        version = {SOURCE_VERSION: self.dataset.number} if self.dataset.number > 1 else {}
        return version if self.dataset.selection is None else {**version, SELECT: self.dataset.selection.text}

    def digest(self) -> str:
        """Return the digest of the present contents of the source."""
        return self.dataset.content_digest

    def covered_by(self, cache: Dataset) -> dict[str, int] | None:
        """Return the samples per split in a cache of this source or of an earlier version; None for other caches."""
        covered = cache.manifest.cache
        return None if covered is None else self.dataset.records_of(covered.source_digest)

    @contextmanager
    def open_listing(self, options: CacheOptions) -> Iterator[Listing]:
        """List the samples to warm, without the splits of which a view keeps none."""
        dataset, manifest = self.dataset, self.dataset.manifest
        empty = [name for name, split in manifest.splits.items() if split.records and not dataset.split(name).records]
        samples = {check_split_name(name): dataset.split(name).records for name in manifest.splits if name not in empty}
        left_out = (
            f"{dataset.label} has no sample of split {name!r}, so the cache has no such split" for name in empty
        )
        plain = plain_boxes(manifest.features, manifest.options)
        unmoved = (
            f"{', '.join(names)}: left out, as they look like boxes and are plain numbers, which a crop does not move. "
            "To have them, build the dataset with --boxes, or with --column NAME:TYPE if they are no boxes"
            for names in filter(None, [plain])
        )
        facts = {
            "input_digest": self.digest(),
            "class_names": dataset.class_names,
            "listed": Listed(warnings=(*iter_flip_warnings(manifest.features, options.applied), *unmoved, *left_out)),
        }
        yield Listing(samples, tuple(spec for spec in manifest.features if spec.name not in plain), facts)

    def iter_samples(self, header: PlanHeader, task: Task) -> Generator[SourceSample | Reject, None, None]:
        """Yield the samples of a task of the cache's plan, in order."""
        features = self.dataset.manifest.features
        layout, names, classes = record_layout(features), fixed_ints(features), own_ids(self.dataset)
        shape = self.dataset.manifest.tensor_shape
        keys = {feature.name: feature.key for feature in features[1:]}
        moving = {feature.name for feature in features[1:] if moves(feature)}
        own = {*fixed_ints(header.features), *made_anew(header), *moving}
        # The key of each feature in the cache and in the source.
        kept = {f.key: keys[f.name] for f in header.features[1:] if f.name in keys and f.name not in own}
        filename = next((f.key for f in header.features if f.name == FILENAME), FILENAME)
        # Entries are copied as bytes, unless the source has other keys or stores some of them as fixed numbers.
        as_stored = all(key == there and there not in layout.int_keys for key, there in kept.items())
        payloads = self.dataset.iter_payloads(task.split, 0, task.first, task.stop)
        chosen, ids = self.dataset.chosen(task.split), np.arange(task.first, task.stop)
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
            pixels = image if shape is None else np.frombuffer(image, np.uint8).reshape(shape)
            rest = b"".join([entries[key] for key in kept if key in entries])  # in the schema's order
            name = _text(entries.get(filename)) or f"sample {number}"
            place = partial("{}, sample {} of split {!r}".format, self.dataset.label, number, task.split)
            label = None if stored_label is None else int(classes.of([stored_label], place)[0])
            if not moving and not several_labels(self.dataset.manifest.features):
                yield SourceSample(number, name, pixels, label, rest)
                continue
            parsed = decode_arrays(payload, name)
            listed = parsed[keys[LABEL]].values if label is None and LABEL in keys and keys[LABEL] in parsed else ()
            labels = tuple(classes.of(listed, place).tolist())
            yield SourceSample(number, name, pixels, label, rest, labels=labels, moving=parsed)

    def see(self, header: PlanHeader, task: Task) -> dict[str, str]:
        """Return the versions of the files that a task needs, as this host sees them; see `Job.reach`."""
        shards, store = self.dataset.split(task.split).variants[0].shards, self.dataset.shards
        found = [store.stat(shard.name) for shard in shards[:1]]
        return {f"{store.url.rstrip('/')}/{info.name}": info.version for info in found if info is not None}

    @property
    def retries(self) -> int:
        """Number of requests that this process repeated."""
        return self.dataset.shards.retries


@dataclass(frozen=True, slots=True)
class RawSource:
    """Images in folders, tables or tars, which are warmed directly, without making a dataset first."""

    url: str
    options: ShardOptions
    manifest: ClassVar[None] = None
    facts: ClassVar[Mapping[str, Any]] = {}
    retries: ClassVar[int] = 0  # each task opens its own stores

    @property
    def stores(self) -> tuple[Store, ...]:
        return (open_store(self.url, follow=False),)

    @property
    def identity(self) -> dict[str, Any]:
        identity = {name: value for name, value in self.options.to_dict().items() if name not in _OF_SHARDS}
        if self.options.split_shares is not None:  # their order matters, but JSON objects have no order
            identity["splits"] = list(self.options.split_shares.items())
        return identity

    def digest(self) -> str:
        from tpufeed.sharding.inventory import take_inventory  # workers do not need it

        with take_inventory(self.url, self.options) as inventory:
            return inventory.digest

    def covered_by(self, cache: Dataset) -> None:
        return None

    @contextmanager
    def open_listing(self, options: CacheOptions) -> Iterator[Listing]:
        from tpufeed.sharding.inventory import take_inventory  # workers do not need it

        with take_inventory(self.url, self.options) as inventory:
            moving = [feature.name for feature in inventory.features if isinstance(feature.kind, str)]
            moving += plain_boxes(inventory.features, {})  # which `tpufeed shard` may make boxes
            if moving:
                raise OptionError(
                    f"{self.url} has {', '.join(moving)}, which change with the crop: make a dataset of it first "
                    "(tpufeed shard), and warm that"
                )
            samples = {name: count for name, (count, _, _) in inventory.totals.items()}
            facts = {
                "input_digest": inventory.digest,
                "class_names": inventory.classes.names,
                "base": inventory.base,
                "listed": inventory.listed,
            }
            yield Listing(samples, inventory.features, facts, inventory)

    def iter_samples(self, header: PlanHeader, task: Task) -> Generator[SourceSample | Reject, None, None]:
        make = SampleMaker(header.features, header.class_names, self.options.images, None, {})  # it moves no boxes
        images = iter_taken(
            Files(header.base), task.inputs, lambda item, data: load_image(data[0], self.options.images, item.path)
        )
        keys, own = {spec.name: spec.key for spec in header.features}, made_anew(header)
        for number, (item, _, taken) in enumerate(images, task.first):
            if isinstance(taken, ImageError):
                yield Reject(item.path, taken.reason, str(taken))
                continue
            image, odd = taken
            label = item.label if make.labelled and not make.several_labels else None
            rest = {keys[name]: value for name, value in make.features(item).items() if name not in own}
            yield SourceSample(number, item.path, image, label, encode_entries(rest), odd, item.labels)

    def see(self, header: PlanHeader, task: Task) -> dict[str, str]:
        return see_inputs(header, task)

    @property
    def mends(self) -> bool:
        return self.options.images.damaged == "mend"


CacheSource = DatasetSource | RawSource


def made_anew(header: PlanHeader) -> frozenset[str]:
    """Return the features that a cache does not take from its source, besides the fixed integers."""
    return frozenset({FORMAT, SIZE, ONE_HOT, *((TEXT,) if header.are_counted else ())})


def open_source(src: str | Path | Dataset, raw: ShardOptions, allow_augmented: bool) -> CacheSource:
    """Open the dataset at `src`, if it is not open yet, or the raw images, which `raw` describes.

    Raises:
        OptionError: options for raw images are given for a dataset; or `src` is an augmented cache and not allowed.
        DatasetNotFoundError: the dataset is not finished.
    """
    store = src.store if isinstance(src, Dataset) else open_store(src, follow=False)
    dataset = src if isinstance(src, Dataset) else find_dataset(store)
    if dataset is None:
        if store.stat(PLAN) is not None:
            raise DatasetNotFoundError(
                f"{store.url} holds an unfinished dataset; run its command again to finish it first"
            )
        return RawSource(store.url, raw)
    default = ShardOptions()
    given = [name for name in RAW_OPTIONS if getattr(raw, name) != getattr(default, name)]
    if given:
        raise OptionError(
            f"{store.url} is a dataset, whose splits and labels are fixed; these options are for raw images: "
            f"{', '.join(given)}"
        )
    cache = dataset.manifest.cache
    random = [str(op["op"]) for op in cache.ops if op["op"] not in OPS or OPS[op["op"]].draws] if cache else []
    if cache is not None and random and not allow_augmented:
        raise OptionError(
            f"{dataset.url} is a cache with random ops ({', '.join(random)}): its images are already cropped or "
            f"changed, and only the first of its {cache.variants} variants would be read. Warm from its source, "
            f"{dataset.manifest.options.get('source')}, or give allow_augmented=True (--allow-augmented)"
        )
    return DatasetSource(dataset)


def _text(entry: bytes | None) -> str:
    if entry is None:
        return ""
    short = _FILENAME_ENTRY.read(entry, 0)
    if short is not None:
        return str(short[0], "utf-8", "replace")
    (feature,) = decode_entries(entry).values()
    value = feature.values[0] if feature.values else None
    return str(value, "utf-8", "replace") if isinstance(value, memoryview) else ""
