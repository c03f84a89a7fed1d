"""Plan of a cache, which is made of a dataset or of raw images."""

import itertools
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from tpufeed.build.plan import Plan, PlanHeader, Task, iter_tasks
from tpufeed.build.versions import follows
from tpufeed.cache.moving import cached_spec
from tpufeed.cache.options import CacheOptions, Size
from tpufeed.cache.source import CacheSource, DatasetSource, RawSource
from tpufeed.dataset.naming import PLAN, check_split_name
from tpufeed.dataset.reader import Dataset, find_dataset
from tpufeed.dataset.schema import CHANNELS, FORMAT, HEIGHT, LABEL, TENSOR, WIDTH, FeatureSpec, record_schema
from tpufeed.errors import DatasetNotFoundError, OptionError
from tpufeed.images.ops import OPS
from tpufeed.loaders.columns import iter_flip_warnings
from tpufeed.sharding.inventory import Inventory, take_inventory
from tpufeed.sharding.joined import check_joined, forged
from tpufeed.sharding.options import ShardOptions
from tpufeed.storage.registry import open_store
from tpufeed.storage.store import Store

KIND = "cache warmup"
SOURCE_VERSION = "source_version"  # the version of the source that a cache covers, where that has grown
RAW_OPTIONS = ("shares", "split_by", "image", "label", "classes", "max_pixels", "min_side", "policy")

_FEATURES_BYTES = 400  # of a record, besides the image
_LARGE_SHARD, _SMALL_SHARD, _ENOUGH_SHARDS = 128 * 10**6, 16 * 10**6, 64
_OF_SHARDS = frozenset(
    {"shard_bytes", "shards", "hosts", "seed", "check", "encode", "quality", "presize", "presize_mode"}
)
_PROBED = 16


@dataclass(frozen=True, slots=True)
class Planning:
    """A plan in the making.

    Attributes:
        header: without the numbers of shards.
        samples: of each split.
        first: tasks of a few samples, for a probe.
        iter_tasks: all tasks, for so many shards of each split.
    """

    header: PlanHeader
    samples: dict[str, int]
    first: list[Task]
    iter_tasks: Callable[[Mapping[str, int]], Iterator[Task]]


class Warmable:
    """A dataset, or raw images, that a cache can be made of.

    Attributes:
        url: where it is.
        reader: what workers read it with.
        stores: that workers read from.
        size: of all images, as (height, width), where they are equal.
        identity: what decides its bytes, as plain data.
        before: samples of each split that the cache holds already, where it is to grow.
        follows: options of the plan besides, see `dataset.versions.follows`.
    """

    def __init__(self, src: str | Path, raw: ShardOptions, allow_augmented: bool) -> None:
        """Open the dataset at `src`, or else the raw images, which `raw` describes.

        Raises:
            OptionError: options for raw images, where there is a dataset; or an augmented cache that is not allowed.
            DatasetNotFoundError: a dataset that is not finished.
        """
        store = open_store(src, follow=False)
        self._raw, self._dataset, self._digest = raw, find_dataset(store), ""
        self.url = store.url
        self.before, self.follows = dict[str, int](), dict[str, Any]()
        self.reader: CacheSource
        self.stores: tuple[Store, ...] = (store,)
        self.size: Size | None = None  # raw images differ
        if self._dataset is None:
            if store.stat(PLAN) is not None:
                raise DatasetNotFoundError(
                    f"{store.url} holds the beginnings of a dataset; run its command again to finish it first"
                )
            self.reader = RawSource(raw.images)
            self.identity = {name: value for name, value in raw.to_dict().items() if name not in _OF_SHARDS}
            if raw.split_shares is not None:  # whose order matters, and a dict's is none to JSON
                self.identity["split"] = list(raw.split_shares.items())
            return
        dataset = self._dataset
        default = ShardOptions()
        given = [name for name in RAW_OPTIONS if getattr(raw, name) != getattr(default, name)]
        if given:
            raise OptionError(
                f"{store.url} is a dataset, whose splits and labels stand; these options are for raw images: "
                f"{', '.join(given)}"
            )
        cache, shape = dataset.manifest.cache, dataset.manifest.tensor_shape
        random = [str(op["op"]) for op in cache.ops if op["op"] not in OPS or OPS[op["op"]].draws] if cache else []
        if cache is not None and random and not allow_augmented:
            raise OptionError(
                f"{dataset.url} is a cache that random ops have augmented ({', '.join(random)}): its images are "
                f"cropped or changed for good, and of its variants ({cache.variants}) only the first would be read. "
                f"Warm from its source, {dataset.manifest.options.get('source')}, or give allow_augmented=True "
                "(--allow-augmented)"
            )
        self.reader = DatasetSource(dataset)
        self.stores = (dataset.store, dataset.shards)
        self.size = None if shape is None else shape[:2]
        self.identity = {"source_digest": dataset.content_digest}

    @property
    def facts(self) -> dict[str, Any]:
        """The version of a source that has grown, which the plan names and which decides no bytes."""
        number = 1 if self._dataset is None else self._dataset.number
        return {SOURCE_VERSION: number} if number > 1 else {}

    def grow(self, cache: Dataset) -> bool:
        """Plan only the samples that came after the version of the source that `cache` covers.

        Returns:
            False where it covers no earlier version, or is no cache.
        """
        covered = cache.manifest.cache
        if self._dataset is None or covered is None:
            return False
        before = self._dataset.manifest.records_of(covered.source_digest)
        if before is None:
            return False
        self.before, self.follows = before, follows(cache)
        return True

    @property
    def has_new(self) -> bool:
        """True where there are samples after those of `grow`."""
        splits = {} if self._dataset is None else self._dataset.manifest.splits
        return any(split.records > self.before.get(name, 0) for name, split in splits.items())

    def digest(self) -> str:
        """Digest of what the source holds now."""
        if self._dataset is not None:
            return self._dataset.content_digest
        if not self._digest:
            with take_inventory(self.url, self._raw) as inventory:
                self._digest = inventory.digest
        return self._digest

    @contextmanager
    def plan(self, options: CacheOptions, size: Size) -> Iterator[Planning]:
        """Begin a plan."""
        with ExitStack() as stack:
            inventory = None
            if self._dataset is not None:
                manifest = self._dataset.manifest
                samples = {
                    check_split_name(name): split.records - self.before.get(name, 0)
                    for name, split in manifest.splits.items()
                }
                features = manifest.features
                facts: dict[str, Any] = {
                    "input_digest": self.digest(),
                    "class_names": manifest.class_names,
                    "warnings": tuple(iter_flip_warnings(features, options.applied)),
                }
                notes = {"images": options.variants * sum(samples.values())}
            else:
                inventory = stack.enter_context(take_inventory(self.url, self._raw))
                samples = {name: count for name, (count, _, _) in inventory.totals.items()}
                features = inventory.features
                moving = [feature.name for feature in features if isinstance(feature.kind, str)]
                if moving:
                    raise OptionError(
                        f"{self.url} has {', '.join(moving)}, which move with the crop: make a dataset of it first "
                        "(tpufeed shard), and warm that"
                    )
                facts = {
                    "input_digest": inventory.digest,
                    "class_names": inventory.classes.names,
                    "base": inventory.base,
                    "ignored_files": inventory.ignored_files,
                    "warnings": inventory.warnings,
                }
                notes = {"images": options.variants * inventory.count, "listed_twice": inventory.listed_twice}
            header = PlanHeader(
                kind=KIND,
                source=self.url,
                options={**self.identity, **options.to_dict(), **self.facts, **self.follows},
                run_id=secrets.token_hex(8),
                splits={},
                variants=options.variants,
                features=cached_schema(features, options, size),
                notes=notes,
                **facts,
            )
            few = {name: min(count, _PROBED) for name, count in samples.items()}
            first = list(iter_ranges(few, dict.fromkeys(few, 1), inventory, self.before))
            yield Planning(header, samples, first, lambda shards: iter_ranges(samples, shards, inventory, self.before))

    def check_joined(self, store: Store, plan: Plan, options: CacheOptions, size: Size) -> None:
        """Check a plan at `store` that another run has put there, see `sharding.joined`. Raises ManifestError."""
        header = plan.header
        if self._dataset is None:
            image, *_ = cached_schema(header.features, options, size)
            check_joined(store, plan, self.url, self._raw, options.variants, image)
            return
        with self.plan(options, size) as planning:
            wanted = msgspec.structs.replace(planning.header, run_id=header.run_id, source=header.source)
            wanted = msgspec.structs.replace(wanted, splits=header.splits, options=header.options)
            if wanted != header or header.splits.keys() != planning.samples.keys():
                raise forged(store, self.url, "its header says other than the dataset")
            tasks = planning.iter_tasks(header.splits)
            if any(task != found for task, found in itertools.zip_longest(tasks, iter_tasks(store, plan))):
                raise forged(store, self.url, "its tasks are not the parts of the dataset")


def record_size(options: CacheOptions, size: Size, probed_bytes: float, moving_bytes: float) -> float:
    """Bytes of a record: known for raw pixels, else those of the images that were probed; and those of what moves."""
    return (size[0] * size[1] * 3 if options.encode == "raw" else probed_bytes) + moving_bytes + _FEATURES_BYTES


def count_shards(samples: Mapping[str, int], options: CacheOptions, record_bytes: float) -> dict[str, int]:
    """Return the number of shards of each variant, by split.

    Raises:
        OptionError: a shard would be smaller than a record.
    """
    target: float | None = options.size_bytes
    if target is None:
        total = max(samples.values(), default=0) * record_bytes
        target = min(_LARGE_SHARD, max(_SMALL_SHARD, total / _ENOUGH_SHARDS))
    elif record_bytes > target:
        raise OptionError(
            f"a shard of {options.size_bytes} bytes cannot hold one record of {record_bytes:.0f}; give a --shard-size "
            "of 64MB to 256MB"
        )
    return {name: min(count, max(1, round(count * record_bytes / target))) for name, count in samples.items()}


def iter_ranges(
    samples: Mapping[str, int],
    shards: Mapping[str, int],
    inventory: Inventory | None,
    before: Mapping[str, int],
) -> Iterator[Task]:
    """Tasks of equally many samples: each is the range `[first, stop)` of a split, of raw images with their inputs.

    A sample's id is its place in the global order, whether it is taken or not. In a cache that grows the first is the
    one behind the samples of each split that came `before`.
    """
    number = 0
    for split, count in samples.items():
        inputs = None if inventory is None else inventory.iter_inputs(split)
        for shard in range(shards[split]):
            first, stop = (count * edge // shards[split] for edge in (shard, shard + 1))
            run = () if inputs is None else tuple(item for item, _ in itertools.islice(inputs, stop - first))
            start = before.get(split, 0)
            yield Task(number, split, shard, shards[split], run, start + first, start + stop)
            number += 1


def cached_schema(features: Sequence[FeatureSpec], options: CacheOptions, size: Size) -> tuple[FeatureSpec, ...]:
    """The features of a cache whose source has `features`."""
    label = next((feature for feature in features if feature.name == LABEL), None)
    several = label.lengths if label is not None and label.shape is None else None
    own = record_schema(label is not None, several if isinstance(several, tuple) else None)
    stored = {feature.name: feature for feature in features}
    known = {feature.name for feature in own}
    present = stored.keys() | {HEIGHT, WIDTH, CHANNELS, FORMAT}
    others = (f for f in features[1:] if f.name not in known)
    image = FeatureSpec(TENSOR, "uint8", (*size, 3)) if options.encode == "raw" else own[0]
    lists = (stored.get(f.name, f) if f.shape is None else f for f in own[1:] if f.name in present)
    return (image, *(cached_spec(feature, options, size) for feature in (*lists, *others)))
